"""What a search maximises, and what it ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import HOPELESS, Journal, Stopped

SaveBest = Callable[[Hyperparameters], None]
Told = Callable[[float, Hyperparameters], None]


@dataclass(frozen=True)
class Optimum:
    """Where a search ended.

    `evidence` is of the last point, if it is known there; `converged` is None where nothing was searched; `at_bound` names the
    parameters that a bound holds.
    """

    hyperparameters: Hyperparameters
    evidence: Any
    converged: bool | None
    message: str
    at_bound: list[str]


def forget(hyperparameters: Hyperparameters) -> None:
    """What is done with the best point so far where nobody saves it."""


def best_of(save: SaveBest) -> Told:
    """Return a function that is told of every start's best points, and saves those that are the best of all."""
    least = np.inf

    def told(loss: float, hyperparameters: Hyperparameters) -> None:
        nonlocal least
        if loss < least:
            least = loss
            save(hyperparameters)

    return told


class Objective:
    """-(evidence + prior) of the free logs, in nats a row, its gradient, and the best point met on the way."""

    def __init__(
        self,
        evaluate: Callable[..., Any],
        start: Hyperparameters,
        prior: HyperparameterPrior,
        journal: Journal,
        phase: str,
        keep: Told,
    ):
        self.evaluate, self.prior, self.journal, self.phase, self.keep = evaluate, prior, journal, phase, keep
        self.template, self.free = start, prior.free
        self.best: Any = None  # (loss, params, evidence), or None where no point had a Cholesky factor
        self.information: Any = None  # second derivatives at the last point that asked for them

    def __call__(self, free: np.ndarray, information: bool = False) -> tuple[float, np.ndarray]:
        theta = self.template.theta
        theta[self.free] = free
        params = self.template.with_theta(theta)
        try:
            evidence = self.evaluate(params, information=information)
        except (NotPositiveDefinite, NotConverged):
            return HOPELESS, np.zeros_like(free)
        n = evidence.n_rows
        log_prior, slope = self.prior.value_and_gradient(theta)
        loss = -(evidence.value + log_prior) / n
        if information and evidence.information is not None:
            own = evidence.information[np.ix_(self.free, self.free)]
            self.information = (own + np.diag(self.prior.sd[self.free] ** -2)) / n
        if self.best is None or loss < self.best[0]:
            self.best = (loss, params, evidence)
            self.keep(loss, params)
        self.journal.evaluated(self.phase, evidence.value, params.as_dict())
        if self.journal.stopped:
            raise Stopped
        return loss, -(evidence.gradient + slope)[self.free] / n


def at_bound(params: Hyperparameters, prior: HyperparameterPrior) -> list[str]:
    """Names of the free parameters that a bound holds."""
    theta = params.theta
    inside = ((theta > prior.low + 1e-6) & (theta < prior.high - 1e-6))[prior.free]
    names = [name for name, free in zip(params.names, prior.free, strict=True) if free]
    return [name for name, fine in zip(names, inside, strict=True) if not fine]
