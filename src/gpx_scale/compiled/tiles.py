"""Parallel loops over the lower tiles of a symmetric matrix, with BLAS inside.

The lower triangle of an (n, n) matrix is cut into tiles of `size` rows and columns, which are kept
in a one-dimensional buffer A. If it is `packed`, A has one tile after the other, row by row of
tiles, and each tile is `size` wide. Otherwise A is a row-major (n, n) matrix. Every iteration of a
parallel loop writes tiles that no other iteration writes, and adds to them in a fixed order, so the
bits of a result do not depend on the number of threads.

Every function takes the layout (n, size, packed) first. `ld` is the distance between the rows of a
tile, and `m` and `w` are its numbers of rows and columns. Loops that form tiles of a kernel are in
`kernel_tiles`.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm, lauum_lower, potrf_lower, syrk_lower, trmm_lower, trsm_lower, trtri_lower

# Where there are few tiles, a worker takes this many rows or columns of one at once, so that the
# work is shared evenly.
STRIP = 256


@jit
def tile_at(n, size, packed, A, i, j):
    """Return A from the first entry of tile (i, j) on."""
    return A[tile_start(n, size, packed, i, j) :]


@jit
def tile_start(n, size, packed, i, j):
    """Return the index of the first entry of tile (i, j)."""
    if packed:
        return (i * (i + 1) // 2 + j) * size * size
    return i * size * n + j * size


@jit
def tile_width(n, size, packed):
    """Return the distance between the rows of a tile."""
    return size if packed else n


@jit
def tile_rows(n, size, i):
    """Return the number of rows of the i-th row of tiles."""
    return min(size, n - i * size)


@jit
def tile_count(n, size):
    """Return the number of rows of tiles."""
    return (n + size - 1) // size


@jit
def even_stride(count):
    """Return a stride with which 0 .. count - 1 are visited in an evenly spread order.

    The k-th one is k stride % count, with a stride near the golden ratio. If the work of an
    iteration grows or falls with its index, contiguous shares of any number of threads are then
    about even: with 2 and 16 threads and 40 rows of tiles, 99% and 94% of them work on average.
    """
    stride = max(1, int(0.6180339887 * count + 0.5))
    while _greatest_common_divisor(stride, count) != 1:
        stride += 1
    return stride


@jit
def from_both_ends(count, k):
    """Return the k-th of 0 .. count - 1 in the order 0, count - 1, 1, count - 2, and so on.

    If the work of an iteration grows or falls by equal steps with its index, any two neighbours of
    this order have the same work, and contiguous shares of 2, 4 or 8 threads are even.
    """
    return k // 2 if k % 2 == 0 else count - 1 - k // 2


@jit
def _greatest_common_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


@jit
def tile_pair(number):
    """Return (i, j), j <= i, of the pair with number i (i + 1) / 2 + j."""
    i = int((np.sqrt(8.0 * number + 1.0) - 1.0) / 2.0)
    # The square root may be off by a rounding.
    if i * (i + 1) // 2 > number:
        i -= 1
    if (i + 1) * (i + 2) // 2 <= number:
        i += 1
    return i, number - i * (i + 1) // 2


@jit
def factor_first_tile(n, size, packed, A):
    """Replace tile (0, 0) by its Cholesky factor; return 0, or the number of a bad pivot."""
    return potrf_lower(tile_rows(n, size, 0), A, tile_width(n, size, packed))


@TileLoop
def factor_column(n, size, packed, k, A):
    """Replace tiles A_ik below tile (k, k), which has L_kk, by A_ik L_kk^-T;  n size^2 flops.

    Workers take strips of the rows of a tile.
    """
    ld = tile_width(n, size, packed)
    w, L = tile_rows(n, size, k), tile_at(n, size, packed, A, k, k)
    strips = (size + STRIP - 1) // STRIP
    for t in prange((tile_count(n, size) - k - 1) * strips):
        i, top = k + 1 + t // strips, t % strips * STRIP
        m = min(STRIP, tile_rows(n, size, i) - top)
        if m > 0:
            target = tile_at(n, size, packed, A, i, k)[top * ld :]
            trsm_lower(False, True, m, w, 1.0, L, ld, target, ld)


@TileLoop
def update_rows(n, size, packed, k, first, last, A, failed):
    """Subtract A_ik A_jk^T from tiles (i, j), first <= i < last, k < j <= i.

    2 size^3 flops per tile. The worker of tile (k + 1, k + 1) factorises it at once, while others
    go on; failed[0] becomes the number of a bad pivot.
    """
    ld = tile_width(n, size, packed)
    depth = tile_rows(n, size, k)
    before = (first - k - 1) * (first - k) // 2
    for t in prange((last - k - 1) * (last - k) // 2 - before):
        row, column = tile_pair(before + t)
        i, j = k + 1 + row, k + 1 + column
        m, w = tile_rows(n, size, i), tile_rows(n, size, j)
        a, b = tile_at(n, size, packed, A, i, k), tile_at(n, size, packed, A, j, k)
        c = tile_at(n, size, packed, A, i, j)
        if i == j:
            syrk_lower(False, m, depth, -1.0, a, ld, 1.0, c, ld)
        else:
            gemm(False, True, m, w, depth, -1.0, a, ld, b, ld, 1.0, c, ld)
        if i == k + 1:
            failed[0] = potrf_lower(m, c, ld)


@TileLoop
def solve_rows(n, size, packed, backward, chunk, A, B):
    """Replace rows B by B L^-T, or by B L^-1 if `backward`;  (c, n), row-major;  n^2 c flops.

    One after the other gives B C^-1, as C = L L^T. Workers take chunks of rows.
    """
    ld = tile_width(n, size, packed)
    count, c = tile_count(n, size), B.size // n
    for t in prange((c + chunk - 1) // chunk):
        rows = B[t * chunk * n :]
        m = min(chunk, c - t * chunk)
        for step in range(count):
            i = count - 1 - step if backward else step
            w, target = tile_rows(n, size, i), rows[i * size :]
            for other in range(step):
                j = count - 1 - other if backward else other
                depth, source = tile_rows(n, size, j), rows[j * size :]
                L = tile_at(n, size, packed, A, max(i, j), min(i, j))
                gemm(False, not backward, m, w, depth, -1.0, source, n, L, ld, 1.0, target, n)
            L = tile_at(n, size, packed, A, i, i)
            trsm_lower(False, not backward, m, w, 1.0, L, ld, target, n)


@TileLoop
def invert_diagonal_tiles(n, size, packed, A):
    """Replace the diagonal tiles of L by their inverses;  n size^2 / 3 flops."""
    ld = tile_width(n, size, packed)
    for k in prange(tile_count(n, size)):
        trtri_lower(tile_rows(n, size, k), tile_at(n, size, packed, A, k, k), ld)


# The inverse of a triangle of two blocks is [[X11, 0], [-X22 L21 X11, X22]]. The next two loops
# compute the lower left blocks of all pairs of neighbouring blocks of `width` tiles, whose
# diagonal blocks X11 and X22 are inverted already. Row r of tiles in a lower left block belongs
# to the pair r // width, and so does column c.


@TileLoop
def multiply_block_rows(n, size, packed, width, first, last, A):
    """Replace rows L_ij of lower left blocks by those of L21 X11, for strips first to last - 1."""
    ld = tile_width(n, size, packed)
    strips = (size + STRIP - 1) // STRIP
    for t in prange(last - first):
        number, strip = divmod(first + t, strips)
        left = number // width * 2 * width
        i = left + width + number % width
        top = strip * STRIP
        m = min(STRIP, tile_rows(n, size, i) - top)
        for j in range(left, left + width if m > 0 else left):
            target = tile_at(n, size, packed, A, i, j)[top * ld :]
            X, w = tile_at(n, size, packed, A, j, j), tile_rows(n, size, j)
            trmm_lower(False, False, m, w, 1.0, X, ld, target, ld)
            for k in range(j + 1, left + width):
                L = tile_at(n, size, packed, A, i, k)[top * ld :]
                X, depth = tile_at(n, size, packed, A, k, j), tile_rows(n, size, k)
                gemm(False, False, m, w, depth, 1.0, L, ld, X, ld, 1.0, target, ld)


@TileLoop
def multiply_block_columns(n, size, packed, width, first, last, A):
    """Replace columns of lower left blocks by -X22 times them, for strips first to last - 1."""
    ld, count = tile_width(n, size, packed), tile_count(n, size)
    strips = (size + STRIP - 1) // STRIP
    for t in prange(last - first):
        number, strip = divmod(first + t, strips)
        top = number // width * 2 * width + width
        j = top - width + number % width
        left = strip * STRIP
        w = min(STRIP, size - left)
        for step in range(min(width, count - top)):
            i = min(top + width, count) - 1 - step
            m, target = tile_rows(n, size, i), tile_at(n, size, packed, A, i, j)[left:]
            X = tile_at(n, size, packed, A, i, i)
            trmm_lower(True, False, m, w, -1.0, X, ld, target, ld)
            for k in range(top, i):
                X, depth = tile_at(n, size, packed, A, i, k), tile_rows(n, size, k)
                source = tile_at(n, size, packed, A, k, j)[left:]
                gemm(False, False, m, w, depth, -1.0, X, ld, source, ld, 1.0, target, ld)


@jit
def add_tile_of_square(n, size, packed, A, first, i, j, left, target, ld_target):
    """Add X_ki^T X_kj, summed over k from `first` on, to a tile from its column `left` on.

    A holds a lower triangular X. On the diagonal, only the lower triangle is right.
    """
    ld = tile_width(n, size, packed)
    m, w = tile_rows(n, size, i), min(STRIP, tile_rows(n, size, j) - left)
    # On the diagonal, a strip begins with its own row.
    top = left if i == j else 0
    for k in range(first, tile_count(n, size)):
        a = tile_at(n, size, packed, A, k, i)[top:]
        b = tile_at(n, size, packed, A, k, j)[left:]
        depth = tile_rows(n, size, k)
        c = target[top * ld_target + left :]
        gemm(True, False, m - top, w, depth, 1.0, a, ld, b, ld, 1.0, c, ld_target)


@TileLoop
def square_row(n, size, packed, i, A, own):
    """Replace row i of tiles of a lower triangular X by that of X^T X;  n^2 size flops at most.

    The rows above it have been replaced before. Tile (i, j) is the sum of X_ki^T X_kj over k from i
    on. `own` has a copy of tile (i, i), `size` wide. Workers take strips of the columns of a tile.
    """
    ld = tile_width(n, size, packed)
    m = tile_rows(n, size, i)
    strips = (size + STRIP - 1) // STRIP
    for t in prange((i + 1) * strips):
        j, left = t // strips, t % strips * STRIP
        target = tile_at(n, size, packed, A, i, j)
        w = min(STRIP, tile_rows(n, size, j) - left)
        if i != j and w > 0:
            trmm_lower(True, True, m, w, 1.0, own, size, target[left:], ld)
        if w > 0:
            add_tile_of_square(n, size, packed, A, i + 1, i, j, left, target, ld)


@jit
def square_diagonal_tile(n, size, packed, i, A, own):
    """Copy tile (i, i), a lower triangle X, to `own`, and replace it by X^T X."""
    ld, m = tile_width(n, size, packed), tile_rows(n, size, i)
    X = tile_at(n, size, packed, A, i, i)
    for r in range(m):
        for c in range(r + 1):
            own[r * size + c] = X[r * ld + c]
    lauum_lower(m, X, ld)
