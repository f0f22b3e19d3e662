"""Strips of a sum of terms S = sum_t K_t o Z_t Z_t^T, as the loops of `kernel_tiles` use them.

All terms are packed into arrays, so that no loop is compiled again for another number of terms:

    kernel    (family, shape, scale, near, by_column, x_starts, z_starts); the first five (terms,)
    points    (left, right, x), in which the columns of one term follow those of another
    Z         (n, .), in which the scaled features Z Lambda_t^1/2 follow one another in this way

Term t has columns x_starts[t] to x_starts[t + 1] of x, two more of `left` and `right`, and columns
z_starts[t] to z_starts[t + 1] of Z. The kernel of a term without columns of x is constant.

Derivatives come as rows of sums, and the sums of one term follow those of another: 3 with the
derivatives of its profile and one for each of its columns of x (`dense.contract_profile`), then
one for each column l of its features, with K_ij z_il z_jl, which is the derivative by log lambda_l.
"""

from __future__ import annotations

import numpy as np

from . import jit
from .blas import gemm
from .dense import contract_profile, profile_of_row, refine_close_pairs
from .tiles import tile_rows

# A worker forms this many rows of a tile at once, which keeps its strips in the second-level cache.
STRIP_ROWS = 128


@jit
def _times_transposed(a, row, b, col, start, k, out):
    """out <- A B^T for columns `start` to start + k of a and b, from `row` and `col` on."""
    m, w = out.shape
    left, right = a.ravel()[row * a.shape[1] + start :], b.ravel()[col * b.shape[1] + start :]
    gemm(False, True, m, w, k, 1.0, left, a.shape[1], right, b.shape[1], 0.0, out.ravel(), w)


@jit
def _kernel_values(kernel, points, t, row, col, E, values):
    """values <- k_t of a strip, and E <- -s, unless the kernel is constant;  (m, w), (m, w)."""
    family, shape, scale, near, _, x_starts, _ = kernel
    left, right, x = points
    m, w = values.shape
    start, stop = x_starts[t], x_starts[t + 1]
    if start == stop:
        values[:] = scale[t]
        return
    _times_transposed(left, row, right, col, start + 2 * t, stop - start + 2, E)
    if near[t] > 0.0:
        own, other = x[row : row + m, start:stop], x[col : col + w, start:stop]
        refine_close_pairs(own, other, near[t], E)
    for r in range(m):
        profile_of_row(family[t], shape[t], scale[t], E[r], values[r])


@jit
def form_strip(kernel, points, Z, row, col, out):
    """out <- S of rows from `row` and columns from `col` on, as many as `out` has;  (m, w)."""
    z_starts = kernel[6]
    m, w = out.shape
    E, K, G = np.empty((m, w), Z.dtype), np.empty((m, w), Z.dtype), np.empty((m, w), Z.dtype)
    out[:] = 0
    for t in range(kernel[0].size):
        _kernel_values(kernel, points, t, row, col, E, K)
        _times_transposed(Z, row, Z, col, z_starts[t], z_starts[t + 1] - z_starts[t], G)
        for r in range(m):
            k, g, o = K[r], G[r], out[r]
            for c in range(w):
                o[c] += k[c] * g[c]


@jit
def contract_strip(kernel, points, Z, row, col, W, sums):
    """Add the sums over c of W_rc dS_rc to row r of `sums`;  (m, w) -> (m, width)."""
    x_starts, z_starts = kernel[5], kernel[6]
    m, w = W.shape
    E, K, G = np.empty((m, w), W.dtype), np.empty((m, w), W.dtype), np.empty((m, w), W.dtype)
    at = 0
    for t in range(kernel[0].size):
        p, start, d = x_starts[t + 1] - x_starts[t], z_starts[t], z_starts[t + 1] - z_starts[t]
        _kernel_values(kernel, points, t, row, col, E, K)
        for r in range(m):
            k, weights = K[r], W[r]
            for c in range(w):
                k[c] *= weights[c]
        product = np.empty((m, d), W.dtype)
        features, ld = Z.ravel()[col * Z.shape[1] + start :], Z.shape[1]
        gemm(False, False, m, d, w, 1.0, K.ravel(), w, features, ld, 0.0, product.ravel(), d)
        for r in range(m):
            for l in range(d):
                along = Z[row + r, start + l] * product[r, l]
                sums[r, at + 3 + p + l] += along
                if p == 0:
                    sums[r, at] += along / kernel[2][t]
        if p > 0:
            _times_transposed(Z, row, Z, col, start, d, G)
            for r in range(m):
                g, weights = G[r], W[r]
                for c in range(w):
                    g[c] *= weights[c]
            found = np.empty((3, m), W.dtype)
            contract_profile(kernel[0][t], kernel[1][t], E, G, found)
            for r in range(m):
                for s in range(3):
                    sums[r, at + s] += found[s, r]
            if kernel[4][t]:
                _add_squared_differences(G, points[2], x_starts[t], p, row, col, sums, at + 3)
        at += 3 + p + d


