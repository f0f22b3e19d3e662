"""The covariance C = S + diag(D) of rows in memory, with its products, columns and derivatives.

    TiledCovariance     forms each tile of C when it is used, for all columns of a product at once
    StoredCovariance    keeps the lower tiles in float32: n^2/2 numbers, read once per product
    CopiedCovariance    has the lower tiles of S, which factors for several D are made of

S and D are kept apart, since a Newton step of another likelihood would change D alone. Neither the
tiles nor the order of any sum depends on the number of workers, so no result does.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import dense as dense_loops
from ..data.inputs import TrainingRows
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import PreparedRows, WeightPrior, variances
from ..runtime.parallel import TILE_ROWS, slices
from ..runtime.session import Session
from .kernel_tiles import FormedTiles, KernelTiles, product_order, stored_product
from .lower_tiles import LowerTiles, TileCuts
from .term_tiles import TermTiles

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
        return self.hyperparameters.noise(self.rows)

    @cached_property
    def noise_gradient(self) -> np.ndarray:
        """Return the derivatives of D by log sigma_w and log sigma_y;  (n, 2)."""
        return self.hyperparameters.noise_gradient(self.rows)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """Return C_ii = S_ii + D_i, analytically and not from products of rows;  (n,)."""
        if self.weight_prior.is_shared:
            own = variances(self.weight_prior.kernel.diagonal(self.prepared.points), self.rows.Z)
        else:
            own = self.weight_prior.diagonal(self.weight_prior.prepare(self.rows))
        diagonal: np.ndarray = own + self.noise
        return diagonal

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def varying(self) -> Covariance:
        """Return the covariance without the constant parts of the weights, if it has them apart."""
        return self

    @cached_property
    def constant_columns(self) -> np.ndarray:
        """Return B with B B^T = C minus the part that varies;  (n, c)."""
        if self.varying is self:
            return np.empty((len(self), 0))
        return self.weight_prior.constant_columns(self.rows.Z)

    def columns(self, index: np.ndarray) -> np.ndarray:
        """Return S[:, index] in float64;  (r,) -> (n, r);  n r kernel values."""
        prepared = self.weight_prior.prepare(self.rows)
        out = self.weight_prior.block(prepared, prepared[index], self.session)
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
    """A covariance whose tiles are formed anew for every use.

    Stationary kernels of dense inputs have compiled loops (`KernelTiles`). Tiles of other kernels
    are formed one by one in Python, by the workers of the session.
    """

    @property
    def product_cost(self) -> float:
        return 0.5 * TILE_ENTRY_NS * len(self) ** 2

    @cached_property
    def compiled(self) -> FormedTiles | None:
        """Return S in the form of compiled loops, None if a kernel has no such form."""
        prior, n_jobs = self.weight_prior, self.session.executor.n_jobs
        if not prior.is_shared:
            rows = prior.pack(self.prepared)
            return None if rows is None else TermTiles(rows, n_jobs)
        profile = prior.kernel.profile(self.prepared.points)
        return None if profile is None else KernelTiles(profile, self.prepared.Z, n_jobs)

    def _along_prior(self, sums: np.ndarray) -> np.ndarray:
        """Return the derivatives by the parameters of the prior, but sigma_w, from those of loops.

        (width, ...) -> (t, ...)
        """
        prior, tiles = self.weight_prior, self.compiled
        if not isinstance(tiles, TermTiles):
            return prior.kernel.gradient_of_sums(sums)
        return prior.of_sums(tiles.rows, sums)

    def _form(self, rows: slice, cols: slice) -> np.ndarray:
        """Return a block of S, with 0 on the diagonal of C.

        The diagonal is analytic, and the caller adds it.
        """
        out = self.weight_prior.tile(self.prepared[rows], self.prepared[cols])
        if rows == cols:
            np.fill_diagonal(out, 0.0)
        return out

    def empty_tiles(self, dtype: Any) -> LowerTiles:
        """Return packed tiles for C in a buffer of their own."""
        return LowerTiles.empty(len(self), dtype, self.session.executor.n_jobs)

    def fill(self, tiles: LowerTiles, jitter: float = 0.0) -> None:
        """Write C + jitter diag(C) into tiles, rounded to their dtype;  n^2/2 kernel values.

        A diagonal tile gets both triangles.
        """
        self._fill(tiles, (1.0 + jitter) * self.diagonal)

    def fill_prior(self, tiles: LowerTiles) -> None:
        """Write S into tiles, with 0 on its diagonal;  n^2/2 kernel values."""
        self._fill(tiles, np.zeros(len(self)))

    def _fill(self, tiles: LowerTiles, diagonal: np.ndarray) -> None:
        """Write S with another diagonal (n,) into tiles."""
        if self.compiled is not None:
            self.compiled.fill(tiles, diagonal)
            return

        def fill(at: tuple[int, int]) -> None:
            i, j = at
            rows, cols = tiles.span(i), tiles.span(j)
            block = self._form(rows, cols)
            if i == j:
                np.fill_diagonal(block, diagonal[rows])
            tiles.tile(i, j)[...] = block

        self.diagonal, self.prepared  # noqa: B018  They are computed before several workers ask.
        self.session.executor.map(fill, tiles.pairs())

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c);  2 n^2 c flops.

        Each lower tile is formed once, for all columns and for both triangles.
        """
        if self.compiled is not None:
            return self.compiled.matmul(V, self.diagonal)
        cuts, right = slices(len(self), TILE_ROWS), V.astype(self.dtype)
        self.diagonal, self.prepared  # noqa: B018

        def multiply(strips: np.ndarray) -> np.ndarray:
            total = np.zeros(V.shape)
            for i in strips[strips >= 0].tolist():
                for j in range(i + 1):
                    T = self._form(cuts[i], cuts[j])
                    total[cuts[i]] += T @ right[cuts[j]]
                    if i != j:
                        total[cuts[j]] += T.T @ right[cuts[i]]
            return total

        out: np.ndarray = self.diagonal[:, None] * V
        for part in self.session.executor.map(multiply, product_order(len(cuts)).T):
            out += part
        return out

    def matmul_rows(self, X: np.ndarray) -> np.ndarray:
        """Return X C for hundreds of rows X;  (c, n) -> (c, n);  2 n^2 c flops."""
        if self.compiled is not None:
            return self.compiled.matmul_rows(X, self.diagonal)
        return np.ascontiguousarray(self.matmul(X.T).T)

    def quadratic(self, X: np.ndarray) -> np.ndarray:
        """Return x.C x for each row of X;  (c, n) -> (c,);  n^2 c flops."""
        if self.compiled is not None:
            return self.compiled.quadratic(X, self.diagonal)
        return np.asarray(np.einsum("ij,ij->i", X, self.matmul_rows(X)))

    def contract_inverse(
        self, alpha: np.ndarray, factor: LowerTiles
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_ij (alpha alpha^T - C^-1)_ij dC_ij/dtheta for every parameter, and diag(C^-1).

        (n,) -> (t,), (n,);  2 n^3/3 flops. The factor of C is overwritten.
        """
        tell = self.session.journal.worked
        if self.compiled is not None:
            factor.invert_factor(tell)
            sums, diagonal = self.compiled.contract_inverse(factor, alpha, tell)
            along_prior = self._along_prior(sums)
        else:
            factor.invert(tell)
            diagonal = factor.diagonal()

            def weigh(i: int, j: int, G: np.ndarray) -> None:
                inverse = np.ascontiguousarray(factor.tile(i, j))
                a, b = alpha[factor.span(i)], alpha[factor.span(j)]
                dense_loops.evidence_weights(a, b, inverse, G, i == j, G)

            along_prior = self._contract_tiles(weigh, factor)
        along_noise = (alpha**2 - diagonal) @ self.noise_gradient
        return np.concatenate([along_prior, along_noise]), diagonal

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,).

        n^2/2 kernel values.
        """
        if self.compiled is not None:
            sums = self.compiled.contract(U, V)
            along_prior = self._along_prior(sums)
        else:
            left, right = (np.hstack(both).astype(self.dtype) for both in ([U, V], [V, U]))
            cuts = TileCuts(len(self), TILE_ROWS)

            def weigh(i: int, j: int, G: np.ndarray) -> None:
                G *= left[cuts.span(i)] @ right[cuts.span(j)].T
                if i == j:
                    G *= G.dtype.type(0.5)  # A diagonal tile contains both triangles.

            along_prior = self._contract_tiles(weigh, cuts)
        along_noise = np.einsum("ij,ij->i", U, V) @ self.noise_gradient
        return np.concatenate([along_prior, along_noise])

    def _contract_tiles(
        self, weigh: Callable[[int, int, np.ndarray], None], cuts: TileCuts
    ) -> np.ndarray:
        """Return the sum of W_ij dS_ij/dtheta over lower tiles, for each parameter of the prior.

        `weigh` multiplies the block of tile (i, j) by W in place.
        """
        self.diagonal, self.prepared  # noqa: B018

        def one(at: tuple[int, int]) -> np.ndarray:
            i, j = at
            rows, cols = self.prepared[cuts.span(i)], self.prepared[cuts.span(j)]
            found = self.weight_prior.contract(rows, cols, lambda G: weigh(i, j, G))
            total: np.ndarray = found.sum(axis=0, dtype=float)
            return total

        total: np.ndarray = np.sum(self.session.executor.map(one, cuts.pairs()), axis=0)
        return total

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  n^2 kernel values."""
        prior, right = self.weight_prior, v.astype(self.dtype)
        if self.compiled is not None:
            along_prior = self._along_prior(self.compiled.tangents(v).T).T
        else:

            def one(rows: slice) -> np.ndarray:
                total = np.zeros((rows.stop - rows.start, prior.theta.size - 1))
                for cols in slices(len(self), TILE_ROWS):

                    def weigh(G: np.ndarray, factor: np.ndarray = right[cols]) -> None:
                        G *= factor

                    total += prior.contract(self.prepared[rows], self.prepared[cols], weigh)
                return total

            self.prepared  # noqa: B018
            rows = slices(len(self), TILE_ROWS)
            along_prior = np.concatenate(self.session.executor.map(one, rows))
        return np.hstack([along_prior, v[:, None] * self.noise_gradient])


@dataclass(frozen=True)
class CopiedCovariance(TiledCovariance):
    """A covariance whose S is known in tiles with 0 on their diagonal, which `fill` copies."""

    known: LowerTiles = field(kw_only=True)

    def _fill(self, tiles: LowerTiles, diagonal: np.ndarray) -> None:
        tiles.buffer[...] = self.known.buffer
        for k in range(tiles.count):
            np.fill_diagonal(tiles.tile(k, k), diagonal[tiles.span(k)])


@dataclass(frozen=True)
class StoredCovariance(TiledCovariance):
    """A covariance whose lower tiles are kept in float32;  2 n^2 bytes and a strip.

    The tiles are formed in `dtype` and then rounded.
    """

    @cached_property
    def tiles(self) -> LowerTiles:
        """Return packed tiles of S, with 0 on the diagonal of S."""
        tiles = self.empty_tiles(np.float32)
        self.fill_prior(tiles)
        return tiles

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V by products in float32, which are added in float64;  (n, c) -> (n, c)."""
        return stored_product(self.tiles, V, self.diagonal)
