"""The work of every iteration of the parallel loops over tiles, for bench/cores.py.

A function of this module has the name and the arguments of a loop of `gpx_scale.compiled`. It
returns an array with a row for every iteration of the loop's `prange`, in its order, or a list of
such arrays if the loop has several parallel regions, one after the other. The last column has the
bytes of the operands, as if none of them stayed in a cache. The columns before it have amounts of
work (flops, entries, pairs) whose seconds are to be measured.
"""

from __future__ import annotations

import numpy as np

from gpx_scale.compiled import cross_blocks, kernel_tiles, low_rank, pair_kernels, pair_tiles, tiles


def _columns(*columns):
    """Return columns of equal length, or single numbers, as an array."""
    return np.column_stack(np.broadcast_arrays(*columns)).astype(float)


def _cut(total, size):
    """Return the lengths of consecutive parts of at most `size`."""
    return np.diff(np.append(np.arange(0, total, size), total))


def _lower(first, last):
    """Return the rows and the columns of lower tiles in rows `first` to `last` - 1."""
    i, j = np.tril_indices(last)
    return i[i >= first], j[i >= first]


def _strips(lengths, size):
    """Return the lengths of the strips of tiles, one tile after the other; some may be empty."""
    return np.clip(lengths[:, None] - np.arange(0, size, tiles.STRIP), 0, tiles.STRIP)


# Dense tiles.


def factor_column(n, size, packed, k, A):
    w, m = _cut(n, size)[k], _strips(_cut(n, size)[k + 1 :], size).ravel()
    return _columns(m * w**2, A.itemsize * w * (2 * m + w / 2))


def update_rows(n, size, packed, k, first, last, A, failed):
    m = _cut(n, size)
    i, j = (k + 1 + part for part in _lower(first - k - 1, last - k - 1))
    flops = np.where(i == j, 1, 2) * m[i] * m[j] * m[k]
    moved = 2 * m[i] * m[j] + (m[i] + m[j]) * m[k]
    return _columns(flops, (i == k + 1) * m[i] ** 3 / 3, A.itemsize * moved)


