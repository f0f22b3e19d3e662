"""Properties that every fitted model has, whatever it was fitted to."""

import numpy as np
import scipy.sparse as sp

from fuzz.outcome import Refused, outcome
from gpx_scale.explanation import dense

ROUNDING = 1e-9  # relative to the largest terms of a sum


def must_predict(model, X, Z=None, m=None):
    """Check predictions and standard deviations, and return False if they were refused.

    They are finite, there is one per row, and standard deviations are not below the noise.
    """
    answer = outcome(model.predict, X, Z, return_std=True)
    mean = outcome(model.predict, X, Z)
    if not isinstance(answer, tuple):
        return mean if isinstance(mean, np.ndarray) else None
    assert isinstance(mean, np.ndarray)
    again, std = answer
    assert mean.shape == std.shape
    assert mean.ndim == 1
    assert m is None or len(mean) == m
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    sigma_y = model.posterior_.hyperparameters.sigma_y
    floor = sigma_y * model._preprocessor.scaling.y_scale
    assert (std >= floor * (1 - ROUNDING)).all()
    assert np.abs(again - mean).max(initial=0.0) <= scale_of(model, mean) * 1e-7
    return mean


def scale_of(model, mean):
    """Return the sizes that rounding is relative to: of y, and of predictions minus its mean."""
    scaling = model._preprocessor.scaling
    return np.abs(mean).max(initial=0.0) + scaling.y_scale + abs(scaling.y_shift)


def must_explain(model, X, Z=None, must=False, **how):
    """Check that base value + contributions = prediction, or return None if it was refused.

    All arrays are finite, and their shapes fit one another.
    """
    found = outcome(model.explain, X, Z, **how)
    if isinstance(found, Refused):
        assert not must, found.error
        return None
    must_add_up(found)
    mean = outcome(model.predict, X, Z)
    assert isinstance(mean, np.ndarray), "explained, but not predicted"
    terms = np.abs(dense(found.contributions)).sum(axis=1) + np.abs(found.base_values)
    assert (np.abs(found.prediction - mean) <= 1e-7 * (terms + scale_of(model, mean))).all()
    return found


def must_add_up(found):
    m, d = found.weights.shape
    assert len(found) == m
    assert len(found.feature_names) == d
    for name in ("weights", "contributions", "data", "weights_std", "contributions_std"):
        part = getattr(found, name)
        if part is None:
            continue
        assert part.shape == (m, d)
        assert np.isfinite(dense(part)).all(), name
        if name.endswith("_std"):
            assert (dense(part) >= 0).all(), name
        if sp.issparse(part):
            assert (part.indices == found.weights.indices).all()
    for name in ("base_values", "prediction", "base_values_std", "prediction_std"):
        part = getattr(found, name)
        if part is not None:
            assert part.shape == (m,)
            assert np.isfinite(part).all(), name
    contributions = dense(found.contributions)
    terms = np.abs(contributions).sum(axis=1) + np.abs(found.base_values)
    assert (
        np.abs(found.base_values + contributions.sum(axis=1) - found.prediction) <= ROUNDING * terms
    ).all()


def must_not_depend_on_company(model, X, Z=None):
    """Check that the prediction of a row alone is that of the row among others."""
    mean = outcome(model.predict, X, Z)
    for i in range(min(3, len(mean))):
        alone = outcome(model.predict, X[i : i + 1], None if Z is None else Z[i : i + 1])
        assert isinstance(alone, np.ndarray)
        assert abs(alone[0] - mean[i]) <= 1e-7 * scale_of(model, mean)
