"""Parallel loops over queries and the rows near them, for a sum of terms.

`kernel`, `points` and Z are those of `term_tiles`. Row i of `rows` (b, k) has the numbers of the
rows near query i, of which `counts[i]` are in use. A query owns what it writes, so the bits of a
result do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .term_tiles import form_strip


@jit
def some_rows(A, rows):
    """Return the given rows of A;  (n, c), (r,) -> (r, c)."""
    found = np.empty((rows.size, A.shape[1]), A.dtype)
    for j in range(rows.size):
        source, target = A[rows[j]], found[j]
        for c in range(A.shape[1]):
            target[c] = source[c]
    return found


@jit
def points_of(points, rows):
    """Return the points of the given rows, for all terms."""
    left, right, x = points
    return some_rows(left, rows), some_rows(right, rows), some_rows(x, rows)


@TileLoop
def fill_blocks(kernel, points, Z, variances, rows, counts, T):
    """T <- S between the rows near each query, with `variances` (b, k) on its diagonal;  (b, k, k).

    p + 2 d flops and a kernel value per entry and term.
    """
    for i in prange(len(counts)):
        r = counts[i]
        if r == 0:
            continue
        mine, S = rows[i, :r], np.empty((r, r))
        form_strip(kernel, points_of(points, mine), some_rows(Z, mine), 0, 0, S)
        for j in range(r):
            T[i, j, :r] = S[j]
            T[i, j, j] = variances[i, j]
