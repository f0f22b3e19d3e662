"""Weights with priors of their own by conjugate gradients, beside the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale import GPXRegressor, load
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import Queries
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.linalg import lower_tiles, preconditioner
from gpx_scale.solvers import neighborhood
from gpx_scale.solvers.cg import solver as cg
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.posterior import MomentRequest
from problems import cg_solver, make_problem, session_of
from term_cases import CASES

FORMS = {"stored": np.float32, "recomputed": np.float32, "mixed": np.float64}
# Nats to which alpha is solved for: then a mean is off by 1e-9 of a standard deviation.
TIGHT_NATS = 1e-18
ROWS = 45


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(autouse=True)
def small_and_tight(monkeypatch):
    """Let C have several tiles, and solves and factors have no error but rounding."""
    monkeypatch.setattr(lower_tiles, "MAX_TILE_ROWS", 16)
    monkeypatch.setattr(cg, "ALPHA_TOLERANCE_NATS", TIGHT_NATS)
    monkeypatch.setattr(cg, "CONSTANT_ENERGY_SHARE", TIGHT_NATS)
    monkeypatch.setattr(neighborhood, "FLOAT32_LEAST_NOISE_SHARE", np.inf)


@pytest.fixture(scope="module")
def problem():
    return make_problem(n=ROWS)


def solver_of(problem, form="recomputed", shared=10, n_jobs=1, seed=0):
    form, dtype = ("recomputed" if form == "mixed" else form), FORMS[form]
    given = {"form": form, "rank": 10, "dtype": dtype, "shared": shared}
    return cg_solver(problem.inputs, session_of(n_jobs), seed, **given)


def conditioned(problem, case, **settings):
    solver = solver_of(problem, **settings)
    return solver.condition(MemoryRows(problem.inputs), case.hyperparameters(problem)), session_of()


@pytest.mark.parametrize("form", FORMS)
def test_moments_are_those_of_the_oracle(case, form, problem):
    posterior, session = conditioned(problem, case, form=form)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    found = posterior.moments(queries, MomentRequest(True, along=[queries.Z]), session)
    whole = posterior.moments(queries, MomentRequest(False, True), session)
    arguments = case.of_oracle, *problem.data
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(*arguments, x, *problem.noise)
        assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        assert_allclose(whole.covariance[i], cov, rtol=0, atol=1e-8)
        z = problem.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=0, atol=1e-8)


def test_the_joint_covariance_is_that_of_the_oracle(case, problem, monkeypatch):
    monkeypatch.setattr("gpx_scale.solvers.cg.posterior.JOINT_NOISE_SHARE", 1e-12)
    posterior, session = conditioned(problem, case)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    wanted = oracle.predict_of_terms(
        case.of_oracle, *problem.data, problem.X_query, problem.Z_query, *problem.noise
    )[1]
    assert_allclose(posterior.joint_covariance(queries, session), wanted, rtol=0, atol=1e-8)


def test_parts_of_the_weights_are_those_of_the_oracle(case, problem):
    posterior, session = conditioned(problem, case)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    for part in ("constant", "own", "varying"):
        some = [t for t, term in enumerate(case.terms) if term.part == part]
        request = MomentRequest(True, surface=True, part=part)
        found = posterior.moments(queries, request, session)
        for i, x in enumerate(problem.X_query):
            mean, cov = oracle.weights_of_terms(
                case.of_oracle, *problem.data, x, *problem.noise, part=some
            )
            assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
            assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)


def test_weights_of_training_rows_are_those_of_the_oracle(case, problem):
    posterior, session = conditioned(problem, case)
    queries = Queries(problem.X, problem.inputs.Z, problem.Z, own=True)
    found = posterior.moments(queries, MomentRequest(True, along=[queries.Z]), session)
    for i in (0, 13, 29):
        mean, cov = oracle.weights_of_terms(
            case.of_oracle, *problem.data, problem.X[i], *problem.noise, own=i
        )
        assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        z = problem.Z[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["semi", "own curves"])
def test_variances_from_few_rows_are_never_below_those_of_the_oracle(name, problem):
    case = CASES[name]
    posterior, session = conditioned(problem, case, shared=0)
    few = replace(posterior.local_variance, shared=np.arange(3), nearby=7)
    posterior = replace(posterior, local_variance=few)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    found = posterior.moments(queries, MomentRequest(True, along=[queries.Z]), session)
    for i, x in enumerate(problem.X_query):
        _, cov = oracle.weights_of_terms(case.of_oracle, *problem.data, x, *problem.noise)
        assert (found.variance[i] >= cov.diagonal() - 1e-9).all()
        z = problem.Z_query[i]
        assert found.along[0][i] >= z @ cov @ z - 1e-9
    # Constant parts are known from all rows.
    request, last = MomentRequest(True, surface=True, part="constant"), len(case.terms) - 1
    found = posterior.moments(queries, request, session)
    for i, x in enumerate(problem.X_query):
        arguments = case.of_oracle, *problem.data, x, *problem.noise
        _, cov = oracle.weights_of_terms(*arguments, part=[last])
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_from_a_basis_as_probes_is_the_exact_one(case, form, problem, monkeypatch):
    """With e1 and e2 of all unit vectors, the probes have exactly the covariance P."""
    rows, hyperparameters = MemoryRows(problem.inputs), case.hyperparameters(problem)
    monkeypatch.setattr(preconditioner, "FLOAT32_SQUARED_NORM", 0.0)
    monkeypatch.setattr(cg, "PROBE_ENERGY_SHARE", 1e-16)
    monkeypatch.setattr(cg, "SEARCH_TOLERANCE_NATS_PER_ROW", 1e-16)
    exact = ExactSolver(ROWS, np.float64, session_of()).evaluate(rows, hyperparameters)
    solver = solver_of(problem, form)
    # The first call chooses the pivots.
    solver.evaluate(rows, hyperparameters, gradient=False)
    rank = len(solver._draws[0])
    monkeypatch.setattr(cg, "PROBES", rank + ROWS)
    units = np.sqrt(rank + ROWS) * np.eye(rank + ROWS)
    solver._draws = units[:rank], units[rank:]
    found = solver.evaluate(rows, hyperparameters)
    close = 1e-7 if form == "mixed" else 1e-4  # Other tiles are in float32.
    atol = close * np.abs(exact.gradient).max()
    assert_allclose(found.gradient, exact.gradient, rtol=close, atol=atol)


def test_the_evidence_is_that_of_the_oracle_within_its_error(case, problem):
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    rows, hyperparameters = MemoryRows(problem.inputs), case.hyperparameters(problem)
    exact = ExactSolver(ROWS, np.float64, session_of()).evaluate(
        rows, hyperparameters, information=True
    )
    found = solver_of(problem).evaluate(rows, hyperparameters, information=True)
    off = found.value - oracle.log_density(problem.y, C)
    assert abs(off) <= 5.0 * max(found.standard_error, 1e-3)
    atol = 0.02 * np.abs(exact.information).max()
    assert_allclose(found.information, exact.information, rtol=0.05, atol=atol)


def test_results_do_not_depend_on_the_number_of_threads(problem):
    rows, hyperparameters = MemoryRows(problem.inputs), CASES["semi"].hyperparameters(problem)
    one, two = (
        solver_of(problem, "stored", n_jobs=n_jobs).evaluate(rows, hyperparameters)
        for n_jobs in (1, 2)
    )
    assert one.value == two.value
    assert (one.gradient == two.gradient).all()


@pytest.mark.parametrize("name", ["semi", "own curves", "constant"])
def test_draws_have_the_moments_of_the_oracle(name, monkeypatch):
    problem, case, count = make_problem(n=25, m=2), CASES[name], 500
    posterior, session = conditioned(problem, case)
    draws = posterior.draw(problem.X_query, count, np.random.RandomState(0), session)
    assert draws.shape == (2, 4, count)
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(case.of_oracle, *problem.data, x, *problem.noise)
        scale = np.sqrt(cov.diagonal())
        assert (np.abs(draws[i].mean(axis=1) - mean) <= 5.0 * scale / np.sqrt(count)).all()
        allowed = 5.0 * np.sqrt(2.0 / count) * np.outer(scale, scale)
        assert (np.abs(np.cov(draws[i]) - cov) <= allowed).all()


@pytest.fixture(scope="module")
def fits():
    """Return the same search of constant and varying weights, by the exact solver and by cg."""
    problem = make_problem(n=150, m=9)
    y = np.sin(problem.X[:, 0]) * problem.Z[:, 0] + 2.0 * problem.Z[:, 1]
    y = y + 0.3 * np.random.RandomState(1).standard_normal(150)
    given = {"weights": "semi", "kernel": "rbf", "fit_intercept": False, "random_state": 0}
    exact, iterative = (
        GPXRegressor(solver=name, **given).fit(problem.X, y, problem.Z) for name in ("exact", "cg")
    )
    return problem, exact, iterative


def test_a_fit_has_the_terms_and_parts_of_the_exact_one(fits):
    problem, exact, iterative = fits
    wanted, found = (
        model.explain(problem.X_query, problem.Z_query) for model in (exact, iterative)
    )
    decisions = [model.weight_table_["decision"].tolist() for model in (exact, iterative)]
    assert decisions[0] == decisions[1]
    near = 0.02 * wanted.weights_std.max()
    for name in ("weights", "weights_std", "constant", "constant_std", "varying", "varying_std"):
        assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0.02, atol=near)


def test_a_loaded_model_explains_the_same(fits, tmp_path):
    problem, _, model = fits
    path = tmp_path / "model.gpx"
    model.save(path)
    again = load(path)
    for std in (True, "samples"):
        wanted, found = (
            one.explain(problem.X_query, problem.Z_query, std) for one in (model, again)
        )
        assert_allclose(found.weights_std, wanted.weights_std, rtol=1e-9)
        assert_allclose(found.constant_std, wanted.constant_std, rtol=1e-9)


@pytest.mark.parametrize("weights", ["multiscale", "additive"])
def test_a_search_on_all_rows_finds_the_optimum_of_the_exact_solver(weights, monkeypatch):
    """Terms are removed and split between searches, which keep the pivots and the probes."""
    monkeypatch.setattr(lower_tiles, "MAX_TILE_ROWS", 128)
    monkeypatch.setattr(cg, "ALPHA_TOLERANCE_NATS", 1e-6)
    monkeypatch.setattr(cg, "CONSTANT_ENERGY_SHARE", 1e-8)
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 150)
    problem = make_problem(n=300, p=3, d=3, tied=weights == "additive")
    X, Z = problem.X, problem.Z
    y = np.sin(2.0 * X[:, 0]) * Z[:, 0] + 1.5 * Z[:, 1]
    y = y + 0.3 * np.random.RandomState(1).standard_normal(300)
    given = {"weights": weights, "kernel": "rbf", "random_state": 0, "n_jobs": 1}
    # The curves of an additive model are those of the same columns, which are all that it has.
    data = (X, y) if weights == "additive" else (X, y, Z)
    exact, iterative = (
        GPXRegressor(solver=name, fit_intercept=False, **given).fit(*data)
        for name in ("exact", "cg")
    )
    evaluations = iterative.fit_report_.evaluations
    assert evaluations["150 rows"] >= 1
    assert evaluations["all rows"] >= 1
    table, other = exact.weight_table_, iterative.weight_table_
    assert table["decision"].tolist() == other["decision"].tolist()
    assert exact.theta_.size == iterative.theta_.size
    reached = exact.log_marginal_likelihood(iterative.theta_)
    assert reached > exact.log_marginal_likelihood() - 1.0
