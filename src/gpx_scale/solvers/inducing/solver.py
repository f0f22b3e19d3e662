"""The solver with inducing points.

It computes the bound and its gradient in passes over the rows (`collapsed_bound`), and the
posterior from m points (`posterior`). The posterior stores sums over the rows and no training row,
so further rows can be added to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.inputs import InputRows, Preprocessor
from ...data.row_source import BLOCK_ROWS, MemoryRows, RowSource
from ...errors import FewPointsWarning, InputError, JitterWarning
from ...model.hyperparameters import Hyperparameters
from ...optimize.newton import BY_VALUE_ONE_METRIC
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.session import Session
from ...runtime.state import must, stored
from ..contract import Evidence, Plan, Problem, Solver, SolverSettings, SolverSetup
from ..exact.solver import exact_subset_optimum
from ..posterior import Posterior
from ..rates import Rates
from .collapsed_bound import BlockStatistics, Bound, BoundGradient
from .held_out_check import SAMPLE_ROWS, check_held_out
from .inducing_variables import InducingVariables
from .point_optimization import curvature, optimize_points
from .point_selection import PointSelection, can_move, have_same_columns
from .posterior import InducingPosterior

# A search sees this many binary digits of the bound, so that it does not depend on the order in
# which sums over rows are added.
SEARCH_BITS = 34
# Hyperparameters start from the exact optimum of a subset of this many rows, which takes seconds.
SUBSET_ROWS = 2_000
# Inducing points are selected from, and moved on, a subset of at least this many rows per point.
CANDIDATE_ROWS_PER_POINT = 10
# That subset has at least this many rows in all.
LEAST_CANDIDATE_ROWS = 10_000
# Up to this many free hyperparameters, second derivatives by differences of gradients cost less
# than the iterations that they save. L-BFGS goes on without them beyond.
MAX_CURVATURE_PARAMETERS = 16
# The search on all rows ends at this tolerance. A tighter one would be of no use, because the
# bound is many nats below the log marginal likelihood.
BOUND_TOLERANCE_NATS_PER_ROW = 1e-4
# The user is warned of jitter above this share of the diagonal. Less is rounding.
WARNED_JITTER = 1e-10
# The expected time of a fit, in flops of matrix multiplication, is m^2 times a sum over all rows
# and over the rows of the subset. Both coefficients were adjusted to measured times.
FLOPS_PER_ROW = 50.0
FLOPS_PER_SUBSET_ROW = 900.0
# Weights with priors of their own take about so many times as long: they are searched again after
# terms were removed.
WEIGHT_TERMS_FACTOR = 2.5


def sample_rows(n_inducing: int) -> int:
    """Return the number of rows that inducing points are selected from and moved on."""
    return max(LEAST_CANDIDATE_ROWS, CANDIDATE_ROWS_PER_POINT * n_inducing)


@stored
@dataclass(frozen=True)
class InducingSettings(SolverSettings):
    """The number of inducing points, and of the rows that they are selected from and moved on."""

    points: int
    sample: int

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must(min(self.points, self.sample) >= 0, "a count of its plan is negative")


class InducingSolver(Solver):
    """The solver that computes the bound and the posterior from m inducing points.

    The points are selected at the first hyperparameters that it evaluates, unless `place` has
    selected them before.
    """

    name = "inducing"
    aliases = ("nystrom",)
    capabilities = InducingPosterior.capabilities
    posterior_class = InducingPosterior
    settings_class = InducingSettings

    def __init__(self, plan: Plan | None, selection: PointSelection, session: Session) -> None:
        self._plan, self.selection, self._session = plan, selection, session
        self.points: InputRows | None = None
        # The curvature of the bound, in nats per row, where the search on all rows begins.
        self._curvature: np.ndarray | None = None

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        super().refuse(problem)
        if problem.options.dtype == "float32":
            raise InputError(
                "dtype=\"float32\" is not possible with solver='inducing', which computes in "
                'float64. Give dtype="auto".'
            )

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        n, asked = problem.n, problem.options.n_inducing
        points = min(n, asked)
        sample, subset = min(n, sample_rows(asked)), min(n, SUBSET_ROWS)
        needed = cls._bytes(problem, points, sample, subset)
        what = f"The inducing solver with m = {points} points"
        problem.require(needed, what, "a smaller n_inducing")
        all_rows = f" (all rows; {asked} were asked for)" if asked > n else ""
        chunks = "The rows come in chunks. The fit keeps sums over them and stores no row."
        reasons = [
            *([chunks] if problem.stream else []),
            f"m = {points} inducing points{all_rows}: 4 n m^2 flops per evaluation, in two passes.",
            f"The points are selected from, and moved on, a subset of {sample} rows.",
            f"Hyperparameters start from the exact optimum of {subset} rows.",
        ]
        return problem.planned(
            *(cls.name, np.float64, needed, reasons),
            subset=subset,
            stream=problem.stream,
            settings=InducingSettings(points, sample),
        )

    @staticmethod
    def _bytes(problem: Problem, points: int, sample: int, subset: int) -> int:
        """Return the memory of a fit, in bytes.

        It has the rows unless they stream, and the largest of three: selecting points on the
        subset with its factor; a pass over the rows, with m^2 matrices (two partial sums for each
        worker) and the blocks that workers compute; and the exact search on a subset.
        """
        p, d, n_jobs = problem.p, problem.d, problem.n_jobs
        if problem.weight_terms:
            # There is a variable for the constant part of each weight.
            points += d
        choosing = 8 * sample * (points + 4 * (p + d + 2))
        passing = 8 * (points**2 * (2 * n_jobs + 8) + n_jobs * 5 * BLOCK_ROWS * (points + p + d))
        return problem.held_bytes() + max(choosing, passing, problem.exact_bytes(subset))

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the predicted time. Most evaluations are on the subset on which points move."""
        settings = plan.settings_of(InducingSettings)
        rows = FLOPS_PER_ROW * plan.n + FLOPS_PER_SUBSET_ROW * settings.sample
        searches = WEIGHT_TERMS_FACTOR if plan.weight_kernels else 1.0
        return rates.startup + searches * settings.points**2 * rows / rates.flops64

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> InducingSolver:
        settings = plan.settings_of(InducingSettings)
        if isinstance(known, InducingPosterior):
            return cls(
                plan,
                PointSelection(settings.points, "given", settings.sample, known.support),
                setup.session,
            )
        return cls(plan, cls._selection(settings, setup), setup.session)

    @classmethod
    def _selection(cls, settings: InducingSettings, setup: SolverSetup) -> PointSelection:
        """Return the selection of points that the user asked for."""
        return PointSelection.asked(setup, settings.points, settings.sample)

    @classmethod
    def fingerprint(cls, plan: Plan, setup: SolverSetup) -> Mapping[str, str | bytes]:
        selection = cls._selection(plan.settings_of(InducingSettings), setup)
        return {"selection": repr(selection), "given points": selection.fingerprint(setup.kernel)}

    def carry(self, points: InputRows | None) -> bool:
        self.points = points
        return points is not None

    @property
    def carried(self) -> InputRows | None:
        return self.points

    def search(self, search: Search) -> Optimum:
        """Return the optimum of the bound of all rows.

        The search begins at the exact optimum of a subset, where the points are selected. They
        move on a larger subset, and then the hyperparameters are searched on all rows. Points of
        an earlier fit or of a checkpoint stay where they are.
        """
        plan, selection, journal, rows = (
            self._plan,
            self.selection,
            search.session.journal,
            search.rows,
        )
        assert plan is not None
        settings = plan.settings_of(InducingSettings)
        sample = MemoryRows(rows.subset(search.most_rows(settings.sample)))
        first = search.start
        if not search.warm:
            found = exact_subset_optimum(search, rows.subset(search.most_rows(plan.subset)), first)
            first = found.hyperparameters
            if journal.stopped:
                return replace(found, evidence=None)
        known = search.carried
        if (
            known is not None
            and selection.given is None
            and have_same_columns(known, sample.data)
            and len(known) <= settings.points
        ):
            self.points = known
        elif len(placed := self.place(rows, first)) < len(rows):
            movable = can_move(placed, first.kernel)
            if selection.move is True and not movable:
                raise InputError(
                    "optimize_inducing=True needs a dense X and Z, and a kernel of vectors. Give "
                    'optimize_inducing="auto".'
                )
            move = bool(selection.move) and movable
            if np.ptp(sample.data.y):
                first = optimize_points(
                    self, sample, first, search.prior, search.max_iter, search.session, move
                )
                search.save_best(first)
        optimum = Optimum(first, None, False, "the search was stopped on a subset of the rows", [])
        if journal.stopped:
            return optimum
        try:
            if search.prior.free.sum() <= MAX_CURVATURE_PARAMETERS:
                with journal.phase("curvature on a sample"):
                    self._curvature = curvature(self, sample, first, search.prior.free)
            on = search.limited().starting_at(first).without_restarts()
            last = on.maximise(
                self._evaluate_rounded,
                rule=BY_VALUE_ONE_METRIC,
                warm=True,
                tol=BOUND_TOLERANCE_NATS_PER_ROW,
            )
            return replace(last, evidence=None)
        except KeyboardInterrupt:
            journal.interrupted()
            return optimum

    def place(self, rows: RowSource, hyperparameters: Hyperparameters) -> InputRows:
        """Select the points at these hyperparameters, keep them, and return them."""
        with self._session.journal.phase("inducing points"):
            self.points = self.selection.of(rows, hyperparameters, self._session)
        return self.points

    def _variables(self, rows: RowSource, hyperparameters: Hyperparameters) -> InducingVariables:
        """Return the variables at the points of this fit, which are selected if there are none."""
        points = self.points if self.points is not None else self.place(rows, hyperparameters)
        return InducingVariables.of(points, hyperparameters, self._session)

    def bound(self, rows: RowSource, hyperparameters: Hyperparameters) -> Bound:
        """Return the bound of all rows."""
        variables = self._variables(rows, hyperparameters)
        statistics = rows.sum_over(BlockStatistics(variables), self._session)
        return Bound.of(variables, statistics, self._session)

    def gradient(self, rows: RowSource, bound: Bound, by_points: bool = False) -> BoundGradient:
        """Return the derivatives of the bound, from a second pass over the rows."""
        gradient: BoundGradient = rows.sum_over(bound.differentiate(by_points), self._session)
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
        """Return the bound and its gradient by the logarithms of the hyperparameters.

        The points are those of this fit.
        """
        bound = self.bound(rows, hyperparameters)
        slope = self.gradient(rows, bound).theta if gradient else None
        metric = (
            self._curvature * len(rows) if information and self._curvature is not None else None
        )
        return Evidence(bound.value, slope, len(rows), information=metric)

    def _evaluate_rounded(
        self, rows: RowSource, hyperparameters: Hyperparameters, *, information: bool = False
    ) -> Evidence:
        """Return `evaluate` rounded to about 10 digits of its terms (`SEARCH_BITS`)."""
        found = self.evaluate(rows, hyperparameters, information=information)
        assert found.gradient is not None
        size = np.abs(found.gradient).max() + abs(found.value) + len(rows)
        unit = np.ldexp(1.0, int(np.frexp(size)[1]) - SEARCH_BITS)
        value, gradient = (
            np.round(found.value / unit) * unit,
            np.round(found.gradient / unit) * unit,
        )
        return replace(found, value=float(value), gradient=gradient)

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> InducingPosterior:
        bound = self.bound(rows, hyperparameters)
        if bound.variables.jitter > WARNED_JITTER:
            warnings.warn(
                "The inducing points are nearly dependent, so jitter of "
                f"{bound.variables.jitter:.0e} was added. Fewer points would do as well.",
                JitterWarning,
                stacklevel=3,
            )
        return self._checked(InducingPosterior.of(bound), rows)

    def _checked(self, posterior: InducingPosterior, rows: RowSource) -> InducingPosterior:
        """Return the posterior with the result of the held-out check, and warn if it fails."""
        with self._session.journal.phase("held-out check"):
            sample = rows.subset(SAMPLE_ROWS)
            if len(sample) < 2:
                return posterior
            found = check_held_out(posterior, sample, self._session)
        if found.fails:
            warnings.warn(
                f"Inducing points are too few: {found}. Means between the points are wrong, and "
                "their standard deviations too small. Give a larger n_inducing, or use "
                "solver='neighbors' for rows in memory.",
                FewPointsWarning,
                stacklevel=3,
            )
        return replace(posterior, held_out=str(found))
