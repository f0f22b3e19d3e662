"""Searches: stages, the rows that they use, when they stop, and what they report."""

import warnings
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import PAPER, GPXRegressor, InputError, datasets, kernels
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import FewPointsWarning
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.model.hyperparameters import HyperparameterPrior, Hyperparameters
from gpx_scale.optimize import objective
from gpx_scale.optimize.evidence import Evidence
from gpx_scale.optimize.objective import Objective, Point
from gpx_scale.optimize.search import MANY_PROBES, PROBES, Search, Stage, probes_for
from gpx_scale.runtime.journal import Journal
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.exact.solver import ExactSolver

data = datasets.synth10(700)


@pytest.fixture
def session():
    with Session.open(2, None, 0) as one:
        yield one


@pytest.fixture
def few_are_many(monkeypatch):
    """Let 300 rows be as many as 5,000 are: the largest subset, and all exact gradients."""
    monkeypatch.setattr("gpx_scale.optimize.search.EXACT_GRADIENT_ROWS", 300)
    monkeypatch.setattr("gpx_scale.optimize.search.QUARTER_FROM_ROWS", 200)
    monkeypatch.setattr("gpx_scale.optimize.search.ESTIMATED_FROM_ROWS", 200)


def rows_of(X, y):
    return MemoryRows(TrainingRows(X, DenseFeatures(X), (y - y.mean()) / y.std()))


def simulated(n, p, seed, noise):
    random = np.random.RandomState(seed)
    X = random.randn(n, p)
    return rows_of(X, X[:, 0] * np.sin(1.3 * X[:, 1]) + noise * random.randn(n))


def ard_start(p):
    return Hyperparameters.of(kernels.RBF(1.0, np.full(p, 2.0 * p)), 0.1, 0.3)


def search_of(rows, start, session, **more):
    prior = HyperparameterPrior.around(start)
    return Search(rows, start, prior, 100, 1e-5, 0, session, **more)


def undamped_decrements(rows, start, session, steps=25):
    """Return half the Newton decrements of plain steps, of which none is rejected."""
    solver, prior = ExactSolver(len(rows), np.float64, session), HyperparameterPrior.around(start)
    one = Objective(partial(solver.evaluate, rows), start, prior, Journal(), "rows")
    where, within, found = one.first(), one.coordinates(), []
    for _ in range(steps):
        point = one.at(where, True)
        step = -np.linalg.solve(point.information, point.slope)
        found.append(-0.5 * float(point.slope @ step))
        where = np.clip(where + np.clip(step, -2.0, 2.0), within.low, within.high)
    return found


@pytest.mark.parametrize(("n", "p", "seed", "noise"), [(60, 3, 0, 0.3), (100, 4, 1, 0.1)])
def test_plain_information_cycles_and_the_corrected_one_converges(
    n, p, seed, noise, session, monkeypatch
):
    rows = simulated(n, p, seed, noise)
    assert undamped_decrements(rows, ard_start(p), session)[-1] < 1e-4
    monkeypatch.setattr(objective, "POWERS", dict.fromkeys(objective.POWERS, 0.0))
    assert min(undamped_decrements(rows, ard_start(p), session)) > 0.2


@pytest.mark.parametrize("p", [3, 12])
def test_newton_finds_the_optimum_of_lbfgs_with_fewer_evaluations(p, session):
    rows = simulated(200, p, 0, 0.3)
    solver, found, counts = ExactSolver(200, np.float64, session), [], []
    for optimizer in ("auto", "lbfgs"):
        session.journal.report.evaluations.clear()
        search = search_of(rows, ard_start(p), session, optimizer=optimizer)
        optimum = search.maximise(solver.evaluate)
        assert optimum.converged
        log_prior, _ = search.prior.value_and_gradient(optimum.hyperparameters.theta)
        found.append(optimum.evidence.value + log_prior)
        counts.append(sum(session.journal.report.evaluations.values()))
    assert found[0] > found[1] - 0.05
    assert counts[0] < 0.6 * counts[1]


def expected_information(rows, start, session):
    """Return tr(C^-1 dC C^-1 dC) / 2 for each hyperparameter, by differences of C."""

    def C(theta):
        one = TiledCovariance(rows.data, start.with_theta(theta), session)
        return one.matmul(np.eye(len(rows)))

    found = []
    for k in range(start.theta.size):
        move = np.zeros_like(start.theta)
        move[k] = 1e-4
        dC = (C(start.theta + move) - C(start.theta - move)) / 2e-4
        M = np.linalg.solve(C(start.theta), dC)
        found.append(0.5 * np.sum(M * M.T))
    return np.array(found)


