"""KISS-GP: the iterative solver with C interpolated from a regular grid, for length scales too short for a basis.

    K ~ W K_U W^T + diag(left),  W (n, g) sparse: cubic interpolation, 4^p points a row;  left: what keeps the diagonal exact
    C V = sum_l Z_l W K_U W^T Z_l V + ...,  Z_l = diag of column l;  K_U v by FFT, as K_U is Toeplitz in every dimension

A product costs n 4^p d + d g log g a column. Interpolation by cubics misses about (step / l)^4 of a smooth k, (step / l)^3 of
a Matern 3/2, and step / l of a Matern 1/2, which no affordable grid resolves. Everything else (preconditioner, probes,
variances from the rows nearby) is that of `cg`, on k itself: variances do not know what interpolation misses, and are no
bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import scipy.fft
import scipy.sparse as sp

from .box import LARGEST_COUNT, SHARP, Extent, sharpness
from .cg import CgSolver
from .covariance import Covariance, cross
from .errors import SolverUnavailable
from .inputs import Inputs
from .iterated import NEVER_BELOW, CgParts
from .jit_sparse import inner_rows, outer_rows, sparse_times
from .pairs import single_will_do
from .params import Params
from .runtime import Executor, slices

PER_LENGTH = 5.0  # grid points per length scale: less than 0.1 nats off at n = 800 (RBF, two dimensions)
# (factor, order) by smoothness nu: with f points per length scale, interpolation leaves factor f^-order of k for each column
# of x, in the mean over the places between grid points (measured for f from 4 to 20).
INTERPOLATION_LEAVES = {np.inf: (0.09, 4), 2.5: (0.47, 4), 1.5: (0.33, 3), 0.5: (0.145, 1)}
RESOLVED_SHARE_OF_NOISE = 0.1  # The variance that interpolation leaves is meant to be this share of the noise's, at most.
PLANNED_SHARE_OF_NOISE = 1 / 3  # A grid that memory makes coarser is planned up to here: deviations are 15% short at most.
REFUSED_SHARE_OF_NOISE = 1.0  # A fit that ends with more is refused: its 95% intervals of y would cover 83% or less.
EDGE = 2  # points beyond the data, so that cubics have neighbours
ORDER = np.arange(-1, 3)  # of the points next to x, in steps
BLOCK = 4096  # rows that a worker takes at once


@dataclass(frozen=True)
class Grid:
    """A regular grid;  origin and step (p,), points a dimension."""

    origin: np.ndarray
    step: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def around(cls, extent: Extent, kernel: Any, count: int | None = None, fineness: float = PER_LENGTH) -> Grid:
        """Over the data, `fineness` points to the shortest length scale, or `count` a dimension."""
        width = 2.0 * extent.half
        counts = np.full(width.size, count) if count else points_for(width / kernel.lengths(width.size)[0], fineness)
        step = np.where(width > 1e-290, width, 1.0) / np.maximum(counts - 1, 1)  # a step of denormals would be 0
        return cls(extent.low - EDGE * step, step, tuple(int(c) + 2 * EDGE for c in counts))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Which rows have all their neighbours;  (n,)."""
        t = (x - self.origin) / self.step
        return ((t >= 1.0 - 1e-9) & (t <= np.array(self.shape) - 2.0 + 1e-9)).all(axis=1)

    def weights(self, x: np.ndarray) -> sp.csr_array:
        """W: Lagrange's cubics through the four points around x in each dimension;  (n, p) -> (n, g)."""
        columns, values = np.zeros((len(x), 1), np.int64), np.ones((len(x), 1))
        for k, count in enumerate(self.shape):
            t = (x[:, k] - self.origin[k]) / self.step[k]
            first = np.clip(np.floor(t).astype(np.int64), 1, count - 3)
            f = (t - first)[:, None]
            before, after, last = f + 1, f - 1, f - 2
            cubics = np.hstack(
                [-f * after * last / 6, before * after * last / 2, -before * f * last / 2, before * f * after / 6]
            )
            columns = (columns[:, :, None] * count + (first[:, None] + ORDER)[:, None, :]).reshape(len(x), -1)
            values = (values[:, :, None] * cubics[:, None, :]).reshape(len(x), -1)
        index = np.int32 if max(columns.size, self.size) < 2**31 else np.int64  # half the traffic of a product
        pointers = columns.shape[1] * np.arange(len(x) + 1, dtype=index)
        return sp.csr_array((values.ravel(), columns.ravel().astype(index), pointers), shape=(len(x), self.size))

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Twice the grid, at least: a circulant matrix holds the Toeplitz one."""
        return tuple(scipy.fft.next_fast_len(2 * count - 1, real=True) for count in self.shape)

    @cached_property
    def lags(self) -> np.ndarray:
        """Differences of grid points, as the circulant matrix has them in its first column;  (prod padded, p)."""
        counts = [np.minimum(np.arange(size), size - np.arange(size)) for size in self.padded]
        each = [count * step for count, step in zip(counts, self.step, strict=True)]
        return np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, self.step.size)

    @cached_property
    def near(self) -> np.ndarray:
        """The same between the 4^p points around one x;  (16^p, p)."""
        points = np.array(list(product(ORDER, repeat=self.step.size))) * self.step
        return np.abs(points[:, None] - points).reshape(-1, self.step.size)


def points_for(spans: np.ndarray, fineness: float) -> np.ndarray:
    """Grid points a dimension, for data that many length scales wide;  (p,)."""
    return np.ceil(np.minimum(spans * fineness, LARGEST_COUNT)).astype(int) + 1


def per_length(sharp: float, smoothness: float, p: int) -> float:
    """Return grid points per length scale: PER_LENGTH, and more for rough kernels, and where little noise hides the rest."""
    factor, order = INTERPOLATION_LEAVES[smoothness]
    needed = (factor * p * SHARP * sharp / RESOLVED_SHARE_OF_NOISE) ** (1.0 / order)
    return max(PER_LENGTH * sharp**0.25, needed)


def left_by(fineness: float, sharp: float, smoothness: float, p: int) -> float:
    """Return the variance that interpolation leaves, over the noise's, with that many points per length scale."""
    factor, order = INTERPOLATION_LEAVES[smoothness]
    return factor * p * fineness**-order * SHARP * sharp


