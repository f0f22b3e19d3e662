"""The Newton driver and the objective: both rules of steps, bounds, failures, extra numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import kernels
from gpx_scale.errors import NotConverged, NotPositiveDefinite
from gpx_scale.model.hyperparameters import HyperparameterPrior, Hyperparameters
from gpx_scale.optimize.lbfgs import lbfgs
from gpx_scale.optimize.newton import BY_SLOPES, BY_VALUE, End, damped_newton
from gpx_scale.optimize.objective import Objective, Point
from gpx_scale.runtime.journal import FAILED_LOSS_NATS, Journal, Stopped

A = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
LEAST = np.array([0.3, -0.4, 0.8])
RULES = pytest.mark.parametrize("rule", [BY_VALUE, BY_SLOPES], ids=["value", "slopes"])


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


def minimised(problem, rule, low=-1.5, high=1.5, **more):
    bounds = np.full(3, low), np.full(3, high)
    options = {"max_iter": 50, "enough": 1e-16} | more
    return damped_newton(problem, np.zeros(3), bounds, np.zeros(3), rule, **options)


@RULES
@pytest.mark.parametrize("off", [0.2, 1.0, 5.0])
def test_both_rules_find_the_minimum(rule, off):
    problem = Quadratic(off)
    end, last, _ = minimised(problem, rule)
    assert end is End.CONVERGED
    assert_allclose(last.where, LEAST, atol=1e-7)
    if off == 1.0:
        assert len(problem.seen) == 2
    assert problem.asked[0] is True
    assert set(problem.asked[1:]) == {rule.renews_metric}


@RULES
def test_a_bound_holds(rule):
    """With x_2 held at 0.5, the others solve what is left of the system."""
    _, last, _ = minimised(Quadratic(), rule, high=0.5)
    assert last.where[2] == 0.5
    inner = LEAST[:2] - np.linalg.solve(A[:2, :2], A[:2, 2] * (0.5 - LEAST[2]))
    assert_allclose(last.where[:2], inner, atol=1e-7)


@RULES
def test_steps_that_fail_are_cut(rule):
    told = []
    problem = Quadratic(fails={2, 3})
    more = {"accepted": told.append, "rejected": lambda: told.append("cut")}
    end, last, _ = minimised(problem, rule, **more)
    assert end is End.CONVERGED
    assert told[1:3] == ["cut", "cut"]
    full = LEAST  # of the Newton step from 0
    assert_allclose(problem.seen[3], rule.shorter**2 * full, rtol=1e-12)
    assert told[-1] is last


@RULES
def test_how_it_ends(rule):
    assert minimised(Quadratic(information=False), rule)[0] is End.NO_METRIC
    every = set(range(2, 100))
    problem = Quadratic(fails=every)
    assert minimised(problem, rule)[0] is End.NO_STEP
    assert len(problem.seen) == 1 + rule.tries
    assert minimised(Quadratic(off=5.0), rule, max_iter=2)[0] is End.ITERATIONS
    with pytest.raises(NotConverged):
        minimised(Quadratic(fails={1}), rule)


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
    nats, row = objective.at(where, True), objective.visit(where, True)
    sd = np.array([3.0, 2.0, 3.0])
    centre = np.array([0.0, 0.0, np.log(0.5)])
    loss = 10.0 * ((where - 0.1) ** 2).sum() + 0.5 * (((where - centre) / sd) ** 2).sum()
    assert nats.loss == pytest.approx(loss)
    assert_allclose(nats.slope, 20.0 * (where - 0.1) + (where - centre) / sd**2)
    assert_allclose(nats.information, 20.0 * np.eye(3) + np.diag(sd**-2))
    assert row.loss == nats.loss / 10
    assert np.array_equal(row.slope, nats.slope / 10)
    assert np.array_equal(row.information, nats.information / 10)


def test_an_objective_keeps_the_best_and_tells_of_all():
    journal, kept = Journal(), []
    objective = make_objective(evidence_of, journal, keep=lambda loss, params: kept.append(loss))
    losses = [objective.visit(np.full(3, x)).loss for x in (1.0, 0.5, 2.0, 0.1)]
    assert kept == [losses[0], losses[1], losses[3]]
    assert objective.best.loss == losses[3]
    assert journal.report.evaluations == {"rows": 4}
    objective.start_from_the_best()
    assert_allclose(objective.first(), 0.1)


def test_an_objective_without_a_factor_is_hopeless():
    def fails(params, information=False):
        raise NotPositiveDefinite("always")

    objective = make_objective(fails)
    point = objective.visit(np.zeros(3))
    assert point.loss == FAILED_LOSS_NATS
    assert not point.slope.any()
    assert objective.best is None
    with pytest.raises(NotPositiveDefinite):
        objective.at(np.zeros(3))


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
    low, high = objective.bounds()
    assert np.isinf([*low[2:], *high[2:]]).all()
    converged, message = lbfgs(objective, 100, 1e-12)
    assert converged
    assert message in ("the log marginal likelihood changes by less than tol", "the gradient is 0")
    assert_allclose(objective.best.where[2:], [3.0, -3.0], atol=1e-4)
    theta = objective.best.hyperparameters.theta
    prior = np.array([0.0, np.log(0.5)]) / 9.0  # of the two free logarithms, whose sd is 3
    assert_allclose(theta[free], (20.0 * 0.1 + prior) / (20.0 + 1.0 / 9.0), atol=1e-4)
    assert theta[1] == 0.0  # the length scale is held
