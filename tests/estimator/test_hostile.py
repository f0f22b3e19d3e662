"""The smallest cases of errors that the robustness tests (tests/fuzz) found."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from gpx_scale import (
    XZ,
    GPXError,
    GPXRegressor,
    InputError,
    MemoryLimitError,
    blocks,
    compare,
    kernels,
    load,
    make_plan,
    metrics,
)
from gpx_scale.compare.network_lasso import weber_points
from gpx_scale.errors import NotConverged, NotPositiveDefinite
from problems import make_problem

X, y = make_problem(n=12, p=2, d=2).X, make_problem(n=12).y[:12]
given = {"optimizer": None, "random_state": 0}


@pytest.mark.parametrize("standardize", [True, False])
def test_denormal_columns_are_constant(standardize):
    column = np.zeros((6, 1))
    column[2] = 5e-324
    model = GPXRegressor(standardize=standardize, **given).fit(column, y[:6], np.ones((6, 1)))
    assert_allclose(
        model.predict(column, np.ones((6, 1))), np.full(6, model.predict(column[:1], [[1.0]])[0])
    )


def test_a_grid_over_denormals_has_steps():
    model = GPXRegressor(solver="grid", n_basis=5, **given).fit([[0.0], [1e-323]], y[:2])
    assert np.isfinite(model.predict([[0.0]])).all()


def test_weights_that_leave_float64_are_refused():
    with pytest.raises(InputError, match="units of y over those of Z"):
        GPXRegressor(**given).fit(X, y, np.full((12, 1), 5e-324))
    with pytest.raises(InputError, match="units of y over those of Z"):
        # The weights would be 0, and their contributions would not.
        GPXRegressor(**given).fit(X, 1e-200 * y, 1e200 * X)
    model = GPXRegressor(sigma_y=1e30, **given).fit(X, 1e285 * y)
    for ask in (model.explain, lambda X: model.predict(X, return_std=True)):
        with pytest.raises(InputError, match="leave float64"):
            ask(X)


@pytest.mark.parametrize("large", [{"sigma_w": 1e6}, {"theta1": 1e12}], ids=str)
@pytest.mark.parametrize("solver", ["exact", "cg", "inducing", "neighbors"])
@pytest.mark.parametrize("optimizer", [None, "auto", "lbfgs"])
def test_variances_that_leave_float64_are_refused(large, solver, optimizer):
    """Variances beyond float64 are an error, and no RuntimeWarning.

    |z|^2 = 1e299 is within float64, and its product with sigma_w^2 is not.
    """
    model = GPXRegressor(solver=solver, optimizer=optimizer, standardize=False, **large)
    with pytest.raises(NotPositiveDefinite, match=r"leaves float64|no Cholesky factor"):
        model.fit(X, y, np.full((12, 1), 4e149))


def test_numbers_at_the_end_of_float64_are_refused():
    with pytest.raises(InputError, match=r"y holds 1\.8e\+308"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
            [[3.0]], [np.finfo(float).max]
        )
    for dtype in (np.float16, np.float32):  # A sum of these may be inf - inf.
        both = np.array([[np.inf], [-np.inf]], dtype)
        for table, target in ((both, [1.0, 2.0]), ([[1.0], [2.0]], both[:, 0])):
            with pytest.raises(ValueError, match="infinity"):
                GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(table, target)


def test_a_target_of_denormals_asks_conjugate_gradients_for_nothing():
    target = np.zeros(12)
    target[3] = 5e-324
    model = GPXRegressor(solver="cg", standardize=False, sigma_y=1e6, **given).fit(X, target)
    assert_allclose(model.predict(X), 0.0, atol=1e-300)


def test_rows_without_z_and_much_noise():
    zero = np.zeros((8, 1))
    model = GPXRegressor(
        solver="grid", n_basis=4, standardize=False, sigma_y=1e6, sigma_w=1e6, **given
    ).fit(zero, np.full(8, 3.0))
    assert_allclose(model.predict(zero), 0.0)


def test_a_search_that_has_nowhere_to_go_ends():
    extreme = {"sigma_w": 1e6, "sigma_y": 1e-8, "theta1": 1e-8, "theta2": 1e8, "kernel": "rbf"}
    extreme["weights"] = "shared"
    model = GPXRegressor(solver="inducing", max_iter=2, n_inducing=5, **extreme).fit(
        sp.csr_array([[1.0]]), [-0.05612039]
    )
    assert np.isfinite(model.log_marginal_likelihood_value_)


@pytest.mark.parametrize(
    ("solver", "error"),
    [("inducing", NotPositiveDefinite), ("cg", NotConverged), ("grid", NotConverged)],
)
def test_noise_that_rounding_hides_is_refused(solver, error):
    """Solvers refuse noise that is 1e24 times smaller than theta1 |z|^2.

    A lower bound or an estimate of the log marginal likelihood would be wrong by millions of nats,
    or NaN.
    """
    model = GPXRegressor(
        solver=solver,
        sigma_w=1e-8,
        sigma_y=1e-8,
        theta1=1e8,
        theta2=1e8,
        n_basis=5,
        fit_intercept=True,
        **given,
    )
    with pytest.raises(error, match=r"[Rr]aise sigma_y, or use solver='exact'"):
        model.fit([[1e9]], [-1.0], [[1e9] * 3])


def test_no_samples_of_a_float32_factor():
    model = GPXRegressor(dtype="float32", solver="exact", **given).fit(X, y)
    assert model.sample_y(X, n_samples=0).shape == (12, 0)
    assert model.sample_weights(X, n_samples=0).shape == (12, 2, 0)


def test_a_model_without_sigma_w_is_kept(tmp_path):
    model = GPXRegressor(sigma_w=0.0, **given).fit(X, y)
    model.save(tmp_path / "model.gpx")
    again = load(tmp_path / "model.gpx")
    assert again.theta_[-2] == -np.inf
    assert (again.predict(X) == model.predict(X)).all()


def test_pairs_of_complex_rows_stay_lists():
    rows = [np.array([1.0 + 0.0j, 2.0])]
    assert isinstance(XZ(rows, [[1.0]]).X, list)


@pytest.mark.parametrize("odd", [None, [object()], [[1.0], [1.0, 2.0]], ["a"], [1.0j]])
def test_measures_and_methods_refuse_what_is_no_table(odd):
    with pytest.raises(InputError):
        metrics.mean_squared_error(odd, [1.0])
    with pytest.raises(InputError):
        metrics.stability(None, X, weights=odd)
    for method in (compare.Ridge(), compare.NetworkLasso()):
        with pytest.raises(InputError):
            method.fit(odd, y)
    with pytest.raises((TypeError, ValueError)):
        compare.GPR().fit(odd, y)


@pytest.mark.parametrize(
    "arguments",
    [
        {"sigma_w": 1e300},
        {"sigma_y": 5e-324},
        {"theta1": 1e300},
        {"theta2": 5e-324},
        {"theta2": []},
        {"fit_intercept": np.nan},
        {"fit_intercept": 2},
        {"standardize": None},
        {"standardize": np.array([1.0, 2.0])},
        {"ard": "yes"},
        {"warm_start": "no"},
        {"optimizer": np.array([1.0, 2.0])},
        {"search_rows": np.array([1.0, 2.0])},
        {"search_rows": 10**30},
        {"optimize_inducing": "always"},
        {"tol": 1e300},
        {"inducing_points": np.array(2.0), "solver": "inducing"},
        {"callbacks": 7},
        {"callbacks": [None]},
        {"callbacks": {"a": 1}},
        {"x_transformer": np.array(2.0)},
        {"z_transformer": b"auto"},
        {"dtype": np.array([1.0, 2.0])},
        {"solver": ["exact"]},
        {"n_basis": np.array([1.0, 2.0]), "solver": "basis"},
        {"n_inducing": 10**30, "solver": "inducing"},
    ],
)
def test_arguments_of_any_kind_are_refused_by_name(arguments):
    name = next(iter(arguments))
    model = GPXRegressor(**{"optimizer": None, **arguments})
    with pytest.raises(InputError, match="transformer" if "transformer" in name else name):
        model.fit(X, y)
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("predict", {"return_std": np.array([1.0, 2.0])}, "return_std"),
        ("predict", {"return_cov": "yes"}, "return_cov"),
        ("explain", {"feature_names": 3}, "feature_names"),
        ("explain", {"feature_names": "ab"}, "feature_names"),
        ("explain", {"feature_names": np.array(2.0)}, "feature_names"),
        ("explain", {"std": [True]}, "std="),
        ("explain", {"cov": None}, "cov"),
        ("explain", {"baseline": np.array([1j, 2j])}, "baseline"),
        (
            "explain",
            {"baseline": pd.DataFrame([[70000.0, 1.0]], dtype=np.float32).astype(object)},
            "baseline",
        ),
        ("sample_y", {"n_samples": 10**30}, "n_samples"),
    ],
)
def test_questions_of_any_kind_are_refused_by_name(method, arguments, words):
    with pytest.raises(InputError, match=words):
        getattr(GPXRegressor(**given).fit(X, y), method)(X, **arguments)


@pytest.mark.parametrize("theta", ["", [1j, 0, 0, 0], [1e300, 0, 0, 0], [np.inf, 0, 0, 0]])
def test_logarithms_of_no_number_are_refused(theta):
    with pytest.raises(InputError, match="Give 4 logarithms"):
        GPXRegressor(**given).fit(X, y).log_marginal_likelihood(theta)
    for known in (None, np.zeros(4)):
        with pytest.raises(InputError, match="eval_gradient"):
            GPXRegressor(**given).fit(X, y).log_marginal_likelihood(
                known, eval_gradient=np.array([1.0, 2.0])
            )


@pytest.mark.parametrize(
    ("sizes", "arguments", "words"),
    [
        (("3", 1, 1), {}, "n="),
        ((0, 1, 1), {}, "n="),
        ((10**400, 1, 1), {}, "n="),
        ((5, np.nan, 1), {}, "p="),
        ((5, 1, 0), {}, "d="),
        ((5, 1, None), {"solver": "inducing"}, "d="),
        ((5, 1, 1), {"density": 7.0, "solver": "cg"}, "density"),
        ((5, 1, 1), {"density": "much", "solver": "cg"}, "density"),
        ((5, 1, 1), {"gram": "yes"}, "gram"),
        ((5, 1, 1), {"rank": np.array([1.0, 2.0])}, "preconditioner_rank"),
        ((5, 1, 1), {"solver": np.array(["cg", "cg"])}, "solver"),
    ],
)
def test_plans_of_nothing_are_refused(sizes, arguments, words):
    with pytest.raises(InputError, match=words):
        make_plan(*sizes, **arguments)


@pytest.mark.parametrize(
    "arguments", [{"solver": "grid"}, {"solver": "basis"}, {"solver": "basis", "n_basis": 200}]
)
def test_plans_of_few_columns_stay_within_memory(arguments):
    with pytest.raises(MemoryLimitError, match="memory_limit is"):
        make_plan(10**5, 3, 20, memory_limit="16MiB", **arguments)
    assert make_plan(10**5, 1, 1, memory_limit="1GiB", **arguments).bytes_needed <= 2**30


def test_kernels_look_at_tables_of_numbers_only():
    with pytest.raises(ValueError, match="NaN"):
        kernels.RBF(1.0, 1.0)([[np.nan]])
    with pytest.raises(InputError, match="overflows"):
        kernels.RBF(1.0, 1.0)(sp.csr_array([[1e200]]))
    for table in (np.ones((4, 2)), sp.csr_array(np.ones((4, 2)))):
        with pytest.raises(InputError, match="theta2 has 3 entries, X has 2 columns"):
            kernels.RBF(1.0, (1.0, 2.0, 3.0))(table)


@pytest.mark.parametrize(
    "pair", [(None, X), (X, np.array(3.0)), (X, [[1.0], [1.0, 2.0]]), (3.0, 3.0), (X, None)]
)
def test_pairs_of_no_rows_are_refused(pair):
    with pytest.raises(InputError):
        XZ(*pair)


def test_chunks_that_are_no_tables_are_refused():
    for chunk in ((X, np.array(1.0)), (np.array(1.0), y[:0]), (X + 1j, y), (None, None)):
        with pytest.raises((GPXError, ValueError), match=r".+"):
            GPXRegressor(solver="inducing", **given).fit(lambda chunk=chunk: iter([chunk]))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_parts_of_explanations_are_taken_as_of_any_sequence(form):
    Z = X if form == "dense" else sp.csr_array(X)
    found = GPXRegressor(**given).fit(X, y, Z).explain(X, Z)
    for rows in (float, [0.5], np.array([[1, 2]]), [99], np.array([0.0, 1.0])):
        with pytest.raises((IndexError, TypeError)):
            found[rows]
    assert len(found[[]]) == 0
    assert len(found[np.arange(12) < 5]) == 5
    assert '"level": 0.5' in found.to_json(level=np.float32(0.5))
    assert np.isfinite(found.prediction_interval(np.nextafter(1.0, 0.0)).lower).all()
    for level in ([0.5], "0.5x", None, 1j, np.nan, 1.0):
        with pytest.raises(InputError, match="level"):
            found.interval(level)
    for values in ("median", object, 1j, y[:3]):
        with pytest.raises(InputError, match="12 finite numbers"):
            found.coverage(values)


def test_block_matrices_without_features():
    assert blocks.Z_bar(np.empty((0, 0))).shape == (0, 0)
    assert blocks.Z_bar(np.empty((3, 0))).shape == (3, 0)


def test_what_functions_of_objects_give_is_checked():
    names = list("abc")
    sparse = GPXRegressor(lambda a, b: sp.eye_array(len(a), len(b), format="csr"), **given).fit(
        names, y[:3], X[:3]
    )
    dense = GPXRegressor(lambda a, b: np.eye(len(a), len(b)), **given).fit(names, y[:3], X[:3])
    assert_allclose(sparse.predict(names, X[:3]), dense.predict(names, X[:3]))
    for wrong in (object(), np.eye(3) + 0j, np.eye(2), None, np.full((3, 3), np.nan)):
        with pytest.raises(InputError, match=r"finite numbers of shape \(3, 3\)"):
            GPXRegressor(lambda a, b, wrong=wrong: wrong, **given).fit(names, y[:3], X[:3])


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_similarities_whose_squares_overflow_are_refused(solver):
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2))
    with pytest.raises(InputError, match="Gram matrix has entries beyond"):
        GPXRegressor("precomputed", solver=solver, **given).fit(1e300 * K, y, X)
    with pytest.raises(InputError, match="kernel function returned has entries beyond"):
        GPXRegressor(lambda a, b: np.full((len(a), len(b)), 1e300), solver=solver, **given).fit(
            list(range(12)), y, X
        )
    model = GPXRegressor("precomputed", solver=solver, **given).fit(K, y, X)
    with pytest.raises(InputError, match="Gram matrix has entries beyond"):
        model.predict(1e300 * K, X)


@pytest.mark.parametrize("unit", [1e-300, 5e-324, 1e140])
def test_weber_points_in_any_unit(unit):
    points = np.array([[[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [4.0, 2.0]]])
    assert_allclose(weber_points(points * unit) / unit, [[2.0, 1.0]], rtol=1e-5)
