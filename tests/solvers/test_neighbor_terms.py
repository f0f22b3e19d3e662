"""Weights with priors of their own in the neighbours solver, beside the oracle's sums of terms."""

import copy
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale import GPXRegressor, load
from gpx_scale.data import row_files
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import Queries
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.linalg.neighbor_search import Eligible, NeighborSearch
from gpx_scale.model.weight_prior import WeightPrior
from gpx_scale.solvers.exact.solver import ExactSolver, exact_subset_optimum
from gpx_scale.solvers.neighbors import planning
from gpx_scale.solvers.neighbors import solver as neighbors_solver
from gpx_scale.solvers.neighbors.posterior import NeighborsPosterior
from gpx_scale.solvers.neighbors.vecchia import OrderedRows
from gpx_scale.solvers.posterior import MomentRequest
from problems import make_problem, session_of
from term_cases import CASES, CONSTANT

PROBLEM = make_problem(n=45)
NOISE = PROBLEM.noise
STEP = 1e-5


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def posterior_of(case, neighbors, shared, problem=PROBLEM):
    """Return the posterior that conditions on so many neighbours, and on every third row."""
    return NeighborsPosterior(
        case.hyperparameters(problem),
        problem.inputs,
        shared=np.arange(0, 3 * shared, 3),
        neighbors=neighbors,
        keeps_factor=True,
        seed=0,
        sampled=1000,
        log_evidence=0.0,
        standard_error=0.0,
        held_out=[],
    )


def queries_of(problem=PROBLEM):
    return Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)


@pytest.mark.parametrize(("k", "m"), [(45, 0), (45, 10)])
def test_all_rows_give_the_oracle_s_answers(case, k, m):
    posterior, queries = posterior_of(case, k, m), queries_of()
    request = MomentRequest(variance=True, covariance=True, along=[queries.Z])
    found = posterior.moments(queries, request, session_of(2))
    for i, x in enumerate(PROBLEM.X_query):
        mean, cov = oracle.weights_of_terms(case.of_oracle, *PROBLEM.data, x, *NOISE)
        assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(found.covariance[i], cov, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        z = PROBLEM.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=0, atol=1e-8)


@pytest.mark.parametrize("part", ["constant", "own", "varying"])
def test_parts_of_the_weights_are_those_of_the_oracle(case, part):
    posterior, queries = posterior_of(case, 45, 10), queries_of()
    some = [t for t, term in enumerate(case.terms) if term.part == part]
    request = MomentRequest(True, surface=True, part=part)
    found = posterior.moments(queries, request, session_of(2))
    for i, x in enumerate(PROBLEM.X_query):
        mean, cov = oracle.weights_of_terms(case.of_oracle, *PROBLEM.data, x, *NOISE, part=some)
        assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)


def test_training_rows_have_weights_of_their_own(case):
    posterior, rows = posterior_of(case, 45, 10), PROBLEM.inputs
    queries = Queries(rows.x, rows.Z, PROBLEM.Z, own=True)
    found = posterior.moments(queries, MomentRequest(True, along=[rows.Z]), session_of(2))
    for i in (0, 13, 44):
        mean, cov = oracle.weights_of_terms(
            case.of_oracle, *PROBLEM.data, PROBLEM.X[i], *NOISE, own=i
        )
        assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        assert_allclose(found.along[0][i], PROBLEM.Z[i] @ cov @ PROBLEM.Z[i], rtol=0, atol=1e-8)


def test_rows_are_left_out_as_by_the_oracle(case):
    found = posterior_of(case, 45, 10).leave_one_out(session_of(2))
    wanted = oracle.leave_one_out_of_terms(case.of_oracle, *PROBLEM.data, *NOISE)
    assert_allclose(found, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("k", "m"), [(1, 0), (9, 6), (20, 0), (0, 12)])
def test_variances_are_never_below_exact(case, k, m):
    queries, session = queries_of(), session_of(2)
    request = MomentRequest(variance=True, along=[queries.Z])
    found = posterior_of(case, k, m).moments(queries, request, session)
    solver = ExactSolver(45, np.float64, session)
    exact = solver.condition(MemoryRows(PROBLEM.inputs), case.hyperparameters(PROBLEM))
    wanted = exact.moments(queries, request, session)
    assert (found.variance >= wanted.variance * (1.0 - 1e-9)).all()
    assert (found.along[0] >= wanted.along[0] * (1.0 - 1e-9)).all()


