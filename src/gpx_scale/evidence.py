"""Maximising the evidence: a start on a subset, then L-BFGS on all rows; restarts, bounds, weak priors, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from .errors import NotPositiveDefinite
from .inputs import Inputs
from .params import Params, Prior
from .progress import Journal

SUBSET_FROM = 600  # rows below which a subset saves nothing
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
    """-(evidence + prior) of the free logs, its gradient, and the best point met on the way."""

    def __init__(self, evaluate: Callable[[Params], Any], start: Params, prior: Prior, journal: Journal, phase: str):
        self.evaluate, self.prior, self.journal, self.phase = evaluate, prior, journal, phase
        self.template, self.free = start, prior.free
        self.best: tuple[float, Params, Any] | None = None

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
        loss = -(evidence.value + log_prior)
        if self.best is None or loss < self.best[0]:
            self.best = (loss, params, evidence)
        if self.journal.evaluated(self.phase, evidence.value, params.as_dict()):
            raise _Stopped
        return loss, -(evidence.gradient + slope)[self.free]


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

    All starts run on a subset of a quarter of the rows where there are enough; the best of them, and the start itself if
    the subset misled, goes on with all rows. `tol` is the relative change of the evidence that ends an L-BFGS run.
    """
    starts = [start, *(_draw(start, prior, random) for _ in range(n_restarts))]
    stages = [("all rows", data)]
    if len(data) >= SUBSET_FROM:
        size = min(4000, max(SUBSET_FROM // 2, len(data) // 4))
        stages.insert(0, ("subset", data[np.sort(random.permutation(len(data))[:size])]))
    for phase, rows in stages:
        runs = []
        with journal.phase(f"hyperparameters, {phase}"):
            for first in starts:
                objective = _Objective(lambda params, rows=rows: evaluate(rows, params), first, prior, journal, phase)
                runs.append((*_lbfgs(objective, prior, max_iter, tol), objective))
        runs = [run for run in runs if run[-1].best is not None]
        if not runs:
            raise NotPositiveDefinite("the covariance has no Cholesky factor at any start: raise sigma_y")
        converged, message, objective = min(runs, key=lambda run: run[-1].best[0])
        _, params, found = objective.best
        starts = [params]
    return Optimum(params, found, converged, message, _at_bound(params, prior))


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
            options={"maxiter": max_iter, "ftol": tol, "gtol": 1e-3},
        )
    except _Stopped:
        return False, "stopped by a callback"
    return bool(result.success), str(result.message).strip().lower()


def _draw(start: Params, prior: Prior, random: np.random.RandomState) -> Params:
    theta = prior.centre.copy()
    low, high = prior.bounds()
    theta[prior.free] += 0.5 * prior.sd[prior.free] * random.standard_normal(int(prior.free.sum()))
    return start.with_theta(np.clip(theta, low, high) if prior.free.all() else np.where(prior.free, theta, prior.centre))


def _at_bound(params: Params, prior: Prior) -> list[str]:
    low, high = prior.bounds()
    near = prior.free & (np.minimum(params.theta - low, high - params.theta) < 1e-6)
    return [name for name, hit in zip(params.names, near, strict=True) if hit]
