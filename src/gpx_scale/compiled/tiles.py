"""Parallel loops over the lower tiles of a symmetric matrix, with BLAS inside.

The lower triangle of an (n, n) matrix is cut into tiles of `size` rows and columns, which are kept
in a one-dimensional buffer A. If it is `packed`, A has one tile after the other, row by row of
tiles, and each tile is `size` wide. Otherwise A is a row-major (n, n) matrix. Every iteration of a
parallel loop writes tiles that no other iteration writes, and adds to them in a fixed order, so the
bits of a result do not depend on the number of threads.

Every function takes the layout (n, size, packed) first. `ld` is the distance between the rows of a
tile, and `m` and `w` are its numbers of rows and columns.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm, lauum_lower, potrf_lower, syrk_lower, trmm_lower, trsm_lower, trtri_lower
from .dense import contract_profile, refine_close_pairs, times_profile

# A worker forms this many rows of a tile at once: two strips of 512 columns in float64 take 256 kB,
# which stay in the second-level cache of a core.
STRIP_ROWS = 32
# A worker inverts this many columns of a tile at once, so that few tiles are shared evenly.
STRIP_COLUMNS = 256


@jit
def _tile(n, size, packed, A, i, j):
    """Return A from the first entry of tile (i, j) on."""
    return A[_start(n, size, packed, i, j) :]


@jit
def _start(n, size, packed, i, j):
    """Return the index of the first entry of tile (i, j)."""
    if packed:
        return (i * (i + 1) // 2 + j) * size * size
    return i * size * n + j * size


@jit
def _width(n, size, packed):
    """Return the distance between the rows of a tile."""
    return size if packed else n


@jit
def _rows(n, size, i):
    """Return the number of rows of the i-th row of tiles."""
    return min(size, n - i * size)


@jit
def _count(n, size):
    """Return the number of rows of tiles."""
    return (n + size - 1) // size


@jit
def _from_both_ends(k, count):
    """Return the k-th of 0 .. count - 1, taken from both ends in turn.

    If the work of an iteration grows with its index, contiguous shares of the threads are then
    even.
    """
    return k // 2 if k % 2 == 0 else count - 1 - k // 2


@jit
def _pair(number):
    """Return (i, j), j <= i, of the pair with number i (i + 1) / 2 + j."""
    i = int((np.sqrt(8.0 * number + 1.0) - 1.0) / 2.0)
    # The square root may be off by a rounding.
    if i * (i + 1) // 2 > number:
        i -= 1
    if (i + 1) * (i + 2) // 2 <= number:
        i += 1
    return i, number - i * (i + 1) // 2


@jit
def _inner_products(a, row, b, col, out):
    """out <- a[row:] b[col:]^T for as many rows of each as `out` has;  (., k), (., k) -> (m, w)."""
    m, w = out.shape
    k = a.shape[1]
    gemm(False, True, m, w, k, 1.0, a[row:].ravel(), k, b[col:].ravel(), k, 0.0, out.ravel(), w)


@jit
def _exponents(left, right, points, near, row, col, E):
    """E <- -s of a strip;  2 (p + 2) flops per entry, and differences where s < near."""
    _inner_products(left, row, right, col, E)
    if near > 0.0:
        m, w = E.shape
        refine_close_pairs(points[row : row + m], points[col : col + w], near, E)


@TileLoop
def fill_rows(
    n, size, packed, first, last, family, shape, scale, near, left, right, points, Z, diagonal, A
):
    """Fill rows `first` to `last` - 1 of tiles with scale f(s) <z_i, z_j> and `diagonal` (n,).

    The product of `left` and `right` (n, p + 2) is -s; pairs with s < near are computed from
    differences of `points` (n, p). Z is (n, d).
    """
    ld = _width(n, size, packed)
    before = first * (first + 1) // 2
    for t in prange(last * (last + 1) // 2 - before):
        i, j = _pair(before + t)
        w, col = _rows(n, size, j), j * size
        start = _start(n, size, packed, i, j)
        strip_s = np.empty((STRIP_ROWS, w), left.dtype)
        strip_z = np.empty((STRIP_ROWS, w), left.dtype)
        for offset in range(0, _rows(n, size, i), STRIP_ROWS):
            m, row = min(STRIP_ROWS, _rows(n, size, i) - offset), i * size + offset
            E, G = strip_s[:m], strip_z[:m]
            _exponents(left, right, points, near, row, col, E)
            _inner_products(Z, row, Z, col, G)
            times_profile(family, shape, scale, E, G)
            for r in range(m):
                at = start + (offset + r) * ld
                for c in range(w):
                    A[at + c] = G[r, c]
                if i == j:
                    A[at + offset + r] = diagonal[row + r]


@TileLoop
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
    """Contract (alpha alpha^T - A) o ZZ^T with the derivatives of a profile f, tile by tile.

    A has the lower triangle of C^-1, and alpha is (n,). For each tile, a row of `sums` gets the
    sums over both triangles with f, with h s (h = -df/ds) and with df / dlog shape. If `by_column`,
    further columns of `sums` get those with h (x_ik - x_jk)^2, for every column k of `points`.
    """
    ld = _width(n, size, packed)
    before = first * (first + 1) // 2
    for t in prange(last * (last + 1) // 2 - before):
        i, j = _pair(before + t)
        w, col = _rows(n, size, j), j * size
        start = _start(n, size, packed, i, j)
        strip_s = np.empty((STRIP_ROWS, w), left.dtype)
        strip_z = np.empty((STRIP_ROWS, w), left.dtype)
        found = np.empty((3, STRIP_ROWS), left.dtype)
        total = sums[before + t]
        for offset in range(0, _rows(n, size, i), STRIP_ROWS):
            m, row = min(STRIP_ROWS, _rows(n, size, i) - offset), i * size + offset
            E, G = strip_s[:m], strip_z[:m]
            _exponents(left, right, points, near, row, col, E)
            _inner_products(Z, row, Z, col, G)
            for r in range(m):
                at = start + (offset + r) * ld
                a = alpha[row + r]
                end = offset + r if i == j else w
                for c in range(end):
                    G[r, c] *= 2.0 * (a * alpha[col + c] - A[at + c])
                if i == j:
                    G[r, end] *= a * a - A[at + end]
                    for c in range(end + 1, w):
                        G[r, c] = 0.0
            contract_profile(family, shape, E, G, found)
            for r in range(m):
                for s in range(3):
                    total[s] += found[s, r]
            if by_column:
                _add_squared_differences(G, points, row, col, total[3:])


@jit
def _add_squared_differences(G, points, row, col, total):
    """total_k += sum_rc G_rc (x_rk - x_ck)^2;  (m, w), (n, p) -> (p,);  2 m w p flops.

    The sum is that of x_rk^2 sum_c G_rc + x_ck^2 sum_r G_rc - 2 x_rk (G x)_rk.
    """
    m, w = G.shape
    p = points.shape[1]
    product = np.empty((m, p), G.dtype)
    x = points[col:].ravel()
    gemm(False, False, m, p, w, 1.0, G.ravel(), w, x, p, 0.0, product.ravel(), p)
    by_column = np.zeros(w, G.dtype)
    for r in range(m):
        by_row = 0.0
        for c in range(w):
            by_row += G[r, c]
            by_column[c] += G[r, c]
        for k in range(p):
            x_k = points[row + r, k]
            total[k] += x_k * x_k * by_row - 2.0 * x_k * product[r, k]
    for c in range(w):
        for k in range(p):
            total[k] += points[col + c, k] ** 2 * by_column[c]


@jit
def factor_diagonal_tile(n, size, packed, k, A):
    """Replace tile (k, k) by its Cholesky factor; return 0, or the number of a bad pivot."""
    ld = _width(n, size, packed)
    return potrf_lower(_rows(n, size, k), _tile(n, size, packed, A, k, k), ld)


@TileLoop
def factor_column(n, size, packed, k, A):
    """Replace tiles A_ik below tile (k, k), which has L_kk, by A_ik L_kk^-T;  n size^2 flops."""
    ld = _width(n, size, packed)
    w, L = _rows(n, size, k), _tile(n, size, packed, A, k, k)
    for t in prange(_count(n, size) - k - 1):
        i = k + 1 + t
        trsm_lower(
            False, True, _rows(n, size, i), w, 1.0, L, ld, _tile(n, size, packed, A, i, k), ld
        )


@TileLoop
def update_rows(n, size, packed, k, first, last, A):
    """Subtract A_ik A_jk^T from tiles (i, j), first <= i < last, k < j <= i.

    2 size^3 flops per tile.
    """
    ld = _width(n, size, packed)
    depth = _rows(n, size, k)
    before = (first - k - 1) * (first - k) // 2
    for t in prange((last - k - 1) * (last - k) // 2 - before):
        row, column = _pair(before + t)
        i, j = k + 1 + row, k + 1 + column
        m, w = _rows(n, size, i), _rows(n, size, j)
        a, b = _tile(n, size, packed, A, i, k), _tile(n, size, packed, A, j, k)
        c = _tile(n, size, packed, A, i, j)
        if i == j:
            syrk_lower(False, m, depth, -1.0, a, ld, 1.0, c, ld)
        else:
            gemm(False, True, m, w, depth, -1.0, a, ld, b, ld, 1.0, c, ld)


@TileLoop
def solve_rows(n, size, packed, backward, chunk, A, B):
    """Replace rows B by B L^-T, or by B L^-1 if `backward`;  (c, n), row-major;  n^2 c flops.

    One after the other gives B C^-1, as C = L L^T. Workers take chunks of rows.
    """
    ld = _width(n, size, packed)
    count, c = _count(n, size), B.size // n
    for t in prange((c + chunk - 1) // chunk):
        rows = B[t * chunk * n :]
        m = min(chunk, c - t * chunk)
        for step in range(count):
            i = count - 1 - step if backward else step
            w, target = _rows(n, size, i), rows[i * size :]
            for other in range(step):
                j = count - 1 - other if backward else other
                depth, source = _rows(n, size, j), rows[j * size :]
                L = _tile(n, size, packed, A, max(i, j), min(i, j))
                gemm(False, not backward, m, w, depth, -1.0, source, n, L, ld, 1.0, target, n)
            L = _tile(n, size, packed, A, i, i)
            trsm_lower(False, not backward, m, w, 1.0, L, ld, target, n)


@TileLoop
def invert_diagonal_tiles(n, size, packed, A):
    """Replace the diagonal tiles of L by their inverses;  n size^2 / 3 flops."""
    ld = _width(n, size, packed)
    for k in prange(_count(n, size)):
        trtri_lower(_rows(n, size, k), _tile(n, size, packed, A, k, k), ld)


@TileLoop
def square_diagonal_tiles(n, size, packed, A, diagonals):
    """Copy the diagonal tiles, lower triangles X, and replace them by X^T X;  n size^2 / 3 flops.

    The copies are in `diagonals`, one after the other, `size` wide each.
    """
    ld = _width(n, size, packed)
    for k in prange(_count(n, size)):
        m, X = _rows(n, size, k), _tile(n, size, packed, A, k, k)
        for r in range(m):
            for c in range(m):
                diagonals[(k * size + r) * size + c] = X[r * ld + c]
        lauum_lower(m, X, ld)


@TileLoop
def copy_column(n, size, packed, k, factor, A, column):
    """Copy the tiles below tile (k, k), times `factor`, to `column`;  each is `size` wide."""
    ld = _width(n, size, packed)
    w = _rows(n, size, k)
    for t in prange(_count(n, size) - k - 1):
        start = _start(n, size, packed, k + 1 + t, k)
        for r in range(_rows(n, size, k + 1 + t)):
            for c in range(w):
                column[(t * size + r) * size + c] = factor * A[start + r * ld + c]


@TileLoop
def multiply_column(n, size, packed, k, A, column):
    """Multiply the tiles in `column` (`copy_column`) by tile (k, k), a lower triangle."""
    ld = _width(n, size, packed)
    w, X = _rows(n, size, k), _tile(n, size, packed, A, k, k)
    for t in prange(_count(n, size) - k - 1):
        m = _rows(n, size, k + 1 + t)
        trmm_lower(False, False, m, w, 1.0, X, ld, column[t * size * size :], size)


@TileLoop
def invert_column(n, size, packed, k, A, column):
    """Replace tiles (i, k), i > k, of L by those of X = L^-1;  n^2 size flops at most.

    The columns right of it have been replaced before. X_ik is the sum over j from k + 1 to i of
    X_ij (-L_jk X_kk), and `column` has -L_jk X_kk. Workers take strips of the columns of a tile.
    """
    ld = _width(n, size, packed)
    w, count = _rows(n, size, k), _count(n, size) - k - 1
    strips = _strips(w)
    for t in prange(count * strips):
        i = k + 1 + _from_both_ends(t // strips, count)
        first, last = _strip(w, strips, t % strips)
        m, target = _rows(n, size, i), _tile(n, size, packed, A, i, k)[first:]
        own = column[(i - k - 1) * size * size + first :]
        for r in range(m):
            for c in range(last - first):
                target[r * ld + c] = own[r * size + c]
        X = _tile(n, size, packed, A, i, i)
        trmm_lower(True, False, m, last - first, 1.0, X, ld, target, ld)
        for j in range(k + 1, i):
            X, depth = _tile(n, size, packed, A, i, j), _rows(n, size, j)
            b = column[(j - k - 1) * size * size + first :]
            gemm(False, False, m, last - first, depth, 1.0, X, ld, b, size, 1.0, target, ld)


@TileLoop
def square_row(n, size, packed, i, A, diagonals, column):
    """Replace row i of tiles of a lower triangular X by that of X^T X;  n^2 size flops at most.

    The rows above it have been replaced before, and the diagonal tiles by `square_diagonal_tiles`,
    which left their copies. Tile (i, j) is the sum of X_ki^T X_kj over k from i on, and `column`
    has X_ki for k > i. Workers take strips of the columns of a tile.
    """
    ld = _width(n, size, packed)
    m, count = _rows(n, size, i), _count(n, size)
    own = diagonals[i * size * size :]
    strips = _strips(size)
    for t in prange((i + 1) * strips):
        j = t // strips
        first, last = _strip(_rows(n, size, j), strips, t % strips)
        w = last - first
        # On the diagonal, a strip begins with its own row.
        top = first if i == j else 0
        target = _tile(n, size, packed, A, i, j)[top * ld + first :]
        if i != j:
            trmm_lower(True, True, m, w, 1.0, own, size, target, ld)
        for k in range(i + 1, count):
            a = column[(k - i - 1) * size * size + top :]
            b = _tile(n, size, packed, A, k, j)[first:]
            depth = _rows(n, size, k)
            gemm(True, False, m - top, w, depth, 1.0, a, size, b, ld, 1.0, target, ld)


@jit
def _strips(w):
    """Return how many strips a tile of w columns is cut into of STRIP_COLUMNS."""
    return (w + STRIP_COLUMNS - 1) // STRIP_COLUMNS


@jit
def _strip(w, strips, number):
    """Return the first column of a strip, and the one after its last, of w columns in all."""
    return min(w, number * STRIP_COLUMNS), min(w, (number + 1) * STRIP_COLUMNS)
