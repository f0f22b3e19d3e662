"""Hostile and degenerate input leads to a clear error or to a correct result.

An error says what was seen and what to do.
"""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from gpx_scale import XZ, GPXRegressor, InputError, MemoryLimitError, kernels, make_plan
from gpx_scale.data import checks
from gpx_scale.errors import JitterWarning
from gpx_scale.solvers.exact.solver import ExactSolver
from problems import make_problem

X, y = make_problem(n=20).X, make_problem(n=20).y


def changed(value, at=(3, 1)):
    broken = X.copy()
    broken[at] = value
    return broken


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((changed(np.nan), y), ValueError, r"^X contains NaN: 1 value, the first of which is X\["),
        ((changed(np.inf), y), ValueError, "infinity"),
        (
            (X, np.where(np.arange(20) == 3, np.nan, y)),
            ValueError,
            r"^y contains NaN: 1 value, the first of which is y\[3\]\. Fill in",
        ),
        ((X, y, changed(np.nan)), ValueError, r"^Z contains NaN: 1 value"),
        ((X, y[:5]), ValueError, "inconsistent numbers of samples"),
        ((X, y, X[:5]), ValueError, "inconsistent numbers of samples"),
        ((X[:, 0], y), ValueError, "Expected 2D array"),
        ((X, np.column_stack([y, y])), ValueError, "1d"),
        ((X[:, :0], y), ValueError, "0 feature"),
        ((X, y, X[:, :0]), ValueError, "0 feature"),
        ((X[:0], y[:0]), ValueError, "0 sample"),
        ((X.astype(str).astype(object) + "a", y), ValueError, "could not convert"),
        ((X + 1j, y), ValueError, "Complex data not supported"),
        ((X, y + 1j), ValueError, "Complex data not supported"),
        ((X, None), ValueError, "target y is None"),
        ((X * 1e305, y), InputError, "Rescale"),
    ],
)
def test_broken_data_is_named(given, error, words):
    with pytest.raises(error, match=words):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(*given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kernel": "nope"}, "kernel="),
        ({"solver": "magic"}, "solver="),
        ({"theta1": -1.0}, "theta1"),
        ({"theta2": "mean"}, "theta2"),
        ({"sigma_y": 0.0}, "sigma_y"),
        ({"sigma_w": -0.1}, "sigma_w"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"search_rows": 9}, "search_rows"),
        ({"search_rows": "some"}, "search_rows"),
        ({"dtype": "float16"}, "dtype"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"memory_limit": "lots"}, "memory_limit"),
        ({"memory_limit": -5}, "memory_limit"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": 0.5}, "max_iter"),
        ({"n_restarts": -1}, "n_restarts"),
        ({"z_transformer": 3}, "transformer"),
        ({"x_transformer": ["a"]}, "columns|only integers"),
    ],
)
def test_broken_arguments_are_named_and_leave_nothing(arguments, words):
    model = GPXRegressor(**arguments)
    with pytest.raises((InputError, IndexError), match=words):
        model.fit(X, y)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_more_rows_than_lapack_counts_can_be_planned():
    plan = make_plan(50_000, 3, 3, solver="exact", memory_limit="6GiB")
    assert plan.dtype is np.float32
    # These are 5 GB for packed tiles, and the rows.
    assert 2 * 50_000**2 < plan.bytes_needed < 2.2 * 50_000**2


