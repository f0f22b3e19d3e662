"""A sparse Z whose weights have priors of their own, beside the oracle and the same rows dense."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

import oracle
from gpx_scale import GPXRegressor, load
from gpx_scale.data.features import SparseFeatures
from gpx_scale.data.inputs import Queries, TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import InputError, SolverUnavailable
from gpx_scale.linalg.covariance_forms import covariances
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.solvers import neighborhood
from gpx_scale.solvers.cg import solver as cg
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.posterior import MomentRequest
from problems import cg_solver, make_problem, session_of
from term_cases import CASES

NAMES = ("relevance", "constant", "nothing", "tied", "a sum of kernels", "semi")
# Kernels with a length scale for each column of X have no pairs.
OF_PAIRS = NAMES[:4]
SOLVERS = [("exact", name) for name in NAMES] + [("pairs", name) for name in OF_PAIRS]
SOLVERS += [("recomputed", "semi")]
PARTS = {"varying": (0,), "constant": (1,)}


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    monkeypatch.setattr(cg, "ALPHA_TOLERANCE_NATS", 1e-18)
    monkeypatch.setattr(cg, "CONSTANT_ENERGY_SHARE", 1e-18)
    monkeypatch.setattr(neighborhood, "FLOAT32_LEAST_NOISE_SHARE", np.inf)


@pytest.fixture(scope="module")
def problem():
    return make_problem(n=70, share=0.3)


@pytest.fixture(scope="module")
def data(problem):
    return TrainingRows(problem.X, SparseFeatures.of(sp.csr_array(problem.Z)), problem.y)


def both_covariances(data, problem, name, dtype=np.float64):
    """Return the covariance on pairs and the one in tiles, of the same rows."""
    hyperparameters, session = CASES[name].hyperparameters(problem), session_of(2)
    pairs = Pairs.of(data, hyperparameters.kernel, session)
    by_pairs = covariances(data, hyperparameters, session, "pairs", dtype, pairs)[0]
    dense = problem.inputs, hyperparameters, session, "recomputed", np.float64, None
    return by_pairs, covariances(*dense)[1]


def solver_of(kind, data, problem):
    if kind == "exact":
        return ExactSolver(len(data), np.float64, session_of())
    given = {"form": kind, "rank": 10, "dtype": np.float64, "shared": 10}
    return cg_solver(data, session_of(), 0, **given)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_products_and_derivatives_on_pairs_are_those_of_tiles(name, data, problem):
    by_pairs, dense = both_covariances(data, problem, name)
    U, V = np.random.RandomState(0).randn(2, len(data), 18)
    assert_allclose(by_pairs.matmul(V), dense.matmul(V), rtol=0, atol=1e-11)
    assert_allclose(by_pairs.contract(U, V), dense.contract(U, V), rtol=1e-11, atol=1e-10)
    assert_allclose(by_pairs.tangents(V[:, 0]), dense.tangents(V[:, 0]), rtol=0, atol=1e-11)


def test_products_in_float32_are_those_of_float64_rounded(data, problem):
    single, _ = both_covariances(data, problem, "tied", np.float32)
    double, _ = both_covariances(data, problem, "tied")
    V = np.random.RandomState(0).randn(len(data), 3)
    assert single.dtype == np.float32
    assert_allclose(single.matmul(V), double.matmul(V), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_derivatives_on_pairs_are_finite_differences(name, data, problem):
    hyperparameters = CASES[name].hyperparameters(problem)
    u, v = np.random.RandomState(1).randn(2, len(data), 1)
    session = session_of()
    pairs = Pairs.of(data, hyperparameters.kernel, session)

    def at(theta):
        moved = hyperparameters.with_theta(theta)
        return covariances(data, moved, session, "pairs", np.float64, pairs)[1]

    theta = hyperparameters.theta
    found = at(theta).contract(u, v)
    for k, step in enumerate(1e-5 * np.eye(theta.size)):
        up, down = (float(u[:, 0] @ at(theta + s).matmul(v)[:, 0]) for s in (step, -step))
        assert found[k] == pytest.approx((up - down) / 2e-5, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("kind", "name"), SOLVERS)
def test_moments_are_those_of_the_oracle(kind, name, data, problem):
    case = CASES[name]
    solver, session = solver_of(kind, data, problem), session_of()
    posterior = solver.condition(MemoryRows(data), case.hyperparameters(problem))
    raw = sp.csr_array(problem.Z_query)
    queries = Queries(problem.X_query, SparseFeatures.of(raw), raw)
    every = MomentRequest(True, all_features=True, along=[queries.Z])
    whole = posterior.moments(queries, every, session)
    entries = posterior.moments(queries, MomentRequest(True), session)
    stored = raw.nonzero()
    assert_allclose(entries.mean, whole.mean[stored], rtol=0, atol=1e-13)
    assert_allclose(entries.variance, whole.variance[stored], rtol=0, atol=1e-13)
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.weights_of_terms(case.of_oracle, *problem.data, x, *problem.noise)
        assert_allclose(whole.mean[i], mean, rtol=0, atol=1e-8)
        assert_allclose(whole.variance[i], cov.diagonal(), rtol=0, atol=1e-8)
        z = problem.Z_query[i]
        assert_allclose(whole.along[0][i], z @ cov @ z, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["exact", "pairs"])
def test_parts_are_those_of_the_oracle(kind, data, problem):
    case = CASES["semi"]
    varying, constant = case.terms
    kernel = CASES["relevance"].terms[0].kernel
    case = replace(case, terms=(replace(varying, kernel=kernel), constant))
    posterior = solver_of(kind, data, problem).condition(
        MemoryRows(data), case.hyperparameters(problem)
    )
    raw = sp.csr_array(problem.Z_query)
    queries = Queries(problem.X_query, SparseFeatures.of(raw), raw)
    for part, terms in PARTS.items():
        request = MomentRequest(True, all_features=True, surface=True, part=part)
        found = posterior.moments(queries, request, session_of())
        for i, x in enumerate(problem.X_query):
            arguments = case.of_oracle, *problem.data, x, *problem.noise
            mean, cov = oracle.weights_of_terms(*arguments, part=terms)
            assert_allclose(found.mean[i], mean, rtol=0, atol=1e-8)
            assert_allclose(found.variance[i], cov.diagonal(), rtol=0, atol=1e-8)


def test_the_gradient_of_the_exact_solver_is_that_of_dense_rows(data, problem):
    given = CASES["semi"].hyperparameters(problem)
    solver = ExactSolver(len(data), np.float64, session_of())
    sparse = solver.evaluate(MemoryRows(data), given, information=True)
    dense = solver.evaluate(MemoryRows(problem.inputs), given, information=True)
    assert_allclose(sparse.value, dense.value, rtol=1e-12)
    assert_allclose(sparse.gradient, dense.gradient, rtol=1e-9, atol=1e-9)
    assert_allclose(sparse.information, dense.information, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_conjugate_gradients_is_near_the_exact_one(data, problem, monkeypatch):
    monkeypatch.setattr(cg, "PROBE_ENERGY_SHARE", 1e-16)
    monkeypatch.setattr(cg, "PROBES", 400)
    given, rows = CASES["tied"].hyperparameters(problem), MemoryRows(data)
    exact = ExactSolver(len(data), np.float64, session_of()).evaluate(rows, given, information=True)
    found = solver_of("pairs", data, problem).evaluate(rows, given, information=True)
    off = 0.1 * np.abs(exact.gradient).max()
    assert abs(found.value - exact.value) <= 5.0 * found.standard_error
    assert_allclose(found.gradient, exact.gradient, rtol=0.1, atol=off)
    near = 0.02 * np.abs(exact.information).max()
    assert_allclose(found.information, exact.information, rtol=0.02, atol=near)


def sparse_rows(n=260, d=12, m=8, seed=0):
    """Return rows of which features 0 and 1 vary, 2 and 3 are constant, and others do nothing."""
    random = np.random.RandomState(seed)
    Z = np.where(random.rand(n + m, d) < 0.15, random.rand(n + m, d) + 0.5, 0.0)
    X = random.randn(n + m, 2)
    weights = np.zeros((n + m, d))
    weights[:, :2] = 2.0 * np.sin(1.5 * X)
    weights[:, 2:4] = 2.0
    y = (weights * Z).sum(axis=1) + 0.1 * random.randn(n + m)
    return X[:n], y[:n], Z[:n], X[n:], Z[n:]


GIVEN = {"kernel": "rbf", "random_state": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def fits():
    """Return rows, and fits of a sparse Z by cg and by exact, and of the same Z when dense."""
    X, y, Z, Xq, Zq = sparse_rows()
    forms = (("cg", sp.csr_array(Z)), ("exact", sp.csr_array(Z)), ("exact", Z))
    given = {"weights": "semi", "fit_intercept": False, "standardize": False, **GIVEN}
    models = [GPXRegressor(solver=name, **given).fit(X, y, A) for name, A in forms]
    return Xq, Zq, models


def test_a_sparse_fit_is_that_of_the_dense_rows(fits):
    Xq, Zq, (iterative, exact, dense) = fits
    assert "list takes" in str(iterative.fit_report_)
    wanted = dense.explain(Xq, Zq)
    stored = Zq != 0
    # Noisy gradients move hyperparameters a little, and parts more than the weights that they make.
    every = ("weights", "constant", "varying")
    for model, close, names in ((exact, 1e-6, every), (iterative, 0.02, every[:1])):
        assert model.weight_table_["decision"].tolist() == dense.weight_table_["decision"].tolist()
        for all_features in (False, True):
            found = model.explain(Xq, sp.csr_array(Zq), dense=all_features)
            for name in names:
                for kind in (name, f"{name}_std"):
                    one, other = getattr(found, kind), getattr(wanted, kind)
                    one = one if all_features else one.toarray()
                    assert_allclose(one[stored], other[stored], rtol=close, atol=close)
        predicted = model.predict(Xq, sp.csr_array(Zq), return_std=True)
        for one, other in zip(predicted, dense.predict(Xq, Zq, return_std=True), strict=True):
            assert_allclose(one, other, rtol=close, atol=close)


def test_parts_at_the_entries_add_up_to_the_weights(fits):
    Xq, Zq, (model, *_) = fits
    found = model.explain(Xq, sp.csr_array(Zq))
    assert sp.issparse(found.constant)
    assert found.constant.nnz == np.count_nonzero(Zq)
    assert_allclose((found.constant + found.varying - found.weights).toarray(), 0, atol=1e-12)


def test_training_rows_and_shares_are_those_of_the_dense_rows(fits):
    iterative, exact, dense = fits[2]
    wanted = dense.training_explanation()
    stored = wanted.data != 0
    for model, close in ((exact, 1e-6), (iterative, 0.05)):
        found = model.training_explanation()
        for name in ("weights", "weights_std"):
            one = getattr(found, name).toarray()[stored]
            assert_allclose(one, getattr(wanted, name)[stored], rtol=close, atol=close)
    found = exact.training_explanation()
    for name in ("constant", "varying", "constant_std", "varying_std"):
        one = getattr(found, name).toarray()[stored]
        assert_allclose(one, getattr(wanted, name)[stored], rtol=1e-6, atol=1e-6)
    shares = dense.training_explanation().part_shares()
    for one in (found, exact.training_explanation(dense=True)):
        assert one.part_shares() == pytest.approx(shares, abs=1e-6)


def test_a_loaded_model_explains_the_same(fits, tmp_path):
    Xq, Zq, (model, *_) = fits
    model.save(tmp_path / "model.gpx")
    again = load(tmp_path / "model.gpx")
    for name in ("weights_std", "constant_std", "varying_std"):
        one, other = (getattr(one.explain(Xq, sp.csr_array(Zq)), name) for one in (model, again))
        assert_allclose(one.toarray(), other.toarray(), rtol=1e-9)


def test_draws_have_the_means_of_the_weights(fits):
    Xq, Zq, (model, *_) = fits
    draws = model.sample_weights(Xq, sp.csr_array(Zq), n_samples=60, random_state=0)
    found = model.explain(Xq, sp.csr_array(Zq), dense=True)
    off = np.abs(draws.mean(axis=2) - found.weights)
    assert (off < 0.8 * found.weights_std + 1e-6).all()


@pytest.mark.parametrize("kind", ["multiscale", "additive"])
def test_other_priors_are_refused_for_a_sparse_z(kind):
    X, y, Z, *_ = sparse_rows(60)
    with pytest.raises(InputError, match="'semi', 'relevance' or 'shared', or a dense Z"):
        GPXRegressor(weights=kind, **GIVEN).fit(X, y, sp.csr_array(Z))


def test_too_many_variances_are_refused_and_groups_help(monkeypatch):
    monkeypatch.setattr("gpx_scale.fitting.weight_options.MAX_SPARSE_VARIANCES", 3)
    X, y, Z, *_ = sparse_rows(60)
    with pytest.raises(InputError, match=r"12 variances to estimate.*groups="):
        GPXRegressor(weights="relevance", **GIVEN).fit(X, y, sp.csr_array(Z))
    groups = {"few": [0, 1], "others": list(range(2, 12))}
    given = {"weights": "relevance", "groups": groups, "solver": "cg", **GIVEN}
    model = GPXRegressor(**given).fit(X, y, sp.csr_array(Z))
    assert model.weight_table_["feature"].tolist() == ["few", "others"]


def test_solvers_without_sparse_terms_refuse_them_and_name_those_with():
    X, y, Z, *_ = sparse_rows(60)
    for solver in ("inducing", "neighbors"):
        model = GPXRegressor(weights="semi", solver=solver, **GIVEN)
        for call in (model.fit, model.plan):
            with pytest.raises(SolverUnavailable, match=r"'exact', 'cg'.*weights='shared'"):
                call(X, y, sp.csr_array(Z))
