"""Parallel loops over rectangular blocks of S = K o ZZ'^T, between some rows and others.

The rows of a block are called a, its columns b. A stationary kernel is scale f(s), where the
product of `left` (a, p + 2) and `right` (b, p + 2) is -s. Pairs with s < near are computed from
differences of `a_points` (a, p) and `b_points` (b, p). `Za` is (a, d), and `Zb` is (b, d).

Every iteration of a loop owns the entries or the rows that it writes, and adds to them in a fixed
order, so the bits of a result do not depend on the number of threads. All arrays of a block are
float64, or all are float32, and so are the scalars `shape`, `scale` and `near`.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm
from .dense import contract_profile, refine_close_pairs, times_profile
from .kernel_tiles import times_transposed

# A worker forms this many rows and columns at once: two such strips in float64 take 512 kB, which
# stay in the second-level cache of a core.
STRIP_ROWS = 64
STRIP_COLUMNS = 512
# A worker takes this many rows of a block. Weights that are a product are formed for as many rows
# at once: BLAS copies a strip of columns of the second factor for every product, and for 256 rows
# that costs a few per cent of the flops.
CHUNK_ROWS = 256


@jit
def _exponents(left, right, a_points, b_points, near, row, col, E):
    """E <- -s of a strip;  2 (p + 2) flops per entry, and differences where s < near."""
    times_transposed(left, row, right, col, E)
    if near > 0.0:
        m, w = E.shape
        refine_close_pairs(a_points[row : row + m], b_points[col : col + w], near, E)


@TileLoop
def fill_block(
    family, shape, scale, near, left, right, a_points, b_points, with_z, Za, Zb, first, last, out
):
    """Fill rows `first` to `last` - 1 of `out` (a, b) with scale f(s_ij) <z_i, z'_j>.

    Without Z, the kernel alone is written: scale f(s_ij). It takes 2 (p + d) flops and one kernel
    value per entry.
    """
    b = out.shape[1]
    columns = (b + STRIP_COLUMNS - 1) // STRIP_COLUMNS
    for t in prange((last - first + CHUNK_ROWS - 1) // CHUNK_ROWS * columns):
        start, col = first + t // columns * CHUNK_ROWS, t % columns * STRIP_COLUMNS
        w = min(STRIP_COLUMNS, b - col)
        strip_s = np.empty((STRIP_ROWS, w), left.dtype)
        strip_z = np.empty((STRIP_ROWS, w), left.dtype)
        end = min(start + CHUNK_ROWS, last)
        for row in range(start, end, STRIP_ROWS):
            m = min(STRIP_ROWS, end - row)
            E, G = strip_s[:m], strip_z[:m]
            _exponents(left, right, a_points, b_points, near, row, col, E)
            if with_z:
                times_transposed(Za, row, Zb, col, G)
            else:
                G[:] = 1.0
            times_profile(family, shape, scale, E, G)
            for r in range(m):
                source, target = G[r], out[row + r, col : col + w]
                for c in range(w):
                    target[c] = source[c]


@jit
def _contract_strip(
    family,
    shape,
    near,
    by_column,
    left,
    right,
    a_points,
    b_points,
    Za,
    Zb,
    row,
    col,
    W,
    w_row,
    w_col,
    E,
    G,
    sums,
):
    """Add the contraction of a strip to the rows from `row` on of `sums`.

    The weights are in W, from its entry (w_row, w_col) on. E and G (m, w) are overwritten.
    """
    m, w = E.shape
    _exponents(left, right, a_points, b_points, near, row, col, E)
    times_transposed(Za, row, Zb, col, G)
    for r in range(m):
        weights, target = W[w_row + r, w_col : w_col + w], G[r]
        for c in range(w):
            target[c] *= weights[c]
    found = np.empty((3, m), E.dtype)
    contract_profile(family, shape, E, G, found)
    for r in range(m):
        for s in range(3):
            sums[row + r, s] += found[s, r]
    if by_column:
        _add_squared_differences(G, a_points, b_points, row, col, sums)


@jit
def _add_squared_differences(G, a_points, b_points, row, col, sums):
    """sums[row + r, 3 + k] += sum_c G_rc (x_rk - x_ck)^2;  (m, w);  4 m w p flops.

    The sum is x_rk^2 sum_c G_rc - 2 x_rk (G x)_rk + (G x^2)_rk.
    """
    m, w = G.shape
    p = a_points.shape[1]
    both = np.empty((w, 2 * p), G.dtype)
    for c in range(w):
        for k in range(p):
            both[c, k] = b_points[col + c, k]
            both[c, p + k] = both[c, k] * both[c, k]
    product = np.empty((m, 2 * p), G.dtype)
    gemm(
        False,
        False,
        m,
        2 * p,
        w,
        1.0,
        G.ravel(),
        w,
        both.ravel(),
        2 * p,
        0.0,
        product.ravel(),
        2 * p,
    )
    for r in range(m):
        total = 0.0
        for c in range(w):
            total += G[r, c]
        for k in range(p):
            x = a_points[row + r, k]
            sums[row + r, 3 + k] += x * x * total - 2.0 * x * product[r, k] + product[r, p + k]


@TileLoop
def contract_block(
    family, shape, near, by_column, left, right, a_points, b_points, Za, Zb, first, last, W, sums
):
    """Contract W o ZZ'^T with the derivatives of a profile f, row by row;  (a, b) -> (a, 3 + p).

    A row of `sums`, of those from `first` to `last` - 1, gets the sums over j of W_ij <z_i, z'_j>
    with f, with h s (h = -df/ds) and with df / dlog shape. If `by_column`, further columns get
    those with h (x_ik - x_jk)^2, for every column k of the points.
    """
    b = len(right)
    for t in prange((last - first + STRIP_ROWS - 1) // STRIP_ROWS):
        row = first + t * STRIP_ROWS
        m = min(STRIP_ROWS, last - row)
        for col in range(0, b, STRIP_COLUMNS):
            w = min(STRIP_COLUMNS, b - col)
            E, G = np.empty((m, w), left.dtype), np.empty((m, w), left.dtype)
            _contract_strip(
                family,
                shape,
                near,
                by_column,
                left,
                right,
                a_points,
                b_points,
                Za,
                Zb,
                row,
                col,
                W,
                row,
                col,
                E,
                G,
                sums,
            )


@TileLoop
def contract_product(
    family, shape, near, by_column, left, right, a_points, b_points, Za, Zb, first, last, U, V, sums
):
    """Contract as `contract_block` does, with weights W = U V^T;  (a, c), (b, c) -> (a, 3 + p).

    U may have another precision than all others. It takes 2 c flops more per entry, and W is never
    stored.
    """
    b, c = V.shape
    for t in prange((last - first + CHUNK_ROWS - 1) // CHUNK_ROWS):
        start = first + t * CHUNK_ROWS
        rows = min(CHUNK_ROWS, last - start)
        own = np.empty((rows, c), V.dtype)
        for r in range(rows):
            source, target = U[start + r], own[r]
            for k in range(c):
                target[k] = source[k]
        for col in range(0, b, STRIP_COLUMNS):
            w = min(STRIP_COLUMNS, b - col)
            W = np.empty((rows, w), V.dtype)
            times_transposed(own, 0, V, col, W)
            for offset in range(0, rows, STRIP_ROWS):
                m = min(STRIP_ROWS, rows - offset)
                E, G = np.empty((m, w), left.dtype), np.empty((m, w), left.dtype)
                _contract_strip(
                    family,
                    shape,
                    near,
                    by_column,
                    left,
                    right,
                    a_points,
                    b_points,
                    Za,
                    Zb,
                    start + offset,
                    col,
                    W,
                    offset,
                    0,
                    E,
                    G,
                    sums,
                )