def test_too_little_memory_is_said_before_it_is_taken():
    with pytest.raises(MemoryLimitError, match=r"GiB.*solver='cg'"):
        GPXRegressor(
            solver="exact",
            memory_limit="0.5GiB",
            dtype="float64",
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(np.zeros((15_000, 1)), np.zeros(15_000))
    with pytest.raises(MemoryLimitError, match=r"strip of tiles.*fewer rows"):
        GPXRegressor(
            solver="cg", memory_limit="1MiB", kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(np.zeros((3_000, 1)), np.zeros(3_000))
    with pytest.raises(MemoryLimitError, match="smaller preconditioner_rank"):
        make_plan(50_000, 4, 3, rank=20_000, memory_limit="4GiB")


def test_plans_take_what_fits_and_say_why():
    assert make_plan(8_000, 4, 3, memory_limit="4GiB", n_jobs=2).dtype is np.float64
    less = make_plan(8_000, 4, 3, memory_limit="0.25GiB", n_jobs=2)
    assert less.solver == "exact"
    assert less.dtype is np.float32
    assert "The exact solver (float64, n = 8000) needs" in str(less)
    least = make_plan(8_000, 4, 3, memory_limit="0.12GiB", n_jobs=2)
    assert least.solver == "cg"
    assert least.settings.form == "recomputed"
    assert "The exact solver (float32, n = 8000) needs" in str(least)
    large = make_plan(48_000, 4, 3, memory_limit="16GiB", n_jobs=1)
    assert large.solver == "cg"
    assert large.settings.form == "stored"
    small = make_plan(40_000, 4, 3, memory_limit="3GiB", n_jobs=8)
    assert small.solver == "cg"
    assert small.settings.form == "recomputed"
    assert "to store them would take" in str(small)
    tiny = make_plan(40_000, 4, 3, memory_limit="1GiB", n_jobs=8)
    assert tiny.settings.rank < small.settings.rank
    assert "what memory_limit leaves" in str(tiny)
    for plan in (less, least, large, small, tiny):
        assert plan.bytes_needed <= plan.memory_limit


@pytest.mark.parametrize("n", [1, 2, 3])
def test_hardly_any_rows(n):
    model = GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X[:n], y[:n])
    explanation = model.explain(X)
    assert np.isfinite(explanation.prediction).all()
    assert (explanation.prediction_std > 0).all()
    if n == 1:
        assert_allclose(model.predict(X[:1]), y[:1], rtol=1e-10)


def test_constant_columns_and_constant_y():
    wide = np.column_stack([X, np.full(20, 5.0), np.zeros(20)])
    model = GPXRegressor(optimizer=None).fit(wide, y)
    explanation = model.explain(wide)
    assert_allclose(explanation.contributions[:, 3:], 0.0, atol=1e-12)  # at their baseline
    assert_allclose(
        explanation.base_values + explanation.contributions.sum(axis=1), explanation.prediction
    )
    moved = wide.copy()
    moved[:, 3] = 6.0
    assert np.abs(model.explain(moved).contributions[:, 3]).max() > 0
    flat = GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, np.full(20, 3.25)
    )
    assert_allclose(flat.predict(X), 3.25, rtol=1e-12)


def test_duplicate_rows_get_jitter_and_one_warning():
    doubled, values = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    model = GPXRegressor(optimizer=None, sigma_y=1e-9, sigma_w=0.0)
    with pytest.warns(JitterWarning, match="Raise sigma_y") as caught:
        model.fit(doubled, values)
    assert len(caught) == 1
    assert model.fit_report_.jitter > 0
    assert_allclose(model.predict(X), y, rtol=1e-2, atol=1e-2)
    # With noise that explains them, duplicates are ordinary rows.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noisy = GPXRegressor(
            random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(doubled, values + 0.1 * np.random.RandomState(0).randn(40))
    assert noisy.fit_report_.jitter == 0


def test_rows_of_very_different_size_need_no_jitter():
    Z = X.copy()
    Z[7] *= 1e6
    for dtype in ("float64", "float32"):
        model = make_problem().model(dtype=dtype, sigma_y=0.1).fit(X, y, Z)
        assert model.fit_report_.jitter == 0
    assert_allclose(
        model.predict(X, Z),
        make_problem().model(sigma_y=0.1).fit(X, y, Z).predict(X, Z),
        rtol=1e-6,
        atol=1e-6,
    )


