"""The covariance C = S + diag(D) of rows in memory, with its products, columns and derivatives.

    TiledCovariance     forms each tile of C when it is used, for all columns of a product at once
    StoredCovariance    keeps the lower tiles in float32: n^2/2 numbers, read once per product

S and D are kept apart, since a Newton step of another likelihood would change D alone. Neither the
tiles nor the order of any sum depends on the number of workers, so no result does.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import dense as dense_loops
from ..data.inputs import TrainingRows
from ..kernels.kernel import Profile
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import PreparedRows, WeightPrior, kernel_matrix, variances
from ..runtime.parallel import TILE_ROWS, lower_tiles, slices
from ..runtime.session import Session
from .lower_tiles import LowerTiles

# Rows and columns of the tiles of a product. A float32 tile of this size stays in the second-level
# cache.
STRIP_ROWS = 512
TILE_COLUMNS = 1024
# A product has this many partial sums, each of which is computed by one worker.
PARTIAL_SUMS = 16
# A product with more columns is computed in parts of this many, which limits the partial sums.
PRODUCT_COLUMNS = 64
# The time of an entry of a lower tile in a product with 16 columns, on one core.
TILE_ENTRY_NS = 1.2


@dataclass(frozen=True)
class Covariance(abc.ABC):
    """The covariance C = S + diag(D) of training rows at given hyperparameters, (n, n).

    Tiles are formed in `dtype`, and products are summed in float64.
    """

    rows: TrainingRows
    hyperparameters: Hyperparameters
    session: Session
    dtype: type[np.floating[Any]] = np.float64

    @property
    def weight_prior(self) -> WeightPrior:
        """Return the prior of the weights, which forms S."""
        return self.hyperparameters.weight_prior

    @cached_property
    def prepared(self) -> PreparedRows:
        """Return the rows in the form that tiles are computed from, in the dtype of the tiles."""
        return self.weight_prior.prepare(self.rows, self.dtype)

    @cached_property
    def noise(self) -> np.ndarray:
        """Return the noise variances D;  (n,)."""
        return self.hyperparameters.noise(self.rows.Z)

    @cached_property
    def noise_gradient(self) -> np.ndarray:
        """Return the derivatives of D by log sigma_w and log sigma_y;  (n, 2)."""
        return self.hyperparameters.noise_gradient(self.rows.Z)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """Return C_ii = S_ii + D_i, analytically and not from products of rows;  (n,)."""
        own = self.weight_prior.kernel.diagonal(self.prepared.points)
        diagonal: np.ndarray = variances(own, self.rows.Z) + self.noise
        return diagonal

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, index: np.ndarray) -> np.ndarray:
        """Return S[:, index] in float64;  (r,) -> (n, r);  n r kernel values."""
        prepared = self.weight_prior.prepare(self.rows)
        Z, points = prepared.Z, prepared.points
        out = kernel_matrix(
            self.weight_prior.kernel, points, points[index], self.session, (Z, Z[index])
        )
        out[index, np.arange(index.size)] = (self.diagonal - self.noise)[index]
        return out

    @property
    @abc.abstractmethod
    def product_cost(self) -> float:
        """Return the approximate time of a product with 16 columns, in nanoseconds."""

    @abc.abstractmethod
    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c)."""

    @abc.abstractmethod
    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,)."""

    @abc.abstractmethod
    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t)."""


