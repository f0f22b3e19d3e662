"""Interpolation on a grid, and the covariance by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import scipy.fft
import scipy.sparse as sp

from ...compiled.sparse import inner_rows, outer_rows, sparse_times
from ...data.inputs import TrainingRows
from ...errors import SolverUnavailable
from ...linalg.covariance import Covariance
from ...linalg.sparse_covariance import float32_is_enough
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_indices, must_be_numbers, stored
from ..low_dimensional import LARGEST_COUNT, SHARP, InputExtent, InputResolution

PER_LENGTH = (
    5.0  # grid points per length scale: less than 0.1 nats off at n = 800 (RBF, two dimensions)
)
# (factor, order) by smoothness nu: with f points per length scale, interpolation leaves factor f^-order of k for each column
# of x, in the mean over the places between grid points (measured for f from 4 to 20).
INTERPOLATION_LEAVES = {np.inf: (0.09, 4), 2.5: (0.47, 4), 1.5: (0.33, 3), 0.5: (0.145, 1)}
RESOLVED_SHARE_OF_NOISE = (
    0.1  # The variance that interpolation leaves is meant to be this share of the noise's, at most.
)
PLANNED_SHARE_OF_NOISE = (
    1 / 3
)  # A grid that memory makes coarser is planned up to here: deviations are 15% short at most.
REFUSED_SHARE_OF_NOISE = (
    1.0  # A fit that ends with more is refused: its 95% intervals of y would cover 83% or less.
)
EDGE = 2  # points beyond the data, so that cubics have neighbours
ORDER = np.arange(-1, 3)  # of the points next to x, in steps
ROUGHEST = 1.5  # smoothness nu of the roughest kernel that a grid is laid for: 145 points per length scale at nu = 1/2
TRANSFORM_NS = 10.0  # of one core: a number that is transformed there and back, about
BLOCK = 4096  # rows that a worker takes at once


@stored
@dataclass(frozen=True)
class Grid:
    """A regular grid;  origin and step (p,), points a dimension."""

    origin: np.ndarray
    step: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def around(
        cls,
        extent: InputExtent,
        kernel: Any,
        count: int | None = None,
        fineness: float = PER_LENGTH,
    ) -> Grid:
        """Over the data, `fineness` points to the shortest length scale, or `count` a dimension."""
        width = 2.0 * extent.half
        counts = (
            np.full(width.size, count)
            if count
            else points_for(width / kernel.length_scale_range(width.size)[0], fineness)
        )
        step = np.where(width > 1e-290, width, 1.0) / np.maximum(
            counts - 1, 1
        )  # a step of denormals would be 0
        return cls(extent.low - EDGE * step, step, tuple(int(c) + 2 * EDGE for c in counts))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def must_fit(self, p: int) -> None:
        """Raise a ValueError unless this is a grid of p dimensions that cubics can be laid on."""
        must_be_numbers(self.origin, (p,), "the origin of the grid")
        must_be_numbers(self.step, (p,), "the step of the grid")
        enough = len(self.shape) == p and min(self.shape) >= ORDER.size
        must((self.step > 0).all() and enough, "the grid has too few points")

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
                [
                    -f * after * last / 6,
                    before * after * last / 2,
                    -before * f * last / 2,
                    before * f * after / 6,
                ]
            )
            columns = (columns[:, :, None] * count + (first[:, None] + ORDER)[:, None, :]).reshape(
                len(x), -1
            )
            values = (values[:, :, None] * cubics[:, None, :]).reshape(len(x), -1)
        index = (
            np.int32 if max(columns.size, self.size) < 2**31 else np.int64
        )  # half the traffic of a product
        pointers = columns.shape[1] * np.arange(len(x) + 1, dtype=index)
        return sp.csr_array(
            (values.ravel(), columns.ravel().astype(index), pointers), shape=(len(x), self.size)
        )

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


def points_per_length(low: InputResolution, share: float = 1.0) -> float:
    """Grid points per length scale, as many as roughness and noise ask for, or a share of that."""
    assert low.spans is not None
    return share * per_length(low.signal_to_noise, low.smoothness, len(low.spans))


def points_of(low: InputResolution, share: float = 1.0) -> np.ndarray:
    """Grid points a dimension."""
    return points_for(2.0 * np.array(low.spans), points_per_length(low, share)) + 2 * EDGE


def resolves(low: InputResolution, share: float) -> bool:
    """Whether a grid with a share of the points still resolves the kernel beside the noise."""
    assert low.spans is not None
    return (
        left_by(points_per_length(low, share), low.signal_to_noise, low.smoothness, len(low.spans))
        <= PLANNED_SHARE_OF_NOISE
    )


def must_be_smooth(low: InputResolution) -> None:
    if low.smoothness < ROUGHEST:
        raise SolverUnavailable(
            "solver='grid' interpolates between points, and a Matern 1/2 is too rough for that: use solver='exact', 'cg', "
            "'basis' or 'inducing', or a smoother kernel"
        )


def grid_bytes(
    n: int, p: int, d: int, points: np.ndarray, rank: int, shared: int, n_jobs: int
) -> int:
    """Interpolation both ways, transforms of 8 columns a weight, what the grid knows of k, preconditioner, variances."""
    padded = float(np.prod(2.0 * points))
    interpolation = 2 * 16 * n * 4**p
    transforms = padded * (8 * d * 5 + 6 * (p + 6)) * 8
    rows = 8 * n * (3 * 8 * d + 8 * 32 + 3 * rank + 2 * shared + 4 * (p + 2) + 3 * d)
    return int(interpolation + transforms + rows + n_jobs * 2**25)


def points_for(spans: np.ndarray, fineness: float) -> np.ndarray:
    """Grid points a dimension, for data that many length scales wide;  (p,)."""
    return np.ceil(np.minimum(spans * fineness, LARGEST_COUNT)).astype(int) + 1


def per_length(signal_to_noise: float, smoothness: float, p: int) -> float:
    """Return grid points per length scale: PER_LENGTH, and more for rough kernels, and where little noise hides the rest."""
    factor, order = INTERPOLATION_LEAVES[smoothness]
    needed = (factor * p * SHARP * signal_to_noise / RESOLVED_SHARE_OF_NOISE) ** (1.0 / order)
    return max(PER_LENGTH * signal_to_noise**0.25, needed)


def left_by(fineness: float, signal_to_noise: float, smoothness: float, p: int) -> float:
    """Return the variance that interpolation leaves, over the noise's, with that many points per length scale."""
    factor, order = INTERPOLATION_LEAVES[smoothness]
    return factor * p * fineness**-order * SHARP * signal_to_noise


