"""The contract that every solver keeps: one suite, over all that are in the registry.

A solver brings its arguments and tolerances by an entry of tests/solver_cases.py; what it promises
beyond the moments of its posterior is read from its capabilities.
"""

import pickle
import re
import tempfile
import tracemalloc
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import gpx_scale
import oracle
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import Queries
from gpx_scale.errors import InputError, MemoryLimitError, SolverUnavailable
from gpx_scale.solvers import registry
from gpx_scale.solvers.contract import Capability
from gpx_scale.solvers.posterior import MomentRequest
from problems import make_problem, session_of
from solver_cases import CASES, to_rounding

SMALL = make_problem(n=60, p=1, d=3, m=5, theta2=0.2)
LARGE = make_problem(n=1100, p=1, d=3, m=5, theta2=0.2)  # several tiles, and two blocks of rows
# Two pairs of rows in five share a feature, and each row shares one with some row of any feature.
SPARSE = make_problem(n=60, p=1, d=12, m=5, theta2=0.2, share=0.2)
QUERIES = SMALL.X_query, SMALL.Z_query
SAMPLES = 2000
TOO_LITTLE = 2**22  # bytes
MANY = 1500  # rows or queries that need far more than that


def of(solvers):
    """Return a parametrisation over solvers, by name."""
    return pytest.mark.parametrize("name", [solver.name for solver in solvers])


def able(capability):
    """Return a parametrisation over the solvers that have a capability."""
    return of(solver for solver in registry.SOLVERS if capability in solver.capabilities)


every_solver = of(registry.SOLVERS)


def case_of(name):
    """Return the cases of a solver, or fail with what is to be added."""
    if name not in CASES:
        pytest.fail(
            f"solver={name!r} has no case: add CASES[{name!r}] = Case(...) to "
            "tests/solver_cases.py, with arguments that make it exact, or nearly so, on 60 rows "
            "of one column, and the error of k that it then states (`kernel_error`)"
        )
    return CASES[name]


def fit(problem, name, arguments="arguments", Z=None, **more):
    """Return the solver's model of a problem, with those of its arguments."""
    given = {"random_state": 0, "n_jobs": 2, **getattr(case_of(name), arguments), **more}
    model = problem.model(solver=name, **given)
    return model.fit(problem.X, problem.y, problem.Z if Z is None else Z)


@cache
def fitted(name):
    """Return the solver's model of the small problem; tests do not change it."""
    return fit(SMALL, name)


def copy_of(model, **arguments):
    """Return a copy that tests may change."""
    return pickle.loads(pickle.dumps(model)).set_params(**arguments)


def allowed(name):
    """Return how far answers for the small problem may be from the oracle's."""
    return case_of(name).allowed(SMALL, fitted(name))


def answers(model, problem, sparse=False):
    """Return all moments of a model at a problem's queries, by name."""
    queries = problem.X_query, sp.csr_array(problem.Z_query) if sparse else problem.Z_query
    found = model.explain(*queries, cov=True, baseline="zero", dense=sparse)
    mean, std = model.predict(*queries, return_std=True)
    joint = {}
    if registry.can(model.solver_, Capability.JOINT_COVARIANCE):
        joint = {"joint covariance": model.predict(*queries, return_cov=True)[1]}
    return {
        "weights": found.weights,
        "weights' variance": found.weights_std**2,
        "weights' covariance": found.weights_cov,
        "prediction": mean,
        "prediction's variance": std**2,
        **joint,
        "evidence": model.log_marginal_likelihood_value_,
    }


@cache
def expected():
    """Return the oracle's answers for the small problem."""
    given, noise = (SMALL.k, *SMALL.data), SMALL.noise
    each = [oracle.weights(*given, x, *noise) for x in SMALL.X_query]
    mean, joint = oracle.predict(*given, *QUERIES, *noise)
    return {
        "weights": np.array([w for w, _ in each]),
        "weights' variance": np.array([cov.diagonal() for _, cov in each]),
        "weights' covariance": np.array([cov for _, cov in each]),
        "prediction": mean,
        "prediction's variance": joint.diagonal(),
        "joint covariance": joint,
        "evidence": oracle.log_evidence(*given, *noise),
    }


