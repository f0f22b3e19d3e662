"""The solver with conjugate gradients on a grid (KISS-GP), for length scales too short for a basis.

    K ~ W K_U W^T + diag(remainder)
    C V = sum_l diag(Z_l) W K_U W^T diag(Z_l) V + ...

W (n, g) is sparse: cubic interpolation between 4^p grid points per row. The remainder keeps the
diagonal exact. Z_l is column l of Z. K_U is Toeplitz in every dimension, so K_U v is computed by
fast Fourier transforms, and a product takes n 4^p d + d g log g operations per column.

Cubic interpolation leaves out about (step / l)^4 of a smooth k with length scale l, (step / l)^3
of a Matern 3/2, and step / l of a Matern 1/2, for which no affordable grid is fine enough.
Everything else (preconditioner, probes, variances from nearby rows) is that of `cg`, with k
itself. Variances do not include what interpolation leaves out, so they are not upper bounds.
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
from ..cg.planning import SMALLEST_RANK, SOLVE_COLUMNS, CGSettings, iterated_seconds
from ..cg.posterior import CGPosterior
from ..cg.solver import CGSolver
from ..contract import Plan, Problem, SolverSetup
from ..low_dimensional import (
    SUBSET_ROWS,
    InputExtent,
    must_be_low,
    must_be_resolved,
    relative_signal_to_noise_of,
)
from ..posterior import Posterior
from ..rates import Rates
from .interpolation import (
    LEAST_SMOOTHNESS,
    REFUSED_SHARE_OF_NOISE,
    Grid,
    GridCovariance,
    Interpolated,
    grid_bytes,
    grid_covariances,
    must_be_smooth,
    needed_fineness,
    points_of,
    points_per_length,
    resolves,
)
from .posterior import GridPosterior

# The preconditioner has at most this rank. Applying it takes n times the rank, which is more than
# a product on a grid.
GRID_RANK = 1_000
# A step of a search has about so many products, for the prediction of its time. Short length scales
# leave little of low rank, so iterations are few.
PRODUCTS_PER_STEP = 20.0
# If memory is short, a grid has at least this share of the points per length scale that it needs.
LEAST_FINENESS_SHARE = 0.6
# A search may build this many grids, one after another, while length scales become too short. The
# limit only makes sure that a search ends, and was chosen by hand.
MAX_GRIDS = 24


@stored
@dataclass(frozen=True)
class GridSettings(CGSettings):
    """The settings of conjugate gradients, and those of the grid.

    `count` is the number of points for each column of x. If it is None, there is a `share` of the
    points that the length scales require. `extent` is the range of x, and `points` the number of
    points of the whole grid, once they are known.
    """

    count: int | None = None
    share: float = 1.0
    extent: InputExtent | None = None
    points: int = 0

    def must_fit(self, preprocessor: Preprocessor) -> None:
        super().must_fit(preprocessor)
        must_be_resolved(self.count, self.extent, preprocessor)
        must(0.0 < self.share <= 1.0, "a share in its plan is not between 0 and 1")
        must(self.extent is not None, "its plan has no range of x")
        must(self.points >= 0, "a count of its plan is negative")


class GridSolver(CGSolver):
    """The solver with conjugate gradients on a grid, which is built once for each search."""

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
        self._fixed = False  # A search stays on its grid.

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        must_be_low(problem.p, problem.resolution, problem.options.dtype, cls.name)
        assert problem.resolution is not None
        must_be_smooth(problem.resolution)

    @classmethod
    def reason_against(cls, problem: Problem) -> str | None:
        found = problem.resolution
        if found is None or found.spans is None or found.smoothness < LEAST_SMOOTHNESS:
            return "it is for smooth kernels of few columns whose length scales are too short"
        return super().reason_against(problem)

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        """Return a plan for a grid as fine as memory allows.

        If memory is short, the grid becomes coarser, down to `LEAST_FINENESS_SHARE` of the points
        that it needs, and then the rank of the preconditioner becomes lower.
        """
        n, p, d, limit, jobs = problem.n, problem.p, problem.d, problem.memory_limit, problem.n_jobs
        rank, count, found = problem.options.rank, problem.options.n_basis, problem.resolution
        assert found is not None
        how = "Length scales are too short for a basis, so C is interpolated from a grid."
        subset, reasons = min(n, SUBSET_ROWS), [how]
        wanted = (
            int(min(n, GRID_RANK, max(SMALLEST_RANK, 4.0 * np.sqrt(n))))
            if rank is None
            else min(n, rank)
        )
        shared = min(n, GRID_RANK)
        if found.spans is None:
            needed = problem.exact_bytes(subset) + 8 * n * (p + 2 * d + 4)
            problem.require(needed, "The grid solver's search on a subset")
            reasons.append(
                "The grid is as fine as the length scales require. These are estimated first, by "
                f"the exact solver on {subset} rows."
            )
            return problem.planned(
                *(cls.name, np.float64, needed, reasons),
                subset=subset,
                settings=GridSettings("", 0, count=count),
                needs_length_scales=True,
            )
        shares = (
            [share for share in (1.0, 0.8, LEAST_FINENESS_SHARE) if resolves(found, share)]
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
            f"A grid of {shape} points for each of {d} weights",
            "a smaller n_basis, or fewer rows",
        )
        how = (
            f"{points_per_length(found, share):.0f} points per length scale"
            if count is None
            else "as many as were asked for"
        )
        reasons += [
            f"The grid has {shape} points, {how}.",
            f"The preconditioner has rank {rank_used} at most.",
        ]
        settings = GridSettings(
            "grid",
            rank_used,
            shared=min(shared, 4 * rank_used),
            count=count,
            share=share,
            extent=found.extent,
            points=int(np.prod(points)),
        )
        subset = subset if problem.options.searched else 0
        return problem.planned(
            cls.name, np.float64, needed, reasons, subset=subset, settings=settings
        )

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        return True

    @classmethod
    def is_as_exact(cls, problem: Problem) -> bool:
        return False

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float | None:
        """Return the predicted time, None as long as the length scales are not known.

        A product interpolates between 4^p points per row and weight, and takes an FFT of the grid
        per weight. The rest is as for `cg`, with few iterations, so that most of the time is that
        of the preconditioner.
        """
        settings, n = plan.settings_of(GridSettings), float(plan.n)
        if not settings.points:
            return None
        transformed = 2.0**plan.p * settings.points * np.log2(2.0 + settings.points)
        visited = plan.d * (4.0**plan.p * n + transformed)
        product = SOLVE_COLUMNS * visited / rates.products
        searched = plan.subset > 0
        return iterated_seconds(
            plan, product, settings.rank, rates, PRODUCTS_PER_STEP, is_searched=searched
        )

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> GridSolver:
        interpolated = known.interpolated if isinstance(known, GridPosterior) else None
        return cls(plan, plan.settings_of(GridSettings), setup.session, interpolated)

    def search(self, search: Search) -> Optimum:
        """Return the optimum by Newton's method on gradients.

        If length scales have become too short for the grid, the search goes on with a finer one.
        """
        limited, first = search.limited(), search.start
        if limited is not search:
            return self._for_rows(len(limited.rows)).search(limited)
        optimum = Optimum(first, None, False, "the search was stopped on a subset of the rows", [])
        for turn in range(MAX_GRIDS):
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
        """Return the range of x, which every plan has once length scales are known."""
        assert self.settings.extent is not None
        return self.settings.extent

    def build_grid(
        self, data: TrainingRows, hyperparameters: Hyperparameters, fixed: bool = False
    ) -> Grid:
        """Build and return the grid for these hyperparameters, and stay on it if it is `fixed`."""
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
        """Raise a MemoryLimitError if a grid is too fine, before it is built."""
        plan, settings = self._plan, self.settings
        needed = grid_bytes(
            plan.n, plan.p, plan.d, np.array(shape), settings.rank, settings.shared, plan.n_jobs
        )
        what = f"A grid of {' x '.join(map(str, shape))} points for each of {plan.d} weights"
        within(needed, plan.memory_limit, what, "a smaller n_basis, or fewer rows")

    def _fineness(self, data: TrainingRows, hyperparameters: Hyperparameters) -> float:
        """Return the number of grid points per length scale that the grid should have."""
        p = self._extent.low.size
        return self.settings.share * needed_fineness(
            relative_signal_to_noise_of(hyperparameters, data.Z.shape[1], p),
            hyperparameters.kernel.smoothness,
            p,
        )

    def _fine_for(self, data: TrainingRows, hyperparameters: Hyperparameters) -> bool:
        """Return whether the grid has at least 3/4 of the points per length scale that it needs."""
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
        left = float((C._remainder - C.noise).mean() / C.noise.mean())
        if left > REFUSED_SHARE_OF_NOISE:
            raise SolverUnavailable(
                f"A grid of {' x '.join(map(str, on.grid.shape))} points is too coarse for this "
                f"kernel. Interpolation leaves out {left:.1f} times the noise variance, so that "
                "standard deviations would be too small. Give a larger n_basis, or use "
                "solver='exact', 'cg' or 'neighbors'."
            )
        moved = C.to_spectrum(found.coefficients[:, None]) * C._symbol
        weights = on.on_grid(moved, self._session)
        known = {field.name: getattr(found, field.name) for field in fields(CGPosterior)}
        return GridPosterior(**known, interpolated=on, grid_weights=weights, remainder=left)
