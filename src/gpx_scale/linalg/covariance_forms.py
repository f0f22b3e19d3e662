"""The form in which conjugate gradients multiply with C: pairs, stored tiles or recomputed ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..data.inputs import TrainingRows
from ..model.hyperparameters import Hyperparameters
from ..runtime.session import Session
from .constant_terms import CovarianceWithConstants
from .covariance import Covariance, StoredCovariance, TiledCovariance
from .pair_terms import PairTermsCovariance
from .pairs import Pairs
from .sparse_covariance import PairCovariance


def covariances(
    data: TrainingRows,
    hyperparameters: Hyperparameters,
    session: Session,
    form: str,
    dtype: Any,
    pairs: Pairs | None,
) -> tuple[Covariance, Covariance]:
    """Return C for many products, in float32 if that is precise enough, and C in float64.

    `form` is "pairs", "stored" or "recomputed", and `dtype` that of the first one if it need not be
    float64.
    """
    prior = hyperparameters.weight_prior
    if prior.has_constants and form != "pairs":
        varying = replace(hyperparameters, weight_prior=prior.without_constants)
        first, second = covariances(data, varying, session, form, dtype, pairs)
        found = CovarianceWithConstants.of(hyperparameters, first)
        if first is second:
            return found, found
        return found, CovarianceWithConstants.of(hyperparameters, second)
    exact = TiledCovariance(data, hyperparameters, session)
    can_round = float32_is_enough(exact)
    if form == "pairs":
        assert pairs is not None
        precise = _of_pairs(data, hyperparameters, session, pairs)
        return (replace(precise, dtype=dtype) if can_round else precise), precise
    if not can_round:
        return exact, exact
    tiles = {"stored": StoredCovariance, "recomputed": TiledCovariance}[form]
    kernels = [term.kernel for term in prior.active]
    is_safe = all(kernel.float32_is_safe(data.x) for kernel in kernels)
    tile_dtype = dtype if is_safe else np.float64
    return tiles(data, hyperparameters, session, tile_dtype), exact


def _of_pairs(
    data: TrainingRows, hyperparameters: Hyperparameters, session: Session, pairs: Pairs
) -> PairCovariance:
    """Return C on the pairs in float64."""
    prior, given = hyperparameters.weight_prior, (data, hyperparameters, session, np.float64, pairs)
    if prior.is_shared:
        return PairCovariance(*given)
    of_terms = PairTermsCovariance.terms_of(data, prior, pairs, session)
    return PairTermsCovariance(*given, of_terms=of_terms)


def float32_is_enough(exact: Covariance) -> bool:
    """Return whether float32 can represent C well enough.

    C has to be in the range of float32. Rounding n^2 numbers moves the eigenvalues of C by about
    eps sqrt(n) times its diagonal, so the noise has to be well above that, or the rounded matrix
    may not be positive definite.
    """
    z_squared, largest = exact.rows.Z.squared_norms().max(), exact.diagonal.max()
    in_range = 1e-25 < largest < 1e25
    if z_squared:
        in_range &= 1e-25 < z_squared < 1e25 and 1e-25 * z_squared < largest < 1e25 * z_squared
    least_noise = 4.0 * np.finfo(np.float32).eps * np.sqrt(len(exact))
    return bool(in_range and (exact.noise / exact.diagonal).min() >= least_noise)
