"""C = S + diag(D), S = K o ZZ^T, as an operator over tiles: recomputed for every product, or stored.

    Covariance     tiles formed, used for all columns of a product, and thrown away
    Stored         the lower tiles kept in float32: n^2/2 numbers, one read of them a product

Tiles and the order of every sum do not depend on the number of workers, so neither does any result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import dense as dense_loops
from ..data.inputs import TrainingRows
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import cross
from ..runtime.parallel import TILE, Executor, lower_tiles, slices

STRIP, WIDE = 512, 1024  # rows and columns of a product's tiles: a float32 tile stays in the second-level cache
GROUPS = 16  # partial sums of a product, each owned by one worker
COLUMNS = 64  # of a product at once: what bounds the partial sums


@dataclass(frozen=True)
class Covariance:
    """C of the training rows at given parameters; tiles are formed in `dtype`, products added up in float64."""

    data: TrainingRows
    params: Hyperparameters
    executor: Executor
    dtype: Any = np.float64

    @cached_property
    def points(self) -> Any:
        return self.params.kernel.prepare(self.data.x, self.dtype)

    @cached_property
    def features(self) -> Any:
        """Z in the tiles' dtype."""
        return self.data.Z.astype(self.dtype)

    @cached_property
    def noise(self) -> np.ndarray:
        """D, (n,)."""
        return self.params.noise(self.data.Z.squared_norms())

    @cached_property
    def noise_tangents(self) -> np.ndarray:
        """dD by the logs of sigma_w and sigma_y;  (n, 2)."""
        along_w = 2.0 * self.params.sigma_w**2 * self.data.Z.squared_norms()
        return np.column_stack([along_w, np.full(len(self), 2.0 * self.params.sigma_y**2)])

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """C_ii = k_ii |z_i|^2 + D_i, analytic;  (n,)."""
        return self.params.kernel.diagonal(self.points) * self.data.Z.squared_norms() + self.noise

    def _prepare(self) -> None:
        """What tiles share is computed here, once, not by whichever worker comes first."""
        self.points, self.features, self.diagonal  # noqa: B018

    def _form(self, rows: slice, cols: slice) -> np.ndarray:
        """S of a block of rows and columns; 0 on the diagonal of C, which is analytic and added by whoever sums."""
        out = self.features[rows].inner_products(self.features[cols])
        self.params.kernel.multiply(self.points[rows], self.points[cols], out)
        if rows == cols:
            np.fill_diagonal(out, 0.0)
        return out

    def columns(self, index: np.ndarray) -> np.ndarray:
        """S[:, index], float64;  (r,) -> (n, r)."""
        Z, kernel, points = self.data.Z, self.params.kernel, self.params.kernel.prepare(self.data.x)
        out = cross(kernel, points, points[index], self.executor, (Z, Z[index]))
        out[index, np.arange(index.size)] = (self.diagonal - self.noise)[index]
        return out

    def fill_lower(self, out: np.ndarray, jitter: float = 0.0) -> None:
        """out's lower triangle <- C + jitter diag(C), float64 or rounded to out's dtype; above the diagonal, undefined.

        (n, n);  n^2/2 kernel values."""
        self._prepare()

        def fill(tile: tuple[slice, slice]) -> None:
            out[tile] = self._form(*tile)

        self.executor.map(fill, lower_tiles(len(self), TILE))
        np.fill_diagonal(out, (1.0 + jitter) * self.diagonal)

    _tile = _form  # what a product reads

    @property
    def _product_dtype(self) -> Any:
        return self.dtype

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """C V;  (n, c) -> (n, c);  each lower tile serves all columns and both triangles: 2 n^2 c flops."""
        self._prepare()
        groups = _dealt(slices(len(self), STRIP), GROUPS)
        out = self.diagonal[:, None] * V
        for chunk in slices(V.shape[1], COLUMNS):
            right = np.ascontiguousarray(V[:, chunk], self._product_dtype)

            def multiply(strips: list[slice], right: np.ndarray = right) -> np.ndarray:
                total = np.zeros(right.shape)
                for rows in strips:
                    for cols in slices(rows.start, WIDE):
                        T = self._tile(rows, cols)
                        total[rows] += T @ right[cols]
                        total[cols] += T.T @ right[rows]
                    total[rows] += self._tile(rows, rows) @ right[rows]
                return total

            parts = self.executor.map(multiply, groups)

            def add(rows: slice, parts: list[np.ndarray] = parts, chunk: slice = chunk) -> None:
                for part in parts:
                    out[rows, chunk] += part[rows]

            self.executor.map(add, slices(len(self), 4 * STRIP))
        return out

    def contract(self, alpha: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """sum_ij (alpha alpha^T - C^-1)_ij dC_ij by every parameter, from C^-1's lower triangle;  (n,), (n, n) -> (t,)."""

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            dense_loops.evidence_weights(alpha[rows], alpha[cols], inverse[rows, cols], G, rows == cols, G)

        q = alpha**2 - inverse.diagonal()
        return np.concatenate([self._contract_tiles(weigh), q @ self.noise_tangents])

    def contract_pairs(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """sum_c u_c^T dC v_c by every parameter;  (n, c), (n, c) -> (t,);  n^2/2 kernel values."""
        left, right = np.hstack([U, V]).astype(self.dtype), np.hstack([V, U]).astype(self.dtype)

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            G *= left[rows] @ right[cols].T
            if rows == cols:
                G *= G.dtype.type(0.5)  # both triangles of a diagonal tile are there

        return np.concatenate([self._contract_tiles(weigh), np.einsum("ij,ij->i", U, V) @ self.noise_tangents])

    def _contract_tiles(self, weigh: Any) -> np.ndarray:
        """sum over lower tiles of G_ij dk_ij/dtheta, G = <z_i, z_j> weighed in place;  -> (t of the kernel,)."""
        self._prepare()
        kernel = self.params.kernel

        def one(tile: tuple[slice, slice]) -> np.ndarray:
            rows, cols = tile
            G = self.features[rows].inner_products(self.features[cols])
            weigh(rows, cols, G)
            return kernel.contract_gradient(self.points[rows], self.points[cols], G).sum(axis=0, dtype=float)

        return np.sum(self.executor.map(one, lower_tiles(len(self), TILE)), axis=0)

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """(dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  n^2 kernel values."""
        self._prepare()
        kernel, right = self.params.kernel, v.astype(self.dtype)

        def one(rows: slice) -> np.ndarray:
            total = np.zeros((rows.stop - rows.start, kernel.theta.size))
            for cols in slices(len(self), TILE):
                G = self.features[rows].inner_products(self.features[cols])
                G *= right[cols]
                total += kernel.contract_gradient(self.points[rows], self.points[cols], G)
            return total

        along_kernel = np.concatenate(self.executor.map(one, slices(len(self), TILE)))
        return np.hstack([along_kernel, v[:, None] * self.noise_tangents])


@dataclass(frozen=True)
class StoredCovariance(Covariance):
    """C with its lower tiles kept, in float32 whatever they were formed in;  2 n^2 bytes and a strip."""

    @cached_property
    def strips(self) -> list[np.ndarray]:
        super()._prepare()

        def form(rows: slice) -> np.ndarray:
            strip = np.empty((rows.stop - rows.start, rows.stop), np.float32)
            for cols in (*slices(rows.start, STRIP), rows):
                strip[:, cols] = self._form(rows, cols)
            return strip

        cuts = slices(len(self), STRIP)[::-1]  # the longest first, so that no worker ends with one
        return self.executor.map(form, cuts)[::-1]

    def _prepare(self) -> None:
        super()._prepare()
        self.strips  # noqa: B018

    def _tile(self, rows: slice, cols: slice) -> np.ndarray:
        return self.strips[rows.start // STRIP][:, cols]

    @property
    def _product_dtype(self) -> Any:
        return np.float32


def _dealt(cuts: list[slice], hands: int) -> list[list[slice]]:
    """Strips dealt to and fro, so that every hand has about as much of the triangle."""
    dealt: list[list[slice]] = [[] for _ in range(min(hands, len(cuts)))]
    for k, cut in enumerate(reversed(cuts)):
        turn, at = divmod(k, len(dealt))
        dealt[at if turn % 2 == 0 else -1 - at].append(cut)
    return dealt