def assert_near(found, wanted, allowed):
    """Compare answers: means, variances and evidence each have a tolerance of their own."""
    atol = {
        "weights": allowed.mean,
        "weights' variance": allowed.covariance,
        "weights' covariance": allowed.covariance,
        "prediction": allowed.y_mean,
        "prediction's variance": allowed.y_covariance,
        "joint covariance": allowed.y_covariance,
        "evidence": allowed.nats,
    }
    for what, value in found.items():
        assert_allclose(value, wanted[what], rtol=0, atol=atol[what], err_msg=what)


def assert_equal(found, wanted):
    """Compare answers to the bit."""
    for what, value in found.items():
        assert_array_equal(value, wanted[what], err_msg=what)


# the table of cases


@every_solver
def test_a_solver_has_a_case_and_is_asked_for_by_its_name(name):
    assert fitted(name).solver_ == name


def test_a_solver_without_a_case_fails_with_what_to_add():
    with pytest.raises(pytest.fail.Exception, match=r"add CASES\['new'\] = Case\(...\)"):
        case_of("new")


def test_there_are_no_cases_of_solvers_that_do_not_exist():
    assert set(CASES) <= {solver.name for solver in registry.SOLVERS}


@every_solver
def test_tolerances_are_small_enough_to_find_an_error(name):
    """A tenth of a posterior variance or standard deviation is more than the tolerance."""
    deviation = np.sqrt(expected()["weights' variance"].min())
    assert allowed(name).mean < 0.1 * deviation
    assert allowed(name).covariance < 0.1 * deviation**2


# moments


@every_solver
def test_moments_are_those_of_the_oracle(name):
    found = answers(fitted(name), SMALL)
    del found["evidence"]  # It has the error of the probes, too.
    assert_near(found, expected(), allowed(name))


@every_solver
def test_weights_and_contributions_add_up_to_the_prediction(name):
    model = fitted(name)
    prediction = model.predict(*QUERIES)
    zero, mean = (model.explain(*QUERIES, baseline=baseline) for baseline in ("zero", "mean"))
    # Sums of three products: a rounding error or two of the largest.
    near = {"rtol": 1e-12, "atol": 1e-12 * np.abs(zero.contributions).max()}
    assert_allclose((SMALL.Z_query * zero.weights).sum(axis=1), prediction, **near)
    for found in (zero, mean):
        total = found.base_values + found.contributions.sum(axis=1)
        assert_allclose(total, prediction, **near)
        assert_allclose(found.prediction, prediction, **near)


def assert_without_the_row_s_own(surface, default, problem, near):
    """Compare an explanation of g with one of w = g + noise; `near` is rounding."""
    own, squared = problem.sigma_w**2, np.square(problem.Z_query).sum(axis=1)
    assert_array_equal(surface.weights, default.weights)
    variance = surface.weights_std**2
    assert_allclose(variance + own, default.weights_std**2, rtol=1e-12, atol=near.covariance)
    assert (variance > 0.0).all()
    along_baseline = surface.base_values_std**2 + own * problem.Z.shape[1]
    near_y = {"rtol": 1e-12, "atol": near.y_covariance}
    assert_allclose(along_baseline, default.base_values_std**2, **near_y)
    assert_allclose(surface.prediction_std, default.prediction_std, rtol=1e-12)
    shift = np.abs(problem.Z_query - 1.0)
    assert_allclose(surface.contributions_std, surface.weights_std * shift, rtol=1e-12)
    # A prediction is of a new y, whose variance is that of the surface and both noises.
    seen = np.einsum("mi,mij,mj->m", *(problem.Z_query, surface.weights_cov, problem.Z_query))
    assert_allclose(seen + own * squared + problem.sigma_y**2, surface.prediction_std**2, **near_y)
    assert_allclose(
        surface.weights_cov + own * np.eye(problem.Z.shape[1]),
        default.weights_cov,
        rtol=1e-12,
        atol=near.covariance,
    )


