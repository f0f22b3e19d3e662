"""The Newton driver and the objective: both rules of steps, bounds, failures, extra numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import kernels
from gpx_scale.errors import NotConverged, NotPositiveDefinite
from gpx_scale.model.hyperparameters import HyperparameterPrior, Hyperparameters
from gpx_scale.optimize.lbfgs import lbfgs
from gpx_scale.optimize.newton import (
    BY_SLOPES,
    BY_VALUE,
    BY_VALUE_ONE_METRIC,
    FIRST_DAMPING,
    MAX_LOG_STEP,
    End,
    damped_newton,
)
from gpx_scale.optimize.objective import Coordinates, Objective, Point
from gpx_scale.runtime.journal import FAILED_LOSS_NATS, Journal, Stopped

A = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
LEAST = np.array([0.3, -0.4, 0.8])
RULES = pytest.mark.parametrize(
    "rule", [BY_VALUE, BY_VALUE_ONE_METRIC, BY_SLOPES], ids=["value", "one metric", "slopes"]
)


class Quadratic:
    """(x - LEAST)^T A (x - LEAST) / 2; its metric is `off` by a factor, and some calls fail."""

    def __init__(self, off=1.0, fails=(), information=True):
        self.off, self.fails, self.information = off, fails, information
        self.seen, self.asked = [], []

    def __call__(self, x, information):
        self.seen.append(x)
        self.asked.append(information)
        if len(self.seen) in self.fails:
            raise NotConverged("as asked for")
        gap = x - LEAST
        H = self.off * A if information and self.information else None
        return Point(x, 0.5 * gap @ A @ gap, A @ gap, H, None)


def minimised(problem, rule, low=-1.5, high=1.5, start=None, power=0.0, precision=0.0, **more):
    start = np.zeros(3) if start is None else start
    within = Coordinates(*(np.full(start.size, one) for one in (low, high, power, precision)))
    options = {"max_iter": 50, "enough": lambda promised, point: promised <= 1e-16} | more
    return damped_newton(problem, start, within, rule, **options)


@RULES
@pytest.mark.parametrize("off", [0.2, 1.0, 5.0])
def test_all_rules_find_the_minimum(rule, off):
    problem = Quadratic(off)
    found = minimised(problem, rule)
    assert found.end is End.CONVERGED
    assert_allclose(found.point.where, LEAST, atol=1e-7)
    assert found.promised <= 1e-16
    if off == 1.0:
        assert len(problem.seen) == 2
    assert problem.asked[0] is True
    assert set(problem.asked[1:]) == {rule.renews_metric}


@RULES
def test_a_bound_holds(rule):
    """With x_2 held at 0.5, the others solve what is left of the system."""
    last = minimised(Quadratic(), rule, high=0.5).point
    assert last.where[2] == 0.5
    inner = LEAST[:2] - np.linalg.solve(A[:2, :2], A[:2, 2] * (0.5 - LEAST[2]))
    assert_allclose(last.where[:2], inner, atol=1e-7)


@RULES
def test_a_start_at_all_bounds_converges_there(rule):
    """The minimum is beyond every bound, and the slope of each coordinate leads outside."""
    start = np.array([0.1, -0.1, 0.1])
    within = Coordinates(np.full(3, -0.1), np.full(3, 0.1), np.zeros(3), np.zeros(3))
    problem = Quadratic()
    found = damped_newton(
        problem, start, within, rule, max_iter=50, enough=lambda promised, point: promised <= 1e-16
    )
    assert (found.end, found.promised, len(problem.seen)) == (End.CONVERGED, 0.0, 1)
    assert np.array_equal(found.point.where, start)


@RULES
def test_steps_that_fail_are_damped(rule):
    told = []
    problem = Quadratic(fails={2, 3})
    more = {"accepted": told.append, "rejected": lambda: told.append("damped")}
    found = minimised(problem, rule, **more)
    assert found.end is End.CONVERGED
    assert told[1:3] == ["damped", "damped"]
    damping = 4 * FIRST_DAMPING
    expected = np.linalg.solve(A + damping * np.diag(np.diag(A)), A @ LEAST)
    assert_allclose(problem.seen[3], expected, rtol=1e-12)
    assert told[-1] is found.point


@RULES
def test_how_it_ends(rule):
    assert minimised(Quadratic(information=False), rule).end is End.NO_METRIC
    every = set(range(2, 100))
    problem = Quadratic(fails=every)
    assert minimised(problem, rule).end is End.NO_STEP
    assert len(problem.seen) == 1 + rule.tries
    assert minimised(Quadratic(off=5.0), rule, max_iter=2).end is End.ITERATIONS
    with pytest.raises(NotConverged):
        minimised(Quadratic(fails={1}), rule)


@RULES
def test_a_loss_that_is_flat_everywhere_converges_at_its_start(rule):
    def flat(where, information):
        return Point(where, 1.0, np.zeros(3), np.zeros((3, 3)), None)

    found = minimised(flat, rule)
    assert (found.end, found.promised) == (End.CONVERGED, 0.0)
    assert np.array_equal(found.point.where, np.zeros(3))


def far(where, information):
    """A quadratic whose minimum is 10 units away in the first coordinate, near in the second."""
    H = np.array([[1.0, 0.9], [0.9, 1.0]])
    gap = where - [10.0, 0.5]
    return Point(where, 0.5 * gap @ H @ gap, H @ gap, H, None)


def test_a_long_coordinate_is_limited_and_the_others_go_with_it():
    seen = []

    def at(where, information):
        seen.append(where)
        return far(where, information)

    found = minimised(at, BY_VALUE, low=-20.0, high=20.0, start=np.zeros(2))
    assert_allclose(found.point.where, [10.0, 0.5], atol=1e-6)
    # The second coordinate is at its own limit, or at its minimum given the first one.
    first = seen[1]
    assert first[0] == MAX_LOG_STEP
    assert_allclose(first[1], min(MAX_LOG_STEP, 0.5 + 0.9 * (10.0 - first[0])))


def test_a_coordinate_without_information_waits_for_the_others():
    """Only the prior curves the loss along the first coordinate, and its step would be rejected."""
    seen = []

    def at(where, information):
        seen.append(where)
        a, b = where
        # Beyond a = -2.5 there is a wall that the metric at the start does not know of.
        wall = np.exp(20.0 * (a + 2.5))
        loss = 0.05 * a**2 + wall + 50.0 * (b - 1.0) ** 2
        slope = np.array([0.1 * a + 20.0 * wall, 100.0 * (b - 1.0)])
        H = np.diag([0.1 + 400.0 * wall, 100.0])
        return Point(where, loss, slope, H, None)

    within = Coordinates(np.full(2, -9.0), np.full(2, 9.0), np.zeros(2), np.array([0.1, 0.0]))
    enough = lambda promised, point: promised <= 1e-10  # noqa: E731
    found = damped_newton(at, np.array([-5.0, 0.0]), within, BY_VALUE, max_iter=99, enough=enough)
    assert found.end is End.CONVERGED
    assert_allclose(seen[1], [-5.0, 1.0])
    assert_allclose(found.point.slope, 0.0, atol=1e-4)


def test_steps_up_are_taken_in_the_variance():
    """The loss is linear plus a logarithm in exp(2 x), as of a variance that C is linear in."""

    def at(where, information):
        v = np.exp(2.0 * where)
        slope = 1.0 - 4.0 / v
        H = np.diag(1.0 + np.maximum(2.0 * slope, 0.0))
        return Point(where, float(np.sum(where + 2.0 / v)), slope, H, None)

    seen = []

    def told(where, information):
        seen.append(where)
        return at(where, information)

    found = minimised(told, BY_VALUE, low=-9.0, high=9.0, start=np.array([0.3]), power=2.0)
    assert found.end is End.CONVERGED
    assert_allclose(found.point.where, np.log(2.0), atol=1e-6)
    step = 4.0 / np.exp(0.6) - 1.0
    assert_allclose(seen[1] - 0.3, np.log1p(2.0 * step) / 2.0)


def make_objective(evaluate, journal=None, **more):
    start = Hyperparameters.of(kernels.RBF(1.0, 1.0), 0.0, 0.5)
    prior = HyperparameterPrior.around(start)
    return Objective(evaluate, start, prior, journal or Journal(), "rows", **more)


def evidence_of(params, information=False):
    """Return 10 rows' worth of a quadratic in the finite logarithms."""
    theta = params.theta
    gap = np.where(np.isfinite(theta), theta - 0.1, 0.0)
    H = 20.0 * np.eye(4) if information else None
    return SimpleNamespace(value=-10.0 * gap @ gap, gradient=-20.0 * gap, n_rows=10, information=H)


