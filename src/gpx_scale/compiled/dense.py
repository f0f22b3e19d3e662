"""Compiled loops over dense tiles of matrices.

They write their results to an argument `out`, one row at a time, so that the numbers in use stay in
the first cache.

A stationary kernel is theta1 f(s) with s = |x - x'|^2 / theta2 >= 0. Its profile f is given below,
and its slope is h = -df/ds.

    family      f(s)                                 with a = |x - x'| / lengthscale,
                                                     lengthscale^2 = theta2 / 2
    RBF         exp(-s)
    MATERN12    exp(-a)                              a^2 = 2 s
    MATERN32    (1 + b) exp(-b)                      b^2 = 6 s
    MATERN52    (1 + b + b^2/3) exp(-b)              b^2 = 10 s
    RQ          (1 + s/shape)^-shape

Tiles `E` hold -s as it comes out of a matrix product, so an entry may be above 0 by a rounding
error. All arrays and scalars of a call are float64, or all are float32.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from . import FASTMATH, jit

# The families of stationary kernels, as the loops know them.
RBF, MATERN12, MATERN32, MATERN52, RQ = range(5)

# ln(2) as a sum of two numbers. Products of the first one with a small whole number are exact.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
# 1.5 * 2^52. Adding and subtracting this number rounds to a whole number.
_ROUNDING = 6755399441055744.0
# The same constants in float32. `_ROUNDING_32` is 1.5 * 2^23.
_F = np.float32
_LOG2E_32 = _F(1.4426950408889634)
_ROUNDING_32 = _F(12582912.0)
_LN2_HIGH_32 = _F(0.693359375)
_LN2_LOW_32 = _F(-2.12194440e-4)
_ZERO_32 = _F(0.0)
_ONE_32 = _F(1.0)
# Below this number, the exponential would leave the normal numbers of float32.
_LOWEST_32 = _F(-87.0)
# The coefficients of a minimax polynomial on |r| <= ln(2)/2, as published in the Cephes library.
_P7, _P6, _P5 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_P4, _P3, _P2 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


def exp_negative(x: float) -> float:
    """Return exp(min(x, 0)), computed without a branch or a table.

    The relative error is 2e-16 in float64 and 1.2e-7 in float32. Below -708 (in float32, -87) the
    result stays at the smallest normal number, 3e-308 (1e-38). In float64, an entry takes 0.8 ns on
    one core, where np.exp in numba takes 4.4 ns.
    """
    return math.exp(min(x, 0.0))


@overload(exp_negative, jit_options={"fastmath": FASTMATH})
def _exp_negative(x):
    """Return the compiled `exp_negative` for the type of x: exp(x) = 2^k exp(r), |r| <= ln(2)/2."""
    if x == types.float32:

        def float32(x):
            x = max(min(x, _ZERO_32), _LOWEST_32)
            k = (x * _LOG2E_32 + _ROUNDING_32) - _ROUNDING_32
            r = (x - k * _LN2_HIGH_32) - k * _LN2_LOW_32
            p = (
                (((((_P7 * r + _P6) * r + _P5) * r + _P4) * r + _P3) * r + _P2) * (r * r)
                + r
                + _ONE_32
            )
            return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)

        return float32

    def float64(x):
        x = max(min(x, 0.0), -708.0)
        k = (x * 1.4426950408889634 + _ROUNDING) - _ROUNDING
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


# Only these sums may be reassociated, which lets the compiler keep several partial sums in a
# register.
@jit(reassociate=True)
def _sum(a):
    """Return the sum of a vector;  (n,)."""
    total = a.dtype.type(0)
    for j in range(a.size):
        total += a[j]
    return total


@jit(reassociate=True)
def dot(a, b):
    """Return the inner product of two vectors;  (n,), (n,)."""
    total = a.dtype.type(0)
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@jit(inline=True)
def profile_of_row(family, shape, scale, e, out):
    """Compute a kernel: out <- scale f(-e);  (b,) -> (b,).

    The compiler does not vectorise a call in which both are the same array.
    """
    real = e.dtype.type
    zero, one, third, two, six, ten = real(0), real(1), real(1 / 3), real(2), real(6), real(10)
    if family == RBF:
        for j in range(e.size):
            out[j] = scale * exp_negative(e[j])
    elif family == MATERN12:
        for j in range(e.size):
            out[j] = scale * exp_negative(-np.sqrt(max(-e[j], zero) * two))
    elif family == MATERN32:
        for j in range(e.size):
            b = np.sqrt(max(-e[j], zero) * six)
            out[j] = scale * (one + b) * exp_negative(-b)
    elif family == MATERN52:
        for j in range(e.size):
            b = np.sqrt(max(-e[j], zero) * ten)
            out[j] = scale * (one + b + b * b * third) * exp_negative(-b)
    else:
        for j in range(e.size):
            out[j] = scale * exp_negative(-shape * np.log1p(max(-e[j], zero) / shape))


@jit
def times_profile(family, shape, scale, E, out):
    """Multiply a tile by a kernel: out *= scale f(-E);  (a, b), (a, b).

    To make a covariance tile, `out` holds the inner products <z_i, z_j> before the call.
    """
    values = np.empty(E.shape[1], E.dtype)
    for i in range(E.shape[0]):
        profile_of_row(family, shape, scale, E[i], values)
        o = out[i]
        for j in range(o.size):
            o[j] *= values[j]


@jit
def contract_profile(family, shape, E, G, sums):
    """Contract the derivatives of a kernel with weights G, row by row;  (a, b), (a, b), (3, a).

    sums[0, i] = sum_j G_ij f_ij
    sums[1, i] = sum_j G_ij h_ij s_ij             the derivative by one common log(theta2)
    sums[2, i] = sum_j G_ij df_ij / dlog(shape)   0 but for RQ

    At the end, E holds s and G holds G h, from which the caller computes the derivatives by the
    log(theta2) of each column of X.
    """
    real = E.dtype.type
    zero, one, third, half, two, six, ten = (
        real(0),
        real(1),
        real(1 / 3),
        real(0.5),
        real(2),
        real(6),
        real(10),
    )
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
                # h is infinite at s = 0, but h s is 0 there, and so are all differences.
                g[j] = value[j] / a if a > zero else zero
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
        sums[1, i] = dot(g, s)
        sums[2, i] = _sum(shaped)


@jit
def refine_close_pairs(left, right, tolerance, E):
    """Recompute -s from differences for close pairs, where a matrix product cancels digits.

    Matern 1/2 needs this, because it has a square root at s = 0. `left` and `right` are the scaled
    points;  (a, p), (b, p);  E (a, b) is changed in place where -E < tolerance.
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
    """Fill one tile of the lower triangle with the weights of dK in the evidence's gradient.

    out_ij = c_ij (alpha_i alpha_j - (C^-1)_ij) <z_i, z_j>, with c = 2 below the diagonal, 1 on it
    and 0 above it, so that the sum of out * dK over all lower tiles is that over the whole
    symmetric matrix. `diagonal` says whether the tile lies on the diagonal.
    (a,), (b,), (a, b), (a, b) -> (a, b).
    """
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