def test_a_gradient_of_probes_is_unbiased_and_its_information_is_exact_to_float32(session):
    rows, start = simulated(150, 3, 0, 0.3), ard_start(3)
    solver = ExactSolver(150, np.float64, session)
    exact = solver.evaluate(rows, start, information=True)
    drawn = []
    for _ in range(200):
        solver._signs = None
        drawn.append(solver.evaluate(rows, start, information=True, probes=PROBES))
    assert {one.probes for one in drawn} == {PROBES}
    assert all(one.value == drawn[0].value for one in drawn)
    # The factor is in float32, whose log-determinant has an error of at most n eps.
    rounding = 150 * float(np.finfo(np.float32).eps)
    assert drawn[0].value == pytest.approx(exact.value, abs=150 * rounding)
    assert_allclose(drawn[0].information, exact.information, rtol=10 * rounding)
    gradients = np.array([one.gradient for one in drawn])
    error = gradients.std(axis=0, ddof=1)
    assert (np.abs(gradients.mean(axis=0) - exact.gradient) < 4.0 * error / 200**0.5).all()
    # The error has at most the covariance of the expected information / s, up to the sampling error
    # of 200 variances.
    bound = expected_information(rows, start, session) / PROBES
    assert (error**2 < 1.4 * bound).all()
    assert (error**2 > 0.1 * bound).any()
    again = [solver.evaluate(rows, start, probes=PROBES).gradient for _ in range(2)]
    assert np.array_equal(*again)  # The signs are drawn once per fit.


def test_the_number_of_probes_grows_with_the_parameters():
    assert [probes_for(q) for q in (4, 60, 61, 200)] == [PROBES, PROBES, MANY_PROBES, MANY_PROBES]


def at_point(loss, q=4, probes=0):
    evidence = Evidence(-loss, np.zeros(q), 1000, probes=probes)
    return Point(np.zeros(q), loss, np.zeros(q), None, None, evidence)


def test_when_a_stage_ends():
    rows = range(1000)
    to_the_end, in_time = Stage("s", rows, 1e-6), Stage("s", rows, 1e-6, worth=0.002)
    assert not to_the_end.is_enough(0.1, at_point(1.0))
    assert to_the_end.is_enough(1e-3, at_point(1.0))
    assert to_the_end.is_enough(0.01, at_point(1e10))  # This is less than the rounding of the loss.
    assert in_time.is_enough(2.0, at_point(1.0))
    assert not in_time.is_enough(2.1, at_point(1.0))
    # 160 parameters and 16 probes seem to promise 5 nats more than there are, and 3 times as many
    # are not worth a step.
    assert in_time.is_enough(5.0 + 15.0, at_point(1.0, 160, 16))
    assert not in_time.is_enough(5.0 + 15.1, at_point(1.0, 160, 16))
    assert not to_the_end.is_enough(5.0, at_point(1.0, 160, 16))


