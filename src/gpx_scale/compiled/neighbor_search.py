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

# So many rows are compared with a query at once. With up to 100 columns, their coordinates in
# float32 stay in the second-level cache of a core while a worker's queries are compared with them.
TILE = 512
# All lower bounds of distances in float32 are below this number.
EVERYTHING = np.float32(3e38)
# In runs of this length, rows that are too far are passed over together.
RUN = 64


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
def transpose_single(points, squared, scale, share, coordinates, low):
    """Write points (r, p) as columns of `coordinates` (p, r), and `share` |x|^2 as `low` (r,).

    Both are in float32, and times `scale` and its square.
    """
    r, p = points.shape
    for t in prange((r + TILE - 1) // TILE):
        for j in range(t * TILE, min(r, (t + 1) * TILE)):
            low[j] = np.float32(scale * scale * share * squared[j])
            for k in range(p):
                coordinates[k, j] = np.float32(scale * points[j, k])


@jit
def _lower_bounds(query, coordinates, low, start, out):
    """Write `low` - 2 q.x of some columns to `out` (w,) in float32.

    Four coordinates are taken at a time, or eight, which halves the numbers that are written.
    """
    p, w = query.size, out.size
    part = low[start : start + w]
    k = 0
    if p >= 8:
        a, b = np.float32(-2.0 * query[0]), np.float32(-2.0 * query[1])
        c, d = np.float32(-2.0 * query[2]), np.float32(-2.0 * query[3])
        e, f = np.float32(-2.0 * query[4]), np.float32(-2.0 * query[5])
        g, h = np.float32(-2.0 * query[6]), np.float32(-2.0 * query[7])
        x0, x1 = coordinates[0, start : start + w], coordinates[1, start : start + w]
        x2, x3 = coordinates[2, start : start + w], coordinates[3, start : start + w]
        x4, x5 = coordinates[4, start : start + w], coordinates[5, start : start + w]
        x6, x7 = coordinates[6, start : start + w], coordinates[7, start : start + w]
        for j in range(w):
            first = (a * x0[j] + b * x1[j]) + (c * x2[j] + d * x3[j])
            second = (e * x4[j] + f * x5[j]) + (g * x6[j] + h * x7[j])
            out[j] = part[j] + (first + second)
        k = 8
    else:
        for j in range(w):
            out[j] = part[j]
    while k + 4 <= p:
        a, b = np.float32(-2.0 * query[k]), np.float32(-2.0 * query[k + 1])
        c, d = np.float32(-2.0 * query[k + 2]), np.float32(-2.0 * query[k + 3])
        x0, x1 = coordinates[k, start : start + w], coordinates[k + 1, start : start + w]
        x2, x3 = coordinates[k + 2, start : start + w], coordinates[k + 3, start : start + w]
        for j in range(w):
            out[j] += (a * x0[j] + b * x1[j]) + (c * x2[j] + d * x3[j])
        k += 4
    while k < p:
        a, x0 = np.float32(-2.0 * query[k]), coordinates[k, start : start + w]
        for j in range(w):
            out[j] += a * x0[j]
        k += 1


@jit
def _count_close(bounds, most):
    """Return how many bounds are at most `most`."""
    close = np.int32(0)
    for c in range(bounds.size):
        close += np.int32(bounds[c] <= most)
    return close


@TileLoop
def merge_distances(
    queries,
    query_low,
    group,
    points,
    coordinates,
    low,
    row_norms,
    ranks,
    first_row,
    limits,
    own,
    keys,
    norms,
    rows,
    counts,
):
    """Merge rows into the heaps of queries by their squared distances.

    queries (b, p) and points (r, p) are scaled so that s = |x - x'|^2. The first point is the row
    `first_row`. Sums in float32 give lower bounds of s: `query_low` (b,) + `low` (r,) - 2 x.x',
    where the first two are |x|^2 less what rounding can add. Rows that may be among the best by
    that are compared by their differences in float64, so that equal points are equally far. A
    worker takes `group` queries at once. 2 p flops per pair, and a comparison.
    """
    b = len(queries)
    r = len(points)
    for t in prange((b + group - 1) // group):
        sums = np.empty(TILE, np.float32)
        for col in range(0, r, TILE):
            w = min(TILE, r - col)
            for i in range(t * group, min(b, (t + 1) * group)):
                query, heap, heap_norms, heap_rows = queries[i], keys[i], norms[i], rows[i]
                count, limit, me = counts[i], limits[i], own[i]
                part = sums[:w]
                _lower_bounds(query, coordinates, low, col, part)
                at = 0
                while at < w:
                    end = min(w, at + RUN)
                    most = EVERYTHING
                    if count == heap.size:
                        most = np.float32(heap[0] - query_low[i])
                    if _count_close(part[at:end], most):
                        for c in range(at, end):
                            if part[c] > most:
                                continue
                            j = col + c
                            row = first_row + j
                            if ranks[j] >= limit or row == me:
                                continue
                            s = _squared_distance(query, points[j])
                            norm = row_norms[j]
                            # Of equal rows, most are no better than the worst of the heap.
                            if count == heap.size and not _is_worse(
                                heap[0], heap_norms[0], heap_rows[0], s, norm, row
                            ):
                                continue
                            count = _offer(s, norm, row, heap, heap_norms, heap_rows, count)
                    at = end
                counts[i] = count


@TileLoop
def merge_keys(given, row_norms, ranks, first_row, limits, own, keys, norms, rows, counts):
    """Merge rows into the heaps of queries by given keys, (b, r), of which the smallest are best.

    The first column is the row `first_row`. One comparison per pair.
    """
    b, r = given.shape
    for i in prange(b):
        count, limit, me = counts[i], limits[i], own[i]
        offered, heap, heap_norms, heap_rows = given[i], keys[i], norms[i], rows[i]
        for j in range(r):
            key, norm, row = offered[j], row_norms[j], first_row + j
            if count == heap.size and not _is_worse(
                heap[0], heap_norms[0], heap_rows[0], key, norm, row
            ):
                continue
            if ranks[j] < limit and row != me:
                count = _offer(key, norm, row, heap, heap_norms, heap_rows, count)
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