@dataclass(frozen=True)
class Interpolated:
    """The rows on the grid, whatever the parameters: W of the rows in the `order` of their cells, so that those that meet in
    a product are near each other in memory."""

    grid: Grid
    order: np.ndarray
    W: sp.csr_array

    @classmethod
    def of(cls, grid: Grid, x: np.ndarray) -> Interpolated:
        cells = np.floor((x - grid.origin) / grid.step).astype(np.int64)
        order = np.lexsort(cells.T[::-1])
        return cls(grid, order, grid.weights(x[order]))

    @cached_property
    def back(self) -> sp.csr_array:
        return sp.csr_array(self.W.T)

    @cached_property
    def single(self) -> Interpolated:
        """The same in float32."""
        return replace(self, W=self.W.astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        return {"grid": self.grid, "order": self.order, "W": self.W}  # the rest can be had again

    def down(self, Z: np.ndarray, V: np.ndarray, executor: Executor) -> np.ndarray:
        """W^T Z_l V for every l, in the transform of the padded grid;  (n, d), (n, c) -> (d c, ...)."""
        V, A = np.ascontiguousarray(V, Z.dtype), np.empty((len(Z), Z.shape[1] * V.shape[1]), Z.dtype)
        executor.map(lambda rows: outer_rows(self.order[rows], Z, V, A[rows]), slices(len(A), BLOCK))
        grid = np.ascontiguousarray(_times(self.back, A, executor).T).reshape(-1, *self.grid.shape)
        return scipy.fft.rfftn(grid, s=self.grid.padded, axes=self._axes, workers=executor.n_jobs)

    def up(self, transformed: np.ndarray, Z: np.ndarray, executor: Executor) -> np.ndarray:
        """sum_l Z_l W U_l of what has that transform;  (d c, ...), (n, d) -> (n, c)."""
        A = _times(self.W, self.on_grid(transformed, executor), executor)
        out = np.empty((len(Z), A.shape[1] // Z.shape[1]))
        executor.map(lambda rows: inner_rows(self.order[rows], Z, A[rows], out), slices(len(A), BLOCK))
        return out

    def on_grid(self, transformed: np.ndarray, executor: Executor) -> np.ndarray:
        """(c, ...) -> (g, c)."""
        whole = scipy.fft.irfftn(transformed, s=self.grid.padded, axes=self._axes, workers=executor.n_jobs)
        cut = whole[(slice(None), *(slice(0, count) for count in self.grid.shape))]
        return np.ascontiguousarray(cut.reshape(len(cut), -1).T)

    def correlation(self, transformed: np.ndarray, executor: Executor) -> np.ndarray:
        """From a spectrum to lags;  (...) -> (prod padded,)."""
        return scipy.fft.irfftn(transformed, s=self.grid.padded, workers=executor.n_jobs).ravel()

    def symbol(self, column: np.ndarray) -> np.ndarray:
        """Eigenvalues of the circulant matrix with this first column;  (prod padded,) -> (...)."""
        return scipy.fft.rfftn(column.reshape(self.grid.padded)).real

    def quadratic(self, block: np.ndarray) -> np.ndarray:
        """w_i^T k_near w_i of the weights of each row;  (16^p,) -> (n,)."""
        w, found = self.W.data.reshape(self.W.shape[0], -1), np.empty(self.W.shape[0])
        found[self.order] = np.einsum("ij,ij->i", w @ block.reshape(w.shape[1], -1), w)
        return found

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.grid.shape)))