def test_float32_states_the_noise_it_needs_and_keeps_to_it(monkeypatch):
    """A condition number of 1e9 is beyond float32: jitter is added where float64 does not fit.

    The result is exactly that of the model with the reported jitter.
    """
    monkeypatch.setattr(ExactSolver, "_can_widen", lambda solver: False)
    wide, one = np.random.RandomState(0).randn(300, 3), np.ones((300, 1))
    target = np.sin(wide[:, 0])
    arguments = {"theta1": 1.3, "theta2": 50.0, "sigma_w": 0.0}
    single = make_problem().model(**arguments, sigma_y=1e-3, dtype="float32")
    with pytest.warns(JitterWarning, match="Raise sigma_y"):
        single.fit(wide, target, one)
    noise = np.sqrt(1e-6 + single.fit_report_.jitter * (1.3 + 1e-6))
    same = make_problem().model(**arguments, sigma_y=noise).fit(wide, target, one)
    assert_allclose(single.predict(wide, one), same.predict(wide, one), atol=1e-6)
    assert single.log_marginal_likelihood() == pytest.approx(
        same.log_marginal_likelihood(), abs=2.0
    )


def test_rows_of_zero_z_predict_the_prior():
    Z = X.copy()
    Z[5] = 0.0
    model = make_problem().model().fit(X, y, Z)
    mean, std = model.predict(X[:2], np.zeros((2, 3)), return_std=True)
    assert_allclose(mean, 0.0)
    assert_allclose(std, 0.3)  # sigma_y alone
    assert np.isfinite(model.training_explanation().weights).all()


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_any_scale_of_the_data(scale):
    plain = GPXRegressor(optimizer=None).fit(X, y).explain(X)
    scaled = GPXRegressor(optimizer=None).fit(scale * X, scale * y).explain(scale * X)
    assert_allclose(scaled.prediction, scale * plain.prediction, rtol=1e-7, atol=1e-8 * scale)
    assert_allclose(scaled.prediction_std, scale * plain.prediction_std, rtol=1e-7)
    far = GPXRegressor(optimizer=None).fit(X + 1e6, y + 1e6).explain(X + 1e6)
    assert_allclose(far.prediction - 1e6, plain.prediction, rtol=1e-5, atol=1e-5)


def test_unscaled_data_of_any_size():
    tiny = GPXRegressor(standardize=False, kernel="rbf", fit_intercept=False, weights="shared").fit(
        1e-12 * X, 1e-12 * y
    )
    assert np.isfinite(tiny.predict(1e-12 * X)).all()
    metres = GPXRegressor(standardize=False, optimizer=None).fit(X + 1e8, y, np.ones((20, 1)))
    near = GPXRegressor(standardize=False, optimizer=None).fit((X + 1e8) - 1e8, y, np.ones((20, 1)))
    assert_allclose(
        metres.predict(X + 1e8, np.ones((20, 1))),
        near.predict((X + 1e8) - 1e8, np.ones((20, 1))),
        rtol=1e-6,
    )
    with pytest.raises(InputError, match="standardize=True"):
        GPXRegressor(standardize=False, kernel="rbf", fit_intercept=False, weights="shared").fit(
            1e200 * X, y
        )


def test_dtypes_orders_and_read_only_arrays():
    expected = GPXRegressor(optimizer=None).fit(X, y).predict(X)
    frozen = X.copy()
    frozen.flags.writeable = False
    for table in (
        np.asfortranarray(X),
        frozen,
        X[::-1][::-1],
        X.tolist(),
        pd.DataFrame(X),
        X.astype(np.longdouble),
    ):
        assert_allclose(
            GPXRegressor(optimizer=None).fit(table, y).predict(table), expected, rtol=1e-10
        )
    whole = np.round(3 * X).astype(np.int8)
    assert_allclose(
        GPXRegressor(optimizer=None).fit(whole, y > 0).predict(whole),
        GPXRegressor(optimizer=None)
        .fit(whole.astype(float), (y > 0).astype(float))
        .predict(whole.astype(float)),
    )
    assert (frozen == X).all()


