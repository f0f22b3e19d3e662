"""Compiled loops over sparse rows.

Sparse rows come as (pointers, indices, values), in the code `ptr`, `ind` and `val`: row i has the
entries from ptr[i] to ptr[i + 1]. The first pointer need not be 0, because a slice of rows shares
the arrays of the whole. Rows "by feature" are the entries sorted by feature, as `by_feature` makes
them: feature l has the entries from starts[l] to starts[l + 1] of `rows` and `values`.
"""

from __future__ import annotations

from . import jit


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


@jit(reassociate=True)
def squared_distance(a, b):
    """Return |a - b|^2 of two vectors;  (p,), (p,)."""
    total = 0.0
    for k in range(a.size):
        total += (a[k] - b[k]) * (a[k] - b[k])
    return total


@jit
def sparse_squared_distance(ind_a, val_a, ind_b, val_b):
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
def refine_close_sparse(ptr_a, ind_a, val_a, ptr_b, ind_b, val_b, tolerance, E):
    """Recompute -s from differences for close pairs of sparse scaled points.

    E (a, b) is changed in place where -E < tolerance, as in `dense.refine_close_pairs`.
    """
    for i in range(E.shape[0]):
        a = slice(ptr_a[i], ptr_a[i + 1])
        for j in range(E.shape[1]):
            if -E[i, j] < tolerance:
                b = slice(ptr_b[j], ptr_b[j + 1])
                E[i, j] = -sparse_squared_distance(ind_a[a], val_a[a], ind_b[b], val_b[b])
