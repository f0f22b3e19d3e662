"""Parallel loops that form tiles of S = K o ZZ^T, and use each tile where it is formed.

A stationary kernel is given by its `kernel` = (family, shape, scale, near) and `points` =
(left, right, x), as `kernels.kernel.Profile` describes them: the product of `left` and `right`,
(n, p + 2) each, is -s, and pairs with s < near are computed from differences of x (n, p). Z is a
dense (n, d) matrix, or the tuple (ptr, ind, val, starts, docs, values) of a sparse one, its rows
and then its entries by feature (compiled/sparse.py). Tiles are cut as in `tiles`, and sums are in
their order, so the bits of a result do not depend on the number of threads.

S may also be a sum of terms, each with a kernel and features of its own. `kernel`, `points` and Z
then have the arrays of all terms, as `term_tiles` describes them. numba compiles the functions that
form and contract a tile for one form or the other.
"""

from __future__ import annotations

import numpy as np
from numba import prange, types
from numba.extending import overload

from ..runtime.tile_loops import TileLoop
from . import FASTMATH, jit, term_tiles
from .blas import gemm, lauum_lower, trmm_lower
from .dense import contract_profile, dot, profile_of_row, refine_close_pairs
from .tiles import (
    STRIP,
    add_tile_of_square,
    even_stride,
    from_both_ends,
    tile_at,
    tile_count,
    tile_pair,
    tile_rows,
    tile_start,
    tile_width,
)

# A worker forms this many rows of a tile at once. Two strips of 512 columns in float64 take 1 MB,
# the second-level cache of a core. Beside 128, strips of 32 rows take 1.1 times as long.
STRIP_ROWS = 128
# A worker adds up the partial sums of this many rows at once.
CHUNK_ROWS = 256


def inner_products(Z, row, col, out):
    """out <- <z_i, z_j> for rows i from `row` and j from `col` on, as many as `out` has."""


@overload(inner_products, jit_options={"fastmath": FASTMATH})
def _inner_products(Z, row, col, out):
    """Return the implementation for a dense Z, by a matrix product, or for a sparse one."""
    if isinstance(Z, types.Array):

        def dense(Z, row, col, out):
            times_transposed(Z, row, Z, col, out)

        return dense

    def sparse(Z, row, col, out):
        """Add one product for every feature that two rows share."""
        ptr, ind, val, starts, docs, values = Z
        m, w = out.shape
        for r in range(m):
            o = out[r]
            o[:] = 0
            for e in range(ptr[row + r], ptr[row + r + 1]):
                z = val[e]
                first, last = starts[ind[e]], starts[ind[e] + 1]
                first += np.searchsorted(docs[first:last], col)
                while first < last and docs[first] < col + w:
                    o[docs[first] - col] += z * values[first]
                    first += 1

    return sparse


@jit
def times_transposed(a, row, b, col, out):
    """out <- a[row:] b[col:]^T for as many rows of each as `out` has;  (., k), (., k) -> (m, w)."""
    m, w = out.shape
    k = a.shape[1]
    gemm(False, True, m, w, k, 1.0, a[row:].ravel(), k, b[col:].ravel(), k, 0.0, out.ravel(), w)


@jit
def _exponents(near, points, row, col, E):
    """E <- -s of a strip;  2 (p + 2) flops per entry, and differences where s < near."""
    left, right, x = points
    times_transposed(left, row, right, col, E)
    if near > 0.0:
        m, w = E.shape
        refine_close_pairs(x[row : row + m], x[col : col + w], near, E)


def is_sum(kernel):
    """Return whether the numba type of a `kernel` is that of a sum of terms."""
    return isinstance(kernel[0], types.Array)


def form_tile(n, size, kernel, points, Z, i, j, ld, tile):
    """Write tile (i, j) of S to `tile`, whose rows are `ld` apart."""


@overload(form_tile, jit_options={"fastmath": FASTMATH})
def _form_tile(n, size, kernel, points, Z, i, j, ld, tile):
    """Return the implementation for one kernel, or for a sum of terms."""
    form = term_tiles.form_tile if is_sum(kernel) else _form_tile_of_kernel

    def call(n, size, kernel, points, Z, i, j, ld, tile):
        form(n, size, kernel, points, Z, i, j, ld, tile)

    return call


