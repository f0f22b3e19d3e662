"""The basis solver: densities, functions, sums over rows, evidence and posterior, bad input."""

import copy
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid

import oracle
from gpx_scale import GPXRegressor, InputError, MemoryLimitError, kernels, load, make_plan
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.data.stream import StreamRows
from gpx_scale.datasets import synth2
from gpx_scale.errors import SolverUnavailable, UnresolvedKernelWarning
from gpx_scale.fitting.starting_point import KnownOptimum
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.solvers.basis import remainder
from gpx_scale.solvers.basis.laplacian_basis import LaplacianBasis
from gpx_scale.solvers.basis.marginal_likelihood import gram
from gpx_scale.solvers.basis.sufficient_statistics import BlockBasisStatistics, Nodes
from gpx_scale.solvers.low_dimensional import InputExtent, InputResolution
from gpx_scale.solvers.posterior import MomentRequest
from problems import basis_solver, session_of

NOISE = 0.2, 0.3  # sigma_w, sigma_y


def varying(n, p, d=3, seed=0):
    """Return rows with x in a cube, and a constant column in z."""
    random = np.random.RandomState(seed)
    X = random.uniform(-1.7, 1.7, (n, p))
    Z = np.column_stack([np.ones(n), random.standard_normal((n, d - 1))])
    return X, random.standard_normal(n), Z


def rows_of(X, y, Z):
    return MemoryRows(TrainingRows(X, DenseFeatures(Z), y))


def fitted(kernel, X, y, Z, noise=NOISE, **arguments):
    """Return a model at given hyperparameters, fitted in the units of the data."""
    given = {
        "sigma_w": noise[0],
        "sigma_y": noise[1],
        "optimizer": None,
        "standardize": False,
        "solver": "basis",
    }
    return GPXRegressor(kernel, **{**given, **arguments}).fit(X, y, Z)


# spectral densities

DENSITIES = {
    "rbf": kernels.RBF(1.3, 2.0),
    "matern12": kernels.Matern12(1.1, 3.0),
    "matern32": kernels.Matern32(0.9, 2.5),
    "matern52": kernels.Matern52(1.2, 1.5),
    "sum": kernels.RBF(0.5, 1.0) + kernels.Matern52(0.7, 3.0),
}


@pytest.mark.parametrize("kernel", DENSITIES.values(), ids=DENSITIES)
def test_a_density_is_the_fourier_transform_of_its_kernel(kernel):
    lag = np.linspace(0.0, 60.0, 400_001)[:, None]
    k = kernel(lag, np.zeros((1, 1)))[:, 0]
    omega = np.array([0.0, 0.3, 1.0, 2.0])
    expected = [2.0 * trapezoid(k * np.cos(w * lag[:, 0]), lag[:, 0]) for w in omega]
    assert_allclose(kernel.spectral_density(omega[:, None])[0], expected, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", ["rbf", "matern32", "sum", "ard", "matern12 ard"])
def test_slopes_of_a_density_are_those_of_differences(p, name):
    per_column = tuple(np.linspace(1.0, 2.0, p))
    more = {"ard": kernels.RBF(1.3, per_column), "matern12 ard": kernels.Matern12(1.3, per_column)}
    kernel = (DENSITIES | more)[name]
    omega = np.random.RandomState(0).uniform(0, 3, (7, p))
    _, slopes = kernel.spectral_density(omega)
    for t in range(kernel.theta.size):
        step = 1e-6 * (np.arange(kernel.theta.size) == t)
        up, down = (
            kernel.with_theta(kernel.theta + sign * step).spectral_density(omega)[0]
            for sign in (1, -1)
        )
        assert_allclose(slopes[:, t], (up - down) / 2e-6, rtol=1e-6, atol=1e-9)


# functions and sums


@pytest.mark.parametrize("p", [1, 2, 3])
def test_functions_are_orthonormal_and_0_at_the_edge_and_beyond(p):
    box = LaplacianBasis(np.full(p, 0.5), np.full(p, 2.0), np.full(p, 4), np.ones(p), np.ones(p))
    each = (np.arange(400) + 0.5) / 100 - 1.5  # These are midpoints of cells.
    one = LaplacianBasis(np.array([0.5]), np.array([2.0]), np.array([4]), np.ones(1), np.ones(1))
    phi = one.functions(one.angles(each[:, None]))
    assert_allclose(phi.T @ phi / 100, np.eye(4), atol=1e-4)
    outside = np.full((3, p), 0.5)
    outside[:, 0] = [2.5, 2.6, -40.0]
    assert_allclose(box.functions(box.angles(outside)), 0.0, atol=1e-12)
    assert len(box) < 4**p or p == 1


@pytest.mark.parametrize("p", [1, 2, 3])
def test_sums_of_cosines_make_the_gram_matrix_at_any_noise(p):
    X, y, Z = varying(300, p)
    rows, kernel = rows_of(X, y, Z), kernels.RBF(1.0, 4.0)
    extent = InputExtent.of(rows.data)
    box = LaplacianBasis.around(extent, Hyperparameters.of(kernel, *NOISE), 3, 1.2, 100)
    nodes = Nodes.around(0.1, extent.z_squared, len(rows))
    sums = rows.sum_over(BlockBasisStatistics(box, nodes), session_of(2))
    phi = box.functions(box.angles(X))
    for rho in (0.02, 0.1, 0.5):
        h = 1.0 / (1.0 + rho * np.square(Z).sum(axis=1))
        weights, slopes = nodes.at(rho)
        found, moved = sums.at(weights), sums.at(slopes)
        along = -h * (1.0 - h)  # This is the derivative of h by log rho.
        for pair, (l, k) in enumerate(zip(*np.triu_indices(3), strict=True)):
            F, G = Z[:, [l]] * phi, Z[:, [k]] * phi
            assert_allclose(gram(box, found.cosines[pair]), F.T @ (h[:, None] * G), atol=1e-5)
            assert_allclose(gram(box, moved.cosines[pair]), F.T @ (along[:, None] * G), atol=1e-4)
        assert_allclose(found.b, np.einsum("i,il,ij->lj", h * y, Z, phi), atol=1e-5)
        expected = [-np.log(h).sum(), (h * y**2).sum(), h.sum(), (h**2).sum()]
        assert_allclose(found.plain, expected, atol=1e-5)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.integers(1, 10**7))
