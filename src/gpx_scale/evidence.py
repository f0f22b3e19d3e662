"""Maximising the evidence: a start on a subset, then L-BFGS on all rows; restarts, bounds, weak priors, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize

from .errors import NotPositiveDefinite
from .inputs import Inputs
from .params import Params, Prior
from .progress import Journal

DIFFERENCE = 0.02  # in the logs, for second derivatives
LONGEST = 2.0  # step in the logs
SUBSET_FROM, HALF_FROM = 600, 3000  # rows below which a subset saves nothing
HOPELESS = 1e12  # what the optimiser sees where there is no Cholesky factor


@dataclass(frozen=True)
class Optimum:
    params: Params
    evidence: Any
    converged: bool | None
    message: str
    at_bound: list[str]


class _Stopped(Exception):
    """A callback asked to stop: the best so far counts."""


class _Objective:
    """-(evidence + prior) of the free logs, in nats a row, its gradient, and the best point met on the way."""

    def __init__(self, evaluate: Callable[[Params], Any], start: Params, prior: Prior, journal: Journal, phase: str):
        self.evaluate, self.prior, self.journal, self.phase = evaluate, prior, journal, phase
        self.template, self.free = start, prior.free
        self.best: Any = None  # (loss, params, evidence), or None where no point had a Cholesky factor

    def params(self, free: np.ndarray) -> Params:
        theta = self.template.theta
        theta[self.free] = free
        return self.template.with_theta(theta)

    def __call__(self, free: np.ndarray) -> tuple[float, np.ndarray]:
        params = self.params(free)
        try:
            evidence = self.evaluate(params)
        except NotPositiveDefinite:
            return HOPELESS, np.zeros_like(free)
        log_prior, slope = self.prior.value_and_gradient(params.theta)
        loss = -(evidence.value + log_prior) / len(evidence.alpha)
        if self.best is None or loss < self.best[0]:
            self.best = (loss, params, evidence)
        if self.journal.evaluated(self.phase, evidence.value, params.as_dict()):
            raise _Stopped
        return loss, -(evidence.gradient + slope)[self.free] / len(evidence.alpha)


def maximise_evidence(
    evaluate: Callable[[Inputs, Params], Any],
    data: Inputs,
    start: Params,
    prior: Prior,
    *,
    max_iter: int,
    tol: float,
    n_restarts: int,
    random: np.random.RandomState,
    journal: Journal,
) -> Optimum:
    """The parameters of the largest evidence times prior, from `start` and `n_restarts` draws of the prior.

    With enough rows, L-BFGS runs from every start on a quarter of them; from the best optimum a quasi-Newton search with
    the subset's curvature goes on with more rows (Digits: 5-9 evaluations of all rows, L-BFGS takes 17 from the same
    point). `tol`: a change of the evidence, in nats a row, that is not worth a step.
    """
    starts = [start, *(_draw(start, prior, random) for _ in range(n_restarts))]
    stages = _stages(data, random)
    phase, rows = next(stages)
    with journal.phase(f"hyperparameters, {phase}"):
        runs = []
        for first in starts:
            objective = _Objective(partial(evaluate, rows), first, prior, journal, phase)
            outcome = _lbfgs(objective, prior, max_iter, tol)
            if objective.best is not None:
                runs.append((objective, outcome))
        if not runs:
            raise NotPositiveDefinite("the covariance has no Cholesky factor at any start: raise sigma_y")
        objective, outcome = min(runs, key=lambda run: run[0].best[0])
        H = _curvature(objective, len(data)) if rows is not data else np.empty(0)
    for phase, rows in stages:
        with journal.phase(f"hyperparameters, {phase}"):
            objective = _Objective(partial(evaluate, rows), objective.best[1], prior, journal, phase)
            outcome, H = _quasi_newton(objective, prior, H, max_iter, tol)
            if objective.best is None:
                raise NotPositiveDefinite(f"the covariance of {phase} has no Cholesky factor: raise sigma_y")
    _, params, found = objective.best
    return Optimum(params, found, *outcome, _at_bound(params, prior))


def _stages(data: Inputs, random: np.random.RandomState) -> Iterator[tuple[str, Inputs]]:
    """A quarter of the rows, half of them where that is many, all of them: each starts where the one before ended."""
    n = len(data)
    if n >= SUBSET_FROM:
        order = random.permutation(n)
        yield "a quarter of the rows", data[np.sort(order[: min(4000, n // 4)])]
        if n >= HALF_FROM:
            yield "half of the rows", data[np.sort(order[: n // 2])]
    yield "all rows", data


def _curvature(objective: _Objective, n: int) -> np.ndarray:
    """The loss's second derivatives at the subset's optimum by differences of gradients, as for n rows."""
    _, params, found = objective.best
    prior, free, size = objective.prior, objective.free, len(found.alpha)
    at = params.theta[free]
    _, slope = prior.value_and_gradient(params.theta)
    gradient = -(found.gradient + slope)[free] / size
    rows = []
    for k in range(at.size):
        moved = at.copy()
        moved[k] += DIFFERENCE if at[k] < prior.centre[free][k] else -DIFFERENCE  # towards the centre: inside the box
        rows.append((objective(moved)[1] - gradient) / (moved[k] - at[k]))
    from_prior = np.diag(prior.sd[free] ** -2)
    H = 0.5 * (np.array(rows) + np.array(rows).T) - from_prior / size + from_prior / n
    values, vectors = np.linalg.eigh(H)
    return (vectors * np.maximum(values, from_prior.diagonal().min() / n)) @ vectors.T


def _quasi_newton(
    objective: _Objective, prior: Prior, H: np.ndarray, max_iter: int, tol: float
) -> tuple[tuple[bool, str], np.ndarray]:
    """BFGS from second derivatives H, projected to the box; ends when half the Newton decrement is below tol.

    Returns whether it converged and why it ended, and H as it is then.
    """
    low, high = (bound[prior.free] for bound in prior.bounds())
    theta = np.clip(objective.template.theta[prior.free], low, high)
    try:
        loss, slope = objective(theta)
        for _ in range(max_iter):
            blocked = ((theta <= low) & (slope > 0)) | ((theta >= high) & (slope < 0))
            inside = ~blocked
            step = np.zeros_like(theta)
            step[inside] = -np.linalg.solve(H[np.ix_(inside, inside)], slope[inside])
            if -0.5 * float(slope @ step) <= tol:
                return (True, "newton decrement below tol"), H
            step *= min(1.0, LONGEST / np.abs(step).max())
            for _ in range(20):
                moved = np.clip(theta + step, low, high)
                new_loss, new_slope = objective(moved)
                if new_loss <= loss + 1e-4 * float(slope @ (moved - theta)):
                    break
                step *= 0.3
            else:
                return (False, "no descent along the search direction"), H
            s, change = moved - theta, new_slope - slope
            if float(s @ change) > 0.0:
                Hs = H @ s
                H = H - np.outer(Hs, Hs) / float(s @ Hs) + np.outer(change, change) / float(s @ change)
            theta, loss, slope = moved, new_loss, new_slope
    except _Stopped:
        return (False, "stopped by a callback"), H
    return (False, f"{max_iter} iterations"), H


def _lbfgs(objective: _Objective, prior: Prior, max_iter: int, tol: float) -> tuple[bool, str]:
    low, high = prior.bounds()
    free = prior.free
    first = np.clip(objective.template.theta[free], low[free], high[free])
    try:
        result = minimize(
            objective,
            first,
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack([low[free], high[free]]),
            options={"maxiter": max_iter, "ftol": tol, "gtol": 1e-6},
        )
    except _Stopped:
        return False, "stopped by a callback"
    return bool(result.success), str(result.message).strip().lower()


def _draw(start: Params, prior: Prior, random: np.random.RandomState) -> Params:
    theta, free = prior.centre.copy(), prior.free
    low, high = prior.bounds()
    moved = theta[free] + 0.5 * prior.sd[free] * random.standard_normal(int(free.sum()))
    theta[free] = np.clip(moved, low[free], high[free])
    return start.with_theta(theta)


def _at_bound(params: Params, prior: Prior) -> list[str]:
    inside = np.abs(params.theta[prior.free] - prior.centre[prior.free]) < prior.half_width[prior.free] - 1e-6
    names = [name for name, free in zip(params.names, prior.free, strict=True) if free]
    return [name for name, fine in zip(names, inside, strict=True) if not fine]
