"""The inducing-point solver: the bound with its slopes over passes of the rows, and the posterior from m points alone.

    E[w*] = k(x*, X_u) diag(v) Z_u       Cov[g*] = k** I - W^T E W,   W = L^-1 diag(k*) Z_u,   E = I - (I + Psi)^-1

The fitted parts hold no training row: the points, L and the statistics are all there is, and more rows can be added to these.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.inputs import InputRows, Preprocessor
from ...data.row_source import BLOCK_ROWS, MemoryRows, RowSource
from ...errors import InputError, JitterWarning
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.parallel import worthwhile_threads
from ...runtime.session import Session
from ...runtime.state import must, stored
from ..contract import CG_ROWS, Evidence, Plan, Problem, Solver, SolverSettings, SolverSetup
from ..exact.solver import exact_subset_optimum
from ..posterior import Posterior
from .collapsed_bound import BlockStatistics, Bound, BoundGradient, InducingVariables
from .point_optimization import curvature, optimize_points
from .point_selection import PointSelection, alike, can_move
from .posterior import InducingPosterior

STEADY_DIGITS = 34  # Binary digits of the bound that a search sees, so that it does not depend on the order of sums.
SUBSET_ROWS = 2_000  # of the exact search that inducing points start from
SAMPLE_PER_POINT, SMALLEST_SAMPLE = (
    10,
    10_000,
)  # rows that inducing points are chosen from, and moved on
MOST_CURVED = 16  # Parameters up to which differences of gradients cost less than what they save; beyond, L-BFGS.
BOUND_TOLERANCE_NATS_PER_ROW = (
    1e-4  # of the last search on a bound, which is many nats off the evidence itself
)


def sample_rows(n_inducing: int) -> int:
    """Return the number of rows that inducing points are chosen from, and moved on."""
    return max(SMALLEST_SAMPLE, SAMPLE_PER_POINT * n_inducing)


@stored
@dataclass(frozen=True)
class InducingSettings(SolverSettings):
    """The number of inducing points, and of the rows that they are chosen from and moved on."""

    points: int
    sample: int

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must(min(self.points, self.sample) >= 0, "a count of its plan is negative")


class InducingSolver(Solver):
    """The bound and the posterior from m points, which the first hyperparameters choose unless `place` has."""

    name = "inducing"
    aliases = ("nystrom",)
    capabilities = InducingPosterior.capabilities
    posterior_class = InducingPosterior
    settings_class = InducingSettings

    def __init__(self, plan: Plan | None, selection: PointSelection, session: Session) -> None:
        self._plan, self.selection, self._session = plan, selection, session
        self.points: InputRows | None = None
        self._curvature: np.ndarray | None = (
            None  # Second derivatives per row, where the last search begins.
        )

    # planning

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        if problem.options.dtype == "float32":
            raise InputError(
                'dtype="float32": the inducing solver adds up in float64; give dtype="auto"'
            )

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str:
        return problem.refusal or f"n > {CG_ROWS}: inducing points, whose cost grows with n only"

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        n, asked = problem.n, problem.options.n_inducing
        if problem.stream:
            reason = "rows come in chunks: sums over them are all that is kept"
        points = min(n, asked)
        sample, subset = min(n, sample_rows(asked)), min(n, SUBSET_ROWS)
        needed = cls._bytes(problem, points, sample, subset)
        problem.require(needed, f"the inducing solver (m = {points})", "a smaller n_inducing")
        reasons = [
            reason,
            f"{points} inducing points{f', all rows: {asked} asked for' if asked > n else ''}: 4 n m^2 flops an evaluation, "
            "over two passes",
            f"chosen from, and moved on, a sample of {sample} rows; hyperparameters start from {subset} of them, exactly",
        ]
        known = {
            "subset": subset,
            "stream": problem.stream,
            "settings": InducingSettings(points, sample),
        }
        return problem.planned(cls.name, np.float64, needed, reasons, **known)

    @staticmethod
    def _bytes(problem: Problem, points: int, sample: int, subset: int) -> int:
        """Return the memory of rows unless they stream, the sample with its factor, m^2 matrices (two partial sums a worker),
        blocks in work."""
        p, d, n_jobs = problem.p, problem.d, problem.n_jobs
        choosing = 8 * sample * (points + 4 * (p + d + 2))
        passing = 8 * (points**2 * (2 * n_jobs + 8) + n_jobs * 5 * BLOCK_ROWS * (points + p + d))
        return problem.held_bytes() + max(choosing, passing, problem.exact_bytes(subset))

    @classmethod
    def work(cls, plan: Plan) -> float:
        """Return the flops of a product of matrices that would take as long: of some evaluations, most on the sample."""
        return plan.settings.points**2 * (50.0 * plan.n + 900.0 * plan.settings.sample)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior | None = None
    ) -> InducingSolver:
        settings: InducingSettings = plan.settings
        if isinstance(known, InducingPosterior):
            return cls(
                plan,
                PointSelection(settings.points, "given", settings.sample, known.support),
                setup.session,
            )
        return cls(plan, cls._selection(settings, setup), setup.session)

    @classmethod
    def _selection(cls, settings: InducingSettings, setup: SolverSetup) -> PointSelection:
        sizes = settings.points, settings.sample
        return PointSelection.asked(setup, *sizes)

    @classmethod
    def fingerprint(cls, plan: Plan, setup: SolverSetup) -> Mapping[str, Any]:
        selection = cls._selection(plan.settings, setup)
        return {"selection": repr(selection), "given points": selection.fingerprint(setup.kernel)}

    def carry(self, points: InputRows | None) -> bool:
        self.points = points
        return points is not None

    @property
    def carried(self) -> InputRows | None:
        return self.points

    # search

    def search(self, search: Search) -> Optimum:
        """Return the optimum of the bound of all rows: the exact optimum of a subset, points placed there and moved on a
        sample, then all rows. Points known from before stay where they are."""
        plan, selection, journal, rows = (
            self._plan,
            self.selection,
            search.session.journal,
            search.rows,
        )
        assert plan is not None
        sample, first = MemoryRows(rows.subset(plan.settings.sample)), search.start
        if not search.warm:
            found = exact_subset_optimum(search, rows.subset(plan.subset), first)
            first = found.hyperparameters
            if journal.stopped:
                return replace(found, evidence=None)
        known = search.carried
        if (
            known is not None
            and selection.given is None
            and alike(known, sample.data)
            and len(known) <= plan.settings.points
        ):
            self.points = known
        elif len(placed := self.place(rows, first)) < len(rows):
            movable = can_move(placed, first.kernel)
            if selection.move is True and not movable:
                raise InputError(
                    "optimize_inducing=True needs a dense X and Z, and a kernel of vectors"
                )
            move = bool(selection.move) and movable
            first = optimize_points(
                self, sample, first, search.prior, search.max_iter, search.session, move
            )
            search.save_best(first)
        optimum = Optimum(first, None, False, "stopped on a sample", [])
        if journal.stopped:
            return optimum
        try:
            if search.prior.free.sum() <= MOST_CURVED:
                with journal.phase("curvature on a sample"):
                    self._curvature = curvature(self, sample, first, search.prior.free)
            on = search.starting_at(first)
            last = on.without_restarts().maximise(
                self._steady, warm=True, tol=BOUND_TOLERANCE_NATS_PER_ROW
            )
            return replace(last, evidence=None)
        except KeyboardInterrupt:
            journal.interrupted()
            return optimum

    def place(self, rows: RowSource, hyperparameters: Hyperparameters) -> InputRows:
        """Choose the points at these hyperparameters, from now on."""
        with (
            self._session.journal.phase("inducing points"),
            worthwhile_threads(self.selection.count),
        ):
            self.points = self.selection.of(rows, hyperparameters, self._session)
        return self.points

    def _variables(self, rows: RowSource, hyperparameters: Hyperparameters) -> InducingVariables:
        points = self.points if self.points is not None else self.place(rows, hyperparameters)
        return InducingVariables.of(points, hyperparameters)

    # evaluations

    def bound(self, rows: RowSource, hyperparameters: Hyperparameters) -> Bound:
        """Return the bound of all rows.

        A few points are worked on by one BLAS thread: a search that moves them multiplies rounding a thousandfold, and the
        number of BLAS threads depends on what else the process does.
        """
        with worthwhile_threads(self.selection.count if self.points is None else len(self.points)):
            variables = self._variables(rows, hyperparameters)
            return Bound.of(variables, rows.sum_over(BlockStatistics(variables), self._session))

    def gradient(self, rows: RowSource, bound: Bound, by_points: bool = False) -> BoundGradient:
        """Return the derivatives of the bound, by a second pass."""
        with worthwhile_threads(len(bound.frame)):
            gradient = rows.sum_over(bound.differentiate(by_points), self._session)
            gradient += bound.own_gradient(by_points)
        return gradient

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the bound and its gradient by the logarithms of the hyperparameters, at the points of this fit."""
        bound = self.bound(rows, hyperparameters)
        slope = self.gradient(rows, bound).theta if gradient else None
        metric = (
            self._curvature * len(rows) if information and self._curvature is not None else None
        )
        return Evidence(bound.value, slope, len(rows), information=metric)

    def _steady(
        self, rows: RowSource, hyperparameters: Hyperparameters, *, information: bool = False
    ) -> Evidence:
        """Return `evaluate` to about 10 digits of its terms, so that a search does not depend on the order of sums."""
        found = self.evaluate(rows, hyperparameters, information=information)
        assert found.gradient is not None
        size = np.abs(found.gradient).max() + abs(found.value) + len(rows)
        unit = np.ldexp(1.0, int(np.frexp(size)[1]) - STEADY_DIGITS)
        value, gradient = (
            np.round(found.value / unit) * unit,
            np.round(found.gradient / unit) * unit,
        )
        return replace(found, value=float(value), gradient=gradient)

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> InducingPosterior:
        bound = self.bound(rows, hyperparameters)
        if bound.frame.jitter > 1e-10:
            warnings.warn(
                f"inducing points are nearly dependent: jitter of {bound.frame.jitter:.0e} was added. Fewer would do as well",
                JitterWarning,
                stacklevel=3,
            )
        return InducingPosterior.of(bound)
