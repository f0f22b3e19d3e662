"""Compiled loops over sparse rows.

Sparse rows come as (pointers, indices, values), in the code `ptr`, `ind` and `val`: row i has the
entries from ptr[i] to ptr[i + 1]. The first pointer need not be 0, because a slice of rows shares
the arrays of the whole. Rows "by feature" are the entries sorted by feature, as `by_feature` makes
them: feature l has the entries from starts[l] to starts[l + 1] of `rows` and `values`.

Pairs of rows that share a feature are listed by tile. A tile has the pairs of the rows of one block
with those of another, whose rows are cut into strips of `strip` rows. Pairs are sorted by strip,
then by row. `at` (strips, a + 1) points into the arrays of the tile, and `cols` counts from the
first row of the strip.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import jit
from .dense import dot

# Columns of a product that are computed at once. In float32, a row of them is one cache line.
PANEL_COLUMNS = 16


@jit
def by_feature(ptr, ind, val, starts, rows, values):
    """Sort the entries of sparse rows by feature, and by row within a feature.

    `starts` (d + 1,) is zero before the call;  rows and values are (entries,).
    """
    for e in range(ptr[0], ptr[-1]):
        starts[ind[e] + 1] += 1
    for l in range(starts.size - 1):
        starts[l + 1] += starts[l]
    after = starts[:-1].copy()
    for j in range(ptr.size - 1):
        for e in range(ptr[j], ptr[j + 1]):
            t = after[ind[e]]
            rows[t], values[t] = j, val[e]
            after[ind[e]] = t + 1


@jit
def sparse_inner(ptr, ind, val, starts, rows, values, out):
    """Compute out_ij = <z_i, z'_j> of sparse rows i and rows j that come by feature;  (a, b).

    The cost is one addition per feature that two rows share.
    """
    for i in range(ptr.size - 1):
        o = out[i]
        for j in range(o.size):
            o[j] = 0
        for e in range(ptr[i], ptr[i + 1]):
            z = val[e]
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                o[rows[t]] += z * values[t]


@jit
def outer_rows(order, Z, V, out):
    """Compute out[i, l c + k] = z_jl v_jk, j = order_i;  (n, d), (n, c) -> (a, d c)."""
    c = V.shape[1]
    for i in range(order.size):
        z, v, o = Z[order[i]], V[order[i]], out[i]
        for l in range(z.size):
            for k in range(c):
                o[l * c + k] = z[l] * v[k]


@jit
def sparse_times(ptr, ind, val, right, out):
    """Compute out = A right for sparse rows A (a, m);  (m, c) -> (a, c)."""
    for i in range(ptr.size - 1):
        o = out[i]
        o[:] = 0
        for e in range(ptr[i], ptr[i + 1]):
            a, r = val[e], right[ind[e]]
            for k in range(o.size):
                o[k] += a * r[k]


@jit
def inner_rows(order, Z, A, out):
    """Compute out[j, k] = sum_l z_jl A[i, l c + k], j = order_i;  (n, d), (a, d c) -> (n, c).

    Only the rows of `out` that are in `order` (a,) are written.
    """
    c = out.shape[1]
    for i in range(order.size):
        z, a, o = Z[order[i]], A[i], out[order[i]]
        o[:] = 0
        for l in range(z.size):
            for k in range(c):
                o[k] += z[l] * a[l * c + k]


@jit
def couple(ptr, ind, val, weights, starts, rows, values, score):
    """Add score_j += sum_i weights_i sum_l |z_il z'_jl|;  (a,) -> (n,).

    Rows i are sparse, and rows j come by feature.
    """
    for i in range(ptr.size - 1):
        for e in range(ptr[i], ptr[i + 1]):
            z = weights[i] * abs(val[e])
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                score[rows[t]] += z * abs(values[t])


@jit
def count_pairs(strip, ptr, ind, starts, docs, size, below, counts):
    """Count the rows in strip s of a block that share a feature with row i, as counts[s, i].

    The block has `size` rows, which come by feature. `below` says that the rows i are those of the
    block itself, and then only rows before i are counted.
    """
    seen = np.full(size, -1, np.int64)
    for i in range(ptr.size - 1):
        for e in range(ptr[i], ptr[i + 1]):
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                j = docs[t]
                if below and j >= i:
                    break
                if seen[j] != i:
                    seen[j] = i
                    counts[j // strip, i] += 1


@jit
def fill_pairs(strip, ptr, ind, val, starts, docs, values, size, below, at, cols, inner):
    """List the pairs that `count_pairs` counted, with their inner products <z_i, z'_j>.

    cols and inner are (pairs,);  columns ascend within a row of a strip.
    """
    seen, sums = np.full(size, -1, np.int64), np.zeros(size)
    for i in range(ptr.size - 1):
        end = 0
        for e in range(ptr[i], ptr[i + 1]):
            z = val[e]
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                j = docs[t]
                if below and j >= i:
                    break
                if seen[j] != i:
                    seen[j] = i
                    sums[j] = 0.0
                    end = max(end, j + 1)
                sums[j] += z * values[t]
        for s in range(at.shape[0]):
            e = at[s, i]
            for j in range(s * strip, min(end, (s + 1) * strip)):
                if seen[j] == i:
                    cols[e] = j - s * strip
                    inner[e] = sums[j]
                    e += 1


@jit(reassociate=True)
def _squared_distance(a, b):
    """Return |a - b|^2 of two vectors;  (p,), (p,)."""
    total = 0.0
    for k in range(a.size):
        total += (a[k] - b[k]) * (a[k] - b[k])
    return total


@jit
def pair_distances(strip, at, cols, left, right, out):
    """Compute |x_i - x'_j|^2 of a tile's pairs, from differences;  (a, p), (b, p) -> (pairs,)."""
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            for e in range(at[s, i], at[s, i + 1]):
                out[e] = _squared_distance(left[i], right[s * strip + cols[e]])


@jit
def _sparse_squared_distance(ind_a, val_a, ind_b, val_b):
    """Return |a - b|^2 of two sparse rows with sorted indices, from differences."""
    total, s, t = 0.0, 0, 0
    while s < ind_a.size or t < ind_b.size:
        if t == ind_b.size or (s < ind_a.size and ind_a[s] < ind_b[t]):
            total += val_a[s] * val_a[s]
            s += 1
        elif s == ind_a.size or ind_b[t] < ind_a[s]:
            total += val_b[t] * val_b[t]
            t += 1
        else:
            total += (val_a[s] - val_b[t]) * (val_a[s] - val_b[t])
            s += 1
            t += 1
    return total


@jit
def sparse_pair_distances(strip, at, cols, ptr_a, ind_a, val_a, ptr_b, ind_b, val_b, out):
    """Compute |x_i - x'_j|^2 of a tile's pairs for sparse rows x;  -> (pairs,)."""
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            a = slice(ptr_a[i], ptr_a[i + 1])
            for e in range(at[s, i], at[s, i + 1]):
                j = s * strip + cols[e]
                b = slice(ptr_b[j], ptr_b[j + 1])
                out[e] = _sparse_squared_distance(ind_a[a], val_a[a], ind_b[b], val_b[b])


@jit
def refine_close_sparse(ptr_a, ind_a, val_a, ptr_b, ind_b, val_b, tolerance, E):
    """Recompute -s from differences for close pairs of sparse scaled points.

    E (a, b) is changed in place where -E < tolerance, as in `dense.refine_close_pairs`.
    """
    for i in range(E.shape[0]):
        a = slice(ptr_a[i], ptr_a[i + 1])
        for j in range(E.shape[1]):
            if -E[i, j] < tolerance:
                b = slice(ptr_b[j], ptr_b[j + 1])
                E[i, j] = -_sparse_squared_distance(ind_a[a], val_a[a], ind_b[b], val_b[b])


@intrinsic
def _row_times(typing, values, cols, start, stop, right, out, r, total):
    """Add total += sum_e v_e right[j_e] and out[j_e] += v_e r over the pairs e of one row.

    `right` and `out` are (b, PANEL_COLUMNS), `r` and `total` are (PANEL_COLUMNS,). The loop is
    written in vector instructions, with the sum in a register. Written out column by column, it
    takes 6.5 times as long, because numba does not vectorise across statements; as a loop over
    columns, 9 times.
    """

    def build(context, builder, signature, args):
        wide = ir.VectorType(context.get_data_type(values.dtype), PANEL_COLUMNS)
        word, lane = ir.IntType(64), ir.IntType(32)

        def data(kind, argument):
            return context.make_array(kind)(context, builder, argument).data

        def vector(base, row):
            place = builder.gep(base, [builder.mul(row, word(PANEL_COLUMNS))])
            return builder.bitcast(place, wide.as_pointer())

        def load(place):
            value = builder.load(place)
            value.align = context.get_abi_sizeof(context.get_data_type(values.dtype))
            return value

        def store(value, place):
            builder.store(value, place).align = context.get_abi_sizeof(
                context.get_data_type(values.dtype)
            )

        def added(sum_, a, b):
            return builder.fadd(sum_, builder.fmul(a, b, flags=("contract",)), flags=("contract",))

        value_at, col_at = data(values, args[0]), data(cols, args[1])
        right_at, out_at, r_at, total_at = (
            data(*pair) for pair in zip((right, out, r, total), args[4:], strict=True)
        )
        row, place = load(vector(r_at, word(0))), vector(total_at, word(0))
        sum_ = cgutils.alloca_once_value(builder, load(place))
        none, everywhere = (
            ir.Constant(wide, ir.Undefined),
            ir.Constant(ir.VectorType(lane, PANEL_COLUMNS), [0] * PANEL_COLUMNS),
        )
        with cgutils.for_range_slice(builder, args[2], args[3], word(1)) as (e, _):
            j = builder.zext(builder.load(builder.gep(col_at, [e])), word)
            one = builder.insert_element(none, builder.load(builder.gep(value_at, [e])), lane(0))
            v = builder.shuffle_vector(one, none, everywhere)
            builder.store(added(builder.load(sum_), v, load(vector(right_at, j))), sum_)
            there = vector(out_at, j)
            store(added(load(there), v, row), there)
        store(builder.load(sum_), place)
        return context.get_dummy_value()

    return types.void(values, cols, types.int64, types.int64, right, out, r, total), build


@jit
def pair_product(strip, at, cols, values, right_rows, right_cols, out_rows, out_cols):
    """Multiply a tile T and its transpose: out_rows += T right_cols, out_cols += T^T right_rows.

    values (pairs,), *_rows (a, PANEL_COLUMNS), *_cols (b, PANEL_COLUMNS), all of one dtype. Arrays
    are contiguous and begin at cache lines, without which a pair takes 1.6 times as long. The rows
    of right_cols and out_cols in a strip stay in the cache: at a density of 0.2, a pair takes
    1.1 ns on one core with strips of 128 rows, 1.4 with 512, and 1.7 with all 3,072 of a block.
    """
    for s in range(at.shape[0]):
        right, out = right_cols[s * strip : (s + 1) * strip], out_cols[s * strip : (s + 1) * strip]
        for i in range(at.shape[1] - 1):
            if at[s, i] < at[s, i + 1]:
                _row_times(
                    values, cols, at[s, i], at[s, i + 1], right, out, right_rows[i], out_rows[i]
                )  # type: ignore[call-arg]


@jit
def pair_weights(strip, at, cols, left_rows, right_rows, left_cols, right_cols, out):
    """Multiply out_ij *= u_i . v_j + v_i . u_j for a tile's pairs.

    u is `left_*` and v is `right_*`;  *_rows (a, c), *_cols (b, c) -> (pairs,).
    """
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            u, v = left_rows[i], right_rows[i]
            for e in range(at[s, i], at[s, i + 1]):
                j = s * strip + cols[e]
                out[e] *= dot(u, right_cols[j]) + dot(v, left_cols[j])


@jit
def pair_tangents(strip, at, cols, slopes, v_rows, v_cols, out_rows, out_cols):
    """Multiply vectors by tiles T_t that have the values slopes[t], and by their transposes.

    out_rows[:, t] += T_t v_cols and out_cols[:, t] += T_t^T v_rows.
    slopes (t, pairs), v_rows (a,), v_cols (b,) -> (a, t), (b, t).
    """
    for t in range(slopes.shape[0]):
        for s in range(at.shape[0]):
            for i in range(at.shape[1] - 1):
                total = 0.0
                for e in range(at[s, i], at[s, i + 1]):
                    j = s * strip + cols[e]
                    total += slopes[t, e] * v_cols[j]
                    out_cols[j, t] += slopes[t, e] * v_rows[i]
                out_rows[i, t] += total
