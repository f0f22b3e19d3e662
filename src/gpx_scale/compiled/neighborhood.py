"""Parallel loops over queries, each of which is conditioned on shared rows U and on rows N near it.

There are b queries with up to k rows each: query i has `counts[i]` rows, whose numbers are
`rows[i]`. Every query is one small problem of BLAS and LAPACK, and owns what it writes, so the bits
of a result do not depend on the number of threads.

A stationary kernel is given by its `kernel` = (family, shape, scale, near), and points (n, p) that
are scaled so that s = |x - x'|^2, as `kernels.kernel.Profile` describes them. Z is a dense (n, d)
matrix, or the tuple (ptr, ind, val, d) of a sparse one (compiled/sparse.py).
"""

from __future__ import annotations

import numpy as np
from numba import prange, types
from numba.extending import overload

from ..runtime.tile_loops import TileLoop
from . import FASTMATH, jit
from .blas import gemm, potrf_lower, syrk_lower, trsm_lower
from .dense import profile_of_row, refine_close_pairs, times_profile

# A worker takes this many queries, one after the other, in the same working memory.
QUERIES = 4
# Columns of a matrix whose rows are a power of two apart are slow to write, but in small blocks.
MIRROR_ROWS = 32
# How a query was conditioned: on U and N, or on one of them if rounding left no Cholesky factor.
ON_BOTH, ON_NEAR_ROWS, ON_SHARED_ROWS = range(3)


@jit
def _mirror(A):
    """Copy the lower triangle of A (r, r) to the upper one, in blocks that stay in the cache."""
    r = len(A)
    for top in range(0, r, MIRROR_ROWS):
        for left in range(0, top + 1, MIRROR_ROWS):
            for j in range(left, min(r, left + MIRROR_ROWS)):
                for i in range(max(top, j + 1), min(r, top + MIRROR_ROWS)):
                    A[j, i] = A[i, j]


def products_of_rows(Z, rows, out):
    """out <- <z_i, z_j> between the given rows;  (r,) -> (r, r)."""


@overload(products_of_rows, jit_options={"fastmath": FASTMATH})
def _products_of_rows(Z, rows, out):
    """Return the implementation for a dense Z, by a matrix product, or for a sparse one."""
    if isinstance(Z, types.Array):

        def dense(Z, rows, out):
            r, d = rows.size, Z.shape[1]
            some = np.empty((r, d))
            for i in range(r):
                some[i] = Z[rows[i]]
            flat = some.ravel()
            gemm(False, True, r, r, d, 1.0, flat, d, flat, d, 0.0, out.ravel(), r)

        return dense

    def sparse(Z, rows, out):
        """Add a product for every feature that two rows share, without a look at every pair.

        Each feature has a list of the entries of the rows so far, the last one first.
        """
        ptr, ind, val, d = Z
        entries = 0
        for row in rows:
            entries += ptr[row + 1] - ptr[row]
        last, before = np.full(d, -1), np.empty(entries, np.int64)
        row_of, value = np.empty(entries, np.int64), np.empty(entries)
        out[:] = 0.0
        at = 0
        for i in range(rows.size):
            for e in range(ptr[rows[i]], ptr[rows[i] + 1]):
                before[at], row_of[at], value[at] = last[ind[e]], i, val[e]
                last[ind[e]] = at
                other = at
                while other >= 0:
                    out[i, row_of[other]] += val[e] * value[other]
                    other = before[other]
                at += 1
        _mirror(out)

    return sparse


@TileLoop
def fill_kernel(kernel, queries, points, rows, counts, K):
    """K <- k(x*_i, x_j) for the rows of each query, and 0 beyond;  (b, p), (n, p) -> (b, k).

    Squared distances are from differences;  2 p flops and a kernel value per row.
    """
    family, shape, scale, _ = kernel
    p = points.shape[1]
    for i in prange(len(counts)):
        K[i] = 0.0
        minus_s = np.empty(counts[i])
        for j in range(counts[i]):
            x = points[rows[i, j]]
            s = 0.0
            for column in range(p):
                difference = queries[i, column] - x[column]
                s += difference * difference
            minus_s[j] = -s
        profile_of_row(family, shape, scale, minus_s, K[i, : counts[i]])


