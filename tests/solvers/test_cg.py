"""Conjugate gradients are compared with the exact solver and the oracle.

The tests compare solutions, the log marginal likelihood, its gradient, and the posterior.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale import GPXRegressor, datasets, kernels
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import InputError, MemoryLimitError, NotConverged, SolverUnavailable
from gpx_scale.linalg.conjugate_gradients import log_quadrature, solve
from gpx_scale.linalg.covariance import StoredCovariance, TiledCovariance
from gpx_scale.linalg.preconditioner import LowRankPreconditioner, choose_pivots
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.model.weight_prior import WeightPrior
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.cg import solver as cg
from gpx_scale.solvers.cg.pathwise_sampling import PriorPath, inflation
from gpx_scale.solvers.cg.solver import CGSolver
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.local_variance import LocalVariance
from gpx_scale.solvers.posterior import MomentRequest
from problems import cg_solver, make_problem


@pytest.fixture(scope="module")
def session():
    with Executor(2) as executor:
        yield Session.of(executor)


def system(session, n=700, rank=60, form=StoredCovariance, **given):
    problem = make_problem(n=n, **given)
    C = form(
        problem.inputs,
        problem.params,
        session,
        np.float32 if form is StoredCovariance else np.float64,
    )
    P = LowRankPreconditioner.of(C, choose_pivots(C, rank, np.random.RandomState(0)))
    dense = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    return problem, C, P, dense


# solves


@pytest.mark.parametrize("form", [StoredCovariance, TiledCovariance])
def test_every_column_reaches_its_own_nats_and_says_so(session, form):
    problem, C, P, dense = system(session, form=form)
    B = np.column_stack([problem.y, np.random.RandomState(1).randn(700, 3), np.zeros(700)])
    nats = np.array([1e-10, 1e-2, 1e-4, 1e-6, 1e-6])
    found = solve(C, P, B, nats, precise=TiledCovariance(problem.inputs, problem.params, session))
    exact = np.linalg.solve(dense, B)
    R = B - dense @ found.X
    missed = 0.5 * np.einsum("ij,ij->j", R, np.linalg.solve(dense, R))
    assert (missed <= found.nats + 1e-14).all()  # The stated error is a bound.
    assert (found.nats <= nats).all()
    assert_allclose(
        found.residuals[:4],
        np.linalg.norm(R, axis=0)[:4] / np.linalg.norm(B, axis=0)[:4],
        rtol=1e-3,
        atol=1e-12,
    )
    assert_allclose(found.X[:, 0], exact[:, 0], rtol=0, atol=1e-4 * np.abs(exact[:, 0]).max())
    assert_allclose(found.X[:, 4], 0.0)
    # Columns leave the iteration when they have converged.
    assert 0 < found.iterations <= found.matvecs <= 4 * found.iterations
    assert_allclose(
        found.quadratic, np.einsum("ij,ij->j", B, exact) - 2 * missed, rtol=1e-6, atol=1e-8
    )


def test_a_start_at_the_solution_costs_no_iteration(session):
    problem, C, P, dense = system(session, form=TiledCovariance)
    exact = np.linalg.solve(dense, problem.y)[:, None]
    found = solve(C, P, problem.y[:, None], np.array([1e-8]), start=exact)
    assert found.iterations == 0
    assert not found.lanczos


def test_what_does_not_converge_is_an_error_with_a_remedy(session, monkeypatch):
    monkeypatch.setattr("gpx_scale.linalg.conjugate_gradients.MAX_ITERATIONS", 3)
    problem, C, P, _ = system(session, rank=2, sigma_y=0.01, sigma_w=0.0)
    with pytest.raises(
        NotConverged, match=r"after 3 iterations.*preconditioner_rank \(now 2\) or sigma_y"
    ):
        solve(C, P, problem.y[:, None], np.array([1e-8]))


def test_lanczos_gives_the_log_determinant(session):
    _problem, C, P, dense = system(session, n=300, rank=30, form=TiledCovariance)
    random = np.random.RandomState(3)
    probes = P.draw(random.randn(P.rank, 200), random.randn(300, 200))
    energy = np.einsum("ij,ij->j", probes, P.solve(probes))
    found = solve(C, P, probes, 1e-2 * 0.5 * energy)
    logs = 300 * np.array([log_quadrature(*found.lanczos[j]) for j in range(200)])
    truth = np.linalg.slogdet(dense)[1] - P.log_determinant()
    assert logs.mean() == pytest.approx(truth, abs=4 * logs.std() / np.sqrt(200) + 0.01)


# its gradient


@pytest.mark.parametrize("theta2", [2.5, (2.5, 1.0, 4.0)])
@pytest.mark.parametrize("form", ["stored", "recomputed"])
def test_gradient_and_evidence_are_the_exact_ones_within_the_probes_noise(session, theta2, form):
    problem = make_problem(n=900, theta2=theta2)
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    # This y is a draw of the model, so that observed and expected information are about the same.
    y = np.linalg.cholesky(C) @ np.random.RandomState(9).randn(900)
    problem = replace(problem, y=y)
    exact = ExactSolver(900, np.float64, session).evaluate(
        MemoryRows(problem.inputs), problem.params, information=True
    )
    values, losses = [], []
    for seed in range(4):
        solver = cg_solver(problem.inputs, session, seed, form=form, rank=300)
        found = solver.evaluate(MemoryRows(problem.inputs), problem.params, information=True)
        off = found.gradient - exact.gradient
        losses.append(0.5 * off @ np.linalg.solve(exact.information, off))
        values.append((found.value - exact.value) / max(found.standard_error, 0.05))
        assert_allclose(
            found.information,
            exact.information,
            rtol=0.05,
            atol=0.02 * np.abs(exact.information).max(),
        )
    # A gradient from s probes loses t / (2 s) nats on average without the control variate, and less
    # with it.
    assert np.mean(losses) < problem.params.theta.size / (2 * cg.PROBES)
    assert np.abs(values).max() < 4.5  # They have a t distribution with 14 degrees of freedom.


def test_probes_stay_the_same_within_a_fit_and_follow_the_seed(session):
    problem = make_problem(n=300)

    def gradient(solver):
        return solver.evaluate(MemoryRows(problem.inputs), problem.params).gradient

    first, again, other = (
        cg_solver(problem.inputs, session, s, form="stored", rank=50) for s in (1, 1, 2)
    )
    value = gradient(first)
    assert_allclose(gradient(first), value, rtol=0, atol=0)
    assert_allclose(gradient(again), value, rtol=0, atol=0)
    assert np.abs(gradient(other) - value).max() > 0


# the posterior


@pytest.fixture(scope="module")
def pair():
    """Return the same model by both solvers, at the same hyperparameters."""
    data = datasets.synth10(2100)
    X, y, Xq = data.X[:2000], data.y[:2000], data.X[2000:]
    given = {
        "theta1": 0.2,
        "theta2": 20.0,
        "sigma_w": 0.05,
        "sigma_y": 0.15,
        "optimizer": None,
        "random_state": 0,
    }
    exact, iterative = (GPXRegressor(solver=name, **given).fit(X, y) for name in ("exact", "cg"))
    return exact, iterative, Xq


def test_mean_and_weights_agree(pair):
    exact, iterative, Xq = pair
    a, b = exact.explain(Xq), iterative.explain(Xq)
    assert (np.abs(a.prediction - b.prediction) < 1e-3 * a.prediction_std).all()
    assert (np.abs(a.weights - b.weights) < 1e-3 * a.weights_std).all()
    assert_allclose(
        b.base_values + b.contributions.sum(axis=1), iterative.predict(Xq), rtol=1e-12, atol=1e-12
    )


def test_deviations_are_never_below_exact_and_close(pair):
    exact, iterative, Xq = pair
    a, b = exact.explain(Xq), iterative.explain(Xq)
    for ratio in (b.weights_std / a.weights_std, b.prediction_std / a.prediction_std):
        assert ratio.min() > 1 - 1e-6
        assert np.median(ratio) < 1.10
    assert "local" in iterative.fit_report_.variances


def test_few_shared_rows_still_never_under_report(pair, session):
    exact, iterative, Xq = pair
    posterior = iterative.posterior_
    for shared in (np.arange(0), np.arange(5), np.arange(0, 2000, 3)):
        few = LocalVariance.of(posterior.support, posterior.hyperparameters, shared, session)
        cross = exact.posterior_.cross(Xq[:5] * 1.0, session)
        request = MomentRequest(variance=True, covariance=True, along=[DenseFeatures(Xq[:5])])
        found = few.reduction(cross, request, session)
        limit = exact.posterior_.reduction(cross, request, session)
        assert (found.variance <= limit.variance * (1 + 1e-9) + 1e-9).all()
        assert (found.along[0] <= limit.along[0] * (1 + 1e-9) + 1e-9).all()
        assert np.linalg.eigvalsh(limit.covariance - found.covariance).min() > -1e-8
        assert_allclose(np.einsum("ijj->ij", found.covariance), found.variance, rtol=1e-9)


def test_joint_covariance_agrees(pair):
    exact, iterative, Xq = pair
    (_, a), (_, b) = (model.predict(Xq[:15], return_cov=True) for model in (exact, iterative))
    assert_allclose(b, a, rtol=0, atol=1e-3 * a.diagonal().max())
    assert (b.diagonal() >= a.diagonal() * (1 - 1e-9)).all()


def test_paths_have_the_posterior_s_moments(pair):
    exact, iterative, Xq = pair
    draws = iterative.sample_weights(Xq[:6], n_samples=200, random_state=0)
    a = exact.explain(Xq[:6])
    error = (draws.mean(axis=2) - a.weights) / (a.weights_std / np.sqrt(200))
    assert np.abs(error).max() < 4.5
    assert np.sqrt(np.mean((draws.std(axis=2) / a.weights_std) ** 2)) == pytest.approx(
        1.0, abs=0.06
    )
    y = iterative.sample_y(Xq[:6], n_samples=200, random_state=0)
    assert np.sqrt(np.mean((y.std(axis=1) / a.prediction_std) ** 2)) == pytest.approx(1.0, abs=0.2)
    assert_allclose(
        iterative.sample_y(Xq[:6], n_samples=3, random_state=5),
        iterative.sample_y(Xq[:6], n_samples=3, random_state=5),
    )


def test_deviations_from_samples_rarely_under_report(pair):
    exact, iterative, Xq = pair
    a, b = exact.explain(Xq), iterative.explain(Xq, std="samples")
    ratio = b.weights_std / a.weights_std
    assert np.mean(ratio < 1) < 0.05
    assert np.median(ratio) < 1.5
    _, sd = iterative.predict(Xq, return_std="samples")
    assert np.mean(sd < a.prediction_std) < 0.1


def test_the_report_says_how_it_was_solved(pair):
    _, iterative, _ = pair
    report = iterative.fit_report_
    assert report.solver == "cg" == iterative.solver_
    assert report.evidence_deviation > 0
    assert "iterations" in report.solution
    assert "nats" in report.solution
    assert "standard error" in str(report)
    exact = pair[0].log_marginal_likelihood()
    assert iterative.log_marginal_likelihood() == pytest.approx(
        exact, abs=5 * report.evidence_deviation
    )
    value, gradient = iterative.log_marginal_likelihood(iterative.theta_, eval_gradient=True)
    assert value == pytest.approx(exact, abs=5 * report.evidence_deviation)
    assert gradient.shape == iterative.theta_.shape


# whole fits


def test_hyperparameters_are_the_exact_optimum_within_a_nat(monkeypatch):
    # From so few rows, the search on all rows has something left to do.
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 500)
    data = datasets.synth10(1500)
    exact = GPXRegressor(
        solver="exact", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    iterative = GPXRegressor(
        solver="cg", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    assert iterative.fit_report_.evaluations["all rows"] >= 1
    assert iterative.fit_report_.evaluations["500 rows"] >= 1
    assert iterative.fit_report_.converged
    assert exact.log_marginal_likelihood(iterative.theta_) > exact.log_marginal_likelihood() - 1.0


def test_a_posterior_goes_on_from_the_last_evaluation(session, monkeypatch):
    """At the same hyperparameters, the probes are not solved for again."""
    problem, columns = make_problem(n=700), []

    def watched(C, P, B, *arguments, **more):
        columns.append(B.shape[1])
        return solve(C, P, B, *arguments, **more)

    monkeypatch.setattr(cg, "solve", watched)
    rows, solver = (
        MemoryRows(problem.inputs),
        cg_solver(problem.inputs, session, 0, form="stored", rank=60),
    )
    evidence = solver.evaluate(rows, problem.params)
    posterior = solver.condition(rows, problem.params)
    first, last = columns
    assert first == 1 + cg.PROBES
    fresh = cg_solver(problem.inputs, session, 0, form="stored", rank=60)
    fresh.evaluate(rows, problem.params.with_theta(problem.params.theta + 0.1))
    columns.clear()
    expected = fresh.condition(rows, problem.params)
    assert columns == [last + cg.PROBES]
    # Both are within 1e-6 nats of the solution.
    off = np.linalg.norm(posterior.coefficients - expected.coefficients)
    assert off <= 1e-3 * np.linalg.norm(expected.coefficients)
    assert posterior.standard_error == evidence.standard_error
    assert posterior.log_evidence == pytest.approx(evidence.value, abs=1e-4 * 700)
    exact = oracle.log_evidence(problem.k, problem.X, problem.y, problem.Z, *problem.noise)
    assert posterior.log_evidence == pytest.approx(exact, abs=5 * posterior.standard_error)


def test_many_rows_have_a_larger_subset(monkeypatch):
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 300)
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.MANY_ROWS", 900)
    data = datasets.synth10(1000)
    report = (
        GPXRegressor(
            solver="cg", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        )
        .fit(data.X, data.y)
        .fit_report_
    )
    assert "547 rows" in report.evaluations  # This is sqrt(300 1,000).
    assert "300 rows" not in report.evaluations
    assert report.converged


def test_ard_and_other_kernels_are_searched_too(monkeypatch):
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 400)
    data = datasets.synth10(900)
    for arguments in (
        {"ard": True},
        {"kernel": "matern52"},
        {"kernel": kernels.RBF() + kernels.Matern32()},
    ):
        named = {"random_state": 0, "kernel": "rbf", "fit_intercept": False, **arguments}
        named["weights"] = "shared"
        exact = GPXRegressor(solver="exact", **named).fit(data.X[:, :4], data.y)
        iterative = GPXRegressor(solver="cg", **named).fit(data.X[:, :4], data.y)
        lost = exact.log_marginal_likelihood() - exact.log_marginal_likelihood(iterative.theta_)
        assert lost < 1.0 + exact.theta_.size / (2 * cg.PROBES)


def test_z_of_one_is_gaussian_process_regression():
    data = datasets.synth10(800)
    Z = np.ones((800, 1))
    given = {"sigma_w": 0.0, "random_state": 0, "kernel": "rbf", "fit_intercept": False}
    a, b = (
        GPXRegressor(solver=name, **given).fit(data.X[:700], data.y[:700], Z[:700])
        for name in ("exact", "cg")
    )
    assert a.log_marginal_likelihood(b.theta_) > a.log_marginal_likelihood() - 0.1
    same = GPXRegressor(solver="exact", optimizer=None, **{**given, **b.hyperparameters_}).fit(
        data.X[:700], data.y[:700], Z[:700]
    )
    assert_allclose(
        b.predict(data.X[700:], Z[700:]), same.predict(data.X[700:], Z[700:]), atol=1e-4
    )


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_hardly_any_rows(n):
    problem = make_problem(n=n)
    exact, iterative = (problem.fitted(solver=name, random_state=0) for name in ("exact", "cg"))
    query = problem.X_query, problem.Z_query
    for a, b in zip(
        exact.predict(*query, return_std=True),
        iterative.predict(*query, return_std=True),
        strict=True,
    ):
        assert_allclose(b, a, rtol=1e-3, atol=1e-4)


def test_recomputed_tiles_do_not_change_the_answer():
    problem = make_problem(n=600)
    query = problem.X_query, problem.Z_query
    base = problem.fitted(solver="cg", random_state=0)
    double = problem.fitted(solver="cg", random_state=0, dtype="float64")
    assert "recomputed" in " ".join(double.fit_report_.reasons)
    assert_allclose(double.predict(*query), base.predict(*query), rtol=1e-4, atol=1e-5)


def test_gram_matrices_and_functions_are_solved_but_not_sampled():
    problem = make_problem(n=200)
    kernel = kernels.RBF(problem.theta1, problem.theta2)
    K, K_query = (
        kernel(problem.X),
        np.hstack([kernel(problem.X_query, problem.X), kernel(problem.X_query)]),
    )
    given = {"kernel": "precomputed", "theta1": 1.0, "theta2": 1.0, "random_state": 0}
    a, b = (
        problem.model(solver=name, **given).fit(K, problem.y, problem.Z) for name in ("exact", "cg")
    )
    (mean, sd), (mean_cg, sd_cg) = (
        m.predict(K_query, problem.Z_query, return_std=True) for m in (a, b)
    )
    assert_allclose(mean_cg, mean, atol=1e-4)
    assert (sd_cg >= sd * (1 - 1e-9)).all()
    with pytest.raises(SolverUnavailable, match="no spectrum"):
        b.sample_y(K_query, problem.Z_query)


# paths


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF(1.3, 2.0),
        kernels.Matern12(1.0, 2.0),
        kernels.Matern32(1.0, (2.0, 1.0)),
        kernels.Matern52(0.7, 2.0),
        kernels.RationalQuadratic(2.0, 3.0, shape=0.7),
        kernels.RBF(1.0, 2.0) * kernels.Matern32(1.0, 3.0) + kernels.RBF(0.5, 1.0),
    ],
)
def test_prior_paths_have_the_kernel_s_second_moments(kernel, session):
    random, prior = np.random.RandomState(0), WeightPrior.of(kernel, 0.0)
    x = random.randn(5, 2)
    # The draws have the shape (paths, 5, 3).
    draws = np.stack([PriorPath.draw(prior, 2, 3, random)(x, 3, session) for _ in range(600)])
    expected = kernel(x)
    found = np.einsum("sil,sjl->ij", draws, draws) / (600 * 3)
    assert_allclose(found, expected, atol=5 * expected.max() * np.sqrt(2 / 1800))
    between = np.einsum("si,si->i", draws[:, :, 0], draws[:, :, 1]) / 600
    assert np.abs(between).max() < 5 * expected.max() / np.sqrt(600)


def test_inflation_covers_chi_square():
    random = np.random.RandomState(0)
    variance = np.square(random.randn(20_000, 64)).mean(axis=1) * inflation(64)
    assert np.mean(variance < 1) == pytest.approx(0.01, abs=0.004)


# bad input


def test_duplicates_without_noise_are_an_error_or_recorded():
    problem = make_problem(n=150, sigma_y=1e-9, sigma_w=0.0)
    twice = np.tile(np.arange(150), 2)
    y = np.concatenate([problem.y, problem.y + 1.0])  # Equal rows have different y.
    with pytest.raises(NotConverged, match="sigma_y"):
        problem.model(solver="cg", random_state=0).fit(problem.X[twice], y, problem.Z[twice])


def test_a_rank_beyond_the_rows_is_cut_and_said():
    problem = make_problem(n=50)
    model = problem.fitted(solver="cg", preconditioner_rank=10**6, random_state=0)
    reasons = model.fit_report_.reasons
    assert any("50" in reason and "1000000 were asked" in reason for reason in reasons)
    assert_allclose(
        model.predict(problem.X_query, problem.Z_query),
        problem.fitted().predict(problem.X_query, problem.Z_query),
        atol=1e-5,
    )


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e100])
def test_unscaled_x_of_any_size_is_right_or_refused(scale):
    problem = make_problem(n=200)
    X, query = problem.X * scale, problem.X_query * scale
    given = {"theta2": 2.5 * scale**2, "optimizer": None, "standardize": False, "random_state": 0}
    a, b = (
        GPXRegressor(solver=name, **given).fit(X, problem.y, problem.Z) for name in ("exact", "cg")
    )
    assert_allclose(b.predict(query, problem.Z_query), a.predict(query, problem.Z_query), atol=1e-4)


def test_distances_that_float32_cannot_hold_are_formed_in_float64():
    problem = make_problem(n=200)
    X, query = problem.X + 0.0, problem.X_query + 0.0
    X[::2] += 1e5  # There are two clusters, far apart.
    query[::2] += 1e5
    given = {"theta2": 2.5, "optimizer": None, "standardize": False, "random_state": 0}
    a, b = (
        GPXRegressor(solver=name, **given).fit(X, problem.y, problem.Z) for name in ("exact", "cg")
    )
    assert not b.posterior_.hyperparameters.kernel.float32_is_safe(b.posterior_.support.x)
    assert_allclose(b.predict(query, problem.Z_query), a.predict(query, problem.Z_query), atol=1e-4)


def test_a_kernel_without_float32_is_solved_in_float64(session):
    params = Hyperparameters.of(kernels.Matern12(1.0, 2.0), 0.1, 0.3)
    problem = make_problem(n=300)
    solver = cg_solver(problem.inputs, session, 0, form="stored", rank=100)
    # The tiles of an RBF are in float32.
    assert solver._covariances(problem.inputs, problem.params)[0].dtype == np.float32
    assert solver._covariances(problem.inputs, params)[0].dtype == np.float64
    rows = MemoryRows(problem.inputs)
    exact = ExactSolver(300, np.float64, session).condition(rows, params).coefficients
    assert_allclose(
        solver.condition(rows, params).coefficients, exact, rtol=0, atol=1e-3 * np.abs(exact).max()
    )


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1e30, 1e60])
def test_y_of_any_size_without_scaling(scale):
    problem = make_problem(n=150)
    a, b = (
        problem.model(solver=name, random_state=0).fit(problem.X, scale * problem.y, problem.Z)
        for name in ("exact", "cg")
    )
    query = problem.X_query, problem.Z_query
    assert_allclose(b.predict(*query) / scale, a.predict(*query) / scale, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_z_that_float32_cannot_hold(scale):
    problem = make_problem(n=150)
    Z, Zq = scale * problem.Z, scale * problem.Z_query
    given = {
        "theta1": problem.theta1 / scale**2,
        "sigma_w": problem.sigma_w / scale,
        "random_state": 0,
    }
    a, b = (
        problem.model(solver=name, **given).fit(problem.X, problem.y, Z) for name in ("exact", "cg")
    )
    assert_allclose(b.predict(problem.X_query, Zq), a.predict(problem.X_query, Zq), atol=1e-4)


@pytest.mark.parametrize("kernel", [kernels.RBF(1.0, 1.0), kernels.Matern32(1.0, 1.0)])
def test_local_variances_in_clusters_with_hardly_any_noise(kernel, session):
    """T is close to the noise here, so that float32 tiles would lose a quarter of the variance."""
    random = np.random.RandomState(0)
    X = 0.3 * random.randn(400, 2) + 3.0 * random.choice([-1.0, 1.0], (400, 1))
    data = TrainingRows(X, DenseFeatures(np.ones((400, 1))), random.randn(400))
    for sigma_y in (0.0145, 0.03):
        params = Hyperparameters.of(kernel, 0.0, sigma_y)
        exact = ExactSolver(400, np.float64, session).condition(MemoryRows(data), params)
        x = 0.3 * random.randn(40, 2) + 3.0
        cross, request = (
            exact.cross(x, session),
            MomentRequest(along=[DenseFeatures(np.ones((40, 1)))]),
        )
        truth = 1.0 - exact.reduction(cross, request, session).along[0]
        for shared in (np.arange(0, 400, 9), np.arange(0, 400, 3)):
            near = LocalVariance.of(data, params, shared, session)
            found = 1.0 - near.reduction(cross, request, session).along[0]
            assert (found >= truth * (1 - 1e-6)).all()


def test_functions_of_objects_are_asked_once():
    calls = []

    def k(a, b):
        calls.append(len(a) * len(b))
        return np.exp(-0.5 * (np.array(a)[:, None] - np.array(b)[None, :]) ** 2)

    random = np.random.RandomState(0)
    x, Z = list(random.randn(60)), random.randn(60, 2)
    y = np.sin(x) * Z[:, 0] + 0.1 * random.randn(60)
    a, b = (
        GPXRegressor(k, solver=name, random_state=0, fit_intercept=False, weights="shared").fit(
            x, y, Z
        )
        for name in ("exact", "cg")
    )
    calls.clear()
    GPXRegressor(k, solver="cg", random_state=0, fit_intercept=False, weights="shared").fit(x, y, Z)
    assert sum(calls) <= 60 * 60
    _, sd = b.predict(x[:5], Z[:5], return_std=True)
    assert (sd > 0).all()
    _, gradient = b.log_marginal_likelihood(b.theta_, eval_gradient=True)
    assert_allclose(gradient, a.log_marginal_likelihood(b.theta_, eval_gradient=True)[1], atol=3.0)


def test_rows_without_z_are_only_noise():
    problem = make_problem(n=80)
    model = problem.model(solver="cg", random_state=0).fit(problem.X, problem.y, 0.0 * problem.Z)
    assert_allclose(model.predict(problem.X_query, problem.Z_query), 0.0, atol=1e-12)
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    exact = problem.model(solver="exact").fit(problem.X, problem.y, 0.0 * problem.Z)
    want, slope = exact.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert value == pytest.approx(want, rel=1e-6)
    assert_allclose(gradient, slope, rtol=1e-3, atol=1e-6)


def test_samples_do_not_depend_on_what_was_asked_before(pair):
    _, iterative, Xq = pair
    fresh = pickle.loads(pickle.dumps(iterative))
    first = fresh.sample_weights(Xq[:2], n_samples=4, random_state=1)
    long = fresh.sample_weights(Xq[:2], n_samples=40, random_state=1)
    assert_allclose(fresh.sample_weights(Xq[:2], n_samples=4, random_state=1), first)
    assert len(np.unique(long[0, 0].round(12))) == 40
    assert fresh.sample_weights(Xq[:2], n_samples=0).shape == (2, 10, 0)


def test_a_query_without_z_does_not_depend_on_its_company(pair, monkeypatch, session):
    _, iterative, Xq = pair
    posterior = iterative.posterior_
    near = LocalVariance.of(posterior.support, posterior.hyperparameters, np.arange(5), session)
    cross, A = posterior.cross(Xq[:3], session), Xq[:3].copy()
    A[1] = 0.0
    together = near.reduction(
        cross, MomentRequest(variance=True, along=[DenseFeatures(A)]), session
    ).variance[1]
    alone = near.reduction(cross[1:2], MomentRequest(variance=True), session).variance[0]
    assert_allclose(together, alone, rtol=1e-6)


def test_what_is_asked_for_is_checked(pair):
    _, iterative, Xq = pair
    with pytest.raises(InputError, match="return_std='sample'"):
        iterative.predict(Xq, return_std="sample")
    small = pickle.loads(pickle.dumps(iterative)).set_params(memory_limit="300KiB")
    for ask in (
        lambda: small.predict(Xq[:5], return_cov=True),
        lambda: small.predict(Xq[:5], return_std="samples"),
        lambda: small.sample_y(Xq[:5], n_samples=30),
    ):
        with pytest.raises(MemoryLimitError):
            ask()


def test_ctrl_c_in_the_last_phase_leaves_parameters_for_a_warm_start(monkeypatch):
    data = datasets.synth10(300)
    whole = GPXRegressor(
        solver="cg", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    model = GPXRegressor(
        solver="cg",
        random_state=0,
        warm_start=True,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    with monkeypatch.context() as broken:
        broken.setattr(CGSolver, "condition", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.fit(data.X, data.y)
    assert not hasattr(model, "theta_")
    model.fit(data.X, data.y)
    assert sum(model.fit_report_.evaluations.values()) < sum(whole.fit_report_.evaluations.values())


def test_the_excess_of_variances_is_stated(pair):
    excess = pair[1].posterior_.excess
    assert len(excess) == 1
    assert 0 <= excess[0][0] <= excess[0][1] < 0.5
    assert "above it" in pair[1].fit_report_.variances
