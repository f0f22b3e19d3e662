"""The inducing solver: the bound with its gradient, the posterior, the points, and adding rows."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal

import oracle
from gpx_scale import XZ, GPXRegressor, GPXWarning, InputError, MemoryLimitError, kernels, make_plan
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import InputRows, TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.datasets import synth10
from gpx_scale.errors import FewPointsWarning, SolverUnavailable
from gpx_scale.runtime.parallel import threads
from gpx_scale.solvers.inducing import held_out_check
from gpx_scale.solvers.inducing.point_selection import PointSelection
from gpx_scale.solvers.inducing.solver import InducingSolver
from problems import make_problem, problems, session_of

KERNELS = {
    "rbf": kernels.RBF(1.3, 2.5),
    "ard": kernels.RBF(1.3, (2.0, 3.0, 4.0)),
    "matern12": kernels.Matern12(1.1, 3.0),
    "matern52": kernels.Matern52(1.1, 3.0),
    "rq": kernels.RationalQuadratic(1.2, 2.0, shape=1.5),
    "sum": kernels.RBF(0.7, 2.0) + kernels.Matern32(0.5, 4.0),
    "product": kernels.RBF(0.7, 2.0) * kernels.Matern32(1.5, 4.0),
}


def some_points(problem, m):
    """Return points close to the first m rows, in the user's units."""
    return XZ(problem.X[:m] + 0.1, problem.Z[:m] - 0.1)


def solver_at(places):
    return InducingSolver(None, PointSelection(len(places), "given", 0, places), session_of())


# bound