def ordered(case, k, u):
    """Return all rows of Vecchia's likelihood, each predicted from u shared rows and k others."""
    session = session_of(2)
    search = NeighborSearch(PROBLEM.inputs, case.hyperparameters(PROBLEM))
    return OrderedRows.of(search, PROBLEM.inputs, np.arange(u), k, 1000, 0, session), session


def test_all_rows_before_a_row_give_the_exact_likelihood(case):
    rows, session = ordered(case, 45, 6)
    found = rows.evaluate(case.hyperparameters(PROBLEM), session, information=True)
    C = oracle.covariance_of_terms(case.of_oracle, PROBLEM.X, PROBLEM.Z, *NOISE)
    assert_allclose(found.value, oracle.log_density(PROBLEM.y, C), rtol=1e-10)
    t = found.gradient.size
    assert found.information.shape == (t, t)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_gradients_are_those_of_differences(case, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(WeightPrior, "pack", lambda prior, rows: None)
    hyperparameters = case.hyperparameters(PROBLEM)
    rows, session = ordered(case, 7, 5)
    found, theta = rows.evaluate(hyperparameters, session), hyperparameters.theta
    for t, move in enumerate(STEP * np.eye(theta.size)):
        above, below = (
            rows.evaluate(hyperparameters.with_theta(theta + s * move), session, gradient=False)
            for s in (1, -1)
        )
        slope = (above.value - below.value) / (2 * STEP)
        assert_allclose(found.gradient[t], slope, rtol=1e-6, atol=1e-6, err_msg=str(t))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_rows_near_a_query_have_the_most_correlated_weights(is_compiled, monkeypatch):
    """With several kernels, rows are compared by the covariance of the weights that vary."""
    case, session = CASES["two kernels"], session_of(2)
    if not is_compiled:
        monkeypatch.setattr(WeightPrior, "pack", lambda prior, rows: None)
    search = NeighborSearch(PROBLEM.inputs, case.hyperparameters(PROBLEM))
    some = PROBLEM.inputs[:6]
    none = np.empty(0, int)
    near = search.nearest(some, 9, Eligible.without(45, none, 6), session)
    closeness = sum(
        term.weight_variances.sum() * term.kernel(some.x, PROBLEM.X)
        for term in case.terms
        if term.part != "constant"
    )
    assert (near.rows == np.argsort(-closeness, axis=1, kind="stable")[:, :9]).all()


def test_the_metric_is_that_of_the_only_kernel_that_varies():
    shared = NeighborSearch(PROBLEM.inputs, PROBLEM.params)
    terms = CASES["relevance"].hyperparameters(PROBLEM)
    alone = NeighborSearch(PROBLEM.inputs, terms)
    none, session = np.empty(0, int), session_of()
    given = PROBLEM.inputs[:6], 9, Eligible.without(45, none, 6), session
    assert (shared.nearest(*given).rows == alone.nearest(*given).rows).all()


@pytest.fixture(scope="module")
def semi():
    """Return a model of a feature that varies, a constant one, and one without effect."""
    random = np.random.RandomState(0)
    X, Z = random.uniform(-2, 2, (300, 2)), random.standard_normal((300, 3))
    y = np.sin(2 * X[:, 0]) * Z[:, 0] + 0.7 * Z[:, 1] + 0.2 * random.standard_normal(300)
    given = {"kernel": "rbf", "ard": False, "fit_intercept": False, "random_state": None}
    model = GPXRegressor(solver="neighbors", weights="semi", n_neighbors=60, n_shared=40, **given)
    return model.fit(X, y, Z), X, y, Z


def test_vecchia_s_likelihood_holds_the_variances_of_constant_weights(semi, monkeypatch):
    """A few hundred neighbours do not tell small constant weights from zero; a subset does."""
    model, *arrays = semi
    monkeypatch.setattr(planning, "SUBSET_ROWS", 150)
    found = []

    def spied(*given):
        found.append(exact_subset_optimum(*given))
        return found[-1]

    monkeypatch.setattr(neighbors_solver, "exact_subset_optimum", spied)
    fitted = GPXRegressor(**model.get_params()).fit(*arrays)
    assert len(found) == 1
    (before,) = (one.hyperparameters.weight_prior.terms[1] for one in found)
    prior = fitted.posterior_.hyperparameters.weight_prior
    # The constant part has taken over the small variance of the part that varies.
    moved = prior.terms[1].variances[1] - before.variances[1]
    assert_allclose(moved, found[0].hyperparameters.weight_prior.terms[0].variances[1], rtol=1e-9)
    assert abs(fitted.theta_[1] - found[0].hyperparameters.theta[1]) > 1e-6


def test_a_fit_finds_what_the_weights_are(semi):
    model, X, _, Z = semi
    assert list(model.weight_table_["decision"]) == ["varying", "constant", "zero"]
    found = model.explain(X[:20], Z[:20])
    assert_allclose(found.weights, found.constant + found.varying, atol=1e-12)
    assert np.abs(found.constant[:, 1] - 0.7).max() < 0.05
    assert not found.weights[:, 2].any()
    assert np.isfinite(model.leave_one_out()[0]).all()


def test_rows_are_added_to_a_model_with_terms(semi):
    model, X, y, Z = semi
    more = copy.deepcopy(model).partial_fit(X[:5] + 0.01, y[:5], Z[:5])
    assert more.posterior_.n_rows == 305
    assert more.posterior_.summed.size == 260
    assert more.posterior_.coefficients.shape == (260, 2)
    assert (more.theta_ == model.theta_).all()
    found, anew = (one.explain(X[:9], Z[:9]) for one in (more, pickle.loads(pickle.dumps(more))))
    assert np.abs(found.weights - model.explain(X[:9], Z[:9]).weights).max() > 1e-4
    assert_allclose(found.weights, anew.weights, rtol=0, atol=1e-10)
    assert_allclose(found.weights_std, anew.weights_std, rtol=1e-9)


@pytest.mark.parametrize("cut", [100, 300])
def test_rows_in_files_give_the_answers_of_memory(semi, tmp_path, cut, monkeypatch):
    monkeypatch.setattr(row_files, "FILE_CHUNK_ROWS", cut)
    memory, *arrays = semi
    maps = []
    for name, A in zip("XyZ", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", A)
        maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    files = GPXRegressor(**memory.get_params()).fit(*maps)
    assert not files.posterior_.rows.in_memory
    assert list(files.weight_table_["decision"]) == ["varying", "constant", "zero"]
    files.save(tmp_path / "model.gpx")
    X, _, Z = arrays
    wanted = memory.explain(X[:20], Z[:20])
    for model in (files, load(tmp_path / "model.gpx")):
        found = model.explain(X[:20], Z[:20])
        for name in ("weights", "weights_std", "constant", "constant_std", "prediction_std"):
            assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-9)
    assert_allclose(files.leave_one_out(), memory.leave_one_out(), rtol=0, atol=1e-9)


def test_a_constant_column_of_rows_in_files_is_noted(tmp_path):
    X, y, _ = PROBLEM.data
    Z = np.ones((45, 2))
    Z[:, 1] = X[:, 0]
    np.savez(tmp_path / "rows.npz", X=X, y=y, Z=Z)
    given = {"kernel": "rbf", "fit_intercept": False, "random_state": 0}
    model = GPXRegressor(solver="neighbors", weights="semi", **given).fit(str(tmp_path))
    assert any("'x0' is constant" in note for note in model.fit_report_.notes)


# weighted sums of y, from which constant weights are known

FEW = {"neighbors": 6, "shared": 5}
SUMMED = np.setdiff1d(np.arange(45), np.arange(0, 15, 3))


def with_sums(case):
    """Return a posterior of few rows and of sums over all that are not shared."""
    return replace(posterior_of(case, **FEW), summed=SUMMED)


@pytest.fixture(params=["semi", "constant", "two kernels", "own curves", "a sum of kernels"])
def constant_case(request):
    return CASES[request.param]


def observed(posterior, session, near, without=None):
    """Return the matrix whose products with y are what one query is conditioned on."""
    known = posterior.shared_rows(session)
    sums = np.zeros((45, known.sums.count))
    sums[known.sums.rows] = known.sums.coefficients
    A = np.hstack([np.eye(45)[:, posterior.shared], sums, np.eye(45)[:, near]])
    if without is not None:
        A[without] = 0.0
    return A


def test_sums_are_conditioned_on_exactly(constant_case):
    """The oracle conditions on products with y, whose covariances are written out."""
    case, session, queries = constant_case, session_of(2), queries_of()
    posterior = with_sums(case)
    request = MomentRequest(variance=True, covariance=True, along=[queries.Z])
    found = posterior.moments(queries, request, session)
    near = posterior.query_rows(queries, session).near
    C = oracle.covariance_of_terms(case.of_oracle, PROBLEM.X, PROBLEM.Z, *NOISE)
    for i, x in enumerate(PROBLEM.X_query):
        A = observed(posterior, session, near.rows[i])
        B, prior = oracle.prior_of_terms(case.of_oracle, PROBLEM.X, PROBLEM.Z, x, NOISE[0])
        gain = np.linalg.solve(A.T @ C @ A, A.T @ B)
        cov = prior - B.T @ A @ gain
        assert_allclose(found.mean[i], gain.T @ A.T @ PROBLEM.y, rtol=0, atol=1e-8)
        assert_allclose(found.covariance[i], cov, rtol=0, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        z = PROBLEM.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=0, atol=1e-8)


def test_training_rows_are_in_sums_themselves(constant_case):
    case, session, rows = constant_case, session_of(2), PROBLEM.inputs
    posterior, some = with_sums(case), np.arange(45)
    found = posterior.moments(
        Queries(rows.x, rows.Z, PROBLEM.Z, own=True), MomentRequest(variance=True), session
    )
    query = posterior.query_rows(rows, session, some)
    C = oracle.covariance_of_terms(case.of_oracle, PROBLEM.X, PROBLEM.Z, *NOISE)
    residuals, deviations = posterior.leave_one_out(session)
    for i in (0, 3, 13, 44):
        near = query.near.rows[i, : query.near.counts[i]]
        A = observed(posterior, session, near)
        given = PROBLEM.X, PROBLEM.Z, PROBLEM.X[i], NOISE[0]
        B, prior = oracle.prior_of_terms(case.of_oracle, *given, own=i)
        gain = np.linalg.solve(A.T @ C @ A, A.T @ B)
        assert_allclose(found.mean[i], gain.T @ A.T @ PROBLEM.y, rtol=0, atol=1e-8)
        variance = (prior - B.T @ A @ gain).diagonal()
        assert_allclose(found.variance[i], variance, rtol=0, atol=1e-8)
        # A row that is left out is in no sum.
        A = observed(posterior, session, near, without=i)
        A = A[:, A.any(axis=0)]
        h = np.linalg.solve(A.T @ C @ A, A.T @ C[:, i])
        assert_allclose(residuals[i], PROBLEM.y[i] - h @ A.T @ PROBLEM.y, rtol=0, atol=1e-8)
        assert_allclose(deviations[i] ** 2, C[i, i] - h @ A.T @ C[:, i], rtol=0, atol=1e-8)


def test_constant_weights_are_nearly_as_certain_as_with_all_rows(constant_case):
    case, session, queries = constant_case, session_of(2), queries_of()
    request = MomentRequest(True, surface=True, part="constant")
    few, all_rows = posterior_of(case, **FEW), posterior_of(case, 45, 0)
    wanted = all_rows.moments(queries, request, session).variance[:, CONSTANT > 0]
    without = few.moments(queries, request, session).variance[:, CONSTANT > 0]
    found = with_sums(case).moments(queries, request, session).variance[:, CONSTANT > 0]
    assert (found >= wanted * (1.0 - 1e-9)).all()
    lost = (found - wanted).sum() / (without - wanted).sum()
    assert lost < 0.15


def test_length_scales_of_their_own_are_fitted_after_a_comparison_of_kernels():
    """The comparison was one of other parameters, so its information is not that of the fit."""
    random = np.random.RandomState(0)
    X = random.uniform(-2, 2, (120, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * random.standard_normal(120)
    given = {"n_neighbors": 30, "n_shared": 20, "random_state": 0}
    model = GPXRegressor("rbf", solver="neighbors", weights="multiscale", **given).fit(X, y)
    assert model.score(X, y) > 0.9


def test_a_fit_of_several_kernels_keeps_within_its_plan():
    random = np.random.RandomState(0)
    X, y = random.uniform(-2, 2, (900, 4)), random.standard_normal(900)
    given = {"solver": "neighbors", "n_neighbors": 40, "n_shared": 30, "optimizer": None}
    model = GPXRegressor("rbf", weights="additive", fit_intercept=False, n_jobs=1, **given)
    planned = model.plan(X, y).bytes_needed
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.posterior_.summed.size == 870
    assert peak < planned