def test_nodes_interpolate_to_the_accuracy_they_promise(rho, largest, rows):
    nodes = Nodes.around(rho, largest, rows)
    assert nodes.covers(rho)
    for at in (rho, rho * np.exp(1.9), rho * np.exp(-1.9)):
        t = np.linspace(0.0, largest, 50)
        weights, _ = nodes.at(at)
        values = weights @ (1.0 / (1.0 + nodes.rho[:, None] * t))
        assert np.abs(values - 1.0 / (1.0 + at * t)).max() <= 1e-4 / rows + 1e-12


def test_without_noise_of_the_weights_one_node_is_enough():
    nodes = Nodes.around(0.0, 3.0, 1000)
    assert nodes.count == 1
    assert_array_equal(nodes.at(0.0)[0], [1.0])


# evidence

EXACT = {
    "rbf": lambda p: kernels.RBF(1.3, 6.0),
    "short": lambda p: kernels.RBF(1.3, 2.0),
    "ard": lambda p: kernels.RBF(1.3, tuple(np.linspace(5.0, 9.0, p))),
}


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", EXACT)
def test_smooth_kernels_are_exact(name, p):
    """The evidence is exact to 1e-4 nats, means to 3e-6, and covariances to 1e-6."""
    if (name, p) == ("short", 3):
        pytest.skip("thousands of functions: as test_functions_converge_to_the_exact_model has it")
    d = 1 if p == 3 else 3
    kernel, (X, y, Z) = EXACT[name](p), varying(150, p, d)
    # Each worker has its own sums, which take 128 MiB in three dimensions.
    model = fitted(kernel, X, y, Z, n_jobs=2)
    assert_allclose(
        model.log_marginal_likelihood_value_,
        oracle.log_evidence(kernel, X, y, Z, *NOISE),
        atol=1e-4,
    )
    query = varying(4, p, d, seed=1)
    explanation = model.explain(query[0], query[2], cov=True)
    for i, x in enumerate(query[0]):
        mean, cov = oracle.weights(kernel, X, y, Z, x, *NOISE)
        assert_allclose(explanation.weights[i], mean, atol=3e-6)
        assert_allclose(explanation.weights_cov[i], cov, atol=1e-6)
        assert_allclose(explanation.weights_std[i] ** 2, np.diag(cov), atol=1e-6)
    mean, cov = model.predict(query[0], query[2], return_cov=True)
    expected, joint = oracle.predict(kernel, X, y, Z, query[0], query[2], *NOISE)
    assert_allclose(mean, expected, atol=3e-6)
    assert_allclose(cov, joint, atol=1e-6)
    assert_allclose(
        model.predict(query[0], query[2], return_std=True)[1] ** 2, np.diag(joint), atol=1e-6
    )


SIZES = {1: (8, 32, 256), 2: (6, 12, 34), 3: (4, 8, 14)}
# The largest basis may be this many nats off, because the spectrum of a Matern has a tail, which
# is longer for rougher kernels.
LEFT = {"matern52": 0.5, "matern32": 2.0, "matern12": 15.0}


@pytest.fixture
def few_further_functions(monkeypatch):
    """Let there be few further functions, where a test is not about variances."""
    monkeypatch.setattr(remainder, "MOST_PRODUCTS", 1e8)


