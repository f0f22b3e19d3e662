"""The search for hyperparameters: L-BFGS on a subset, then quasi-Newton on all rows; restarts, bounds, weak priors, callbacks.

Two searches end on all rows: `maximise_evidence`, where the log marginal likelihood is known to rounding, and
`gradient_newton`, where only its gradient is known well (`cg`: the value has a standard error of many nats, the gradient
loses a fraction of one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize

from ..data.inputs import InputRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import Journal, Stopped
from ..runtime.session import Session
from .objective import Objective, Optimum, SaveBest, at_bound, best_of, forget

LINEAR_IN_POWER = {"theta1": 1.0, "sigma": 2.0}  # C is linear in this power of the parameter
LONGEST = 2.0  # step in the logs
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
    search = _quasi_newton if warm and not n_restarts else _lbfgs
    for phase, rows in stages:
        told = best_of(keep if rows is data else forget)
        tried = [Objective(partial(evaluate, rows), first, prior, journal, phase, told) for first in starts]
        with journal.phase(f"hyperparameters, {phase}"):
            try:
                outcomes = [search(objective, prior, max_iter, tol) for objective in tried]
            except Stopped:
                outcomes = [(False, "stopped by a callback")] * len(tried)
            except KeyboardInterrupt:
                if not any(objective.best for objective in tried):
                    raise
                journal.interrupted()
                outcomes = [(False, "interrupted")] * len(tried)
        found = [(objective.best, outcome) for objective, outcome in zip(tried, outcomes, strict=True) if objective.best]
        if not found:
            raise NotPositiveDefinite(
                f"the covariance of {phase} has no Cholesky factor from any start: is the kernel positive? Raise sigma_y"
            )
        (_, params, evidence), outcome = min(found, key=lambda one: one[0][0])
        if journal.stopped:
            break
        starts, search = [params], _quasi_newton
    return Optimum(params, evidence if rows is data else None, *outcome, at_bound(params, prior))


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
    """Damped quasi-Newton on the gradient alone, from a good start, its metric the average information there.

    The gain of a step is the mean of the slopes at its ends times the step: a step that gains nothing is cut. The search ends
    where half the decrement is below CLOSE nats (or `tol` nats a row, if that is more); that last step is taken unseen.
    """
    free, n = prior.free, len(data)
    low, high = (bound[free] for bound in prior.bounds())
    theta = np.clip(start.theta[free], low, high)

    def at(point: np.ndarray, information: bool = False) -> tuple[Hyperparameters, Any, np.ndarray]:
        logs = start.theta
        logs[free] = point
        params = start.with_theta(logs)
        found = evaluate(data, params, information=information)
        journal.evaluated(phase, found.value, params.as_dict())
        return params, found, -(found.gradient + prior.value_and_gradient(logs)[1])[free]

    def metric(found: Any, slope: np.ndarray) -> np.ndarray:
        own = found.information[np.ix_(free, free)] + np.diag(prior.sd[free] ** -2)
        return own + np.diag(_power(start, prior) * np.maximum(slope, 0.0))

    def settle(params: Hyperparameters) -> None:
        keep(params)
        if journal.stopped:
            raise Stopped

    params, enough = start, max(min(CLOSE, CLOSE_A_ROW * n), tol * n)
    with journal.phase(f"hyperparameters, {phase}"):
        try:
            params, found, slope = at(theta, information=True)
            settle(params)
            H = metric(found, slope)
            for _ in range(max_iter):
                step, decrement = _newton_step(H, slope, theta, low, high, _power(start, prior))
                if decrement <= enough:
                    logs = start.theta
                    logs[free] = np.clip(theta + step, low, high)
                    params = start.with_theta(logs)
                    return Optimum(params, None, True, "newton decrement below tol", at_bound(params, prior))
                for _ in range(5):
                    moved = np.clip(theta + step, low, high)
                    with suppress(NotConverged, NotPositiveDefinite):
                        new_params, found, new_slope = at(moved, information=True)
                        gain = -0.5 * float((slope + new_slope) @ (moved - theta))
                        if gain > 0:
                            break
                    if journal.stopped:
                        raise Stopped
                    step *= 0.4
                else:
                    return Optimum(params, None, False, "no step gains evidence", at_bound(params, prior))
                H = _damped_update(metric(found, new_slope), moved - theta, new_slope - slope)
                params, theta, slope = new_params, moved, new_slope
                settle(params)
            outcome = (False, f"{max_iter} iterations")
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


def _quasi_newton(objective: Objective, prior: HyperparameterPrior, max_iter: int, tol: float) -> tuple[bool, str]:
    """BFGS from the average information at the start, projected to the box, until half the decrement is below tol.

    C is linear in theta1, sigma_w^2 and sigma_y^2, so along their logs the loss bends as exp: a Newton step up is taken in
    the variance itself (log1p), a step down is held back by the slope.
    """
    free = prior.free
    low, high = (bound[free] for bound in prior.bounds())
    power = _power(objective.template, prior)
    theta = np.clip(objective.template.theta[free], low, high)
    loss, slope = objective(theta, information=True)
    if objective.information is None:
        return _lbfgs(objective, prior, max_iter, tol)
    H = objective.information + np.diag(power * np.maximum(slope, 0.0))
    for _ in range(max_iter):
        step, decrement = _newton_step(H, slope, theta, low, high, power)
        if decrement <= tol:
            return True, "newton decrement below tol"
        for _ in range(20):
            moved = np.clip(theta + step, low, high)
            new_loss, new_slope = objective(moved)
            if new_loss <= loss + 1e-4 * min(0.0, float(slope @ (moved - theta))):
                break
            step *= 0.3
        else:  # no descent along a direction that should have one: the metric is off
            objective.template = objective.best[1]
            return _lbfgs(objective, prior, max_iter, tol)
        H = _damped_update(H, moved - theta, new_slope - slope)
        theta, loss, slope = moved, new_loss, new_slope
    return False, f"{max_iter} iterations"


def _power(params: Hyperparameters, prior: HyperparameterPrior) -> np.ndarray:
    """Of each free parameter, the power in which C is linear (0: none)."""
    return np.array([LINEAR_IN_POWER.get(label, 0.0) for label in params.parameter_kinds])[prior.free]


def _newton_step(
    H: np.ndarray, slope: np.ndarray, theta: np.ndarray, low: np.ndarray, high: np.ndarray, power: np.ndarray
) -> tuple[np.ndarray, float]:
    """A step down inside the box, no longer than LONGEST in any coordinate, and half the Newton decrement."""
    step = _projected_step(H, slope, theta <= low, theta >= high)
    decrement = -0.5 * float(slope @ step)
    up = (step > 0) & (power > 0)
    shorter = step.copy()
    shorter[up] = np.log1p(power[up] * step[up]) / power[up]
    step = shorter if float(slope @ shorter) < 0 else step
    # One by one: a vanishing sigma_w asks for steps without end, and must not hold the others back.
    clipped = np.clip(step, -LONGEST, LONGEST)
    if not step.any():
        return step, decrement
    return (clipped if float(slope @ clipped) < 0 else step * (LONGEST / np.abs(step).max())), decrement


def _projected_step(H: np.ndarray, slope: np.ndarray, at_low: np.ndarray, at_high: np.ndarray) -> np.ndarray:
    """-H^-1 slope in the coordinates that may move: one at its bound stays there if slope or step would push it out."""
    inside = ~((at_low & (slope > 0)) | (at_high & (slope < 0)))
    step = np.zeros_like(slope)
    for _ in range(slope.size):
        step[:] = 0.0
        step[inside] = -np.linalg.solve(H[np.ix_(inside, inside)], slope[inside])
        out = (at_low & (step < 0)) | (at_high & (step > 0))
        if not out.any():
            break
        inside &= ~out
    return step


def _damped_update(H: np.ndarray, s: np.ndarray, change: np.ndarray) -> np.ndarray:
    """BFGS, with Powell's damping: H stays positive definite whatever the gradients did."""
    Hs = H @ s
    bend, seen = float(s @ Hs), float(s @ change)
    if seen < 0.2 * bend:
        share = 0.8 * bend / (bend - seen)
        change = share * change + (1 - share) * Hs
    return H - np.outer(Hs, Hs) / bend + np.outer(change, change) / float(s @ change)


def _lbfgs(objective: Objective, prior: HyperparameterPrior, max_iter: int, tol: float) -> tuple[bool, str]:
    low, high = prior.bounds()
    free = prior.free
    first = np.clip(objective.template.theta[free], low[free], high[free])
    result = minimize(
        objective,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack([low[free], high[free]]),
        options={"maxiter": max_iter, "ftol": tol, "gtol": 1e-6},
    )
    said = str(result.message).strip().lower()
    return bool(result.success), next((words for known, words in ENDS.items() if known in said), said)


ENDS = {  # what L-BFGS-B says, in words
    "relative reduction of f": "the evidence changes by less than tol",
    "norm of projected gradient": "the gradient is 0",
}


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
