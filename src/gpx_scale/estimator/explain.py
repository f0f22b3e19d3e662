"""From the engine's moments to the user's explanation: units, baselines, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.features import Features, SparseFeatures
from ..data.inputs import Queries
from ..data.scaling import Scaling, finite
from ..errors import InputError
from ..explanation import Explanation
from ..model.hyperparameters import Hyperparameters
from ..runtime.arguments import real_array
from ..solvers.posterior import Moments

FAR = 1e6  # of 16 digits, 10 are left


def baseline_vector(baseline: Any, scaling: Scaling) -> np.ndarray:
    """The z to which contributions are relative, in the user's units: "mean", "zero" or an array;  (d,)."""
    d = scaling.z_scale.size
    if isinstance(baseline, str) and baseline == "mean":
        return scaling.z_baseline
    if isinstance(baseline, str) and baseline == "zero":
        return np.zeros(d)
    vector = real_array(baseline)
    if vector.shape != (d,) or not np.isfinite(vector).all():
        seen = (
            repr(baseline)
            if isinstance(baseline, str | float | int)
            else f"{type(baseline).__name__} {vector.shape}"
        )
        raise InputError(f'baseline={seen}: give "mean", "zero" or {d} finite numbers')
    return vector


def must_be_near(base: np.ndarray, features: Features) -> None:
    """A baseline (d~,) in standardised units: from far away, contributions and base value are huge, and their sum has no
    digits left."""
    largest = np.abs(features.arrays[-1]).max(initial=1.0)
    if (far := float(np.abs(base).max(initial=0.0))) > FAR * largest:
        raise InputError(
            f"the baseline is {far / largest:.0e} times as large as the data: contributions would lose their digits"
        )


def explanation_from_moments(
    moments: Moments,
    queries: Queries,
    baseline: np.ndarray,
    scaling: Scaling,
    hyperparameters: Hyperparameters,
    all_features: bool,
    known: dict[str, Any],
) -> Explanation:
    """Return the explanation of queries from moments in standardised units.

    `moments.along` are variances along z and along the baseline. A sparse Z has its own entries, or `all_features`.
    """
    if queries.Z.is_sparse and not all_features:
        assert isinstance(queries.Z, SparseFeatures)
        return _at_entries(moments, queries.Z, scaling, hyperparameters, known)
    raw = queries.raw_Z.toarray() if queries.Z.is_sparse else queries.raw_Z
    return _of_all_features(moments, raw, baseline, scaling, hyperparameters, known)


def _of_all_features(
    moments: Moments,
    raw_z: np.ndarray,
    baseline: np.ndarray,
    scaling: Scaling,
    hyperparameters: Hyperparameters,
    known: dict[str, Any],
) -> Explanation:
    assert moments.mean is not None
    weights = scaling.weights(moments.mean)
    shift = raw_z - baseline
    with np.errstate(over="ignore"):
        contributions = finite(weights * shift, "contributions")
    base_values = scaling.prediction((moments.mean * scaling.z_row(baseline)).sum(axis=1))
    weights_std = contributions_std = weights_cov = None
    if moments.variance is not None:
        weights_std = np.abs(scaling.weights(np.sqrt(moments.variance)))
        with np.errstate(over="ignore"):
            contributions_std = finite(weights_std * np.abs(shift), "deviations of contributions")
    if moments.covariance is not None:
        weights_cov = scaling.weights(np.swapaxes(scaling.weights(moments.covariance), 1, 2))
    prediction = base_values + contributions.sum(axis=1)
    return Explanation(
        weights=weights,
        weights_std=weights_std,
        contributions=contributions,
        contributions_std=contributions_std,
        base_values=base_values,
        prediction=prediction,
        data=raw_z.copy(),
        weights_cov=weights_cov,
        **_deviations(moments, scaling, hyperparameters),
        **known,
    )


def _at_entries(
    moments: Moments,
    z: SparseFeatures,
    scaling: Scaling,
    hyperparameters: Hyperparameters,
    known: dict[str, Any],
) -> Explanation:
    """The same at the entries of a sparse Z, relative to z = 0: the last column of the engine's Z may be the intercept."""
    assert moments.mean is not None
    d, counted = scaling.z_scale.size, z.indices[z.span] < scaling.z_scale.size
    pointers = np.concatenate(
        [[0], np.cumsum(np.bincount(z.entry_rows[counted], minlength=len(z)))]
    )
    pattern = SparseFeatures(pointers, z.indices[z.span][counted], z.values[z.span][counted], d)
    weights = scaling.y_scale * moments.mean[counted]
    intercepts = np.bincount(z.entry_rows[~counted], moments.mean[~counted], minlength=len(z))
    base_values = scaling.prediction(intercepts)
    contributions = pattern.with_values(weights * pattern.values)
    weights_std = contributions_std = None
    if moments.variance is not None:
        deviations = scaling.y_scale * np.sqrt(moments.variance[counted])
        weights_std = pattern.with_values(deviations)
        contributions_std = pattern.with_values(deviations * np.abs(pattern.values))
    return Explanation(
        weights=pattern.with_values(weights),
        weights_std=weights_std,
        contributions=contributions,
        contributions_std=contributions_std,
        base_values=base_values,
        prediction=base_values + contributions.sum(axis=1),
        data=pattern.with_values(pattern.values.copy()),
        **_deviations(moments, scaling, hyperparameters),
        **known,
    )


def checked_names(names: Sequence[str], d: int) -> list[str]:
    if (
        isinstance(names, str)
        or not hasattr(names, "__len__")
        or getattr(names, "shape", None) == ()
    ):
        raise InputError(f"feature_names={names!r}: give a list of {d} feature names")
    if len(names) != d:
        raise InputError(f"{len(names)} feature names for {d} features")
    return [str(name) for name in names]


def _deviations(
    moments: Moments, scaling: Scaling, hyperparameters: Hyperparameters
) -> dict[str, Any]:
    """Of predictions and base values, from the variances along z and along the baseline, where those were asked for."""
    if not moments.along:
        return {"prediction_std": None, "base_values_std": None}
    along_z, along_base = moments.along
    return {
        "prediction_std": scaling.deviation(along_z + hyperparameters.sigma_y**2),
        "base_values_std": scaling.deviation(along_base),
    }