def test_an_interrupted_search_keeps_the_best_parameters_found():
    seen = []

    def interrupt(state):
        seen.append((state["evidence"], state["hyperparameters"]))
        if len(seen) == 3:
            raise KeyboardInterrupt

    for solver in ("exact", "cg"):
        seen.clear()
        model = GPXRegressor(
            random_state=0,
            solver=solver,
            callbacks=[interrupt],
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        assert model.hyperparameters_ == max(seen, key=lambda one: one[0])[1]
        assert model.predict(X).shape == y.shape
        assert model.fit_report_.message == "interrupted"
        assert not model.fit_report_.converged


def test_a_fit_that_ends_with_nothing_leaves_the_model_as_it_was(monkeypatch):
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )
    before, report = model.predict(X), model.fit_report_

    def fail(state):
        raise RuntimeError("a callback's own")

    for stop, error in ((fail, RuntimeError), (None, KeyboardInterrupt)):
        if stop is None:  # Ctrl-C comes before the first evaluation ends.
            monkeypatch.setattr(
                "gpx_scale.solvers.exact.solver.ExactSolver.evaluate",
                lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt),
            )
        model.set_params(callbacks=stop)
        with pytest.raises(error):
            model.fit(X[:, :2], y)
        assert_allclose(model.predict(X), before)
        assert model.fit_report_ is report
        assert model.n_features_in_ == 3
    fresh = GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared")
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    assert not [name for name in vars(fresh) if name.endswith("_")]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.explain(X, baseline="median"), "baseline"),
        (lambda m: m.explain(X, baseline=[1.0]), "baseline"),
        (lambda m: m.explain(X, std="fast"), "std="),
        (lambda m: m.explain(X, std="certified", cov=True), "new rows"),
        (lambda m: m.training_explanation(std="certified"), "new rows"),
        (lambda m: m.training_explanation(std="surface"), "new rows"),
        (lambda m: m.training_explanation(std="nonsense"), "std="),
        (lambda m: m.explain(X, feature_names=["a"]), "feature names"),
        (lambda m: m.predict(X, return_std=True, return_cov=True), "both asked for"),
        (lambda m: m.log_marginal_likelihood([0.0, 1.0]), "Give 4 logarithms"),
        (lambda m: m.log_marginal_likelihood([0.0, np.nan, 0.0, 0.0]), "does not fit the model"),
        (lambda m: m.predict(X[:, :2]), "features"),
        (lambda m: m.predict(changed(np.nan)), "NaN"),
    ],
)
def test_broken_questions_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(GPXRegressor(optimizer=None).fit(X, y))


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52", "rq"])
def test_clusters_far_apart_keep_their_digits(kernel):
    """Kernel values keep their digits where |x|^2 / theta2 is 1e12.

    Distances from products instead of differences would have no correct digit.
    """
    random = np.random.RandomState(0)
    near = random.randn(60, 1)
    far = near + 1e6 * (np.arange(60) >= 30)[:, None]
    one, target = np.ones((60, 1)), np.sin(3 * near[:, 0]) + (np.arange(60) >= 30)
    arguments = {"optimizer": None, "standardize": False, "theta2": 2.0, "sigma_w": 0.0}
    value = GPXRegressor(kernel, **arguments).fit(far, target, one).log_marginal_likelihood()
    if kernel != "rq":
        # The covariance between the two clusters is 0.
        halves = [
            GPXRegressor(kernel, **arguments).fit(near[i], target[i], one[i])
            for i in (slice(30), slice(30, 60))
        ]
        # An entry of 1e6 has a rounding unit of 1e-10.
        assert value == pytest.approx(
            sum(half.log_marginal_likelihood() for half in halves), abs=1e-5
        )
    outlier = near.copy()
    outlier[0] = 1e9
    assert np.isfinite(
        GPXRegressor(kernel, fit_intercept=False, weights="shared")
        .fit(outlier, target, one)
        .predict(outlier, one)
    ).all()


def test_gram_matrices_under_cross_validation_as_a_pair():
    K, one = make_problem(n=20).k(X, X), np.ones((20, 1))
    model = GPXRegressor("precomputed", optimizer=None, standardize=False, sigma_w=0.2, sigma_y=0.3)
    vectors = GPXRegressor(
        optimizer=None, standardize=False, theta1=1.3, theta2=2.5, sigma_w=0.2, sigma_y=0.3
    )
    assert_allclose(
        cross_val_predict(model, XZ(K, one), y, cv=4),
        cross_val_predict(vectors, XZ(X, one), y, cv=4),
        rtol=1e-9,
        atol=1e-12,
    )
    fitted = model.fit(K, y, one)
    before = fitted.training_explanation().weights
    K[:] = 0.0  # The model has a copy of the caller's matrix.
    assert_allclose(fitted.training_explanation().weights, before)


