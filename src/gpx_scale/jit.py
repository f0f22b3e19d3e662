"""Every numba kernel: arrays in, `out` filled. A row at a time, so that what a row needs stays in the first-level cache.

A stationary kernel is theta1 f(s), s = |x - x'|^2 / theta2 >= 0. Its *profile* f and the *slope* h = -df/ds are

    family      f(s)                                 with a = r / lengthscale, lengthscale^2 = theta2 / 2
    RBF         exp(-s)
    MATERN12    exp(-a)                              a^2 = 2 s
    MATERN32    (1 + b) exp(-b)                      b^2 = 6 s
    MATERN52    (1 + b + b^2/3) exp(-b)              b^2 = 10 s
    RQ          (1 + s/shape)^-shape

Tiles `E` hold -s as it comes out of the GEMM, possibly a rounding above 0. dtype: all arrays and scalars float64, or all
float32.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .runtime import FASTMATH, jit

RBF, MATERN12, MATERN32, MATERN52, RQ = range(5)
PANEL = 16  # columns of a sparse product at once: of float32, one cache line a row

_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer
_F = np.float32
_LOG2E_32, _MAGIC_32 = _F(1.4426950408889634), _F(12582912.0)
_LN2_HIGH_32, _LN2_LOW_32 = _F(0.693359375), _F(-2.12194440e-4)
_ZERO_32, _ONE_32, _LOWEST_32 = _F(0.0), _F(1.0), _F(-87.0)
# Minimax on |r| <= ln(2)/2, from the Cephes library's published coefficients.
_P7, _P6, _P5 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_P4, _P3, _P2 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


def exp_negative(x: float) -> float:
    """exp(min(x, 0)) without a branch or a table: 2e-16 relative in float64 (0.8 ns an entry on one core, np.exp in
    numba 4.4), 1.2e-7 in float32. Below -708 (float32: -87) it stays at the smallest normal number, 3e-308 (1e-38)."""
    return math.exp(min(x, 0.0))


@overload(exp_negative, jit_options={"fastmath": FASTMATH})
def _exp_negative(x):
    if x == types.float32:

        def float32(x):
            x = max(min(x, _ZERO_32), _LOWEST_32)
            k = (x * _LOG2E_32 + _MAGIC_32) - _MAGIC_32
            r = (x - k * _LN2_HIGH_32) - k * _LN2_LOW_32
            p = (((((_P7 * r + _P6) * r + _P5) * r + _P4) * r + _P3) * r + _P2) * (r * r) + r + _ONE_32
            return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)

        return float32

    def float64(x):
        x = max(min(x, 0.0), -708.0)
        k = (x * 1.4426950408889634 + _MAGIC) - _MAGIC
        r = (x - k * _LN2_HIGH) - k * _LN2_LOW
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        p = p * r + 1.0
        return p * np.int64((np.int64(k) + 1023) << 52).view(np.float64)

    return float64


# Reductions alone may be reassociated: that is what lets the compiler keep several partial sums in a register.
@jit(reassociate=True)
def _sum(a):
    total = a.dtype.type(0)
    for j in range(a.size):
        total += a[j]
    return total


@jit(reassociate=True)
def _dot(a, b):
    total = a.dtype.type(0)
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@jit
def times_profile(family, shape, scale, E, out):
    """out *= scale f(-E);  (a, b), (a, b) -> (a, b);  the fused epilogue of a covariance tile."""
    real = E.dtype.type
    zero, one, third, two, six, ten = real(0), real(1), real(1 / 3), real(2), real(6), real(10)
    for i in range(E.shape[0]):
        e, o = E[i], out[i]
        if family == RBF:
            for j in range(e.size):
                o[j] *= scale * exp_negative(e[j])
        elif family == MATERN12:
            for j in range(e.size):
                o[j] *= scale * exp_negative(-np.sqrt(max(-e[j], zero) * two))
        elif family == MATERN32:
            for j in range(e.size):
                b = np.sqrt(max(-e[j], zero) * six)
                o[j] *= scale * (one + b) * exp_negative(-b)
        elif family == MATERN52:
            for j in range(e.size):
                b = np.sqrt(max(-e[j], zero) * ten)
                o[j] *= scale * (one + b + b * b * third) * exp_negative(-b)
        else:
            for j in range(e.size):
                o[j] *= scale * exp_negative(-shape * np.log1p(max(-e[j], zero) / shape))


@jit
def contract_profile(family, shape, E, G, sums):
    """sums[:, i] = sum_j of G f, G h s, G df/dlog(shape) of row i, and G *= h for the caller's per-dimension sums.

    (a, b), (a, b), (3, a);  E <- s. The second sum is the derivative along one common log(theta2).
    """
    real = E.dtype.type
    zero, one, third, half, two, six, ten = real(0), real(1), real(1 / 3), real(0.5), real(2), real(6), real(10)
    value = np.empty(E.shape[1], E.dtype)
    shaped = np.zeros(E.shape[1], E.dtype)
    for i in range(E.shape[0]):
        s, g = E[i], G[i]
        for j in range(s.size):
            s[j] = max(-s[j], zero)
        if family == RBF:
            for j in range(s.size):
                g[j] *= exp_negative(-s[j])
                value[j] = g[j]
        elif family == MATERN12:
            for j in range(s.size):
                a = np.sqrt(s[j] * two)
                value[j] = g[j] * exp_negative(-a)
                g[j] = value[j] / a if a > zero else zero  # h s -> 0 there: equal points have no difference to weigh
        elif family == MATERN32:
            for j in range(s.size):
                b = np.sqrt(s[j] * six)
                h = g[j] * exp_negative(-b)
                value[j] = h * (one + b)
                g[j] = h * (six * half)
        elif family == MATERN52:
            for j in range(s.size):
                b = np.sqrt(s[j] * ten)
                h = g[j] * exp_negative(-b)
                value[j] = h * (one + b + b * b * third)
                g[j] = h * (one + b) * (ten * third * half)
        else:
            for j in range(s.size):
                ratio = s[j] / shape
                log = np.log1p(ratio)
                value[j] = g[j] * exp_negative(-shape * log)
                g[j] = value[j] / (one + ratio)
                shaped[j] = g[j] * s[j] - value[j] * shape * log
        sums[0, i] = _sum(value)
        sums[1, i] = _dot(g, s)
        sums[2, i] = _sum(shaped)


@jit
def refine_close_pairs(left, right, tolerance, E):
    """Recompute -s by differences where the GEMM's cancellation shows: Matern 1/2 has a square root at s = 0.

    `left`, `right` are the scaled points (a, p), (b, p);  E (a, b) in place where -E < tolerance.
    """
    for i in range(E.shape[0]):
        for j in range(E.shape[1]):
            if -E[i, j] < tolerance:
                s = left.dtype.type(0)
                for k in range(left.shape[1]):
                    difference = left[i, k] - right[j, k]
                    s += difference * difference
                E[i, j] = -s


@jit
def evidence_weights(alpha_rows, alpha_cols, inverse, inner, diagonal, out):
    """out = weight (alpha alpha^T - C^-1) o <z, z'> of one lower tile, so that sum(out * dK) over all lower tiles is
    the sum over the whole symmetric matrix: 2 off the diagonal, 1 on it, 0 above it. (a, b) tiles, (a,), (b,)."""
    for i in range(out.shape[0]):
        a, c, z, o = alpha_rows[i], inverse[i], inner[i], out[i]
        if diagonal:
            for j in range(i):
                o[j] = 2.0 * (a * alpha_cols[j] - c[j]) * z[j]
            o[i] = (a * alpha_cols[i] - c[i]) * z[i]
            for j in range(i + 1, o.size):
                o[j] = 0.0
        else:
            for j in range(o.size):
                o[j] = 2.0 * (a * alpha_cols[j] - c[j]) * z[j]


# sparse rows
# Rows come as (pointers, indices, values), pointers not necessarily from 0: a slice of rows shares the arrays of the whole.


@jit
def by_feature(ptr, ind, val, starts, rows, values):
    """The rows' entries in the order of their features;  starts (d + 1,) of zeros, (entries,) x 2."""
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
    """out = <z_i, z'_j> of sparse rows (a, d) and rows that come by feature (b of them);  (a, b);  one addition a match."""
    for i in range(ptr.size - 1):
        o = out[i]
        for j in range(o.size):
            o[j] = 0
        for e in range(ptr[i], ptr[i + 1]):
            z = val[e]
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                o[rows[t]] += z * values[t]


