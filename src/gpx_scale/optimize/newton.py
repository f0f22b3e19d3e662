"""Damped Newton steps within bounds.

    step = -(H + mu diag(H))^-1 slope        in the free coordinates, at most MAX_LOG_STEP in each

where `slope` is the gradient of the loss, and the metric H, `Point.information`, approximates its
second derivatives. A step is first tried with mu = 0. If it is rejected, mu is raised.

C is linear in theta1, sigma_w^2 and sigma_y^2, so along the logarithms of these the loss curves
like an exponential. A step up is therefore taken in the variance itself: log1p(power step) / power
in place of the step. For 33 parameters and 700 rows, this saves 27 of 42 evaluations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import NotConverged, NotPositiveDefinite
from .objective import Coordinates, Point

# The longest step of a logarithm. A quadratic model is not trusted beyond a factor of exp(2).
MAX_LOG_STEP = 2.0
# A step must lower the loss by this share of what the slope predicts (Armijo's condition).
SUFFICIENT_DECREASE = 1e-4
# A parameter is held for a step if what the rows say about it is below this share of the precision
# of its prior, as of a sigma_w near 0. Its steps would be long and often rejected, and the damping
# after a rejection shortens those of all parameters.
LEAST_INFORMATION_SHARE = 0.1
# The damping mu after the first rejection, and its factor after each further one.
FIRST_DAMPING = 0.5
DAMPING_FACTOR = 4.0
# If a step lowers the promised gain by less than to this share, the metric is off by more than a
# few per cent in some direction, and is corrected by the changes of the slope along recent steps
# (BFGS). This takes 13 evaluations to a tolerance of 5e-6 nats where the plain metric takes 62, for
# a rational quadratic kernel and 1,000 rows of Abalone.
SLOW_SHARE = 0.1
# Only so many steps are used for that, and only undamped ones in a row that move no coordinate by
# more than this. Longer ones tell of a mean curvature: with them, searches stalled 6 nats too low.
MAX_CORRECTIONS = 5
MAX_CORRECTION_LOG_STEP = 0.5


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
    """The rule by which a step is accepted or damped.

    `accepts(here, there)` decides. A step is tried `tries` times, each time with more damping. If
    it `renews_metric`, the information is computed at every point. Otherwise it is computed at the
    first point only, and updated by the change of the slope along every step (BFGS).
    """

    accepts: Callable[[Point, Point], bool]
    tries: int
    renews_metric: bool

    @property
    def by_value(self) -> bool:
        """Return whether losses are known to rounding, and decide about steps."""
        return self.accepts is value_falls


# This rule is for values that are known to rounding. The last of the tries has mu = 2e6, so a step
# is shortened to less than a millionth.
BY_VALUE = StepRule(value_falls, tries=13, renews_metric=True)
# This rule is for bounds whose metric is expensive, and computed on a sample of the rows.
BY_VALUE_ONE_METRIC = StepRule(value_falls, tries=13, renews_metric=False)
# This rule is for values that are known less well than gradients. Evaluations are expensive then,
# so a step is tried six times, down to 1% of its length.
BY_SLOPES = StepRule(slopes_gain, tries=6, renews_metric=True)


class Change(NamedTuple):
    """A step (f,), and the change of the slope along it (f,)."""

    where: np.ndarray
    slope: np.ndarray


class End(enum.Enum):
    """The ways in which `damped_newton` may end."""

    CONVERGED = "a further step promises too little"
    NO_STEP = "no step was accepted"
    NO_METRIC = "a point has no information"
    ITERATIONS = "all iterations were used"


@dataclass(frozen=True)
class NewtonResult:
    """How a search by Newton's method ended, and where.

    A further step, which has not been taken, would lead to `target` (f,). It promises to lower the
    loss by `promised`, half the Newton decrement.
    """

    end: End
    point: Point
    target: np.ndarray
    promised: float


def damped_newton(
    at: Callable[[np.ndarray, bool], Point],
    start: np.ndarray,
    within: Coordinates,
    rule: StepRule,
    *,
    max_iter: int,
    enough: Callable[[float, Point], bool],
    accepted: Callable[[Point], None] = lambda point: None,
    rejected: Callable[[], None] = lambda: None,
) -> NewtonResult:
    """Minimise within bounds by Newton's method.

    `at(where, information)` evaluates a point. If it raises NotConverged or NotPositiveDefinite,
    the step is damped; at the start, the error is not caught. The search converges as soon as
    `enough(promised, point)` is true, where `promised` is half the Newton decrement at a point.
    `accepted` is called with every point that the search moves to, `rejected` for every step that
    is damped.
    """
    here = at(start, True)
    accepted(here)
    H, recent = here.information, list[Change]()
    for _ in range(max_iter):
        if H is None:
            return NewtonResult(End.NO_METRIC, here, here.where, np.nan)
        target, promised = newton_step(H, here, within)
        if enough(promised, here):
            return NewtonResult(End.CONVERGED, here, target, promised)
        moving = informed(H, within)
        if enough(newton_step(H, here, within, moving)[1], here):
            moving[:] = H.diagonal() > 0  # Nothing else is left to be gained.
        damping = 0.0
        for _ in range(rule.tries):
            target, _ = newton_step(H, here, within, moving, damping)
            there = _evaluated(at, target, rule.renews_metric)
            if there is not None and rule.accepts(here, there):
                break
            rejected()
            damping = DAMPING_FACTOR * damping or FIRST_DAMPING
        else:
            return NewtonResult(End.NO_STEP, here, target, promised)
        change = Change(there.where - here.where, there.slope - here.slope)
        if rule.renews_metric:
            is_short = not damping and np.abs(change.where).max() <= MAX_CORRECTION_LOG_STEP
            recent = [*recent, change][-MAX_CORRECTIONS:] if is_short else []
            H = there.information
            if H is not None and newton_step(H, there, within)[1] > SLOW_SHARE * promised:
                H = damped_update(H, recent)
        else:
            H = damped_update(H, [change])
        here = there
        accepted(here)
    target, promised = (here.where, np.nan) if H is None else newton_step(H, here, within)
    return NewtonResult(End.ITERATIONS, here, target, promised)


def _evaluated(
    at: Callable[[np.ndarray, bool], Point], where: np.ndarray, information: bool
) -> Point | None:
    """Return a point, or None if it cannot be evaluated."""
    try:
        return at(where, information)
    except (NotConverged, NotPositiveDefinite):
        return None


def informed(H: np.ndarray, within: Coordinates) -> np.ndarray:
    """Return which coordinates the rows say enough about to move;  (f, f) -> (f,)."""
    enough: np.ndarray = H.diagonal() > (1.0 + LEAST_INFORMATION_SHARE) * within.precision
    return enough


def newton_step(
    H: np.ndarray,
    here: Point,
    within: Coordinates,
    moving: np.ndarray | None = None,
    damping: float = 0.0,
) -> tuple[np.ndarray, float]:
    """Return where a step within the bounds leads, and half the Newton decrement.

    (f, f) -> (f,), float. The step goes down. Only the coordinates that are `moving` (f,) do so, by
    default those with a second derivative, and none by more than MAX_LOG_STEP.
    """
    moving = H.diagonal() > 0 if moving is None else moving
    slope, low, high = here.slope[moving], within.low[moving], within.high[moving]
    where, power = here.where[moving], within.power[moving]
    damped = H[np.ix_(moving, moving)]
    damped = damped + damping * np.diag(damped.diagonal())
    step = projected_step(damped, slope, where <= low, where >= high)
    promised = -0.5 * float(slope @ step)
    limited = _limited(damped, slope, step)
    up = (limited > 0) & (power > 0)
    shorter = limited.copy()
    shorter[up] = np.log1p(power[up] * limited[up]) / power[up]
    limited = shorter if float(slope @ shorter) < 0 else limited
    target = here.where.copy()
    target[moving] = np.clip(where + limited, low, high)
    return target, promised


def _limited(H: np.ndarray, slope: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return a step of which no coordinate exceeds MAX_LOG_STEP;  (f, f), (f,), (f,) -> (f,).

    Coordinates that would be longer are held at this limit, and the others take the best step that
    goes with that. If it does not go down, the whole step is shortened instead.
    """
    limited = step.copy()
    long = np.abs(step) > MAX_LOG_STEP
    while (np.abs(limited) > MAX_LOG_STEP).any():
        long |= np.abs(limited) > MAX_LOG_STEP
        limited[long] = np.clip(limited[long], -MAX_LOG_STEP, MAX_LOG_STEP)
        rest = ~long & (step != 0)
        pull = slope[rest] + H[np.ix_(rest, long)] @ limited[long]
        limited[rest] = -np.linalg.solve(H[np.ix_(rest, rest)], pull)
    if float(slope @ limited) < 0 or not step.any():
        return limited
    shorter: np.ndarray = step * (MAX_LOG_STEP / np.abs(step).max())
    return shorter


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


def damped_update(H: np.ndarray, changes: list[Change]) -> np.ndarray:
    """Return the BFGS updates of H by the changes of the slope along some steps.

    (f, f) -> (f, f). With Powell's damping, H stays positive definite for any change.
    """
    for s, change in changes:
        Hs = H @ s
        expected, seen = float(s @ Hs), float(s @ change)
        if expected <= 0.0:  # The step is 0.
            continue
        if seen < 0.2 * expected:
            share = 0.8 * expected / (expected - seen)
            change = share * change + (1 - share) * Hs
        H = H - np.outer(Hs, Hs) / expected + np.outer(change, change) / float(s @ change)
    return H