def test_columns_of_z_are_compared_by_name():
    Z = pd.DataFrame(X, columns=["u", "v", "w"])
    model = GPXRegressor(optimizer=None).fit(X, y, Z)
    assert_allclose(model.predict(X, Z), model.predict(X, Z.to_numpy()))
    with pytest.raises(InputError, match="feature names"):
        model.predict(X, Z[["v", "u", "w"]])


def shared_items(a, b):
    return [[len(set(s) & set(t)) + 1.0 for t in b] for s in a]


def test_objects_of_any_kind_and_frames_of_them():
    ragged = [[1, 2], [3], [1, 2, 3], [2], [4, 5]]
    model = GPXRegressor(shared_items, fit_intercept=False, weights="shared").fit(
        ragged, y[:5], X[:5]
    )
    assert np.isfinite(model.predict([[1]], X[:1])).all()
    frame = pd.DataFrame({"a": [1, 2, 3, 4, 5], "b": [2, 3, 4, 5, 6]})
    from_frame = GPXRegressor(shared_items, fit_intercept=False, weights="shared").fit(
        frame, y[:5], X[:5]
    )
    assert from_frame.n_features_in_ == 2
    assert np.isfinite(from_frame.predict(frame, X[:5])).all()
    assert not hasattr(from_frame.fit(ragged, y[:5], X[:5]), "n_features_in_")


def test_names_where_transformers_have_few():
    assert GPXRegressor(optimizer=None, z_transformer=[1, 2]).fit(X, y).explain(
        X
    ).feature_names == ["x1", "x2"]
    texts = ["a b", "b c", "c a", "a"]
    nameless = make_pipeline(
        CountVectorizer(token_pattern="."),
        FunctionTransformer(sp.csr_array.toarray, accept_sparse=True),
    )
    model = GPXRegressor(
        shared_items, z_transformer=nameless, fit_intercept=False, weights="shared"
    ).fit(texts, y[:4])
    assert model.explain(texts).feature_names[0] == "x0"


