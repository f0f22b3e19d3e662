"""From a plan to its solver, and the search for hyperparameters that suits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.inputs import InputRows, TrainingRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import InputError, MemoryLimitError, SolverUnavailable
from ..linalg.sparse_covariance import PAIR_BYTES
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..optimize.search import Keep, Optimum, at_bound, forget, gradient_newton, maximise_evidence
from ..plan import Plan, usual_rank
from ..runtime.journal import Journal
from ..runtime.memory import within
from ..runtime.parallel import Executor, threads
from ..solvers.basis.laplacian_basis import BASIS_LARGEST, BASIS_MOST, LaplacianBasis, basis_bytes, functions_in
from ..solvers.basis.marginal_likelihood import Space
from ..solvers.basis.solver import BasisSolver
from ..solvers.cg.solver import CGSolver
from ..solvers.exact.solver import ExactSolver
from ..solvers.grid.interpolation import grid_bytes
from ..solvers.grid.solver import GridSolver
from ..solvers.inducing.point_optimization import curvature, movable, optimize_points
from ..solvers.inducing.point_selection import PointSelection, alike
from ..solvers.inducing.solver import InducingSolver
from ..solvers.low_dimensional import InputExtent, InputResolution
from .checkpoint import Checkpoint, State

SUBSET_TOL = 1e-4  # nats a row: the optimum of a subset is that of all rows to many nats only
CURVED = 16  # parameters up to which differences of slopes cost less than what they save; beyond, L-BFGS
BOUND_TOL = 1e-4  # nats a row of the last search on a bound, which is many off the evidence itself
BASIS_TOL = 1e-6  # the same on a basis, where an evaluation is cheap and exact
SHORTER = 100.0  # theta2 over this is a start too
PATCH = 20  # rows, for each one of a subset, that its close ones are found in
MOVES = 24  # boxes, or grids, that a search may build
MANY_ROWS = 25_000  # from which a search on sqrt(subset n) rows saves more of those on all rows than it costs


def make_solver(
    plan: Plan,
    executor: Executor,
    random: Any,
    journal: Journal,
    choice: PointSelection | None = None,
    parts: Any = None,
) -> Any:
    """Something with `evaluate(data, params, gradient=, information=) -> Evidence` and `condition(data, params) -> parts`.

    `parts` of an earlier one: its inducing points, functions and sums, or grid are used again."""
    if plan.solver == "basis":
        return _basis_solver(plan, executor, journal, None if parts is None else parts.data)
    if plan.solver == "exact":
        return ExactSolver(plan.n, plan.dtype, executor)
    if plan.solver == "inducing":
        if choice is None:
            choice = PointSelection(plan.points, "given", plan.sample, parts.data)
        return InducingSolver(choice, executor, journal)
    if plan.solver == "grid":
        how = {"extent": plan.extent, "count": plan.count, "share": plan.share, "shared": plan.shared}

        def allow_grid(shape: tuple[int, ...]) -> None:
            """Too fine a grid is refused before it is laid."""
            needed = grid_bytes(plan.n, plan.p, plan.d, np.array(shape), plan.rank, plan.shared, plan.n_jobs)
            what = f"a grid of {' x '.join(map(str, shape))} points for each of {plan.d} weights"
            within(needed, plan.memory_limit, what, "a smaller n_basis, or fewer rows")

        on = None if parts is None else parts.on
        return GridSolver(plan.rank, "grid", plan.dtype, executor, random, journal, on=on, allow_grid=allow_grid, **how)
    return _cg_solver(plan, plan.rank, executor, random, journal)


def _cg_solver(plan: Plan, rank: int, executor: Executor, random: np.random.RandomState, journal: Journal) -> CGSolver:
    def allow(count: int) -> None:
        """More pairs than were predicted are refused before they are listed."""
        within(count * PAIR_BYTES, plan.memory_limit, f"a sparse C of {count:,} pairs", "rarer features (a lower max_df)")

    return CGSolver(
        rank, plan.form, plan.dtype, executor, random, journal, shared=plan.shared, try_jacobi=plan.try_jacobi, allow=allow
    )


def _basis_solver(plan: Plan, executor: Executor, journal: Journal, space: Space | None) -> BasisSolver:
    def allow(box: LaplacianBasis, nodes: int, d: int) -> None:
        """Too large a basis is refused before it is built."""
        size = int(functions_in(box.counts)) * d
        what = f"a basis of {' x '.join(map(str, box.counts))} functions for each of {d} weights"
        if size > BASIS_LARGEST:
            raise SolverUnavailable(
                f"{what} makes {size}, more than {BASIS_LARGEST}: length scales are short beside the data (an outlier of x?); "
                "use solver='grid', or 'inducing' for a stream"
            )
        needed = basis_bytes(plan.n, plan.p, d, box.counts, nodes, plan.n_jobs, plan.stream)
        within(needed, plan.memory_limit, what, "solver='grid', or a smaller n_basis")

    return BasisSolver(BASIS_MOST, plan.count, executor, journal, allow, plan.extent, space)


@dataclass(frozen=True)
class Origin:
    """Where a search begins: the parameters, whether they are an optimum already (with its inducing points), or the last word
    of a checkpoint."""

    params: Hyperparameters
    warm: bool = False
    places: InputRows | None = None
    finished: bool = False
    file: Checkpoint | None = None


@dataclass(frozen=True)
class Task:
    """What every search works on: the data (Inputs, or Rows), the prior, who is told, and who keeps the best point so far."""

    data: Any
    prior: HyperparameterPrior
    executor: Executor
    journal: Journal
    keep: Keep

    def on(self, rows: np.ndarray) -> Task:
        return replace(self, data=self.data[np.sort(rows)])


@dataclass(frozen=True)
class Search:
    """How far to look for hyperparameters, and from where: `known` parameters of an earlier fit, or a `checkpoint` file."""

    max_iter: int
    tol: float
    n_restarts: int
    random: np.random.RandomState
    known: tuple[Hyperparameters, InputRows | None] | None = None
    checkpoint: Any = None
    wanted: bool = True

    def origin(
        self, data: Any, start: Hyperparameters, choice: PointSelection | None, journal: Journal, most_points: int
    ) -> Origin:
        """`start`, or what an earlier fit or the checkpoint knows; `choice` of inducing points, of which there are
        `most_points` at most."""
        found = Origin(start)
        if not self.wanted:
            return found
        if self.known is not None and self.known[0].parameter_kinds == start.parameter_kinds:
            known, places = self.known
            usable = HyperparameterPrior.around(start).free & np.isfinite(known.theta)
            found = Origin(start.with_theta(np.where(usable, known.theta, start.theta)), True, places)
        if self.checkpoint is None:
            return found
        found = replace(found, file=Checkpoint.at(self.checkpoint, data, start, choice, most_points))
        if (state := found.file.read()) is not None:  # type: ignore[union-attr]
            journal.say(f"resumed from {found.file.path}")  # type: ignore[union-attr]
            found = replace(found, params=start.with_theta(state.theta), warm=True, places=state.places)
            return replace(found, finished=state.finished)
        return found

    def pilot(
        self, origin: Origin, plan: Plan, rows: RowSource, start: Hyperparameters, executor: Executor, journal: Journal
    ) -> tuple[Origin, Plan, Any]:
        """Length scales (the exact optimum of a subset, unless they are known or given), the plan that suits them, and the
        rows as it takes them."""
        if self.wanted and not origin.warm:
            task = Task(rows, HyperparameterPrior.around(start), executor, journal, forget)
            some = _spread_and_near(rows, plan.subset)
            origin = replace(origin, params=self._length_scales(task, some, start))
        kernel, extent = origin.params.kernel, rows.sum_over(InputExtent.of, executor, journal.passed)
        assert plan.again is not None
        plan = replace(plan.again(InputResolution.of(kernel, rows.subset(1), (origin.params, extent))), extent=extent)  # type: ignore[arg-type]
        if plan.solver in ("basis", "inducing"):
            return origin, plan, rows
        assert isinstance(rows, MemoryRows)
        return origin, plan, replace(rows.data, x=kernel.training_input(rows.data.x))

    def run(
        self, solver: Any, plan: Plan, data: Any, start: Hyperparameters, origin: Origin, executor: Executor, journal: Journal
    ) -> Optimum:
        """The parameters of the largest evidence; the best so far are kept in the checkpoint, the last with a mark."""
        prior, first, warm, places = HyperparameterPrior.around(start), origin.params, origin.warm, origin.places
        if origin.finished and (plan.solver != "inducing" or places is not None):
            solver.places = places
            return Optimum(first, None, True, "as the checkpoint left it", [])

        if journal.stopped:  # in the search for length scales
            return Optimum(first, None, False, "stopped on a subset", at_bound(first, prior))

        def keep(params: Hyperparameters, finished: bool = False) -> None:
            if origin.file is not None:
                origin.file.write(State(params.theta, finished, getattr(solver, "places", None)))

        task = Task(data, prior, executor, journal, keep)
        if plan.solver == "exact":
            optimum = self._maximise(task, solver.evaluate, first, warm)
        elif plan.solver == "basis":
            optimum = self._basis(task, solver, first)
        elif plan.solver == "grid":
            optimum = self._grid(task, solver, first)
        elif plan.solver == "inducing":
            optimum = self._inducing(task, solver, plan, first, warm, places)
        else:
            if not warm:
                optimum = self._subset(task, plan, first)
                first = optimum.params
            if warm or (plan.subset < plan.n and not journal.stopped):
                optimum = self._climb(task, solver, first)
        keep(optimum.params, finished=bool(optimum.converged))
        return optimum

    def _maximise(
        self,
        task: Task,
        evaluate: Any,
        first: Hyperparameters,
        warm: bool = False,
        whole: str = "all rows",
        tol: float = 0.0,
        restarts: bool = True,
    ) -> Optimum:
        """L-BFGS on some rows, quasi-Newton on all."""
        more = {"n_restarts": self.n_restarts * restarts, "random": self.random, "whole": whole, "warm": warm}
        return self._search(maximise_evidence, task, evaluate, first, tol, **more)

    def _basis(self, task: Task, solver: BasisSolver, first: Hyperparameters) -> Optimum:
        """Quasi-Newton on the sums of one pass, and again around where it ended while that is at the edge of their range."""
        optimum, best = Optimum(first, None, False, "stopped on a subset", []), None
        for turn in range(MOVES):
            if task.journal.stopped:
                return optimum
            try:
                solver.prepare(task.data, first)
            except (SolverUnavailable, MemoryLimitError) as too_large:
                if turn == 0:
                    raise
                return replace(optimum, converged=False, message=str(too_large))
            narrow = task.prior.within(*solver.limits(first))
            optimum = self._maximise(
                replace(task, prior=narrow), solver.evaluate, first, warm=True, tol=BASIS_TOL, restarts=False
            )
            height = optimum.evidence.value + task.prior.value_and_gradient(optimum.params.theta)[0]
            if best is not None and height < best[0] - 0.1:
                return replace(best[1], converged=False, message="another box has no better evidence: raise n_basis")
            optimum = replace(optimum, evidence=None, at_bound=at_bound(optimum.params, task.prior))
            best = height, optimum
            if set(at_bound(optimum.params, narrow)) <= set(optimum.at_bound):
                return optimum
            first = optimum.params
        return replace(optimum, converged=False, message=f"length scales left the box {MOVES} times")

    def _grid(self, task: Task, solver: GridSolver, first: Hyperparameters) -> Optimum:
        """Newton by gradients on a grid, and again on a finer one where length scales have become too short for it."""
        optimum = Optimum(first, None, False, "stopped on a subset", [])
        for turn in range(MOVES):
            if task.journal.stopped:
                return optimum
            try:
                solver.place(task.data, first, hold=True)
            except MemoryLimitError as too_fine:
                if turn == 0:
                    raise
                return replace(optimum, converged=False, message=str(too_fine))
            optimum = self._climb(task, solver, first)
            first = optimum.params
            if solver.fine_for(task.data, first):
                break
        return optimum

    def _length_scales(self, task: Task, some: TrainingRows, start: Hyperparameters) -> Hyperparameters:
        """The better of two optima on some rows, from `start` and from a tenth of its length scales: from the median distance,
        a search would take what changes over a fraction of it for noise."""
        lengths = np.array([label == "theta2" for label in start.parameter_kinds])
        found = [self._exact_subset(task, some, start)]
        if not task.journal.stopped:
            shorter = start.with_theta(start.theta - np.log(SHORTER) * lengths)
            found.append(self._exact_subset(task, some, shorter, warm=True))

        def height(optimum: Optimum) -> float:
            log_prior, _ = task.prior.value_and_gradient(optimum.params.theta)
            return -np.inf if optimum.evidence is None else optimum.evidence.value + log_prior

        return max(found, key=height).params

    def _exact_subset(self, task: Task, some: TrainingRows, first: Hyperparameters, warm: bool = False) -> Optimum:
        on_some = replace(task, data=some, keep=forget)
        exact = ExactSolver(len(some), np.float64, task.executor)
        with threads(1):  # several would make rounding, and all that follows from it, depend on what else runs
            return self._maximise(on_some, exact.evaluate, first, warm, whole=f"{len(some)} rows", tol=SUBSET_TOL)

    def _inducing(
        self, task: Task, solver: InducingSolver, plan: Plan, first: Hyperparameters, warm: bool, places: InputRows | None
    ) -> Optimum:
        """The exact optimum of a subset, points placed there and moved on a sample, then the bound of all rows. Points known
        from before stay where they are."""
        rows, choice, journal = task.data, solver.choice, task.journal
        sample = MemoryRows(rows.subset(plan.sample))
        if not warm:
            found = self._exact_subset(task, rows.subset(plan.subset), first)
            first = found.params
            if journal.stopped:
                return replace(found, evidence=None)
        if places is not None and choice.given is None and alike(places, sample.data) and len(places) <= plan.points:
            solver.places = places
        elif len(placed := solver.place(rows, first)) < len(rows):
            if choice.move and not movable(placed, first.kernel):
                if choice.move is True:
                    raise InputError("optimize_inducing=True needs a dense X and Z, and a kernel of vectors")
                choice = replace(choice, move=False)
            first = optimize_points(solver, sample, first, task.prior, self.max_iter, journal, bool(choice.move))
            task.keep(first)
        optimum = Optimum(first, None, False, "stopped on a sample", [])
        if journal.stopped:
            return optimum
        try:
            if task.prior.free.sum() <= CURVED:
                with journal.phase("curvature on a sample"):
                    solver.metric = curvature(solver, sample, first, task.prior.free)
            last = self._maximise(task, solver.steady, first, warm=True, tol=BOUND_TOL, restarts=False)
            return replace(last, evidence=None)
        except KeyboardInterrupt:
            journal.interrupted()
            return optimum

    def _subset(self, task: Task, plan: Plan, first: Hyperparameters) -> Optimum:
        """The exact optimum of a subset; of many rows, the iterative one of a larger subset after it. Its evidence, and with
        it the leave-one-out residuals, is of another solver or of other rows than the fit, and is left out."""
        if plan.subset == plan.n:
            found = self._maximise(task, ExactSolver(plan.n, np.float64, task.executor).evaluate, first)
            return replace(found, evidence=None)
        order = self.random.permutation(plan.n)
        some, name = task.on(order[: plan.subset]), f"{plan.subset} rows"
        exact = ExactSolver(plan.subset, np.float64, task.executor)
        found = self._maximise(some, exact.evaluate, first, whole=name, tol=SUBSET_TOL)
        if plan.n >= MANY_ROWS and not task.journal.stopped:
            m = int(np.sqrt(plan.subset * plan.n))
            rank = min(plan.rank, usual_rank(m))
            solver = _cg_solver(plan, rank, task.executor, self.random, task.journal)
            found = self._climb(task.on(order[:m]), solver, found.params, phase=f"{m} rows", tol=SUBSET_TOL)
        return replace(found, evidence=None)

    def _climb(self, task: Task, solver: Any, first: Hyperparameters, phase: str = "all rows", tol: float = 0.0) -> Optimum:
        """Newton by gradients alone."""
        return self._search(gradient_newton, task, solver.evaluate, first, tol, phase=phase)

    def _search(self, search: Any, task: Task, evaluate: Any, first: Hyperparameters, tol: float, **more: Any) -> Optimum:
        limits = {"max_iter": self.max_iter, "tol": max(tol, self.tol)}
        told = {"journal": task.journal, "keep": task.keep}
        return search(evaluate, task.data, first, task.prior, **limits, **told, **more)


def _spread_and_near(rows: RowSource, count: int) -> TrainingRows:
    """Half of them spread over all rows, half next to one another: the ones see long length scales, the others short ones."""
    sample = rows.subset(PATCH * count)
    spread = np.sort(np.random.RandomState(0).permutation(len(sample))[: -(-count // 2)])
    apart = np.square(sample.x - sample.x[spread[0]]).sum(axis=1)
    near = np.argsort(apart, kind="stable")[: count // 2]
    return sample[np.union1d(spread, near)]
