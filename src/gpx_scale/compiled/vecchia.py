"""A parallel loop over rows, each of which is predicted from a few others, with derivatives.

Row i of `rows`, (T, r + 1), has the numbers of the rows that a row is conditioned on, `counts[i]`
of them, and then its own number. With C of these rows, c = C_si, h = C_ss^-1 c, H = (-h, 1) and
A = (C_ss^-1 y_s, 0):

    mu = h.y_s,    v = C_ii - c.h,    dmu = H^T dC A,    dv = H^T dC H

The kernel, points and Z are as in `neighborhood`.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm, potrf_lower, trsm_lower
from .dense import contract_profile, refine_close_pairs, times_profile
from .neighborhood import products_of_rows


@jit
def _minus_squared_distances(some, near, E):
    """E <- -s between scaled points;  (r, p) -> (r, r);  2 r^2 p flops."""
    r, p = some.shape
    norms = np.empty(r)
    for j in range(r):
        norms[j] = 0.0
        for column in range(p):
            norms[j] += some[j, column] ** 2
    flat = some.ravel()
    gemm(False, True, r, r, p, 2.0, flat, p, flat, p, 0.0, E.ravel(), r)
    for j in range(r):
        for c in range(r):
            E[j, c] -= norms[j] + norms[c]
    if near > 0.0:
        refine_close_pairs(some, some, near, E)
    for j in range(r):
        E[j, j] = 0.0


@jit
def factor_of_earlier(C, jitters, L):
    """L <- the lower Cholesky factor of C without its last row; return whether there is one.

    (r + 1, r + 1) -> (r, r). The first of the jitters, shares of the diagonal, is taken with which
    there is one.
    """
    r = len(L)
    for jitter in jitters:
        for j in range(r):
            for c in range(j):
                L[j, c] = C[j, c]
            L[j, j] = C[j, j] * (1.0 + jitter)
        if potrf_lower(r, L.ravel(), r) == 0:
            return True
    return False


@jit
def predict_last(C, y, jitters, H, A):
    """H, A <- (-h, 1), (C_ss^-1 y_s, 0) for the last of the rows of C, s all others.

    (r + 1, r + 1), (r + 1,) -> (r + 1,) each. Return the mean and the variance of the last row, or
    a variance of -1 if C_ss has no Cholesky factor with any of the jitters, which are shares of its
    diagonal. C is kept.
    """
    r = len(C) - 1
    H[r], A[r] = 1.0, 0.0
    if r == 0:
        return 0.0, C[0, 0]
    L, sides = np.empty((r, r)), np.empty((r, 2))
    if not factor_of_earlier(C, jitters, L):
        return 0.0, -1.0
    for j in range(r):
        sides[j, 0], sides[j, 1] = C[r, j], y[j]
    trsm_lower(True, False, r, 2, 1.0, L.ravel(), r, sides.ravel(), 2)
    mean, variance = 0.0, C[r, r]
    for j in range(r):
        mean += sides[j, 0] * sides[j, 1]
        variance -= sides[j, 0] * sides[j, 0]
    trsm_lower(True, True, r, 2, 1.0, L.ravel(), r, sides.ravel(), 2)
    for j in range(r):
        H[j], A[j] = -sides[j, 0], sides[j, 1]
    return mean, variance


@jit
def _contract(family, shape, by_column, some, E, inner, left, right, out):
    """out <- the sums of left_i right_j <z_i, z_j> with the derivatives of a profile;  (3 + p,).

    They are as in `kernel_tiles`. E has -s and is kept.
    """
    r, p = some.shape
    minus_s, G, sums = E.copy(), np.empty((r, r)), np.empty((3, r))
    for j in range(r):
        for c in range(r):
            G[j, c] = left[j] * right[c] * inner[j, c]
    contract_profile(family, shape, minus_s, G, sums)
    out[:] = 0.0
    for j in range(r):
        for s in range(3):
            out[s] += sums[s, j]
    if not by_column:
        return
    # G has the weights times h now. As it need not be symmetric, its rows and columns are summed:
    # sum_jc G_jc (x_j - x_c)^2 = x^2.(rows + columns) - 2 x.(G x).
    product = np.empty((r, p))
    gemm(False, False, r, p, r, 1.0, G.ravel(), r, some.ravel(), p, 0.0, product.ravel(), p)
    total = np.zeros(r)
    for j in range(r):
        for c in range(r):
            total[j] += G[j, c]
            total[c] += G[j, c]
    for j in range(r):
        for column in range(p):
            x = some[j, column]
            out[3 + column] += x * x * total[j] - 2.0 * x * product[j, column]


@TileLoop
def predict_rows(
    kernel,
    by_column,
    points,
    Z,
    variances,
    noise,
    noise_gradient,
    y,
    rows,
    counts,
    jitters,
    with_gradient,
    mean,
    variance,
    mean_sums,
    variance_sums,
    mean_noise,
    variance_noise,
):
    """Predict each row from those before it in its list: mu and v with their derivatives.

    variances S_jj, noise D_j and y are (n,), noise_gradient is (n, 2). Outputs are mean and
    variance (T,); if `with_gradient`, the sums (T, 3 + p) from which a kernel computes derivatives
    of mu and v by its parameters, and the derivatives by those of the noise (T, 2). A variance of
    -1 says that there was no Cholesky factor. r^3/3 + 10 r^2 flops, and 3 r^2 kernel values.
    """
    family, shape, scale, near = kernel
    p = points.shape[1]
    for i in prange(len(counts)):
        r = counts[i] + 1
        mine = rows[i, :r]
        some, target = np.empty((r, p)), np.empty(r)
        for j in range(r):
            some[j] = points[mine[j]]
            target[j] = y[mine[j]]
        E, inner = np.empty((r, r)), np.empty((r, r))
        _minus_squared_distances(some, near, E)
        products_of_rows(Z, mine, inner)
        C = inner.copy()
        times_profile(family, shape, scale, E, C)
        for j in range(r):
            C[j, j] = variances[mine[j]] + noise[mine[j]]
        H, A = np.empty(r), np.empty(r)
        mean[i], variance[i] = predict_last(C, target, jitters, H, A)
        if with_gradient:
            _contract(family, shape, by_column, some, E, inner, H, H, variance_sums[i])
            _contract(family, shape, by_column, some, E, inner, H, A, mean_sums[i])
            for s in range(2):
                along_v, along_mean = 0.0, 0.0
                for j in range(r):
                    along_v += H[j] * H[j] * noise_gradient[mine[j], s]
                    along_mean += H[j] * A[j] * noise_gradient[mine[j], s]
                variance_noise[i, s], mean_noise[i, s] = along_v, along_mean
