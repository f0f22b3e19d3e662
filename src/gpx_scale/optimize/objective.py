"""The objective of a search for hyperparameters, and the optimum that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import FAILED_LOSS_NATS, Journal, Stopped
from .evidence import Evidence

# A function that saves the best hyperparameters so far.
SaveBest = Callable[[Hyperparameters], None]
# A function that is called with a loss in nats per row and its hyperparameters.
Told = Callable[[float, Hyperparameters], None]


@dataclass(frozen=True)
class Optimum:
    """The result of a search.

    `evidence` is the solver's `Evidence` at these hyperparameters, None if it is not known there.
    `converged` is None if there was no search. `at_bound` has the names of the parameters that are
    at a bound.
    """

    hyperparameters: Hyperparameters
    evidence: Evidence | None
    converged: bool | None
    message: str
    at_bound: list[str]


def forget(hyperparameters: Hyperparameters) -> None:
    """Do nothing with the best point so far: it is not to be saved."""


def best_of(save: SaveBest) -> Told:
    """Return a function to be called with the best points of each start.

    It saves those that are better than all points before, from any start.
    """
    least = np.inf

    def told(loss: float, hyperparameters: Hyperparameters) -> None:
        nonlocal least
        if loss < least:
            least = loss
            save(hyperparameters)

    return told


class ExtraNumbers(Protocol):
    """Numbers that are searched together with the hyperparameters: those of inducing points.

    They have neither a prior nor bounds. `start` (q,) is where a search begins.
    """

    start: np.ndarray

    def place(self, numbers: np.ndarray) -> None:
        """Set the numbers that the next evaluation uses;  (q,)."""

    def gradient(self, evidence: Any) -> np.ndarray:
        """Return the derivatives of the log marginal likelihood by the numbers;  (q,)."""


@dataclass(frozen=True)
class Point:
    """The objective at a point: the loss -(log marginal likelihood + log prior), in nats.

    `where` (f,) is the point, `slope` (f,) the gradient of the loss, and `information` (f, f), if
    it was asked for, approximates its second derivatives.
    """

    where: np.ndarray
    loss: float
    slope: np.ndarray
    information: np.ndarray | None
    hyperparameters: Hyperparameters
    evidence: Evidence | None = None

    def per_row(self) -> Point:
        """Return this point with loss, slope and information in nats per row."""
        assert self.evidence is not None
        n = self.evidence.n_rows
        information = None if self.information is None else self.information / n
        return replace(self, loss=self.loss / n, slope=self.slope / n, information=information)


class Objective:
    """The loss -(log marginal likelihood + log prior) as a function of a vector.

    The vector contains the free logarithms, followed by the extra numbers if there are any. The
    method `at` returns the loss in nats. The method `visit`, for minimisers, returns it in nats per
    row, returns a large number where C has no Cholesky factor, and keeps the best point in `best`,
    which is None until a point has a Cholesky factor.
    """

    def __init__(
        self,
        evaluate: Callable[..., Evidence],
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
        self.best: Point | None = None

    @property
    def start(self) -> Hyperparameters:
        """Return the hyperparameters that a search starts from."""
        return self._start

    def start_from_the_best(self) -> None:
        """Let the next search start from the best point so far."""
        assert self.best is not None
        self._start = self.best.hyperparameters

    def first(self) -> np.ndarray:
        """Return the point that a search starts from, moved within the bounds;  (f,)."""
        low, high = (bound[self.free] for bound in self._prior.bounds())
        logs = np.clip(self._start.theta[self.free], low, high)
        return logs if self._numbers is None else np.concatenate([logs, self._numbers.start])

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest value of every coordinate of a point;  (f,), (f,)."""
        low, high = (bound[self.free] for bound in self._prior.bounds())
        unbounded = np.full(0 if self._numbers is None else self._numbers.start.size, np.inf)
        return np.append(low, -unbounded), np.append(high, unbounded)

    def hyperparameters(self, where: np.ndarray) -> Hyperparameters:
        """Return the hyperparameters at a point;  (f,)."""
        return self._start.with_theta(self._theta(where))

    def _theta(self, where: np.ndarray) -> np.ndarray:
        """Return the logarithms of all hyperparameters at a point;  (f,) -> (t,)."""
        theta = self._start.theta
        theta[self.free] = where[: int(self.free.sum())]
        return theta

    def at(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective at a point, in nats;  (f,).

        NotPositiveDefinite and NotConverged are raised where the objective cannot be computed.
        """
        theta = self._theta(where)
        hyperparameters = self._start.with_theta(theta)
        if self._numbers is not None:
            self._numbers.place(where[int(self.free.sum()) :])
        evidence = self._evaluate(hyperparameters, information=information)
        log_prior, prior_gradient = self._prior.value_and_gradient(theta)
        assert evidence.gradient is not None
        slope = (evidence.gradient + prior_gradient)[self.free]
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
        """Report an evaluation to the journal, which calls the callbacks."""
        assert point.evidence is not None
        self._journal.evaluated(self._phase, point.evidence.value, point.hyperparameters.as_dict())

    def visit(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective in nats per row, keep it if it is the best, and report it.

        Where C has no Cholesky factor, the loss is FAILED_LOSS_NATS and its slope 0. Stopped is
        raised as soon as a callback asks for the search to stop.
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
    """Return the names of the free parameters that are at a bound."""
    theta = hyperparameters.theta
    inside = ((theta > prior.low + 1e-6) & (theta < prior.high - 1e-6))[prior.free]
    names = [name for name, free in zip(hyperparameters.names, prior.free, strict=True) if free]
    return [name for name, fine in zip(names, inside, strict=True) if not fine]