def phases(**arguments):
    model = GPXRegressor(
        random_state=0, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    return model, list(model.fit_report_.evaluations)


def test_subsets_are_nested_and_end_with_all_rows(few_are_many):
    seen = []

    class Watched(ExactSolver):
        def evaluate(self, rows, hyperparameters, **more):
            seen.append(rows.load().y)
            return super().evaluate(rows, hyperparameters, **more)

    with Session.open(2, None, 0) as session:
        rows = rows_of(data.X, data.y)
        search = search_of(rows, ard_start(10), session, search_rows="auto")
        Watched(700, np.float64, session).search(search)
    sizes = [len(y) for y in seen]
    assert sorted(set(sizes)) == [75, 300, 458, 700]
    assert sizes == sorted(sizes)
    few, some, many = (set(next(y for y in seen if len(y) == size)) for size in (75, 300, 458))
    assert few < some < many < set(rows.data.y)


@pytest.fixture
def factorised(monkeypatch):
    """Return pairs of a number of rows and the dtype of their factor, in the order of a fit."""
    seen, original = [], ExactSolver._solve

    def watched(self, rows, *arguments, **more):
        factor, alpha = original(self, rows, *arguments, **more)
        seen.append((len(rows), factor.tiles.dtype.name))
        return factor, alpha

    monkeypatch.setattr(ExactSolver, "_solve", watched)
    return seen


def test_auto_stops_in_time(few_are_many, factorised):
    auto, names = phases()
    assert names == ["75 rows", "300 rows", "458 rows", "all rows"]
    report = auto.fit_report_
    assert report.converged
    assert report.search_rows_used == 700
    assert 0.0 <= report.promised_gain_per_row <= 0.002
    assert report.promised_gain == pytest.approx(700 * report.promised_gain_per_row)
    # Estimated gradients are from float32 factors, and one in float64 follows for the posterior.
    counts = report.evaluations
    assert factorised[: counts["75 rows"]] == [(75, "float64")] * counts["75 rows"]
    drafts = [(rows, "float32") for rows in (300, 458) for _ in range(counts[f"{rows} rows"])]
    drafts += [(700, "float32")] * counts["all rows"]
    assert factorised[counts["75 rows"] :] == [*drafts, (700, "float64")]
    fixed = GPXRegressor(optimizer=None, **auto.hyperparameters_).fit(data.X, data.y)
    assert_allclose(auto.predict(data.X[:9]), fixed.predict(data.X[:9]), rtol=1e-9)
    whole, _ = phases(search_rows="all")
    assert whole.fit_report_.promised_gain_per_row <= 1e-6
    assert auto.fit_report_.evidence > whole.fit_report_.evidence - 0.01 * 700
    assert auto.fit_report_.evaluations["all rows"] <= whole.fit_report_.evaluations["all rows"]


def test_the_last_float32_factor_of_a_search_is_the_posterior(few_are_many, factorised):
    auto, _ = phases(dtype="float32")
    assert factorised.count((700, "float32")) == auto.fit_report_.evaluations["all rows"]
    fixed = GPXRegressor(optimizer=None, dtype="float32", **auto.hyperparameters_)
    expected = fixed.fit(data.X, data.y).posterior_.coefficients
    found = auto.posterior_.coefficients
    assert np.linalg.norm(found - expected) <= 1e-9 * np.linalg.norm(expected)


def test_a_gradient_is_estimated_in_float64_where_float32_has_no_factor(session, factorised):
    """Every row is there twice, and noise of 1e-5 of the variance is lost in float32."""
    X, y = np.repeat(data.X[:60], 2, axis=0), np.repeat(data.y[:60], 2)
    rows, solver = rows_of(X, y), ExactSolver(120, np.float64, session)
    start = Hyperparameters.of(kernels.RBF(1.0, 20.0), 0.0, 1e-5)
    estimated = solver.evaluate(rows, start, information=True, probes=PROBES)
    assert factorised == [(120, "float64")]
    exact = solver.evaluate(rows, start)
    assert estimated.value == pytest.approx(exact.value, rel=1e-6)


@pytest.mark.parametrize("solver", ["exact", "cg", "inducing"])
def test_a_number_of_rows_is_kept(solver):
    model, names = phases(solver=solver, search_rows=400, n_inducing=30)
    assert model.fit_report_.search_rows_used == 400
    assert "400 rows" in names
    assert "all rows" not in names
    assert model.fit_report_.n_samples == 700
    whole, _ = phases(solver=solver, search_rows="all", n_inducing=30)
    assert model.score(data.X, data.y) > whole.score(data.X, data.y) - 0.15
    assert "on 400 of 700 rows" in str(model.fit_report_)


@pytest.mark.parametrize("solver", ["basis", "grid"])
def test_a_number_of_rows_is_kept_in_few_dimensions(solver):
    x = np.linspace(0.0, 6.0, 600)[:, None]
    y = np.sin(x[:, 0]) + 0.1 * np.random.RandomState(0).randn(600)
    model = GPXRegressor(
        solver=solver,
        search_rows=100,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(x, y, np.ones((600, 1)))
    assert model.fit_report_.search_rows_used == 100
    assert max(int(name.split()[0]) for name in model.fit_report_.evaluations) <= 100
    assert model.score(x, y, np.ones((600, 1))) > 0.9


def test_more_rows_than_there_are_means_all():
    asked, _ = phases(search_rows=10_000)
    whole, _ = phases(search_rows="all")
    assert np.array_equal(asked.theta_, whole.theta_)
    assert asked.fit_report_.search_rows_used == 700


@pytest.mark.parametrize("asked", [9, 0, -1, 2.5, "most", None, True, float("nan"), [100]])
def test_other_numbers_of_rows_are_refused(asked):
    with pytest.raises(InputError, match="search_rows"):
        GPXRegressor(search_rows=asked, kernel="rbf", fit_intercept=False, weights="shared").fit(
            data.X[:50], data.y[:50]
        )


def test_ten_rows_are_enough_to_search():
    model = GPXRegressor(
        search_rows=10, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    assert model.fit_report_.search_rows_used == 10
    assert np.isfinite(model.predict(data.X[:3])).all()


def rare_target(n, nonzero):
    y = np.zeros(n)
    y[nonzero] = np.random.RandomState(0).randn(len(nonzero)) * 10
    return y


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_a_subset_with_a_constant_y_is_left_out(solver, monkeypatch):
    """Only 3 of 700 rows have another y, and the subsets have none of them."""
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 200)
    order = np.random.RandomState(0).permutation(700)
    y = rare_target(700, order[-3:])
    model = GPXRegressor(
        solver=solver,
        max_iter=2,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    # Steps on so rare a target are long; two of them show which rows the search has seen.
    model.fit(data.X, y)
    assert set(model.fit_report_.evaluations) == {"all rows"}
    assert np.isfinite(model.predict(data.X)).all()


@pytest.mark.parametrize("solver", ["exact", "cg", "inducing", "neighbors"])
def test_a_constant_y_on_all_rows_of_a_search_keeps_the_start(solver):
    at = MemoryRows(TrainingRows(data.X, DenseFeatures(data.X), np.arange(700.0))).subset(20).y
    others = np.setdiff1d(np.arange(700), at.astype(int))
    model = GPXRegressor(
        solver=solver,
        n_inducing=30,
        search_rows=20,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    with warnings.catch_warnings():
        # Thirty points are too few, which is not what is tested here.
        warnings.simplefilter("ignore", FewPointsWarning)
        model.fit(data.X, rare_target(700, others[:3]))
    report = model.fit_report_
    assert not report.evaluations
    assert not report.converged
    assert "constant" in report.message
    assert report.search_rows_used == 0
    start = GPXRegressor(solver=solver, optimizer=None, n_inducing=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewPointsWarning)
        start.fit(data.X, data.y)
    assert np.array_equal(model.theta_, start.theta_)


def test_a_subset_sees_two_clusters_that_are_far_apart(few_are_many):
    """A tenth of the rows are 1,000 units away, where y varies ten times as fast."""
    random = np.random.RandomState(0)
    X = random.randn(700, 2)
    X[630:] += 1000.0
    y = np.sin(X[:, 0]) + np.where(np.arange(700) < 630, 0.0, 5.0) + 0.05 * random.randn(700)
    seen = []

    class Watched(ExactSolver):
        def evaluate(self, rows, hyperparameters, **more):
            seen.append((rows.load().x[:, 0] > 500.0).mean())
            return super().evaluate(rows, hyperparameters, **more)

    with Session.open(2, None, 0) as session:
        search = search_of(rows_of(X, y), ard_start(2), session, search_rows="auto")
        Watched(700, np.float64, session).search(search)
        limited = search_of(rows_of(X, y), ard_start(2), session, search_rows=60).limited()
    assert min(seen) > 0.03
    assert (limited.rows.load().x[:, 0] > 500.0).mean() > 0.03


def test_an_interrupt_in_the_last_stage_keeps_the_optimum_of_the_subset(monkeypatch):
    original = ExactSolver.evaluate

    def evaluate(self, rows, hyperparameters, **more):
        if len(rows) == 700:
            raise KeyboardInterrupt
        return original(self, rows, hyperparameters, **more)

    monkeypatch.setattr(ExactSolver, "evaluate", evaluate)
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared")
    with pytest.raises(KeyboardInterrupt, match="best hyperparameters"):
        model.fit(data.X, data.y)
    assert model.fit_report_.message == "interrupted"
    assert model.fit_report_.search_rows_used == 175
    assert model.score(data.X, data.y) > 0.5


def test_what_the_report_says_of_a_search():
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X[:80], data.y[:80]
    )
    report = model.fit_report_
    assert report.search_rows_used == 80
    assert 0.0 <= report.promised_gain <= 80e-6
    assert "on 80 of 80 rows; a further step promised" in str(report)
    unsearched = GPXRegressor(optimizer=None).fit(data.X[:80], data.y[:80]).fit_report_
    assert unsearched.search_rows_used == 0
    assert np.isnan([unsearched.promised_gain, unsearched.promised_gain_per_row]).all()
    assert "further step" not in str(unsearched)
    lbfgs = (
        GPXRegressor(optimizer="lbfgs", kernel="rbf", fit_intercept=False, weights="shared")
        .fit(data.X[:80], data.y[:80])
        .fit_report_
    )
    assert lbfgs.search_rows_used == 80
    assert np.isnan(lbfgs.promised_gain)


def test_the_model_of_the_paper_searches_all_rows():
    assert PAPER["search_rows"] == "all"
    assert GPXRegressor(**PAPER).search_rows == "all"
    assert (
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").search_rows,
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").optimizer,
    ) == ("auto", "auto")
