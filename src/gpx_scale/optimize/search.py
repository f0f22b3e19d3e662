"""The search for hyperparameters: L-BFGS on a subset, then quasi-Newton on all rows; restarts, bounds, weak priors, callbacks.

Two searches end on all rows: `maximise_evidence`, where the log marginal likelihood is known to rounding, and
`gradient_newton`, where only its gradient is known well (`cg`: the value has a standard error of many nats, the gradient
loses a fraction of one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..data.inputs import InputRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import Journal, Stopped
from ..runtime.session import Session
from .lbfgs import lbfgs
from .newton import BY_SLOPES, BY_VALUE, End, damped_newton, linear_power
from .objective import Objective, Optimum, Point, SaveBest, at_bound, best_of, forget

# What both Newton searches say when they have converged.
CONVERGED_MESSAGE = "newton decrement below tol"
NOISY = 0.5**0.5  # sigma_y of the second start
SUBSET_FROM, HALF_FROM = 600, 3000  # rows below which a subset saves nothing
CLOSE, CLOSE_A_ROW = 2.0, 5e-5  # nats: the last step is taken unseen, and leaves a few per cent of what it gains


@dataclass(frozen=True)
class Search:
    """What a solver searches on, from where, and how far.

    If it is `warm`, the start is an optimum already, and only the last stage is run; `carried` are inducing points that are
    known with it. `save_best` is told of the best point of all rows as it gets better.
    """

    rows: RowSource
    start: Hyperparameters
    prior: HyperparameterPrior
    max_iter: int
    tol: float
    n_restarts: int
    session: Session
    save_best: SaveBest = forget
    warm: bool = False
    carried: InputRows | None = None

    def starting_at(self, start: Hyperparameters) -> Search:
        """Return the same search from another point."""
        return replace(self, start=start)

    def on(self, rows: RowSource) -> Search:
        """Return the same search on other rows, of whose best points nobody is told."""
        return replace(self, rows=rows, save_best=forget)

    def maximise(
        self,
        evaluate: Callable[..., Any],
        *,
        warm: bool = False,
        phase: str = "all rows",
        tol: float = 0.0,
        restarts: bool = True,
    ) -> Optimum:
        """Return the optimum by L-BFGS on some rows, then quasi-Newton on all."""
        return maximise_evidence(
            evaluate,
            self.rows,
            self.start,
            self.prior,
            max_iter=self.max_iter,
            tol=max(tol, self.tol),
            n_restarts=self.n_restarts * restarts,
            random=self.session.random,
            journal=self.session.journal,
            whole=phase,
            warm=warm,
            keep=self.save_best,
        )

    def gradient_newton(self, evaluate: Callable[..., Any], *, phase: str = "all rows", tol: float = 0.0) -> Optimum:
        """Return the optimum by Newton's method on gradients alone."""
        return gradient_newton(
            evaluate,
            self.rows,
            self.start,
            self.prior,
            max_iter=self.max_iter,
            tol=max(tol, self.tol),
            journal=self.session.journal,
            phase=phase,
            keep=self.save_best,
        )


def maximise_evidence(
    evaluate: Callable[..., Any],
    data: RowSource,
    start: Hyperparameters,
    prior: HyperparameterPrior,
    *,
    max_iter: int,
    tol: float,
    n_restarts: int,
    random: np.random.RandomState,
    journal: Journal,
    whole: str = "all rows",
    warm: bool = False,
    keep: SaveBest = forget,
) -> Optimum:
    """The parameters of the largest evidence times prior, from `start`, from the same with more noise, and from `n_restarts`
    draws around the prior's centre.

    With enough rows, L-BFGS runs from every start on a quarter of them (4,000 at most); from the best optimum a quasi-Newton
    search that knows the curvature goes on with more rows: on Digits 15 evaluations of all rows. `warm`: the start is an
    optimum already, and only the last search is run. `tol`: a change of the evidence, in nats a row, that is not worth a step.
    `keep` is told the best point of the last search as it gets better. Ctrl-C ends the search with the best point found.
    """
    starts = [start, *(() if warm else _noisier(start)), *(_draw(start, prior, random) for _ in range(n_restarts))]
    stages = [(whole, data)] if warm else list(_stages(data, random, whole))
    search = _quasi_newton if warm and not n_restarts else lbfgs
    for phase, rows in stages:
        told = best_of(keep if rows is data else forget)
        tried = [Objective(partial(evaluate, rows), first, prior, journal, phase, told) for first in starts]
        with journal.phase(f"hyperparameters, {phase}"):
            try:
                outcomes = [search(objective, max_iter, tol) for objective in tried]
            except Stopped:
                outcomes = [(False, "stopped by a callback")] * len(tried)
            except KeyboardInterrupt:
                if all(objective.best is None for objective in tried):
                    raise
                journal.interrupted()
                outcomes = [(False, "interrupted")] * len(tried)
        pairs = zip(tried, outcomes, strict=True)
        found = [(one.best, outcome) for one, outcome in pairs if one.best is not None]
        if not found:
            raise NotPositiveDefinite(
                f"the covariance of {phase} has no Cholesky factor from any start: is the kernel positive? Raise sigma_y"
            )
        best, outcome = min(found, key=lambda one: one[0].loss)
        params = best.hyperparameters
        if journal.stopped:
            break
        starts, search = [params], _quasi_newton
    evidence = best.evidence if rows is data else None
    return Optimum(params, evidence, *outcome, at_bound(params, prior))


