"""Weights with priors of their own in the basis, beside its functions written out."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import oracle
from gpx_scale import GPXRegressor, kernels, load
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import Queries
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import InputError, SolverUnavailable
from gpx_scale.kernels.constant import Constant
from gpx_scale.model.term import Term
from gpx_scale.solvers.basis import remainder, sufficient_statistics
from gpx_scale.solvers.basis.solver import BasisSettings, BasisSolver
from gpx_scale.solvers.basis.weight_functions import FunctionPair
from gpx_scale.solvers.contract import Plan
from gpx_scale.solvers.posterior import MomentRequest
from problems import make_problem, session_of
from term_cases import CONSTANT, FIRST, OTHER, VARYING, Case

SHORT, LONG = kernels.RBF(1.0, 1.5), kernels.RBF(1.0, 40.0)
ROUGH = kernels.Matern52(1.0, 3.0)
CASES = {
    "relevance": Case((Term(SHORT, VARYING),)),
    "semi": Case((Term(ROUGH, VARYING), Term(Constant(), CONSTANT))),
    "two kernels": Case(
        (Term(SHORT, FIRST, name="z0"), Term(LONG, OTHER, name="z1"), Term(Constant(), CONSTANT))
    ),
    "rough and smooth": Case(
        (Term(ROUGH, FIRST, name="z0"), Term(LONG, OTHER, name="z1"), Term(Constant(), CONSTANT))
    ),
    "tied": Case((Term(SHORT, np.array([0.5, 0.5, 1.2, 0.5]), np.array([3, 3, 0, 3])),)),
    "a sum of kernels": Case((Term(SHORT + LONG, VARYING), Term(Constant(), CONSTANT))),
    "constant": Case((Term(SHORT, 0.0 * VARYING), Term(Constant(), CONSTANT))),
    "nothing": Case((Term(SHORT, 0.0 * VARYING), Term(Constant(), 0.0 * CONSTANT))),
}
FAST = {"solver": "basis", "kernel": "rbf", "ard": False, "fit_intercept": False}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(autouse=True)
def few_further_functions(monkeypatch):
    monkeypatch.setattr(remainder, "MOST_PRODUCTS", 1e7)
    monkeypatch.setattr(sufficient_statistics, "INTERPOLATION_ERROR_NATS", 1e-11)


def problem_of(p=1):
    return make_problem(n=45, p=p)


def solver_of(problem, count=None):
    n, d = problem.Z.shape
    session = session_of(2)
    plan = Plan(n, problem.X.shape[1], d, "basis", np.float64, 2, 0, session.memory_limit)
    return BasisSolver(plan, session, BasisSettings(count))


def prepared(problem, case, count=None):
    """Return a solver with functions for a case, its rows, and the hyperparameters."""
    solver, rows = solver_of(problem, count), MemoryRows(problem.inputs)
    hyperparameters = case.hyperparameters(problem)
    solver._prepare(rows, hyperparameters)
    return solver, rows, hyperparameters


def written_out(functions, prior, x, Z):
    """Return s^1/2 phi(x) of every column, times the feature of its weight if Z is given."""
    found = functions.at(x) * np.sqrt(functions.densities(prior)[0])
    return found if Z is None else found * Z[:, functions.owners]


@pytest.mark.parametrize("p", [1, 2])
def test_the_evidence_is_that_of_the_functions_written_out(case, p):
    problem = problem_of(p)
    solver, rows, hyperparameters = prepared(problem, case, count=8 if p == 2 else None)
    found = solver.evaluate(rows, hyperparameters, gradient=False).value
    space = solver._space
    W = written_out(space.functions, hyperparameters.weight_prior, problem.X, problem.Z)
    rho = space.ratio(hyperparameters).value
    D = problem.sigma_y**2 * (1.0 + rho * np.square(problem.Z).sum(axis=1))
    assert_allclose(found, oracle.log_density(problem.y, W @ W.T + np.diag(D)), rtol=1e-8)


@pytest.mark.parametrize("name", ["relevance", "two kernels", "a sum of kernels", "constant"])
def test_smooth_kernels_are_those_of_the_oracle(name):
    problem, case = problem_of(), CASES[name]
    solver, rows, hyperparameters = prepared(problem, case)
    found = solver.evaluate(rows, hyperparameters, gradient=False).value
    C = oracle.covariance_of_terms(case.of_oracle, problem.X, problem.Z, *problem.noise)
    assert_allclose(found, oracle.log_density(problem.y, C), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_the_gradient_is_that_of_differences(case, p):
    solver, rows, hyperparameters = prepared(problem_of(p), case, count=7)
    theta = hyperparameters.theta
    gradient = solver.evaluate(rows, hyperparameters).gradient
    for t, move in enumerate(1e-5 * np.eye(theta.size)):
        above, below = (
            solver.evaluate(rows, hyperparameters.with_theta(theta + s * move), gradient=False)
            for s in (1, -1)
        )
        slope = (above.value - below.value) / 2e-5
        assert_allclose(gradient[t], slope, rtol=1e-5, atol=1e-5, err_msg=str(t))


@pytest.mark.filterwarnings("ignore:The functions of the basis")
@pytest.mark.parametrize("p", [1, 2])
def test_moments_are_those_of_the_errors_of_the_mean(case, p):
    """The mean is an estimate by functions whose noise is averaged; its error is written out."""
    problem = problem_of(p)
    solver, rows, hyperparameters = prepared(problem, case, count=9)
    prior, sigma_y = hyperparameters.weight_prior, problem.sigma_y
    posterior = solver.condition(rows, hyperparameters)
    space, session = posterior.statistics, session_of()
    squared = np.square(problem.Z).sum(axis=1)
    D = sigma_y**2 * (1.0 + space.ratio(hyperparameters).value * squared)
    D_0 = sigma_y**2 + problem.sigma_w**2 * squared
    W = written_out(space.functions, prior, problem.X, problem.Z)
    estimate = np.linalg.solve(np.eye(W.shape[1]) + W.T @ (W / D[:, None]), W.T / D)
    more = None if posterior.remainder is None else posterior.remainder.outer
    W_R = np.zeros((45, 0)) if more is None else written_out(more, prior, problem.X, problem.Z)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    found = posterior.moments(queries, MomentRequest(True, True, along=[queries.Z]), session)
    joint = posterior.joint_covariance(queries, session)
    for i in range(len(problem.X_query)):
        x, d = problem.X_query[i : i + 1], problem.Z.shape[1]
        select = (np.arange(d)[:, None] == space.functions.owners) * written_out(
            space.functions, prior, x, None
        )
        far = np.zeros((d, 0))
        if more is not None:
            far = (np.arange(d)[:, None] == more.owners) * written_out(more, prior, x, None)
        mean = select @ estimate @ problem.y
        by_v = select - select @ estimate @ W
        by_far = far - select @ estimate @ W_R
        by_noise = select @ estimate * np.sqrt(D if more is None else D_0)
        known = np.square(select).sum(axis=1) + np.square(far).sum(axis=1)
        tail = np.maximum(prior.variance(x)[0] - known, 0.0) + problem.sigma_w**2
        cov = by_v @ by_v.T + by_far @ by_far.T + by_noise @ by_noise.T + np.diag(tail)
        assert_allclose(found.mean[i], mean, rtol=1e-7, atol=1e-8)
        assert_allclose(found.covariance[i], cov, rtol=1e-7, atol=1e-8)
        assert_allclose(found.variance[i], cov.diagonal(), rtol=1e-7, atol=1e-8)
        z = problem.Z_query[i]
        assert_allclose(found.along[0][i], z @ cov @ z, rtol=1e-7, atol=1e-8)
        assert_allclose(joint[i, i], z @ cov @ z + sigma_y**2, rtol=1e-7)
    parts = [
        posterior.moments(queries, MomentRequest(part=part), session).mean
        for part in ("constant", "own", "varying")
    ]
    assert_allclose(sum(parts), found.mean, atol=1e-10)


def test_parts_are_those_of_the_oracle():
    problem, case = problem_of(), CASES["two kernels"]
    solver, rows, hyperparameters = prepared(problem, case)
    posterior = solver.condition(rows, hyperparameters)
    queries = Queries(problem.X_query, DenseFeatures(problem.Z_query), problem.Z_query)
    for part in ("constant", "own", "varying"):
        some = [t for t, term in enumerate(case.terms) if term.part == part]
        request = MomentRequest(True, surface=True, part=part)
        found = posterior.moments(queries, request, session_of())
        for i, x in enumerate(problem.X_query):
            mean, cov = oracle.weights_of_terms(
                case.of_oracle, *problem.data, x, *problem.noise, part=some
            )
            assert_allclose(found.mean[i], mean, rtol=1e-5, atol=1e-5)
            assert_allclose(found.variance[i], cov.diagonal(), rtol=1e-4, atol=1e-5)


def test_draws_have_the_moments_of_the_posterior():
    problem, case = problem_of(), CASES["rough and smooth"]
    solver, rows, hyperparameters = prepared(problem, case, count=9)
    posterior = solver.condition(rows, hyperparameters)
    queries = Queries(problem.X_query[:2], DenseFeatures(problem.Z_query[:2]), None)
    count, session = 4000, session_of()
    found = posterior.moments(queries, MomentRequest(True), session)
    draws = posterior.draw(problem.X_query[:2], count, np.random.RandomState(0), session)
    scale = np.sqrt(found.variance)
    assert (np.abs(draws.mean(axis=2) - found.mean) <= 5.0 * scale / np.sqrt(count)).all()
    assert_allclose(draws.std(axis=2), scale, rtol=5.0 / np.sqrt(2 * count))


def test_functions_of_two_boxes_have_products_on_one_lattice():
    problem = problem_of(2)
    solver, _, _ = prepared(problem, CASES["two kernels"])
    a, b = solver._space.functions.sets
    assert (a.stride > 1).all()
    assert (b.stride == 1).all()
    pair, x = FunctionPair(a, b), problem.X[:7]
    tables = pair.cosines(x)
    cosines = np.einsum("ia,ib->iab", *tables).reshape(7, -1)
    for i in range(7):
        product = np.outer(a.functions(x[i : i + 1]), b.functions(x[i : i + 1]))
        assert_allclose(pair.gram(cosines[i]), product, atol=1e-10)


def test_beyond_the_boxes_a_weight_is_its_constant_part():
    problem = problem_of()
    solver, rows, hyperparameters = prepared(problem, CASES["two kernels"])
    posterior = solver.condition(rows, hyperparameters)
    far = Queries(np.array([[1e4]]), DenseFeatures(problem.Z_query[:1]), None)
    weights = posterior.moments(far, MomentRequest(True), session_of())
    constant = posterior.moments(far, MomentRequest(part="constant"), session_of())
    assert_array_equal(weights.mean, constant.mean)
    assert weights.mean[0, 1] != 0.0
    assert weights.variance[0, 0] == pytest.approx(0.8 + problem.sigma_w**2)


def multiscale_rows(n=220):
    random = np.random.RandomState(1)
    X, Z = random.uniform(-1.0, 1.0, (n, 1)), random.standard_normal((n, 3))
    weights = np.column_stack([np.ones(n), X[:, 0], np.sin(9.0 * X[:, 0])])
    return X, (weights * Z).sum(axis=1) + 0.2 * random.standard_normal(n), Z, weights


@pytest.fixture(scope="module")
def fitted():
    X, y, Z, _ = multiscale_rows()
    return GPXRegressor(weights="multiscale", random_state=0, **FAST).fit(X, y, Z)


def test_weights_get_length_scales_of_their_own(fitted):
    X, _, Z, weights = multiscale_rows()
    rows = fitted.fit_report_.weight_table
    assert [row.decision for row in rows] == ["constant", "varying", "varying"]
    assert rows[1].length_scale > 2.0 * rows[2].length_scale
    found = fitted.explain(X, Z, std="surface")
    assert np.sqrt(np.square(found.weights - weights).mean()) < 0.06
    assert_allclose(found.constant + found.varying, found.weights, atol=1e-9)
    assert (found.varying[:, 0] == 0.0).all()


def test_a_file_has_the_same_model(fitted, tmp_path):
    X, _, Z, _ = multiscale_rows()
    fitted.save(tmp_path / "model.gpx")
    again = load(tmp_path / "model.gpx")
    for name in ("weights", "weights_std", "constant_std"):
        assert_array_equal(getattr(again.explain(X, Z), name), getattr(fitted.explain(X, Z), name))


def claims(**claimed):
    """Return a change of a posterior whose first box claims other values."""

    def change(posterior):
        space = posterior.statistics
        first, *others = space.functions.sets
        box = replace(first.box, **claimed)
        sets = (replace(first, box=box), *others)
        functions = replace(space.functions, sets=sets)
        return replace(posterior, statistics=replace(space, functions=functions))

    return change


@pytest.mark.parametrize(
    "change",
    [
        claims(counts=np.array([90_000])),
        claims(counts=np.array([2**60])),
        claims(centre=np.array([0.5])),
        claims(half=np.array([np.inf])),
        lambda posterior: replace(posterior, statistics=None),
    ],
)
def test_damaged_models_are_refused_before_functions_are_listed(fitted, change):
    posterior = fitted.posterior_
    posterior.must_fit(fitted._plan, fitted._preprocessor)
    with pytest.raises(ValueError, match=r"its |it has |the "):
        change(posterior).must_fit(fitted._plan, fitted._preprocessor)


def test_streams_give_the_same_model_and_rows_can_be_added():
    X, y, Z, _ = multiscale_rows(120)
    kernel = kernels.Matern52(1.0, 0.5)
    given = {"weights": "semi", "prune": False, "optimizer": None, **FAST, "kernel": kernel}
    given |= {"standardize": False, "n_basis": 12}
    whole = GPXRegressor(**given).fit(X, y, Z)
    streamed = GPXRegressor(**given).fit(
        lambda: iter([(X[:50], y[:50], Z[:50]), (X[50:], y[50:], Z[50:])])
    )
    ours, theirs = whole.explain(X, Z), streamed.explain(X, Z)
    assert_allclose(theirs.weights, ours.weights, atol=1e-8)
    assert_allclose(theirs.weights_std, ours.weights_std, rtol=1e-6)
    first = GPXRegressor(**given).fit(X, y, Z)
    more = np.clip(X, -0.9, 0.9)
    first.partial_fit(more[:20], y[:20], Z[:20])
    posterior = first.posterior_
    assert posterior.n_rows == 140
    W = posterior.statistics.functions
    everything = np.vstack([X, more[:20]]), np.vstack([Z, Z[:20]]), np.concatenate([y, y[:20]])
    shift = first._preprocessor.scaling.x_shift
    columns = written_out(
        W, posterior.hyperparameters.weight_prior, everything[0] - shift, everything[1]
    )
    D = posterior.hyperparameters.sigma_y**2 * (
        1.0 + posterior.rho * np.square(everything[1]).sum(axis=1)
    )
    B = np.eye(columns.shape[1]) + columns.T @ (columns / D[:, None])
    v = np.linalg.solve(B, columns.T @ (everything[2] / D))
    assert_allclose(posterior.coefficients, v, rtol=1e-6, atol=1e-8)


def test_curves_of_single_columns_are_refused():
    X, y, _, _ = multiscale_rows(60)
    X = np.column_stack([X, X**2])
    model = GPXRegressor(solver="basis", weights="additive")
    with pytest.raises(SolverUnavailable, match=r"solver='exact'.*weights='semi'"):
        model.fit(X, y)
    with pytest.raises(SolverUnavailable, match="additive"):
        model.plan(X, y)


def test_rows_beyond_a_box_are_refused(fitted):
    X, y, Z, _ = multiscale_rows()
    with pytest.raises(InputError, match="beyond the box"):
        fitted.partial_fit(X + 50.0, y, Z)


def test_long_length_scales_end_where_boxes_have_no_common_lattice():
    problem = problem_of()
    solver, rows, _ = prepared(problem, CASES["two kernels"])
    terms = (
        Term(SHORT, FIRST, name="z0"),
        Term(kernels.RBF(1.0, 1e8), OTHER, name="z1"),
        Term(Constant(), CONSTANT),
    )
    hyperparameters = Case(terms).hyperparameters(problem)
    limited = solver._within_reach(SimpleNamespace(rows=rows), hyperparameters)
    assert limited.weight_prior.terms[0].kernel == SHORT
    solver._prepare(rows, limited)
    assert solver._space.functions.sets[0].stride.max() <= 5
    assert 40.0 < limited.weight_prior.terms[1].kernel.theta2 < 1e4