def test_an_objective_is_in_nats_or_per_row():
    objective = make_objective(evidence_of)
    where = np.array([0.2, -0.3, -0.5])  # sigma_w = 0 is held
    nats, (loss_per_row, slope_per_row) = objective.look(where, True), objective.visit(where)
    sd = np.array([3.0, 2.0, 3.0])
    centre = np.array([0.0, 0.0, np.log(0.5)])
    loss = 10.0 * ((where - 0.1) ** 2).sum() + 0.5 * (((where - centre) / sd) ** 2).sum()
    assert nats.loss == pytest.approx(loss)
    assert_allclose(nats.slope, 20.0 * (where - 0.1) + (where - centre) / sd**2)
    # The gradients of the evidence are -2, 8 and 12. A negative one of theta1 and a positive one of
    # theta2 are added.
    assert_allclose(nats.information, 20.0 * np.eye(3) + np.diag(sd**-2 + [2.0, 8.0, 0.0]))
    assert loss_per_row == nats.loss / 10
    assert np.array_equal(slope_per_row, nats.slope / 10)
    within = objective.coordinates()
    assert_allclose(within.power, [1.0, -1.0, 2.0])
    assert_allclose(within.precision, sd**-2)


def test_an_objective_keeps_the_best_and_tells_of_all():
    journal, kept = Journal(), []
    objective = make_objective(evidence_of, journal, keep=lambda loss, params: kept.append(loss))
    losses = [10 * objective.visit(np.full(3, x))[0] for x in (1.0, 0.5, 2.0, 0.1)]
    assert kept == pytest.approx([losses[0], losses[1], losses[3]])
    assert objective.best.loss == pytest.approx(losses[3])
    assert journal.report.evaluations == {"rows": 4}
    objective.start_from_the_best()
    assert_allclose(objective.first(), 0.1)