@settings(max_examples=30, deadline=None)
@given(problems(largest=25))
def test_the_bound_is_the_oracle_s_and_below_the_evidence(problem):
    points = some_points(problem, max(1, len(problem.y) // 3))
    model = problem.model(solver="inducing", inducing_points=points).fit(
        *problem.data[:2], problem.Z
    )
    expected = oracle.bound(problem.k, *problem.data, points.X, points.Z, *problem.noise)
    found = model.log_marginal_likelihood_value_
    # The oracle solves with S_uu without jitter, so its own error counts as well.
    singular = oracle.tolerance(problem.k, points.X, points.Z, 0.0, 1e-7)
    assert abs(found - expected) <= max(1e-9, singular) * (1 + abs(expected))
    evidence = oracle.log_evidence(problem.k, *problem.data, *problem.noise)
    assert found <= evidence + 1e-8 * (1 + abs(evidence))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_points_at_the_data_give_the_exact_model(kernel):
    problem = make_problem(n=50, sigma_y=0.2)
    exact, inducing = (
        problem.fitted(kernel=kernel, solver=solver, n_inducing=200)
        for solver in ("exact", "nystrom")
    )
    assert inducing.solver_ == "inducing"
    assert_allclose(
        inducing.log_marginal_likelihood_value_, exact.log_marginal_likelihood_value_, rtol=1e-9
    )
    queries = problem.X_query, problem.Z_query
    for mine, theirs in zip(
        *(m.predict(*queries, return_cov=True) for m in (inducing, exact)), strict=True
    ):
        assert_allclose(mine, theirs, atol=1e-9)
    mine, theirs = (m.explain(*queries, cov=True) for m in (inducing, exact))
    for name in ("weights", "weights_std", "weights_cov", "prediction_std", "base_values"):
        assert_allclose(getattr(mine, name), getattr(theirs, name), atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_gradient_is_that_of_finite_differences(kernel, sparse):
    problem = make_problem(n=60, share=0.5 if sparse else 1.0)
    Z = sp.csr_array(problem.Z) if sparse else problem.Z
    model = problem.model(kernel=kernel, solver="inducing", n_inducing=15, random_state=0).fit(
        problem.X, problem.y, Z
    )
    theta = model.theta_ + 0.1
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == model.log_marginal_likelihood(theta)
    steps = 1e-5 * np.eye(theta.size)
    numeric = [
        (model.log_marginal_likelihood(theta + h) - model.log_marginal_likelihood(theta - h)) / 2e-5
        for h in steps
    ]
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_slopes_by_the_points_are_those_of_finite_differences(kernel):
    problem = make_problem(n=60)
    params = type(problem.params).of(kernel, *problem.noise)
    x, z = problem.X[:12] + 0.2, problem.Z[:12].copy()
    rows = MemoryRows(problem.inputs)

    def bound(x, z):
        return solver_at(InputRows(x, DenseFeatures(z))).bound(rows, params)

    solver = solver_at(InputRows(x, DenseFeatures(z)))
    slopes = solver.gradient(rows, solver.bound(rows, params), by_points=True)
    for i, j in ((0, 0), (5, 2), (11, 1)):
        step = np.zeros_like(x)
        step[i, j] = 1e-5
        assert_allclose(
            slopes.x[i, j],
            (bound(x + step, z).value - bound(x - step, z).value) / 2e-5,
            rtol=1e-4,
            atol=1e-5,
        )
        step = np.zeros_like(z)
        step[i, j] = 1e-5
        assert_allclose(
            slopes.z[i, j],
            (bound(x, z + step).value - bound(x, z - step).value) / 2e-5,
            rtol=1e-4,
            atol=1e-5,
        )


def test_nearly_dependent_points_leave_a_bound_below_the_evidence():
    problem = make_problem(n=40, theta2=200.0)
    points = XZ(np.vstack([problem.X[:10], problem.X[:10] + 1e-9]), np.vstack([problem.Z[:10]] * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The fit warns of jitter.
        model = problem.model(solver="inducing", inducing_points=points).fit(
            problem.X, problem.y, problem.Z
        )
    expected = oracle.bound(
        problem.k, *problem.data, problem.X[:10], problem.Z[:10], *problem.noise
    )
    assert model.log_marginal_likelihood_value_ <= oracle.log_evidence(
        problem.k, *problem.data, *problem.noise
    )
    assert_allclose(model.log_marginal_likelihood_value_, expected, rtol=1e-3)


# posterior


@settings(max_examples=25, deadline=None)
@given(problems(largest=25, shares=(1.0, 0.6)))
def test_weights_are_the_oracle_s(problem):
    points = some_points(problem, max(1, len(problem.y) // 2))
    model = problem.model(solver="inducing", inducing_points=points).fit(
        problem.X, problem.y, problem.Z
    )
    found = model.explain(problem.X_query, problem.Z_query, cov=True)
    tol = max(1e-7, oracle.tolerance(problem.k, points.X, points.Z, 0.0, 1e-6))
    for i, x in enumerate(problem.X_query):
        mean, cov = oracle.inducing_weights(
            problem.k, *problem.data, points.X, points.Z, x, *problem.noise
        )
        assert_allclose(found.weights[i], mean, atol=tol * (1 + np.abs(problem.y).max()))
        assert_allclose(found.weights_cov[i], cov, atol=tol * (1 + problem.theta1))
    assert_allclose(
        found.base_values + found.contributions.sum(axis=1),
        found.prediction,
        rtol=1e-12,
        atol=1e-12,
    )
    assert (found.weights_std >= problem.sigma_w).all()


def test_samples_have_the_posterior_s_moments():
    problem = make_problem(n=60)
    model = problem.fitted(solver="inducing", n_inducing=20, random_state=0)
    mean, cov = model.predict(problem.X_query, problem.Z_query, return_cov=True)
    draws = model.sample_y(problem.X_query, problem.Z_query, 20_000, random_state=1)
    assert_allclose(draws.mean(axis=1), mean, atol=5 * np.sqrt(cov.diagonal().max() / 20_000))
    assert_allclose(np.cov(draws), cov, atol=6 * cov.diagonal().max() / np.sqrt(20_000))


def test_a_fitted_model_holds_no_training_row():
    X, y, _ = synth10(4000)
    small, large = (
        GPXRegressor(solver="inducing", n_inducing=30, optimizer=None).fit(X[:n], y[:n])
        for n in (1000, 4000)
    )
    copy = pickle.loads(pickle.dumps(large))
    assert abs(len(pickle.dumps(large)) - len(pickle.dumps(small))) < 200
    assert_array_equal(copy.predict(X), large.predict(X))
    assert np.isfinite(large.log_marginal_likelihood(large.theta_ + 0.1))
    with pytest.raises(SolverUnavailable, match="needs the training rows"):
        copy.log_marginal_likelihood(large.theta_ + 0.1)


def test_kernels_that_are_given():
    problem = make_problem(n=40, m=5)
    inner = problem.k
    by_function = GPXRegressor(
        lambda a, b: inner(np.array(a), np.array(b)) / 1.3,
        theta1=1.3,
        **dict(zip(("sigma_w", "sigma_y"), problem.noise, strict=True)),
        optimizer=None,
        standardize=False,
        solver="inducing",
        n_inducing=100,
    ).fit(list(problem.X), problem.y, problem.Z)
    expected = problem.fitted(solver="exact").predict(problem.X_query, problem.Z_query)
    assert_allclose(
        by_function.predict(list(problem.X_query), problem.Z_query), expected, atol=1e-9
    )
    gram = by_function.__class__(**{**by_function.get_params(), "kernel": "precomputed"})
    gram.fit(inner(problem.X, problem.X) / 1.3, problem.y, problem.Z)
    asked = inner(problem.X_query, problem.X) / 1.3
    assert_allclose(gram.predict(asked, problem.Z_query), expected, atol=1e-9)
    with pytest.raises(SolverUnavailable, match="Gram matrix"):
        gram.partial_fit(asked, problem.y[:5], problem.Z_query)


# points


def test_points_that_move_raise_the_bound_but_not_above_the_evidence():
    X, y, _ = synth10(800)
    fixed = GPXRegressor(
        solver="inducing",
        n_inducing=60,
        optimize_inducing=False,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    moved = GPXRegressor(
        solver="inducing",
        n_inducing=60,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert moved.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_ + 20
    exact = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )
    assert moved.log_marginal_likelihood_value_ < exact.log_marginal_likelihood_value_


@pytest.mark.parametrize("way", ["rpcholesky", "kmeans"])
@pytest.mark.parametrize("sparse", [False, True])
def test_ways_to_choose_points(way, sparse):
    problem = make_problem(n=200, share=0.5 if sparse else 1.0)
    Z = sp.csr_array(problem.Z) if sparse else problem.Z
    model = GPXRegressor(
        solver="inducing",
        n_inducing=20,
        inducing_points=way,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(problem.X, problem.y, Z)
    assert 1 <= len(model.posterior_) <= 20
    assert model.score(problem.X, problem.y, Z) > 0.5


def test_more_points_than_rows_and_points_that_are_there_twice():
    problem = make_problem(n=30)
    model = problem.fitted(solver="inducing", n_inducing=1000)
    assert len(model.posterior_) == 30
    assert "30 inducing points (all rows; 1000 were asked for)" in str(model.fit_report_)
    twice = XZ(np.vstack([problem.X[:5]] * 2), np.vstack([problem.Z[:5]] * 2))
    sparse = XZ(twice.X, sp.csr_array(twice.Z))
    with pytest.warns(GPXWarning, match="5 of 10 inducing points are copies"):
        problem.model(solver="inducing", inducing_points=sparse).fit(
            problem.X, problem.y, sp.csr_array(problem.Z)
        )
    with pytest.warns(GPXWarning, match="5 of 10 inducing points are copies"):
        model = problem.model(solver="inducing", inducing_points=twice).fit(
            problem.X, problem.y, problem.Z
        )
    expected = oracle.bound(problem.k, *problem.data, problem.X[:5], problem.Z[:5], *problem.noise)
    assert_allclose(model.log_marginal_likelihood_value_, expected)


def test_data_that_say_nothing():
    X, y = np.ones((30, 2)), np.zeros(30)
    model = GPXRegressor(
        solver="inducing", n_inducing=5, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y)  # There is one distinct row.
    assert_allclose(model.predict(X[:2]), 0.0, atol=1e-9)
    Z = sp.csr_array((30, 4))
    empty = GPXRegressor(
        solver="inducing", n_inducing=5, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(np.random.RandomState(0).randn(30, 2), np.arange(30.0), Z)
    assert np.isfinite(empty.predict(X[:2], Z[:2], return_std=True)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_inducing": 0}, "n_inducing"),
        ({"inducing_points": "grid"}, "inducing_points"),
        ({"optimize_inducing": "yes"}, "optimize_inducing"),
        ({"inducing_points": np.zeros((3, 7))}, "inducing_points: X has 7 features"),
        ({"dtype": "float32"}, "float64"),
        ({"inducing_points": None}, "inducing_points"),
        ({"optimize_inducing": True, "optimizer": None}, "needs optimizer"),
    ],
)
def test_broken_arguments_are_named(arguments, words):
    X, y, _ = synth10(50)
    with pytest.raises(InputError, match=words):
        GPXRegressor(
            solver="inducing", **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y)


def test_given_points_are_planned_for_and_know_their_columns():
    import pandas as pd

    X, y, names = synth10(200)
    frame = pd.DataFrame(X, columns=names)
    with pytest.raises(ValueError, match="feature names"):
        GPXRegressor(
            solver="inducing",
            inducing_points=frame[:9][names[::-1]],
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(frame, y)
    model = GPXRegressor(
        solver="inducing", inducing_points=frame[:9], n_inducing=5, optimizer=None
    ).fit(frame, y)
    assert model._plan.settings.points == 9
    with pytest.raises(InputError, match="dense X and Z"):
        GPXRegressor(
            solver="inducing",
            n_inducing=5,
            optimize_inducing=True,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, sp.csr_array(X))


def test_auto_knows_when():
    assert make_plan(200_000, 5, 5, memory_limit="16GiB", n_jobs=2).solver == "neighbors"
    stream = make_plan(200_000, 5, 5, memory_limit="16GiB", n_jobs=2, stream=True)
    assert stream.solver == "inducing"
    assert make_plan(60_000, 5, 5, memory_limit="16GiB", n_jobs=2).solver == "cg"
    assert (
        make_plan(150_000, 5, 5, memory_limit="16GiB", n_jobs=2, density=0.01).settings.form
        == "pairs"
    )
    dense = make_plan(150_000, 5, 5, memory_limit="16GiB", n_jobs=2, density=0.9)
    assert dense.solver == "neighbors"
    assert "more than 600 s" in str(dense)
    tight = make_plan(90_000, 5, 5, memory_limit="300MiB", n_jobs=2)
    assert tight.solver == "neighbors"
    assert "The iterative solver" in str(tight)
    given = {"solver": "inducing", "memory_limit": "1GiB", "n_inducing": 20_000}
    with pytest.raises(MemoryLimitError, match="smaller n_inducing"):
        make_plan(1_000_000, 5, 5, n_jobs=2, **given)
    assert (
        make_plan(150_000, 5, 5, memory_limit="16GiB", n_jobs=2, dtype="float32").solver
        == "neighbors"
    )
    with pytest.raises(InputError, match="needs all rows in memory"):
        make_plan(1000, 5, 5, solver="cg", stream=True)


# searches


def test_what_other_threads_ask_of_blas_does_not_change_a_search():
    problem = make_problem(n=500, p=3, seed=500)

    def found():
        model = GPXRegressor(
            solver="inducing",
            n_inducing=30,
            max_iter=2,
            n_jobs=2,
            random_state=0,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        return model.fit(problem.X, problem.y, problem.Z).theta_

    alone = found()
    # BLAS threads belong to the process, so a scope in another thread would have the same effect.
    with threads(1):
        assert_array_equal(found(), alone)


def test_the_search_ends_where_the_bound_is_flat():
    X, y, _ = synth10(1000)
    model = GPXRegressor(
        solver="inducing",
        n_inducing=60,
        optimize_inducing=False,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert model.fit_report_.converged
    for step in 0.1 * np.eye(model.theta_.size):
        for there in (model.theta_ + step, model.theta_ - step):
            # The prior, which is not in these values, accounts for up to 1.5 nats.
            assert model.log_marginal_likelihood(there) < model.log_marginal_likelihood_value_ + 1.5


def test_many_length_scales_and_a_y_of_any_size():
    random = np.random.RandomState(0)
    X = random.randn(300, 16)
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * random.randn(300)
    ard = GPXRegressor(
        solver="inducing",
        n_inducing=30,
        ard=True,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert "curvature on a sample" not in ard.fit_report_.seconds  # There are 19 parameters.
    assert ard.score(X, y) > 0.8
    plain = {"solver": "inducing", "n_inducing": 30, "random_state": 0, "standardize": False}
    X = X[:, :2]
    tiny = GPXRegressor(
        **plain,
        theta1=1e-12,
        sigma_w=1e-7,
        sigma_y=1e-7,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, 1e-6 * y)
    usual = GPXRegressor(**plain, kernel="rbf", fit_intercept=False, weights="shared").fit(X, y)
    assert_allclose(tiny.predict(X) * 1e6, usual.predict(X), atol=0.05)


def test_a_callback_stops_it_and_a_checkpoint_starts_it_again(tmp_path):
    X, y, _ = synth10(500)
    path = tmp_path / "state"
    arguments = {"solver": "inducing", "n_inducing": 30, "random_state": 0, "checkpoint": path}
    stopped = GPXRegressor(
        **arguments,
        callbacks=[lambda state: state["phase"] == "all rows"],
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert stopped.fit_report_.converged is False
    assert path.exists()
    resumed = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )
    assert resumed.log_marginal_likelihood_value_ >= stopped.log_marginal_likelihood_value_ - 1e-6
    assert list(resumed.fit_report_.evaluations) == ["all rows"]
    with pytest.raises(InputError, match="other data"):
        GPXRegressor(
            **{**arguments, "n_inducing": 31}, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y)
    again = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )  # The search is not repeated if it has finished.
    assert again.log_marginal_likelihood_value_ == resumed.log_marginal_likelihood_value_


def test_a_checkpoint_is_found_again_without_a_random_state(tmp_path):
    X, y, _ = synth10(2300)  # These are more rows than the first search takes.
    arguments = {
        "solver": "inducing",
        "n_inducing": 10,
        "checkpoint": tmp_path / "state",
        "max_iter": 3,
    }
    first, second = (
        GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(X, y)
        for _ in range(2)
    )
    assert first.log_marginal_likelihood_value_ <= second.log_marginal_likelihood_value_ + 1e-6


def test_a_checkpoint_of_other_given_points_is_refused(tmp_path):
    X, y, _ = synth10(200)
    arguments = {"solver": "inducing", "checkpoint": tmp_path / "state", "random_state": 0}
    GPXRegressor(
        **arguments, inducing_points=X[:20], kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y)
    with pytest.raises(InputError, match="other data"):
        GPXRegressor(
            **arguments,
            inducing_points=X[20:40],
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y)


def test_max_iter_holds_for_every_search():
    X, y, _ = synth10(300)
    counts = (
        GPXRegressor(
            solver="inducing",
            n_inducing=20,
            max_iter=3,
            random_state=0,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        .fit(X, y)
        .fit_report_.evaluations
    )
    assert counts["a sample"] <= 2 * 3 + 4  # A line search may end its step.
    assert counts["all rows"] <= 3 + 21


def test_restarts_are_of_the_subset():
    X, y, _ = synth10(300)
    without, with_two = (
        GPXRegressor(
            solver="inducing",
            n_inducing=20,
            n_restarts=count,
            random_state=0,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        .fit(X, y)
        .fit_report_.evaluations
        for count in (0, 2)
    )
    # The subset is all rows here, and is solved exactly.
    assert with_two["300 rows"] > without["300 rows"]
    assert with_two["all rows"] <= without["all rows"] < 20


def test_a_warm_start_keeps_the_points_and_does_not_lose():
    X, y, _ = synth10(500)
    model = GPXRegressor(
        solver="inducing",
        n_inducing=30,
        random_state=0,
        warm_start=True,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    found = [model.fit(X, y).log_marginal_likelihood_value_ for _ in range(3)]
    assert found[1] >= found[0] - 1e-6
    assert found[2] >= found[1] - 1e-6
    other = np.hstack([X, X[:, :3]])
    # With other columns, the points are selected again.
    assert np.isfinite(model.fit(X, y, sp.csr_array(X)).fit(other, y).predict(other)).all()


@pytest.mark.parametrize("phase", ["a sample", "all rows"])
def test_callbacks_stop_every_phase_and_ctrl_c_keeps_what_was_found(phase):
    X, y, _ = synth10(500)
    seen = []

    def stop(state):
        seen.append(state["phase"])
        return state["phase"] == phase

    model = GPXRegressor(
        solver="inducing",
        n_inducing=30,
        random_state=0,
        callbacks=[stop],
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert seen.count(phase) == 1
    assert not model.fit_report_.converged

    def interrupt(state):
        if state["phase"] == phase:
            raise KeyboardInterrupt

    model = GPXRegressor(
        solver="inducing",
        n_inducing=30,
        random_state=0,
        callbacks=[interrupt],
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    with pytest.raises(KeyboardInterrupt, match="fitted at the best"):
        model.fit(X, y)
    assert np.isfinite(model.predict(X[:5])).all()


# partial_fit


@pytest.mark.parametrize("cuts", [(30,), (1, 2, 57), (59,)])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_added_are_rows_fitted(cuts, sparse):
    problem = make_problem(n=60, share=0.5 if sparse else 1.0)
    Z, Z_query = ((sp.csr_array(A) if sparse else A) for A in (problem.Z, problem.Z_query))
    points = XZ(problem.X[:20] + 0.1, Z[:20])
    whole = problem.model(solver="inducing", inducing_points=points).fit(problem.X, problem.y, Z)
    parts = problem.model(solver="inducing", inducing_points=points)
    for rows in np.split(np.arange(60), cuts):
        parts.partial_fit(problem.X[rows], problem.y[rows], Z[rows])
    assert_allclose(
        parts.log_marginal_likelihood_value_, whole.log_marginal_likelihood_value_, rtol=1e-10
    )
    for a, b in zip(
        *(m.predict(problem.X_query, Z_query, return_std=True) for m in (parts, whole)), strict=True
    ):
        assert_allclose(a, b, atol=1e-10)
    assert parts.fit_report_.n_samples == 60


def test_the_first_call_freezes_scaling_points_and_hyperparameters():
    X, y, _ = synth10(900)
    model = GPXRegressor(
        n_inducing=40, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).partial_fit(X[:600], 5.0 + 3.0 * y[:600])
    assert model.solver_ == "inducing"
    theta, scaling, before = (
        model.theta_,
        model._preprocessor.scaling,
        model.score(X[600:], 5.0 + 3.0 * y[600:]),
    )
    model.partial_fit(X[600:], 5.0 + 3.0 * y[600:])
    assert model._preprocessor.scaling is scaling
    assert_array_equal(model.theta_, theta)
    assert model.score(X[600:], 5.0 + 3.0 * y[600:]) > before
    with pytest.raises(SolverUnavailable, match="needs the training rows"):
        model.log_marginal_likelihood(theta)


def test_rows_are_added_to_what_auto_fitted_exactly_too():
    X, y, _ = synth10(400)
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X[:300], y[:300]
    )
    assert model.solver_ == "exact"
    exact = GPXRegressor(optimizer=None, **model.hyperparameters_).fit(X[:300], y[:300]).predict(X)
    model.partial_fit(X[:1], y[:1])  # All rows that the model had become points.
    assert model.solver_ == model.fit_report_.solver == "inducing"
    assert np.mean((model.predict(X) - exact) ** 2) < 1e-3
    assert not hasattr(
        GPXRegressor(solver="cg", kernel="rbf", fit_intercept=False, weights="shared"),
        "partial_fit",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X, y: (X[:, :3], y), "features"),
        (lambda X, y: (X, y[:-1]), "inconsistent"),
        (lambda X, y: (np.where(X[3, 2] == X, np.nan, X), y), "NaN"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(change, words):
    X, y, _ = synth10(200)
    model = GPXRegressor(solver="inducing", n_inducing=10, optimizer=None).partial_fit(X, y)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match=words):
        model.partial_fit(*change(X.copy(), y))
    assert_array_equal(model.predict(X[:5]), before)
    assert model.fit_report_.n_samples == 200


# the held-out check


def wiggly(n=600):
    random = np.random.RandomState(0)
    X = random.uniform(-3.0, 3.0, (n, 1))
    return X, np.sin(6.0 * X[:, 0]) + 0.05 * random.standard_normal(n), np.ones((n, 1))


WIGGLY = {"theta1": 1.0, "theta2": 0.05, "sigma_w": 0.0, "sigma_y": 0.05}


def fit_wiggly(points, *rows):
    given = {"solver": "inducing", "optimizer": None, "standardize": False, "random_state": 0}
    return GPXRegressor(n_inducing=points, **given, **WIGGLY).fit(*rows)


def test_too_few_points_are_warned_of_and_reported():
    rows = wiggly()
    with pytest.warns(FewPointsWarning, match="too few: on held-out rows, means are .* larger"):
        few = fit_wiggly(12, *rows)
    assert "standard deviations (at most" in few.fit_report_.variances
    many = fit_wiggly(150, *rows)  # There is no warning, which would be an error.
    assert "standard deviations (at most" in many.fit_report_.variances
    exact = GPXRegressor(solver="exact", optimizer=None, standardize=False, **WIGGLY).fit(*rows)
    x, z = np.linspace(-2.8, 2.8, 200)[:, None], np.ones((200, 1))
    wanted = exact.explain(x, z)
    off_few, off_many = (
        np.abs(model.explain(x, z).weights - wanted.weights) / model.explain(x, z).weights_std
        for model in (few, many)
    )
    # What the check found is true: means are wrong between few points, and right with many.
    assert off_few.max() > 3.0
    assert off_many.max() < 1.0


def test_a_stream_has_the_same_check():
    X, y, Z = wiggly()
    with pytest.warns(FewPointsWarning):
        memory = fit_wiggly(12, X, y, Z)
    chunks = [(X[i], y[i], Z[i]) for i in np.split(np.arange(600), [250, 400])]
    with pytest.warns(FewPointsWarning):
        stream = fit_wiggly(12, lambda: iter(chunks))
    assert stream.fit_report_.variances == memory.fit_report_.variances


@pytest.mark.parametrize("n", [1, 2, 3])
def test_hardly_any_rows_are_checked_or_not(n):
    model = fit_wiggly(5, *wiggly(n))
    assert ("held-out" in model.fit_report_.variances) == (n > 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_check_is_that_of_the_oracle(sparse, monkeypatch):
    problem = make_problem(n=120, p=2, d=6, share=0.5)
    monkeypatch.setattr(held_out_check, "NEAR_ROWS", 119)
    given = {"solver": "inducing", "inducing_points": some_points(problem, 20), "random_state": 0}
    Z = sp.csr_array(problem.Z) if sparse else problem.Z
    model = problem.model(**given).fit(problem.X, problem.y, Z)
    # The model has shifted x, and its inducing points with it.
    queries = model._model.queries(problem.X, Z)
    rows = TrainingRows(queries.x, queries.Z, problem.y)
    found = held_out_check.check_held_out(model.posterior_, rows, session_of())
    mean, std = model.predict(problem.X, Z, return_std=True)
    noise = problem.sigma_y**2 + problem.sigma_w**2 * np.square(problem.Z).sum(axis=1)
    residuals, deviations = oracle.leave_one_out(problem.k, *problem.data, *problem.noise)
    both = deviations**2 - noise + std**2 - noise
    some = problem.Z.any(axis=1)  # Rows without features have nothing to compare.
    t = np.abs(mean - (problem.y - residuals))[some] / np.sqrt(both[some])
    assert found.most == pytest.approx(t.max(), rel=1e-6)
    usual = np.sqrt(np.square(t).sum() / 120)
    assert found.usual == pytest.approx(usual, rel=1e-6)
