"""Parallel loops over a tall matrix G (n, r), the factor of a matrix I + G G^T of low rank.

G is float64 or float32. Products with few columns are bound by the time that it takes to read G,
which float32 halves. Their sums are then in float32 within a tile of G, and in float64 between
tiles. Every iteration of a loop owns what it writes, and adds to it in a fixed order.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm, syrk_lower
from .dense import dot

# A product with few columns reads tiles of this many rows and columns of G: beside 256, tiles of
# 64 rows take 1.1 times as long for 16 columns.
TILE_ROWS = 256
TILE_COLUMNS = 512
# A worker adds the products of this many rows of G, so that sixteen workers share 12,000 rows of
# 1,500 columns evenly.
GROUP_ROWS = 4096
# Rows and columns of a tile of G^T G. Smaller ones would read G more often, and larger ones would
# leave workers without a tile: at r = 1,500, there are 21 of this size.
GRAM_TILE = 256


@TileLoop
def scale_rows(F, factors, out):
    """out_ij <- factors_i F_ij, rounded to the precision of `out`;  (n, r), (n,) -> (n, r)."""
    n = len(F)
    for t in prange((n + TILE_ROWS - 1) // TILE_ROWS):
        for i in range(t * TILE_ROWS, min(n, (t + 1) * TILE_ROWS)):
            source, factor, target = F[i], factors[i], out[i]
            for j in range(source.size):
                target[j] = factor * source[j]


@TileLoop
def square_rows(F, out):
    """out_i <- |F_i|^2;  (n, r) -> (n,)."""
    n = len(F)
    for t in prange((n + TILE_ROWS - 1) // TILE_ROWS):
        for i in range(t * TILE_ROWS, min(n, (t + 1) * TILE_ROWS)):
            out[i] = dot(F[i], F[i])


@TileLoop
def multiply_transposed(G, V, parts):
    """Write the products V G of groups of rows to `parts`;  (n, r), (c, n) -> (groups, c, r).

    V has the precision of G, and `parts` are float64. A group has GROUP_ROWS rows.
    """
    n, r = G.shape
    c = len(V)
    columns = (r + TILE_COLUMNS - 1) // TILE_COLUMNS
    for t in prange(len(parts) * columns):
        group, col = t // columns, t % columns * TILE_COLUMNS
        w = min(TILE_COLUMNS, r - col)
        found, total = np.empty((c, w), G.dtype), parts[group]
        total[:, col : col + w] = 0.0
        end = min(n, (group + 1) * GROUP_ROWS)
        for row in range(group * GROUP_ROWS, end, TILE_ROWS):
            m = min(TILE_ROWS, end - row)
            v, g = V.ravel()[row:], G.ravel()[row * r + col :]
            gemm(False, False, c, w, m, 1.0, v, n, g, r, 0.0, found.ravel(), w)
            for k in range(c):
                for j in range(w):
                    total[k, col + j] += found[k, j]


@TileLoop
def multiply(G, W, out):
    """out <- W G^T, the transpose of G W^T;  (n, r), (c, r) -> (c, n);  2 n r c flops.

    W has the precision of G, and `out` is float64.
    """
    n, r = G.shape
    c = len(W)
    for t in prange((n + TILE_ROWS - 1) // TILE_ROWS):
        row = t * TILE_ROWS
        m = min(TILE_ROWS, n - row)
        found = np.empty((c, m), G.dtype)
        out[:, row : row + m] = 0.0
        for col in range(0, r, TILE_COLUMNS):
            w = min(TILE_COLUMNS, r - col)
            x, g = W.ravel()[col:], G.ravel()[row * r + col :]
            gemm(False, True, c, m, w, 1.0, x, r, g, r, 0.0, found.ravel(), m)
            for k in range(c):
                for i in range(m):
                    out[k, row + i] += found[k, i]


@TileLoop
def gram_tiles(first, last, G, M):
    """Write tiles of I + G^T G to the lower triangle of M;  (n, r) -> (r, r);  n r^2 flops.

    The tiles are numbered row by row, and those from `first` to `last` - 1 are written. Sums are in
    float64.
    """
    n, r = G.shape
    for t in prange(last - first):
        i, j = _tile(first + t)
        a, b = i * GRAM_TILE, j * GRAM_TILE
        m, w = min(GRAM_TILE, r - a), min(GRAM_TILE, r - b)
        left, right = np.empty((GRAM_TILE, m)), np.empty((GRAM_TILE, w))
        target = M.ravel()[a * r + b :]
        for k in range(m):
            for j in range(w):
                target[k * r + j] = 1.0 if a + k == b + j else 0.0
        for row in range(0, n, GRAM_TILE):
            depth = min(GRAM_TILE, n - row)
            _widen(G, row, depth, a, left)
            if a == b:
                syrk_lower(True, m, depth, 1.0, left.ravel(), m, 1.0, target, r)
            else:
                _widen(G, row, depth, b, right)
                x, y = left.ravel(), right.ravel()
                gemm(True, False, m, w, depth, 1.0, x, m, y, w, 1.0, target, r)


@jit
def _tile(number):
    """Return (i, j), j <= i, of the tile with number i (i + 1) / 2 + j."""
    i = 0
    while (i + 1) * (i + 2) // 2 <= number:
        i += 1
    return i, number - i * (i + 1) // 2


@jit
def _widen(G, row, depth, col, out):
    """Copy `depth` rows of G, from a row and a column on, to the rows of `out` in float64."""
    for k in range(depth):
        source, target = G[row + k, col : col + out.shape[1]], out[k]
        for j in range(target.size):
            target[j] = source[j]
