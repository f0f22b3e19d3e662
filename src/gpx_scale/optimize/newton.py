"""Damped Newton steps within bounds, from an approximation of the Hessian at the start.

    H = information + diag(power o max(slope, 0))        step = -H^-1 slope in the free coordinates

where `slope` is the gradient of the loss, and the metric H approximates its Hessian. C is linear in
theta1, sigma_w^2 and sigma_y^2, so along the logarithms of these the loss curves like an
exponential. A step up is therefore taken in the variance itself (log1p), and a step down is
shortened by the term with the slope.
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

# C is linear in this power of a parameter of each kind, and in no power of the other kinds.
LINEAR_IN_POWER = {"theta1": 1.0, "sigma": 2.0}
# The longest step of a logarithm. A quadratic model is not trusted beyond a factor of exp(2).
MAX_LOG_STEP = 2.0
# A step must lower the loss by this share of what the slope predicts (Armijo's condition).
SUFFICIENT_DECREASE = 1e-4


def linear_power(hyperparameters: Hyperparameters) -> np.ndarray:
    """Return the power of each parameter in which C is linear, 0 if there is none;  (t,)."""
    return np.array([LINEAR_IN_POWER.get(kind, 0.0) for kind in hyperparameters.parameter_kinds])


def value_falls(here: Point, there: Point) -> bool:
    """Return whether a step lowers the loss by enough of what the slope predicts (Armijo)."""
    predicted = float(here.slope @ (there.where - here.where))
    return there.loss <= here.loss + SUFFICIENT_DECREASE * min(0.0, predicted)


def slopes_gain(here: Point, there: Point) -> bool:
    """Return whether a step lowers the loss, judged by the mean of the slopes at its two ends."""
    gain = -0.5 * float((here.slope + there.slope) @ (there.where - here.where))
    return gain > 0


@dataclass(frozen=True)
class StepRule:
    """The rule by which a step is accepted or shortened.

    `accepts(here, there)` decides. A step is tried `tries` times, each time multiplied by
    `shorter`. If it `renews_metric`, the information is computed at every point, else at the
    first one only.
    """

    accepts: Callable[[Point, Point], bool]
    tries: int
    shorter: float
    renews_metric: bool


# This rule is for values that are known to rounding: a step is shortened down to 1e-10 of its
# length. The metric of inducing points is known at the start only, and BFGS corrects it.
BY_VALUE = StepRule(value_falls, tries=20, shorter=0.3, renews_metric=False)
# This rule is for values that are known less well than gradients. Evaluations are expensive then,
# so a step is tried five times, down to 3% of its length. New information at every point saves 2
# of 5 evaluations at n = 20,000 (docs/scaling.md).
BY_SLOPES = StepRule(slopes_gain, tries=5, shorter=0.4, renews_metric=True)


class End(enum.Enum):
    """The ways in which `damped_newton` may end."""

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
    """Minimise within bounds by Newton's method; return how it ended, where, and the last step.

    `at(where, information)` evaluates a point. If it raises NotConverged or NotPositiveDefinite,
    the step is shortened; at the start, the error is not caught. `power` (f,) is the power of each
    parameter in which C is linear, 0 if there is none. The search converges when half the Newton
    decrement is at most `enough`, in the units of the loss. The last step (f,) is returned and has
    not been taken. `accepted` is called with every point that the search moves to, `rejected` for
    every step that is shortened.
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
    """Return a step that goes down within the bounds, and half the Newton decrement.

    (f, f), (f,), (f,), (f,), (f,), (f,) -> (f,), float. No coordinate moves by more than
    MAX_LOG_STEP.
    """
    step = projected_step(H, slope, theta <= low, theta >= high)
    decrement = -0.5 * float(slope @ step)
    up = (step > 0) & (power > 0)
    shorter = step.copy()
    shorter[up] = np.log1p(power[up] * step[up]) / power[up]
    step = shorter if float(slope @ shorter) < 0 else step
    # Coordinates are clipped one by one: the step of a sigma_w that goes to 0 is unbounded, and
    # must not shorten those of the others.
    clipped = np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
    if not step.any():
        return step, decrement
    if float(slope @ clipped) < 0:
        return clipped, decrement
    return step * (MAX_LOG_STEP / np.abs(step).max()), decrement


def projected_step(
    H: np.ndarray,
    slope: np.ndarray,
    at_low: np.ndarray,
    at_high: np.ndarray,
) -> np.ndarray:
    """Return -H^-1 slope in the coordinates that may move;  (f, f), (f,), (f,), (f,) -> (f,).

    A coordinate at its bound stays there if the slope or the step would move it outside.
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
    """Return the BFGS update of H, given a step s and the change of the slope along it.

    (f, f), (f,), (f,) -> (f, f). With Powell's damping, H stays positive definite for any change.
    """
    Hs = H @ s
    expected, seen = float(s @ Hs), float(s @ change)
    if seen < 0.2 * expected:
        share = 0.8 * expected / (expected - seen)
        change = share * change + (1 - share) * Hs
    return H - np.outer(Hs, Hs) / expected + np.outer(change, change) / float(s @ change)
