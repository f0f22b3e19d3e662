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
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.inputs import TrainingRows
from ...errors import SolverUnavailable
from ...linalg.covariance import Covariance
from ...model.hyperparameters import Hyperparameters
from ...model.weight_prior import cross
from ...runtime.parallel import Executor
from ..cg.posterior import NEVER_BELOW, CgParts
from ..cg.solver import CGSolver
from ..low_dimensional import InputExtent, sharpness
from .interpolation import REFUSED_SHARE_OF_NOISE, Grid, GridCovariance, Interpolated, grid_covariances, per_length


class GridSolver(CGSolver):
    """The iterative solver on a grid that one call of `place` lays for a whole fit."""

    def __init__(
        self,
        *args: Any,
        extent: InputExtent,
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

    def place(self, data: TrainingRows, params: Hyperparameters, hold: bool = False) -> Grid:
        """Lay the grid for these parameters, and hold on to it if asked to."""
        kernel, self._held = params.kernel, hold
        with self._journal.phase("grid"):
            grid = Grid.around(self._extent, kernel, self._count, self._fineness(data, params))
            self._allow_grid(grid.shape)
            self._on, self._pivots, self._draws, self._share = Interpolated.of(grid, kernel.vectors(data.x)), None, None, None
        return grid

    def _fineness(self, data: TrainingRows, params: Hyperparameters) -> float:
        p = self._extent.low.size
        return self._share_of_points * per_length(sharpness(params, data.Z.shape[1], p), params.kernel.smoothness, p)

    def fine_for(self, data: TrainingRows, params: Hyperparameters) -> bool:
        """Whether the grid still has 3/4 of the points that a length scale should have."""
        assert self._on is not None
        shortest = params.kernel.length_scale_range(self._extent.half.size)[0]
        wanted = self._fineness(data, params) * self._on.grid.step
        return self._count is not None or bool((shortest * 4 / 3 >= wanted)[self._extent.half > 0].all())

    def _covariance(self, data: TrainingRows, params: Hyperparameters) -> tuple[Covariance, Covariance]:
        if self._on is None or not (self._held or self.fine_for(data, params)):
            self.place(data, params)
        return grid_covariances(data, params, self._executor, self._on)

    def condition(self, data: TrainingRows, params: Hyperparameters) -> GridParts:
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
            beyond = cross(kernel, kernel.prepare(vectors[~inside]), kernel.prepare(kernel.vectors(self.data.x)), executor)
            found[~inside] = self.mean(beyond, executor)
        if own is not None:
            found += self.params.sigma_w**2 * self.data.Z[own].scale_rows(self.alpha[own]).array
        return found