@TileLoop
def fill_blocks(kernel, points, Z, variances, rows, counts, T):
    """T <- S between the rows of each query, with `variances` (n,) on its diagonal;  (b, k, k).

    p + 2 d flops and a kernel value per entry.
    """
    family, shape, scale, near = kernel
    p = points.shape[1]
    for i in prange(len(counts)):
        r = counts[i]
        if r == 0:
            continue
        some, norms = np.empty((r, p)), np.empty(r)
        for j in range(r):
            norms[j] = 0.0
            for column in range(p):
                some[j, column] = points[rows[i, j], column]
                norms[j] += some[j, column] ** 2
        E, G = np.empty((r, r)), np.empty((r, r))
        syrk_lower(False, r, p, 2.0, some.ravel(), p, 0.0, E.ravel(), r)
        for j in range(r):
            for c in range(j + 1):
                E[j, c] -= norms[j] + norms[c]
        _mirror(E)
        if near > 0.0:
            refine_close_pairs(some, some, near, E)
        products_of_rows(Z, rows[i, :r], G)
        times_profile(family, shape, scale, E, G)
        for j in range(r):
            T[i, j, :r] = G[j]
            T[i, j, j] = variances[rows[i, j]]


@jit
def _factor(T, r, less, diagonal, jitters, is_fresh):
    """Factorise S - less, r rows of T, with another `diagonal` (r,); return whether that worked.

    The upper triangle of T has S and is kept. If it `is_fresh`, the lower one has S, too; it is
    replaced by the Cholesky factor. The first of the `jitters`, shares of the diagonal, is taken
    with which there is one.
    """
    for jitter in jitters:
        for j in range(r):
            target, take = T[j], less[j]
            if is_fresh:
                for c in range(j):
                    target[c] -= take[c]
            else:
                for c in range(j):
                    target[c] = T[c, j] - take[c]
            target[j] = diagonal[j] * (1.0 + jitter)
        if potrf_lower(r, T.ravel(), T.shape[1]) == 0:
            return True
        is_fresh = False
    return False


@jit
def _factor_given_shared(T, r, V, noise, raised, jitters):
    """Replace S_NN in T by the factor of S_NN - V V^T + D, or of S_NN + D if that has none.

    V (r, m) has the rows F_N^T. D has `noise` (k,), and `raised` (k,) is added to make up for the
    rounding of V. Return how a query is conditioned.
    """
    m = V.shape[1]
    if r == 0:
        return ON_BOTH
    less = np.zeros((r, r), V.dtype)
    if m > 0:
        syrk_lower(False, r, m, 1.0, V.ravel(), m, 0.0, less.ravel(), r)
    own, diagonal = np.empty(r), np.empty(r)
    for j in range(r):
        own[j] = T[j, j]
        diagonal[j] = max(own[j] - less[j, j], 0.0) + (noise[j] + raised[j])
    if _factor(T, r, less, diagonal, jitters, True):
        return ON_BOTH
    less[:] = 0.0
    for j in range(r):
        diagonal[j] = own[j] + noise[j]
    return ON_NEAR_ROWS if _factor(T, r, less, diagonal, jitters, False) else ON_SHARED_ROWS


