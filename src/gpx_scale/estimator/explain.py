"""From the moments of the weights, in standardised units, to an `Explanation` in the user's units.

In this module, d counts the columns of Z and d~ the weights: d, or d + 1 with an intercept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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

# A baseline may be this many times as large as the data. With a baseline that large, contributions
# and base values are larger than their sum by the same factor, and the sum keeps 10 of 16 digits.
LARGEST_BASELINE_RATIO = 1e6


def baseline_vector(baseline: Any, scaling: Scaling) -> np.ndarray:
    """Return the z to which contributions are relative, in the user's units;  (d,).

    `baseline` is "mean", "zero" or an array of d numbers.
    """
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
        raise InputError(
            f'baseline={seen} cannot be used. Give "mean", "zero" or {d} finite numbers.'
        )
    return vector


def must_be_near(base: np.ndarray, features: Features) -> None:
    """Raise an error if a baseline (d~,) in standardised units is far larger than the data.

    Contributions and base values would be huge, and their sum would have no digits left.
    """
    largest = np.abs(features.arrays[-1]).max(initial=1.0)
    if (far := float(np.abs(base).max(initial=0.0))) > LARGEST_BASELINE_RATIO * largest:
        raise InputError(
            f"The baseline is {far / largest:.0e} times as large as the data, so contributions "
            "would lose their digits. Give a baseline in the range of the data."
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

    `moments.along` has the variances of w . z and of w . baseline, and those of the contributions
    of groups that have several features. For a sparse Z, the moments are
    those of the stored entries, or with `all_features` those of all d features. `known` has the
    fields of the explanation that do not depend on the queries.
    """
    if queries.Z.is_sparse and not all_features:
        assert isinstance(queries.Z, SparseFeatures)
        found = _at_entries(moments, queries.Z, scaling, hyperparameters, known)
    else:
        raw = queries.raw_Z.toarray() if queries.Z.is_sparse else queries.raw_Z
        found = _of_all_features(moments, raw, baseline, scaling, hyperparameters, known)
    if found.groups is None or found.contributions_std is None:
        return found
    joint = [scaling.deviation(variance) for variance in moments.along[2:]]
    return replace(found, groups_std=found.groups.deviations(found.contributions_std, joint))


def _of_all_features(
    moments: Moments,
    raw_z: np.ndarray,
    baseline: np.ndarray,
    scaling: Scaling,
    hyperparameters: Hyperparameters,
    known: dict[str, Any],
) -> Explanation:
    """Return an explanation with dense arrays of shape (m, d), for queries with z = `raw_z`."""
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
            contributions_std = finite(
                weights_std * np.abs(shift), "standard deviations of contributions"
            )
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
        **_standard_deviations(moments, scaling, hyperparameters),
        **known,
    )


def _at_entries(
    moments: Moments,
    z: SparseFeatures,
    scaling: Scaling,
    hyperparameters: Hyperparameters,
    known: dict[str, Any],
) -> Explanation:
    """Return an explanation at the stored entries of a sparse Z, relative to z = 0.

    The column of ones of an intercept, if there is one, is the last one of `z`. Its weights go into
    the base values.
    """
    assert moments.mean is not None
    counted, pattern = _without_intercept(z, scaling)
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
        **_standard_deviations(moments, scaling, hyperparameters),
        **known,
    )


def _without_intercept(z: SparseFeatures, scaling: Scaling) -> tuple[np.ndarray, SparseFeatures]:
    """Return which entries are those of features, and these;  (entries,), (m, d)."""
    d, counted = scaling.z_scale.size, z.indices[z.span] < scaling.z_scale.size
    pointers = np.concatenate(
        [[0], np.cumsum(np.bincount(z.entry_rows[counted], minlength=len(z)))]
    )
    features = z.indices[z.span][counted], z.values[z.span][counted]
    return counted, SparseFeatures(pointers, *features, d)


def at_entries(weights: np.ndarray, z: Features, scaling: Scaling) -> Any:
    """Return standardised weights at the entries of a sparse Z in the user's units;  (m, d)."""
    assert isinstance(z, SparseFeatures)
    counted, pattern = _without_intercept(z, scaling)
    return pattern.with_values(scaling.y_scale * weights[counted])


def checked_names(names: Sequence[str], d: int) -> list[str]:
    """Return the names of d features as strings, or raise an InputError."""
    if (
        isinstance(names, str)
        or not hasattr(names, "__len__")
        or getattr(names, "shape", None) == ()
    ):
        raise InputError(f"feature_names={names!r} is no list. Give a list of {d} feature names.")
    if len(names) != d:
        raise InputError(
            f"There are {len(names)} feature names for {d} features. Give one for each feature."
        )
    return [str(name) for name in names]


def _standard_deviations(
    moments: Moments, scaling: Scaling, hyperparameters: Hyperparameters
) -> dict[str, Any]:
    """Return the standard deviations of predictions and of base values, or None if not asked for.

    They come from the variances of w . z and of w . baseline. Those of predictions are without
    noise where y is not on the scale of f.
    """
    if not moments.along:
        return {"prediction_std": None, "base_values_std": None}
    along_z, along_base = moments.along[:2]
    likelihood, with_noise = hyperparameters.likelihood, along_z
    if likelihood.standardizes_target:
        _, with_noise = likelihood.predict(np.zeros_like(along_z), along_z)
    return {
        "prediction_std": scaling.deviation(with_noise),
        "base_values_std": scaling.deviation(along_base),
    }
