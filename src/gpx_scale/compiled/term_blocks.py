"""Parallel loops over rectangular blocks of a sum of terms, between some rows and others.

`kernel`, `points` and Z are those of `term_tiles`, for the rows a of a block and then its columns
b: column j of a block is row a + j of the arrays. Each iteration of a loop owns the rows that it
writes, and adds to them in a fixed order, so the bits of a result do not depend on the number of
threads. All arrays but U and `sums` have one dtype.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..runtime.tile_loops import TileLoop
from . import jit
from .cross_blocks import CHUNK_ROWS as CHUNK_ROWS
from .cross_blocks import STRIP_COLUMNS
from .kernel_tiles import times_transposed
from .term_tiles import STRIP_ROWS, contract_strip


@jit
def _contract_weights(kernel, points, Z, row, col, W, sums):
    """Add the sums of W (rows, w), from `row` and `col` on, with the derivatives of all terms."""
    for offset in range(0, W.shape[0], STRIP_ROWS):
        stop = min(W.shape[0], offset + STRIP_ROWS)
        into = sums[row + offset : row + stop]
        contract_strip(kernel, points, Z, row + offset, col, W[offset:stop], into)


@TileLoop
def contract_block(kernel, points, Z, first, last, W, sums):
    """sums[first:last] += the sums over j of W_ij dS_ij;  (a, b) -> (a, width).

    The derivatives are in the order of `term_tiles`. One kernel value per entry and term.
    """
    a, b = W.shape
    for t in prange((last - first + CHUNK_ROWS - 1) // CHUNK_ROWS):
        start = first + t * CHUNK_ROWS
        stop = min(last, start + CHUNK_ROWS)
        for col in range(0, b, STRIP_COLUMNS):
            w = min(STRIP_COLUMNS, b - col)
            weights = np.empty((stop - start, w), W.dtype)
            for r in range(stop - start):
                weights[r] = W[start + r, col : col + w]
            _contract_weights(kernel, points, Z, start, a + col, weights, sums)


@TileLoop
def contract_product(kernel, points, Z, first, last, U, V, sums):
    """Contract as `contract_block` does, with weights W = U V^T;  (a, c), (b, c) -> (a, width).

    U may have another precision than all others. It takes 2 c flops more per entry, and W is never
    stored.
    """
    a, (b, c) = U.shape[0], V.shape
    for t in prange((last - first + CHUNK_ROWS - 1) // CHUNK_ROWS):
        start = first + t * CHUNK_ROWS
        stop = min(last, start + CHUNK_ROWS)
        own = np.empty((stop - start, c), V.dtype)
        for r in range(stop - start):
            source, target = U[start + r], own[r]
            for k in range(c):
                target[k] = source[k]
        for col in range(0, b, STRIP_COLUMNS):
            weights = np.empty((stop - start, min(STRIP_COLUMNS, b - col)), V.dtype)
            times_transposed(own, 0, V, col, weights)
            _contract_weights(kernel, points, Z, start, a + col, weights, sums)
