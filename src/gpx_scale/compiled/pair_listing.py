"""Parallel loops that list the pairs of sparse rows which share a feature.

The n rows are cut into blocks (`Blocks`), and a tile has the pairs of two blocks. The second block
of a tile is cut into strips, and the pairs of a strip are listed in runs (`Runs`), each of which
has the pairs of one row of the first block. Long runs come first, because a processor foresees the
end of a run that is as long as the one before: at 16 pairs per run, a pair of a product takes
0.83 ns on one core, and 0.97 in the order of rows. `columns` (pairs,) has the rows of the second
block, counted from the first one of the strip; they ascend within a run.

While pairs are listed, each strip has a cell for every row of the first block of its tile. The
cells of strip g begin at cells[g]. `numbers` (cells,) counts the pairs of a cell at first, and then
tells where they begin in the strip.

Every iteration owns what it writes, so the list does not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from ..runtime.tile_loops import TileLoop
from . import jit
from .sparse import sparse_squared_distance, squared_distance


class Blocks(NamedTuple):
    """How rows are cut into blocks, and pairs of blocks into tiles and strips.

    Block b has the rows from edges[b] to edges[b + 1]; edges are multiples of 64. Tile t has the
    pairs of a row i of block tiles[t, 0] with a row j < i of block tiles[t, 1], and `numbers`
    (blocks, blocks) is the inverse. Strips have `strip` rows, a multiple of 64; tile t has those
    from strips[t] to strips[t + 1]. Round k has the tiles from rounds[k] to rounds[k + 1].
    """

    edges: np.ndarray
    tiles: np.ndarray
    numbers: np.ndarray
    rounds: np.ndarray
    strip: int
    strips: np.ndarray


class Runs(NamedTuple):
    """The runs of all strips.

    Strip g has the pairs from pairs_at[g] to pairs_at[g + 1], and the runs from runs_at[g] to
    runs_at[g + 1]. A run has `sizes` pairs of a row, which is counted from the first one of its
    block.
    """

    pairs_at: np.ndarray
    runs_at: np.ndarray
    rows: np.ndarray
    sizes: np.ndarray


@intrinsic
def _bits(typing, word):
    """Return how many bits of a word are set."""

    def build(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


@intrinsic
def _lowest_bit(typing, word):
    """Return the number of the lowest bit of a word that is set."""

    def build(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), build


@jit
def first_row(blocks, t):
    """Return the first row of the first block of a tile."""
    return blocks.edges[blocks.tiles[t, 0]]


@jit
def first_column(blocks, t, g):
    """Return the first row of a strip of the second block of a tile."""
    return blocks.edges[blocks.tiles[t, 1]] + (g - blocks.strips[t]) * blocks.strip


@jit
def _block(edges, row):
    """Return the block of a row."""
    return np.searchsorted(edges, row, side="right") - 1


@TileLoop
def count_pairs(cuts, ptr, ind, starts, docs, blocks, cells, numbers):
    """Count the pairs of the rows from cuts[0] to cuts[-1], for every cell.

    Rows come as (ptr, ind), and by feature as (starts, docs). A worker has the rows between two
    cuts, and a bit for each row that shares a feature with the one at hand. The cost is an
    operation for each feature that two rows share.
    """
    edges, strip = blocks.edges, blocks.strip
    for c in prange(cuts.size - 1):
        marks = np.zeros((edges[-1] + 63) // 64, np.uint64)
        block = _block(edges, cuts[c])
        for i in range(cuts[c], cuts[c + 1]):
            while i >= edges[block + 1]:
                block += 1
            for e in range(ptr[i], ptr[i + 1]):
                for t in range(starts[ind[e]], starts[ind[e] + 1]):
                    j = docs[t]
                    if j >= i:
                        break
                    marks[j >> 6] |= np.uint64(1) << np.uint64(j & 63)
            for other in range(block + 1):
                g = blocks.strips[blocks.numbers[block, other]]
                for first in range(edges[other], min(i, edges[other + 1]), strip):
                    last = min(first + strip, edges[other + 1])
                    found = 0
                    for word in range(first >> 6, (last + 63) >> 6):
                        found += np.int64(_bits(marks[word]))  # type: ignore[call-arg,assignment]
                        marks[word] = np.uint64(0)
                    numbers[cells[g] + i - edges[block]] = found
                    g += 1


@TileLoop
def size_strips(cells, numbers, pairs, runs):
    """Count the pairs and the runs of every strip;  (cells,) -> (strips,), (strips,)."""
    for g in prange(pairs.size):
        for k in range(cells[g], cells[g + 1]):
            pairs[g] += numbers[k]
            runs[g] += numbers[k] > 0


@TileLoop
def order_runs(strip, cells, runs_at, numbers, run_rows, run_sizes):
    """List the runs of every strip, long ones first, and let `numbers` tell where they begin."""
    for g in prange(cells.size - 1):
        # The number of runs of each size, and then the place of the next one.
        place = np.zeros(strip + 1, np.int64)
        for k in range(cells[g], cells[g + 1]):
            place[numbers[k]] += 1
        after = 0
        for size in range(strip, 0, -1):
            after, place[size] = after + place[size], after
        for k in range(cells[g], cells[g + 1]):
            size = numbers[k]
            if size > 0:
                at = runs_at[g] + place[size]
                place[size] += 1
                run_rows[at], run_sizes[at] = k - cells[g], size
        start = 0
        for at in range(runs_at[g], runs_at[g + 1]):
            numbers[cells[g] + run_rows[at]] = start
            start += run_sizes[at]


@TileLoop
def fill_pairs(
    cuts, ptr, ind, val, starts, docs, values, blocks, cells, numbers, pairs_at, columns, inner
):
    """List the pairs of the rows from cuts[0] to cuts[-1] with their inner products <z_i, z_j>.

    The cost is an addition for each feature that two rows share.
    """
    edges, strip = blocks.edges, blocks.strip
    for c in prange(cuts.size - 1):
        marks = np.zeros((edges[-1] + 63) // 64, np.uint64)
        sums = np.zeros(edges[-1])
        block = _block(edges, cuts[c])
        for i in range(cuts[c], cuts[c + 1]):
            while i >= edges[block + 1]:
                block += 1
            for e in range(ptr[i], ptr[i + 1]):
                z = val[e]
                for t in range(starts[ind[e]], starts[ind[e] + 1]):
                    j = docs[t]
                    if j >= i:
                        break
                    marks[j >> 6] |= np.uint64(1) << np.uint64(j & 63)
                    sums[j] += z * values[t]
            for other in range(block + 1):
                g = blocks.strips[blocks.numbers[block, other]]
                for first in range(edges[other], min(i, edges[other + 1]), strip):
                    last = min(first + strip, edges[other + 1])
                    at = pairs_at[g] + numbers[cells[g] + i - edges[block]]
                    for word in range(first >> 6, (last + 63) >> 6):
                        left = marks[word]
                        marks[word] = np.uint64(0)
                        while left:
                            j = (word << 6) + np.int64(_lowest_bit(left))  # type: ignore[call-arg]
                            left &= left - np.uint64(1)
                            columns[at], inner[at] = j - first, sums[j]
                            sums[j] = 0.0
                            at += 1
                    g += 1


@TileLoop
def pair_distances(first, last, blocks, runs, columns, x, out):
    """Compute |x_i - x_j|^2 of the pairs of tiles `first` to `last` - 1;  (n, p) -> (pairs,).

    The cost is 3 p flops per pair.
    """
    for k in prange(last - first):
        t = first + k
        row = first_row(blocks, t)
        for g in range(blocks.strips[t], blocks.strips[t + 1]):
            start, col = runs.pairs_at[g], first_column(blocks, t, g)
            for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                a = x[row + runs.rows[run]]
                for e in range(start, start + runs.sizes[run]):
                    out[e] = squared_distance(a, x[col + columns[e]])
                start += runs.sizes[run]


@TileLoop
def sparse_pair_distances(first, last, blocks, runs, columns, ptr, ind, val, out):
    """Compute |x_i - x_j|^2 of the pairs of tiles for sparse rows x;  -> (pairs,)."""
    for k in prange(last - first):
        t = first + k
        row = first_row(blocks, t)
        for g in range(blocks.strips[t], blocks.strips[t + 1]):
            start, col = runs.pairs_at[g], first_column(blocks, t, g)
            for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                i = row + runs.rows[run]
                a = slice(ptr[i], ptr[i + 1])
                for e in range(start, start + runs.sizes[run]):
                    j = col + columns[e]
                    b = slice(ptr[j], ptr[j + 1])
                    out[e] = sparse_squared_distance(ind[a], val[a], ind[b], val[b])
                start += runs.sizes[run]