@pytest.mark.usefixtures("few_further_functions")
@pytest.mark.filterwarnings("ignore:The functions of the basis")
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", ["rbf", "matern52", "matern32", "matern12"])
def test_functions_converge_to_the_exact_model(name, p):
    """With more functions, evidence and posterior come nearer to the exact ones."""
    kernel = {"rbf": kernels.RBF(1.0, 3.0)}.get(name) or DENSITIES[name].with_theta(
        np.log([1.0, 6.0])
    )
    d = 1 if p == 3 else 2
    X, _, Z = varying(120, p, d)
    C = oracle.covariance(kernel, X, Z, *NOISE)
    y = np.linalg.cholesky(C) @ np.random.RandomState(1).standard_normal(120)
    exact, query = (
        oracle.log_evidence(kernel, X, y, Z, *NOISE),
        np.random.RandomState(2).uniform(-1.5, 1.5, (20, p)),
    )
    means = np.array([oracle.weights(kernel, X, y, Z, x, *NOISE)[0] for x in query])
    nats, errors = [], []
    for count in SIZES[p]:
        model = fitted(kernel, X, y, Z, n_basis=count, n_jobs=2)
        nats.append(abs(model.log_marginal_likelihood_value_ - exact))
        errors.append(np.abs(model.explain(query, np.ones((20, d))).weights - means).max())
    assert nats[-1] < nats[0]
    assert errors[-1] < 0.6 * errors[0]
    assert nats[-1] <= LEFT.get(name, 0.05 if p == 3 else 1e-4)
    assert errors[-1] <= {"rbf": 0.02 if p == 3 else 1e-6, "matern52": 0.1}.get(name, np.inf)


@pytest.mark.usefixtures("few_further_functions")
@pytest.mark.filterwarnings("ignore:The functions of the basis")
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", ["rbf", "ard", "matern52", "matern12", "sum"])
@pytest.mark.parametrize("sigma_w", [0.2, 0.0])
def test_the_gradient_is_that_of_differences(name, p, sigma_w):
    kernel = {"ard": kernels.RBF(1.3, tuple(np.linspace(3.0, 4.0, p)))}.get(name) or DENSITIES[name]
    X, y, Z = varying(100, p)
    model = fitted(kernel, X, y, Z, noise=(sigma_w, 0.3), n_basis=12)
    theta = model.theta_
    params, rows = model.posterior_.hyperparameters, rows_of(X, y, Z)
    engine = basis_solver(rows, 12)
    engine._prepare(rows, params)  # The box serves a range of hyperparameters.
    gradient = engine.evaluate(rows, params).gradient
    for t in np.flatnonzero(np.isfinite(theta)):
        step = 1e-5 * (np.arange(theta.size) == t)
        up, down = (
            engine.evaluate(rows, params.with_theta(theta + sign * step)).value for sign in (1, -1)
        )
        assert_allclose(gradient[t], (up - down) / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "matern32", "sum"])
def test_a_fitted_model_gives_the_gradient(name):
    X, y, Z = varying(100, 1)
    model = fitted(DENSITIES[name], X, y, Z)
    _, gradient = model.log_marginal_likelihood(eval_gradient=True)
    for t in range(gradient.size):
        step = 1e-5 * (np.arange(gradient.size) == t)
        up, down = (model.log_marginal_likelihood(model.theta_ + sign * step) for sign in (1, -1))
        assert_allclose(gradient[t], (up - down) / 2e-5, rtol=1e-4, atol=1e-4)
    model.partial_fit(X[:5], y[:5], Z[:5])
    with pytest.raises(SolverUnavailable, match="needs the training rows"):
        model.log_marginal_likelihood(eval_gradient=True)


def test_a_sum_of_kernels_answers_as_the_exact_solver_does():
    X, y, Z = varying(100, 2)
    kernel = kernels.RBF(1.0, 6.0) + kernels.RBF(0.5, 30.0)
    basis, exact = (fitted(kernel, X, y, Z, solver=solver) for solver in ("basis", "exact"))
    assert_allclose(basis.predict(X, Z), exact.predict(X, Z), atol=1e-5)
    assert basis.sample_weights(X[:2], Z[:2], 2).shape == (2, 3, 2)


