"""From a plan to its solver, and the search for hyperparameters that suits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .cg import CgSolver
from .checkpoint import Checkpoint, State
from .evidence import Keep, Optimum, climb, maximise_evidence
from .exact import ExactSolver
from .inputs import Inputs
from .params import Params, Prior
from .plan import Plan, usual_rank
from .progress import Journal
from .runtime import Executor

SUBSET_TOL = 1e-4  # nats a row: the optimum of a subset is that of all rows to many nats only
MANY_ROWS = 25_000  # from which a search on sqrt(subset n) rows saves more of those on all rows than it costs


def make_solver(plan: Plan, executor: Executor, random: np.random.RandomState, journal: Journal) -> Any:
    """Something with `evaluate(data, params, gradient=, information=) -> Evidence` and `condition(data, params) -> parts`."""
    if plan.solver == "exact":
        return ExactSolver(plan.n, plan.dtype, executor)
    return CgSolver(plan.rank, plan.stored, plan.dtype, executor, random, journal, plan.shared)


@dataclass(frozen=True)
class Search:
    """How far to look for hyperparameters, and from where: `known` parameters of an earlier fit, or a `checkpoint` file."""

    max_iter: int
    tol: float
    n_restarts: int
    random: np.random.RandomState
    known: Params | None = None
    checkpoint: Any = None

    def run(self, solver: Any, plan: Plan, data: Inputs, start: Params, executor: Executor, journal: Journal) -> Optimum:
        """The parameters of the largest evidence; the best so far are kept in the checkpoint, the last with a mark."""
        prior, first = Prior.around(start), start
        warm = self.known is not None and self.known.labels == start.labels
        if warm and self.known is not None:
            usable = prior.free & np.isfinite(self.known.theta)
            first = start.with_theta(np.where(usable, self.known.theta, start.theta))
        file = None if self.checkpoint is None else Checkpoint.at(self.checkpoint, data, start)
        if file is not None and (state := file.read()) is not None:
            first, warm = start.with_theta(state.theta), True
            journal.say(f"resumed from {file.path}")
            if state.finished:
                return Optimum(first, None, True, "as the checkpoint left it", [])

        def keep(params: Params, finished: bool = False) -> None:
            if file is not None:
                file.write(State(params.theta, finished))

        search = self._exact if plan.solver == "exact" else self._iterative
        optimum = search(solver, plan, data, first, prior, warm, keep, executor, journal)
        keep(optimum.params, finished=not journal.stopped)
        return optimum

    def _exact(
        self,
        solver: Any,
        plan: Plan,
        data: Inputs,
        first: Params,
        prior: Prior,
        warm: bool,
        keep: Keep,
        executor: Executor,
        journal: Journal,
        whole: str = "all rows",
        tol: float = 0.0,
    ) -> Optimum:
        """L-BFGS on a subset, quasi-Newton on all rows."""
        return maximise_evidence(
            solver.evaluate,
            data,
            first,
            prior,
            max_iter=self.max_iter,
            tol=max(tol, self.tol),
            n_restarts=self.n_restarts,
            random=self.random,
            journal=journal,
            whole=whole,
            warm=warm,
            keep=keep,
        )

    def _iterative(
        self,
        solver: Any,
        plan: Plan,
        data: Inputs,
        first: Params,
        prior: Prior,
        warm: bool,
        keep: Keep,
        executor: Executor,
        journal: Journal,
    ) -> Optimum:
        """The exact optimum of a subset, then `climb` by gradients of all rows; of many rows, by those of some first."""
        if not warm:
            everything = plan.subset == plan.n
            rows = data if everything else data[np.sort(self.random.permutation(plan.n)[: plan.subset])]
            name, tol = ("all rows", 0.0) if everything else (f"{plan.subset} rows", SUBSET_TOL)
            subset = ExactSolver(plan.subset, np.float64, executor)
            found = self._exact(subset, plan, rows, first, prior, False, keep, executor, journal, name, tol)
            if journal.stopped or everything:
                return replace(found, evidence=None)
            first = found.params
            if plan.n >= MANY_ROWS:
                some = int(np.sqrt(plan.subset * plan.n))
                rows = data[np.sort(self.random.permutation(plan.n)[:some])]
                on_some = CgSolver(min(plan.rank, usual_rank(some)), plan.stored, plan.dtype, executor, self.random, journal)
                found = self._climb(on_some, rows, first, prior, keep, journal, f"{some} rows", SUBSET_TOL)
                if journal.stopped:
                    return found
                first = found.params
        return self._climb(solver, data, first, prior, keep, journal)

    def _climb(
        self,
        solver: Any,
        data: Inputs,
        first: Params,
        prior: Prior,
        keep: Keep,
        journal: Journal,
        phase: str = "all rows",
        tol: float = 0.0,
    ) -> Optimum:
        tol = max(tol, self.tol)
        return climb(
            solver.evaluate, data, first, prior, max_iter=self.max_iter, tol=tol, journal=journal, phase=phase, keep=keep
        )