# The compiler vectorises loops over slices. It does not vectorise a loop over A[at + c], because
# that index may be negative for all it knows.
@jit
def _form_tile_of_kernel(n, size, kernel, points, Z, i, j, ld, tile):
    """Write tile (i, j) of S with one kernel to `tile`, whose rows are `ld` apart."""
    family, shape, scale, near = kernel
    w, col = tile_rows(n, size, j), j * size
    strip_s = np.empty((STRIP_ROWS, w), points[0].dtype)
    strip_z = np.empty((STRIP_ROWS, w), points[0].dtype)
    values = np.empty(w, points[0].dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m = min(STRIP_ROWS, tile_rows(n, size, i) - offset)
        E, G = strip_s[:m], strip_z[:m]
        _exponents(near, points, i * size + offset, col, E)
        inner_products(Z, i * size + offset, col, G)
        for r in range(m):
            profile_of_row(family, shape, scale, E[r], values)
            at = (offset + r) * ld
            inner, target = G[r], tile[at : at + w]
            for c in range(w):
                target[c] = inner[c] * values[c]


@jit
def _form_tile_without_diagonal(n, size, kernel, points, Z, i, j, tile):
    """Write tile (i, j) of S, with zeros on the diagonal of S, to `tile`, which is `size` wide."""
    form_tile(n, size, kernel, points, Z, i, j, size, tile)
    if i == j:
        for r in range(tile_rows(n, size, i)):
            tile[r * size + r] = 0


@TileLoop
def fill_rows(n, size, packed, first, last, kernel, points, Z, diagonal, A):
    """Fill rows `first` to `last` - 1 of tiles with S, and with `diagonal` (n,) on its diagonal."""
    ld = tile_width(n, size, packed)
    before = first * (first + 1) // 2
    for t in prange(last * (last + 1) // 2 - before):
        i, j = tile_pair(before + t)
        tile = tile_at(n, size, packed, A, i, j)
        form_tile(n, size, kernel, points, Z, i, j, ld, tile)
        if i == j:
            for r in range(tile_rows(n, size, i)):
                tile[r * ld + r] = diagonal[i * size + r]


# Contractions.


@jit
def _contract_strip(kernel, by_column, x, row, col, E, G, total):
    """Add the sums of G with the derivatives of a profile f to `total` (3 + p,).

    E has -s and G the weights of a strip; both are overwritten. The sums are with f, with h s
    (h = -df/ds) and with df / dlog shape. If `by_column`, those with h (x_ik - x_jk)^2 for every
    column k follow.
    """
    family, shape = kernel[0], kernel[1]
    found = np.empty((3, E.shape[0]), E.dtype)
    contract_profile(family, shape, E, G, found)
    for r in range(E.shape[0]):
        for s in range(3):
            total[s] += found[s, r]
    if by_column:
        _add_squared_differences(G, x, row, col, total[3:])


@jit
def _add_squared_differences(G, x, row, col, total):
    """total_k += sum_rc G_rc (x_rk - x_ck)^2;  (m, w), (n, p) -> (p,);  2 m w p flops.

    The sum is that of x_rk^2 sum_c G_rc + x_ck^2 sum_r G_rc - 2 x_rk (G x)_rk.
    """
    m, w = G.shape
    p = x.shape[1]
    product = np.empty((m, p), G.dtype)
    gemm(False, False, m, p, w, 1.0, G.ravel(), w, x[col:].ravel(), p, 0.0, product.ravel(), p)
    by_column = np.zeros(w, G.dtype)
    for r in range(m):
        by_row = 0.0
        for c in range(w):
            by_row += G[r, c]
            by_column[c] += G[r, c]
        for k in range(p):
            x_k = x[row + r, k]
            total[k] += x_k * x_k * by_row - 2.0 * x_k * product[r, k]
    for c in range(w):
        for k in range(p):
            total[k] += x[col + c, k] ** 2 * by_column[c]


def contract_inverse_tile(n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total):
    """Add the sums of one tile of alpha alpha^T - C^-1 with dS, for both triangles, to `total`."""


@overload(contract_inverse_tile, jit_options={"fastmath": FASTMATH})
def _contract_inverse_tile(n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total):
    """Return the implementation for one kernel, or for a sum of terms."""
    contract = term_tiles.contract_inverse_tile if is_sum(kernel) else _contract_inverse_of_kernel

    def call(n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total):
        contract(n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total)

    return call


@jit
def _contract_inverse_of_kernel(
    n, size, kernel, by_column, points, Z, alpha, i, j, inverse, ld, total
):
    """Add the sums of one tile of (alpha alpha^T - C^-1) o ZZ^T, for both triangles, to `total`."""
    w, col = tile_rows(n, size, j), j * size
    strip_s = np.empty((STRIP_ROWS, w), points[0].dtype)
    strip_z = np.empty((STRIP_ROWS, w), points[0].dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m, row = min(STRIP_ROWS, tile_rows(n, size, i) - offset), i * size + offset
        E, G = strip_s[:m], strip_z[:m]
        _exponents(kernel[3], points, row, col, E)
        inner_products(Z, row, col, G)
        for r in range(m):
            at = (offset + r) * ld
            a, end, g = alpha[row + r], offset + r if i == j else w, G[r]
            below, columns = inverse[at : at + end], alpha[col : col + end]
            for c in range(end):
                g[c] *= 2.0 * (a * columns[c] - below[c])
            if i == j:
                g[end] *= a * a - inverse[at + end]
                g[end + 1 :] = 0.0
        _contract_strip(kernel, by_column, points[2], row, col, E, G, total)


@TileLoop
def contract_inverse(
    n, size, packed, first, last, kernel, by_column, points, Z, alpha, A, diagonal, sums
):
    """Contract (alpha alpha^T - C^-1) o ZZ^T with the derivatives of a kernel, tile by tile.

    A holds X = L^-1, so that tile (i, j) of C^-1 is the sum of X_ki^T X_kj over k from i on. It is
    formed, used and forgotten. `diagonal` (n,) gets the diagonal of C^-1, and row t of `sums` gets
    the sums of the t-th tile (`_contract_strip`). alpha is (n,).
    """
    ld = tile_width(n, size, packed)
    before = first * (first + 1) // 2
    count = last * (last + 1) // 2 - before
    stride = even_stride(count)
    for step in prange(count):
        number = before + step * stride % count
        i, j = tile_pair(number)
        m, w = tile_rows(n, size, i), tile_rows(n, size, j)
        inverse = np.empty(size * size, A.dtype)
        X = tile_at(n, size, packed, A, i, j)
        for r in range(m):
            inverse[r * size : r * size + w] = X[r * ld : r * ld + w]
        if i == j:
            lauum_lower(m, inverse, size)
        else:
            own = tile_at(n, size, packed, A, i, i)
            trmm_lower(True, True, m, w, 1.0, own, ld, inverse, size)
        for left in range(0, w, STRIP):
            add_tile_of_square(n, size, packed, A, i + 1, i, j, left, inverse, size)
        if i == j:
            for r in range(m):
                diagonal[i * size + r] = inverse[r * size + r]
        total = sums[number]
        contract_inverse_tile(
            n, size, kernel, by_column, points, Z, alpha, i, j, inverse, size, total
        )


def contract_product_tile(n, size, kernel, by_column, points, Z, left, right, i, j, total):
    """Add the sums of one tile of left right^T with dS to `total`."""


@overload(contract_product_tile, jit_options={"fastmath": FASTMATH})
def _contract_product_tile(n, size, kernel, by_column, points, Z, left, right, i, j, total):
    """Return the implementation for one kernel, or for a sum of terms."""
    contract = term_tiles.contract_product_tile if is_sum(kernel) else _contract_product_of_kernel

    def call(n, size, kernel, by_column, points, Z, left, right, i, j, total):
        contract(n, size, kernel, by_column, points, Z, left, right, i, j, total)

    return call


@jit
def _contract_product_of_kernel(n, size, kernel, by_column, points, Z, left, right, i, j, total):
    """Add the sums of one tile of (left right^T) o ZZ^T with the derivatives of a kernel."""
    w, col = tile_rows(n, size, j), j * size
    strip_s = np.empty((STRIP_ROWS, w), left.dtype)
    strip_z = np.empty((STRIP_ROWS, w), left.dtype)
    for offset in range(0, tile_rows(n, size, i), STRIP_ROWS):
        m, row = min(STRIP_ROWS, tile_rows(n, size, i) - offset), i * size + offset
        E, G = strip_s[:m], strip_z[:m]
        times_transposed(left, row, right, col, E)
        inner_products(Z, row, col, G)
        for r in range(m):
            for c in range(w):
                G[r, c] *= E[r, c]
        _exponents(kernel[3], points, row, col, E)
        _contract_strip(kernel, by_column, points[2], row, col, E, G, total)


@TileLoop
def contract_products(n, size, first, last, kernel, by_column, points, Z, left, right, sums):
    """Contract (left right^T) o ZZ^T with the derivatives of a kernel over lower tiles.

    left, right (n, c) are such that left right^T is symmetric. Row t of `sums` gets the sums of the
    t-th tile; off the diagonal, these stand for one triangle alone.
    """
    before = first * (first + 1) // 2
    for t in prange(last * (last + 1) // 2 - before):
        i, j = tile_pair(before + t)
        total = sums[before + t]
        contract_product_tile(n, size, kernel, by_column, points, Z, left, right, i, j, total)


def tangent_strip(n, size, kernel, by_column, points, squares, Z, row, m, v, out):
    """out[row : row + m] <- the sums over j of v_j dS_ij;  out (n, width)."""


@overload(tangent_strip, jit_options={"fastmath": FASTMATH})
def _tangent_strip(n, size, kernel, by_column, points, squares, Z, row, m, v, out):
    """Return the implementation for one kernel, or for a sum of terms."""
    contract = term_tiles.tangent_strip if is_sum(kernel) else _tangent_strip_of_kernel

    def call(n, size, kernel, by_column, points, squares, Z, row, m, v, out):
        contract(n, size, kernel, by_column, points, squares, Z, row, m, v, out)

    return call


@jit
def _tangent_strip_of_kernel(n, size, kernel, by_column, points, squares, Z, row, m, v, out):
    """out_i <- the sums over j of G_ij = v_j <z_i, z_j> with the derivatives of a kernel.

    The columns of `out` are those of `_contract_strip`. squares (n, 2 p) has x and x^2.
    """
    p = points[2].shape[1]
    found = np.empty((3, m), v.dtype)
    product = np.empty((m, 2 * p), v.dtype)
    out[row : row + m] = 0.0
    for col in range(0, n, size):
        w = min(size, n - col)
        E, G = np.empty((m, w), v.dtype), np.empty((m, w), v.dtype)
        _exponents(kernel[3], points, row, col, E)
        inner_products(Z, row, col, G)
        columns = v[col : col + w]
        for r in range(m):
            g = G[r]
            for c in range(w):
                g[c] *= columns[c]
        contract_profile(kernel[0], kernel[1], E, G, found)
        if by_column:
            right = squares[col:].ravel()
            gemm(
                False, False, m, 2 * p, w, 1.0, G.ravel(), w, right, 2 * p, 0.0,
                product.ravel(), 2 * p,
            )  # fmt: skip
        for r in range(m):
            for s in range(3):
                out[row + r, s] += found[s, r]
            if by_column:
                total = 0.0
                for c in range(w):
                    total += G[r, c]
                for k in range(p):
                    x_k = points[2][row + r, k]
                    out[row + r, 3 + k] += (
                        x_k * x_k * total - 2.0 * x_k * product[r, k] + product[r, p + k]
                    )


@TileLoop
def tangent_rows(n, size, first, last, kernel, by_column, points, squares, Z, v, out):
    """out_i <- the sums over j of v_j dS_ij, with the derivatives in the order of the tile loops.

    The loop is over strips `first` to `last` - 1 of rows, and takes n kernel values per row and
    term. squares (n, 2 p) has x and x^2 of a kernel; a sum of terms does not use it.
    """
    for t in prange(last - first):
        row = (first + t) * STRIP_ROWS
        m = min(STRIP_ROWS, n - row)
        tangent_strip(n, size, kernel, by_column, points, squares, Z, row, m, v, out)


# Products. Strips of tiles are divided among groups: column g of `order` lists the rows of tiles of
# group g, or -1, and each group adds to its own partial sums. There are as many groups on any
# machine, so the order of sums does not depend on the number of threads. A step of `order` has its
# strips from the longest to the shortest or back, so groups are visited from both ends.


@jit
def _add_rows(source, target):
    """target += source;  (m, c), (m, c)."""
    for r in range(source.shape[0]):
        s, t = source[r], target[r]
        for k in range(s.size):
            t[k] += s[k]


@jit
def _add_products(n, size, i, j, tile, V, product, total):
    """Add T V_j to rows i of `total` (n, c), and T^T V_i to rows j;  V (n, c)."""
    m, w, c = tile_rows(n, size, i), tile_rows(n, size, j), V.shape[1]
    right = V[j * size :].ravel()
    gemm(False, False, m, c, w, 1.0, tile, size, right, c, 0.0, product.ravel(), c)
    _add_rows(product[:m], total[i * size : i * size + m])
    if i != j:
        right = V[i * size :].ravel()
        gemm(True, False, w, c, m, 1.0, tile, size, right, c, 0.0, product.ravel(), c)
        _add_rows(product[:w], total[j * size : j * size + w])


@TileLoop
def multiply_stored(n, size, first, last, order, A, V, partial):
    """Add the products of strips order[first:last] of packed tiles A with V to `partial`.

    V (n, c), partial (groups, n, c). A diagonal tile holds both triangles.
    """
    for t in prange(order.shape[1]):
        g = from_both_ends(order.shape[1], t)
        product = np.empty((size, V.shape[1]), V.dtype)
        for step in range(first, last):
            i = order[step, g]
            for j in range(i + 1):
                tile = A[tile_start(n, size, True, i, j) :]
                _add_products(n, size, i, j, tile, V, product, partial[g])


@TileLoop
def multiply_formed(n, size, first, last, order, kernel, points, Z, V, partial):
    """Add the products of strips order[first:last] of S with V to `partial`, without its diagonal.

    V (n, c), partial (groups, n, c). Each tile is formed once, for all columns and both triangles.
    """
    for t in prange(order.shape[1]):
        g = from_both_ends(order.shape[1], t)
        product = np.empty((size, V.shape[1]), V.dtype)
        tile = np.empty(size * size, V.dtype)
        for step in range(first, last):
            i = order[step, g]
            for j in range(i + 1):
                _form_tile_without_diagonal(n, size, kernel, points, Z, i, j, tile)
                _add_products(n, size, i, j, tile, V, product, partial[g])


@TileLoop
def quadratic_formed(n, size, first, last, order, kernel, points, Z, X, partial):
    """Add the quadratic forms of strips order[first:last] of S with the rows of X to `partial`.

    X (c, n), partial (groups, c). The diagonal of S is left out. As each lower tile is used once,
    this takes n^2 c flops, half of those of a product.
    """
    c = X.shape[0]
    flat = X.ravel()
    for t in prange(order.shape[1]):
        g = from_both_ends(order.shape[1], t)
        product = np.empty((c, size), X.dtype)
        tile = np.empty(size * size, X.dtype)
        for step in range(first, last):
            i = order[step, g]
            for j in range(i + 1):
                m, w = tile_rows(n, size, i), tile_rows(n, size, j)
                _form_tile_without_diagonal(n, size, kernel, points, Z, i, j, tile)
                left = flat[j * size :]
                gemm(False, True, c, m, w, 1.0, left, n, tile, size, 0.0, product.ravel(), size)
                twice = 1.0 if i == j else 2.0
                for k in range(c):
                    partial[g, k] += twice * dot(product[k, :m], X[k, i * size : i * size + m])


@TileLoop
def multiply_rows(n, size, first, last, kernel, points, Z, X, out):
    """out <- X S for rows of tiles `first` to `last` - 1, without the diagonal of S.

    X, out (c, n). Each worker owns columns of `out`, so every tile of both triangles is formed. For
    hundreds of rows of X, which partial sums would be too large for, that takes little of the time.
    """
    c = X.shape[0]
    flat, found = X.ravel(), out.ravel()
    for t in prange(last - first):
        j = first + t
        tile = np.empty(size * size, X.dtype)
        w, target = tile_rows(n, size, j), found[j * size :]
        for i in range(tile_count(n, size)):
            m = tile_rows(n, size, i)
            _form_tile_without_diagonal(n, size, kernel, points, Z, i, j, tile)
            beta = 0.0 if i == 0 else 1.0
            gemm(False, False, c, w, m, 1.0, flat[i * size :], n, tile, size, beta, target, n)


@TileLoop
def add_partial_sums(diagonal, V, partial, first, out):
    """out[:, first:first + c] <- diag(diagonal) V + the sum of `partial` over groups.

    diagonal (n,), V (n, c), partial (groups, n, c). Workers take chunks of rows.
    """
    n, c = V.shape
    for t in prange((n + CHUNK_ROWS - 1) // CHUNK_ROWS):
        for r in range(t * CHUNK_ROWS, min(n, (t + 1) * CHUNK_ROWS)):
            target, v, d = out[r, first : first + c], V[r], diagonal[r]
            for k in range(c):
                target[k] = d * v[k]
            for g in range(partial.shape[0]):
                part = partial[g, r]
                for k in range(c):
                    target[k] += part[k]
