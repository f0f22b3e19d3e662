"""What a search maximises, and what it ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import FAILED_LOSS_NATS, Journal, Stopped

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


class ExtraNumbers(Protocol):
    """Numbers that are searched together with the logarithms: those of inducing points.

    They have neither prior nor bounds. `start` (q,) is where a search begins.
    """

    start: np.ndarray

    def place(self, numbers: np.ndarray) -> None:
        """Put the numbers where the next evaluation finds them;  (q,)."""

    def gradient(self, evidence: Any) -> np.ndarray:
        """Return the derivatives of an evaluation by the numbers;  (q,)."""


@dataclass(frozen=True)
class Point:
    """-(evidence + log prior) at a point, its slope (f,), and information (f, f) if asked for.

    The information approximates the second derivatives. The units are nats.
    """

    where: np.ndarray
    loss: float
    slope: np.ndarray
    information: np.ndarray | None
    hyperparameters: Hyperparameters
    evidence: Any = None

    def per_row(self) -> Point:
        """Return the point in nats per row."""
        n = self.evidence.n_rows
        information = None if self.information is None else self.information / n
        return replace(self, loss=self.loss / n, slope=self.slope / n, information=information)


class Objective:
    """-(evidence + log prior) of the free logarithms, and of extra numbers if there are any.

    A point is a vector of the free logarithms and the extra numbers after them. Minimisers see nats
    per row, and a large number where there is no Cholesky factor; the best point is kept.
    """

    def __init__(
        self,
        evaluate: Callable[..., Any],
        start: Hyperparameters,
        prior: HyperparameterPrior,
        journal: Journal,
        phase: str,
        keep: Told | None = None,
        free: np.ndarray | None = None,
        numbers: ExtraNumbers | None = None,
    ) -> None:
        self._evaluate, self._prior, self._journal, self._phase = evaluate, prior, journal, phase
        self._start, self._keep, self._numbers = start, keep, numbers
        self.free = prior.free if free is None else free
        self.best: Point | None = None  # None while no point has had a Cholesky factor

    @property
    def start(self) -> Hyperparameters:
        """Return the hyperparameters that a search starts from."""
        return self._start

    def start_from_the_best(self) -> None:
        """Let the next search start from the best point so far."""
        assert self.best is not None
        self._start = self.best.hyperparameters

    def first(self) -> np.ndarray:
        """Return the point that a search starts from, within bounds."""
        low, high = (bound[self.free] for bound in self._prior.bounds())
        logs = np.clip(self._start.theta[self.free], low, high)
        return logs if self._numbers is None else np.concatenate([logs, self._numbers.start])

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest value of every coordinate of a point."""
        low, high = (bound[self.free] for bound in self._prior.bounds())
        unbounded = np.full(0 if self._numbers is None else self._numbers.start.size, np.inf)
        return np.append(low, -unbounded), np.append(high, unbounded)

    def hyperparameters(self, where: np.ndarray) -> Hyperparameters:
        """Return the hyperparameters at a point."""
        return self._start.with_theta(self._theta(where))

    def _theta(self, where: np.ndarray) -> np.ndarray:
        theta = self._start.theta
        theta[self.free] = where[: int(self.free.sum())]
        return theta

    def at(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective at a point, in nats; where there is none, errors are raised."""
        theta = self._theta(where)
        hyperparameters = self._start.with_theta(theta)
        if self._numbers is not None:
            self._numbers.place(where[int(self.free.sum()) :])
        evidence = self._evaluate(hyperparameters, information=information)
        log_prior, along = self._prior.value_and_gradient(theta)
        slope = (evidence.gradient + along)[self.free]
        if self._numbers is not None:
            slope = np.concatenate([slope, self._numbers.gradient(evidence)])
        metric = None
        if information and evidence.information is not None:
            metric = evidence.information[np.ix_(self.free, self.free)]
            metric = metric + np.diag(self._prior.sd[self.free] ** -2)
        return Point(
            where, -(evidence.value + log_prior), -slope, metric, hyperparameters, evidence
        )

    def tell(self, point: Point) -> None:
        """Tell the journal, and through it the callbacks, of an evaluation."""
        self._journal.evaluated(self._phase, point.evidence.value, point.hyperparameters.as_dict())

    def visit(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective in nats per row, keep it if it is the best, and tell of it.

        Where there is no Cholesky factor, it is FAILED_LOSS_NATS and flat. Stopped is raised once a
        callback asks for that.
        """
        try:
            point = self.at(where, information).per_row()
        except (NotPositiveDefinite, NotConverged):
            here = self.hyperparameters(where)
            return Point(where, FAILED_LOSS_NATS, np.zeros_like(where), None, here)
        if self.best is None or point.loss < self.best.loss:
            self.best = point
            if self._keep is not None:
                self._keep(point.loss, point.hyperparameters)
        self.tell(point)
        if self._journal.stopped:
            raise Stopped
        return point


def at_bound(hyperparameters: Hyperparameters, prior: HyperparameterPrior) -> list[str]:
    """Names of the free parameters that a bound holds."""
    theta = hyperparameters.theta
    inside = ((theta > prior.low + 1e-6) & (theta < prior.high - 1e-6))[prior.free]
    names = [name for name, free in zip(hyperparameters.names, prior.free, strict=True) if free]
    return [name for name, fine in zip(names, inside, strict=True) if not fine]