@TileLoop
def condition(
    counts,
    T,
    F,
    at,
    noise,
    raised,
    jitters,
    a,
    y,
    with_mean,
    W,
    R,
    full,
    near_weights,
    rest,
    found,
    how,
):
    """Condition each query on U and N.

    The rows F_j^T of L^-1 S_Uj are in F (r, m), in places at[i] (k,) for query i; T (b, k, k) has
    S_NN. With V = F_N^T and C_N|U = S_NN - V V^T + D, and right-hand sides of c columns each,
    W[i] = (L^-1 B_U)^T (c, m) and R[i] = B_N (k, c):

        R            <- X = C_N|U^-1/2 (B_N - V W^T), and 0 beyond the rows of the query
        found        <- W W^T + X^T X, its diagonal (b, c), or all of it (b, c, c) if `full`
        near_weights <- v = C_N|U^-1 (y_N - V a)                     (b, k), if `with_mean`
        rest         <- a - V^T v, which L^-T turns into alpha_U     (b, m), if `with_mean`
        how          <- on which rows the query was conditioned      (b,)

    `a` is L^-1 y_U (m,), and y is (b, k). k^3/3 + k^2 (m + c) + k m c flops per query. T is
    overwritten, and so is W of a query for which U is dropped.
    """
    b, m = len(counts), F.shape[1]
    for t in prange((b + QUERIES - 1) // QUERIES):
        for i in range(t * QUERIES, min(b, (t + 1) * QUERIES)):
            r = counts[i]
            V = np.empty((r, m), F.dtype)
            for j in range(r):
                source, target = F[at[i, j]], V[j]
                for u in range(m):
                    target[u] = source[u]
            how[i] = _factor_given_shared(T[i], r, V, noise[i], raised[i], jitters)
            if how[i] == ON_NEAR_ROWS:
                W[i] = 0.0
            exact = V.astype(np.float64)
            _half_solve(T[i], r, exact, how[i], W[i], R[i])
            _add_squares(W[i], R[i], r, full, found[i])
            if with_mean:
                _solve_target(T[i], r, exact, how[i], a, y[i], near_weights[i], rest[i])


@jit
def _half_solve(T, r, V, how, W, R):
    """R <- C_N|U^-1/2 (R - V W^T), and 0 beyond its first r rows;  (k, c)."""
    m, c = V.shape[1], R.shape[1]
    R[r:] = 0.0
    if c == 0 or r == 0:
        return
    if how == ON_SHARED_ROWS:
        R[:] = 0.0
        return
    if how == ON_BOTH and m > 0:
        gemm(False, True, r, c, m, -1.0, V.ravel(), m, W.ravel(), m, 1.0, R.ravel(), c)
    trsm_lower(True, False, r, c, 1.0, T.ravel(), T.shape[1], R.ravel(), c)


@jit
def _add_squares(W, R, r, full, found):
    """found <- W W^T + R^T R, its diagonal in the first column, or all of it if `full`."""
    c, m = W.shape
    if not full:
        for l in range(c):
            total = 0.0
            for u in range(m):
                total += W[l, u] * W[l, u]
            found[l, 0] = total
        for j in range(r):
            for l in range(c):
                found[l, 0] += R[j, l] * R[j, l]
        return
    found[:] = 0.0
    if c > 0 and m > 0:
        syrk_lower(False, c, m, 1.0, W.ravel(), m, 0.0, found.ravel(), c)
    if c > 0 and r > 0:
        syrk_lower(True, c, r, 1.0, R.ravel(), c, 1.0, found.ravel(), c)
    for l in range(c):
        for other in range(l):
            found[other, l] = found[l, other]


@jit
def _solve_target(T, r, V, how, a, y, near_weights, rest):
    """near_weights <- v = C_N|U^-1 (y - V a), and rest <- a - V^T v;  (k,), (m,)."""
    m = V.shape[1]
    near_weights[:] = 0.0
    for u in range(m):
        rest[u] = 0.0 if how == ON_NEAR_ROWS else a[u]
    if how == ON_SHARED_ROWS or r == 0:
        return
    for j in range(r):
        seen = 0.0
        if how == ON_BOTH:
            for u in range(m):
                seen += V[j, u] * a[u]
        near_weights[j] = y[j] - seen
    trsm_lower(True, False, r, 1, 1.0, T.ravel(), T.shape[1], near_weights, 1)
    trsm_lower(True, True, r, 1, 1.0, T.ravel(), T.shape[1], near_weights, 1)
    if how == ON_BOTH:
        for j in range(r):
            for u in range(m):
                rest[u] -= V[j, u] * near_weights[j]


# Sparse features at the entries of the queries. The pattern of query i has the features from
# ptr[i] to ptr[i + 1] of `features`, of which each is there once. `rows` are places in Z.


@TileLoop
def sparse_columns(Z, ptr, features, K, rows, counts, out):
    """out <- k_ij z_jl for the rows j and the features l of each query;  (b, k, c), with zeros.

    K is (b, k). One product for every feature that a row and a query share.
    """
    z_ptr, ind, val, d = Z
    for i in prange(len(counts)):
        place = np.full(d, -1)
        for e in range(ptr[i], ptr[i + 1]):
            place[features[e]] = e - ptr[i]
        out[i] = 0.0
        for j in range(counts[i]):
            for e in range(z_ptr[rows[i, j]], z_ptr[rows[i, j] + 1]):
                l = place[ind[e]]
                if l >= 0:
                    out[i, j, l] = K[i, j] * val[e]


@TileLoop
def add_sparse_mean(Z, ptr, features, weights, rows, counts, out):
    """Add sum_j weights_ij z_jl to `out` (entries,), at the features l of each query.

    weights (b, k) are alpha_j k_ij.
    """
    z_ptr, ind, val, d = Z
    for i in prange(len(counts)):
        place = np.full(d, -1)
        for e in range(ptr[i], ptr[i + 1]):
            place[features[e]] = e
        for j in range(counts[i]):
            for e in range(z_ptr[rows[i, j]], z_ptr[rows[i, j] + 1]):
                l = place[ind[e]]
                if l >= 0:
                    out[l] += weights[i, j] * val[e]


@TileLoop
def sparse_inner_products(Z, ptr, ind, val, rows, counts, out):
    """out <- <a_i, z_j> for the rows j of each query;  (b, k), which is 0 before.

    The sparse vectors a_i have the entries from ptr[i] to ptr[i + 1] of `ind` and `val`.
    """
    z_ptr, z_ind, z_val, d = Z
    for i in prange(len(counts)):
        spread = np.zeros(d)
        for e in range(ptr[i], ptr[i + 1]):
            spread[ind[e]] = val[e]
        for j in range(counts[i]):
            for e in range(z_ptr[rows[i, j]], z_ptr[rows[i, j] + 1]):
                out[i, j] += z_val[e] * spread[z_ind[e]]