def gradient_newton(
    evaluate: Callable[..., Any],
    data: RowSource,
    start: Hyperparameters,
    prior: HyperparameterPrior,
    *,
    max_iter: int,
    tol: float,
    journal: Journal,
    phase: str = "all rows",
    keep: SaveBest = forget,
) -> Optimum:
    """Return the optimum by Newton's method on gradients alone, from a good start.

    The metric is the average information, anew at every point. The gain of a step is the mean of
    the slopes at its ends times the step: a step that gains nothing is cut. The search ends where
    half the decrement is below CLOSE nats (or `tol` nats per row, if that is more); that last step
    is taken unseen.
    """
    objective = Objective(partial(evaluate, data), start, prior, journal, phase)
    bounds, params, n = objective.bounds(), start, len(data)

    def at(where: np.ndarray, information: bool) -> Point:
        point = objective.at(where, information)
        objective.tell(point)
        return point

    def stop_if_asked() -> None:
        if journal.stopped:
            raise Stopped

    def accepted(point: Point) -> None:
        nonlocal params
        params = point.hyperparameters
        keep(params)
        stop_if_asked()

    ends = {
        End.CONVERGED: (True, CONVERGED_MESSAGE),
        End.NO_STEP: (False, "no step gains evidence"),
        End.ITERATIONS: (False, f"{max_iter} iterations"),
    }
    with journal.phase(f"hyperparameters, {phase}"):
        try:
            end, last, step = damped_newton(
                at,
                objective.first(),
                bounds,
                linear_power(start)[prior.free],
                BY_SLOPES,
                max_iter=max_iter,
                enough=max(min(CLOSE, CLOSE_A_ROW * n), tol * n),
                accepted=accepted,
                rejected=stop_if_asked,
            )
            if end is End.CONVERGED:
                params = objective.hyperparameters(np.clip(last.where + step, *bounds))
            outcome = ends[end]
        except Stopped:
            outcome = (False, "stopped by a callback")
        except KeyboardInterrupt:
            journal.interrupted()
            outcome = (False, "interrupted")
    return Optimum(params, None, *outcome, at_bound(params, prior))


def _stages(data: RowSource, random: np.random.RandomState, whole: str) -> Iterator[tuple[str, RowSource]]:
    """A quarter of the rows, half of them where that is many, all of them: each starts where the one before ended."""
    n = len(data)
    if n >= SUBSET_FROM:
        order = random.permutation(n)
        rows = data.load()
        yield "a quarter of the rows", MemoryRows(rows[np.sort(order[: min(4000, n // 4)])])
        if n >= HALF_FROM:
            yield "half of the rows", MemoryRows(rows[np.sort(order[: n // 2])])
    yield whole, data


def _quasi_newton(objective: Objective, max_iter: int, tol: float) -> tuple[bool, str]:
    """Minimise by BFGS from the average information at the start, until half the decrement is tol.

    Without information, and where no step descends along a direction that should, L-BFGS goes on
    from the best point. Return whether the search converged, and how it ended.
    """
    end, _, _ = damped_newton(
        objective.visit,
        objective.first(),
        objective.bounds(),
        linear_power(objective.start)[objective.free],
        BY_VALUE,
        max_iter=max_iter,
        enough=tol,
    )
    if end is End.CONVERGED:
        return True, CONVERGED_MESSAGE
    if end is End.ITERATIONS:
        return False, f"{max_iter} iterations"
    if end is End.NO_STEP:  # The metric is off.
        objective.start_from_the_best()
    return lbfgs(objective, max_iter, tol)


def _noisier(start: Hyperparameters) -> list[Hyperparameters]:
    """`start` with noise of half a variance of 1: from little noise alone, a search may end where short length scales explain
    the noise (70-80 nats low on each split of Diabetes with z = 1)."""
    return [start.with_sigma_y(NOISY)] if start.sigma_y < NOISY else []


def _draw(start: Hyperparameters, prior: HyperparameterPrior, random: np.random.RandomState) -> Hyperparameters:
    theta, free = prior.centre.copy(), prior.free
    low, high = prior.bounds()
    moved = theta[free] + 0.5 * prior.sd[free] * random.standard_normal(int(free.sum()))
    theta[free] = np.clip(moved, low[free], high[free])
    return start.with_theta(theta)
