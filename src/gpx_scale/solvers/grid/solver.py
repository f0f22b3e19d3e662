"""KISS-GP: the iterative solver with C interpolated from a regular grid, for length scales too short for a basis.

    K ~ W K_U W^T + diag(left),  W (n, g) sparse: cubic interpolation, 4^p points a row;  left: what keeps the diagonal exact
    C V = sum_l Z_l W K_U W^T Z_l V + ...,  Z_l = diag of column l;  K_U v by FFT, as K_U is Toeplitz in every dimension

A product costs n 4^p d + d g log g a column. Interpolation by cubics misses about (step / l)^4 of a smooth k, (step / l)^3 of
a Matern 3/2, and step / l of a Matern 1/2, which no affordable grid resolves. Everything else (preconditioner, probes,
variances from the rows nearby) is that of `cg`, on k itself: variances do not know what interpolation misses, and are no
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ...data.inputs import Preprocessor, TrainingRows
from ...data.row_source import RowSource
from ...errors import MemoryLimitError, SolverUnavailable
from ...linalg.covariance import Covariance
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.memory import within
from ...runtime.session import Session
from ...runtime.state import must, stored
from ..cg.planning import SMALLEST_RANK, CGSettings
from ..cg.posterior import CGPosterior
from ..cg.solver import CGSolver
from ..contract import EXACT_ROWS, Plan, Problem, SolverSetup
from ..low_dimensional import (
    SUBSET_ROWS,
    InputExtent,
    must_be_low,
    must_be_resolved,
    signal_to_noise_of,
)
from ..posterior import Posterior
from .interpolation import (
    REFUSED_SHARE_OF_NOISE,
    ROUGHEST,
    Grid,
    GridCovariance,
    Interpolated,
    grid_bytes,
    grid_covariances,
    must_be_smooth,
    per_length,
    points_of,
    points_per_length,
    resolves,
)
from .posterior import GridPosterior

GRID_RANK = 1_000  # of the preconditioner at most
GRID_COARSEST = 0.6  # share of the points that a grid should have, at least
MOVES = 24  # grids that a search may build


@stored
@dataclass(frozen=True)
class GridSettings(CGSettings):
    """What a grid plans, beside conjugate gradients: points for each column of x (None: a `share` of what the length scales
    ask for), and how far x extends, once it is known."""

    count: int | None = None
    share: float = 1.0
    extent: InputExtent | None = None

    def must_fit(self, preprocessor: Preprocessor) -> None:
        super().must_fit(preprocessor)
        must_be_resolved(self.count, self.extent, preprocessor)
        must(0.0 < self.share <= 1.0, "a share of its plan is not one")
        must(self.extent is not None, "its plan has no extent of x")


class GridSolver(CGSolver):
    """Conjugate gradients on a grid that one call of `build_grid` lays for a whole fit."""

    name = "grid"
    uses_pairs = False
    capabilities = GridPosterior.capabilities
    posterior_class = GridPosterior
    settings_class = GridSettings
    settings: GridSettings

    def __init__(
        self,
        plan: Plan,
        settings: GridSettings,
        session: Session,
        known: Interpolated | None = None,
    ) -> None:
        super().__init__(plan, settings, session)
        self._interpolated = known
        self._fixed = False  # a search stays on its grid

    # planning

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        must_be_low(problem.p, problem.resolution, problem.options.dtype, cls.name)
        assert problem.resolution is not None
        must_be_smooth(problem.resolution)

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        found = problem.resolution
        if problem.stream or problem.n <= EXACT_ROWS or found is None or found.spans is None:
            return None
        return (
            "length scales too short for a basis: interpolation on a grid"
            if found.smoothness >= ROUGHEST
            else None
        )

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        """Return a plan for a grid as fine as memory allows, down to GRID_COARSEST of what it should be; then less rank."""
        n, p, d, limit, jobs = problem.n, problem.p, problem.d, problem.memory_limit, problem.n_jobs
        rank, count, found = problem.options.rank, problem.options.n_basis, problem.resolution
        assert found is not None
        subset, reasons = min(n, SUBSET_ROWS), [reason]
        wanted = (
            int(min(n, GRID_RANK, max(SMALLEST_RANK, 4.0 * np.sqrt(n))))
            if rank is None
            else min(n, rank)
        )
        shared = min(n, GRID_RANK)
        if found.spans is None:
            needed = problem.exact_bytes(subset) + 8 * n * (p + 2 * d + 4)
            problem.require(needed, "the grid solver's search on a subset")
            reasons.append(
                f"as fine as the length scales ask for, which are found on {subset} rows, exactly"
            )
            return problem.planned(
                *(cls.name, np.float64, needed, reasons),
                subset=subset,
                settings=GridSettings("", 0, count=count),
                needs_length_scales=True,
            )
        shares = (
            [share for share in (1.0, 0.8, GRID_COARSEST) if resolves(found, share)]
            if count is None
            else [1.0]
        )
        ranks = [
            wanted,
            *(r for r in (wanted // 2, wanted // 4) if rank is None and r >= SMALLEST_RANK),
        ]
        for share, rank_used in ((a, b) for b in ranks for a in shares):
            points = points_of(found, share) if count is None else np.full(p, count)
            needed = grid_bytes(n, p, d, points, rank_used, min(shared, 4 * rank_used), jobs)
            if needed <= limit:
                break
        shape = " x ".join(map(str, points))
        problem.require(
            needed,
            f"a grid of {shape} points for each of {d} weights",
            "a smaller n_basis, or fewer rows",
        )
        how = (
            f"{points_per_length(found, share):.0f} points a length scale"
            if count is None
            else "as asked"
        )
        reasons += [
            f"a grid of {shape} points, {how}",
            f"preconditioner of rank {rank_used} at most",
        ]
        settings = GridSettings(
            "grid",
            rank_used,
            shared=min(shared, 4 * rank_used),
            count=count,
            share=share,
            extent=found.extent,
        )
        return problem.planned(
            cls.name, np.float64, needed, reasons, subset=subset, settings=settings
        )

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        return True

    @classmethod
    def work(cls, plan: Plan) -> float | None:
        """Return None: what a grid takes is known with its length scales only."""
        return None

    @classmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None) -> GridSolver:
        interpolated = known.interpolated if isinstance(known, GridPosterior) else None
        return cls(plan, plan.settings_of(GridSettings), setup.session, interpolated)

    # search

    def search(self, search: Search) -> Optimum:
        """Return the optimum by Newton's method on gradients.

        It is searched again on a finer grid where length scales have become too short.
        """
        first = search.start
        optimum = Optimum(first, None, False, "stopped on a subset", [])
        for turn in range(MOVES):
            if search.session.journal.stopped:
                return optimum
            try:
                self.build_grid(search.rows.load(), first, fixed=True)
            except MemoryLimitError as too_fine:
                if turn == 0:
                    raise
                return replace(optimum, converged=False, message=str(too_fine))
            optimum = search.starting_at(first).gradient_newton(self.evaluate)
            first = optimum.hyperparameters
            if self._fine_for(search.rows.load(), first):
                break
        return optimum

    @property
    def _extent(self) -> InputExtent:
        assert self.settings.extent is not None
        return self.settings.extent

    def build_grid(
        self, data: TrainingRows, hyperparameters: Hyperparameters, fixed: bool = False
    ) -> Grid:
        """Lay the grid for these parameters, and stay on it if it is `fixed`."""
        kernel, self._fixed = hyperparameters.kernel, fixed
        with self._session.journal.phase("grid"):
            grid = Grid.around(
                self._extent, kernel, self.settings.count, self._fineness(data, hyperparameters)
            )
            self._allow_grid(grid.shape)
            self._interpolated = Interpolated.of(grid, kernel.vectors(data.x))
            self._pivots, self._draws, self._control = None, None, None
        return grid

    def _allow_grid(self, shape: tuple[int, ...]) -> None:
        """Too fine a grid is refused before it is laid."""
        plan, settings = self._plan, self.settings
        needed = grid_bytes(
            plan.n, plan.p, plan.d, np.array(shape), settings.rank, settings.shared, plan.n_jobs
        )
        what = f"a grid of {' x '.join(map(str, shape))} points for each of {plan.d} weights"
        within(needed, plan.memory_limit, what, "a smaller n_basis, or fewer rows")

    def _fineness(self, data: TrainingRows, hyperparameters: Hyperparameters) -> float:
        p = self._extent.low.size
        return self.settings.share * per_length(
            signal_to_noise_of(hyperparameters, data.Z.shape[1], p),
            hyperparameters.kernel.smoothness,
            p,
        )

    def _fine_for(self, data: TrainingRows, hyperparameters: Hyperparameters) -> bool:
        """Return whether the grid still has 3/4 of the points that a length scale should have."""
        assert self._interpolated is not None
        shortest = hyperparameters.kernel.length_scale_range(self._extent.half.size)[0]
        wanted = self._fineness(data, hyperparameters) * self._interpolated.grid.step
        return self.settings.count is not None or bool(
            (shortest * 4 / 3 >= wanted)[self._extent.half > 0].all()
        )

    def _covariances(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[Covariance, Covariance]:
        if self._interpolated is None or not (self._fixed or self._fine_for(data, hyperparameters)):
            self.build_grid(data, hyperparameters)
        return grid_covariances(data, hyperparameters, self._session, self._interpolated)

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> GridPosterior:
        found = super().condition(rows, hyperparameters)
        on = self._interpolated
        assert on is not None
        C = GridCovariance(rows.load(), hyperparameters, self._session, np.float64, on)
        left = float((C._left - C.noise).mean() / C.noise.mean())
        if left > REFUSED_SHARE_OF_NOISE:
            raise SolverUnavailable(
                f"a grid of {' x '.join(map(str, on.grid.shape))} points is too coarse for this kernel: between them it "
                f"misses {left:.1f} times the variance of the noise, and deviations would be too small. Give a larger "
                "n_basis, or use solver='exact', 'cg' or 'inducing'"
            )
        moved = C.down(found.coefficients[:, None]) * C._symbol
        weights = on.on_grid(moved, self._session)
        known = {field.name: getattr(found, field.name) for field in fields(CGPosterior)}
        return GridPosterior(**known, interpolated=on, grid_weights=weights, remainder=left)