@jit
def couple(ptr, ind, val, weights, starts, rows, values, score):
    """score_j += sum_i weights_i sum_l |z_il z'_jl| of sparse rows i and rows j that come by feature;  (a,) -> (n,)."""
    for i in range(ptr.size - 1):
        for e in range(ptr[i], ptr[i + 1]):
            z = weights[i] * abs(val[e])
            for t in range(starts[ind[e]], starts[ind[e] + 1]):
                score[rows[t]] += z * abs(values[t])


# Pairs of rows that share a feature are listed by tile: rows of a block, rows of another in strips of `strip`, in a strip by
# row. `at` (strips, a + 1) points into the tile's arrays; `cols` count from the strip's first row.


@jit
def count_pairs(strip, ptr, ind, starts, docs, size, below, counts):
    """counts[s, i] = number of rows in strip s of a block of `size` rows that share a feature with row i; the block comes by
    feature. `below`: the rows are those of the block, and only those before i count."""
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
    """The pairs that `count_pairs` counted, columns in order, and their inner products;  (pairs,) x 2."""
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
    total = 0.0
    for k in range(a.size):
        total += (a[k] - b[k]) * (a[k] - b[k])
    return total


@jit
def pair_distances(strip, at, cols, left, right, out):
    """out = |x_i - x'_j|^2 of a tile's pairs, by differences;  (a, p), (b, p) -> (pairs,)."""
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            for e in range(at[s, i], at[s, i + 1]):
                out[e] = _squared_distance(left[i], right[s * strip + cols[e]])