def test_an_objective_without_a_factor_is_hopeless():
    def fails(params, information=False):
        raise NotPositiveDefinite("always")

    objective = make_objective(fails)
    loss, slope = objective.visit(np.zeros(3))
    assert loss == FAILED_LOSS_NATS
    assert not slope.any()
    assert objective.best is None
    with pytest.raises(NotPositiveDefinite):
        objective.look(np.zeros(3))


def test_a_callback_stops_after_the_best_is_kept():
    objective = make_objective(evidence_of, Journal(callbacks=[lambda state: True]))
    with pytest.raises(Stopped):
        objective.visit(np.zeros(3))
    assert objective.best is not None


class Moved:
    """Two further numbers, best at 3 and -3."""

    start = np.array([1.0, 1.0])

    def place(self, numbers):
        self.now = numbers.copy()

    def gradient(self, evidence):
        return -20.0 * (self.now - [3.0, -3.0])

    def evaluate(self, params, information=False):
        found = evidence_of(params)
        gap = self.now - [3.0, -3.0]
        found.value -= 10.0 * gap @ gap
        return found


def test_lbfgs_moves_extra_numbers_with_the_logarithms():
    numbers = Moved()
    free = np.array([True, False, False, True])
    objective = make_objective(numbers.evaluate, free=free, numbers=numbers)
    assert objective.first().size == 4
    within = objective.coordinates()
    assert np.isinf([*within.low[2:], *within.high[2:]]).all()
    converged, message = lbfgs(objective, 100, 1e-12)
    assert converged
    assert message in ("the log marginal likelihood changes by less than tol", "the gradient is 0")
    assert_allclose(objective.best.where[2:], [3.0, -3.0], atol=1e-4)
    theta = objective.best.hyperparameters.theta
    prior = np.array([0.0, np.log(0.5)]) / 9.0  # of the two free logarithms, whose sd is 3
    assert_allclose(theta[free], (20.0 * 0.1 + prior) / (20.0 + 1.0 / 9.0), atol=1e-4)
    assert theta[1] == 0.0  # the length scale is held
