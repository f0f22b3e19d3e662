"""The exact solver is compared with the oracle in both precisions.

The tests compare covariances, the log marginal likelihood, its gradient, and leave-one-out
residuals.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose

import oracle
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.errors import JitterWarning, NotPositiveDefinite
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import TILE_ROWS
from gpx_scale.solvers.exact.posterior import ExactPosterior
from gpx_scale.solvers.exact.solver import ExactSolver
from kernel_cases import KERNELS, plain
from problems import make_problem, problems, session_of


def evaluate(data, params, dtype=np.float64, n_jobs=1):
    return ExactSolver(len(data), dtype, session_of(n_jobs)).evaluate(MemoryRows(data), params)


@given(problems())
def test_evidence_agrees_with_the_oracle(problem):
    expected = oracle.log_evidence(problem.k, *problem.data, *problem.noise)
    assert evaluate(problem.inputs, problem.params).value == pytest.approx(
        expected, rel=problem.tol, abs=problem.tol
    )


@given(problems())
@settings(max_examples=10)
def test_gradient_agrees_with_differences_of_the_oracle(problem):
    found = evaluate(problem.inputs, problem.params)
    theta, h = problem.params.theta, 1e-5
    for k in range(theta.size):
        if not np.isfinite(theta[k]):
            assert found.gradient[k] == 0.0  # sigma_w = 0 stays 0.
            continue
        values = []
        for step in (h, -h):
            moved = problem.params.with_theta(theta + step * (np.arange(theta.size) == k))
            k_moved = oracle.rbf(moved.kernel.theta1, moved.kernel.theta2)
            values.append(oracle.log_evidence(k_moved, *problem.data, moved.sigma_w, moved.sigma_y))
        difference = (values[0] - values[1]) / (2 * h)
        noise = problem.tol * (1 + abs(values[0])) / h
        assert found.gradient[k] == pytest.approx(difference, rel=1e-5, abs=1e-6 + noise)


@pytest.mark.parametrize("name", KERNELS)
def test_gradient_of_every_kernel(name):
    problem = make_problem(n=30)
    params = Hyperparameters.of(KERNELS[name], 0.2, 0.3)
    found = evaluate(problem.inputs, params)
    for k, h in enumerate(1e-5 * np.eye(params.theta.size)):
        moved = [params.with_theta(params.theta + e) for e in (h, -h)]
        up, down = (
            oracle.log_evidence(
                lambda a, b, q=q: plain(q.kernel, a, b), *problem.data, q.sigma_w, q.sigma_y
            )
            for q in moved
        )
        assert found.gradient[k] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, TILE_ROWS - 1, TILE_ROWS, 2 * TILE_ROWS + 17])
def test_tiles_fill_and_contract_like_the_whole(n):
    problem = make_problem(n=n, theta2=(2.5, 1.0, 4.0))
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    random = np.random.RandomState(3)
    alpha, inverse = random.randn(n), np.linalg.inv(C)
    covariance = TiledCovariance(problem.inputs, problem.params, session_of(2))
    tiles = covariance.empty_tiles(np.float64)
    covariance.fill(tiles)
    assert_allclose(tiles.to_matrix(), np.tril(C), rtol=1e-12, atol=1e-14)
    tiles.factor()
    contracted, diagonal = covariance.contract_inverse(alpha, tiles)
    assert_allclose(diagonal, inverse.diagonal(), rtol=1e-8)
    weights = np.outer(alpha, alpha) - inverse
    G = weights * (problem.Z @ problem.Z.T)
    points = problem.params.kernel.prepare(problem.X)
    along_kernel = problem.params.kernel.contract_gradient(points, points, G.copy()).sum(axis=0)
    along_noise = (
        2
        * weights.diagonal()
        @ np.column_stack(
            [problem.sigma_w**2 * (problem.Z**2).sum(axis=1), np.full(n, problem.sigma_y**2)]
        )
    )
    assert_allclose(
        contracted, [*along_kernel, *along_noise], rtol=1e-8, atol=1e-8 * np.abs(G).sum()
    )


@pytest.mark.parametrize("name", ["rbf", "matern52 ard", "nested"])
def test_information_is_average_information(name):
    problem = make_problem(n=30)
    params = Hyperparameters.of(KERNELS[name], 0.2, 0.3)
    found = ExactSolver(30, np.float64, session_of()).evaluate(
        MemoryRows(problem.inputs), params, information=True
    )

    def C(q):
        return oracle.covariance(
            lambda a, b: plain(q.kernel, a, b), problem.X, problem.Z, q.sigma_w, q.sigma_y
        )

    h, inverse = 1e-5, np.linalg.inv(C(params))
    steps = h * np.eye(params.theta.size)
    slopes = [
        (C(params.with_theta(params.theta + e)) - C(params.with_theta(params.theta - e))) / (2 * h)
        for e in steps
    ]
    U = np.column_stack([slope @ inverse @ problem.y for slope in slopes])
    assert_allclose(
        found.information, 0.5 * U.T @ inverse @ U, rtol=1e-6, atol=1e-6 * np.abs(U).max()
    )


def test_float32_factor_keeps_float64_answers():
    problem = make_problem(n=300, sigma_y=0.1, sigma_w=0.05)
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    single, double = (problem.fitted(dtype=dtype) for dtype in ("float32", "float64"))
    assert single.posterior_.tiles.dtype == np.float32
    alpha = single.posterior_.coefficients
    assert np.linalg.norm(C @ alpha - problem.y) / np.linalg.norm(problem.y) < 1e-11
    query = (problem.X_query, problem.Z_query)
    assert_allclose(single.predict(*query), double.predict(*query), rtol=1e-9, atol=1e-9)
    # 300 log-pivots, each rounded to eps(float32) times a condition number of about 1e5 at worst.
    assert single.log_marginal_likelihood() == pytest.approx(
        double.log_marginal_likelihood(), abs=0.05
    )
    ours, exact_std = single.explain(*query).weights_std, double.explain(*query).weights_std
    assert (ours >= exact_std * (1 - 1e-10)).all()  # They are never too small.
    assert_allclose(ours, exact_std, rtol=1e-3)
    _, gradient = single.log_marginal_likelihood(eval_gradient=True)
    assert_allclose(
        gradient, double.log_marginal_likelihood(eval_gradient=True)[1], rtol=1e-3, atol=0.1
    )


@pytest.mark.parametrize("m", [3, 40], ids=["all columns checked", "some columns checked"])
@pytest.mark.parametrize("sigma_y", [0.3, 1e-2, 3e-3])
def test_float32_deviations_are_never_below_exact_ones(sigma_y, m):
    """The condition numbers are from 3e3 to 3e7."""
    problem = make_problem(n=300, m=m, theta2=8.0, sigma_y=sigma_y, sigma_w=0.0)
    single, double = (problem.fitted(dtype=dtype) for dtype in ("float32", "float64"))
    assert single.posterior_.tiles.dtype == np.float32
    query = (problem.X_query, problem.Z_query)
    ours, exact = single.explain(*query, cov=True), double.explain(*query, cov=True)
    alone = single.explain(*query)
    condition = np.linalg.cond(oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise))
    # The exact variance is a difference from the prior variance, which rounds it.
    rounding = condition * np.finfo(float).eps
    for found in (ours, alone):
        for name in ("weights_std", "prediction_std"):
            ratio = getattr(found, name) / getattr(exact, name)
            assert ratio.min() >= 1 - 1e-9 - rounding
            assert ratio.max() <= 1 + 2e-3
    difference = ours.weights_cov - exact.weights_cov
    scale = np.abs(exact.weights_cov).max()
    assert np.linalg.eigvalsh(difference).min() >= -(1e-9 + rounding) * scale
    left_out, exactly = single.leave_one_out(), double.leave_one_out()
    assert (left_out[1] / exactly[1]).min() >= 1 - 1e-9 - rounding
    assert_allclose(left_out[0], exactly[0], rtol=2e-3, atol=1e-6)
    own, exact_own = (model.training_explanation().weights_std for model in (single, double))
    assert (own / exact_own).min() >= 1 - 1e-9 - rounding


def test_a_matrix_without_a_float32_factor_is_factorised_in_float64():
    problem = make_problem(n=200, theta2=50.0, sigma_y=1e-5, sigma_w=0.0)
    single, double = (problem.fitted(dtype=dtype) for dtype in ("float32", "float64"))
    assert single.posterior_.tiles.dtype == np.float64
    assert single.fit_report_.dtype == "float64"
    assert "no float32 Cholesky factor" in single.fit_report_.reasons[-1]
    query = (problem.X_query, problem.Z_query)
    assert_allclose(single.predict(*query), double.predict(*query), rtol=1e-12)


def test_where_memory_allows_no_float64_a_float32_factor_has_jitter():
    problem = make_problem(n=200, theta2=50.0, sigma_y=1e-5, sigma_w=0.0)
    solver = ExactSolver(200, np.float32, replace(session_of(1), memory_limit=300_000))
    with pytest.warns(JitterWarning):
        posterior = solver.condition(MemoryRows(problem.inputs), problem.params)
    assert posterior.tiles.dtype == np.float32
    assert posterior.jitter > 0


@pytest.mark.parametrize("n", [1, 511, 512, 513, 1025])
def test_one_tile_and_one_row_more(n):
    problem = make_problem(n=n, m=5)
    model = problem.fitted()
    mean, std = model.predict(problem.X_query, problem.Z_query, return_std=True)
    expected = oracle.predict(
        problem.k, *problem.data, problem.X_query, problem.Z_query, *problem.noise
    )
    assert_allclose(mean, expected[0], rtol=0, atol=problem.tol * np.abs(problem.y).max())
    assert_allclose(std**2, expected[1].diagonal(), rtol=1e-8)


def test_draws_have_the_posterior_s_moments_whichever_way_they_are_made(monkeypatch):
    problem = make_problem(n=30, m=4, d=2)
    model, query = problem.fitted(), (problem.X_query, problem.Z_query)
    exact = model.explain(*query, cov=True)
    for way in ("_joint_weights_bytes", "_matheron_bytes"):
        with monkeypatch.context() as patch:
            patch.setattr(ExactPosterior, way, lambda posterior, m: 0)
            found = model.sample_weights(*query, n_samples=20_000, random_state=0)
        error = 5 * exact.weights_std / np.sqrt(20_000)
        assert (np.abs(found.mean(axis=2) - exact.weights) <= error).all()
        scale = exact.weights_cov[1].max()
        assert_allclose(np.cov(found[1]), exact.weights_cov[1], rtol=0, atol=0.05 * scale)
        joint = np.cov(found.reshape(8, -1))
        assert_allclose(np.sqrt(joint.diagonal()), exact.weights_std.ravel(), rtol=0.03)


def test_an_indefinite_kernel_is_refused():
    X = np.eye(4)
    data = TrainingRows(X, DenseFeatures(np.ones((4, 1))), np.ones(4))

    class Indefinite(type(KERNELS["rbf"])):
        def multiply(self, a, b, out):
            out *= 2.0

        def diagonal(self, points):
            return np.ones(len(points))

    with pytest.raises(NotPositiveDefinite, match="positive definite"):
        evaluate(data, Hyperparameters.of(Indefinite(1.0, 1.0), 0.0, 0.1))
