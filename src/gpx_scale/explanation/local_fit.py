"""What weights explain: the local R^2, and the share of each of their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from ..errors import InputError

if TYPE_CHECKING:
    from .explanation import Explanation


def local_r2_of(explanation: Explanation) -> np.ndarray:
    """Return w^T S w / (w^T S w + noise) of each sample, as `Explanation.local_r2` describes it.

    S is the covariance of the features over the samples;  (m,).
    """
    weights, data = explanation.weights, explanation.data
    if sp.issparse(weights) or not np.isfinite(weights).all():
        raise InputError(
            "A local R^2 needs the weights of dense features. Explain with dense=True, and without "
            "grouped()."
        )
    if len(explanation) < 2:
        raise InputError("A local R^2 needs the features of at least two samples. Explain more.")
    if not explanation.noise:
        raise InputError("A local R^2 needs a model with Gaussian noise, which this one has not.")
    covariance = np.atleast_2d(np.cov(np.asarray(data, float), rowvar=False))
    explained = np.einsum("ij,jk,ik->i", weights, covariance, weights)
    rest = explanation.noise**2
    if explanation.weights_noise is not None:
        rest += float(explanation.weights_noise**2 @ covariance.diagonal())
    share: np.ndarray = explained / (explained + rest)
    return share


def part_shares_of(explanation: Explanation) -> dict[str, float]:
    """Return the share of the variance of each part, as `Explanation.part_shares` describes it."""
    parts = {name: getattr(explanation, name) for name in ("constant", "own", "varying")}
    known = {name: part for name, part in parts.items() if part is not None}
    if not known or explanation.baseline is None or explanation.weights.shape[1] == 0:
        return {}
    moved = explanation.data - explanation.baseline
    spread = {name: float((part * moved).sum(axis=1).var()) for name, part in known.items()}
    total = sum(spread.values())
    return {name: size / total for name, size in spread.items()} if total > 0 else {}