@dataclass(frozen=True)
class TiledCovariance(Covariance):
    """A covariance whose tiles are formed anew for every use."""

    @property
    def product_cost(self) -> float:
        return 0.5 * TILE_ENTRY_NS * len(self) ** 2

    def _prepare(self) -> None:
        """Compute what all tiles share, before several workers would compute it at once."""
        self.prepared, self.diagonal  # noqa: B018

    def _form(self, rows: slice, cols: slice) -> np.ndarray:
        """Return a block of S, with 0 on the diagonal of C.

        The diagonal is analytic, and the caller adds it.
        """
        out = self.weight_prior.tile(self.prepared[rows], self.prepared[cols])
        if rows == cols:
            np.fill_diagonal(out, 0.0)
        return out

    @property
    def _profile(self) -> Profile | None:
        """Return the kernel as compiled loops take it, None if it or Z has no such form."""
        if self.rows.Z.is_sparse:
            return None
        return self.weight_prior.kernel.profile(self.prepared.points)

    def fill_lower(self, out: np.ndarray, jitter: float = 0.0) -> None:
        """Write C + jitter diag(C) into the lower triangle of `out`, rounded to its dtype.

        (n, n);  n^2/2 kernel values. Entries above the diagonal are undefined afterwards.
        """
        self._prepare()
        diagonal = (1.0 + jitter) * self.diagonal
        if (profile := self._profile) is not None:
            Z = self.prepared.Z.to_dense()
            LowerTiles.of(out, self.session.executor.n_jobs).fill(profile, Z, diagonal)
            return

        def fill(tile: tuple[slice, slice]) -> None:
            out[tile] = self._form(*tile)

        self.session.executor.map(fill, lower_tiles(len(self), TILE_ROWS))
        np.fill_diagonal(out, diagonal)

    # Products read tiles through this name, which a subclass that stores its tiles overrides.
    _tile = _form

    @property
    def _product_dtype(self) -> type[np.floating[Any]]:
        """Return the dtype in which tiles are multiplied."""
        return self.dtype

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c);  2 n^2 c flops.

        Each lower tile is formed once, for all columns and for both triangles.
        """
        self._prepare()
        groups = _even_groups(slices(len(self), STRIP_ROWS), PARTIAL_SUMS)
        out: np.ndarray = self.diagonal[:, None] * V
        for chunk in slices(V.shape[1], PRODUCT_COLUMNS):
            right = np.ascontiguousarray(V[:, chunk], self._product_dtype)

            def multiply(strips: list[slice], right: np.ndarray = right) -> np.ndarray:
                total = np.zeros(right.shape)
                for rows in strips:
                    for cols in slices(rows.start, TILE_COLUMNS):
                        T = self._tile(rows, cols)
                        total[rows] += T @ right[cols]
                        total[cols] += T.T @ right[rows]
                    total[rows] += self._tile(rows, rows) @ right[rows]
                return total

            parts = self.session.executor.map(multiply, groups)

            def add(rows: slice, parts: list[np.ndarray] = parts, chunk: slice = chunk) -> None:
                for part in parts:
                    out[rows, chunk] += part[rows]

            self.session.executor.map(add, slices(len(self), 4 * STRIP_ROWS))
        return out

    def contract_inverse(self, alpha: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Return sum_ij (alpha alpha^T - C^-1)_ij dC_ij/dtheta for every parameter.

        (n,), (n, n) -> (t,). Only the lower triangle of the inverse is read.
        """

        along_noise = (alpha**2 - inverse.diagonal()) @ self.noise_gradient
        if (profile := self._profile) is not None:
            tiles = LowerTiles.of(inverse, self.session.executor.n_jobs)
            sums = tiles.contract_inverse(profile, self.prepared.Z.to_dense(), alpha)
            return np.concatenate([self.weight_prior.kernel.gradient_of_sums(sums), along_noise])

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            dense_loops.evidence_weights(
                alpha[rows], alpha[cols], inverse[rows, cols], G, rows == cols, G
            )

        return np.concatenate([self._contract_tiles(weigh), along_noise])

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,).

        n^2/2 kernel values.
        """
        left, right = np.hstack([U, V]).astype(self.dtype), np.hstack([V, U]).astype(self.dtype)

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            G *= left[rows] @ right[cols].T
            if rows == cols:
                G *= G.dtype.type(0.5)  # A diagonal tile contains both triangles.

        return np.concatenate(
            [self._contract_tiles(weigh), np.einsum("ij,ij->i", U, V) @ self.noise_gradient]
        )

    def _contract_tiles(self, weigh: Callable[[slice, slice, np.ndarray], None]) -> np.ndarray:
        """Return the sum of W_ij dS_ij/dtheta over lower tiles, for each parameter of the kernel.

        `weigh` multiplies the block of some rows and columns by W in place.
        """
        self._prepare()

        def one(tile: tuple[slice, slice]) -> np.ndarray:
            rows, cols = tile
            found = self.weight_prior.contract(
                self.prepared[rows], self.prepared[cols], lambda G: weigh(rows, cols, G)
            )
            total: np.ndarray = found.sum(axis=0, dtype=float)
            return total

        sums = self.session.executor.map(one, lower_tiles(len(self), TILE_ROWS))
        total: np.ndarray = np.sum(sums, axis=0)
        return total

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  n^2 kernel values."""
        self._prepare()
        prior, right = self.weight_prior, v.astype(self.dtype)

        def one(rows: slice) -> np.ndarray:
            total = np.zeros((rows.stop - rows.start, prior.kernel.theta.size))
            for cols in slices(len(self), TILE_ROWS):

                def weigh(G: np.ndarray, factor: np.ndarray = right[cols]) -> None:
                    G *= factor

                total += prior.contract(self.prepared[rows], self.prepared[cols], weigh)
            return total

        along_kernel = np.concatenate(self.session.executor.map(one, slices(len(self), TILE_ROWS)))
        return np.hstack([along_kernel, v[:, None] * self.noise_gradient])


@dataclass(frozen=True)
class StoredCovariance(TiledCovariance):
    """A covariance whose lower tiles are kept in float32;  2 n^2 bytes and a strip.

    The tiles are formed in `dtype` and then rounded.
    """

    @cached_property
    def strips(self) -> list[np.ndarray]:
        """Return the lower triangle as strips of rows, which end at the diagonal."""
        super()._prepare()

        def form(rows: slice) -> np.ndarray:
            strip = np.empty((rows.stop - rows.start, rows.stop), np.float32)
            for cols in (*slices(rows.start, STRIP_ROWS), rows):
                strip[:, cols] = self._form(rows, cols)
            return strip

        # The longest strip comes first, so that no worker begins it when the others are done.
        cuts = slices(len(self), STRIP_ROWS)[::-1]
        return self.session.executor.map(form, cuts)[::-1]

    def _prepare(self) -> None:
        super()._prepare()
        self.strips  # noqa: B018

    def _tile(self, rows: slice, cols: slice) -> np.ndarray:
        strip: np.ndarray = self.strips[rows.start // STRIP_ROWS]
        return strip[:, cols]

    @property
    def _product_dtype(self) -> type[np.floating[Any]]:
        return np.float32


def _even_groups(cuts: list[slice], count: int) -> list[list[slice]]:
    """Return the strips of a lower triangle in groups that have about equally many entries.

    Strips are given to the groups in turn, forwards and backwards, from the longest to the
    shortest.
    """
    groups: list[list[slice]] = [[] for _ in range(min(count, len(cuts)))]
    for k, cut in enumerate(reversed(cuts)):
        turn, at = divmod(k, len(groups))
        groups[at if turn % 2 == 0 else -1 - at].append(cut)
    return groups
