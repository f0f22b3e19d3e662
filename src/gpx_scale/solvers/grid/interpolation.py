"""Cubic interpolation from a regular grid, and a covariance operator that multiplies through it.

    K ~ W K_U W^T + diag(remainder)

W (n, g) has the interpolation weights of every row, and K_U (g, g) is the kernel between points of
the grid, which is multiplied by fast Fourier transforms. The remainder keeps the diagonal exact.
"""

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
from ...kernels.kernel import Kernel
from ...linalg.covariance import Covariance
from ...linalg.covariance_forms import float32_is_enough
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_indices, must_be_numbers, stored
from ..low_dimensional import LARGEST_COUNT, USUAL_SIGNAL_TO_NOISE, InputExtent, InputResolution

# With this many grid points per length scale, the log marginal likelihood is less than 0.1 nats
# off at n = 800 (RBF, two dimensions).
POINTS_PER_LENGTH_SCALE = 5.0
# (factor, order) by the smoothness nu. With f points per length scale, interpolation leaves out
# factor f^-order of k for each column of x, on average over the places between grid points
# (measured for f from 4 to 20).
INTERPOLATION_ERROR = {np.inf: (0.09, 4), 2.5: (0.47, 4), 1.5: (0.33, 3), 0.5: (0.145, 1)}
# A grid is meant to leave out no more variance than this share of the noise variance.
RESOLVED_SHARE_OF_NOISE = 0.1
# A grid that is coarser for lack of memory is planned up to this share. Standard deviations are
# then too small by 15% at most.
PLANNED_SHARE_OF_NOISE = 1 / 3
# A fit that ends with more than this share is refused, because its 95% intervals of y would cover
# 83% or less.
REFUSED_SHARE_OF_NOISE = 1.0
# The grid has this many points beyond the data, so that cubics have neighbours on both sides.
EDGE_POINTS = 2
# The positions of the points around x in each dimension, in steps from the one below x.
NEIGHBOUR_STEPS = np.arange(-1, 3)
# No grid is built for a rougher kernel than this nu, because nu = 1/2 would need 145 points per
# length scale.
LEAST_SMOOTHNESS = 1.5
# One core transforms a number there and back in about this time.
TRANSFORM_NS = 10.0
# A worker takes this many rows at once.
ROWS_AT_ONCE = 4096
# A product takes this many columns at once, which bounds the memory of the transforms.
COLUMNS_AT_ONCE = 8
# A row may be outside of the grid by this share of a step, which is rounding.
STEP_ROUNDING = 1e-9
# Data narrower than this count as one point, because a step of denormal numbers would be 0.
LEAST_WIDTH = 1e-290


