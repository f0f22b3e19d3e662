"""Parallel loops over the pairs of sparse rows: products and tangents.

The layout of tiles, strips, runs and pairs is that of pair_listing.py. A loop is given the rounds
`first` to `last` - 1, and those parts of `columns` and of the values that they have:
`offset` is the number of their first pair.

In a product, a tile adds to the rows of both of its blocks. So tiles come in rounds, in which no
two share a block: no two workers write to the same row, and the order of every sum does not depend
on the number of threads. Vectors come in panels of
PANEL_COLUMNS columns. Panels begin at cache lines, without which a pair takes 1.6 times as long.
"""

from __future__ import annotations

from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.tile_loops import TileLoop
from . import jit
from .pair_listing import first_column, first_row

# Columns of a product that are computed at once. In float32, a row of them is one cache line.
PANEL_COLUMNS = 16
# Partial sums of a run, by the dtype. An addition waits four cycles for the one before. Beside one
# partial sum, four take 0.79 of the time in float32 at a density of 0.2, and 0.95 at 0.03. Four
# panels of float64 would not fit into the registers of a processor without AVX-512.
PARTIAL_SUMS = {types.float32: 4, types.float64: 2}
# Rows that a worker copies into a panel at once.
PANEL_ROWS = 1024


class _Panels:
    """Vector instructions over panels of one dtype, while an intrinsic is built."""

    def __init__(self, context, builder, dtype):
        self.context, self.builder = context, builder
        kind = context.get_data_type(dtype)
        self.size = context.get_abi_sizeof(kind)
        self.wide = ir.VectorType(kind, PANEL_COLUMNS)
        self.zero = ir.Constant(self.wide, [0.0] * PANEL_COLUMNS)

    def data(self, kind, argument):
        """Return the address of an array's first entry."""
        return self.context.make_array(kind)(self.context, self.builder, argument).data

    def place(self, base, number):
        """Return the address of a panel's row."""
        start = self.builder.mul(number, ir.IntType(64)(PANEL_COLUMNS))
        return self.builder.bitcast(self.builder.gep(base, [start]), self.wide.as_pointer())

    def load(self, place):
        value = self.builder.load(place)
        value.align = self.size
        return value

    def store(self, value, place):
        self.builder.store(value, place).align = self.size

    def entry(self, base, number):
        """Return an entry of an array."""
        return self.builder.load(self.builder.gep(base, [number]))

    def everywhere(self, scalar):
        """Return a vector of equal numbers."""
        lane = ir.IntType(32)
        none = ir.Constant(self.wide, ir.Undefined)
        one = self.builder.insert_element(none, scalar, lane(0))
        mask = ir.Constant(ir.VectorType(lane, PANEL_COLUMNS), [0] * PANEL_COLUMNS)
        return self.builder.shuffle_vector(one, none, mask)

    def added(self, total, a, b):
        """Return total + a b, rounded once."""
        product = self.builder.fmul(a, b, flags=("contract",))
        return self.builder.fadd(total, product, flags=("contract",))