@every_solver
def test_the_surface_has_all_but_the_deviation_of_the_row(name):
    given = {"cov": True, "baseline": np.ones(3)}
    for arguments in ("arguments", "large"):
        model = fitted(name) if arguments == "arguments" else fit(LARGE, name, arguments)
        problem = SMALL if arguments == "arguments" else LARGE
        queries = problem.X_query, problem.Z_query
        surface, default = (model.explain(*queries, std=std, **given) for std in ("surface", True))
        assert_without_the_row_s_own(surface, default, problem, to_rounding(problem))
    surface = fitted(name).explain(*QUERIES, std="surface", cov=True)
    wanted = expected()["weights' covariance"] - SMALL.sigma_w**2 * np.eye(3)
    assert_allclose(surface.weights_cov, wanted, rtol=0, atol=allowed(name).covariance)


@able(Capability.SPARSE_FEATURES)
def test_the_surface_of_sparse_features_has_all_but_the_deviation_of_the_row(name):
    model, query = fit(SPARSE, name, Z=sp.csr_array(SPARSE.Z)), sp.csr_array(SPARSE.Z_query)
    near = case_of(name).allowed_of_sparse(SPARSE, model)
    all_weights = {"dense": True, "cov": True, "baseline": np.ones(12)}
    for given in ({}, {"dense": True}, all_weights):
        surface, default = (
            model.explain(SPARSE.X_query, query, std=std, **given) for std in ("surface", True)
        )
        if "cov" in given:
            assert_without_the_row_s_own(surface, default, SPARSE, near)
        if given:
            variance, whole = surface.weights_std**2, default.weights_std**2
        else:
            variance, whole = surface.weights_std.data**2, default.weights_std.data**2
        assert_allclose(variance + SPARSE.sigma_w**2, whole, rtol=1e-12)
        assert_allclose(surface.prediction_std, default.prediction_std, rtol=1e-12)


@every_solver
def test_a_query_far_from_all_rows_has_the_prior_and_says_so(name):
    x, z = np.vstack([SMALL.X_query[:2], [[1e4]]]), SMALL.Z_query[:3]
    found = fitted(name).explain(x, z)
    assert found.is_far.tolist() == [False, False, True]
    assert "the data say nothing about 1" in repr(found)
    assert "nothing" not in repr(found[:2])
    near = allowed(name)
    assert_allclose(found.weights[2], 0.0, rtol=0, atol=near.mean)
    prior = SMALL.theta1 + SMALL.sigma_w**2
    assert_allclose(found.weights_std[2] ** 2, prior, rtol=0, atol=near.covariance)
    # The share that data remove is that of the oracle.
    _, joint = oracle.predict(SMALL.k, *SMALL.data, x, z, *SMALL.noise)
    squared = np.square(z).sum(axis=1)
    left = joint.diagonal() - SMALL.sigma_y**2 - SMALL.sigma_w**2 * squared
    share = near.y_covariance / (SMALL.theta1 * squared).min()
    assert_allclose(found.learned, 1.0 - left / (SMALL.theta1 * squared), rtol=0, atol=share)
    assert_allclose(
        fitted(name).explain(x, z, std="surface").learned, found.learned, rtol=0, atol=share
    )


@every_solver
def test_samples_have_the_moments_of_the_oracle(name):
    model, wanted = copy_of(fitted(name)), expected()
    asked = {"n_samples": SAMPLES, "random_state": 0}
    W = model.sample_weights(*QUERIES, **asked)
    y = model.sample_y(*QUERIES, **asked)
    pairs = zip(W, wanted["weights"], wanted["weights' covariance"], strict=True)
    # Without a joint distribution, draws are independent between queries.
    is_joint = registry.can(name, Capability.JOINT_COVARIANCE)
    joint = wanted["joint covariance"] if is_joint else np.diag(wanted["prediction's variance"])
    for draws, mean, cov in [(y, wanted["prediction"], joint), *pairs]:
        variance = cov.diagonal()
        near, missing = allowed(name), case_of(name).path_share * variance.max()
        off = np.abs(draws.mean(axis=1) - mean) - near.y_mean
        assert (off <= 5.0 * np.sqrt(variance / SAMPLES)).all()
        # The standard error of a covariance of Gaussian draws.
        error = np.sqrt((np.outer(variance, variance) + cov**2) / SAMPLES)
        off = np.abs(np.cov(draws) - cov) - near.y_covariance - missing
        assert (off <= 5.0 * error).all()
        # The squares of all whitened draws together have a mean of 1.
        white = np.linalg.solve(np.linalg.cholesky(cov), draws - mean[:, None])
        slack = (near.y_covariance + missing) / np.linalg.eigvalsh(cov)[0]
        assert abs(np.square(white).mean() - 1.0) <= 5.0 * np.sqrt(2.0 / white.size) + slack


