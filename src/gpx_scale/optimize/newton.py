"""Damped Newton steps within bounds, from a metric that is known at the start.

    H = information + diag(power o max(slope, 0))        step = -H^-1 slope in the free coordinates

C is linear in theta1, sigma_w^2 and sigma_y^2, so along their logarithms the loss bends as exp: a
step up is taken in the variance itself (log1p), a step down is held back by the slope.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from ..model.hyperparameters import Hyperparameters
from .objective import Point

# C is linear in this power of each kind of parameter; in no power of the other kinds.
LINEAR_IN_POWER = {"theta1": 1.0, "sigma": 2.0}
# The longest step of a logarithm. Beyond a factor of exp(2), no quadratic model is believed.
LONGEST = 2.0
# The share of the gain that the slope promises which a step must have, as Armijo asks for.
SUFFICIENT_DECREASE = 1e-4


def linear_power(hyperparameters: Hyperparameters) -> np.ndarray:
    """Return the power of each parameter in which C is linear, 0 if there is none;  (t,)."""
    return np.array([LINEAR_IN_POWER.get(kind, 0.0) for kind in hyperparameters.parameter_kinds])


def value_falls(here: Point, there: Point) -> bool:
    """Return whether a step lowers the loss by enough of what the slope promises (Armijo)."""
    promised = float(here.slope @ (there.where - here.where))
    return there.loss <= here.loss + SUFFICIENT_DECREASE * min(0.0, promised)


def slopes_gain(here: Point, there: Point) -> bool:
    """Return whether the mean of the slopes at the ends of a step says that it lowers the loss."""
    gain = -0.5 * float((here.slope + there.slope) @ (there.where - here.where))
    return gain > 0


@dataclass(frozen=True)
class StepRule:
    """How a step is accepted, how often and by which factor it is cut if it is not.

    If it `renews_metric`, the information is asked for at every point, else at the first one alone.
    """

    accepts: Callable[[Point, Point], bool]
    tries: int
    shorter: float
    renews_metric: bool


# If values are known to rounding, a direction of descent is followed down to 1e-10 of a step. The
# metric of inducing points is known at the start alone; BFGS learns what it lacks.
BY_VALUE = StepRule(value_falls, tries=20, shorter=0.3, renews_metric=False)
# If only gradients are known well, evaluations are expensive: the fifth try is 3% of a step. Fresh
# information saves 2 evaluations of 5 at n = 20,000 (docs/scaling.md).
BY_SLOPES = StepRule(slopes_gain, tries=5, shorter=0.4, renews_metric=True)


class End(enum.Enum):
    """How `damped_newton` ended."""

    CONVERGED = "half the Newton decrement is small enough"
    NO_STEP = "no step was accepted"
    NO_METRIC = "the first point has no information"
    ITERATIONS = "all iterations were used"


def damped_newton(
    at: Callable[[np.ndarray, bool], Point],
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    power: np.ndarray,
    rule: StepRule,
    *,
    max_iter: int,
    enough: float,
    accepted: Callable[[Point], None] = lambda point: None,
    rejected: Callable[[], None] = lambda: None,
) -> tuple[End, Point, np.ndarray]:
    """Minimise within bounds by Newton's method, and return how and where it ended, and a step.

    `at(where, information)` evaluates a point; if it raises NotConverged or NotPositiveDefinite,
    the step is cut, but at the start the error is raised. `power` (f,) says of each coordinate in
    which power of the parameter C is linear, 0 for none. The search ends where half the Newton
    decrement is at most `enough`, in the units of the loss; the last step (f,) is returned, and
    not taken. `accepted` is told of every point that the search goes to, `rejected` of every step
    that it cuts.
    """
    low, high = bounds

    def metric(point: Point) -> np.ndarray:
        assert point.information is not None
        return point.information + np.diag(power * np.maximum(point.slope, 0.0))

    here = at(start, True)
    accepted(here)
    step = np.zeros_like(start)
    if here.information is None:
        return End.NO_METRIC, here, step
    H = metric(here)
    for _ in range(max_iter):
        step, decrement = newton_step(H, here.slope, here.where, low, high, power)
        if decrement <= enough:
            return End.CONVERGED, here, step
        for _ in range(rule.tries):
            moved = np.clip(here.where + step, low, high)
            with suppress(NotConverged, NotPositiveDefinite):
                there = at(moved, rule.renews_metric)
                if rule.accepts(here, there):
                    break
            rejected()
            step *= rule.shorter
        else:
            return End.NO_STEP, here, step
        H = metric(there) if rule.renews_metric else H
        H = damped_update(H, there.where - here.where, there.slope - here.slope)
        here = there
        accepted(here)
    return End.ITERATIONS, here, step


def newton_step(
    H: np.ndarray,
    slope: np.ndarray,
    theta: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    power: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Return a step down inside the box, at most LONGEST in any coordinate, and half the decrement.

    (f, f), (f,), (f,), (f,), (f,), (f,) -> (f,), float.
    """
    step = projected_step(H, slope, theta <= low, theta >= high)
    decrement = -0.5 * float(slope @ step)
    up = (step > 0) & (power > 0)
    shorter = step.copy()
    shorter[up] = np.log1p(power[up] * step[up]) / power[up]
    step = shorter if float(slope @ shorter) < 0 else step
    # One by one: a vanishing sigma_w asks for steps without end, and must not hold the others back.
    clipped = np.clip(step, -LONGEST, LONGEST)
    if not step.any():
        return step, decrement
    if float(slope @ clipped) < 0:
        return clipped, decrement
    return step * (LONGEST / np.abs(step).max()), decrement


def projected_step(
    H: np.ndarray,
    slope: np.ndarray,
    at_low: np.ndarray,
    at_high: np.ndarray,
) -> np.ndarray:
    """Return -H^-1 slope in the coordinates that may move;  (f, f), (f,), (f,), (f,) -> (f,).

    A coordinate at its bound stays there if slope or step would push it out.
    """
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


def damped_update(H: np.ndarray, s: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return BFGS's update of H by a step s and the change of the slope along it;  (f, f).

    By Powell's damping, H stays positive definite whatever the slopes did.
    """
    Hs = H @ s
    bend, seen = float(s @ Hs), float(s @ change)
    if seen < 0.2 * bend:
        share = 0.8 * bend / (bend - seen)
        change = share * change + (1 - share) * Hs
    return H - np.outer(Hs, Hs) / bend + np.outer(change, change) / float(s @ change)
