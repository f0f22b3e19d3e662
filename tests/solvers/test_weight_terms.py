"""Weights with priors of their own, beside the oracle in which all terms are written out."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale import kernels
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import Queries
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.linalg import lower_tiles, preconditioner
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.linalg.covariance_forms import covariances
from gpx_scale.linalg.preconditioner import LowRankPreconditioner
from gpx_scale.model.term import Term
from gpx_scale.model.weight_prior import WeightPrior
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.posterior import MomentRequest
from problems import make_problem, session_of
from term_cases import CASES


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(lower_tiles, "MAX_TILE_ROWS", 16)


def rows_of(problem):
    return MemoryRows(problem.inputs)


def conditioned(problem, case, dtype=np.float64, n_jobs=1):
    session = session_of(n_jobs)
    solver = ExactSolver(len(problem.y), dtype, session)
    return solver.condition(rows_of(problem), case.hyperparameters(problem)), session


def test_the_covariance_is_that_of_the_oracle(case):
    problem = make_problem(n=45)
    wanted = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    covariance = TiledCovariance(problem.inputs, case.hyperparameters(problem), session_of(2))
    tiles = covariance.empty_tiles(np.float64)
    covariance.fill(tiles)
    assert_allclose(tiles.to_matrix(), np.tril(wanted), rtol=1e-12, atol=1e-12)
    V = np.random.RandomState(0).standard_normal((45, 5))
    assert_allclose(covariance.matmul(V), wanted @ V, rtol=0, atol=1e-11)
    rows = np.ascontiguousarray(V.T)
    assert_allclose(covariance.matmul_rows(rows), V.T @ wanted, rtol=0, atol=1e-11)
    energies = np.einsum("ij,ij->j", V, wanted @ V)
    assert_allclose(covariance.quadratic(rows), energies, rtol=1e-11)
    index = np.array([3, 17, 44])
    columns = (wanted - np.diag(covariance.noise))[:, index]
    assert_allclose(covariance.columns(index), columns, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_blocks_are_contracted_as_by_the_slow_way(case, is_compiled, monkeypatch):
    problem, session = make_problem(n=45), session_of(2)
    prior = case.hyperparameters(problem).weight_prior
    if not is_compiled:
        monkeypatch.setattr(WeightPrior, "pack", lambda prior, rows: None)
    rows = prior.prepare(problem.inputs)
    a, b = rows[:45], rows[5:20]
    U, V = (np.random.RandomState(0).standard_normal((size, 3)) for size in (45, 15))

    def weigh(G):
        G *= U @ V.T

    wanted = prior.contract(a, b, weigh), (prior.tile(a, b) * (U @ V.T)).sum(axis=1)
    by_matrix = prior.contract_matrix(a, b, U @ V.T, session)
    by_product = prior.contract_product(a, b, U, V, session)
    for one, matrix, product in zip(wanted, by_matrix, by_product, strict=True):
        assert_allclose(matrix, one, rtol=1e-9, atol=1e-10)
        assert_allclose(product, one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["semi", "own curves", "constant"])
@pytest.mark.parametrize("constants", ["apart", "in one"])
def test_derivatives_of_a_preconditioner_are_those_of_differences(name, constants, monkeypatch):
    """The factor is in float64, because differences would show the rounding of float32."""
    monkeypatch.setattr(preconditioner, "FLOAT32_SQUARED_NORM", 0.0)
    problem, case = make_problem(n=45), CASES[name]
    hyperparameters = case.hyperparameters(problem)
    pivots, V = np.arange(0, 45, 4), np.random.RandomState(0).standard_normal((45, 3))

    def at(theta):
        there = hyperparameters.with_theta(theta)
        if constants == "apart":
            given = problem.inputs, there, session_of(), "recomputed", np.float64, None
            return LowRankPreconditioner.of(covariances(*given)[0], pivots)
        C = TiledCovariance(problem.inputs, there, session_of())
        return LowRankPreconditioner.of(C, pivots)

    def energy(P):
        return np.square(P.F.T @ V).sum() + np.sum(P.D[:, None] * V**2)

    P, step = at(hyperparameters.theta), 1e-4
    trace, energies, along = P.trace_gradient(), P.contract(V), P.tangents(V[:, 0])
    assert_allclose(V[:, 0] @ along, P.contract(V[:, :1]), rtol=1e-9, atol=1e-9)
    for t, move in enumerate(step * np.eye(hyperparameters.theta.size)):
        above, below = at(hyperparameters.theta + move), at(hyperparameters.theta - move)
        slope = (above.log_determinant() - below.log_determinant()) / (2 * step)
        assert_allclose(trace[t], slope, rtol=1e-5, atol=1e-5)
        slope = (energy(above) - energy(below)) / (2 * step)
        assert_allclose(energies[t], slope, rtol=1e-5, atol=1e-5)


def evidence_at(case, problem, theta, **asked):
    hyperparameters = case.hyperparameters(problem).with_theta(theta)
    solver = ExactSolver(len(problem.y), np.float64, session_of())
    return solver.evaluate(rows_of(problem), hyperparameters, **asked)


def test_the_evidence_is_that_of_the_oracle_and_its_gradient_that_of_differences(case):
    problem = make_problem(n=45)
    hyperparameters = case.hyperparameters(problem)
    theta = hyperparameters.theta
    found = evidence_at(case, problem, theta)
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    assert_allclose(found.value, oracle.log_density(problem.y, C), rtol=1e-10)
    assert len(hyperparameters.names) == theta.size == len(hyperparameters.parameter_kinds)

    step = 1e-5
    for t, move in enumerate(step * np.eye(theta.size)):
        above, below = (
            evidence_at(case, problem, theta + s * move, gradient=False).value for s in (1, -1)
        )
        slope = (above - below) / (2 * step)
        assert_allclose(found.gradient[t], slope, rtol=1e-6, atol=1e-7, err_msg=str(t))


def test_tangents_and_products_contract_the_same_derivatives(case):
    problem = make_problem(n=45)
    covariance = TiledCovariance(problem.inputs, case.hyperparameters(problem), session_of())
    random = np.random.RandomState(1)
    u, v = random.standard_normal((2, 45))
    along = covariance.tangents(v)
    assert along.shape == (45, covariance.hyperparameters.theta.size)
    by_products = covariance.contract(u[:, None], v[:, None])
    assert_allclose(u @ along, by_products, rtol=1e-9, atol=1e-10)


def test_estimated_gradients_are_exact_with_a_basis_as_probes(case):
    problem = make_problem(n=45)
    hyperparameters = case.hyperparameters(problem)
    exact = evidence_at(case, problem, hyperparameters.theta).gradient
    solver = ExactSolver(45, np.float64, session_of())
    solver._signs = np.sqrt(45.0) * np.eye(45)
    found = solver.evaluate(rows_of(problem), hyperparameters, probes=45).gradient
    # The factor is in float32.
    assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_are_those_of_the_oracle(case, dtype):
    problem = make_problem(n=45)
    posterior, session = conditioned(problem, case, dtype)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    along = [queries.Z]
    found = posterior.moments(queries, MomentRequest(True, False, along=along), session)
    whole = posterior.moments(queries, MomentRequest(False, True), session)
    close = {"rtol": 1e-8, "atol": 1e-8} if dtype == np.float64 else {"rtol": 2e-3, "atol": 1e-7}
    arguments = case.of_oracle, *problem.data
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(*arguments, x, *problem.noise)
        assert_allclose(found.mean[i], mean, rtol=1e-7, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), **close)
        assert_allclose(whole.covariance[i], cov, **close)
        z = problem.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, **close)
    mean, cov = oracle.predict_of_terms(
        *arguments, problem.X_query, problem.Z_query, *problem.noise
    )
    assert_allclose(posterior.joint_covariance(queries, session), cov, **close)


def test_parts_of_the_weights_are_those_of_the_oracle(case):
    problem = make_problem(n=45)
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
            assert_allclose(found.mean[i], mean, rtol=1e-8, atol=1e-9)
            assert_allclose(found.variance[i], cov.diagonal(), rtol=1e-7, atol=1e-9)


def test_weights_of_training_rows_are_those_of_the_oracle(case):
    problem = make_problem(n=30)
    posterior, session = conditioned(problem, case)
    rows = problem.inputs
    queries = Queries(rows.x, rows.Z, problem.Z, own=True)
    request = MomentRequest(True, along=[rows.Z])
    found = posterior.moments(queries, request, session)
    for i in (0, 13, 29):
        mean, cov = oracle.weights_of_terms(
            case.of_oracle, *problem.data, problem.X[i], *problem.noise, own=i
        )
        assert_allclose(found.mean[i], mean, rtol=1e-8, atol=1e-9)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=1e-8, atol=1e-9)
        z = problem.Z[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=1e-7, atol=1e-9)


def test_rows_are_left_out_as_by_the_oracle(case):
    problem = make_problem(n=30)
    posterior, session = conditioned(problem, case)
    residuals, deviations = posterior.leave_one_out(session)
    wanted = oracle.leave_one_out_of_terms(case.of_oracle, *problem.data, *problem.noise)
    assert_allclose(residuals, wanted[0], rtol=1e-8, atol=1e-9)
    assert_allclose(deviations, wanted[1], rtol=1e-8)


@pytest.mark.parametrize("by", ["_draw_jointly", "_draw_by_matheron"])
def test_draws_have_the_moments_of_the_oracle(case, by):
    problem = make_problem(n=25, m=2)
    posterior, session = conditioned(problem, case)
    count = 4000
    draws = getattr(posterior, by)(problem.X_query, count, np.random.RandomState(0), session)
    assert draws.shape == (2, 4, count)
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(case.of_oracle, *problem.data, x, *problem.noise)
        scale = np.sqrt(cov.diagonal())
        assert (np.abs(draws[i].mean(axis=1) - mean) <= 5.0 * scale / np.sqrt(count)).all()
        allowed = 5.0 * np.sqrt(2.0 / count) * np.outer(scale, scale)
        assert (np.abs(np.cov(draws[i]) - cov) <= allowed).all()


def test_results_do_not_depend_on_the_number_of_threads():
    problem, case = make_problem(n=70), CASES["two kernels"]
    theta = case.hyperparameters(problem).theta
    found = []
    for n_jobs in (1, 2):
        solver = ExactSolver(len(problem.y), np.float64, session_of(n_jobs))
        hyperparameters = case.hyperparameters(problem).with_theta(theta)
        found.append(solver.evaluate(rows_of(problem), hyperparameters, information=True))
    one, two = found
    assert one.value == two.value
    assert (one.gradient == two.gradient).all()
    assert (one.information == two.information).all()


def test_equal_variances_are_the_model_of_the_paper():
    problem = make_problem(n=45)
    shared = problem.params
    equal = WeightPrior((Term(kernels.RBF(1.0, 2.5), np.full(4, 1.3)),), problem.sigma_w)
    wanted = TiledCovariance(problem.inputs, shared, session_of())
    found = TiledCovariance(problem.inputs, replace(shared, weight_prior=equal), session_of())
    V = np.eye(45)
    assert_allclose(found.matmul(V), wanted.matmul(V), rtol=1e-12, atol=1e-13)


def test_variances_that_are_tied_are_one_parameter():
    hyperparameters = CASES["tied"].hyperparameters(make_problem())
    prior = hyperparameters.weight_prior
    assert prior.names == [
        "theta1",
        "theta2",
        "varying_variances[0]",
        "varying_variances[2]",
        "sigma_w",
    ]
    moved = prior.with_theta(np.log([1.0, 2.5, 0.7, 1.1, 0.2]))
    assert_allclose(moved.terms[0].weight_variances, [0.7, 0.7, 1.1, 0.7])
    assert prior.held.tolist() == [True, False, False, False, False]