@every_solver
def test_samples_of_y_are_those_of_the_weights_and_noise(name):
    model, asked = copy_of(fitted(name)), {"n_samples": 400, "random_state": 3}
    W = model.sample_weights(*QUERIES, **asked)
    y = model.sample_y(*QUERIES, **asked)
    noise = (y - np.einsum("mds,md->ms", W, SMALL.Z_query)) / SMALL.sigma_y
    assert abs(noise.mean()) <= 5.0 / np.sqrt(noise.size)
    assert abs(noise.var() - 1.0) <= 5.0 * np.sqrt(2.0 / noise.size)


@every_solver
def test_no_weights_are_drawn_where_none_are_asked_for(name):
    model = copy_of(fitted(name))
    assert model.sample_weights(*QUERIES, n_samples=0).shape == (5, 3, 0)
    assert model.sample_y(*QUERIES, n_samples=0).shape == (5, 0)


# evidence


@every_solver
def test_the_evidence_is_that_of_the_oracle(name):
    """The error is within rounding, or within what the solver states about kernel and probes."""
    model = fitted(name)
    error = allowed(name).nats + 5.0 * model.fit_report_.evidence_deviation
    assert abs(model.log_marginal_likelihood_value_ - expected()["evidence"]) <= error
    again = model.log_marginal_likelihood(model.theta_)
    assert abs(again - expected()["evidence"]) <= error


@of(s for s in registry.SOLVERS if s.name not in CASES or CASES[s.name].bounds_evidence)
def test_a_bound_is_below_the_evidence(name):
    found = fit(LARGE, name, "large").log_marginal_likelihood_value_
    exact = oracle.log_evidence(LARGE.k, *LARGE.data, *LARGE.noise)
    assert found < exact + case_of(name).rounding(LARGE).nats
    assert found < exact - 1.0  # The points are few.


@of(s for s in registry.SOLVERS if s.name not in CASES or CASES[s.name].has_gradient)
def test_the_gradient_is_that_of_differences_of_the_oracle_s_evidence(name):
    model, step = fitted(name), 1e-4
    _, gradient = model.log_marginal_likelihood(eval_gradient=True)
    for at, found in enumerate(gradient):
        values = []
        for sign in (1, -1):
            moved = SMALL.params.with_theta(model.theta_ + sign * step * np.eye(gradient.size)[at])
            k = oracle.rbf(moved.kernel.theta1, moved.kernel.theta2)
            values.append(oracle.log_evidence(k, *SMALL.data, moved.sigma_w, moved.sigma_y))
        # Differences are off by SMALL.tol of the value over the step, and by step^2 times the third
        # derivative, which is about the number of rows. The error of the gradient is about that of
        # the evidence.
        error = SMALL.tol * abs(values[0]) / step + len(SMALL.y) * step**2
        assert abs(found - (values[0] - values[1]) / (2 * step)) <= error + 4.0 * allowed(name).nats


# what must not matter


@every_solver
def test_one_two_and_sixteen_threads_give_the_same_bits(name, monkeypatch):
    monkeypatch.setattr("gpx_scale.runtime.session.most_threads", lambda: 16)
    one, *others = (fit(LARGE, name, "large", n_jobs=jobs) for jobs in (1, 2, 16))
    wanted = answers(one, LARGE)
    _, slope = one.log_marginal_likelihood(eval_gradient=True)
    for model in others:
        for what, value in answers(model, LARGE).items():
            assert_array_equal(value, wanted[what], err_msg=what)
        _, gradient = model.log_marginal_likelihood(eval_gradient=True)
        assert_array_equal(gradient, slope)


