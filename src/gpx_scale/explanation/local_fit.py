"""How well the weights of a sample explain y around it: the local R^2."""

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
