"""C = S + diag(D) of rows in memory, as an operator: its products, columns and derivatives.

    TiledCovariance     tiles formed, used for all columns of a product, and thrown away
    StoredCovariance    the lower tiles kept in float32: n^2/2 numbers, one read of them a product

S and D are apart, since a Newton step of another likelihood changes D alone. Tiles and the order of every sum do not depend
on the number of workers, so neither does any result.
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
from ..runtime.parallel import TILE, lower_tiles, slices
from ..runtime.session import Session
from .lower_tiles import LowerTiles

STRIP, WIDE = (
    512,
    1024,
)  # rows and columns of a product's tiles: a float32 tile stays in the second-level cache
GROUPS = 16  # partial sums of a product, each owned by one worker
COLUMNS = 64  # of a product at once: what bounds the partial sums
TILE_ENTRY_NS = 1.2  # of one core: an entry of a lower tile in a product with 16 columns


@dataclass(frozen=True)
class Covariance(abc.ABC):
    """C = S + diag(D) of training rows at given hyperparameters, (n, n).

    Tiles are formed in `dtype`; products are added up in float64.
    """

    rows: TrainingRows
    hyperparameters: Hyperparameters
    session: Session
    dtype: Any = np.float64

    @property
    def weight_prior(self) -> WeightPrior:
        """Return the prior of the weights, which forms S."""
        return self.hyperparameters.weight_prior

    @cached_property
    def prepared(self) -> PreparedRows:
        """Return x and Z as tiles take them, in the tiles' dtype."""
        return self.weight_prior.prepare(self.rows, self.dtype)

    @cached_property
    def noise(self) -> np.ndarray:
        """Return D;  (n,)."""
        return self.hyperparameters.noise(self.rows.Z)

    @cached_property
    def noise_gradient(self) -> np.ndarray:
        """Return dD by the logarithms of sigma_w and sigma_y;  (n, 2)."""
        return self.hyperparameters.noise_gradient(self.rows.Z)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """Return C_ii = S_ii + D_i, analytically;  (n,)."""
        own = self.weight_prior.kernel.diagonal(self.prepared.points)
        return variances(own, self.rows.Z) + self.noise

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
        """Return about how many nanoseconds a product with 16 columns takes on one core."""

    @abc.abstractmethod
    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c)."""

    @abc.abstractmethod
    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T dC v_c by every parameter;  (n, c), (n, c) -> (t,)."""

    @abc.abstractmethod
    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t)."""


@dataclass(frozen=True)
class TiledCovariance(Covariance):
    """C whose tiles are formed for every use."""

    @property
    def product_cost(self) -> float:
        return 0.5 * TILE_ENTRY_NS * len(self) ** 2

    def _prepare(self) -> None:
        """What tiles share is computed here, once, not by whichever worker comes first."""
        self.prepared, self.diagonal  # noqa: B018

    def _form(self, rows: slice, cols: slice) -> np.ndarray:
        """S of a block of rows and columns; 0 on the diagonal of C, which is analytic and added by whoever sums."""
        out = self.weight_prior.tile(self.prepared[rows], self.prepared[cols])
        if rows == cols:
            np.fill_diagonal(out, 0.0)
        return out

    @property
    def _profile(self) -> Profile | None:
        """Return the kernel as compiled loops over tiles take it; None if it has no such form, or Z is sparse."""
        if self.rows.Z.is_sparse:
            return None
        return self.weight_prior.kernel.profile(self.prepared.points)

    def fill_lower(self, out: np.ndarray, jitter: float = 0.0) -> None:
        """out's lower triangle <- C + jitter diag(C), float64 or rounded to out's dtype; above the diagonal, undefined.

        (n, n);  n^2/2 kernel values."""
        self._prepare()
        diagonal = (1.0 + jitter) * self.diagonal
        if (profile := self._profile) is not None:
            Z = self.prepared.Z.to_dense()
            LowerTiles.of(out, self.session.executor.n_jobs).fill(profile, Z, diagonal)
            return

        def fill(tile: tuple[slice, slice]) -> None:
            out[tile] = self._form(*tile)

        self.session.executor.map(fill, lower_tiles(len(self), TILE))
        np.fill_diagonal(out, diagonal)

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

            parts = self.session.executor.map(multiply, groups)

            def add(rows: slice, parts: list[np.ndarray] = parts, chunk: slice = chunk) -> None:
                for part in parts:
                    out[rows, chunk] += part[rows]

            self.session.executor.map(add, slices(len(self), 4 * STRIP))
        return out

    def contract_inverse(self, alpha: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """sum_ij (alpha alpha^T - C^-1)_ij dC_ij by every parameter, from C^-1's lower triangle;  (n,), (n, n) -> (t,)."""

        along_noise = (alpha**2 - inverse.diagonal()) @ self.noise_gradient
        if (profile := self._profile) is not None:
            tiles = LowerTiles.of(inverse, self.session.executor.n_jobs)
            sums = tiles.contract_inverse(profile, self.prepared.Z.to_dense(), alpha)
            return np.concatenate([self.weight_prior.kernel.gradient_of(sums), along_noise])

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            dense_loops.evidence_weights(
                alpha[rows], alpha[cols], inverse[rows, cols], G, rows == cols, G
            )

        return np.concatenate([self._contract_tiles(weigh), along_noise])

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """sum_c u_c^T dC v_c by every parameter;  (n, c), (n, c) -> (t,);  n^2/2 kernel values."""
        left, right = np.hstack([U, V]).astype(self.dtype), np.hstack([V, U]).astype(self.dtype)

        def weigh(rows: slice, cols: slice, G: np.ndarray) -> None:
            G *= left[rows] @ right[cols].T
            if rows == cols:
                G *= G.dtype.type(0.5)  # both triangles of a diagonal tile are there

        return np.concatenate(
            [self._contract_tiles(weigh), np.einsum("ij,ij->i", U, V) @ self.noise_gradient]
        )

    def _contract_tiles(self, weigh: Callable[[slice, slice, np.ndarray], None]) -> np.ndarray:
        """sum over lower tiles of W_ij dS_ij/dtheta; `weigh` multiplies a block by W in place;  -> (t of the prior,)."""
        self._prepare()

        def one(tile: tuple[slice, slice]) -> np.ndarray:
            rows, cols = tile
            found = self.weight_prior.contract(
                self.prepared[rows], self.prepared[cols], lambda G: weigh(rows, cols, G)
            )
            return found.sum(axis=0, dtype=float)

        return np.sum(self.session.executor.map(one, lower_tiles(len(self), TILE)), axis=0)

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  n^2 kernel values."""
        self._prepare()
        prior, right = self.weight_prior, v.astype(self.dtype)

        def one(rows: slice) -> np.ndarray:
            total = np.zeros((rows.stop - rows.start, prior.kernel.theta.size))
            for cols in slices(len(self), TILE):

                def weigh(G: np.ndarray, factor: np.ndarray = right[cols]) -> None:
                    G *= factor

                total += prior.contract(self.prepared[rows], self.prepared[cols], weigh)
            return total

        along_kernel = np.concatenate(self.session.executor.map(one, slices(len(self), TILE)))
        return np.hstack([along_kernel, v[:, None] * self.noise_gradient])


@dataclass(frozen=True)
class StoredCovariance(TiledCovariance):
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
        return self.session.executor.map(form, cuts)[::-1]

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
