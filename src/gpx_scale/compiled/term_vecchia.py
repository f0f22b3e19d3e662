"""A parallel loop over rows, each of which is predicted from a few others, for a sum of terms.

`rows` and `counts` are those of `vecchia`, and `kernel`, `points` and Z those of `term_tiles`. With
several targets Y (n, c), there is a mean for each of them, mu_l = h.Y_l, but only one variance v.
With A_l = (C_ss^-1 Y_sl, 0), any sum of them has the derivatives

    sum_l u_l dmu_l  =  H^T dC (sum_l u_l A_l)
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import trsm_lower
from .term_neighborhood import points_of, some_rows
from .term_tiles import contract_strip, form_strip
from .vecchia import factor_of_earlier


@jit
def predict_targets(C, Y, jitters, H, A, means):
    """H, A <- (-h, 1), (C_ss^-1 Y_s, 0) for the last of the rows of C, s all others.

    (r + 1, r + 1), (r + 1, c) -> (r + 1,), (r + 1, c), and `means` (c,) of the last row. Return its
    variance, or -1 if C_ss has no Cholesky factor with any of the jitters. C is kept.
    """
    r, c = len(C) - 1, Y.shape[1]
    H[r], A[r], means[:] = 1.0, 0.0, 0.0
    if r == 0:
        return C[0, 0]
    L, sides = np.empty((r, r)), np.empty((r, 1 + c))
    if not factor_of_earlier(C, jitters, L):
        return -1.0
    for j in range(r):
        sides[j, 0], sides[j, 1:] = C[r, j], Y[j]
    trsm_lower(True, False, r, 1 + c, 1.0, L.ravel(), r, sides.ravel(), 1 + c)
    variance = C[r, r]
    for j in range(r):
        variance -= sides[j, 0] * sides[j, 0]
        for l in range(c):
            means[l] += sides[j, 0] * sides[j, 1 + l]
    trsm_lower(True, True, r, 1 + c, 1.0, L.ravel(), r, sides.ravel(), 1 + c)
    for j in range(r):
        H[j], A[j] = -sides[j, 0], sides[j, 1:]
    return variance


@jit
def _contract(kernel, points, Z, left, right, sums):
    """sums <- left^T dS right for all derivatives of S between some rows;  (width,)."""
    r = left.size
    W, of_rows = np.empty((r, r)), np.zeros((r, sums.size))
    for j in range(r):
        for c in range(r):
            W[j, c] = left[j] * right[c]
    contract_strip(kernel, points, Z, 0, 0, W, of_rows)
    sums[:] = 0.0
    for j in range(r):
        for k in range(sums.size):
            sums[k] += of_rows[j, k]


@TileLoop
def predict_rows(
    kernel,
    points,
    Z,
    variances,
    noise,
    noise_gradient,
    Y,
    rows,
    counts,
    jitters,
    combined,
    means,
    variance,
    sums,
    by_noise,
):
    """Predict each row from those before it in its list: mu and v, with derivatives if asked for.

    variances S_jj and noise D_j are (n,), noise_gradient is (n, 2), and Y is (n, c). `means` (T, c)
    and `variance` (T,) are written; a variance of -1 says that there was no Cholesky factor.
    `combined` (T, s, c) has s sums u of the targets for each row. Unless `sums` is empty, it is
    (T, 1 + s, width): the derivatives of v, and of each sum of means, in the order of `term_tiles`;
    `by_noise` (T, 1 + s, 2) has those by the parameters of the noise.
    r^3/3 + (1 + s) r^2 flops, and as many kernel values for each term.
    """
    for i in prange(len(counts)):
        r = counts[i] + 1
        mine = rows[i, :r]
        here, own, targets = points_of(points, mine), some_rows(Z, mine), some_rows(Y, mine)
        C = np.empty((r, r))
        form_strip(kernel, here, own, 0, 0, C)
        for j in range(r):
            C[j, j] = variances[mine[j]] + noise[mine[j]]
        H, A = np.empty(r), np.empty((r, Y.shape[1]))
        variance[i] = predict_targets(C, targets, jitters, H, A, means[i])
        for s in range(sums.shape[1]):
            right = np.zeros(r)
            for j in range(r):
                if s == 0:
                    right[j] = H[j]
                else:
                    for l in range(Y.shape[1]):
                        right[j] += combined[i, s - 1, l] * A[j, l]
            _contract(kernel, here, own, H, right, sums[i, s])
            by_noise[i, s] = 0.0
            for j in range(r):
                for k in range(2):
                    by_noise[i, s, k] += H[j] * right[j] * noise_gradient[mine[j], k]