@stored
@dataclass(frozen=True)
class Grid:
    """A regular grid, with `origin` and `step` (p,), and the number of points per dimension."""

    origin: np.ndarray
    step: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def around(
        cls,
        extent: InputExtent,
        kernel: Kernel,
        count: int | None = None,
        fineness: float = POINTS_PER_LENGTH_SCALE,
    ) -> Grid:
        """Return a grid over the range of the data.

        It has `fineness` points per shortest length scale, or `count` points per dimension if that
        is given, and `EDGE_POINTS` more on each side.
        """
        width = 2.0 * extent.half
        counts = (
            np.full(width.size, count)
            if count
            else points_for(width / kernel.length_scale_range(width.size)[0], fineness)
        )
        step = np.where(width > LEAST_WIDTH, width, 1.0) / np.maximum(counts - 1, 1)
        return cls(
            extent.low - EDGE_POINTS * step, step, tuple(int(c) + 2 * EDGE_POINTS for c in counts)
        )

    @property
    def size(self) -> int:
        """Return the number of all points, g."""
        return int(np.prod(self.shape))

    def must_fit(self, p: int) -> None:
        """Raise a ValueError unless the grid has p dimensions and enough points for cubics."""
        must_be_numbers(self.origin, (p,), "the origin of the grid")
        must_be_numbers(self.step, (p,), "the step of the grid")
        enough = len(self.shape) == p and min(self.shape) >= NEIGHBOUR_STEPS.size
        must((self.step > 0).all() and enough, "the grid has too few points")

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Return which rows have grid points on all sides;  (n, p) -> (n,)."""
        t = (x - self.origin) / self.step
        last = np.array(self.shape) - 2.0
        found: np.ndarray = ((t >= 1.0 - STEP_ROUNDING) & (t <= last + STEP_ROUNDING)).all(axis=1)
        return found

    def weights(self, x: np.ndarray) -> sp.csr_array:
        """Return the interpolation weights W of rows;  (n, p) -> (n, g).

        They are Lagrange's cubics through the four points around x in each dimension.
        """
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
            columns = (
                columns[:, :, None] * count + (first[:, None] + NEIGHBOUR_STEPS)[:, None, :]
            ).reshape(len(x), -1)
            values = (values[:, :, None] * cubics[:, None, :]).reshape(len(x), -1)
        # Short indices halve the memory that a product reads.
        index = np.int32 if max(columns.size, self.size) < 2**31 else np.int64
        pointers = columns.shape[1] * np.arange(len(x) + 1, dtype=index)
        return sp.csr_array(
            (values.ravel(), columns.ravel().astype(index), pointers), shape=(len(x), self.size)
        )

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Return the shape of a grid at least twice as large in each dimension.

        A circulant matrix of that size contains the Toeplitz matrix K_U.
        """
        return tuple(scipy.fft.next_fast_len(2 * count - 1, real=True) for count in self.shape)

    @cached_property
    def lags(self) -> np.ndarray:
        """Return the differences of x in the first column of the circulant matrix.

        (prod padded, p)
        """
        counts = [np.minimum(np.arange(size), size - np.arange(size)) for size in self.padded]
        each = [count * step for count, step in zip(counts, self.step, strict=True)]
        return np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, self.step.size)

    @cached_property
    def near(self) -> np.ndarray:
        """Return the differences of x between all pairs of the 4^p points around a row.

        (16^p, p)
        """
        points = np.array(list(product(NEIGHBOUR_STEPS, repeat=self.step.size))) * self.step
        differences: np.ndarray = np.abs(points[:, None] - points)
        return differences.reshape(-1, self.step.size)


def points_per_length(low: InputResolution, share: float = 1.0) -> float:
    """Return the grid points per length scale that smoothness and noise require, times a share."""
    assert low.spans is not None
    return share * needed_fineness(low.relative_signal_to_noise, low.smoothness, len(low.spans))


def points_of(low: InputResolution, share: float = 1.0) -> np.ndarray:
    """Return the number of grid points of each dimension, edges included;  (p,)."""
    return points_for(2.0 * np.array(low.spans), points_per_length(low, share)) + 2 * EDGE_POINTS


def resolves(low: InputResolution, share: float) -> bool:
    """Return whether a share of the required points leaves out little beside the noise."""
    assert low.spans is not None
    return (
        relative_remainder(
            points_per_length(low, share),
            low.relative_signal_to_noise,
            low.smoothness,
            len(low.spans),
        )
        <= PLANNED_SHARE_OF_NOISE
    )


def must_be_smooth(low: InputResolution) -> None:
    """Raise SolverUnavailable if the kernel is too rough for interpolation."""
    if low.smoothness < LEAST_SMOOTHNESS:
        raise SolverUnavailable(
            "solver='grid' interpolates between points, and a Matern 1/2 kernel is too rough for "
            "that. Use solver='exact', 'cg' or 'neighbors', or a smoother kernel."
        )


def grid_bytes(
    n: int, p: int, d: int, points: np.ndarray, rank: int, shared: int, n_jobs: int
) -> int:
    """Return the memory of a fit, in bytes.

    It has W and its transpose, the transforms of 8 columns for each weight, the kernel on the
    grid, the preconditioner, and the rows that variances are conditioned on.
    """
    padded = float(np.prod(2.0 * points))
    interpolation = 2 * 16 * n * 4**p
    transforms = padded * (8 * d * 5 + 6 * (p + 6)) * 8
    rows = 8 * n * (3 * 8 * d + 8 * 32 + 3 * rank + 2 * shared + 4 * (p + 2) + 3 * d)
    return int(interpolation + transforms + rows + n_jobs * 2**25)


