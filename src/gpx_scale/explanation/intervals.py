"""Intervals and signs of normal variables, at the entries of dense and of sparse arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import ndtr, ndtri

from ..runtime.arguments import probability


class Interval(NamedTuple):
    """A central interval, in which each of some quantities lies with a given probability.

    Attributes
    ----------
    lower, upper : ndarray or csr_array
        The lower and upper bounds, with the shape of the quantities.

    Examples
    --------
    >>> from gpx_scale.explanation import Interval
    >>> lower, upper = Interval(lower=[1.0, 2.0], upper=[3.0, 5.0])
    >>> upper[1] - lower[1]
    3.0
    """

    lower: Any
    upper: Any


def entrywise(function: Callable[..., np.ndarray], first: Any, *others: Any) -> Any:
    """Apply a function to arrays of one shape, or to the entries of csr_arrays of one pattern."""
    if not sp.issparse(first):
        return function(first, *others)
    values = function(first.data, *(other.data for other in others))
    return sp.csr_array((values, first.indices, first.indptr), shape=first.shape)


def between(mean: Any, std: Any, level: float) -> Interval:
    """Return the central interval of normal distributions, with the probability `level`."""
    # The quantile of the lower tail is finite for every level below 1.
    reach = -float(ndtri(0.5 * (1.0 - probability(level, "level"))))
    lower = entrywise(lambda centre, scale: centre - reach * scale, mean, std)
    upper = entrywise(lambda centre, scale: centre + reach * scale, mean, std)
    return Interval(lower, upper)


def probability_of_sign(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return P(v > 0) of normal variables. If std is 0, it is 1 or 0 by the sign of the mean."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(std > 0, ndtr(mean / std), (mean > 0).astype(float))


def ratio_of(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return means over standard deviations, 0 where both are 0 to rounding."""
    known = std > np.finfo(float).tiny
    ratio: np.ndarray = np.divide(mean, std, out=np.zeros_like(mean), where=known)
    return ratio


def dense(A: Any) -> np.ndarray:
    """Return a dense array with the numbers of an array or of a csr_array."""
    return A.toarray() if sp.issparse(A) else np.asarray(A)
