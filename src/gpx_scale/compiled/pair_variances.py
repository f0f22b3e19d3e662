"""Parallel loops over the pairs of sparse rows by the variances of the weights.

The layout of tiles, strips, runs and pairs is that of pair_listing.py, and `first`, `last` and
`offset` are as in pair_tiles.py. Rows are those of Z Lambda^1/2, so that <z_i, z_j> has the
variances in it, and z_il z_jl is its derivative by the logarithm of the variance of column l.
Column l belongs to the free variance `numbers`[l].

A row is spread over all columns once for a run of pairs; each pair then takes the entries of its
other row.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .pair_listing import first_column, first_row


@jit
def _spread(ptr, ind, val, i, row):
    """Write the entries of row i into `row` (d,)."""
    for t in range(ptr[i], ptr[i + 1]):
        row[ind[t]] = val[t]


@jit
def _clear(ptr, ind, i, row):
    """Write zeros where row i has entries."""
    for t in range(ptr[i], ptr[i + 1]):
        row[ind[t]] = 0.0


@TileLoop
def pair_inner(first, last, blocks, runs, columns, ptr, ind, val, d, out):
    """Compute <z_i, z_j> of the pairs of tiles `first` to `last` - 1;  -> (pairs,)."""
    for k in prange(last - first):
        t = first + k
        top, row = first_row(blocks, t), np.zeros(d)
        for g in range(blocks.strips[t], blocks.strips[t + 1]):
            start, col = runs.pairs_at[g], first_column(blocks, t, g)
            for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                i, stop = top + runs.rows[run], start + runs.sizes[run]
                _spread(ptr, ind, val, i, row)
                for e in range(start, stop):
                    j, total = col + columns[e], 0.0
                    for s in range(ptr[j], ptr[j + 1]):
                        total += row[ind[s]] * val[s]
                    out[e] = total
                _clear(ptr, ind, i, row)
                start = stop


@TileLoop
def contract_variances(
    first, last, blocks, runs, columns, offset, K, ptr, ind, val, d, numbers, U, V, out
):
    """Add the sums of W_ij k_ij z_il z_jl over the pairs of some rounds, by free variances.

    W_ij = u_i.v_j + u_j.v_i, so that both triangles are in it. K (pairs,), U and V (n, c). Each
    tile has a row of `out` (tiles, f) for itself.
    """
    for one in range(first, last):
        for k in prange(blocks.rounds[one + 1] - blocks.rounds[one]):
            t = blocks.rounds[one] + k
            top, row, mine = first_row(blocks, t), np.zeros(d), out[t]
            for g in range(blocks.strips[t], blocks.strips[t + 1]):
                start, col = runs.pairs_at[g] - offset, first_column(blocks, t, g)
                for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                    i, stop = top + runs.rows[run], start + runs.sizes[run]
                    _spread(ptr, ind, val, i, row)
                    u, v = U[i], V[i]
                    for e in range(start, stop):
                        j, weight = col + columns[e], 0.0
                        for c in range(u.size):
                            weight += u[c] * V[j, c] + v[c] * U[j, c]
                        weight *= K[e]
                        for s in range(ptr[j], ptr[j + 1]):
                            mine[numbers[ind[s]]] += weight * row[ind[s]] * val[s]
                    _clear(ptr, ind, i, row)
                    start = stop


@TileLoop
def add_variance_tangents(
    first, last, blocks, runs, columns, offset, K, ptr, ind, val, d, numbers, v, out
):
    """Add out[i, f] += sum_j k_ij v_j sum_l z_il z_jl over the columns l of each free variance f.

    Both triangles of the pairs of some rounds are added. K (pairs,), v (n,) -> (n, f).
    """
    for one in range(first, last):
        for k in prange(blocks.rounds[one + 1] - blocks.rounds[one]):
            t = blocks.rounds[one] + k
            top, row = first_row(blocks, t), np.zeros(d)
            for g in range(blocks.strips[t], blocks.strips[t + 1]):
                start, col = runs.pairs_at[g] - offset, first_column(blocks, t, g)
                for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                    i, stop = top + runs.rows[run], start + runs.sizes[run]
                    _spread(ptr, ind, val, i, row)
                    for e in range(start, stop):
                        j, value = col + columns[e], K[e]
                        for s in range(ptr[j], ptr[j + 1]):
                            product, f = value * row[ind[s]] * val[s], numbers[ind[s]]
                            out[i, f] += product * v[j]
                            out[j, f] += product * v[i]
                    _clear(ptr, ind, i, row)
                    start = stop
