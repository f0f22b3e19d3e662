"""The search for hyperparameters, with restarts, bounds and weak priors.

`Search` has two methods. `maximise` is for solvers that compute the log marginal likelihood to
rounding: L-BFGS on a subset of the rows is followed by a quasi-Newton search on all of them.
`gradient_newton` is for solvers that compute only its gradient well: the value that `cg` computes
has a standard error of many nats, but a search with its gradients loses only a fraction of a nat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..data.inputs import InputRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import Journal, Stopped
from ..runtime.session import Session
from .evidence import Evidence
from .lbfgs import lbfgs
from .newton import BY_SLOPES, BY_VALUE, End, damped_newton, linear_power
from .objective import (
    Objective,
    Optimum,
    Point,
    SaveBest,
    at_bound,
    best_of,
    forget,
)

# The message of both Newton searches when they have converged.
CONVERGED_MESSAGE = "the Newton decrement is below tol"
# The sigma_y of the second start, at which noise is half of the variance of y (which is 1).
NOISY_SIGMA_Y = 0.5**0.5
# With fewer rows than this, a search on a quarter of them first saves no time.
QUARTER_FROM_ROWS = 600
# With fewer rows than this, a search on half of them in between saves no time.
HALF_FROM_ROWS = 3000
# The first stage has at most this many rows, so that it takes seconds.
QUARTER_MAX_ROWS = 4000
# A search on gradients ends when half the Newton decrement is below the smaller of these two. The
# last step is taken without an evaluation, and misses a few per cent of the gain that remained.
CLOSE_NATS = 2.0
CLOSE_NATS_PER_ROW = 5e-5

# The function of a solver that is maximised: `evaluate(rows, hyperparameters, information=...)`.
Evaluate = Callable[..., Evidence]


@dataclass(frozen=True)
class Search:
    """A search for hyperparameters: its rows, its start, its prior and its limits.

    If the search is `warm`, the start is an optimum already, that of an earlier fit or a
    checkpoint, and only the last stage is run; `carried` has the inducing points that belong to
    it. `save_best` is called with every point that is the best so far on all rows.
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
        """Return this search with another start."""
        return replace(self, start=start)

    def on(self, rows: RowSource) -> Search:
        """Return this search on other rows; its best points are not saved."""
        return replace(self, rows=rows, save_best=forget)

    def without_restarts(self) -> Search:
        """Return this search without random restarts."""
        return replace(self, n_restarts=0)

    def maximise(
        self,
        evaluate: Evaluate,
        *,
        warm: bool = False,
        phase: str = "all rows",
        tol: float = 0.0,
    ) -> Optimum:
        """Return the optimum of a log marginal likelihood whose values are known to rounding.

        The search starts at `start`, at the same point with more noise, and at `n_restarts` draws
        around the centre of the prior. With enough rows, L-BFGS runs from every start on a quarter
        of them (4,000 at most). From the best optimum, a quasi-Newton search, whose first metric is
        the average information, goes on with more rows; on Digits, it takes 15 evaluations of all
        rows. If `warm`, the start is an optimum already, and only the last stage is run. `tol`,
        if it is larger than the field of that name, is the change of the log marginal likelihood,
        in nats per row, that is not worth a further step. Ctrl-C ends the search with the best
        point found.
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
        """Return the optimum by Newton's method from gradients alone, starting near it.

        The metric is the average information, computed at every point. The gain of a step is
        estimated as the mean of the slopes at its two ends times the step, and a step without gain
        is shortened. The search has converged when half the Newton decrement is below CLOSE_NATS
        and CLOSE_NATS_PER_ROW, or below `tol` nats per row if that is more. The last step is then
        taken without an evaluation.
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
            End.NO_STEP: (False, "no step increases the log marginal likelihood"),
            End.ITERATIONS: (False, f"all {self.max_iter} iterations were used"),
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
    """Minimise from every start; return the best point, and how the search that found it ended."""
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
    """Yield the stages of a search: a quarter of the rows, half of them if they are many, and all.

    Each stage starts at the optimum of the one before.
    """
    n = len(data)
    if n >= QUARTER_FROM_ROWS:
        order = random.permutation(n)
        rows = data.load()
        quarter = order[: min(QUARTER_MAX_ROWS, n // 4)]
        yield "a quarter of the rows", MemoryRows(rows[np.sort(quarter)])
        if n >= HALF_FROM_ROWS:
            yield "half of the rows", MemoryRows(rows[np.sort(order[: n // 2])])
    yield whole, data


def _quasi_newton(objective: Objective, max_iter: int, tol: float) -> tuple[bool, str]:
    """Minimise by BFGS, beginning with the average information; return converged and a message.

    The search has converged when half the Newton decrement is at most `tol`. If there is no
    information, or if no step lowers the loss, L-BFGS goes on from the best point.
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
        return False, f"all {max_iter} iterations were used"
    if end is End.NO_STEP:  # The metric is a poor approximation here.
        objective.start_from_the_best()
    return lbfgs(objective, max_iter, tol)


def _noisier(start: Hyperparameters) -> list[Hyperparameters]:
    """Return the start with noise that is half of the variance of y, if it has less noise.

    From a start with little noise alone, a search may end where short length scales explain the
    noise: 70 to 80 nats too low on each split of Diabetes with z = 1.
    """
    return [start.with_sigma_y(NOISY_SIGMA_Y)] if start.sigma_y < NOISY_SIGMA_Y else []


def _draw(
    start: Hyperparameters, prior: HyperparameterPrior, random: np.random.RandomState
) -> Hyperparameters:
    """Return a random start: a draw around the centre of the prior, with half its std."""
    theta, free = prior.centre.copy(), prior.free
    low, high = prior.bounds()
    moved = theta[free] + 0.5 * prior.sd[free] * random.standard_normal(int(free.sum()))
    theta[free] = np.clip(moved, low[free], high[free])
    return start.with_theta(theta)
