"""Parallel loops over the tiles of a symmetric matrix: BLAS inside, without the GIL, the same bits for any number of threads.

The lower triangle of an (n, n) matrix is cut into tiles of `size` rows and columns. Its tiles are in one
one-dimensional buffer: with `packed`, tile after tile, row of tiles after row of tiles, each tile
`size` wide; otherwise as a row-major (n, n) matrix. Every iteration of a parallel loop writes a tile
that no other iteration writes, and adds to it in a fixed order.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop as tile_loop
from . import jit
from .blas import gemm, lauum_lower, potrf_lower, syrk_lower, trmm_lower, trsm_lower, trtri_lower
from .dense import contract_profile, refine_close_pairs, times_profile

# Rows of a tile that a worker forms at once: two strips of 512 columns in float64 take 256 kB and stay
# in the second-level cache of a core.
STRIP_ROWS = 32


@jit
def _at(n, size, packed, i, j):
    """Return where tile (i, j) of the lower triangle begins."""
    if packed:
        return (i * (i + 1) // 2 + j) * size * size
    return i * size * n + j * size


@jit
def _width(n, size, packed):
    """Return the distance between the rows of a tile."""
    return size if packed else n


@jit
def _rows(n, size, i):
    """Return how many rows tile i has."""
    return min(size, n - i * size)


@jit
def _balanced(k, count):
    """Return index k of 0 .. count - 1 dealt from both ends, so that consecutive pairs have equal work."""
    return k // 2 if k % 2 == 0 else count - 1 - k // 2


@jit
def _tile_of(pair):
    """Return (i, j) of the tile with number i (i + 1) / 2 + j."""
    i = int((np.sqrt(8.0 * pair + 1.0) - 1.0) / 2.0)
    if i * (i + 1) // 2 > pair:
        i -= 1
    if (i + 1) * (i + 2) // 2 <= pair:
        i += 1
    return i, pair - i * (i + 1) // 2


@tile_loop
def fill_rows(
    n, size, packed, first, last, family, shape, scale, near, left, right, points, Z, diagonal, A
):
    """Rows `first` to `last` - 1 of lower tiles <- scale f(s) <z_i, z_j>, and `diagonal` on the diagonal.

    `left`, `right` (n, p + 2) are augmented points whose product is -s; pairs with s < near are computed from
    `points` (n, p) by differences. Z (n, d).
    """
    ld = _width(n, size, packed)
    d, p = Z.shape[1], left.shape[1]
    before = first * (first + 1) // 2
    for t in prange(last * (last + 1) // 2 - before):
        i, j = _tile_of(before + t)
        cols, col = _rows(n, size, j), j * size
        tile = _at(n, size, packed, i, j)
        E = np.empty((STRIP_ROWS, cols), left.dtype)
        G = np.empty((STRIP_ROWS, cols), left.dtype)
        for offset in range(0, _rows(n, size, i), STRIP_ROWS):
            rows, row = min(STRIP_ROWS, _rows(n, size, i) - offset), i * size + offset
            e, g = E[:rows], G[:rows]
            gemm(
                False,
                True,
                rows,
                cols,
                p,
                1.0,
                left[row:].ravel(),
                p,
                right[col:].ravel(),
                p,
                0.0,
                e.ravel(),
                cols,
            )
            gemm(
                False,
                True,
                rows,
                cols,
                d,
                1.0,
                Z[row:].ravel(),
                d,
                Z[col:].ravel(),
                d,
                0.0,
                g.ravel(),
                cols,
            )
            if near > 0.0:
                refine_close_pairs(points[row : row + rows], points[col : col + cols], near, e)
            times_profile(family, shape, scale, e, g)
            for r in range(rows):
                at = tile + (offset + r) * ld
                for c in range(cols):
                    A[at + c] = g[r, c]
                if i == j:
                    A[at + offset + r] = diagonal[row + r]


@tile_loop
def contract_rows(
    n,
    size,
    packed,
    first,
    last,
    family,
    shape,
    near,
    by_column,
    left,
    right,
    points,
    Z,
    alpha,
    A,
    sums,
):
    """sums[t] <- sum over tile t of (alpha alpha^T - A) o <z_i, z_j> o (f, h s, df/dlog shape), both triangles.

    A is the lower triangle of C^-1. With `by_column`, sums[t, 3:] are those of h (x_ik - x_jk)^2 for every column k of
    `points`.
    """
    ld = _width(n, size, packed)
    d, p = Z.shape[1], left.shape[1]
    before = first * (first + 1) // 2
    columns = points.shape[1]
    for t in prange(last * (last + 1) // 2 - before):
        i, j = _tile_of(before + t)
        cols, col = _rows(n, size, j), j * size
        tile = _at(n, size, packed, i, j)
        E = np.empty((STRIP_ROWS, cols), left.dtype)
        G = np.empty((STRIP_ROWS, cols), left.dtype)
        found = np.empty((3, STRIP_ROWS), left.dtype)
        product = np.empty((STRIP_ROWS, columns), left.dtype)
        total = sums[before + t]
        for offset in range(0, _rows(n, size, i), STRIP_ROWS):
            rows, row = min(STRIP_ROWS, _rows(n, size, i) - offset), i * size + offset
            e, g = E[:rows], G[:rows]
            gemm(
                False,
                True,
                rows,
                cols,
                p,
                1.0,
                left[row:].ravel(),
                p,
                right[col:].ravel(),
                p,
                0.0,
                e.ravel(),
                cols,
            )
            gemm(
                False,
                True,
                rows,
                cols,
                d,
                1.0,
                Z[row:].ravel(),
                d,
                Z[col:].ravel(),
                d,
                0.0,
                g.ravel(),
                cols,
            )
            if near > 0.0:
                refine_close_pairs(points[row : row + rows], points[col : col + cols], near, e)
            for r in range(rows):
                at = tile + (offset + r) * ld
                a = alpha[row + r]
                end = offset + r if i == j else cols
                for c in range(end):
                    g[r, c] *= 2.0 * (a * alpha[col + c] - A[at + c])
                if i == j:
                    g[r, end] *= a * a - A[at + end]
                    for c in range(end + 1, cols):
                        g[r, c] = 0.0
            contract_profile(family, shape, e, g, found)
            for r in range(rows):
                for s in range(3):
                    total[s] += found[s, r]
            if by_column:
                # sum_j G_ij (x_i - x_j)^2 = x_i^2 sum_j G_ij + (sum_i G_ij) x_j^2 - 2 x_i (G x)_i.
                gemm(
                    False,
                    False,
                    rows,
                    columns,
                    cols,
                    1.0,
                    g.ravel(),
                    cols,
                    points[col:].ravel(),
                    columns,
                    0.0,
                    product.ravel(),
                    columns,
                )
                for r in range(rows):
                    own = 0.0
                    for c in range(cols):
                        own += g[r, c]
                    for k in range(columns):
                        x = points[row + r, k]
                        total[3 + k] += x * x * own - 2.0 * x * product[r, k]
                for c in range(cols):
                    other = 0.0
                    for r in range(rows):
                        other += g[r, c]
                    for k in range(columns):
                        x = points[col + c, k]
                        total[3 + k] += x * x * other


@jit
def factor_diagonal_tile(n, size, packed, k, A):
    """Tile (k, k) <- its Cholesky factor; return 0, or the number of the first pivot that failed."""
    ld = _width(n, size, packed)
    return potrf_lower(_rows(n, size, k), A[_at(n, size, packed, k, k) :], ld)


@tile_loop
def factor_column(n, size, packed, k, A):
    """Tiles below (k, k) <- tile L_kk^-T;  n size^2 flops at most."""
    ld = _width(n, size, packed)
    tiles = (n + size - 1) // size
    wide = _rows(n, size, k)
    lower = A[_at(n, size, packed, k, k) :]
    for t in prange(tiles - k - 1):
        i = k + 1 + t
        tile = A[_at(n, size, packed, i, k) :]
        trsm_lower(False, True, _rows(n, size, i), wide, 1.0, lower, ld, tile, ld)


@tile_loop
def update_rows(n, size, packed, k, first, last, A):
    """Tiles (i, j), i in first .. last - 1, k < j <= i, lose A_ik A_jk^T;  size^3 flops a tile, twice."""
    ld = _width(n, size, packed)
    wide = _rows(n, size, k)
    skipped = first - k - 1
    before = skipped * (skipped + 1) // 2
    height = last - k - 1
    count = height * (height + 1) // 2 - before
    for t in prange(count):
        row, column = _tile_of(before + t)
        i, j = k + 1 + row, k + 1 + column
        tile = A[_at(n, size, packed, i, j) :]
        left = A[_at(n, size, packed, i, k) :]
        if i == j:
            syrk_lower(False, _rows(n, size, i), wide, -1.0, left, ld, 1.0, tile, ld)
        else:
            right = A[_at(n, size, packed, j, k) :]
            rows, cols = _rows(n, size, i), _rows(n, size, j)
            gemm(False, True, rows, cols, wide, -1.0, left, ld, right, ld, 1.0, tile, ld)


@tile_loop
def solve_rows(n, size, packed, backward, chunk, A, B):
    """Rows B <- B L^-T, or B L^-1 if `backward`, in chunks of rows;  (c, n) row-major;  n^2 c flops.

    B L^-T and then B L^-1 is B C^-1, as C = L L^T.
    """
    ld = _width(n, size, packed)
    tiles = (n + size - 1) // size
    c = B.size // n
    for t in prange((c + chunk - 1) // chunk):
        start = t * chunk * n
        height = min(chunk, c - t * chunk)
        for step in range(tiles):
            i = tiles - 1 - step if backward else step
            wide = _rows(n, size, i)
            target = B[start + i * size :]
            for other in range(step):
                j = tiles - 1 - other if backward else other
                source = B[start + j * size :]
                tile = A[_at(n, size, packed, max(i, j), min(i, j)) :]
                deep = _rows(n, size, j)
                gemm(
                    False,
                    not backward,
                    height,
                    wide,
                    deep,
                    -1.0,
                    source,
                    n,
                    tile,
                    ld,
                    1.0,
                    target,
                    n,
                )
            lower = A[_at(n, size, packed, i, i) :]
            trsm_lower(False, not backward, height, wide, 1.0, lower, ld, target, n)


@tile_loop
def invert_column(n, size, packed, k, A, column):
    """Column k of tiles of L <- that of L^-1, the columns right of it being inverted already.

    `column` is a copy of the tiles of column k, each `size` wide, tile (k, k) inverted, one after the other;  2 n^2 size flops at most.
    """
    ld = _width(n, size, packed)
    tiles = (n + size - 1) // size
    wide = _rows(n, size, k)
    count = tiles - k - 1
    for t in prange(count):
        i = k + 1 + _balanced(t, count)
        rows = _rows(n, size, i)
        tile = A[_at(n, size, packed, i, k) :]
        trmm_lower(True, False, rows, wide, 1.0, A[_at(n, size, packed, i, i) :], ld, tile, ld)
        for j in range(k + 1, i):
            source = column[(j - k) * size * size :]
            left = A[_at(n, size, packed, i, j) :]
            gemm(
                False,
                False,
                rows,
                wide,
                _rows(n, size, j),
                1.0,
                left,
                ld,
                source,
                size,
                1.0,
                tile,
                ld,
            )
        trmm_lower(False, False, rows, wide, -1.0, column, size, tile, ld)


@tile_loop
def square_row(n, size, packed, i, A, column):
    """Row i of tiles of X <- row i of X^T X, for the rows from i on of a lower triangular X.

    `column` is a copy of the tiles of column i of X, each `size` wide, one after the other;  2 n^2 size flops at most.
    """
    ld = _width(n, size, packed)
    tiles = (n + size - 1) // size
    rows = _rows(n, size, i)
    for j in prange(i + 1):
        tile = A[_at(n, size, packed, i, j) :]
        if i == j:
            lauum_lower(rows, tile, ld)
            for k in range(i + 1, tiles):
                source = column[(k - i) * size * size :]
                syrk_lower(True, rows, _rows(n, size, k), 1.0, source, size, 1.0, tile, ld)
        else:
            cols = _rows(n, size, j)
            trmm_lower(True, True, rows, cols, 1.0, column, size, tile, ld)
            for k in range(i + 1, tiles):
                source = column[(k - i) * size * size :]
                right = A[_at(n, size, packed, k, j) :]
                gemm(
                    True,
                    False,
                    rows,
                    cols,
                    _rows(n, size, k),
                    1.0,
                    source,
                    size,
                    right,
                    ld,
                    1.0,
                    tile,
                    ld,
                )


@tile_loop
def copy_column(n, size, packed, k, A, column):
    """column <- the tiles (i, k), i >= k, one after the other, each `size` wide."""
    ld = _width(n, size, packed)
    tiles = (n + size - 1) // size
    wide = _rows(n, size, k)
    for t in prange(tiles - k):
        start = _at(n, size, packed, k + t, k)
        for r in range(_rows(n, size, k + t)):
            for c in range(wide):
                column[(t * size + r) * size + c] = A[start + r * ld + c]


@jit
def invert_diagonal_tile(n, size, packed, k, A):
    """Tile (k, k) of L <- its inverse."""
    ld = _width(n, size, packed)
    trtri_lower(_rows(n, size, k), A[_at(n, size, packed, k, k) :], ld)


@jit
def _dealt(turn, hand, hands, count):
    """Return the row of tiles that a hand gets in a turn, below 0 if none is left.

    Rows of tiles are dealt to and fro, the longest first, so that all hands have about as much of the triangle.
    """
    return count - 1 - (turn * hands + (hand if turn % 2 == 0 else hands - 1 - hand))


@tile_loop
def multiply_stored(n, size, packed, c, A, V, totals):
    """totals[h] <- the share of hand h of S V;  V (n, c), totals (hands, n, c);  2 n^2 c flops.

    A are the lower tiles of S with whole diagonal tiles. Every tile serves both triangles.
    """
    ld = _width(n, size, packed)
    count = (n + size - 1) // size
    hands = totals.shape[0]
    for h in prange(hands):
        hand = np.int64(
            h
        )  # numba's index is unsigned, and with a signed number it would make a float.
        total = totals[hand]
        total[:] = 0.0
        scratch = np.empty(size * c, A.dtype)
        for turn in range((count + hands - 1) // hands):
            i = _dealt(turn, hand, hands, count)
            if i < 0:
                continue
            rows, row = _rows(n, size, i), i * size
            for j in range(i + 1):
                cols, col = _rows(n, size, j), j * size
                tile = A[_at(n, size, packed, i, j) :]
                gemm(False, False, rows, c, cols, 1.0, tile, ld, V[col * c :], c, 0.0, scratch, c)
                _accumulate(scratch, row * c, rows * c, total)
                if i != j:
                    gemm(
                        True, False, cols, c, rows, 1.0, tile, ld, V[row * c :], c, 0.0, scratch, c
                    )
                    _accumulate(scratch, col * c, cols * c, total)


@jit
def _accumulate(scratch, start, length, total):
    for k in range(length):
        total[start + k] += scratch[k]


@tile_loop
def add_shares(size, totals, out):
    """out += the sum of all shares, in their order;  (hands, length) -> (length,)."""
    length = out.size
    for t in prange((length + size - 1) // size):
        for h in range(totals.shape[0]):
            for k in range(t * size, min(length, (t + 1) * size)):
                out[k] += totals[h, k]
