"""Parallel loops that compute a stationary kernel at the squared distances of pairs.

k = scale f(s) with s = rate |x - x'|^2; the profiles f are those of dense.py. Pairs are divided
into chunks of CHUNK_PAIRS, each of which is one iteration. `shape` and `scale` have the dtype of
the weights, `rate` is float64.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .dense import RQ, contract_profile, times_profile

# The pairs of a chunk: their numbers stay in the second-level cache.
CHUNK_PAIRS = 2**13


@jit
def _row(a):
    """Return a vector as a matrix of one row; it stays contiguous, as vector instructions need."""
    return a.reshape(1, a.size)


@jit
def _minus_s(rate, squared, E):
    """E <- -s, rounded to its dtype;  (pairs,) -> (pairs,)."""
    for e in range(E.size):
        E[e] = -rate * squared[e]


@jit
def _copy(values, out):
    """out <- values, rounded to its dtype;  (pairs,) -> (pairs,)."""
    for e in range(out.size):
        out[e] = values[e]


@TileLoop
def pair_values(family, shape, scale, rate, squared, inner, out):
    """Compute S_ij = k_ij <z_i, z_j>;  (pairs,), (pairs,) -> (pairs,);  one exponential each."""
    for chunk in prange((out.size + CHUNK_PAIRS - 1) // CHUNK_PAIRS):
        first, last = chunk * CHUNK_PAIRS, min(out.size, (chunk + 1) * CHUNK_PAIRS)
        E, S = np.empty(last - first, out.dtype), out[first:last]
        _minus_s(rate, squared[first:last], E)
        _copy(inner[first:last], S)
        times_profile(family, shape, scale, _row(E), _row(S))


@TileLoop
def pair_slopes(family, shape, scale, rate, squared, inner, out):
    """Compute <z_i, z_j> dk_ij by log theta1, log theta2 and, for RQ, log shape.

    (pairs,), (pairs,) -> (2 or 3, pairs);  two exponentials per pair.
    """
    size = out.shape[1]
    for chunk in prange((size + CHUNK_PAIRS - 1) // CHUNK_PAIRS):
        first, last = chunk * CHUNK_PAIRS, min(size, (chunk + 1) * CHUNK_PAIRS)
        unused = np.empty((3, 1), out.dtype)
        E, values, slopes = (
            np.empty(last - first, out.dtype),
            out[0][first:last],
            out[1][first:last],
        )
        _minus_s(rate, squared[first:last], E)
        _copy(inner[first:last], values)
        _copy(inner[first:last], slopes)
        times_profile(family, shape, scale, _row(E), _row(values))
        contract_profile(family, shape, _row(E), _row(slopes), unused)
        # contract_profile has left the weights times h in `slopes`, and s in E.
        for e in range(E.size):
            slopes[e] *= scale * E[e]
        if family == RQ:
            for e in range(E.size):
                out[2, first + e] = slopes[e] - values[e] * shape * np.log1p(E[e] / shape)
