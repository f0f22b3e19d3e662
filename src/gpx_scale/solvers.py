"""From a plan to its solver, and the search for hyperparameters that suits it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cg import CgSolver
from .evidence import Keep, Optimum, climb, maximise_evidence
from .exact import ExactSolver
from .inputs import Inputs
from .params import Params, Prior
from .plan import Plan
from .progress import Journal
from .runtime import Executor

SUBSET_TOL = 1e-4  # nats a row: the optimum of a subset is that of all rows to many nats only


def make_solver(plan: Plan, executor: Executor, random: np.random.RandomState, journal: Journal) -> Any:
    """Something with `evaluate(data, params, gradient=, information=) -> Evidence` and `condition(data, params) -> parts`."""
    if plan.solver == "exact":
        return ExactSolver(plan.n, plan.dtype, executor)
    return CgSolver(plan.rank, plan.stored, plan.dtype, executor, random, journal)


def search(
    solver: Any,
    plan: Plan,
    data: Inputs,
    start: Params,
    prior: Prior,
    *,
    max_iter: int,
    tol: float,
    n_restarts: int,
    random: np.random.RandomState,
    executor: Executor,
    journal: Journal,
    warm: bool,
    keep: Keep,
) -> Optimum:
    """The largest evidence. Exact: quasi-Newton on all rows. Iterative: the exact optimum of a subset, then `climb` by gradients.

    `warm`: `start` is near the optimum already.
    """
    options: dict[str, Any] = {"max_iter": max_iter, "journal": journal}
    if plan.solver == "exact":
        return maximise_evidence(
            solver.evaluate, data, start, prior, tol=tol, n_restarts=n_restarts, random=random, warm=warm, keep=keep, **options
        )
    if not warm:
        rows = np.sort(random.permutation(plan.n)[: plan.subset])
        found = maximise_evidence(
            ExactSolver(plan.subset, np.float64, executor).evaluate,
            data[rows],
            start,
            prior,
            tol=max(tol, SUBSET_TOL) if plan.subset < plan.n else tol,
            n_restarts=n_restarts,
            random=random,
            whole="all rows" if plan.subset == plan.n else f"{plan.subset} rows",
            **options,
        )
        if journal.stopped or plan.subset == plan.n:
            return found
        start = found.params
    return climb(solver.evaluate, data, start, prior, tol=tol, keep=keep, **options)
