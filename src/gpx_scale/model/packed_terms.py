"""Rows of a sum of terms S = sum_t K_t o Z_t Z_t^T, packed as compiled loops take them.

Z_t = Z Lambda_t^1/2 has the features of a term, scaled by the square roots of their variances. All
terms are in common arrays, whose layout `compiled.term_tiles` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import term_blocks as loops
from ..kernels.kernel import Profile
from ..runtime.parallel import slices
from ..runtime.tile_loops import TileLoop, tile_threads
from .cross_block import CALL_ENTRIES, CALL_FLOPS


@dataclass(frozen=True)
class PackedTerms:
    """The rows of several kernels, each with features of its own.

    `features` are the scaled features of each term, (n, d_t), in the dtype of the profiles. The
    derivatives of one term follow those of another: 3 + p_t sums of its kernel, and d_t by the
    logarithms of the variances of its columns.
    """

    profiles: tuple[Profile, ...]
    features: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.features[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of all arrays."""
        return self.profiles[0].left.dtype

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Return the numbers of derivatives of each term: of its kernel, and of its variances."""
        pairs = zip(self.profiles, self.features, strict=True)
        return [(3 + profile.points.shape[1], Z.shape[1]) for profile, Z in pairs]

    @property
    def width(self) -> int:
        """Return the number of derivatives of all terms."""
        return sum(map(sum, self.widths))

    def apart(self, sums: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the derivatives of each term by its kernel and by its variances.

        (width, ...) -> (3 + p_t, ...), (d_t, ...) for each term.
        """
        found, at = [], 0
        for of_kernel, of_variances in self.widths:
            cut, end = at + of_kernel, at + of_kernel + of_variances
            found.append((sums[at:cut], sums[cut:end]))
            at = end
        return found

    @cached_property
    def kernel(self) -> tuple[np.ndarray, ...]:
        """Return the kernels of all terms."""
        numbers = [
            np.array([getattr(profile, name) for profile in self.profiles], self.dtype)
            for name in ("shape", "scale", "near")
        ]
        families = np.array([profile.family for profile in self.profiles])
        by_column = np.array([profile.by_column for profile in self.profiles])
        x_starts = _starts([profile.points for profile in self.profiles])
        return families, *numbers, by_column, x_starts, _starts(self.features)

    @cached_property
    def points(self) -> tuple[np.ndarray, ...]:
        """Return the points of all kernels."""
        names = ("left", "right", "points")
        return tuple(
            np.ascontiguousarray(np.hstack([getattr(profile, name) for profile in self.profiles]))
            for name in names
        )

    @cached_property
    def Z(self) -> np.ndarray:
        """Return the scaled features of all terms, side by side."""
        return np.ascontiguousarray(np.hstack(self.features))


def _starts(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return where the columns of each array begin if they stand side by side, and the end."""
    return np.cumsum([0, *(array.shape[1] for array in arrays)])


@dataclass(frozen=True)
class TermBlock:
    """The block of S between rows a and b of a sum of terms.

    Loops use `n_jobs` threads, which do not change a result.
    """

    a: PackedTerms
    b: PackedTerms
    n_jobs: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns."""
        return len(self.a), len(self.b)

    @cached_property
    def _rows(self) -> tuple[Any, ...]:
        """Return both rows as loops take them: those of b follow those of a."""
        families, shape, scale, near, *rest = self.a.kernel
        near = np.maximum(near, self.b.kernel[3])
        both = zip(self.a.points, self.b.points, strict=True)
        points = tuple(np.concatenate(pair) for pair in both)
        return (families, shape, scale, near, *rest), points, np.concatenate([self.a.Z, self.b.Z])

    def contract(self, W: np.ndarray) -> np.ndarray:
        """Return the sums over j of W_ij with the derivatives of S_ij;  (a, b) -> (a, width).

        One kernel value per entry and term.
        """
        return self._contract(loops.contract_block, CALL_ENTRIES, self._contiguous(W))

    def contract_product(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return what `contract` does for W = U V^T, which is not stored;  (a, c), (b, c).

        U may have another precision: workers convert the rows that they use.
        """
        entries = min(CALL_ENTRIES, CALL_FLOPS / (2.0 * max(1, V.shape[1])))
        weights = np.ascontiguousarray(U), self._contiguous(V)
        return self._contract(loops.contract_product, entries, *weights)

    def _contract(self, loop: TileLoop, entries: float, *weights: np.ndarray) -> np.ndarray:
        """Return the result of `contract` by a loop that takes these weights."""
        count, columns = self.shape
        sums = np.zeros((count, self.a.width))
        chunks = max(1, int(entries / (loops.CHUNK_ROWS * max(1, columns))))
        with tile_threads(self.n_jobs) as threads:
            for rows in slices(count, chunks * loops.CHUNK_ROWS * self.n_jobs):
                threads.run(loop, *self._rows, rows.start, rows.stop, *weights, sums)
        return sums

    def _contiguous(self, A: np.ndarray) -> np.ndarray:
        """Return A in the one form that loops are compiled for: C-ordered, in their precision."""
        return np.ascontiguousarray(A, self.a.dtype)
