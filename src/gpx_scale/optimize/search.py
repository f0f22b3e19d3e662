"""The search for hyperparameters, with stages, restarts, bounds and weak priors.

All solvers search by the same Newton steps (`newton`). They differ in how a step is judged: by the
log marginal likelihood if it is known to rounding, and by its gradients if only these are known
well. The value that `cg` computes has a standard error of many nats, but a search with its
gradients loses only a fraction of a nat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..data.inputs import InputRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import Stopped
from ..runtime.session import Session
from .evidence import Evidence
from .lbfgs import lbfgs
from .newton import BY_SLOPES, BY_VALUE, End, StepRule, damped_newton
from .objective import (
    Objective,
    Optimum,
    Point,
    SaveBest,
    at_bound,
    best_of,
    forget,
)

# The message of a search that has converged.
CONVERGED_MESSAGE = "the Newton decrement is below tol"
# The message of a search on rows whose y is the same number.
CONSTANT_MESSAGE = "y is constant on the rows of the search, so the start values are kept"
# The sigma_y of the second start, at which noise is half of the variance of y (which is 1).
NOISY_SIGMA_Y = 0.5**0.5
# With fewer rows than this, a search on a quarter of them first saves no time.
QUARTER_FROM_ROWS = 600
# A subset has at most this many rows, and up to this many, all rows are searched to the optimum and
# with exact gradients, also with search_rows="auto". Hyperparameters of m rows lose about
# q n / (2 m) nats of n rows, where q is their number: 8 nats for q = 4, n = 20,000, m = 5,000.
EXACT_GRADIENT_ROWS = 5_000
# An optimum is where a further Newton step promises at most this share of `tol`. It is reached with
# one evaluation more. Along directions in which they are flat together, evidence and prior still
# change by 0.9 nats where a step promises 0.008 (33 parameters, n = 2,000).
OPTIMUM_SHARE = 0.1
# With search_rows="auto" and more rows, a search ends when a further step promises less than this.
WORTH_A_STEP_NATS_PER_ROW = 0.002
# From this many times EXACT_GRADIENT_ROWS rows on, a stage between these and all n rows, on the
# geometric mean of both numbers, saves more than it takes. If the model does not hold exactly, its
# optimum moves with the number of rows: on 12,000 rows of kin40k, the stage takes 1.5 s and saves
# one of three steps on all rows, each of 5.3 s.
MIDDLE_STAGE_FROM = 2
STOPPED_IN_TIME_MESSAGE = (
    f"a further step promises less than {WORTH_A_STEP_NATS_PER_ROW} nats per row"
)
# The number of probes of an estimated gradient. With s of them, each parameter is off by s^-1/2 of
# its own standard error, which costs q / (2 s) nats: 0.1 for q = 4, and 1.9 for q = 60.
PROBES = 16
# With more parameters than this, there are more probes, so that 61 parameters cost 0.5 nats.
MANY_PARAMETERS = 60
MANY_PROBES = 64
# With fewer rows than this, exact gradients take no time, and there are no stages with estimated
# ones. At 4,000 rows, a step with an estimated gradient takes a fifth of one with an exact one.
ESTIMATED_FROM_ROWS = 2_000
# A search with estimated gradients ends at this many times their expected error in nats.
ERRORS_OF_GRADIENT = 3.0
# A search on gradients ends when half the Newton decrement is below the smaller of these two. The
# last step is taken without an evaluation, and misses a few per cent of the gain that remained.
CLOSE_NATS = 2.0
CLOSE_NATS_PER_ROW = 5e-5
# A search on a subset stops early: its optimum is many nats away from that of all rows.
SUBSET_TOLERANCE_NATS_PER_ROW = 1e-4
# A promised gain below this share of the loss cannot be seen in its value.
ROUNDING_SHARE = 1e-12

# The function of a solver that is maximised: `evaluate(rows, hyperparameters, information=...)`.
Evaluate = Callable[..., Evidence]


@dataclass(frozen=True)
class Stage:
    """A part of a search: some rows, and when the search on them ends.

    An optimum is where a further step promises a gain of at most `tol` nats per row. The search may
    end before, where a step promises less than it is `worth`, in nats per row, or less than the
    error of the gradient; if that is 0, it goes on to the optimum. Gradients are estimated from
    `probes` random probes, or exact if that is 0. With `unseen_step`, the step that leads from the
    last point is taken without an evaluation.
    """

    name: str
    rows: RowSource
    tol: float
    worth: float = 0.0
    probes: int = 0
    unseen_step: bool = False

    def is_optimum(self, promised: float, point: Point) -> bool:
        """Return whether the gain that a further step promises, in nats, is that of an optimum."""
        return promised <= max(self.tol * len(self.rows), ROUNDING_SHARE * abs(point.loss))

    def is_enough(self, promised: float, point: Point) -> bool:
        """Return whether the search ends at a point where a step promises a gain, in nats."""
        if not self.worth or self.is_optimum(promised, point):
            return self.is_optimum(promised, point)
        noise = gradient_noise(point)
        return promised - noise <= max(self.worth * len(self.rows), ERRORS_OF_GRADIENT * noise)


def gradient_noise(point: Point) -> float:
    """Return the part of a promised gain, in nats, that is due to the error of the gradient.

    The error of a gradient from s probes has at most the covariance information / s, so q
    parameters seem to promise q / (2 s) nats more than there are.
    """
    probes = 0 if point.evidence is None else point.evidence.probes
    return point.slope.size / (2.0 * probes) if probes else 0.0


@dataclass(frozen=True)
class Ending:
    """How the search from one start ended.

    `promised_gain` is what a further step promised at the last point that was evaluated, in nats.
    If that step was taken without an evaluation, `moved_to` is where it led.
    """

    converged: bool
    message: str
    promised_gain: float = np.nan
    moved_to: Hyperparameters | None = None


@dataclass(frozen=True)
class Search:
    """A search for hyperparameters: its rows, its start, its prior and its limits.

    If the search is `warm`, the start is an optimum already, that of an earlier fit or a
    checkpoint, and only the last stage is run; `carried` has the inducing points that belong to
    it. `save_best` is called with every point that is the best so far on all rows. `optimizer` is
    "auto" or "lbfgs". `search_rows` is "auto", "all" or a number of rows. `on_subset` says that
    the rows are a subset of those of the fit. If the start is the optimum of a subset, `known_rows`
    is its number of rows: stages on as many rows are left out.
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
    optimizer: str = "auto"
    search_rows: int | str = "all"
    on_subset: bool = False
    known_rows: int = 0

    def starting_at(self, start: Hyperparameters) -> Search:
        """Return this search with another start."""
        return replace(self, start=start)

    def on(self, rows: RowSource) -> Search:
        """Return this search on a subset of its rows, whose optimum is not that of the fit.

        Its best points are not saved.
        """
        return replace(self, rows=rows, save_best=forget, search_rows="all", on_subset=True)

    def limited(self) -> Search:
        """Return the search on as many rows as the user asked for, this one if that is all."""
        if isinstance(self.search_rows, str) or self.search_rows >= len(self.rows):
            return self
        rows = self.rows
        if rows.in_memory:
            rows = MemoryRows(rows.load(), self.session.draw_seed())
        some = MemoryRows(rows.subset(self.search_rows))
        return replace(self.on(some), save_best=self.save_best)

    @property
    def phase(self) -> str:
        """Return the name of the last stage."""
        return f"{len(self.rows)} rows" if self.on_subset else "all rows"

    def most_rows(self, count: int) -> int:
        """Return `count`, or the number of rows that the user asked for if that is less."""
        return count if isinstance(self.search_rows, str) else min(count, self.search_rows)

    @property
    def stops_in_time(self) -> bool:
        """Return whether the search on all rows ends before their optimum, to save time."""
        return self.search_rows == "auto" and len(self.rows) > EXACT_GRADIENT_ROWS

    @property
    def worth(self) -> float:
        """Return the gain per row for which another step on all rows is taken, 0 for any."""
        return WORTH_A_STEP_NATS_PER_ROW if self.stops_in_time else 0.0

    def without_restarts(self) -> Search:
        """Return this search without random restarts."""
        return replace(self, n_restarts=0)

    def maximise(
        self,
        evaluate: Evaluate,
        *,
        rule: StepRule = BY_VALUE,
        warm: bool = False,
        tol: float = 0.0,
        estimates: bool = False,
        unseen_step: bool = False,
    ) -> Optimum:
        """Return the optimum of a log marginal likelihood whose values are known to rounding.

        The search starts at `start`, at the same point with more noise, and at `n_restarts` draws
        around the centre of the prior. With enough rows, it first runs from every start on a
        quarter of them (1,250 at most), and then goes on from the best optimum with more rows. If
        `warm`, the start is an optimum already, and only the last stage is run. It ends where a
        further step promises a tenth of the field `tol`, or the argument `tol` if that is larger,
        in nats per row. If it `estimates`, `evaluate` takes a number of `probes` to estimate a
        gradient from, and an optimum with an argument `tol` is found by these alone. With
        `unseen_step`, a search that stops in time takes the last step without an evaluation. Ctrl-C
        ends the search with the best point found.
        """
        if self.on_subset and not np.ptp(self.rows.load().y):
            return Optimum(self.start, None, False, CONSTANT_MESSAGE, [])
        by_newton = self.optimizer != "lbfgs"
        draws = [_draw(self.start, self.prior, self.session.random) for _ in range(self.n_restarts)]
        is_start_known = warm or self.known_rows > 0
        starts = [self.start, *(() if is_start_known else noisier(self.start)), *draws]
        estimates = estimates and by_newton and len(self.rows) >= ESTIMATED_FROM_ROWS
        probes = probes_for(int(self.prior.free.sum())) if estimates else 0
        before = [] if warm else list(self._first_stages(probes))
        close = max(tol, (OPTIMUM_SHARE if by_newton else 1.0) * self.tol)
        last = Stage(self.phase, self.rows, close)
        if self.stops_in_time:
            last = replace(last, worth=self.worth, probes=probes, unseen_step=unseen_step)
        if estimates and tol and len(before) > 1:
            # The optimum is needed roughly, and the stage with estimated gradients has found it.
            last, before = replace(before[-1], name=self.phase), before[:-1]
        stages = [*before, last]
        return self._staged(evaluate, rule, starts, stages, is_optimum=warm)

    def _first_stages(self, probes: int) -> Iterator[Stage]:
        """Yield the stages that come before the last one, on subsets and with estimated gradients.

        They are nested: a quarter of the rows, or of 5,000 of them, and then these 5,000. If
        gradients can be estimated from `probes`, they are, but for the first stage; there may then
        be a stage in the middle between 5,000 and all rows, and one on all rows before one with
        exact gradients. The next stage begins where the last step of such a stage leads. A subset
        on which y is constant is left out, as its optimum has no noise.
        """
        n = len(self.rows)
        if n < QUARTER_FROM_ROWS:
            return
        order, rows = self.session.random.permutation(n), self.rows.load()
        most = min(n, EXACT_GRADIENT_ROWS)
        counts = [count for count in (most // 4, most) if count > self.known_rows]
        if probes and n >= MIDDLE_STAGE_FROM * most:
            counts.append(int(np.sqrt(most * n)))
        if probes and not self.stops_in_time:
            counts.append(n)
        tol = max(self.tol, SUBSET_TOLERANCE_NATS_PER_ROW)
        for count in dict.fromkeys(counts):
            some = self.rows if count == n else MemoryRows(rows[np.sort(order[:count])])
            estimated = probes if count >= most else 0
            if (count < n or estimated) and np.ptp(some.load().y):
                name = "a quarter of the rows" if count == n // 4 else f"{count} rows"
                name = f"{self.phase}, estimated gradients" if count == n else name
                worth = (tol if count == most else WORTH_A_STEP_NATS_PER_ROW) if estimated else 0.0
                yield Stage(name, some, tol, worth, estimated, unseen_step=estimated > 0)

    def gradient_newton(self, evaluate: Evaluate, *, tol: float = 0.0) -> Optimum:
        """Return the optimum by Newton's method from gradients alone, starting near it.

        The gain of a step is estimated as the mean of the slopes at its two ends times the step,
        and a step without gain is damped. The search has converged when half the Newton decrement
        is below CLOSE_NATS and CLOSE_NATS_PER_ROW, or below `tol` nats per row if that is more. The
        last step is then taken without an evaluation. A search that stops in time does not take it,
        because the solution for the last point is of more use.
        """
        close = min(CLOSE_NATS / len(self.rows), CLOSE_NATS_PER_ROW)
        stage = Stage(
            self.phase,
            self.rows,
            max(close, tol, self.tol),
            self.worth,
            unseen_step=not self.stops_in_time,
        )
        return self._staged(evaluate, BY_SLOPES, [self.start], [stage], is_optimum=True)

    def _staged(
        self,
        evaluate: Evaluate,
        rule: StepRule,
        starts: list[Hyperparameters],
        stages: list[Stage],
        *,
        is_optimum: bool,
    ) -> Optimum:
        """Return the optimum of the last stage; each one starts at the optimum of that before.

        `is_optimum` says that the first start is the optimum of other rows already, so that it is
        returned if the search is interrupted before its first evaluation.
        """
        journal, used, evidence = self.session.journal, 0, None
        for stage in stages:
            told = best_of(self.save_best if stage is stages[-1] else forget)
            asked = {"probes": stage.probes} if stage.probes else {}
            tried = [
                Objective(
                    partial(evaluate, stage.rows, **asked),
                    first,
                    self.prior,
                    journal,
                    stage.name,
                    told,
                    by_value=rule.by_value,
                )
                for first in starts
            ]
            try:
                best, ending = self._best_end(tried, rule, stage)
            except KeyboardInterrupt:
                if not (is_optimum or used):
                    raise
                journal.interrupted()
                found, ending = starts[0], Ending(False, "interrupted")
                break
            found, used = ending.moved_to or best.hyperparameters, len(stage.rows)
            evidence = best.evidence if stage is stages[-1] else None
            if journal.stopped:
                break
            starts = [found]
        return Optimum(
            found,
            evidence if ending.moved_to is None else None,
            ending.converged,
            ending.message,
            at_bound(found, self.prior),
            used,
            ending.promised_gain,
        )

    def _best_end(
        self, tried: list[Objective], rule: StepRule, stage: Stage
    ) -> tuple[Point, Ending]:
        """Minimise from every start; return the best point, and how its search ended."""
        journal = self.session.journal
        with journal.phase(f"hyperparameters, {stage.name}", search=True):
            try:
                endings = [self._minimise(objective, rule, stage) for objective in tried]
            except Stopped:
                endings = [Ending(False, "stopped by a callback")] * len(tried)
            except KeyboardInterrupt:
                if all(objective.best is None for objective in tried):
                    raise
                journal.interrupted()
                endings = [Ending(False, "interrupted")] * len(tried)
        pairs = zip(tried, endings, strict=True)
        found = [(one.best, ending) for one, ending in pairs if one.best is not None]
        if not found:
            raise NotPositiveDefinite(
                f"The covariance of {stage.name} has no Cholesky factor from any start. "
                "Check that the kernel is positive definite, or raise sigma_y."
            )
        return min(found, key=lambda one: one[0].loss)

    def _minimise(self, objective: Objective, rule: StepRule, stage: Stage) -> Ending:
        """Minimise from the start of an objective, by Newton's method or by L-BFGS.

        Where values are known to rounding, L-BFGS also goes on where Newton's method cannot: if
        there is no information, or if no step lowers the loss.
        """
        if rule.by_value and self.optimizer == "lbfgs":
            return Ending(*lbfgs(objective, self.max_iter, stage.tol))
        try:
            found = damped_newton(
                objective.look,
                objective.first(),
                objective.coordinates(),
                rule,
                max_iter=self.max_iter,
                enough=stage.is_enough,
                accepted=objective.move_to,
                rejected=objective.stop_if_asked,
            )
        except (NotConverged, NotPositiveDefinite):
            if rule.by_value:
                return Ending(False, "the start has no Cholesky factor")
            raise
        left = max(0.0, found.promised - gradient_noise(found.point))
        if found.end is End.ITERATIONS:
            return Ending(False, f"all {self.max_iter} iterations were used", left)
        if found.end is End.CONVERGED:
            is_optimum = stage.is_optimum(found.promised, found.point)
            message = CONVERGED_MESSAGE if is_optimum else STOPPED_IN_TIME_MESSAGE
            moved = objective.hyperparameters(found.target) if stage.unseen_step else None
            return Ending(True, message, left, moved)
        if not rule.by_value:
            return Ending(False, "no step increases the log marginal likelihood", left)
        objective.start_from_the_best()
        return Ending(*lbfgs(objective, self.max_iter, stage.tol))


def probes_for(parameters: int) -> int:
    """Return how many probes the gradient by so many parameters is estimated from."""
    return PROBES if parameters <= MANY_PARAMETERS else MANY_PROBES


def noisier(start: Hyperparameters) -> list[Hyperparameters]:
    """Return the start with noise that is half of the variance of y, if it has less of it.

    From a start with little noise alone, a search may end where short length scales explain the
    noise: 70 to 80 nats too low on each split of Diabetes with z = 1.
    """
    if not start.likelihood.is_gaussian or start.sigma_y >= NOISY_SIGMA_Y:
        return []
    return [start.with_sigma_y(NOISY_SIGMA_Y)]


def _draw(
    start: Hyperparameters, prior: HyperparameterPrior, random: np.random.RandomState
) -> Hyperparameters:
    """Return a random start: a draw around the centre of the prior, with half its std."""
    theta, free = prior.centre.copy(), prior.free
    low, high = prior.bounds()
    moved = theta[free] + 0.5 * prior.sd[free] * random.standard_normal(int(free.sum()))
    theta[free] = np.clip(moved, low[free], high[free])
    return start.with_theta(theta)