def test_functions_beyond_the_spectrum_do_no_harm():
    X, y, Z = varying(60, 1)
    model = GPXRegressor(
        solver="basis",
        n_basis=300,
        random_state=0,
        max_iter=5,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    assert np.isfinite(model.log_marginal_likelihood(eval_gradient=True)[1]).all()


@pytest.mark.parametrize("sigma_y", [1e-2, 1e-3])
def test_little_noise_takes_more_functions_and_a_finer_grid(sigma_y):
    random = np.random.RandomState(0)
    X, kernel = random.uniform(0, 2, (200, 1)), kernels.RBF(1.0, 1.0)
    Z = np.ones((200, 1))
    C = oracle.covariance(kernel, X, Z, 0.0, sigma_y)
    y = np.linalg.cholesky(C) @ random.standard_normal(200)
    query = np.linspace(0.1, 1.9, 15)[:, None]
    for solver in ("basis", "grid"):
        model = fitted(kernel, X, y, Z, noise=(0.0, sigma_y), solver=solver, random_state=0)
        found = model.explain(query, np.ones((15, 1)))
        for i, x in enumerate(query):
            mean, cov = oracle.weights(kernel, X, y, Z, x, 0.0, sigma_y)
            assert abs(found.weights[i, 0] - mean[0]) <= 0.5 * np.sqrt(cov[0, 0] + sigma_y**2)


@pytest.mark.parametrize("sigma_y", [1e-2, 1e-4])
def test_noise_far_too_small_for_the_data_is_followed_as_the_exact_solver_does(sigma_y):
    X, y, Z = varying(150, 2, d=2)
    basis, exact = (
        fitted(kernels.RBF(1.0, 6.0), X, y, Z, noise=(0.0, sigma_y), solver=solver)
        for solver in ("basis", "exact")
    )
    ours, theirs = (model.explain(X[:20], Z[:20]) for model in (basis, exact))
    assert np.abs((ours.weights - theirs.weights) / theirs.weights_std).max() <= 0.05
    assert_allclose(ours.weights_std, theirs.weights_std, rtol=0.01)


def test_too_few_functions_do_not_make_a_search_worse():
    X, y, Z, *_ = synth2(300)
    Z = Z[:, :2]
    model = GPXRegressor(
        solver="basis",
        n_basis=4,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    start = GPXRegressor(solver="basis", n_basis=4, random_state=0, optimizer=None).fit(X, y, Z)
    assert model.log_marginal_likelihood_value_ > start.log_marginal_likelihood_value_


@pytest.mark.parametrize("solver", ["basis", "grid"])
@pytest.mark.parametrize("theta2", [1e-300, 1e-12])
def test_absurdly_short_length_scales_are_refused(solver, theta2):
    X, y, Z = varying(50, 2)
    with pytest.raises((SolverUnavailable, MemoryLimitError)):
        fitted(kernels.RBF(1.0, theta2), X, y, Z, solver=solver)


def test_what_functions_leave_counts_as_noise():
    X, _, Z = varying(300, 2)
    kernel = kernels.Matern12(1.3, 3.0)
    C = oracle.covariance(kernel, X, Z, 0.1, 0.3)
    y = np.linalg.cholesky(C) @ np.random.RandomState(1).standard_normal(300)
    rows, params, exact = (
        rows_of(X, y, Z),
        Hyperparameters.of(kernel, 0.1, 0.3),
        oracle.log_density(y, C),
    )
    engine = basis_solver(rows, 16)
    space = engine._prepare(rows, params)
    found = engine.evaluate(rows, params).value
    known = float(space.mean_square @ kernel.spectral_density(space.box.omega)[0])
    # With these mean squares, the functions seem to leave out nothing.
    engine._space = replace(space, mean_square=space.mean_square * (1.3 / known))
    assert abs(found - exact) < 0.3 * abs(engine.evaluate(rows, params).value - exact)


def errors_of_the_mean(kernel, X, Z, query, noise, **arguments):
    """Return the covariance (m, d, d) of w* minus its mean, and (m, m) of y*, by the oracle.

    The mean is linear in y at given hyperparameters, so fits to unit vectors give its matrix.
    """
    x, z = query
    units = [fitted(kernel, X, y, Z, noise, **arguments) for y in np.eye(len(X))]
    A = np.stack([one.explain(x, z, std=False).weights for one in units], axis=2)
    C, K = oracle.covariance(kernel, X, Z, *noise), kernel(x, X)
    B = K[:, None, :] * Z.T
    crossed = np.einsum("mdn,men->mde", A, B)
    own = noise[0] ** 2 + kernel(x[:1], x[:1])[0, 0]
    each = own * np.eye(Z.shape[1]) - crossed - crossed.swapaxes(1, 2) + A @ C @ A.swapaxes(1, 2)
    a, b = (np.einsum("mdn,md->mn", one, z) for one in (A, B))
    joint = kernel(x, x) * (z @ z.T) - a @ b.T - b @ a.T + a @ C @ a.T
    return each, joint + np.diag(noise[1] ** 2 + noise[0] ** 2 * np.square(z).sum(axis=1))


@pytest.mark.filterwarnings("ignore:The functions of the basis")
@pytest.mark.parametrize("count", ["auto", 12])
@pytest.mark.parametrize("name", ["matern52", "matern32", "matern12", "rbf"])
def test_variances_are_those_of_the_errors_of_the_mean(name, count):
    """They are off by the tail at most, which counts as noise, and by the edge of the box."""
    kernel, noise = DENSITIES[name].with_theta(np.log([1.0, 0.5])), (0.05, 0.1)
    (X, y, Z), query = varying(40, 1, 2), varying(7, 1, 2, seed=1)[::2]
    model = fitted(kernel, X, y, Z, noise, n_basis=count, n_jobs=1)
    each, joint = errors_of_the_mean(kernel, X, Z, query, noise, n_basis=count, n_jobs=1)
    found = model.explain(*query, cov=True)
    near = {"rtol": 0.02, "atol": 1e-3 + 2.0 * np.nan_to_num(model.posterior_.tail_share)}
    assert_allclose(found.weights_cov, each, **near)
    assert_allclose(found.weights_std**2, np.einsum("ijj->ij", each), **near)
    assert_allclose(model.predict(*query, return_cov=True)[1], joint, **near)
    assert_allclose(found.prediction_std**2, joint.diagonal(), **near)
    alone = fitted(kernel, X, y, Z, noise, n_basis=count, n_jobs=1).posterior_
    white = replace(alone, remainder=None)
    before = white.moments(model._query(*query), MomentRequest(variance=True), session_of())
    if name != "rbf" and count == 12:
        # As if what the functions leave out were noise: the test can fail.
        off = np.abs(before.variance - np.einsum("ijj->ij", each))
        assert (off > 0.02 * np.einsum("ijj->ij", each) + near["atol"]).any()


@pytest.mark.parametrize("noise", [(0.05, 0.03), (0.05, 0.3)])
@pytest.mark.parametrize("name", ["matern52", "matern32", "matern12"])
def test_rough_kernels_have_deviations_of_at_least_the_exact_ones(name, noise):
    kernel = DENSITIES[name].with_theta(np.log([1.0, 0.18]))
    X, _, Z = varying(150, 1, 2)
    C = oracle.covariance(kernel, X, Z, *noise)
    y = np.linalg.cholesky(C) @ np.random.RandomState(1).standard_normal(150)
    query = np.random.RandomState(2).uniform(-1.9, 1.9, (100, 1)), np.ones((100, 2))
    exact, found = (
        fitted(kernel, X, y, Z, noise, solver=solver).explain(*query)
        for solver in ("exact", "basis")
    )
    assert (found.weights_std >= 0.97 * exact.weights_std).all()
    assert (found.prediction_std >= 0.97 * exact.prediction_std).all()


def test_a_kernel_that_no_functions_resolve_is_warned_of():
    X, y, Z = varying(60, 2, 2)
    kernel = kernels.Matern12(1.0, 0.5)
    with pytest.warns(UnresolvedKernelWarning, match="Use solver='neighbors' or 'exact'"):
        model = fitted(kernel, X, y, Z, n_basis=12)
    assert "further functions for each weight count this" in model.fit_report_.variances
    assert "which counts as noise" in model.fit_report_.variances


def test_a_rough_model_is_the_same_from_a_stream_a_file_and_any_number_of_threads(tmp_path):
    X, y, Z = varying(1100, 1, 2)
    ends = np.argsort(X[:, 0])
    order = np.concatenate([ends[[0, -1]], np.sort(ends[1:-1])])
    X, y, Z = X[order], y[order], Z[order]
    kernel, query = kernels.Matern32(1.0, 0.5), varying(20, 1, 2, seed=3)[::2]
    one, two = (fitted(kernel, X, y, Z, n_jobs=jobs) for jobs in (1, 2))
    chunks = [(X[i], y[i], Z[i]) for i in np.split(np.arange(1100), [300, 301])]
    stream = copy.copy(two).fit(lambda: iter(chunks))
    two.save(tmp_path / "model.gpx")
    wanted = one.explain(*query, cov=True)
    for model in (two, stream, pickle.loads(pickle.dumps(two)), load(tmp_path / "model.gpx")):
        found = model.explain(*query, cov=True)
        assert_array_equal(found.weights_cov, wanted.weights_cov)
        assert_array_equal(found.prediction_std, wanted.prediction_std)


def test_added_rows_count_in_the_errors_of_a_rough_model():
    X, y, Z = varying(400, 1, 2)
    order = np.argsort(np.abs(X[:, 0]))[::-1]  # The first rows have the extremes of x.
    X, y, Z = X[order], y[order], Z[order]
    kernel, query = kernels.Matern32(1.0, 0.5), (np.linspace(-1.0, 1.0, 20)[:, None], Z[:20])
    whole, parts = fitted(kernel, X, y, Z), fitted(kernel, X[:200], y[:200], Z[:200])
    parts.partial_fit(X[200:], y[200:], Z[200:])
    a, b = (model.explain(*query) for model in (whole, parts))
    # Only the average of the remainder over the rows differs.
    assert_allclose(b.weights_std, a.weights_std, rtol=1e-3)
    assert_allclose(b.prediction_std, a.prediction_std, rtol=1e-3)


def test_the_information_is_near_the_curvature():
    """Compare the average information of the kernel, and that of the noise without functions."""
    X, y, Z = varying(2000, 1, d=2)
    kernel = kernels.RBF(1.0, 1.0)
    y = np.linalg.cholesky(oracle.covariance(kernel, X, Z, 0.3, 0.3)) @ y
    rows, params = rows_of(X, y, Z), Hyperparameters.of(kernel, 0.3, 0.3)
    engine = basis_solver(rows)
    engine._prepare(rows, params)
    found = engine.evaluate(rows, params, information=True).information
    H = np.empty((4, 4))
    for t in range(4):
        step = 1e-4 * (np.arange(4) == t)
        up, down = (
            engine.evaluate(rows, params.with_theta(params.theta + sign * step)).gradient
            for sign in (1, -1)
        )
        H[t] = (down - up) / 2e-4
    assert_allclose(found[2:, 2:], H[2:, 2:], rtol=0.3)
    assert (np.linalg.eigvalsh(found) > 0).all()


# search


@pytest.mark.parametrize("ard", [False, True])
def test_the_search_ends_where_the_exact_one_does(ard):
    X, y, Z, *_ = synth2(700)
    Z = Z[:, :3]
    exact = GPXRegressor(
        solver="exact",
        ard=ard,
        tol=1e-8,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    basis = GPXRegressor(
        solver="basis",
        ard=ard,
        tol=1e-8,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    assert basis.fit_report_.converged
    assert abs(basis.log_marginal_likelihood_value_ - exact.log_marginal_likelihood_value_) < 0.02
    kernel = slice(0, -2)  # The evidence hardly depends on sigma_w here.
    assert_allclose(basis.theta_[kernel], exact.theta_[kernel], atol=0.1)
    query = synth2(50, random_state=1)
    assert_allclose(
        basis.predict(query.X, query.Z[:, :3]), exact.predict(query.X, query.Z[:, :3]), atol=0.02
    )


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_box_is_built_again_when_the_optimum_leaves_it(factor):
    """From a warm start far off, a search passes through several boxes."""
    X, y, Z, *_ = synth2(1000)
    Z = Z[:, :2]
    model = GPXRegressor(
        solver="basis",
        warm_start=True,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    found = model.theta_.copy()
    start = model.posterior_.hyperparameters.theta.copy()
    start[1] = np.log(model.hyperparameters_["theta2"] * factor)
    model._known = KnownOptimum(model.posterior_.hyperparameters.with_theta(start))
    model.fit(X, y, Z)
    assert model.fit_report_.converged
    assert_allclose(model.theta_[:2], found[:2], atol=0.05)


def test_noise_that_leaves_its_nodes_is_evaluated_with_more_of_them():
    X, y, Z = varying(200, 1)
    rows = rows_of(X, y, Z)
    engine = basis_solver(rows)
    kernel = kernels.RBF(1.3, 2.0)
    engine._prepare(rows, Hyperparameters.of(kernel, 0.2, 0.3))
    functions = engine._space.box
    for sigma_w, sigma_y in ((3.0, 0.3), (0.01, 2.0), (0.2, 0.05)):
        found = engine.evaluate(rows, Hyperparameters.of(kernel, sigma_w, sigma_y)).value
        assert_allclose(found, oracle.log_evidence(kernel, X, y, Z, sigma_w, sigma_y), atol=1e-3)
        assert engine._space.box is functions


def test_coefficients_are_found_with_honest_deviations():
    data, query = synth2(6_000), synth2(500, random_state=1)
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y, data.Z
    )
    assert model.solver_ == "basis"
    explanation = model.explain(query.X, query.Z)
    scale = data.weights[0, 0] / (np.sin(2 * np.pi * data.X[0, 0]) * np.cos(np.pi * data.X[0, 1]))
    other = query.weights[0, 0] / (
        np.sin(2 * np.pi * query.X[0, 0]) * np.cos(np.pi * query.X[0, 1])
    )
    truth = query.weights * scale / other
    error = explanation.weights - truth
    assert np.sqrt(np.mean(error**2)) < 0.03
    assert np.mean(np.abs(error) <= 2.0 * explanation.weights_std) >= 0.9
    total = explanation.base_values + explanation.contributions.sum(axis=1)
    assert_allclose(total, model.predict(query.X, query.Z), rtol=1e-12, atol=1e-12)


# where rows are, and threads


def test_threads_and_streams_give_the_same_model(tmp_path):
    data = synth2(5_000)
    data = data._replace(Z=data.Z[:, :2])
    arguments = {"solver": "basis", "random_state": 0, "max_iter": 20}
    two = GPXRegressor(
        **arguments, n_jobs=2, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y, data.Z)
    one = GPXRegressor(
        **arguments, n_jobs=1, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y, data.Z)
    assert_allclose(one.theta_, two.theta_, atol=1e-6)

    def chunks():
        for rows in (slice(0, 1234), slice(1234, 1235), slice(1235, 5000)):
            yield data.X[rows], data.y[rows], data.Z[rows]

    for solver in ("basis", "auto"):
        stream = GPXRegressor(
            **{**arguments, "solver": solver},
            n_jobs=2,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(chunks)
        assert stream.solver_ == "basis"
        assert_allclose(stream.theta_, two.theta_, atol=1e-6)  # Threads change rounding.
        assert_allclose(
            stream.predict(data.X[:50], data.Z[:50]),
            two.predict(data.X[:50], data.Z[:50]),
            atol=1e-6,
        )
    mapped = np.memmap(tmp_path / "x", dtype=float, mode="w+", shape=data.X.shape)
    mapped[:] = data.X
    model = GPXRegressor(
        **arguments, n_jobs=2, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(mapped, data.y, data.Z)
    assert isinstance(model._rows, StreamRows)
    assert_allclose(model.theta_, two.theta_, atol=1e-6)


def test_rows_beyond_the_box_are_refused_and_change_nothing():
    X, y, Z = varying(200, 2)
    model = fitted(kernels.RBF(1.3, 6.0), X, y, Z)
    before = model.predict(X, Z)
    with pytest.raises(InputError, match="beyond the box"):
        model.partial_fit(X + 30.0, y, Z)
    assert model.fit_report_.n_samples == 200
    assert_array_equal(model.predict(X, Z), before)


def test_a_copy_has_the_evidence_within_its_box_only():
    X, y, Z = varying(200, 2)
    model = fitted(kernels.RBF(1.3, 6.0), X, y, Z)
    copy = pickle.loads(pickle.dumps(model))
    near = model.theta_ + 0.01
    assert_array_equal(copy.log_marginal_likelihood(near), model.log_marginal_likelihood(near))
    far = model.theta_ + np.array([0.0, 3.0, 0.0, 0.0])
    assert np.isfinite(model.log_marginal_likelihood(far))
    with pytest.raises(SolverUnavailable, match="needs the training rows"):
        copy.log_marginal_likelihood(far)


def test_a_checkpoint_is_taken_up_again(tmp_path):
    X, y, Z, *_ = synth2(800)
    path = tmp_path / "fit.npz"
    first = GPXRegressor(
        solver="basis",
        random_state=0,
        checkpoint=path,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    again = GPXRegressor(
        solver="basis",
        random_state=0,
        checkpoint=path,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y, Z)
    # The checkpoint has logarithms, and the logarithm of an exponential may be off by a rounding.
    assert_allclose(again.theta_, first.theta_, rtol=4 * np.finfo(float).eps)
    assert not again.fit_report_.evaluations


def test_samples_have_the_posterior_s_moments():
    X, y, Z = varying(60, 1)
    model = fitted(kernels.Matern52(1.3, 4.0), X, y, Z)
    query = varying(3, 1, seed=1)
    draws = model.sample_y(query[0], query[2], 20_000, random_state=0)
    mean, cov = model.predict(query[0], query[2], return_cov=True)
    assert_allclose(draws.mean(axis=1), mean, atol=0.03)
    assert_allclose(np.cov(draws), cov, atol=0.03)


# bad input


@pytest.mark.parametrize("solver", ["basis", "grid"])
@pytest.mark.parametrize("p", [1, 2])
def test_beyond_the_data_the_prior_comes_back_without_oscillation(solver, p):
    X, y, Z = varying(300, p)
    model = fitted(kernels.RBF(1.3, 1.0), X, y + 3.0, Z, solver=solver, random_state=0)
    far = np.zeros((120, p))
    far[:, 0] = np.linspace(1.7, 12.0, 120)
    found = model.explain(far, np.ones((120, 3)))
    prior = np.sqrt(1.3 + NOISE[0] ** 2)
    std = found.weights_std[:, 0]
    assert (np.diff(std) > -1e-3).all()
    assert_allclose(std[-1], prior, rtol=1e-6)
    assert (found.weights_std <= prior * (1 + 1e-9)).all()
    size = np.abs(found.weights)
    assert_allclose(size[-1], 0.0, atol=1e-6)
    assert (size[40:].max(axis=0) <= size[:40].max(axis=0)).all()
    turns = np.diff(np.sign(np.diff(found.weights[:, 0]))) != 0
    assert turns[np.abs(found.weights[1:-1, 0]) > 1e-3].sum() <= 3


@pytest.mark.parametrize("solver", ["basis", "grid"])
def test_a_constant_column_of_x_changes_nothing(solver):
    X, y, Z, *_ = synth2(400)
    one = np.column_stack([X[:, 0], np.full(400, 7.0)])
    model = GPXRegressor(
        solver=solver,
        random_state=0,
        max_iter=15,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(one, y, Z)
    explanation = model.explain(one[:20], Z[:20])
    assert np.isfinite(explanation.weights_std).all()
    assert (explanation.weights_std > 0).all()
    exact = GPXRegressor(
        solver="exact", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(one, y, Z)
    assert_allclose(model.predict(one, Z), exact.predict(one, Z), atol=0.05)
    all_equal = GPXRegressor(
        solver=solver,
        random_state=0,
        max_iter=5,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(np.full((50, 2), 3.0), y[:50], Z[:50])
    assert np.isfinite(all_equal.predict(np.full((2, 2), 3.0), Z[:2])).all()


@pytest.mark.parametrize("solver", ["basis", "grid"])
def test_duplicate_places_with_different_y_are_one_place(solver):
    X, y, Z = varying(40, 2)
    X, Z, y = np.tile(X, (5, 1)), np.tile(Z, (5, 1)), np.random.RandomState(1).standard_normal(200)
    kernel = kernels.RBF(1.0, 3.0)
    model = fitted(kernel, X, y, Z, solver=solver, random_state=0)
    mean, _ = oracle.weights(kernel, X, y, Z, X[0], *NOISE)
    assert_allclose(
        model.explain(X[:1], Z[:1]).weights[0], mean, atol=1e-5 if solver == "basis" else 0.02
    )


@pytest.mark.parametrize("solver", ["basis", "grid"])
def test_metres_and_degrees_are_the_same_to_a_model(solver):
    data = synth2(400)
    data = data._replace(Z=data.Z[:, :2])
    arguments = {"solver": solver, "random_state": 0, "max_iter": 10}
    plain = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y, data.Z
    )
    metres = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        4e6 + 1e5 * data.X, data.y, data.Z
    )
    degrees = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        52.0 + 1e-3 * data.X, data.y, data.Z
    )
    expected = plain.predict(data.X, data.Z)
    assert_allclose(metres.predict(4e6 + 1e5 * data.X, data.Z), expected, atol=1e-3)
    assert_allclose(degrees.predict(52.0 + 1e-3 * data.X, data.Z), expected, atol=1e-3)


@pytest.mark.parametrize("theta2", [1e2, 1e4, 1e8])
def test_a_length_scale_beyond_the_domain_is_a_constant_coefficient(theta2):
    X, y, Z = varying(200, 2)
    kernel = kernels.RBF(1.0, theta2)
    model = fitted(kernel, X, y, Z)
    assert_allclose(
        model.log_marginal_likelihood_value_,
        oracle.log_evidence(kernel, X, y, Z, *NOISE),
        atol=1e-3,
    )
    mean, cov = oracle.weights(kernel, X, y, Z, X[0], *NOISE)
    found = model.explain(X[:1], Z[:1])
    assert_allclose(found.weights[0], mean, atol=1e-4)
    assert_allclose(found.weights_std[0] ** 2, np.diag(cov), atol=1e-5)


@pytest.mark.parametrize("solver", ["basis", "grid"])
def test_what_few_columns_are_for_is_said(solver):
    random = np.random.RandomState(0)
    X, y, Z = (
        random.standard_normal((50, 4)),
        random.standard_normal(50),
        random.standard_normal((50, 2)),
    )
    with pytest.raises(
        InputError, match=r"1 to 3 columns, and this one has 4\. Use solver='exact'"
    ):
        GPXRegressor(solver=solver, kernel="rbf", fit_intercept=False, weights="shared").fit(
            X, y, Z
        )
    with pytest.raises(InputError, match="n_basis"):
        GPXRegressor(
            solver=solver, n_basis=1, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X[:, :2], y, Z)


def test_a_kernel_without_density_is_for_a_grid():
    X, y, Z = varying(100, 1)
    with pytest.raises(SolverUnavailable, match="solver='grid'"):
        GPXRegressor("rq", solver="basis", fit_intercept=False, weights="shared").fit(X, y, Z)
    with pytest.raises(SolverUnavailable, match="solver='grid'"):
        GPXRegressor(
            kernels.RBF() * kernels.Matern32(),
            solver="basis",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, Z)


def test_too_large_a_basis_is_said_before_it_is_built():
    X, y, Z = varying(100, 2)
    with pytest.raises(SolverUnavailable, match=r"length scales are short.*solver='grid'"):
        fitted(kernels.RBF(1.0, 1e-4), X, y, Z)
    with pytest.raises(MemoryLimitError, match=r"basis of .* needs .*n_basis"):
        fitted(kernels.RBF(1.0, 0.5), X, y, Z, memory_limit="30MiB")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_hardly_any_rows(n):
    X, y, Z = varying(n, 2)
    model = GPXRegressor(
        solver="basis", max_iter=5, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y, Z)
    assert np.isfinite(model.explain(X, Z).weights_std).all()


# plan


def test_auto_takes_a_basis_for_few_columns_and_says_why():
    for n, p, solver in (
        (50_000, 2, "basis"),
        (6_000, 1, "basis"),
        (1_000_000, 3, "basis"),
        (1_000, 2, "exact"),
        (60_000, 4, "cg"),
    ):
        assert make_plan(n, p, 5, memory_limit="16GiB", n_jobs=2).solver == solver
    assert make_plan(1_000_000, 2, 5, memory_limit="4GiB", stream=True).solver == "basis"
    assert (
        make_plan(8_000, 2, 5, memory_limit="4GiB", low=InputResolution(smoothness=1.5)).solver
        == "exact"
    )
    assert make_plan(60_000, 2, 5, memory_limit="16GiB", n_jobs=2, low=None).solver == "cg"
    # A basis would need 64 functions for each of 2,000 weights.
    assert make_plan(50_000, 2, 2_000, memory_limit="16GiB").solver != "basis"
    plan = make_plan(50_000, 2, 5, memory_limit="16GiB")
    assert plan.needs_length_scales
    assert "length scales" in str(plan)
    known = make_plan(50_000, 2, 5, memory_limit="16GiB", low=InputResolution(spans=(1.5, 1.5)))
    assert known.solver == "basis"
    assert not known.needs_length_scales
    assert "functions for each weight" in str(known)


def test_auto_takes_a_grid_for_short_length_scales_and_says_why():
    sizes = {"memory_limit": "16GiB", "n_jobs": 2}
    plan = partial(make_plan, 65_000, 2, 5, **sizes)
    short = plan(low=InputResolution(spans=(40.0, 40.0)))
    assert short.solver == "grid"
    assert "too short for a basis" in str(short)
    assert "points per length scale" in str(short)
    assert plan(low=InputResolution(smoothness=1.5, spans=(30.0, 30.0))).solver == "grid"
    # This kernel is too rough for a grid.
    assert plan(low=InputResolution(smoothness=0.5, spans=(3.0, 3.0))).solver == "cg"
    assert (
        make_plan(
            50_000, 2, 5, memory_limit="400MiB", n_jobs=2, low=InputResolution(spans=(400.0, 400.0))
        ).solver
        != "grid"
    )
    stream = make_plan(10**6, 2, 5, stream=True, low=InputResolution(spans=(40.0, 40.0)), **sizes)
    assert stream.solver == "inducing"
