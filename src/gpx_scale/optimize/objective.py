"""The objective of a search for hyperparameters, and the optimum that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.journal import FAILED_LOSS_NATS, Journal, Stopped
from .evidence import Evidence

# C is a function of this power of a parameter of each kind: exactly, and linear, for variances and
# the squares of standard deviations, roughly for length scales and shapes.
POWERS = {
    "theta1": 1.0,
    "variance": 1.0,
    "sigma": 2.0,
    "theta2": -1.0,
    "shape": -1.0,
    "dispersion": -1.0,
    "degrees": -1.0,
}

# A function that saves the best hyperparameters so far.
SaveBest = Callable[[Hyperparameters], None]
# A function that is called with a loss in nats per row and its hyperparameters.
Told = Callable[[float, Hyperparameters], None]


@dataclass(frozen=True)
class Optimum:
    """The result of a search.

    `evidence` is the solver's `Evidence` at these hyperparameters, None if it is not known there.
    `converged` is None if there was no search. `at_bound` has the names of the parameters that are
    at a bound. `rows` is the number of rows that the search used, 0 without a search, and
    `promised_gain` what a further Newton step promised on these rows, in nats, NaN if that is not
    known.
    """

    hyperparameters: Hyperparameters
    evidence: Evidence | None
    converged: bool | None
    message: str
    at_bound: list[str]
    rows: int = 0
    promised_gain: float = np.nan


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
class Coordinates:
    """The coordinates of a search, each of the arrays (f,).

    They stay between `low` and `high`. C is linear in the `power` of exp of a coordinate if that is
    positive. `precision` are the second derivatives of the loss that come from the prior.
    """

    low: np.ndarray
    high: np.ndarray
    power: np.ndarray
    precision: np.ndarray


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


class Objective:
    """The loss -(log marginal likelihood + log prior) as a function of a vector.

    The vector contains the free logarithms, followed by the extra numbers if there are any. The
    best point is kept in `best`, which is None before the first one. It is the lowest one if losses
    are known to rounding (`by_value`), and the one that a search has moved to if not.
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
        by_value: bool = True,
    ) -> None:
        self._evaluate, self._prior, self._journal, self._phase = evaluate, prior, journal, phase
        self._start, self._keep, self._numbers = start, keep, numbers
        self._by_value = by_value
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

    def coordinates(self) -> Coordinates:
        """Return the bounds of a point, and what is known of the loss along its coordinates."""
        low, high = (bound[self.free] for bound in self._prior.bounds())
        power = _powers(self._start)[self.free]
        precision = self._prior.sd[self.free] ** -2
        extra = 0 if self._numbers is None else self._numbers.start.size
        unbounded, none = np.full(extra, np.inf), np.zeros(extra)
        return Coordinates(
            np.append(low, -unbounded),
            np.append(high, unbounded),
            np.append(power, none),
            np.append(precision, none),
        )

    def hyperparameters(self, where: np.ndarray) -> Hyperparameters:
        """Return the hyperparameters at a point;  (f,)."""
        return self._start.with_theta(self._theta(where))

    def _theta(self, where: np.ndarray) -> np.ndarray:
        """Return the logarithms of all hyperparameters at a point;  (f,) -> (t,)."""
        theta = self._start.theta
        theta[self.free] = where[: int(self.free.sum())]
        return theta

    def at(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective at a point;  (f,).

        NotPositiveDefinite and NotConverged are raised where the objective cannot be computed.

            information = AI + diag(max(-power o gradient, 0)) + precision of the prior

        where AI is the average information of the evidence. It lacks the first derivative that a
        second derivative by a logarithm has, d^2 f / d(log a)^2 = a f' + a^2 f''. With the plain
        AI, Newton steps may cycle.
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
            lacking = np.maximum(-_powers(hyperparameters) * evidence.gradient, 0.0)
            diagonal = lacking[self.free] + self._prior.sd[self.free] ** -2
            metric = evidence.information[np.ix_(self.free, self.free)] + np.diag(diagonal)
        return Point(
            where, -(evidence.value + log_prior), -slope, metric, hyperparameters, evidence
        )

    def look(self, where: np.ndarray, information: bool = False) -> Point:
        """Return the objective at a point as `at` does, and report it to the journal;  (f,).

        If values are known to rounding, the lowest point is kept before it is reported, since a
        callback may end the search.
        """
        point = self.at(where, information)
        if self._by_value and (self.best is None or point.loss < self.best.loss):
            self._keep_best(point)
        assert point.evidence is not None
        self._journal.evaluated(self._phase, point.evidence.value, point.hyperparameters.as_dict())
        return point

    def _keep_best(self, point: Point) -> None:
        """Keep a point as the best one so far."""
        self.best = point
        if self._keep is not None:
            self._keep(point.loss, point.hyperparameters)

    def move_to(self, point: Point) -> None:
        """Note that a search has moved to a point, and end it there if a callback asks for that.

        Where only gradients are known well, this is the best point so far.
        """
        if not self._by_value:
            self._keep_best(point)
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise Stopped if a callback has asked for the search to stop."""
        if self._journal.stopped:
            raise Stopped

    def visit(self, where: np.ndarray) -> tuple[float, np.ndarray]:
        """Return loss and slope in nats per row, for a minimiser.

        (f,) -> (), (f,). Where the objective cannot be computed, the loss is FAILED_LOSS_NATS and
        its slope 0.
        """
        try:
            point = self.look(where)
        except (NotPositiveDefinite, NotConverged):
            return FAILED_LOSS_NATS, np.zeros_like(where)
        self.stop_if_asked()
        assert point.evidence is not None
        return point.loss / point.evidence.n_rows, point.slope / point.evidence.n_rows


def _powers(hyperparameters: Hyperparameters) -> np.ndarray:
    """Return the power of each parameter of which C is a function;  (t,)."""
    return np.array([POWERS[kind] for kind in hyperparameters.parameter_kinds])


def at_bound(hyperparameters: Hyperparameters, prior: HyperparameterPrior) -> list[str]:
    """Return the names of the free parameters that are at a bound."""
    theta = hyperparameters.theta
    inside = ((theta > prior.low + 1e-6) & (theta < prior.high - 1e-6))[prior.free]
    names = [name for name, free in zip(hyperparameters.names, prior.free, strict=True) if free]
    return [name for name, fine in zip(names, inside, strict=True) if not fine]
