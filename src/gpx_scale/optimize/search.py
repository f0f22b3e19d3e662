"""The search for hyperparameters: L-BFGS on a subset, then quasi-Newton on all rows, with restarts, bounds and weak priors.

There are two methods of `Search`. `maximise` serves solvers that know the log marginal likelihood to rounding.
`gradient_newton` serves those that know only its gradient well: the value that `cg` computes has a standard error of
many nats, but its gradient loses a fraction of one.
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
# The sigma_y of the second start: noise has half of the variance of y, which is 1.
NOISY_SIGMA_Y = 0.5**0.5
# With fewer rows, a search on a quarter of them saves nothing; nor does one on half of them.
QUARTER_FROM_ROWS = 600
HALF_FROM_ROWS = 3000
# A quarter of the rows is at most this many, so that the first stage takes seconds.
QUARTER_MAX_ROWS = 4000
# A search on gradients ends where half the Newton decrement is below the smaller of these. The last step
# is taken unseen, and leaves a few per cent of what it gains.
CLOSE_NATS = 2.0
CLOSE_NATS_PER_ROW = 5e-5

# What a solver gives to a search: `evaluate(rows, hyperparameters, information=...)`, which returns an `Evidence`.
Evaluate = Callable[..., Any]


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

    def without_restarts(self) -> Search:
        """Return the same search from its one start."""
        return replace(self, n_restarts=0)

    def maximise(
        self,
        evaluate: Evaluate,
        *,
        warm: bool = False,
        phase: str = "all rows",
        tol: float = 0.0,
    ) -> Optimum:
        """Return the optimum of an evidence whose values are known to rounding.

        The search starts at `start`, at the same point with more noise, and at `n_restarts` draws around
        the centre of the prior. With enough rows, L-BFGS runs from every start on a quarter of them (4,000
        at most); from the best optimum, a quasi-Newton search that knows the curvature goes on with more
        rows: on Digits it takes 15 evaluations of all rows. If it is `warm`, the start is an optimum already,
        and only the last stage is run. `tol`, if it is larger than that of the search, is the change of the
        evidence in nats per row that is not worth a step. Ctrl-C ends the search with the best point found.
        """
        session, tol = self.session, max(tol, self.tol)
        draws = [_draw(self.start, self.prior, session.random) for _ in range(self.n_restarts)]
        starts = [self.start, *(() if warm else _noisier(self.start)), *draws]
        stages = [(phase, self.rows)] if warm else list(_stages(self.rows, session.random, phase))
        minimise = _quasi_newton if warm and not self.n_restarts else lbfgs
        for stage, rows in stages:
            told = best_of(self.save_best if rows is self.rows else forget)
            tried = [
                Objective(partial(evaluate, rows), first, self.prior, session.journal, stage, told)
                for first in starts
            ]
            best, outcome = _best_end(tried, minimise, self.max_iter, tol, session.journal, stage)
            if session.journal.stopped:
                break
            starts, minimise = [best.hyperparameters], _quasi_newton
        evidence = best.evidence if rows is self.rows else None
        bound = at_bound(best.hyperparameters, self.prior)
        return Optimum(best.hyperparameters, evidence, *outcome, bound)

    def gradient_newton(
        self,
        evaluate: Evaluate,
        *,
        phase: str = "all rows",
        tol: float = 0.0,
    ) -> Optimum:
        """Return the optimum by Newton's method on gradients alone, from a good start.

        The metric is the average information, anew at every point. The gain of a step is the mean of
        the slopes at its ends times the step: a step that gains nothing is cut. The search ends where
        half the decrement is below CLOSE_NATS (or `tol` nats per row, if that is more); that last step
        is taken unseen.
        """
        journal, n, tol = self.session.journal, len(self.rows), max(tol, self.tol)
        objective = Objective(partial(evaluate, self.rows), self.start, self.prior, journal, phase)
        bounds, found = objective.bounds(), self.start

        def at(where: np.ndarray, information: bool) -> Point:
            point = objective.at(where, information)
            objective.tell(point)
            return point

        def stop_if_asked() -> None:
            if journal.stopped:
                raise Stopped

        def accepted(point: Point) -> None:
            nonlocal found
            found = point.hyperparameters
            self.save_best(found)
            stop_if_asked()

        ends = {
            End.CONVERGED: (True, CONVERGED_MESSAGE),
            End.NO_STEP: (False, "no step gains evidence"),
            End.ITERATIONS: (False, f"{self.max_iter} iterations"),
        }
        with journal.phase(f"hyperparameters, {phase}"):
            try:
                end, last, step = damped_newton(
                    at,
                    objective.first(),
                    bounds,
                    linear_power(self.start)[self.prior.free],
                    BY_SLOPES,
                    max_iter=self.max_iter,
                    enough=max(min(CLOSE_NATS, CLOSE_NATS_PER_ROW * n), tol * n),
                    accepted=accepted,
                    rejected=stop_if_asked,
                )
                if end is End.CONVERGED:
                    found = objective.hyperparameters(np.clip(last.where + step, *bounds))
                outcome = ends[end]
            except Stopped:
                outcome = (False, "stopped by a callback")
            except KeyboardInterrupt:
                journal.interrupted()
                outcome = (False, "interrupted")
        return Optimum(found, None, *outcome, at_bound(found, self.prior))


def _best_end(
    tried: list[Objective],
    minimise: Callable[[Objective, int, float], tuple[bool, str]],
    max_iter: int,
    tol: float,
    journal: Journal,
    stage: str,
) -> tuple[Point, tuple[bool, str]]:
    """Minimise from every start; return the best point of all, and how the search that found it ended."""
    with journal.phase(f"hyperparameters, {stage}"):
        try:
            outcomes = [minimise(objective, max_iter, tol) for objective in tried]
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
            f"The covariance of {stage} has no Cholesky factor from any start. "
            "Check that the kernel is positive definite, or raise sigma_y."
        )
    return min(found, key=lambda one: one[0].loss)


def _stages(
    data: RowSource, random: np.random.RandomState, whole: str
) -> Iterator[tuple[str, RowSource]]:
    """A quarter of the rows, half of them where that is many, all of them: each starts where the one before ended."""
    n = len(data)
    if n >= QUARTER_FROM_ROWS:
        order = random.permutation(n)
        rows = data.load()
        yield (
            "a quarter of the rows",
            MemoryRows(rows[np.sort(order[: min(QUARTER_MAX_ROWS, n // 4)])]),
        )
        if n >= HALF_FROM_ROWS:
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
    return [start.with_sigma_y(NOISY_SIGMA_Y)] if start.sigma_y < NOISY_SIGMA_Y else []


def _draw(
    start: Hyperparameters, prior: HyperparameterPrior, random: np.random.RandomState
) -> Hyperparameters:
    theta, free = prior.centre.copy(), prior.free
    low, high = prior.bounds()
    moved = theta[free] + 0.5 * prior.sd[free] * random.standard_normal(int(free.sum()))
    theta[free] = np.clip(moved, low[free], high[free])
    return start.with_theta(theta)
