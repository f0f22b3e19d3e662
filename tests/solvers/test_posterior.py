"""Predictive moments, joint covariance and samples against the oracle, and their invariants."""

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose

import oracle
from gpx_scale import datasets
from gpx_scale.data.features import DenseFeatures
from gpx_scale.solvers.posterior import LEAST_SURFACE_SHARE, PriorVariance
from problems import make_problem, problems


@given(problems())
def test_moments_agree_with_the_oracle(problem):
    model = problem.fitted()
    explanation = model.explain(problem.X_query, problem.Z_query, cov=True, baseline="zero")
    mean, joint = oracle.predict(
        problem.k, *problem.data, problem.X_query, problem.Z_query, *problem.noise
    )
    near = {"rtol": problem.tol, "atol": problem.tol * np.abs(problem.y).max() + problem.tol}
    assert_allclose(model.predict(problem.X_query, problem.Z_query), mean, **near)
    assert_allclose(explanation.prediction, mean, **near)
    assert_allclose(explanation.prediction_std**2, joint.diagonal(), **near)
    _, cov = model.predict(problem.X_query, problem.Z_query, return_cov=True)
    assert_allclose(cov, joint, rtol=problem.tol, atol=problem.tol * joint.max())
    for i, x in enumerate(problem.X_query):
        w_mean, w_cov = oracle.weights(problem.k, *problem.data, x, *problem.noise)
        assert_allclose(explanation.weights[i], w_mean, **near)
        assert_allclose(
            explanation.weights_cov[i], w_cov, rtol=problem.tol, atol=problem.tol * w_cov.max()
        )
        assert_allclose(
            explanation.weights_std[i] ** 2,
            w_cov.diagonal(),
            rtol=problem.tol,
            atol=problem.tol * w_cov.max(),
        )


@given(problems())
def test_variances_stay_between_their_floor_and_the_prior(problem):
    explanation = problem.fitted().explain(problem.X_query, problem.Z_query)
    assert (explanation.weights_std >= problem.sigma_w).all()
    assert (explanation.weights_std**2 <= problem.theta1 + problem.sigma_w**2 + 1e-12).all()
    assert (explanation.prediction_std >= problem.sigma_y).all()


@given(problems())
def test_variances_of_the_surface_are_never_0(problem):
    explanation = problem.fitted().explain(problem.X_query, problem.Z_query, std="surface")
    least = np.sqrt(LEAST_SURFACE_SHARE * problem.theta1)
    assert (explanation.weights_std >= (1.0 - 1e-12) * least).all()
    assert (explanation.weights_std**2 <= problem.theta1 + 1e-12).all()
    assert (explanation.prediction_std >= problem.sigma_y).all()


def test_no_variance_of_the_surface_is_below_its_rounding():
    problem = make_problem(p=2, d=3, theta1=2.0)
    x, nothing, all_of_it = problem.X_query, np.zeros((6, 3)), np.full((6, 3), 2.0)
    surface = PriorVariance.of(problem.params, x, own=False, surface=True)
    assert_allclose(surface.minus(nothing), 2.0)
    assert_allclose(surface.minus(all_of_it), 2.0 * LEAST_SURFACE_SHARE)
    along = surface.along(DenseFeatures(np.ones((6, 3))), np.full(6, 6.0))
    assert_allclose(along, 6.0 * LEAST_SURFACE_SHARE)
    new, own = (PriorVariance.of(problem.params, x, own, surface=False) for own in (False, True))
    assert_allclose(new.minus(all_of_it), problem.sigma_w**2)
    assert_allclose(own.minus(all_of_it), problem.sigma_w**2)
    assert_allclose(own.minus(all_of_it + problem.sigma_w**2), 0.0, atol=1e-15)


def test_samples_have_the_posterior_s_moments_without_noise_of_the_weights():
    """Without this noise, the prior that samples are drawn from is singular to rounding."""
    problem = make_problem(n=30, d=2, m=3, sigma_w=0.0)
    model, size = problem.fitted(), 4000
    W = model.sample_weights(problem.X_query, problem.Z_query, n_samples=size, random_state=0)
    y = model.sample_y(problem.X_query, problem.Z_query, n_samples=size, random_state=0)
    assert W.shape == (3, 2, size)
    assert y.shape == (3, size)
    explanation = model.explain(problem.X_query, problem.Z_query, cov=True)
    mean, cov = model.predict(problem.X_query, problem.Z_query, return_cov=True)
    five_sd = 5 / np.sqrt(size)
    assert (np.abs(W.mean(axis=2) - explanation.weights) < five_sd * explanation.weights_std).all()
    assert (np.abs(y.mean(axis=1) - mean) < five_sd * np.sqrt(cov.diagonal())).all()
    scale = np.sqrt(np.outer(cov.diagonal(), cov.diagonal()))
    assert (np.abs(np.cov(y) - cov) < 1.5 * five_sd * scale).all()
    for i in range(3):
        assert (
            np.abs(np.cov(W[i]) - explanation.weights_cov[i]) < 1.5 * five_sd * problem.theta1
        ).all()
    # The same seed draws the same weights: y is w.z plus noise with standard deviation sigma_y.
    noise = y - np.einsum("mds,md->ms", W, problem.Z_query)
    assert noise.std() == pytest.approx(problem.sigma_y, rel=0.05)


def test_certified_deviations_are_never_below_exact_and_close():
    data = datasets.synth10(1400)
    problem = make_problem(n=1, d=1)
    model = problem.model(theta1=0.2, theta2=24.0, sigma_w=0.01, sigma_y=0.1).fit(
        data.X[:600], data.y[:600]
    )
    exact, bound = (
        model.explain(data.X[600:], baseline="zero", std=std) for std in (True, "certified")
    )
    assert not np.array_equal(exact.weights_std, bound.weights_std)  # The low rank was used.
    assert (bound.weights_std >= exact.weights_std * (1 - 1e-12)).all()
    assert np.median(bound.weights_std / exact.weights_std) < 1.03
    for name in ("weights", "prediction_std", "base_values_std"):
        assert_allclose(getattr(bound, name), getattr(exact, name), rtol=1e-10, atol=1e-12)


def test_certified_falls_back_to_exact_where_low_rank_does_not_pay():
    random = np.random.RandomState(0)
    X = random.randn(100, 8)
    Xq = X[:60] + 0.01  # Every query has a neighbour of its own.
    model = make_problem().model(theta2=0.5).fit(X, X[:, 0])
    exact, bound = (model.explain(Xq, std=std) for std in (True, "certified"))
    assert_allclose(bound.weights_std, exact.weights_std, rtol=1e-12)
    assert_allclose(bound.prediction_std, exact.prediction_std, rtol=1e-12)


def test_float32_samples_and_joint_covariance():
    problem = make_problem(n=60)
    query = (problem.X_query, problem.Z_query)
    single, double = problem.fitted(dtype="float32"), problem.fitted()
    assert_allclose(
        single.predict(*query, return_cov=True)[1],
        double.predict(*query, return_cov=True)[1],
        rtol=1e-4,
        atol=1e-4,
    )
    for draw in ("sample_y", "sample_weights"):
        ours, theirs = (
            getattr(model, draw)(*query, n_samples=3, random_state=0) for model in (single, double)
        )
        assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
