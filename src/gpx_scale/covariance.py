"""C = S + diag(D), S = K o ZZ^T, tile by tile: filled into a matrix, multiplied without one, contracted for the gradient.

Tiles do not depend on the number of workers, so neither does any sum over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import jit
from .inputs import DenseFeatures, Inputs
from .params import Params
from .runtime import Executor, lower_tiles, slices

TILE = 384  # rows and columns: measured best of 128-512 at n = 1437 and 4000, one and two threads


@dataclass(frozen=True)
class Covariance:
    """C of the training rows at given parameters."""

    data: Inputs
    params: Params
    executor: Executor

    @cached_property
    def points(self) -> Any:
        return self.params.kernel.points(self.data.x)

    @cached_property
    def noise(self) -> np.ndarray:
        """D, (n,)."""
        return self.params.noise(self.data.Z.squared())

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """C_ii = k_ii |z_i|^2 + D_i, analytic;  (n,)."""
        return self.params.kernel.diagonal(self.points) * self.data.Z.squared() + self.noise

    def _tile(self, rows: slice, cols: slice) -> np.ndarray:
        """S of a block of rows and columns."""
        out = self.data.Z[rows].inner(self.data.Z[cols])
        self.params.kernel.multiply(self.points[rows], self.points[cols], out)
        return out

    def fill_lower(self, out: np.ndarray, jitter: float = 0.0) -> None:
        """out's lower triangle <- C + jitter diag(C), float64 or rounded to out's dtype; above the diagonal, undefined.

        (n, n);  n^2/2 kernel values;  computed in float64 whatever out's dtype (the factor costs far more)."""
        self.points, self.diagonal  # noqa: B018  computed here, once, not by whichever worker comes first

        def fill(tile: tuple[slice, slice]) -> None:
            out[tile] = self._tile(*tile)

        self.executor.map(fill, lower_tiles(len(self), TILE))
        np.fill_diagonal(out, (1.0 + jitter) * self.diagonal)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """C V with tiles formed and thrown away, float64;  (n, c) -> (n, c);  n^2 kernel values and 2 n^2 c flops."""
        out = np.empty_like(V)
        columns = slices(len(self), 4 * TILE)
        noise, S_diagonal = self.noise, self.diagonal - self.noise

        def multiply(rows: slice) -> None:
            total = noise[rows, None] * V[rows]
            for cols in columns:
                tile = self._tile(rows, cols)
                first, last = max(rows.start, cols.start), min(rows.stop, cols.stop)
                if first < last:  # the diagonal is analytic here too
                    i = np.arange(first, last)
                    tile[i - rows.start, i - cols.start] = S_diagonal[i]
                total += tile @ V[cols]
            out[rows] = total

        self.executor.map(multiply, slices(len(self), TILE))
        return out

    def contract(self, alpha: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """sum_ij (alpha alpha^T - C^-1)_ij <z_i, z_j> dk_ij/dtheta, from the lower triangle of C^-1;  (n,), (n, n) -> (t,)."""
        Z, points, kernel = self.data.Z, self.points, self.params.kernel

        def one(tile: tuple[slice, slice]) -> np.ndarray:
            rows, cols = tile
            G = Z[rows].inner(Z[cols])
            jit.evidence_weights(alpha[rows], alpha[cols], inverse[tile], G, rows == cols, G)
            return kernel.contract(points[rows], points[cols], G).sum(axis=0)

        return np.sum(self.executor.map(one, lower_tiles(len(self), TILE)), axis=0)

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """(dS/dtheta_t) v for every parameter of the kernel;  (n,) -> (n, t);  n^2 kernel values."""
        Z, points, kernel = self.data.Z, self.points, self.params.kernel

        def one(rows: slice) -> np.ndarray:
            total = np.zeros((rows.stop - rows.start, kernel.theta.size))
            for cols in slices(len(self), TILE):
                G = Z[rows].inner(Z[cols])
                G *= v[cols]
                total += kernel.contract(points[rows], points[cols], G)
            return total

        return np.concatenate(self.executor.map(one, slices(len(self), TILE)))


def cross(kernel: Any, a: Any, b: Any, executor: Executor, Z: tuple[DenseFeatures, DenseFeatures] | None = None) -> np.ndarray:
    """k(a_i, b_j) for points a, b, times <z_i, z_j> where Z = (Z of a, Z of b) is given;  (m, n) in parallel tiles."""
    out = np.empty((len(a), len(b)))

    def fill(tile: tuple[slice, slice]) -> None:
        rows, cols = tile
        block = np.ones((rows.stop - rows.start, cols.stop - cols.start)) if Z is None else Z[0][rows].inner(Z[1][cols])
        kernel.multiply(a[rows], b[cols], block)
        out[tile] = block

    executor.map(fill, [(r, c) for r in slices(len(a), TILE) for c in slices(len(b), 4 * TILE)])
    return out
