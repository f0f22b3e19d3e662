"""The covariance C of a sparse Z, on the pairs of rows that share a feature.

C_ij = k(x_i, x_j) <z_i, z_j> is exactly 0 if two rows share no feature, so C has the pattern of
ZZ^T. The pairs of its lower triangle are listed once per fit (`Pairs`), with <z_i, z_j> and
|x_i - x_j|^2. Other parameters then take one exponential per pair, and a product takes two
additions per pair and column.

Every operation runs in parallel loops (`compiled.pair_tiles`, `compiled.pair_kernels`), round by
round of the list. The order of every sum does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..compiled import pair_kernels, pair_tiles
from ..compiled.pair_tiles import PANEL_COLUMNS
from ..kernels.kernel import Kernel, RadialProfile
from ..runtime.memory import aligned
from ..runtime.parallel import slices
from ..runtime.session import Session
from ..runtime.tile_loops import Threads, tile_threads
from .covariance import Covariance
from .pairs import Pairs

# The time of a pair in a product with 16 columns, on one core.
PAIR_NS = 0.8
# Numbers that are computed for a part of the pairs and then used have this many pairs, or those of
# one round: they stay in the third-level cache.
PART_PAIRS = 2**18
# Pairs that one call multiplies: less than half a second of one core, so that Ctrl-C is noticed in
# time.
CALL_PAIRS = 4e8


@dataclass(frozen=True)
class PairKernel:
    """A kernel at the squared distances of some pairs, in numba's threads.

    A kernel without a compiled form, such as a sum of kernels, is computed in Python's threads.
    """

    kernel: Kernel
    session: Session
    threads: Threads
    dtype: type[np.floating[Any]]

    @cached_property
    def _profile(self) -> RadialProfile | None:
        return self.kernel.radial_profile(self.dtype)

    def values(self, squared: np.ndarray, inner: np.ndarray, out: np.ndarray) -> None:
        """Write k_ij <z_i, z_j> into `out`;  (pairs,), (pairs,) -> (pairs,)."""
        if self._profile is not None:
            self.threads.run(pair_kernels.pair_values, *self._profile, squared, inner, out)
            return
        out[...] = inner
        chunks = slices(out.size, pair_kernels.CHUNK_PAIRS)
        self.session.executor.map(
            lambda chunk: self.kernel.multiply_at(squared[chunk], out[chunk]), chunks
        )

    def slopes(self, squared: np.ndarray, inner: np.ndarray, out: np.ndarray) -> None:
        """Write <z_i, z_j> dk_ij by every parameter into `out`;  (pairs,) twice -> (t, pairs)."""
        if self._profile is not None:
            self.threads.run(pair_kernels.pair_slopes, *self._profile, squared, inner, out)
            return

        def one(chunk: slice) -> None:
            out[:, chunk] = self.kernel.gradient_at(squared[chunk], inner[chunk].astype(self.dtype))

        self.session.executor.map(one, slices(squared.size, pair_kernels.CHUNK_PAIRS))


@dataclass(frozen=True)
class PairCovariance(Covariance):
    """The covariance C on the pairs of rows that share a feature.

    In float32, the values of the pairs are kept. In float64, they are computed for each product.
    """

    pairs: Pairs = None  # type: ignore[assignment]

    @contextmanager
    def _loops(self) -> Iterator[tuple[Threads, PairKernel]]:
        """Let loops over pairs run inside `with`."""
        with tile_threads(self.session.executor.n_jobs) as threads:
            kernel = self.weight_prior.kernel
            yield threads, PairKernel(kernel, self.session, threads, self.dtype)

    @cached_property
    def _kept(self) -> np.ndarray:
        """Return the values S of all pairs;  (pairs,)."""
        values = np.empty(len(self.pairs), self.dtype)
        with self._loops() as (_, kernel):
            for _, span in self.pairs.parts(CALL_PAIRS):
                self._fill(kernel, span, values[span])
        return values

    def _fill(self, kernel: PairKernel, span: slice, out: np.ndarray) -> None:
        """Write the values S of some pairs into `out`."""
        kernel.values(self.pairs.squared[span], self.pairs.inner[span], out)

    def _prepare(self) -> None:
        """Compute what all products share."""
        self.diagonal  # noqa: B018
        if self.dtype == np.float32:
            self._kept  # noqa: B018

    @property
    def product_cost(self) -> float:
        return PAIR_NS * len(self.pairs)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        """Return C V;  (n, c) -> (n, c).

        Each pair is read once for PANEL_COLUMNS columns and both triangles.
        """
        self._prepare()
        V = np.ascontiguousarray(V, float)
        out = np.empty(V.shape)
        right, total = (aligned((len(V), PANEL_COLUMNS), self.dtype) for _ in range(2))
        with self._loops() as (threads, kernel):
            for column in range(0, V.shape[1], PANEL_COLUMNS):
                threads.run(pair_tiles.load_panel, V, column, right, total)
                for rounds, span, values in self._values(kernel):
                    where = *rounds, *self.pairs.listed(span)
                    threads.run(pair_tiles.multiply_pairs, *where, values, right, total)
                threads.run(pair_tiles.store_panel, V, self.diagonal, column, total, out)
        return out

    def _values(self, kernel: PairKernel) -> Iterator[tuple[tuple[int, int], slice, np.ndarray]]:
        """Yield (first and last round, pairs, S of these pairs) of all parts of the list."""
        if self.dtype == np.float32:
            for rounds, span in self.pairs.parts(CALL_PAIRS):
                yield rounds, span, self._kept[span]
            return
        for rounds, span, room in self._parts(1):
            self._fill(kernel, span, room[0])
            yield rounds, span, room[0]

    def _parts(self, count: int) -> Iterator[tuple[tuple[int, int], slice, np.ndarray]]:
        """Yield (first and last round, pairs, room for `count` numbers per pair) of all parts.

        All parts share one room;  (count, pairs).
        """
        parts = [*self.pairs.parts(PART_PAIRS)]
        most = max(span.stop - span.start for _, span in parts)
        room = np.empty(count * most, self.dtype)
        for rounds, span in parts:
            size = span.stop - span.start
            yield rounds, span, room[: count * size].reshape(count, size)

    def _slopes(self, kernel: PairKernel) -> Iterator[tuple[tuple[int, int], slice, np.ndarray]]:
        """Yield (first and last round, pairs, dS by every parameter) of all parts of the list."""
        for rounds, span, room in self._parts(kernel.kernel.theta.size):
            kernel.slopes(self.pairs.squared[span], self.pairs.inner[span], room)
            yield rounds, span, room

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        """Return sum_c u_c^T (dC/dtheta) v_c for every parameter;  (n, c), (n, c) -> (t,).

        A product (dS/dtheta) V for each, as much work as with C, and two exponentials per pair.
        """
        t, columns = self.weight_prior.kernel.theta.size, range(0, V.shape[1], PANEL_COLUMNS)
        V = np.ascontiguousarray(V, float)
        shape = len(V), PANEL_COLUMNS
        right = [aligned(shape, self.dtype) for _ in columns]
        totals = [[aligned(shape, self.dtype) for _ in columns] for _ in range(t)]
        with self._loops() as (threads, kernel):
            for k, column in enumerate(columns):
                threads.run(pair_tiles.load_panel, V, column, right[k], totals[0][k])
            for rounds, span, slopes in self._slopes(kernel):
                where = *rounds, *self.pairs.listed(span)
                for slope, panels in zip(slopes, totals, strict=True):
                    for panel, total in zip(right, panels, strict=True):
                        threads.run(pair_tiles.multiply_pairs, *where, slope, panel, total)
        both = np.einsum("ij,ij->i", U, V)
        along = self._diagonal_gradient * (both @ self.rows.Z.squared_norms())
        for s, panels in enumerate(totals):
            for column, total in zip(columns, panels, strict=True):
                some = U[:, column : column + PANEL_COLUMNS]
                along[s] += np.einsum("ij,ij->", some, total[:, : some.shape[1]], dtype=float)
        return np.concatenate([along, both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        """Return (dC/dtheta_t) v for every parameter;  (n,) -> (n, t);  2 exponentials per pair."""
        v = np.ascontiguousarray(v, float)
        out = (v * self.rows.Z.squared_norms())[:, None] * self._diagonal_gradient
        with self._loops() as (threads, kernel):
            for rounds, span, slopes in self._slopes(kernel):
                where = *rounds, *self.pairs.listed(span)
                threads.run(pair_tiles.add_tangents, *where, slopes, v, out)
        return np.hstack([out, v[:, None] * self.noise_gradient])

    @property
    def _diagonal_gradient(self) -> np.ndarray:
        """Return dk(x, x)/dtheta, which is the same for all x;  (t,)."""
        gradient: np.ndarray = self.weight_prior.kernel.gradient_at(np.zeros(1), np.ones(1))
        return gradient[:, 0]