@every_solver
def test_the_order_of_rows_does_not_matter(name):
    order = np.random.RandomState(1).permutation(len(SMALL.y))
    rows = replace(SMALL, X=SMALL.X[order], y=SMALL.y[order], Z=SMALL.Z[order])
    other = fit(rows, name)
    found, wanted = answers(other, SMALL), answers(fitted(name), SMALL)
    near = allowed(name)
    probes = other.fit_report_.evidence_deviation + fitted(name).fit_report_.evidence_deviation
    assert_near(found, wanted, replace(near, nats=2.0 * near.nats + 5.0 * probes))


@every_solver
def test_scaling_y_scales_weights_and_deviations(name):
    """The factor is a power of two, which standardising divides by without rounding errors."""
    scaled = (replace(SMALL, y=scale * SMALL.y) for scale in (1.0, 1024.0))
    one, other = (fit(rows, name, standardize=True) for rows in scaled)
    a, b = answers(one, SMALL), answers(other, SMALL)
    for what, value in a.items():
        if what == "evidence":
            assert value - b[what] == pytest.approx(60 * np.log(1024.0), rel=1e-12)
        else:
            scale = 1024.0**2 if "variance" in what else 1024.0
            assert_allclose(b[what], scale * value, rtol=1e-14, err_msg=what)


def assert_chunks_do_not_matter(posterior, queries):
    """Compare moments from one chunk with those from chunks of one query each."""
    request = MomentRequest(variance=True, covariance=True, along=[queries.Z])
    sessions = (replace(session_of(2), chunk_bytes=size) for size in (2**28, 1))
    whole, single = (posterior.moments(queries, request, session) for session in sessions)
    near = to_rounding(SMALL)
    assert_allclose(single.mean, whole.mean, rtol=0, atol=near.mean)
    assert_allclose(single.variance, whole.variance, rtol=0, atol=near.covariance)
    assert_allclose(single.covariance, whole.covariance, rtol=0, atol=near.covariance)
    assert_allclose(single.along, whole.along, rtol=0, atol=near.y_covariance)


@every_solver
def test_chunks_of_queries_do_not_matter(name):
    queries = Queries(SMALL.X_query, DenseFeatures(SMALL.Z_query))
    assert_chunks_do_not_matter(fitted(name).posterior_, queries)


@able(Capability.TRAINING_WEIGHTS)
def test_chunks_of_training_rows_do_not_matter(name):
    queries = Queries(SMALL.X, DenseFeatures(SMALL.Z), own=True)
    assert_chunks_do_not_matter(fitted(name).posterior_, queries)


@every_solver
def test_a_query_is_answered_alone_as_in_company(name):
    model = fitted(name)
    mean, std = model.predict(*QUERIES, return_std=True)
    near = to_rounding(SMALL)
    for i in range(len(mean)):
        alone = model.predict(SMALL.X_query[[i]], SMALL.Z_query[[i]], return_std=True)
        assert_allclose(alone[0], mean[i], rtol=0, atol=near.y_mean)
        assert_allclose(alone[1] ** 2, std[i] ** 2, rtol=0, atol=near.y_covariance)


# copies


@pytest.mark.parametrize("way", ["saved", "pickled"])
@every_solver
def test_a_copy_gives_the_same_answers_to_the_bit(name, way, tmp_path):
    model = fitted(name)
    if way == "saved":
        model.save(tmp_path / "model.gpx")
        copy = gpx_scale.load(tmp_path / "model.gpx")
    else:
        copy = copy_of(model)
    assert_equal(answers(copy, SMALL), answers(model, SMALL))
    for draw in ("sample_weights", "sample_y"):
        ours, theirs = (getattr(m, draw)(*QUERIES, 3, random_state=0) for m in (copy, model))
        assert_array_equal(ours, theirs)


# memory


def assert_refused_in_time(ask):
    """Call `ask`, which must be refused before it allocates as much as the limit."""
    tracemalloc.start()
    try:
        with pytest.raises(MemoryLimitError, match=r"memory_limit is .*or use"):
            ask()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < TOO_LITTLE


@every_solver
def test_a_fit_that_does_not_fit_is_refused_before_it_allocates(name):
    rows = make_problem(n=MANY, p=1, d=3)
    assert_refused_in_time(lambda: fit(rows, name, memory_limit=TOO_LITTLE))