@stored
@dataclass(frozen=True)
class Interpolated:
    """The rows on the grid, whatever the parameters: W of the rows in the `order` of their cells, so that those that meet in
    a product are near each other in memory."""

    grid: Grid
    order: np.ndarray
    W: sp.csr_array

    def must_fit(self, n: int, p: int) -> None:
        """Raise a ValueError unless these are n rows on a grid of p dimensions."""
        self.grid.must_fit(p)
        W, points = self.W, int(np.prod(self.grid.shape, dtype=object))
        must_be_indices(self.order, n, "the order of the rows", n)
        finite = isinstance(W, sp.csr_array) and W.dtype == np.float64 and np.isfinite(W.data).all()
        must(finite, "interpolation of other numbers")
        must(W.shape == (n, points), "interpolation of other rows or points")
        around = ORDER.size**p
        full = (np.diff(W.indptr) == around).all() and W.data.size == n * around
        must(full, "interpolation between other points")

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

    def down(self, Z: np.ndarray, V: np.ndarray, session: Session) -> np.ndarray:
        """W^T Z_l V for every l, in the transform of the padded grid;  (n, d), (n, c) -> (d c, ...)."""
        V, A = (
            np.ascontiguousarray(V, Z.dtype),
            np.empty((len(Z), Z.shape[1] * V.shape[1]), Z.dtype),
        )
        session.executor.map(
            lambda rows: outer_rows(self.order[rows], Z, V, A[rows]), slices(len(A), BLOCK)
        )
        grid = np.ascontiguousarray(_times(self.back, A, session).T).reshape(-1, *self.grid.shape)
        return scipy.fft.rfftn(
            grid, s=self.grid.padded, axes=self._axes, workers=session.executor.n_jobs
        )

    def up(self, transformed: np.ndarray, Z: np.ndarray, session: Session) -> np.ndarray:
        """sum_l Z_l W U_l of what has that transform;  (d c, ...), (n, d) -> (n, c)."""
        A = _times(self.W, self.on_grid(transformed, session), session)
        out = np.empty((len(Z), A.shape[1] // Z.shape[1]))
        session.executor.map(
            lambda rows: inner_rows(self.order[rows], Z, A[rows], out), slices(len(A), BLOCK)
        )
        return out

    def on_grid(self, transformed: np.ndarray, session: Session) -> np.ndarray:
        """(c, ...) -> (g, c)."""
        whole = scipy.fft.irfftn(
            transformed, s=self.grid.padded, axes=self._axes, workers=session.executor.n_jobs
        )
        cut = whole[(slice(None), *(slice(0, count) for count in self.grid.shape))]
        return np.ascontiguousarray(cut.reshape(len(cut), -1).T)

    def correlation(self, transformed: np.ndarray, session: Session) -> np.ndarray:
        """From a spectrum to lags;  (...) -> (prod padded,)."""
        return scipy.fft.irfftn(
            transformed, s=self.grid.padded, workers=session.executor.n_jobs
        ).ravel()

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


def _times(A: sp.csr_array, B: np.ndarray, session: Session) -> np.ndarray:
    """A B by blocks of rows;  (n, m), (m, c) -> (n, c)."""
    out = np.empty((A.shape[0], B.shape[1]), B.dtype)

    def block(rows: slice) -> None:
        sparse_times(A.indptr[rows.start : rows.stop + 1], A.indices, A.data, B, out[rows])

    session.executor.map(block, slices(len(out), BLOCK))
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
        kernel = self.weight_prior.kernel
        return kernel.tile(kernel.prepare(lags), kernel.prepare(np.zeros((1, lags.shape[1]))))[:, 0]

    def _slopes(self, lags: np.ndarray) -> np.ndarray:
        """dk/dtheta at differences of x;  (g, p) -> (g, t)."""
        kernel = self.weight_prior.kernel
        return kernel.contract_gradient(
            kernel.prepare(lags),
            kernel.prepare(np.zeros((1, lags.shape[1]))),
            np.ones((len(lags), 1)),
        )

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
        return self.diagonal - self.rows.Z.squared_norms() * self._on.quadratic(
            self._values(self._on.grid.near)
        )

    @cached_property
    def _left_slopes(self) -> np.ndarray:
        """Its derivatives by the kernel's parameters;  (n, t)."""
        each = self._slopes(self._on.grid.near)
        known = np.column_stack([self._on.quadratic(each[:, t]) for t in range(each.shape[1])])
        return self.rows.Z.squared_norms()[:, None] * (
            self.weight_prior.kernel.diagonal_gradient(self.prepared.points) - known
        )

    @property
    def _features(self) -> np.ndarray:
        return self.prepared.Z.to_dense()

    @property
    def product_cost(self) -> float:
        return TRANSFORM_NS * 16 * self.rows.Z.shape[1] * float(np.prod(self._on.grid.padded))

    def down(self, V: np.ndarray) -> np.ndarray:
        """W^T Z_l V for every l, transformed;  (n, c) -> (d c, ...)."""
        return self._used.down(self._features, V, self.session)

    def _up(self, transformed: np.ndarray) -> np.ndarray:
        return self._used.up(transformed, self._features, self.session)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        out = self._left[:, None] * V
        for chunk in slices(V.shape[1], 8):
            moved = self.down(V[:, chunk])
            moved *= self._symbol
            out[:, chunk] += self._up(moved)
        return out

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        spectrum: Any = 0.0
        for chunk in slices(V.shape[1], 8):
            spectrum = spectrum + (self.down(U[:, chunk]).conj() * self.down(V[:, chunk])).sum(
                axis=0
            )
        both = np.einsum("ij,ij->i", U, V)
        along = self._on.correlation(spectrum, self.session) @ self._slopes(self._on.grid.lags)
        return np.concatenate([along + both @ self._left_slopes, both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        moved, slopes = self.down(v[:, None]), self._slopes(self._on.grid.lags)
        along = [self._up(moved * self._on.symbol(each).astype(self.dtype)) for each in slopes.T]
        return np.hstack(
            [np.hstack(along) + v[:, None] * self._left_slopes, v[:, None] * self.noise_gradient]
        )


def grid_covariances(
    data: TrainingRows, hyperparameters: Hyperparameters, session: Session, on: Interpolated | None
) -> tuple[Covariance, Covariance]:
    """C for many products, in float32 where that keeps its digits, and in float64."""
    precise = GridCovariance(data, hyperparameters, session, np.float64, on)
    return replace(precise, dtype=np.float32) if float32_is_enough(precise) else precise, precise