def solve_rows(n, size, packed, backward, chunk, A, B):
    m = _cut(B.size // n, chunk)
    return _columns(m * n**2, n**2, A.itemsize * (n**2 / 2 + 2 * m * n))


def invert_diagonal_tiles(n, size, packed, A):
    m = _cut(n, size)
    return _columns(m**3 / 3, A.itemsize * m**2)


def multiply_block_rows(n, size, packed, width, first, last, A):
    strips = -(-size // tiles.STRIP)
    number, strip = np.divmod(np.arange(first, last), strips)
    i = number // width * 2 * width + width + number % width
    m = np.clip(n - i * size - strip * tiles.STRIP, 0, tiles.STRIP)
    m = np.minimum(m, size - strip * tiles.STRIP)
    side = width * size
    return _columns(m * side**2, A.itemsize * (m > 0) * (side**2 / 2 + 2 * m * side))


def multiply_block_columns(n, size, packed, width, first, last, A):
    number, strip = np.divmod(np.arange(first, last), -(-size // tiles.STRIP))
    top = (number // width * 2 * width + width) * size
    side, w = np.clip(n - top, 0, width * size), np.minimum(tiles.STRIP, size - strip * tiles.STRIP)
    return _columns(w * side**2, A.itemsize * (side**2 / 2 + 2 * w * side))


def square_row(n, size, packed, i, A, own):
    m, below = _cut(n, size), max(0, n - (i + 1) * size)
    w = _strips(m[: i + 1], size)
    left = np.broadcast_to(np.arange(0, size, tiles.STRIP), w.shape)
    diagonal = np.arange(i + 1)[:, None] == i
    rows = np.where(diagonal, m[i] - left, m[i])
    flops = 2 * rows * w * below + np.where(diagonal, 0, m[i] ** 2 * w)
    return _columns(flops.ravel(), A.itemsize * ((rows + w) * below + 2 * m[i] * w).ravel())


# Tiles of a kernel.


def fill_rows(n, size, packed, first, last, kernel, points, Z, diagonal, A):
    m, (i, j) = _cut(n, size), _lower(first, last)
    return _columns(m[i] * m[j], A.itemsize * m[i] * m[j])


def contract_inverse(
    n, size, packed, first, last, kernel, by_column, points, Z, alpha, A, diagonal, sums
):
    m, (i, j) = _cut(n, size), _lower(first, last)
    visited = np.arange(i.size) * tiles.even_stride(i.size) % i.size
    i, j = i[visited], j[visited]
    below = np.maximum(0, n - (i + 1) * size)
    # Strips of a diagonal tile begin with their own row.
    strips = _strips(m, size)
    triangle = (strips * (m[:, None] - np.arange(0, size, tiles.STRIP))).sum(axis=1)
    area = np.where(i == j, triangle[i], m[i] * m[j])
    flops = 2 * area * below + np.where(i == j, 1 / 3, 1) * m[i] ** 2 * m[j]
    return _columns(flops, m[i] * m[j], A.itemsize * ((m[i] + m[j]) * below + m[i] * m[j]))


def contract_products(n, size, first, last, kernel, by_column, points, Z, left, right, sums):
    m, (i, j) = _cut(n, size), _lower(first, last)
    c = left.shape[1]
    return _columns(m[i] * m[j], m[i] * m[j] * c, left.itemsize * c * (m[i] + m[j]))


def multiply_stored(n, size, first, last, order, A, V, partial):
    entries, multiplied = _products(n, size, order[first:last])
    return _columns(entries, multiplied * V.shape[1], A.itemsize * entries)


def multiply_formed(n, size, first, last, order, kernel, points, Z, V, partial):
    entries, multiplied = _products(n, size, order[first:last])
    return _columns(entries, multiplied * V.shape[1], 0)


def _products(n, size, strips):
    """Return how many entries each group has, and how many it multiplies with a column.

    (steps, groups) -> (groups,), (groups,). Tiles off the diagonal are used for both triangles.
    """
    m = _cut(n, size)
    entries, diagonal = (np.append(one, 0) for one in (m * np.cumsum(m), m**2))
    groups = strips.shape[1]
    visited = [tiles.from_both_ends(groups, k) for k in range(groups)]
    entries, diagonal = (one[strips].sum(axis=0)[visited] for one in (entries, diagonal))
    return entries, 2 * entries - diagonal


def add_partial_sums(diagonal, V, partial, first, out):
    numbers = _cut(len(V), kernel_tiles.CHUNK_ROWS) * V.shape[1]
    return _columns(numbers * len(partial), 8 * numbers * (len(partial) + 2))


# Blocks between rows.


def fill_block(
    family, shape, scale, near, left, right, a_points, b_points, with_z, Za, Zb, first, last, out
):
    rows = _cut(last - first, cross_blocks.CHUNK_ROWS)
    entries = np.outer(rows, _cut(out.shape[1], cross_blocks.STRIP_COLUMNS)).ravel()
    return _columns(entries, out.itemsize * entries)


def contract_block(
    family, shape, near, by_column, left, right, a_points, b_points, Za, Zb, first, last, W, sums
):
    entries = _cut(last - first, cross_blocks.STRIP_ROWS) * len(right)
    return _columns(entries, W.itemsize * entries)


def contract_product(
    family, shape, near, by_column, left, right, a_points, b_points, Za, Zb, first, last, U, V, sums
):
    rows, (b, c) = _cut(last - first, cross_blocks.CHUNK_ROWS), V.shape
    return _columns(rows * b, rows * b * c, V.itemsize * c * (rows + b))


# Factors of low rank.


def scale_rows(F, factors, out):
    numbers = _cut(len(F), low_rank.TILE_ROWS) * F.shape[1]
    return _columns(numbers, (F.itemsize + out.itemsize) * numbers)


def square_rows(F, out):
    numbers = _cut(len(F), low_rank.TILE_ROWS) * F.shape[1]
    return _columns(numbers, F.itemsize * numbers)


def multiply_transposed(G, V, parts):
    rows, columns = _cut(len(G), low_rank.GROUP_ROWS), _cut(G.shape[1], low_rank.TILE_COLUMNS)
    numbers = np.outer(rows, columns).ravel()
    return _columns(numbers, numbers * len(V), G.itemsize * numbers)


def multiply(G, W, out):
    numbers = _cut(len(G), low_rank.TILE_ROWS) * G.shape[1]
    return _columns(numbers, numbers * len(W), G.itemsize * numbers)


def gram_tiles(first, last, G, M):
    n, r = G.shape
    m = _cut(r, low_rank.GRAM_TILE)
    i, j = (part[first:last] for part in np.tril_indices(m.size))
    read = np.where(i == j, m[i], m[i] + m[j])
    return _columns(np.where(i == j, 1, 2) * m[i] * m[j] * n, read * n, G.itemsize * read * n)


# Pairs of sparse rows.


def load_panel(V, column, right, total):
    rows = _cut(len(V), pair_tiles.PANEL_ROWS)
    return _columns(rows, rows * pair_tiles.PANEL_COLUMNS * (8 + 2 * right.itemsize))


def store_panel(V, diagonal, column, total, out):
    rows = _cut(len(V), pair_tiles.PANEL_ROWS)
    return _columns(rows, rows * pair_tiles.PANEL_COLUMNS * (16 + total.itemsize))


def multiply_pairs(first, last, blocks, runs, columns, offset, values, right, total):
    pairs, counted = (np.diff(at[blocks.strips]) for at in (runs.pairs_at, runs.runs_at))
    found = _columns(pairs, counted, pairs * (values.itemsize + 2) + 4 * counted)
    ends = blocks.rounds
    return [found[ends[one] : ends[one + 1]] for one in range(first, last)]


def pair_values(family, shape, scale, rate, squared, inner, out):
    pairs = _cut(out.size, pair_kernels.CHUNK_PAIRS)
    return _columns(pairs, pairs * (squared.itemsize + inner.itemsize + out.itemsize))


def pair_slopes(family, shape, scale, rate, squared, inner, out):
    pairs = _cut(out.shape[1], pair_kernels.CHUNK_PAIRS)
    moved = squared.itemsize + inner.itemsize + len(out) * out.itemsize
    return _columns(pairs, pairs * moved)
