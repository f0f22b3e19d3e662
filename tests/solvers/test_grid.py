"""The grid solver: interpolation, products by FFT, convergence to the exact model, explanations."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_basis import NOISE, fitted, rows_of, varying

import oracle
from gpx_scale import GPXRegressor, MemoryLimitError, kernels, make_plan
from gpx_scale import plan as planner
from gpx_scale.datasets import Varying, synth2
from gpx_scale.errors import SolverUnavailable
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.solvers.grid.interpolation import Grid, GridCovariance, Interpolated
from gpx_scale.solvers.low_dimensional import InputExtent, InputResolution
from problems import session_of

KERNELS = {
    "rbf": lambda p: kernels.RBF(1.3, 2.0),
    "ard": lambda p: kernels.RBF(1.3, tuple(np.linspace(1.5, 3.0, p))),
    "matern12": lambda p: kernels.Matern12(1.1, 3.0),
    "matern52": lambda p: kernels.Matern52(1.1, 3.0),
    "rq": lambda p: kernels.RationalQuadratic(1.2, 2.0, shape=1.5),
    "product": lambda p: kernels.RBF(0.7, 2.0) * kernels.Matern32(1.5, 4.0),
}


def covariance_of(kernel, X, y, Z, per_length=4.0, noise=NOISE):
    data = rows_of(X, y, Z).data
    grid = Grid.around(InputExtent.of(data), kernel, None, per_length)
    return GridCovariance(
        data,
        Hyperparameters.of(kernel, *noise),
        session_of(2),
        np.float64,
        Interpolated.of(grid, X),
    )


def rough(n, seed=0):
    """Return data with two coefficients that change within a fiftieth of the unit square's side."""
    random = np.random.RandomState(seed)
    X = random.uniform(size=(n, 2))
    Z = np.column_stack([np.ones(n), random.standard_normal(n)])
    u, v = 2 * np.pi * X.T
    weights = np.column_stack([np.sin(12 * u) * np.cos(11 * v), np.cos(13 * u + 9 * v)])
    return Varying(
        X, (weights * Z).sum(axis=1) + 0.2 * random.standard_normal(n), Z, ["1", "z"], weights
    )


# interpolation