@every_solver
def test_joint_answers_that_do_not_fit_are_refused_before_they_allocate(name):
    model, many = copy_of(fitted(name), memory_limit=TOO_LITTLE), make_problem(n=MANY, p=1, d=3)
    if registry.can(name, Capability.JOINT_COVARIANCE):
        assert_refused_in_time(lambda: model.predict(many.X, many.Z, return_cov=True))
    assert_refused_in_time(lambda: model.sample_y(many.X, many.Z, 100))
    assert_refused_in_time(lambda: model.sample_weights(many.X, many.Z, 100))
    wide = np.zeros((20 * MANY, 1)), np.zeros((20 * MANY, 3))
    assert_refused_in_time(lambda: model.explain(*wide, cov=True))
    model.predict(many.X[:3], many.Z[:3])  # Few queries fit.


# capabilities


@able(Capability.SPARSE_FEATURES)
def test_a_sparse_z_gives_what_a_dense_one_does(name):
    dense, sparse = fit(SPARSE, name), fit(SPARSE, name, Z=sp.csr_array(SPARSE.Z))
    near = case_of(name).allowed_of_sparse(SPARSE, dense)
    probes = dense.fit_report_.evidence_deviation + sparse.fit_report_.evidence_deviation
    near = replace(near, nats=near.nats + 5.0 * probes)
    wanted = answers(dense, SPARSE)
    assert_near(answers(sparse, SPARSE, sparse=True), wanted, near)
    query = sp.csr_array(SPARSE.Z_query)
    present, found = query.nonzero(), sparse.explain(SPARSE.X_query, query)
    for one in (found.weights, found.weights_std, found.contributions):
        assert_array_equal(one.indices, query.indices)  # An answer has the pattern of the query.
    at_entries = {
        "weights": found.weights.data,
        "weights' variance": found.weights_std.data**2,
        "prediction": found.prediction,
        "prediction's variance": found.prediction_std**2,
    }
    each = {what: wanted[what][present] for what in ("weights", "weights' variance")}
    assert_near(at_entries, {**wanted, **each}, near)


def pieces_of(problem):
    """Return rows in pieces, the first of which contains the extremes of x."""
    ends = np.unique([problem.X.argmin(axis=0), problem.X.argmax(axis=0)])
    order = np.concatenate([ends, np.setdiff1d(np.arange(len(problem.y)), ends)])
    return np.split(order, [300, 301])


@able(Capability.ADD_ROWS)
def test_added_rows_equal_a_batch(name):
    case = case_of(name)
    given = {"random_state": 0, "n_jobs": 2, **case.fixed(LARGE)}
    batch, parts = (LARGE.model(solver=name, **given) for _ in range(2))
    batch.fit(*LARGE.data)
    for rows in pieces_of(LARGE):
        parts.partial_fit(LARGE.X[rows], LARGE.y[rows], LARGE.Z[rows])
    assert parts.fit_report_.n_samples == len(LARGE.y)
    # A log p(y) that is estimated from a sample of rows is compared by its standard errors.
    error = np.hypot(batch.fit_report_.evidence_deviation, parts.fit_report_.evidence_deviation)
    allowed = case.allowed(LARGE, batch)
    allowed = replace(allowed, nats=allowed.nats + 4.0 * error)
    assert_near(answers(parts, LARGE), answers(batch, LARGE), allowed)


@able(Capability.STREAM)
def test_a_stream_equals_memory_to_the_bit(name):
    pieces = pieces_of(LARGE)
    order = np.concatenate(pieces)
    rows = replace(LARGE, X=LARGE.X[order], y=LARGE.y[order], Z=LARGE.Z[order])
    memory = fit(rows, name, "large")
    chunks = [(LARGE.X[piece], LARGE.y[piece], LARGE.Z[piece]) for piece in pieces]
    stream = copy_of(memory).fit(lambda: iter(chunks))
    assert_equal(answers(stream, LARGE), answers(memory, LARGE))