def points_for(spans: np.ndarray, fineness: float) -> np.ndarray:
    """Return the grid points of each dimension, for data of `spans` length scales;  (p,)."""
    steps: np.ndarray = np.ceil(np.minimum(spans * fineness, LARGEST_COUNT))
    return steps.astype(int) + 1


def needed_fineness(relative_signal_to_noise: float, smoothness: float, p: int) -> float:
    """Return the grid points per length scale that a kernel needs.

    There are `POINTS_PER_LENGTH_SCALE`, and more if the kernel is rough or the noise is small.
    """
    factor, order = INTERPOLATION_ERROR[smoothness]
    share = factor * p * USUAL_SIGNAL_TO_NOISE * relative_signal_to_noise / RESOLVED_SHARE_OF_NOISE
    return max(
        POINTS_PER_LENGTH_SCALE * float(relative_signal_to_noise**0.25),
        float(share ** (1.0 / order)),
    )


def relative_remainder(
    fineness: float, relative_signal_to_noise: float, smoothness: float, p: int
) -> float:
    """Return the variance that interpolation leaves out, divided by the noise variance.

    `fineness` is the number of grid points per length scale.
    """
    factor, order = INTERPOLATION_ERROR[smoothness]
    return float(factor * p * fineness**-order * USUAL_SIGNAL_TO_NOISE * relative_signal_to_noise)