def test_more_broken_input_is_named():
    masked = np.ma.masked_array(y, mask=np.arange(20) == 3)
    with pytest.raises(InputError, match="masked"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, masked)
    with pytest.raises(InputError, match="kernel="):
        GPXRegressor(kernels.RBF, fit_intercept=False, weights="shared").fit(X, y)
    model = GPXRegressor(optimizer=None).fit(X, y, X)
    with pytest.raises(InputError, match="overflows"):
        model.predict(X, np.full((20, 3), 1e200))
    huge = GPXRegressor(optimizer=None).fit(X, 1e200 * y)
    with np.errstate(over="ignore"):
        mean, _ = huge.predict(X, return_cov=True)
    assert np.isfinite(mean).all()
    called = []
    GPXRegressor(
        callbacks=lambda state: called.append(state) or np.bool_(len(called) == 2),
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert len(called) == 2
    given = X.copy()
    explanation = model.explain(given, given)
    given[:] = 0.0
    assert_allclose(explanation.data, X)


def test_a_frame_with_texts_names_the_column():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "city": ["Nara", "Kyoto", "Nara"]})
    with pytest.raises(
        InputError, match=r"Column 'city' of X holds text \('Nara'\).*OneHotEncoder"
    ):
        GPXRegressor(encode=None, optimizer=None).fit(frame, [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="Column 'city' of Z holds text"):
        GPXRegressor(encode=None, optimizer=None).fit(frame[["size"]], [1.0, 2.0, 3.0], frame)


def test_transformers_that_drop_rows_are_refused():
    """Transformers that drop the same row are refused.

    x and z would still match, but the results would belong to other rows than those given.
    """
    X, y = np.random.RandomState(0).randn(20, 2), np.arange(20.0)
    model = GPXRegressor(
        x_transformer=drop_outliers, z_transformer=drop_outliers, optimizer=None
    ).fit(X, y)
    assert model.predict(X[:10]).shape == (10,)
    queries = X[:10].copy()
    queries[3] = 1e6
    for call in (model.predict, model.explain, model.sample_y):
        with pytest.raises(InputError, match="x_transformer made 9 rows of 10"):
            call(queries)
    with pytest.raises(InputError, match="x_transformer made 19 rows of 20"):
        GPXRegressor(
            x_transformer=drop_outliers,
            z_transformer=drop_outliers,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(np.vstack([queries, X[:10]]), y)
    with pytest.raises(InputError, match="z_transformer made 9 rows of 10"):
        GPXRegressor(
            z_transformer=drop_outliers, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(queries, y[:10])


def drop_outliers(table):
    return table[np.abs(table).max(axis=1) < 1e3]


def test_a_transformer_that_fails_on_queries_is_named():
    X, y = np.random.RandomState(0).randn(20, 2), np.arange(20.0)
    model = GPXRegressor(x_transformer=lambda table: table @ np.eye(2), optimizer=None).fit(X, y)
    with pytest.raises(InputError, match=r"x_transformer failed on these rows \(ZeroDivisionError"):
        model.predict(FailingTable(X[:3]))


class FailingTable(np.ndarray):
    """A table that a transformer cannot use."""

    def __new__(cls, table):
        return np.asarray(table).view(cls)

    def __matmul__(self, other):
        raise ZeroDivisionError("no product")


DAYS = pd.date_range("2020-01-01", periods=20)
OBJECTS = {
    "dates": pd.Series([day.date() for day in DAYS], dtype=object),
    "datetimes": pd.Series(list(DAYS.to_pydatetime()), dtype=object),
    "first missing": pd.Series([None, *(day.date() for day in DAYS[1:])], dtype=object),
    "late": pd.Series([*range(15), *(day.date() for day in DAYS[15:])], dtype=object),
    "numpy": pd.Series(list(DAYS.to_numpy()), dtype=object),
}
DURATIONS = {
    "timedelta": pd.Series(DAYS - DAYS[0]),
    "python": pd.Series([datetime.timedelta(days=k) for k in range(20)], dtype=object),
}
DATES = {
    "naive": pd.Series(DAYS),
    "nat": pd.Series(DAYS).where(np.arange(20) != 3),
    "zone": pd.Series(DAYS.tz_localize("Europe/Berlin")),
    "period": pd.Series(DAYS.to_period("M")),
    "category": pd.Series(pd.Categorical(DAYS)),
    "arrow": pd.Series(DAYS).astype("timestamp[ns][pyarrow]"),
    "arrow date": OBJECTS["dates"].astype("date32[pyarrow]"),
}
KINDS = [
    *(pytest.param("dates", column, id=name) for name, column in {**DATES, **OBJECTS}.items()),
    *(pytest.param("durations", column, id=name) for name, column in DURATIONS.items()),
    pytest.param("times of day", pd.Series([datetime.time(k, 30) for k in range(20)]), id="time"),
]


@pytest.mark.parametrize(("what", "column"), KINDS)
def test_a_frame_with_dates_names_the_column_and_the_remedy(what, column, monkeypatch):
    monkeypatch.setattr(checks, "DATE_CHECK_ROWS", 10)
    frame = pd.DataFrame({"a": X[:, 0], "when": column})
    words = rf"^Column 'when' of X holds {what}\. Make numbers of them"
    with pytest.raises(InputError, match=words) as error:
        GPXRegressor(encode=None, optimizer=None).fit(frame, y)
    with pytest.raises(InputError, match=words):
        GPXRegressor(encode=None, optimizer=None).fit(frame[["when"]], y)
    with pytest.raises(InputError, match="^y holds " + what):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(frame[["a"]], column)
    numbers = eval(
        str(error.value).split(": ", 1)[1],
        {"frame": frame[frame["when"].map(type).map(lambda kind: kind is not int)], "pandas": pd},
    )
    assert np.isfinite(
        numbers.dropna().to_numpy(dtype=float)
    ).all()  # The remedy that the message names works.


def test_dates_are_named_wherever_they_come_in():
    numbers = pd.DataFrame({"a": X[:, 0], "when": X[:, 1]})
    dates = numbers.assign(when=DAYS)
    model = GPXRegressor(optimizer=None, encode=None).fit(numbers, y)
    paired = GPXRegressor(optimizer=None, encode=None).fit(numbers, y, numbers)
    few = GPXRegressor(optimizer=None, solver="inducing", n_inducing=5, encode=None)
    few.fit(numbers, y)
    for call, words in (
        (lambda: model.predict(dates), "^Column 'when' of X holds dates"),
        (lambda: model.explain(dates), "^Column 'when' of X holds dates"),
        (lambda: paired.predict(numbers, dates), "^Column 'when' of Z holds dates"),
        (lambda: paired.explain(numbers, dates), "^Column 'when' of Z holds dates"),
        (lambda: few.partial_fit(dates, y), "^Column 'when' of X holds dates"),
        (
            lambda: few.fit(lambda: [(numbers, y), (dates, y)]),
            "^In chunk 2: Column 'when' of X holds dates",
        ),
        (
            lambda: few.fit(lambda: [(numbers, y, dates)]),
            "^In chunk 1: Column 'when' of Z holds dates",
        ),
        (lambda: few.fit(lambda: [(numbers, DAYS.to_numpy())]), "^In chunk 1: y holds dates"),
        (lambda: model.fit(numbers, y, dates), "^Column 'when' of Z holds dates"),
        (lambda: model.fit(dates.to_numpy(), y), "^X holds dates"),
        (lambda: model.fit(dates.to_numpy().tolist(), y), "^X holds dates"),
        (lambda: model.fit(X, list(DAYS)), "^y holds dates"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    unused = GPXRegressor(optimizer=None, x_transformer=["a"], z_transformer=["a"]).fit(dates, y)
    assert np.isfinite(unused.predict(dates)).all()


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_arrays_of_dates_are_no_numbers(unit):
    """Dates are refused: their numbers depend on the stored unit, and NaT would be -9e18."""
    days = DAYS.to_numpy().astype(f"datetime64[{unit}]")[:, None]
    for A, what in ((days, "dates"), (days - days[0], "durations")):
        for arguments, name in (
            ((A, y), "X"),
            ((X, y, A), "Z"),
            ((X, A[:, 0]), "y"),
            ((XZ(X, A), y), "Z"),
        ):
            with pytest.raises(InputError, match=rf"^{name} holds {what}\. ") as error:
                GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(*arguments)
            numbers = eval(str(error.value).split(": ", 1)[1], {name: A, "numpy": np})
            assert np.ptp(numbers) == 19.0
    with pytest.raises(InputError, match=r"^X holds dates"):
        GPXRegressor(optimizer=None).fit(X[:, :1], y).predict(days)


@pytest.mark.parametrize("solver", ["auto", "basis"])
@pytest.mark.parametrize("streamed", [True, False])
def test_columns_of_x_that_cannot_be_compared_are_refused(solver, streamed):
    """Columns of very different scales are refused, unless they are standardised.

    A column of 1e-80 has no influence beside one of 1e80, and no length scale can be found for it.
    """
    random = np.random.RandomState(0)
    X, y = random.randn(300, 2) * [1e-80, 1e80], random.randn(300)
    given = (lambda: iter([(X[:150], y[:150]), (X[150:], y[150:])]),) if streamed else (X, y)
    with pytest.raises(InputError, match=r"differ by a factor of 1e160 in scale.*standardize=True"):
        GPXRegressor(
            solver=solver, standardize=False, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(*given)
    assert np.isfinite(
        GPXRegressor(solver=solver, max_iter=3, kernel="rbf", fit_intercept=False, weights="shared")
        .fit(*given)
        .predict(X[:5])
    ).all()