@pytest.mark.parametrize("how", ["usual", "rough"])
@able(Capability.UPPER_BOUND)
def test_deviations_are_never_below_those_of_the_oracle(name, how):
    case, wanted = case_of(name), expected()
    assert case.rough is not None, f"solver={name!r} promises upper bounds: its case needs `rough`"
    model = fitted(name) if how == "usual" else case.rough(SMALL)
    rounding = to_rounding(SMALL).y_covariance
    if registry.can(name, Capability.JOINT_COVARIANCE):
        _, joint = model.predict(*QUERIES, return_cov=True)
        assert (joint.diagonal() >= wanted["prediction's variance"] - rounding).all()
    for std in (True, "certified"):
        found = model.explain(*QUERIES, std=std)
        assert (found.weights_std**2 >= wanted["weights' variance"] - rounding).all()
        assert (found.prediction_std**2 >= wanted["prediction's variance"] - rounding).all()
    surface = wanted["weights' variance"] - SMALL.sigma_w**2
    found = model.explain(*QUERIES, std="surface")
    assert (found.weights_std**2 >= surface - rounding).all()


@able(Capability.SAMPLED_VARIANCE)
def test_deviations_from_samples_are_rarely_below_those_of_the_oracle(name):
    """Each is too small with a probability of 1%, so that at most one of these 20 is."""
    model, wanted = copy_of(fitted(name)), expected()
    found = model.explain(*QUERIES, std="samples")
    ratios = [
        (found.weights_std**2 / wanted["weights' variance"]).ravel(),
        found.prediction_std**2 / wanted["prediction's variance"],
    ]
    assert (np.concatenate(ratios) < 1.0).sum() <= 1
    assert np.median(np.concatenate(ratios)) < 2.0


@able(Capability.LEAVE_ONE_OUT)
def test_leave_one_out_is_leaving_one_out(name):
    residuals, deviations = oracle.leave_one_out(SMALL.k, *SMALL.data, *SMALL.noise)
    found, spread = fitted(name).leave_one_out()
    C = oracle.covariance(SMALL.k, SMALL.X, SMALL.Z, *SMALL.noise)
    size = np.sqrt(SMALL.y @ np.linalg.solve(C, SMALL.y))
    # Both numerator and denominator of alpha_i / (C^-1)_ii are off by delta.
    delta = allowed(name).delta
    assert_allclose(found, residuals, rtol=0, atol=2.0 * delta * size * deviations.max())
    assert_allclose(spread, deviations, rtol=delta)


@able(Capability.TRAINING_WEIGHTS)
def test_training_rows_have_weights_of_their_own(name):
    found = fitted(name).training_explanation(cov=True, baseline="zero")
    near = allowed(name)
    for i in range(0, len(SMALL.y), 7):
        mean, cov = oracle.own_weights(SMALL.k, *SMALL.data, i, *SMALL.noise)
        assert_allclose(found.weights[i], mean, rtol=0, atol=near.mean)
        assert_allclose(found.weights_cov[i], cov, rtol=0, atol=near.covariance)
        assert_allclose(found.weights_std[i] ** 2, cov.diagonal(), rtol=0, atol=near.covariance)
        seen = SMALL.Z[i] @ cov @ SMALL.Z[i] + SMALL.sigma_y**2
        assert abs(found.prediction_std[i] ** 2 - seen) <= near.y_covariance


def fit_gram(name):
    """Fit a Gram matrix and a function of objects, and compare with the kernel of vectors."""
    given = {"solver": name, "random_state": 0, **case_of(name).arguments, "theta1": 1.0}
    K, cross = SMALL.k(SMALL.X, SMALL.X), SMALL.k(SMALL.X_query, SMALL.X)
    gram = SMALL.model(kernel="precomputed", **given).fit(K, SMALL.y, SMALL.Z)
    found = gram.predict(cross, SMALL.Z_query)
    assert_allclose(found, expected()["prediction"], rtol=0, atol=allowed(name).y_mean)

    def k(a, b):
        return SMALL.k(np.array(a), np.array(b))

    function = SMALL.model(kernel=k, **given).fit(list(SMALL.X), SMALL.y, SMALL.Z)
    found = function.predict(list(SMALL.X_query), SMALL.Z_query)
    assert_allclose(found, expected()["prediction"], rtol=0, atol=allowed(name).y_mean)


