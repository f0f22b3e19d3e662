"""Numbers by which rows are recognised: hashes of x and z, and of y.

They tell which samples of a report a model was fitted on. They are no protection against forgery.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.parallel import slices
from .features import SparseFeatures
from .inputs import InputRows

# Rows are hashed in blocks, whose words take this many times the memory of a column.
BLOCK_ROWS = 2**16


def row_keys(rows: InputRows, vectors: Any) -> np.ndarray:
    """Return a hash of x and z for each row;  (n,) uint64;  O(n (p + d)).

    `vectors` are the x of these rows as vectors: an array, or sparse features.
    """
    found = np.empty(len(rows), np.uint64)
    for i in slices(len(rows), BLOCK_ROWS):
        Z, x = rows.Z[i], vectors[i]
        readable = _of_sparse(Z) if isinstance(Z, SparseFeatures) else _of_dense(Z.to_dense())
        inputs = _of_sparse(x) if isinstance(x, SparseFeatures) else _of_dense(x)
        found[i] = _mixed(readable + _mixed(inputs))
    return found


def keys_with_targets(keys: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return hashes of rows together with their targets;  (n,), (n,) -> (n,) uint64."""
    return _mixed(keys + _mixed(_words(y)))


def _words(values: np.ndarray) -> np.ndarray:
    """Return the bits of float64 numbers as integers; 0 and -0 have the same."""
    words: np.ndarray = np.ascontiguousarray(values + 0.0, dtype=np.float64).view(np.uint64)
    return words


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return integers whose bits are mixed by the last steps of the generator splitmix64."""
    with np.errstate(over="ignore"):
        mixed = words + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    result: np.ndarray = mixed ^ (mixed >> np.uint64(31))
    return result


def _places(columns: np.ndarray) -> np.ndarray:
    """Return an integer for each column, so that the same number in another one counts anew."""
    return _mixed(columns.astype(np.uint64))


def _of_dense(A: np.ndarray) -> np.ndarray:
    """Return a hash of each row of an array;  (n, c) -> (n,)."""
    with np.errstate(over="ignore"):
        hashes: np.ndarray = _mixed(_words(A) ^ _places(np.arange(A.shape[1]))).sum(
            axis=1, dtype=np.uint64
        )
    return hashes


def _of_sparse(A: SparseFeatures) -> np.ndarray:
    """Return a hash of the entries of each sparse row;  (n,)."""
    with np.errstate(over="ignore"):
        entries = _mixed(_words(A.values[A.span]) ^ _places(A.indices[A.span]))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])
        ends = A.pointers - A.pointers[0]
        hashes: np.ndarray = sums[ends[1:]] - sums[ends[:-1]]
    return hashes
