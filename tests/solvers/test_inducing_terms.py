"""Weights with priors of their own by inducing points, beside the bound written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import oracle
from gpx_scale import XZ, GPXRegressor, load
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import InputRows, Queries
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.solvers.inducing.point_optimization import PointNumbers
from gpx_scale.solvers.inducing.point_selection import PointSelection
from gpx_scale.solvers.inducing.solver import InducingSolver
from gpx_scale.solvers.posterior import MomentRequest
from problems import make_problem, session_of
from term_cases import CASES

PARTS = ("constant", "own", "varying")


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def problem():
    return make_problem(n=45)


def points_of(problem, count=12):
    random = np.random.RandomState(3)
    shape = random.standard_normal((count, 3)), random.standard_normal((count, 4))
    return InputRows(
        problem.X[:count] + 0.1 * shape[0], DenseFeatures(problem.Z[:count] + 0.1 * shape[1])
    )


def solver_at(points):
    solver = InducingSolver(None, PointSelection(len(points), "given", 0, points), session_of(2))
    solver.points = points
    return solver


def low_rank(case, problem, points, X, Z):
    """Return the covariance of f at rows with the variables, and that of the variables.

    The variables are those of the points, for the terms that vary, and all constant weights.
    """
    varying = [
        pair for pair, term in zip(case.of_oracle, case.terms, strict=True) if not_constant(term)
    ]
    constant = sum(
        (term.weight_variances for term in case.terms if not not_constant(term)), np.zeros(4)
    )
    Zu = points.Z.array
    S_nu = sum(k(X, points.x) * ((Z * v) @ Zu.T) for k, v in varying)
    S_uu = sum(k(points.x, points.x) * ((Zu * v) @ Zu.T) for k, v in varying)
    S_uu = S_uu + 1e-300 * np.eye(len(Zu))
    return S_nu, S_uu, constant


def not_constant(term):
    return term.part != "constant"


def bound(case, problem, points):
    """Return log N(y; 0, Q + D) - 1/2 sum_i (s_i - q_i) / D_i; Q has constants exactly."""
    S_nu, S_uu, constant = low_rank(case, problem, points, problem.X, problem.Z)
    Q = S_nu @ np.linalg.pinv(S_uu, rcond=1e-13) @ S_nu.T
    Q += (problem.Z * constant) @ problem.Z.T
    D = problem.sigma_y**2 + problem.sigma_w**2 * np.square(problem.Z).sum(axis=1)
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    missing = C.diagonal() - D - Q.diagonal()
    return oracle.log_density(problem.y, Q + np.diag(D)) - 0.5 * (missing / D).sum()


def test_the_bound_is_that_written_out(case, problem):
    points = points_of(problem)
    hyperparameters = case.hyperparameters(problem)
    found = solver_at(points).evaluate(MemoryRows(problem.inputs), hyperparameters, gradient=False)
    assert_allclose(found.value, bound(case, problem, points), rtol=1e-8)
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    assert found.value <= oracle.log_density(problem.y, C) + 1e-8


def test_constant_weights_are_exact_whatever_the_points_are(problem):
    case = CASES["constant"]
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    solver = solver_at(points_of(problem, 2))
    found = solver.evaluate(MemoryRows(problem.inputs), case.hyperparameters(problem))
    assert_allclose(found.value, oracle.log_density(problem.y, C), rtol=1e-10)


def test_the_gradient_is_that_of_differences(case, problem):
    points, rows = points_of(problem), MemoryRows(problem.inputs)
    hyperparameters, solver = case.hyperparameters(problem), solver_at(points_of(problem))
    theta = hyperparameters.theta
    found = solver.gradient(rows, solver.bound(rows, hyperparameters), by_points=True)
    for t, move in enumerate(1e-5 * np.eye(theta.size)):
        above, below = (
            solver.evaluate(rows, hyperparameters.with_theta(theta + s * move), gradient=False)
            for s in (1, -1)
        )
        slope = (above.value - below.value) / 2e-5
        assert_allclose(found.theta[t], slope, rtol=1e-5, atol=1e-5, err_msg=str(t))
    numbers = PointNumbers(solver, hyperparameters.kernel)
    by_points = np.concatenate([found.x.ravel(), found.z.ravel()])
    for k in (0, 7, 20, 36, 40, 55, 70, 83):
        values = []
        for s in (1, -1):
            moved = numbers.start.copy()
            moved[k] += s * 1e-5
            numbers.place(moved)
            values.append(solver.bound(rows, hyperparameters).value)
        slope = (values[0] - values[1]) / 2e-5
        assert_allclose(by_points[k], slope, rtol=1e-4, atol=1e-4, err_msg=str(k))
    solver.points = points


def test_with_all_rows_as_points_moments_are_those_of_the_oracle(case, problem):
    rows = problem.inputs
    solver = solver_at(InputRows(rows.x, rows.Z))
    posterior = solver.condition(MemoryRows(rows), case.hyperparameters(problem))
    session = session_of()
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    found = posterior.moments(queries, MomentRequest(True, True, along=[queries.Z]), session)
    alone = posterior.moments(queries, MomentRequest(True), session)
    close = {"rtol": 1e-5, "atol": 1e-6}
    arguments = case.of_oracle, *problem.data
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(*arguments, x, *problem.noise)
        assert_allclose(found.mean[i], mean, **close)
        assert_allclose(alone.variance[i], cov.diagonal(), **close)
        assert_allclose(found.covariance[i], cov, **close)
        z = problem.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, **close)
    _, cov = oracle.predict_of_terms(*arguments, problem.X_query, problem.Z_query, *problem.noise)
    assert_allclose(posterior.joint_covariance(queries, session), cov, **close)
    for part in PARTS:
        some = [t for t, term in enumerate(case.terms) if term.part == part]
        request = MomentRequest(True, surface=True, part=part)
        of_part = posterior.moments(queries, request, session)
        for i, x in enumerate(problem.X_query):
            mean, cov = oracle.weights_of_terms(*arguments, x, *problem.noise, part=some)
            assert_allclose(of_part.mean[i], mean, **close)
            assert_allclose(of_part.variance[i], cov.diagonal(), **close)


def test_draws_have_the_moments_of_the_posterior(problem):
    solver = solver_at(points_of(problem))
    posterior = solver.condition(MemoryRows(problem.inputs), CASES["semi"].hyperparameters(problem))
    session, count, x = session_of(), 3000, problem.X_query[:2]
    queries = Queries(x, DenseFeatures(problem.Z_query[:2]), problem.Z_query[:2])
    found = posterior.moments(queries, MomentRequest(True), session)
    draws = posterior.draw(x, count, np.random.RandomState(0), session)
    scale = np.sqrt(found.variance)
    assert (np.abs(draws.mean(axis=2) - found.mean) <= 5.0 * scale / np.sqrt(count)).all()
    assert_allclose(draws.std(axis=2), scale, rtol=5.0 / np.sqrt(2 * count))


def semi_rows(n=200):
    random = np.random.RandomState(1)
    X, Z = random.uniform(-1.0, 1.0, (n, 4)), random.standard_normal((n, 4))
    weights = np.column_stack([np.ones(n), X[:, 0], np.sin(3.0 * X[:, 1]), np.zeros(n)])
    return X, (weights * Z).sum(axis=1) + 0.2 * random.standard_normal(n), Z, weights


FAST = {"solver": "inducing", "kernel": "rbf", "ard": False, "fit_intercept": False}


@pytest.fixture(scope="module")
def fitted():
    X, y, Z, _ = semi_rows()
    return GPXRegressor(weights="semi", n_inducing=40, max_iter=30, random_state=0, **FAST).fit(
        X, y, Z
    )


@pytest.mark.filterwarnings("ignore:Inducing points are too few")
def test_weights_are_zero_constant_or_varying(fitted):
    X, _, Z, weights = semi_rows()
    decisions = [row.decision for row in fitted.fit_report_.weight_table]
    assert decisions == ["constant", "varying", "varying", "zero"]
    found = fitted.explain(X, Z, std="surface")
    assert np.sqrt(np.square(found.weights - weights).mean()) < 0.2
    assert_allclose(found.constant + found.varying, found.weights, atol=1e-8)


def test_a_file_has_the_same_model(fitted, tmp_path):
    X, _, Z, _ = semi_rows()
    fitted.save(tmp_path / "model.gpx")
    again, ours = load(tmp_path / "model.gpx").explain(X, Z), fitted.explain(X, Z)
    for name in ("weights", "weights_std", "constant", "constant_std"):
        assert_array_equal(getattr(again, name), getattr(ours, name))


def test_streams_give_the_same_model_and_rows_can_be_added():
    X, y, Z, _ = semi_rows(120)
    given = {"weights": "semi", "prune": False, "optimizer": None, "theta2": 2.0, **FAST}
    given |= {"standardize": False, "n_inducing": 25, "random_state": 0}
    whole = GPXRegressor(**given).fit(X, y, Z)
    streamed = GPXRegressor(**given).fit(
        lambda: iter([(X[:50], y[:50], Z[:50]), (X[50:], y[50:], Z[50:])])
    )
    ours, theirs = whole.explain(X, Z), streamed.explain(X, Z)
    assert_allclose(theirs.weights, ours.weights, atol=1e-7)
    assert_allclose(theirs.weights_std, ours.weights_std, rtol=1e-6)
    some = GPXRegressor(inducing_points=XZ(X[:20], Z[:20]), **given).fit(X[:80], y[:80], Z[:80])
    assert some.posterior_.n_rows == 80
    some.partial_fit(X[80:], y[80:], Z[80:])
    assert some.posterior_.n_rows == 120