@jit
def _sparse_squared_distance(ind_a, val_a, ind_b, val_b):
    """By differences, merging two rows with sorted indices."""
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
    """The same for sparse x."""
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            a = slice(ptr_a[i], ptr_a[i + 1])
            for e in range(at[s, i], at[s, i + 1]):
                j = s * strip + cols[e]
                b = slice(ptr_b[j], ptr_b[j + 1])
                out[e] = _sparse_squared_distance(ind_a[a], val_a[a], ind_b[b], val_b[b])


@jit
def refine_close_sparse(ptr_a, ind_a, val_a, ptr_b, ind_b, val_b, tolerance, E):
    """`refine_close_pairs` for sparse scaled points;  E (a, b) in place where -E < tolerance."""
    for i in range(E.shape[0]):
        a = slice(ptr_a[i], ptr_a[i + 1])
        for j in range(E.shape[1]):
            if -E[i, j] < tolerance:
                b = slice(ptr_b[j], ptr_b[j + 1])
                E[i, j] = -_sparse_squared_distance(ind_a[a], val_a[a], ind_b[b], val_b[b])


@intrinsic
def _row_times(typing, values, cols, start, stop, right, out, r, total):
    """total += sum_e v_e right[j_e] and out[j_e] += v_e r over pairs e, PANEL columns wide.

    Written as vector instructions, with the sum in a register: written out column by column it takes 6.5 times as long (numba
    does not vectorise across statements), as a loop over columns 9 times.
    """

    def build(context, builder, signature, args):
        wide = ir.VectorType(context.get_data_type(values.dtype), PANEL)
        word, lane = ir.IntType(64), ir.IntType(32)

        def data(kind, argument):
            return context.make_array(kind)(context, builder, argument).data

        def vector(base, row):
            place = builder.gep(base, [builder.mul(row, word(PANEL))])
            return builder.bitcast(place, wide.as_pointer())

        def load(place):
            value = builder.load(place)
            value.align = context.get_abi_sizeof(context.get_data_type(values.dtype))
            return value

        def store(value, place):
            builder.store(value, place).align = context.get_abi_sizeof(context.get_data_type(values.dtype))

        def added(sum_, a, b):
            return builder.fadd(sum_, builder.fmul(a, b, flags=("contract",)), flags=("contract",))

        value_at, col_at = data(values, args[0]), data(cols, args[1])
        right_at, out_at, r_at, total_at = (data(*pair) for pair in zip((right, out, r, total), args[4:], strict=True))
        row, place = load(vector(r_at, word(0))), vector(total_at, word(0))
        sum_ = cgutils.alloca_once_value(builder, load(place))
        none, everywhere = ir.Constant(wide, ir.Undefined), ir.Constant(ir.VectorType(lane, PANEL), [0] * PANEL)
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
    """Both triangles of a tile times PANEL columns: out_rows += T right_cols, out_cols += T^T right_rows.

    (pairs,), (a, PANEL), (b, PANEL) of one dtype, all contiguous and at cache lines (else a pair takes 1.6 times as long).
    A strip's rows of right_cols and out_cols stay near the core: at a density of 0.2, a pair takes 1.1 ns on one core with
    strips of 128, 1.4 with 512, 1.7 with all 3,072 rows of a block."""
    for s in range(at.shape[0]):
        right, out = right_cols[s * strip : (s + 1) * strip], out_cols[s * strip : (s + 1) * strip]
        for i in range(at.shape[1] - 1):
            if at[s, i] < at[s, i + 1]:
                _row_times(values, cols, at[s, i], at[s, i + 1], right, out, right_rows[i], out_rows[i])  # type: ignore[call-arg]


@jit
def pair_weights(strip, at, cols, left_rows, right_rows, left_cols, right_cols, out):
    """out *= u_i . v_j + v_i . u_j of a tile's pairs;  (a, c), (b, c) each -> (pairs,)."""
    for s in range(at.shape[0]):
        for i in range(at.shape[1] - 1):
            u, v = left_rows[i], right_rows[i]
            for e in range(at[s, i], at[s, i + 1]):
                j = s * strip + cols[e]
                out[e] *= _dot(u, right_cols[j]) + _dot(v, left_cols[j])


@jit
def pair_tangents(strip, at, cols, slopes, v_rows, v_cols, out_rows, out_cols):
    """out_rows[:, t] += T_t v_cols, out_cols[:, t] += T_t^T v_rows for tiles T_t with values slopes[t];  (t, pairs)."""
    for t in range(slopes.shape[0]):
        for s in range(at.shape[0]):
            for i in range(at.shape[1] - 1):
                total = 0.0
                for e in range(at[s, i], at[s, i + 1]):
                    j = s * strip + cols[e]
                    total += slopes[t, e] * v_cols[j]
                    out_cols[j, t] += slopes[t, e] * v_rows[i]
                out_rows[i, t] += total
