"""Parallel loops that find the k best of many rows for each query of a batch.

The best rows so far are kept in heaps, which further rows are merged into, so that rows may come in
any number of parts. Row i of `keys`, `norms` and `rows`, (b, k) each, is the heap of query i, of
which `counts[i]` places are in use. Its root is the worst of them: the one with the largest key,
among equal keys the one with the smallest `norm` |z|^2, and among those the one with the largest
row number. This order has no ties, so the result depends neither on the order in which rows come
nor on the number of threads.

Each row has a `rank`, and query i takes only rows with a rank below `limits[i]`, and not the row
`own[i]`. With ranks of 0 and 1 and limits of 1, some rows are left out; with positions in an order
as ranks, a row finds neighbours among the rows before it.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .blas import gemm

# A worker takes this many queries, and this many rows at once: their products in float64 take
# 256 kB, which stay in the second-level cache of a core.
QUERIES = 64
TILE = 512


@jit
def _is_worse(key, norm, row, other_key, other_norm, other_row):
    """Return whether a row is worse than another one."""
    if key != other_key:
        return key > other_key
    if norm != other_norm:
        return norm < other_norm
    return row > other_row


@jit
def _sift_down(keys, norms, rows, start, count):
    """Restore the heap of `count` places below the place `start`."""
    key, norm, row = keys[start], norms[start], rows[start]
    at = start
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        other = child + 1
        if other < count and _is_worse(
            keys[other], norms[other], rows[other], keys[child], norms[child], rows[child]
        ):
            child = other
        if not _is_worse(keys[child], norms[child], rows[child], key, norm, row):
            break
        keys[at], norms[at], rows[at] = keys[child], norms[child], rows[child]
        at = child
    keys[at], norms[at], rows[at] = key, norm, row


@jit
def _sift_up(keys, norms, rows, start):
    """Restore the heap above the place `start`."""
    key, norm, row = keys[start], norms[start], rows[start]
    at = start
    while at > 0:
        parent = (at - 1) // 2
        if not _is_worse(key, norm, row, keys[parent], norms[parent], rows[parent]):
            break
        keys[at], norms[at], rows[at] = keys[parent], norms[parent], rows[parent]
        at = parent
    keys[at], norms[at], rows[at] = key, norm, row


@jit
def _offer(key, norm, row, keys, norms, rows, count):
    """Put a row into a heap if it is among the best; return the number of places in use."""
    if count < keys.size:
        keys[count], norms[count], rows[count] = key, norm, row
        _sift_up(keys, norms, rows, count)
        return count + 1
    if _is_worse(keys[0], norms[0], rows[0], key, norm, row):
        keys[0], norms[0], rows[0] = key, norm, row
        _sift_down(keys, norms, rows, 0, count)
    return count


@jit
def _squared_distance(a, b):
    """Return |a - b|^2 from differences, whose sum always has the same order;  (p,), (p,)."""
    total = 0.0
    for k in range(a.size):
        difference = a[k] - b[k]
        total += difference * difference
    return total


@TileLoop
def merge_distances(
    queries,
    query_squared,
    points,
    squared,
    row_norms,
    ranks,
    first_row,
    slack,
    limits,
    own,
    keys,
    norms,
    rows,
    counts,
):
    """Merge rows into the heaps of queries by their squared distances.

    queries (b, p) and points (r, p) are scaled so that s = |x - x'|^2, with |x|^2 in
    `query_squared` (b,) and `squared` (r,). The first point is the row `first_row`. A matrix
    product gives s up to `slack`. Rows that may be among the best by that are compared by their
    differences, so that equal points are equally far. 2 p flops per pair, and a comparison.
    """
    b, p = queries.shape
    r = len(points)
    for t in prange((b + QUERIES - 1) // QUERIES):
        start = t * QUERIES
        m = min(QUERIES, b - start)
        product = np.empty((m, TILE))
        left = queries[start:].ravel()
        for col in range(0, r, TILE):
            w = min(TILE, r - col)
            right = points[col:].ravel()
            gemm(False, True, m, w, p, 2.0, left, p, right, p, 0.0, product.ravel(), TILE)
            for q in range(m):
                i = start + q
                count, limit, me = counts[i], limits[i], own[i]
                base = query_squared[i] - slack
                inner, heap = product[q], keys[i]
                for c in range(w):
                    j = col + c
                    if count == heap.size and base + squared[j] - inner[c] > heap[0]:
                        continue
                    row = first_row + j
                    if ranks[j] >= limit or row == me:
                        continue
                    s = _squared_distance(queries[i], points[j])
                    count = _offer(s, row_norms[j], row, heap, norms[i], rows[i], count)
                counts[i] = count


@TileLoop
def merge_keys(given, row_norms, ranks, first_row, limits, own, keys, norms, rows, counts):
    """Merge rows into the heaps of queries by given keys, (b, r), of which the smallest are best.

    The first column is the row `first_row`. One comparison per pair.
    """
    b, r = given.shape
    for i in prange(b):
        count, limit, me = counts[i], limits[i], own[i]
        offered, heap = given[i], keys[i]
        for j in range(r):
            if count == heap.size and offered[j] > heap[0]:
                continue
            row = first_row + j
            if ranks[j] < limit and row != me:
                count = _offer(offered[j], row_norms[j], row, heap, norms[i], rows[i], count)
        counts[i] = count


@jit
def merge_heaps(found_keys, found_norms, found_rows, found_counts, keys, norms, rows, counts):
    """Merge the heaps of each query over some rows into those over other rows;  (b, k) each."""
    for i in range(len(counts)):
        count = counts[i]
        for j in range(found_counts[i]):
            offered = found_keys[i, j], found_norms[i, j], found_rows[i, j]
            count = _offer(*offered, keys[i], norms[i], rows[i], count)
        counts[i] = count


@TileLoop
def sort_heaps(keys, norms, rows, counts):
    """Sort the places in use of every heap, the best row first;  k log(k) comparisons each."""
    for i in prange(len(counts)):
        for last in range(counts[i] - 1, 0, -1):
            key, norm, row = keys[i, last], norms[i, last], rows[i, last]
            keys[i, last], norms[i, last], rows[i, last] = keys[i, 0], norms[i, 0], rows[i, 0]
            keys[i, 0], norms[i, 0], rows[i, 0] = key, norm, row
            _sift_down(keys[i], norms[i], rows[i], 0, last)