@jit
def _add_squared_differences(G, x, start, p, row, col, sums, at):
    """sums[r, at + k] += sum_c G_rc (x_rk - x_ck)^2 for p columns of x;  4 m w p flops.

    The sum is x_rk^2 sum_c G_rc - 2 x_rk (G x)_rk + (G x^2)_rk.
    """
    m, w = G.shape
    both, product = np.empty((w, 2 * p), G.dtype), np.empty((m, 2 * p), G.dtype)
    for c in range(w):
        for k in range(p):
            both[c, k] = x[col + c, start + k]
            both[c, p + k] = both[c, k] * both[c, k]
    right, out = both.ravel(), product.ravel()
    gemm(False, False, m, 2 * p, w, 1.0, G.ravel(), w, right, 2 * p, 0.0, out, 2 * p)
    for r in range(m):
        total = 0.0
        for c in range(w):
            total += G[r, c]
        for k in range(p):
            x_k = x[row + r, start + k]
            sums[r, at + k] += x_k * x_k * total - 2.0 * x_k * product[r, k] + product[r, p + k]


@jit
def form_tile(n, size, kernel, points, Z, i, j, ld, tile):
    """Write tile (i, j) of a sum of terms to `tile`, whose rows are `ld` apart."""
    w, col = tile_rows(n, size, j), j * size
    strip = np.empty((STRIP_ROWS, w), Z.dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m = min(STRIP_ROWS, tile_rows(n, size, i) - offset)
        S = strip[:m]
        form_strip(kernel, points, Z, i * size + offset, col, S)
        for r in range(m):
            at = (offset + r) * ld
            source, target = S[r], tile[at : at + w]
            for c in range(w):
                target[c] = source[c]


@jit
def contract_inverse_tile(n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total):
    """Add the sums of one tile of alpha alpha^T - C^-1 with the derivatives of all terms."""
    w, col = tile_rows(n, size, j), j * size
    strip = np.empty((STRIP_ROWS, w), Z.dtype)
    sums = np.empty((STRIP_ROWS, total.size), Z.dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m, row = min(STRIP_ROWS, tile_rows(n, size, i) - offset), i * size + offset
        W = strip[:m]
        for r in range(m):
            at = (offset + r) * ld
            a, end, weights = alpha[row + r], offset + r if i == j else w, W[r]
            below, columns = inverse[at : at + end], alpha[col : col + end]
            for c in range(end):
                weights[c] = 2.0 * (a * columns[c] - below[c])
            if i == j:
                weights[end] = a * a - inverse[at + end]
                weights[end + 1 :] = 0.0
        _add_contracted(kernel, points, Z, row, col, W, sums[:m], total)


@jit
def _add_contracted(kernel, points, Z, row, col, W, sums, total):
    """Add the sums of W with the derivatives of all terms to `total`; `sums` is overwritten."""
    sums[:] = 0.0
    contract_strip(kernel, points, Z, row, col, W, sums)
    for r in range(sums.shape[0]):
        source = sums[r]
        for k in range(total.size):
            total[k] += source[k]


@jit
def contract_product_tile(n, size, kernel, by_column, points, Z, left, right, i, j, total):
    """Add the sums of one tile of left right^T with the derivatives of all terms."""
    w, col = tile_rows(n, size, j), j * size
    strip = np.empty((STRIP_ROWS, w), left.dtype)
    sums = np.empty((STRIP_ROWS, total.size), left.dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m, row = min(STRIP_ROWS, tile_rows(n, size, i) - offset), i * size + offset
        W = strip[:m]
        _times_transposed(left, row, right, col, 0, left.shape[1], W)
        _add_contracted(kernel, points, Z, row, col, W, sums[:m], total)


@jit
def tangent_strip(n, size, kernel, by_column, points, squares, Z, row, m, v, out):
    """out_i <- the sums over j of v_j with the derivatives of all terms, between i and j."""
    out[row : row + m] = 0.0
    for col in range(0, n, size):
        w = min(size, n - col)
        W = np.empty((m, w), v.dtype)
        for r in range(m):
            W[r] = v[col : col + w]
        contract_strip(kernel, points, Z, row, col, W, out[row : row + m])