@pytest.mark.parametrize("p", [1, 2, 3])
def test_cubics_are_interpolated_exactly(p):
    X, *_ = varying(60, p)
    grid = Grid(np.full(p, -2.3), np.full(p, 0.4), (12,) * p)
    points = np.stack(
        np.meshgrid(*[grid.origin[0] + 0.4 * np.arange(12)] * p, indexing="ij"), axis=-1
    ).reshape(-1, p)

    def cubic(x):
        return (1.0 + x - 2 * x**2 + 0.5 * x**3).prod(axis=1)

    W = grid.weights(X)
    assert grid.inside(X).all()
    assert W.nnz == 60 * 4**p
    assert_allclose(W @ cubic(points), cubic(X), rtol=1e-10, atol=1e-10)
    assert_allclose(W.sum(axis=1), 1.0)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_products_are_those_of_the_interpolated_matrix(name, p):
    kernel, (X, y, Z) = KERNELS[name](p), varying(50, p)
    C = covariance_of(kernel, X, y, Z, per_length=2.0)
    grid, W = C.on.grid, C.on.grid.weights(X).toarray()
    each = [
        o + s * np.arange(c) for o, s, c in zip(grid.origin, grid.step, grid.shape, strict=True)
    ]
    points = np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, p)
    S = (W @ kernel(points, points) @ W.T) * (Z @ Z.T)
    exact = oracle.covariance(kernel, X, Z, *NOISE)
    np.fill_diagonal(S, exact.diagonal())
    assert_allclose(C.matmul(np.eye(50)), S, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_are_those_of_the_products(name):
    kernel, (X, y, Z) = KERNELS[name](2), varying(60, 2)
    C = covariance_of(kernel, X, y, Z)
    random = np.random.RandomState(1)
    U, V = random.standard_normal((2, 60, 10))
    found, tangents = C.contract(U, V), C.tangents(V[:, 0])
    for t in range(C.hyperparameters.theta.size):
        step = 1e-6 * (np.arange(C.hyperparameters.theta.size) == t)
        moved = [
            GridCovariance(
                C.rows,
                C.hyperparameters.with_theta(C.hyperparameters.theta + sign * step),
                C.session,
                np.float64,
                C.on,
            )
            for sign in (1, -1)
        ]
        dC = (moved[0].matmul(V) - moved[1].matmul(V)) / 2e-6
        assert_allclose(found[t], (U * dC).sum(), rtol=1e-5, atol=1e-5)
        assert_allclose(tangents[:, t], dC[:, 0], rtol=1e-4, atol=1e-5)


# convergence

FINE = {1: (2.0, 8.0), 2: (2.0, 6.0), 3: (1.5, 4.0)}
LEFT = {"rbf": 0.1, "ard": 0.1, "matern52": 0.5, "matern12": 5.0, "rq": 0.2, "product": 0.5}


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_a_finer_grid_is_nearer_the_exact_covariance_and_evidence(name, p):
    kernel, (X, y, Z) = KERNELS[name](p), varying(150, p)
    exact = oracle.covariance(kernel, X, Z, *NOISE)
    y = np.linalg.cholesky(exact) @ y
    evidence = oracle.log_density(y, exact)
    errors, nats = [], []
    for per_length in FINE[p]:
        C = covariance_of(kernel, X, y, Z, per_length).matmul(np.eye(150))
        errors.append(np.abs(C - exact).max())
        nats.append(abs(oracle.log_density(y, 0.5 * (C + C.T)) - evidence))
    assert errors[1] < 0.6 * errors[0]
    assert nats[1] <= LEFT[name]


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", ["rbf", "matern52"])
def test_evidence_and_posterior_are_near_the_exact_ones(name, p):
    kernel, (X, y, Z) = KERNELS[name](p), varying(300, p, d=2)
    y = np.linalg.cholesky(oracle.covariance(kernel, X, Z, *NOISE)) @ y
    model = fitted(kernel, X, y, Z, solver="grid", random_state=0)
    assert model.solver_ == "grid"
    exact, deviation = (
        oracle.log_evidence(kernel, X, y, Z, *NOISE),
        model.fit_report_.evidence_deviation,
    )
    assert abs(model.log_marginal_likelihood_value_ - exact) <= 1.0 + 4.0 * deviation
    query = varying(5, p, d=2, seed=1)
    explanation = model.explain(query[0], query[2])
    for i, x in enumerate(query[0]):
        mean, cov = oracle.weights(kernel, X, y, Z, x, *NOISE)
        sd = np.sqrt(np.diag(cov))
        assert (np.abs(explanation.weights[i] - mean) <= 0.1 * sd).all()
        assert (explanation.weights_std[i] >= sd * (1 - 1e-9)).all()
        assert_allclose(explanation.weights_std[i], sd, rtol=0.02)
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert abs(value - exact) <= 1.0 + 4.0 * deviation
    assert gradient.shape == model.theta_.shape


# fitted


def test_auto_takes_a_grid_for_short_length_scales(monkeypatch):
    """`auto` takes a grid where the exact solver takes too long; the length scale is given here."""
    monkeypatch.setattr(planner, "AUTO_PATIENCE_SECONDS", 2.0)
    data = synth2(10_500)
    Z, y = np.ones((10_500, 1)), data.y
    given = {"optimizer": None, "sigma_y": 1.0, "random_state": 0, "n_jobs": 2}
    model = GPXRegressor(theta2=0.005, **given).fit(data.X, y, Z)
    assert model.solver_ == "grid"
    assert "too short for a basis" in str(model.fit_report_)
    explanation = model.explain(data.X[:30], Z[:30])
    total = explanation.base_values + explanation.contributions.sum(axis=1)
    assert_allclose(total, explanation.prediction, rtol=1e-12, atol=1e-12)
    assert_allclose(
        model.predict(data.X[:30], Z[:30]), explanation.prediction, rtol=1e-12, atol=1e-12
    )
    longer = GPXRegressor(theta2=0.5, **given).fit(data.X, y, Z)
    assert longer.solver_ == "basis"


@pytest.mark.slow
def test_auto_finds_short_length_scales(monkeypatch):
    monkeypatch.setattr(planner, "AUTO_PATIENCE_SECONDS", 5.0)
    data, query = rough(12_000), rough(300, seed=1)
    model = GPXRegressor(
        random_state=0, memory_limit="8GiB", kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y, data.Z)
    assert model.solver_ == "grid"
    explanation = model.explain(query.X, query.Z)
    error = explanation.weights - query.weights
    assert np.sqrt(np.mean(error**2)) < 0.15  # The standard deviation of a coefficient is 0.6.
    assert np.mean(np.abs(error) <= 2.0 * explanation.weights_std) >= 0.9


def test_queries_off_the_grid_are_answered_from_all_rows():
    X, y, Z = varying(300, 2)
    given = kernels.RBF(1.3, 4.0), X, y, Z
    grid, exact = (fitted(*given, solver=solver, random_state=0) for solver in ("grid", "exact"))
    near, far = X[:3].copy(), X[:3] + 100.0
    near[:, 0] = 2.2  # This is half a unit beyond the data; the length scale is 1.4.
    for query in (near, far):
        assert not grid.posterior_.interpolated.grid.inside(query).any()
        assert_allclose(grid.predict(query, Z[:3]), exact.predict(query, Z[:3]), atol=0.01)


def test_other_length_scales_get_a_grid_of_their_own():
    X, y, Z = varying(150, 2)
    model = fitted(kernels.RBF(1.3, 4.0), X, y, Z, solver="grid", random_state=0)
    theta = model.theta_ - np.array([0.0, 2.0, 0.0, 0.0])
    kernel = kernels.RBF(1.3, 4.0 * np.exp(-2.0))
    fresh = fitted(kernel, X, y, Z, solver="grid", random_state=0)
    deviation = fresh.fit_report_.evidence_deviation
    assert (
        abs(model.log_marginal_likelihood(theta) - fresh.log_marginal_likelihood_value_)
        <= 0.5 + 4.0 * deviation
    )


def test_constant_y_and_one_row_are_fitted():
    X, y, Z = varying(60, 2)
    flat = GPXRegressor(
        solver="grid", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, np.full(60, 3.0), Z)
    assert_allclose(flat.predict(X, Z), 3.0)
    one = GPXRegressor(
        solver="grid", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X[:1], y[:1], Z[:1])
    assert np.isfinite(one.predict(X, Z)).all()


def test_too_fine_a_grid_is_said_before_it_is_laid():
    X, y, Z = varying(200, 3)
    with pytest.raises(MemoryLimitError, match=r"grid of .* points for each of 3 weights needs"):
        fitted(kernels.RBF(1.0, 1e-3), X, y, Z, solver="grid", memory_limit="1GiB")


def test_columns_and_diagonal_are_those_of_the_kernel():
    X, y, Z = varying(80, 2)
    C = covariance_of(KERNELS["matern12"](2), X, y, Z)
    plain = TiledCovariance(C.rows, C.hyperparameters, C.session)
    assert_array_equal(C.columns(np.arange(3)), plain.columns(np.arange(3)))
    assert_allclose(C.matmul(np.eye(80)).diagonal(), plain.diagonal)


# rough kernels


def series(kernel, noise, n=500, m=300):
    """Return a draw from the kernel on [0, 10] with noise: rows to fit, and others to predict."""
    random = np.random.RandomState(0)
    x = random.uniform(0, 10, (n + m, 1))
    root = np.linalg.cholesky(kernel(x) + 1e-9 * np.eye(n + m))
    y = root @ random.standard_normal(n + m) + noise * random.standard_normal(n + m)
    return x[:n], y[:n], x[n:], y[n:]


def at_given_parameters(kernel, noise, solver, x, y, **more):
    given = {
        "optimizer": None,
        "standardize": False,
        "sigma_w": 0.0,
        "sigma_y": noise,
        "random_state": 0,
    }
    return GPXRegressor(kernel, solver=solver, **given, **more).fit(x, y, np.ones((len(x), 1)))


def coverage(model, x, y):
    mean, std = model.predict(x, np.ones((len(x), 1)), return_std=True)
    return np.mean(np.abs(y - mean) <= 1.96 * std)


def test_a_kernel_too_rough_for_a_grid_is_refused():
    x, y, *_ = series(kernels.Matern12(1.0, 2.0), 0.1, n=60)
    for kernel in (
        kernels.Matern12(1.0, 2.0),
        kernels.RBF() + kernels.Matern12(),
        kernels.RBF() * kernels.Matern12(),
    ):
        with pytest.raises(SolverUnavailable, match=r"too rough.*'cg' or 'neighbors'"):
            GPXRegressor(kernel, solver="grid", fit_intercept=False, weights="shared").fit(x, y)


@pytest.mark.parametrize("noise", [0.3, 0.1, 0.03])
@pytest.mark.parametrize("kernel", [kernels.Matern32(1.0, 2.0), kernels.Matern52(1.0, 2.0)])
def test_intervals_of_rough_kernels_cover_as_the_exact_ones_do(kernel, noise):
    x, y, queries, seen = series(kernel, noise)
    exact, grid = (at_given_parameters(kernel, noise, solver, x, y) for solver in ("exact", "grid"))
    assert coverage(grid, queries, seen) >= coverage(exact, queries, seen) - 0.02
    deviation = 4.0 * grid.fit_report_.evidence_deviation
    assert abs(grid.log_marginal_likelihood() - exact.log_marginal_likelihood()) <= 4.0 + deviation


def test_a_grid_that_is_too_coarse_is_refused():
    kernel = kernels.Matern32(1.0, 2.0)
    x, y, *_ = series(kernel, 0.1, n=200)
    with pytest.raises(SolverUnavailable, match=r"too coarse.*larger n_basis"):
        at_given_parameters(kernel, 0.1, "grid", x, y, n_basis=12)
    assert at_given_parameters(kernel, 0.1, "grid", x, y, n_basis=120).solver_ == "grid"


def test_deviations_of_a_grid_are_not_called_bounds():
    x, y, *_ = series(kernels.RBF(1.0, 2.0), 0.1, n=200)
    model = at_given_parameters(kernels.RBF(1.0, 2.0), 0.1, "grid", x, y)
    assert "not upper bounds" in model.fit_report_.variances
    assert "never below" not in model.fit_report_.variances
    percentages = [float(share) for share in re.findall(r"([\d.]+)%", model.fit_report_.variances)]
    assert max(percentages) < 1000.0


def test_auto_takes_no_grid_for_a_rough_kernel():
    known = {"spans": (3000.0,), "spread": 1.0, "relative_signal_to_noise": 1.0}
    for smoothness, solver in ((1.5, "grid"), (0.5, "cg")):
        low = InputResolution(True, smoothness, **known)
        assert make_plan(60_000, 1, 1, low=low, memory_limit="16GiB", n_jobs=2).solver == solver