def fit_single(name):
    """Fit in float32; as residuals are in float64, means are as accurate as in float64."""
    model = SMALL.fitted(solver=name, dtype="float32", random_state=0, **case_of(name).arguments)
    found = model.predict(*QUERIES)
    # A refinement ends at a residual of eps, conjugate gradients at a larger one.
    near = max(1e-9, allowed(name).y_mean)
    assert_allclose(found, expected()["prediction"], rtol=0, atol=near)


def fit_folder(name):
    """Fit rows that are in a file and not in memory."""
    with tempfile.TemporaryDirectory() as folder:
        X, y, _ = SMALL.data
        np.savez(f"{folder}/rows.npz", X=X, y=y)
        SMALL.model(solver=name).fit(folder)


def fit_counts(name):
    """Fit counts of 0 and 1."""
    return SMALL.model(solver=name, likelihood="poisson").fit(SMALL.X, SMALL.y > 0.0, SMALL.Z)


# How a user asks for each capability. This must not raise if the solver has it.
ASKED = {
    Capability.TRAINING_WEIGHTS: lambda name: fitted(name).training_explanation(),
    Capability.LEAVE_ONE_OUT: lambda name: fitted(name).leave_one_out(),
    Capability.UPPER_BOUND: lambda name: fitted(name).explain(*QUERIES, std="certified"),
    Capability.JOINT_COVARIANCE: lambda name: fitted(name).predict(*QUERIES, return_cov=True),
    Capability.SAMPLED_VARIANCE: lambda name: fitted(name).explain(*QUERIES, std="samples"),
    Capability.SPARSE_FEATURES: lambda name: fit(SPARSE, name, Z=sp.csr_array(SPARSE.Z)),
    Capability.ANY_KERNEL: fit_gram,
    Capability.FLOAT32: fit_single,
    Capability.STREAM: lambda name: SMALL.model(solver=name).fit(lambda: [SMALL.data]),
    Capability.FILES: fit_folder,
    Capability.ADD_ROWS: lambda name: copy_of(fitted(name)).partial_fit(*SMALL.data),
    Capability.WEIGHT_TERMS: lambda name: SMALL.model(solver=name, weights="semi").fit(*SMALL.data),
    Capability.SPARSE_WEIGHT_TERMS: lambda name: SMALL.model(solver=name, weights="semi").fit(
        SMALL.X, SMALL.y, sp.csr_array(SMALL.Z)
    ),
    Capability.LIKELIHOODS: fit_counts,
}


@pytest.mark.parametrize("capability", Capability, ids=lambda capability: capability.name.lower())
@every_solver
def test_a_solver_can_what_it_promises_and_refuses_the_rest_with_a_remedy(name, capability):
    assert capability in ASKED, f"say how a user asks for {capability}: add it to ASKED"
    having = [s.name for s in registry.SOLVERS if capability in s.capabilities]
    if name in having:
        ASKED[capability](name)
        return
    with pytest.raises((SolverUnavailable, InputError, AttributeError)) as refused:
        ASKED[capability](name)
    # scikit-learn asks whether an estimator has partial_fit, so its absence is an AttributeError,
    # and the reason is its cause.
    is_missing = isinstance(refused.value, AttributeError)
    assert is_missing == (capability is Capability.ADD_ROWS)
    message = str(refused.value.__cause__ if is_missing else refused.value)
    names_one = any(f"'{one}'" in message for one in having)
    assert names_one or re.search(r"\b([Gg]ive|[Uu]se) \w+=", message), message


@pytest.mark.parametrize("capability", Capability, ids=lambda capability: capability.name.lower())
@every_solver
def test_the_registry_names_the_solvers_that_have_a_capability(name, capability):
    having = [s.name for s in registry.SOLVERS if capability in s.capabilities]
    if name in having:
        registry.require(name, capability)
        assert registry.can(name, capability)
        return
    with pytest.raises(SolverUnavailable) as refused:
        registry.require(name, capability)
    assert all(repr(one) in str(refused.value) for one in having)
    assert not registry.can(name, capability)


@every_solver
def test_a_posterior_has_the_capabilities_of_its_solver(name):
    assert fitted(name).posterior_.capabilities == registry.find(name).capabilities
    assert (fitted(name).posterior_.training_rows is not None) == registry.find(name).keeps_rows