@stored
@dataclass(frozen=True)
class Interpolated:
    """The interpolation weights W of the rows, which do not depend on the hyperparameters.

    The rows of W are in the `order` of their cells of the grid, so that rows that use the same
    points are near each other in memory.
    """

    grid: Grid
    order: np.ndarray
    W: sp.csr_array

    def must_fit(self, n: int, p: int) -> None:
        """Raise a ValueError unless these are n rows on a grid of p dimensions."""
        self.grid.must_fit(p)
        W, points = self.W, int(np.prod(self.grid.shape, dtype=object))
        must_be_indices(self.order, n, "the order of the rows", n)
        finite = isinstance(W, sp.csr_array) and W.dtype == np.float64 and np.isfinite(W.data).all()
        must(finite, "the interpolation weights are not a sparse matrix of finite numbers")
        must(W.shape == (n, points), "the interpolation weights are of other rows or points")
        around = NEIGHBOUR_STEPS.size**p
        full = (np.diff(W.indptr) == around).all() and W.data.size == n * around
        must(full, f"a row is not interpolated between {around} points")

    @classmethod
    def of(cls, grid: Grid, x: np.ndarray) -> Interpolated:
        """Return the interpolation of rows on a grid;  (n, p)."""
        cells = np.floor((x - grid.origin) / grid.step).astype(np.int64)
        order = np.lexsort(cells.T[::-1])
        return cls(grid, order, grid.weights(x[order]))

    @cached_property
    def transposed(self) -> sp.csr_array:
        """Return W^T;  (g, n)."""
        return sp.csr_array(self.W.T)

    @cached_property
    def single(self) -> Interpolated:
        """Return this interpolation with its weights in float32."""
        return replace(self, W=self.W.astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        # Cached copies are left out, because they can be computed again.
        return {"grid": self.grid, "order": self.order, "W": self.W}

    def to_spectrum(self, Z: np.ndarray, V: np.ndarray, session: Session) -> np.ndarray:
        """Return the Fourier transform of W^T diag(Z_l) V on the padded grid, for every weight l.

        (n, d), (n, c) -> (d c, ...)
        """
        V, A = (
            np.ascontiguousarray(V, Z.dtype),
            np.empty((len(Z), Z.shape[1] * V.shape[1]), Z.dtype),
        )
        session.executor.map(
            lambda rows: outer_rows(self.order[rows], Z, V, A[rows]), slices(len(A), ROWS_AT_ONCE)
        )
        grid = np.ascontiguousarray(_times(self.transposed, A, session).T).reshape(
            -1, *self.grid.shape
        )
        spectrum: np.ndarray = scipy.fft.rfftn(
            grid, s=self.grid.padded, axes=self._axes, workers=session.executor.n_jobs
        )
        return spectrum

    def from_spectrum(self, transformed: np.ndarray, Z: np.ndarray, session: Session) -> np.ndarray:
        """Return sum_l diag(Z_l) W U_l, where U has that transform.

        (d c, ...), (n, d) -> (n, c)
        """
        A = _times(self.W, self.on_grid(transformed, session), session)
        out = np.empty((len(Z), A.shape[1] // Z.shape[1]))
        session.executor.map(
            lambda rows: inner_rows(self.order[rows], Z, A[rows], out), slices(len(A), ROWS_AT_ONCE)
        )
        return out

    def on_grid(self, transformed: np.ndarray, session: Session) -> np.ndarray:
        """Return the numbers on the grid that have that transform;  (c, ...) -> (g, c)."""
        whole = scipy.fft.irfftn(
            transformed, s=self.grid.padded, axes=self._axes, workers=session.executor.n_jobs
        )
        cut = whole[(slice(None), *(slice(0, count) for count in self.grid.shape))]
        return np.ascontiguousarray(cut.reshape(len(cut), -1).T)

    def correlation(self, transformed: np.ndarray, session: Session) -> np.ndarray:
        """Return the correlation at every lag, from its transform;  (...) -> (prod padded,)."""
        found: np.ndarray = scipy.fft.irfftn(
            transformed, s=self.grid.padded, workers=session.executor.n_jobs
        )
        return found.ravel()

    def symbol(self, column: np.ndarray) -> np.ndarray:
        """Return the eigenvalues of a circulant matrix, from its first column.

        (prod padded,) -> (...)
        """
        spectrum: np.ndarray = scipy.fft.rfftn(column.reshape(self.grid.padded))
        return spectrum.real

    def quadratic(self, block: np.ndarray) -> np.ndarray:
        """Return w_i^T A w_i for the interpolation weights w_i of each row;  (16^p,) -> (n,).

        A is a matrix between the 4^p points around a row, given as a vector.
        """
        w, found = self.W.data.reshape(self.W.shape[0], -1), np.empty(self.W.shape[0])
        found[self.order] = np.einsum("ij,ij->i", w @ block.reshape(w.shape[1], -1), w)
        return found

    @property
    def _axes(self) -> tuple[int, ...]:
        """Return the axes of the grid in an array whose first axis counts columns."""
        return tuple(range(1, 1 + len(self.grid.shape)))


def _times(A: sp.csr_array, B: np.ndarray, session: Session) -> np.ndarray:
    """Return A B, computed in blocks of rows;  (n, m), (m, c) -> (n, c)."""
    out = np.empty((A.shape[0], B.shape[1]), B.dtype)

    def block(rows: slice) -> None:
        sparse_times(A.indptr[rows.start : rows.stop + 1], A.indices, A.data, B, out[rows])

    session.executor.map(block, slices(len(out), ROWS_AT_ONCE))
    return out


@dataclass(frozen=True)
class GridCovariance(Covariance):
    """The covariance C, whose products are interpolated from a grid, in `dtype`.

    Its diagonal and its single columns are those of k itself.
    """

    on: Interpolated | None = None

    @property
    def _on(self) -> Interpolated:
        """Return the interpolation, which every object but the default has."""
        assert self.on is not None
        return self.on

    def _kernel_values(self, lags: np.ndarray) -> np.ndarray:
        """Return k at differences of x;  (g, p) -> (g,)."""
        kernel = self.weight_prior.kernel
        origin = kernel.prepare(np.zeros((1, lags.shape[1])))
        values: np.ndarray = kernel.tile(kernel.prepare(lags), origin)[:, 0]
        return values

    def _kernel_gradients(self, lags: np.ndarray) -> np.ndarray:
        """Return dk/dtheta at differences of x;  (g, p) -> (g, t)."""
        kernel = self.weight_prior.kernel
        origin = kernel.prepare(np.zeros((1, lags.shape[1])))
        ones = np.ones((len(lags), 1))
        gradients: np.ndarray = kernel.contract_gradient(kernel.prepare(lags), origin, ones)
        return gradients

    @property
    def _used(self) -> Interpolated:
        """Return the interpolation in the precision of the products."""
        return self._on.single if self.dtype == np.float32 else self._on

    @cached_property
    def _symbol(self) -> np.ndarray:
        """Return the eigenvalues of the circulant matrix that contains K_U."""
        return self._on.symbol(self._kernel_values(self._on.grid.lags)).astype(self.dtype)

    @cached_property
    def _remainder(self) -> np.ndarray:
        """Return the diagonal of C minus that of its interpolation, noise included;  (n,)."""
        known = self._on.quadratic(self._kernel_values(self._on.grid.near))
        remainder: np.ndarray = self.diagonal - self.rows.Z.squared_norms() * known
        return remainder

    @cached_property
    def _remainder_gradient(self) -> np.ndarray:
        """Return the derivatives of `_remainder` by the kernel's parameters;  (n, t)."""
        each = self._kernel_gradients(self._on.grid.near)
        known = np.column_stack([self._on.quadratic(each[:, t]) for t in range(each.shape[1])])
        own = self.weight_prior.kernel.diagonal_gradient(self.prepared.points)
        gradient: np.ndarray = self.rows.Z.squared_norms()[:, None] * (own - known)
        return gradient

    @property
    def _features(self) -> np.ndarray:
        """Return Z in the precision of the products;  (n, d)."""
        return self.prepared.Z.to_dense()

    @property
    def product_cost(self) -> float:
        return TRANSFORM_NS * 16 * self.rows.Z.shape[1] * float(np.prod(self._on.grid.padded))

    def to_spectrum(self, V: np.ndarray) -> np.ndarray:
        """Return the transforms of W^T diag(Z_l) V for every weight l;  (n, c) -> (d c, ...)."""
        return self._used.to_spectrum(self._features, V, self.session)

    def _from_spectrum(self, transformed: np.ndarray) -> np.ndarray:
        """Return sum_l diag(Z_l) W U_l, where U has that transform;  (d c, ...) -> (n, c)."""
        return self._used.from_spectrum(transformed, self._features, self.session)

    def matmul(self, V: np.ndarray) -> np.ndarray:
        out: np.ndarray = self._remainder[:, None] * V
        for chunk in slices(V.shape[1], COLUMNS_AT_ONCE):
            moved = self.to_spectrum(V[:, chunk])
            moved *= self._symbol
            out[:, chunk] += self._from_spectrum(moved)
        return out

    def contract(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        spectrum: Any = 0.0
        for chunk in slices(V.shape[1], COLUMNS_AT_ONCE):
            spectrum = spectrum + (
                self.to_spectrum(U[:, chunk]).conj() * self.to_spectrum(V[:, chunk])
            ).sum(axis=0)
        both = np.einsum("ij,ij->i", U, V)
        along = self._on.correlation(spectrum, self.session) @ self._kernel_gradients(
            self._on.grid.lags
        )
        return np.concatenate([along + both @ self._remainder_gradient, both @ self.noise_gradient])

    def tangents(self, v: np.ndarray) -> np.ndarray:
        moved, slopes = self.to_spectrum(v[:, None]), self._kernel_gradients(self._on.grid.lags)
        along = [
            self._from_spectrum(moved * self._on.symbol(each).astype(self.dtype))
            for each in slopes.T
        ]
        return np.hstack(
            [
                np.hstack(along) + v[:, None] * self._remainder_gradient,
                v[:, None] * self.noise_gradient,
            ]
        )


def grid_covariances(
    data: TrainingRows, hyperparameters: Hyperparameters, session: Session, on: Interpolated | None
) -> tuple[Covariance, Covariance]:
    """Return C for many products, in float32 if that is accurate enough, and C in float64."""
    precise = GridCovariance(data, hyperparameters, session, np.float64, on)
    return replace(precise, dtype=np.float32) if float32_is_enough(precise) else precise, precise