@intrinsic
def _run_times(typing, values, columns, start, stop, right, total, col, row):
    """Add the products of the pairs e of one run: row i = `row` with rows j_e = col + columns[e].

    total_i += sum_e v_e right_j and total_j += v_e right_i;  (n, PANEL_COLUMNS), i is none of j.
    The loop is written in vector instructions, with the sums in registers. Written out column by
    column, it takes 6.5 times as long, because numba does not vectorise across statements; as a
    loop over columns, 9 times.
    """

    def build(context, builder, signature, args):
        panels, word = _Panels(context, builder, values.dtype), ir.IntType(64)
        value_at, column_at = panels.data(values, args[0]), panels.data(columns, args[1])
        first = builder.mul(args[6], word(PANEL_COLUMNS))
        right_at, total_at = panels.data(right, args[4]), panels.data(total, args[5])
        right_cols, total_cols = (builder.gep(base, [first]) for base in (right_at, total_at))
        own, place = panels.load(panels.place(right_at, args[7])), panels.place(total_at, args[7])
        sums = [
            cgutils.alloca_once_value(builder, value)
            for value in [panels.load(place)] + [panels.zero] * (PARTIAL_SUMS[values.dtype] - 1)
        ]

        def pair(e, sum_):
            j = builder.zext(panels.entry(column_at, e), word)
            v = panels.everywhere(panels.entry(value_at, e))
            other = panels.load(panels.place(right_cols, j))
            builder.store(panels.added(builder.load(sum_), v, other), sum_)
            there = panels.place(total_cols, j)
            panels.store(panels.added(panels.load(there), v, own), there)

        start, stop, step = args[2], args[3], len(sums)
        rest = builder.add(start, builder.and_(builder.sub(stop, start), word(-step)))
        with cgutils.for_range_slice(builder, start, rest, word(step)) as (e, _):
            for k, sum_ in enumerate(sums):
                pair(builder.add(e, word(k)), sum_)
        with cgutils.for_range_slice(builder, rest, stop, word(1)) as (e, _):
            pair(e, sums[0])
        found = [builder.load(sum_) for sum_ in sums]
        while len(found) > 1:
            found = [builder.fadd(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        panels.store(found[0], place)
        return context.get_dummy_value()

    word = types.int64
    return types.void(values, columns, word, word, right, total, word, word), build


@TileLoop
def load_panel(V, column, right, total):
    """Copy columns of V from `column` on into the panel `right`, and set `total` to 0.

    (n, c) -> (n, PANEL_COLUMNS), (n, PANEL_COLUMNS). Columns that V does not have become 0.
    """
    n, c = V.shape
    for k in prange((n + PANEL_ROWS - 1) // PANEL_ROWS):
        for i in range(k * PANEL_ROWS, min(n, (k + 1) * PANEL_ROWS)):
            for l in range(PANEL_COLUMNS):
                right[i, l] = V[i, column + l] if column + l < c else 0.0
                total[i, l] = 0.0


@TileLoop
def store_panel(V, diagonal, column, total, out):
    """Compute columns of diag(diagonal) V + total from `column` on;  -> out (n, c)."""
    n, c = V.shape
    for k in prange((n + PANEL_ROWS - 1) // PANEL_ROWS):
        for i in range(k * PANEL_ROWS, min(n, (k + 1) * PANEL_ROWS)):
            for l in range(column, min(c, column + PANEL_COLUMNS)):
                out[i, l] = diagonal[i] * V[i, l] + total[i, l - column]


@jit
def _multiply_tile(t, blocks, runs, columns, offset, values, right, total):
    """Add the products of a tile and of its transpose to both of its blocks."""
    row, rows, sizes = first_row(blocks, t), runs.rows, runs.sizes
    for g in range(blocks.strips[t], blocks.strips[t + 1]):
        start, col = runs.pairs_at[g] - offset, first_column(blocks, t, g)
        for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
            i, stop = row + rows[run], start + sizes[run]
            _run_times(values, columns, start, stop, right, total, col, i)  # type: ignore[call-arg]
            start = stop


@TileLoop
def multiply_pairs(first, last, blocks, runs, columns, offset, values, right, total):
    """Add total += S right for the pairs of some rounds, in both triangles;  4 c flops per pair.

    values (pairs,), right and total (n, PANEL_COLUMNS), all of one dtype. The rows of a strip stay
    in the cache.
    """
    for one in range(first, last):
        for k in prange(blocks.rounds[one + 1] - blocks.rounds[one]):
            _multiply_tile(
                blocks.rounds[one] + k, blocks, runs, columns, offset, values, right, total
            )


@TileLoop
def add_tangents(first, last, blocks, runs, columns, offset, slopes, v, out):
    """Add out[:, s] += T_s v for matrices T_s that have the values slopes[s], in both triangles.

    slopes (s, pairs), v (n,) -> (n, s).
    """
    for one in range(first, last):
        for k in prange(blocks.rounds[one + 1] - blocks.rounds[one]):
            t = blocks.rounds[one] + k
            row = first_row(blocks, t)
            for g in range(blocks.strips[t], blocks.strips[t + 1]):
                col = first_column(blocks, t, g)
                for s in range(slopes.shape[0]):
                    slope, start = slopes[s], runs.pairs_at[g] - offset
                    for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                        i, stop = row + runs.rows[run], start + runs.sizes[run]
                        total = 0.0
                        for e in range(start, stop):
                            j = col + columns[e]
                            total += slope[e] * v[j]
                            out[j, s] += slope[e] * v[i]
                        out[i, s] += total
                        start = stop