def _times(A: sp.csr_array, B: np.ndarray, executor: Executor) -> np.ndarray:
    """A B by blocks of rows;  (n, m), (m, c) -> (n, c)."""
    out = np.empty((A.shape[0], B.shape[1]), B.dtype)

    def block(rows: slice) -> None:
        sparse_times(A.indptr[rows.start : rows.stop + 1], A.indices, A.data, B, out[rows])

    executor.map(block, slices(len(out), BLOCK))
    return out


@dataclass(frozen=True)
class GridCovariance(Covariance):
    """C with its products by interpolation, in `dtype`; its diagonal, and single columns, are those of k."""

    on: Interpolated | None = None

    @property
    def _on(self) -> Interpolated:
        assert self.on is not None
        return self.on

    def _values(self, lags: np.ndarray) -> np.ndarray:
        """k at differences of x;  (g, p) -> (g,)."""
        kernel = self.params.kernel
        return kernel.tile(kernel.points(lags), kernel.points(np.zeros((1, lags.shape[1]))))[:, 0]

    def _slopes(self, lags: np.ndarray) -> np.ndarray:
        """dk/dtheta at differences of x;  (g, p) -> (g, t)."""
        kernel = self.params.kernel
        return kernel.contract(kernel.points(lags), kernel.points(np.zeros((1, lags.shape[1]))), np.ones((len(lags), 1)))

    @property
    def _used(self) -> Interpolated:
        """What products go through."""
        return self._on.single if self.dtype == np.float32 else self._on

    @cached_property
    def _symbol(self) -> np.ndarray:
        return self._on.symbol(self._values(self._on.grid.lags)).astype(self.dtype)

    @cached_property
    def _left(self) -> np.ndarray:
        """What the diagonal needs, noise included;  (n,)."""
        return self.diagonal - self.data.Z.squared() * self._on.quadratic(self._values(self._on.grid.near))

    @cached_property
    def _left_slopes(self) -> np.ndarray:
        """Its derivatives by the kernel's parameters;  (n, t)."""
        each = self._slopes(self._on.grid.near)
        known = np.column_stack([self._on.quadratic(each[:, t]) for t in range(each.shape[1])])
        return self.data.Z.squared()[:, None] * (self.params.kernel.diagonal_slopes(self.points) - known)

    def down(self, V: np.ndarray) -> np.ndarray:
        """W^T Z_l V for every l, transformed;  (n, c) -> (d c, ...)."""
        return self._used.down(self.features.array, V, self.executor)

    def _up(self, transformed: np.ndarray) -> np.ndarray:
        return self._used.up(transformed, self.features.array, self.executor)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        out = self._left[:, None] * V
        for chunk in slices(V.shape[1], 8):
            moved = self.down(V[:, chunk])
            moved *= self._symbol
            out[:, chunk] += self._up(moved)
        return out

    def contract_pairs(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        spectrum: Any = 0.0
        for chunk in slices(V.shape[1], 8):
            spectrum = spectrum + (self.down(U[:, chunk]).conj() * self.down(V[:, chunk])).sum(axis=0)
        both = np.einsum("ij,ij->i", U, V)
        along = self._on.correlation(spectrum, self.executor) @ self._slopes(self._on.grid.lags)
        return np.concatenate([along + both @ self._left_slopes, both @ self.noise_tangents])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        moved, slopes = self.down(v[:, None]), self._slopes(self._on.grid.lags)
        along = [self._up(moved * self._on.symbol(each).astype(self.dtype)) for each in slopes.T]
        return np.hstack([np.hstack(along) + v[:, None] * self._left_slopes, v[:, None] * self.noise_tangents])


def grid_covariances(
    data: Inputs, params: Params, executor: Executor, on: Interpolated | None
) -> tuple[Covariance, Covariance]:
    """C for many products, in float32 where that keeps its digits, and in float64."""
    precise = GridCovariance(data, params, executor, np.float64, on)
    return replace(precise, dtype=np.float32) if single_will_do(precise) else precise, precise


class GridSolver(CgSolver):
    """The iterative solver on a grid that one call of `place` lays for a whole fit."""

    def __init__(
        self,
        *args: Any,
        extent: Extent,
        count: int | None,
        share: float,
        on: Interpolated | None,
        allow_grid: Callable[[tuple[int, ...]], None],
        **more: Any,
    ):
        """`allow_grid` may refuse a grid of that many points in each dimension before it is laid."""
        super().__init__(*args, **more)
        self._extent, self._count, self._share_of_points, self._on = extent, count, share, on
        self._allow_grid = allow_grid
        self._held = False  # a search stays on its grid

    def place(self, data: Inputs, params: Params, hold: bool = False) -> Grid:
        """Lay the grid for these parameters, and hold on to it if asked to."""
        kernel, self._held = params.kernel, hold
        with self._journal.phase("grid"):
            grid = Grid.around(self._extent, kernel, self._count, self._fineness(data, params))
            self._allow_grid(grid.shape)
            self._on, self._pivots, self._draws, self._share = Interpolated.of(grid, kernel.vectors(data.x)), None, None, None
        return grid

    def _fineness(self, data: Inputs, params: Params) -> float:
        p = self._extent.low.size
        return self._share_of_points * per_length(sharpness(params, data.Z.shape[1], p), params.kernel.smoothness, p)

    def fine_for(self, data: Inputs, params: Params) -> bool:
        """Whether the grid still has 3/4 of the points that a length scale should have."""
        assert self._on is not None
        shortest = params.kernel.lengths(self._extent.half.size)[0]
        wanted = self._fineness(data, params) * self._on.grid.step
        return self._count is not None or bool((shortest * 4 / 3 >= wanted)[self._extent.half > 0].all())

    def _covariance(self, data: Inputs, params: Params) -> tuple[Covariance, Covariance]:
        if self._on is None or not (self._held or self.fine_for(data, params)):
            self.place(data, params)
        return grid_covariances(data, params, self._executor, self._on)

    def condition(self, data: Inputs, params: Params) -> GridParts:
        found = super().condition(data, params)
        assert self._on is not None
        C = GridCovariance(data, params, self._executor, np.float64, self._on)
        left = float((C._left - C.noise).mean() / C.noise.mean())
        if left > REFUSED_SHARE_OF_NOISE:
            raise SolverUnavailable(
                f"a grid of {' x '.join(map(str, self._on.grid.shape))} points is too coarse for this kernel: between them it "
                f"misses {left:.1f} times the variance of the noise, and deviations would be too small. Give a larger "
                "n_basis, or use solver='exact', 'cg' or 'inducing'"
            )
        moved = C.down(found.alpha[:, None]) * C._symbol
        weights = self._on.on_grid(moved, self._executor)
        return GridParts(**vars(found), on=self._on, weights=weights, left=left)


@dataclass(frozen=True)
class GridParts(CgParts):
    """As of the iterative solver; E[w*] is interpolated from `weights` (g, d), which is K_U W^T diag(alpha) Z.

    `left` is the variance that interpolation leaves, over the noise's; NaN for a model that was saved without it.
    """

    on: Interpolated
    weights: np.ndarray
    left: float = float("nan")

    never_below = False  # variances are those of k, and means those of its interpolation

    @property
    def variances(self) -> str:
        kind = "of k, not of its interpolation, which leaves" if self.left == self.left else "of k, not of its interpolation"
        left = f" {self.left:.1e} of the noise's variance" if self.left == self.left else ""
        said = super().variances.replace(NEVER_BELOW, f"{kind}{left}: no bounds")
        return said.replace("above it", "above the exact ones")

    def _covariances(self, executor: Executor) -> tuple[Covariance, Covariance]:
        return grid_covariances(self.data, self.params, executor, self.on)

    def means(self, x: Any, K: np.ndarray | None, executor: Executor, own: slice | None = None) -> np.ndarray:
        """4^p points a query; of one outside the grid, from all rows."""
        kernel = self.params.kernel
        vectors = kernel.vectors(x)
        found = np.empty((len(vectors), self.d))
        inside = self.on.grid.inside(vectors)
        if inside.any():
            found[inside] = self.on.grid.weights(vectors[inside]) @ self.weights
        if not inside.all():
            beyond = cross(kernel, kernel.points(vectors[~inside]), kernel.points(kernel.vectors(self.data.x)), executor)
            found[~inside] = self.mean(beyond, executor)
        if own is not None:
            found += self.params.sigma_w**2 * self.data.Z[own].scaled(self.alpha[own]).array
        return found
