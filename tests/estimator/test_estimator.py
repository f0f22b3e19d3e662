"""GPXRegressor as users of scikit-learn use it."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_regression
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from gpx_scale import XZ, GPXRegressor, InputError, kernels
from problems import make_problem


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True, as_frame=True, scaled=False)


@pytest.fixture(scope="module")
def fitted(diabetes):
    X, y = diabetes
    return GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X[:300], y[:300]
    )


def dense(table):
    return table.toarray()


def same_words(a, b):
    return [[len(set(s.split()) & set(t.split())) + 1.0 * (s == t) for t in b] for s in a]


NAMED = {"kernel": "rbf", "fit_intercept": False, "weights": "shared"}


@pytest.mark.parametrize(
    "arguments", [{}, NAMED, NAMED | {"solver": "cg"}, NAMED | {"solver": "inducing"}]
)
def test_scikit_learn_s_own_checks_pass(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of checks that do not apply.
        results = check_estimator(GPXRegressor(**arguments), on_fail=None)
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")]
    assert not failed
    assert len(results) > 40


def test_pipeline_grid_search_and_cross_validation(diabetes):
    X, y = diabetes[0][:120], diabetes[1][:120]
    pipe = make_pipeline(
        StandardScaler().set_output(transform="pandas"),
        GPXRegressor(max_iter=5, kernel="rbf", fit_intercept=False, weights="shared"),
    )
    search = GridSearchCV(
        pipe,
        {"gpxregressor__kernel": ["rbf", "matern32"], "gpxregressor__ard": [False]},
        cv=2,
        scoring="r2",
    ).fit(X, y)
    assert search.best_score_ > 0.1
    assert search.best_estimator_[-1].explain(pipe[0].fit(X).transform(X)).feature_names == list(
        X.columns
    )
    assert cross_val_predict(GPXRegressor(optimizer=None), X, y, cv=3).shape == y.shape
    by_default = make_pipeline(StandardScaler(), GPXRegressor(max_iter=5, weights="shared"))
    assert np.corrcoef(cross_val_predict(by_default, X, y, cv=3), y)[0, 1] > 0.5
    shown = GridSearchCV(by_default, {"gpxregressor__ard": [None, False]}, cv=2).fit(X, y)
    assert shown.best_estimator_[-1].kernel_table_.chosen.sum() == 1
    assert cross_val_score(GPXRegressor(optimizer=None), X, y, cv=2, n_jobs=2).shape == (2,)


def test_clone_and_pickle(fitted, diabetes):
    X, _ = diabetes
    again = pickle.loads(pickle.dumps(fitted))
    assert_allclose(again.predict(X), fitted.predict(X), rtol=1e-12)
    copy = clone(
        GPXRegressor(
            kernels.RBF(1.0, 2.0) + kernels.Matern32(),
            ard=True,
            sigma_w=0.0,
            fit_intercept=False,
            weights="shared",
        )
    )
    assert copy.kernel.as_dict()["k1.theta2"] == 2.0
    assert not hasattr(copy, "theta_")


def test_pandas_in_names_out(fitted, diabetes):
    X, _ = diabetes
    explanation = fitted.explain(X[300:])
    assert explanation.feature_names == list(X.columns) == list(fitted.feature_names_in_)
    long, wide = explanation.to_frame(), explanation.to_frame(wide=True)
    assert len(long) == 142 * 10
    assert set(long.columns) >= {
        "sample",
        "feature",
        "value",
        "weight",
        "weight_std",
        "contribution",
        "contribution_std",
    }
    total = long.groupby("sample")["contribution"].sum().to_numpy() + wide["base_value"].to_numpy()
    assert_allclose(total, wide["prediction"].to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(X.rename(columns={"bmi": "weight"}))


def test_score_is_r2_and_unfitted_says_so(fitted, diabetes):
    X, y = diabetes
    assert 0.3 < fitted.score(X[300:], y[300:]) < 0.7
    counts = np.arange(len(X[300:])) % 3  # A row of weight 2 counts like two rows.
    again = np.repeat(np.arange(300, len(X)), counts)
    assert fitted.score(X[300:], y[300:], sample_weight=counts) == pytest.approx(
        fitted.score(X.iloc[again], y.iloc[again])
    )
    with pytest.raises(NotFittedError):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").predict(X)


def test_contributions_add_up_in_the_user_s_units(fitted, diabetes):
    X, _ = diabetes
    query, prediction = X[300:], fitted.predict(X[300:])
    for baseline in ("mean", "zero", np.linspace(-1, 1, 10)):
        explanation = fitted.explain(query, baseline=baseline)
        assert_allclose(
            explanation.base_values + explanation.contributions.sum(axis=1), prediction, rtol=1e-11
        )
        b = (
            {"mean": X[:300].mean().to_numpy(), "zero": np.zeros(10)}.get(baseline)
            if isinstance(baseline, str)
            else baseline
        )
        assert_allclose(
            explanation.contributions,
            explanation.weights * (query.to_numpy() - b),
            rtol=1e-9,
            atol=1e-9,
        )
    mean = fitted.explain(query)
    assert_allclose(mean.base_values, np.mean(diabetes[1][:300]), rtol=1e-12)
    assert_allclose(mean.base_values_std, 0.0)
    assert_allclose(
        mean.contributions_std,
        mean.weights_std * np.abs(query.to_numpy() - X[:300].mean().to_numpy()),
    )
    assert (fitted.explain(query, baseline="zero").base_values_std > 0).all()


def test_explanation_slices_and_names_its_top(fitted, diabetes):
    explanation = fitted.explain(diabetes[0][300:], feature_names=[f"f{k}" for k in range(10)])
    assert len(explanation) == 142
    assert len(explanation[3]) == 1
    assert len(explanation[10:20]) == 10
    assert_allclose(explanation[[5, 7]].weights, explanation.weights[[5, 7]])
    assert_allclose(explanation[-1].prediction, explanation.prediction[-1:])
    assert sum(1 for _ in explanation[:4]) == 4
    reasons = explanation.top(0, k=10)
    sizes = [abs(reason.contribution) for reason in reasons]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(r.contribution for r in reasons) + explanation.base_values[0] == pytest.approx(
        explanation.prediction[0]
    )
    with pytest.raises(IndexError):
        explanation[142]
    bare = fitted.explain(diabetes[0][300:], std=False)
    assert bare.weights_std is None
    assert bare.top(0)[0].contribution_std is None
    assert "weight_std" not in bare.to_frame()


def test_mean_and_deviation_scale_with_y(diabetes):
    X, y = diabetes[0][:150], diabetes[1][:150].to_numpy()
    one = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )
    other = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, 1e6 * y - 5e7
    )
    a, b = one.explain(X[:20]), other.explain(X[:20])
    assert_allclose(b.weights, 1e6 * a.weights, rtol=1e-5, atol=1e-5 * np.abs(b.weights).max())
    assert_allclose(b.weights_std, 1e6 * a.weights_std, rtol=1e-5)
    assert_allclose(b.prediction, 1e6 * a.prediction - 5e7, rtol=1e-5)
    shift = one.log_marginal_likelihood() - other.log_marginal_likelihood()
    assert shift == pytest.approx(150 * np.log(1e6), rel=1e-6)


def test_weights_do_not_depend_on_units_of_z(diabetes):
    X, y = diabetes[0][:150].to_numpy(), diabetes[1][:150].to_numpy()
    units = 10.0 ** np.arange(-5, 5)
    a = GPXRegressor(optimizer=None).fit(X, y).explain(X[:20])
    b = GPXRegressor(optimizer=None).fit(X * units, y).explain(X[:20] * units)
    assert_allclose(b.weights * units, a.weights, rtol=1e-8, atol=1e-10)
    assert_allclose(b.contributions, a.contributions, rtol=1e-8, atol=1e-9)


def test_standardised_evidence_is_in_the_user_s_units(problem):
    model = GPXRegressor(optimizer=None).fit(problem.X, problem.y, problem.Z)
    scale = problem.y.std()
    standard = GPXRegressor(
        optimizer=None, standardize=False, theta2=model.hyperparameters_["theta2"]
    )
    standard.fit(
        (problem.X - problem.X.mean(0)) / problem.X.std(0),
        (problem.y - problem.y.mean()) / scale,
        (problem.Z - problem.Z.mean(0)) / problem.Z.std(0),
    )
    expected = standard.log_marginal_likelihood() - len(problem.y) * np.log(scale)
    assert model.log_marginal_likelihood() == pytest.approx(expected, rel=1e-10)


def test_theta_is_the_logs_and_the_gradient_is_by_them(problem):
    for kernel, ard in (("rbf", False), ("matern52", True), ("rq", False)):
        model = GPXRegressor(
            kernel, ard=ard, max_iter=3, fit_intercept=False, weights="shared"
        ).fit(problem.X, problem.y, problem.Z)
        values = [np.ravel(value) for value in model.hyperparameters_.values()]
        assert_allclose(model.theta_, np.log(np.concatenate(values)))
        theta = model.theta_ + 0.1
        _, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
        for k, h in enumerate(1e-5 * np.eye(theta.size)):
            up, down = (
                model.log_marginal_likelihood(theta + h),
                model.log_marginal_likelihood(theta - h),
            )
            assert gradient[k] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)
        assert model.log_marginal_likelihood(model.theta_) == pytest.approx(
            model.log_marginal_likelihood_value_
        )
    assert list(
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared")
        .fit(problem.X, problem.y)
        .hyperparameters_
    ) == [
        "theta1",
        "theta2",
        "sigma_w",
        "sigma_y",
    ]


def test_the_optimum_is_one(problem):
    model = GPXRegressor(
        tol=1e-10, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(problem.X, problem.y, problem.Z)
    start = GPXRegressor(optimizer=None).fit(problem.X, problem.y, problem.Z)
    assert model.log_marginal_likelihood() > start.log_marginal_likelihood() + 1
    _, gradient = model.log_marginal_likelihood(eval_gradient=True)
    sd = np.array([3.0, 2.0, 3.0, 3.0])
    at_prior = -(model.theta_ - start.theta_) / sd**2
    assert_allclose(gradient, -at_prior, atol=2e-2)


def test_a_subset_start_finds_the_optimum_of_all_rows():
    X, y = make_regression(800, 5, n_informative=3, noise=20.0, random_state=0)
    y = y + 30 * np.sin(2 * X[:, 0]) * X[:, 1]
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X, y
    )
    report = model.fit_report_
    assert set(report.evaluations) == {"a quarter of the rows", "all rows"}
    from_optimum = GPXRegressor(
        random_state=1, tol=1e-9, n_restarts=1, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y)
    assert model.log_marginal_likelihood() > from_optimum.log_marginal_likelihood() - 0.1
    assert report.converged
    assert report.evaluations["all rows"] < 20


def test_sigma_w_zero_is_held(problem):
    model = GPXRegressor(sigma_w=0.0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        problem.X, problem.y, problem.Z
    )
    assert model.hyperparameters_["sigma_w"] == 0.0
    assert model.theta_[2] == -np.inf
    _, gradient = model.log_marginal_likelihood(eval_gradient=True)
    assert gradient[2] == 0.0


def test_report_reads_and_counts(fitted):
    report, text = fitted.fit_report_, str(fitted.fit_report_)
    for word in (
        "why",
        "log marginal likelihood",
        "evaluations",
        "seconds",
        "at a bound",
        "jitter",
        "memory",
        "leave-one-out",
    ):
        assert word in text
    assert fitted.n_iter_ == sum(report.evaluations.values())
    assert report.memory_peak > 0
    residuals, _ = fitted.leave_one_out()
    assert report.leave_one_out_rmse == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-6)


def test_warm_start_restarts_callbacks_and_verbose(problem, capsys):
    seen = []
    model = GPXRegressor(
        warm_start=True,
        callbacks=[seen.append],
        n_restarts=1,
        verbose=1,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(problem.X, problem.y, problem.Z)
    first = len(seen)
    assert first == model.n_iter_
    assert {"phase", "evaluation", "evidence", "hyperparameters", "seconds"} <= set(seen[0])
    assert "nats" in capsys.readouterr().err
    model.set_params(n_restarts=0).fit(problem.X, problem.y, problem.Z)
    assert len(seen) - first < first / 2
    stopped = GPXRegressor(
        callbacks=[lambda state: state["evaluation"] == 3],
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(problem.X, problem.y, problem.Z)
    assert stopped.fit_report_.evaluations == {"all rows": 3}
    assert stopped.fit_report_.message == "stopped by a callback"
    # A warm start keeps sigma_w at 0, and frees it when the argument is not 0.
    held = model.set_params(sigma_w=0.0).fit(problem.X, problem.y, problem.Z)
    assert held.hyperparameters_["sigma_w"] == 0.0
    assert (
        model.set_params(sigma_w=0.1)
        .fit(problem.X, problem.y, problem.Z)
        .hyperparameters_["sigma_w"]
        > 1e-3
    )


def test_a_callback_ends_restarts_and_later_stages():
    X, y = make_regression(700, 3, noise=10.0, random_state=0)
    model = GPXRegressor(
        n_restarts=2,
        callbacks=[lambda state: state["evaluation"] == 4],
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    assert model.fit_report_.evaluations == {"a quarter of the rows": 4}
    assert np.isnan(model.fit_report_.leave_one_out_rmse)
    assert "NOT converged: stopped by a callback" in str(model.fit_report_)


def test_parameters_at_a_bound_are_named():
    X = np.random.RandomState(0).randn(40, 2)
    model = GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").fit(X, np.zeros(40))
    assert_allclose(model.predict(X), 0.0, atol=1e-12)
    unscaled = GPXRegressor(
        standardize=False, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, 1e5 * np.random.RandomState(1).randn(40))
    assert "theta1" in unscaled.fit_report_.at_bound
    assert "theta1" in str(unscaled.fit_report_).split("at a bound")[1]


def test_z_of_one_is_gaussian_process_regression(diabetes):
    X, y = diabetes[0][:100].to_numpy(), diabetes[1][:100].to_numpy()
    Xs, ys = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    kernel = ConstantKernel(1.7, "fixed") * RBF(np.sqrt(7.0 / 2), "fixed") + WhiteKernel(
        0.4**2, "fixed"
    )
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(Xs[:80], ys[:80])
    ours = GPXRegressor(
        optimizer=None, theta1=1.7, theta2=7.0, sigma_w=0.0, sigma_y=0.4, standardize=False
    )
    one = np.ones((100, 1))
    ours.fit(Xs[:80], ys[:80], one[:80])
    mean, std = theirs.predict(Xs[80:], return_std=True)
    our_mean, our_std = ours.predict(Xs[80:], one[80:], return_std=True)
    assert_allclose(our_mean, mean, rtol=1e-9, atol=1e-11)
    assert_allclose(our_std, std, rtol=1e-9)
    assert ours.log_marginal_likelihood() == pytest.approx(
        theirs.log_marginal_likelihood(theirs.kernel_.theta), rel=1e-10
    )
    # For z = 1, sigma_w^2 adds to sigma_y^2.
    split = ours.set_params(sigma_w=0.4 * np.sqrt(0.3), sigma_y=0.4 * np.sqrt(0.7)).fit(
        Xs[:80], ys[:80], one[:80]
    )
    assert_allclose(split.predict(Xs[80:], one[80:]), mean, rtol=1e-9, atol=1e-11)


def test_separate_z_must_be_given_again(problem):
    model = problem.fitted()
    with pytest.raises(InputError, match="fitted with a separate Z"):
        model.predict(problem.X_query)
    with pytest.raises(InputError, match="without a separate Z"):
        problem.model().fit(problem.X, problem.y).predict(problem.X_query, problem.Z_query)
    with pytest.raises(InputError, match="columns"):
        model.predict(problem.X_query, problem.Z_query[:, :2])


def test_xz_travels_through_cross_validation(problem):
    pair = XZ(problem.X, problem.Z)
    model = problem.model()
    found = cross_val_predict(model, pair, problem.y, cv=4)
    train, test = np.arange(10, 40), np.arange(10)
    model.fit(problem.X[train], problem.y[train], problem.Z[train])
    assert_allclose(found[test], model.predict(problem.X[test], problem.Z[test]), rtol=1e-10)
    search = GridSearchCV(
        model, {"sigma_y": [0.1, 0.3]}, cv=2, scoring="neg_mean_squared_error"
    ).fit(pair, problem.y)
    assert_allclose(search.predict(pair), search.best_estimator_.predict(problem.X, problem.Z))
    frame = XZ(
        pd.DataFrame(problem.X, columns=list("abc")), pd.DataFrame(problem.Z, columns=list("pqrs"))
    )
    assert problem.model().fit(frame, problem.y).explain(frame[:3]).feature_names == list("pqrs")
    with pytest.raises(InputError, match="as many rows"):
        XZ(problem.X, problem.Z[:3])
    with pytest.raises(InputError, match="twice"):
        model.fit(pair, problem.y, problem.Z)


def test_transformers_make_x_and_z_of_a_frame(diabetes):
    X, y = diabetes[0][:150], diabetes[1][:150]
    columns = GPXRegressor(
        optimizer=None, x_transformer=["age", "sex"], z_transformer=["bmi", "bp", "s5"]
    ).fit(X, y)
    direct = GPXRegressor(optimizer=None).fit(X[["age", "sex"]], y, X[["bmi", "bp", "s5"]])
    assert_allclose(
        columns.predict(X), direct.predict(X[["age", "sex"]], X[["bmi", "bp", "s5"]]), rtol=1e-10
    )
    assert columns.explain(X[:3]).feature_names == ["bmi", "bp", "s5"]
    by_number = GPXRegressor(optimizer=None, x_transformer=[0, 1], z_transformer=[2, 3, 8]).fit(
        X.to_numpy(), y
    )
    assert_allclose(by_number.predict(X.to_numpy()), columns.predict(X), rtol=1e-10)
    reduced = GPXRegressor(optimizer=None, x_transformer=PCA(2, random_state=0)).fit(X, y)
    assert reduced.explain(X[:3]).feature_names == list(X.columns)
    scaler = FunctionTransformer(np.sqrt)
    assert (
        GPXRegressor(optimizer=None, z_transformer=scaler)
        .fit(X, y)
        ._preprocessor.transforms.z_transformer
        is not scaler
    )


def test_documents_are_explained_by_words():
    texts = [
        "good film",
        "bad film",
        "good plot",
        "bad plot",
        "good",
        "bad",
        "film plot",
        "very good film",
    ] * 3
    y = np.array([("good" in t) * 1.0 - ("bad" in t) for t in texts])
    words = make_pipeline(
        CountVectorizer(binary=True), FunctionTransformer(dense, feature_names_out="one-to-one")
    )
    model = GPXRegressor(
        x_transformer=words,
        z_transformer=words,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(texts, y)
    explanation = model.explain(["good film", "bad film"])
    assert explanation.top(0, 1)[0].feature == "good"
    assert explanation.prediction[0] > 0.5 > -0.5 > explanation.prediction[1]
    assert not hasattr(model, "n_features_in_")
    assert cross_val_predict(model.set_params(max_iter=3), texts, y, cv=2).shape == (24,)


def test_callable_kernel_on_any_objects():
    texts = ["a b", "b c", "c d", "d e", "e a", "a c", "b d", "c e"]
    Z = np.random.RandomState(0).randn(8, 2)
    y = Z[:, 0]
    model = GPXRegressor(same_words, optimizer=None, standardize=False).fit(texts, y, Z)
    gram = np.array(same_words(texts, texts))
    precomputed = GPXRegressor("precomputed", optimizer=None, standardize=False).fit(gram, y, Z)
    new = ["a d", "b"]
    cross = np.array(same_words(new, texts))
    mean, std = model.predict(new, Z[:2], return_std=True)
    assert_allclose(precomputed.predict(cross, Z[:2]), mean, rtol=1e-10)
    with_diagonal = np.column_stack([cross, np.diag(same_words(new, new))])
    assert_allclose(precomputed.predict(with_diagonal, Z[:2], return_std=True)[1], std, rtol=1e-10)
    whole = np.hstack([cross, same_words(new, new)])
    assert_allclose(
        precomputed.predict(whole, Z[:2], return_cov=True)[1],
        model.predict(new, Z[:2], return_cov=True)[1],
        rtol=1e-9,
    )
    with pytest.raises(InputError, match="variance needs"):
        precomputed.predict(cross, Z[:2], return_std=True)
    three = np.column_stack(
        [same_words([*new, "c"], texts), np.diag(same_words([*new, "c"], [*new, "c"]))]
    )
    with pytest.raises(InputError, match="joint results need"):
        precomputed.predict(three, Z[:3], return_cov=True)
    with pytest.raises(InputError, match="training rows"):
        precomputed.predict(cross[:, :5], Z[:2])
    with pytest.raises(InputError, match=r"[Gg]ive the readable features"):
        GPXRegressor(same_words, fit_intercept=False, weights="shared").fit(texts, y)
    assert model.training_explanation().weights.shape == (8, 2)
    assert precomputed.training_explanation().weights.shape == (8, 2)
    assert model.sample_weights(new, Z[:2]).shape == (2, 2, 1)
    assert GPXRegressor(same_words, fit_intercept=False, weights="shared").fit(texts, y, Z).explain(
        new, Z[:2], std="certified"
    ).weights_std.shape == (2, 2)


def test_precomputed_is_pairwise_under_cross_validation(problem):
    gram = problem.k(problem.X, problem.X)
    model = GPXRegressor(
        "precomputed", theta1=1.0, optimizer=None, standardize=False, sigma_w=0.2, sigma_y=0.3
    )
    found = cross_val_predict(PairwiseOnes(model), gram, problem.y, cv=4)
    one = np.ones((len(gram), 1))
    vectors = problem.model().fit(problem.X[10:], problem.y[10:], one[10:])
    assert_allclose(found[:10], vectors.predict(problem.X[:10], one[:10]), rtol=1e-9, atol=1e-12)
    assert (
        GPXRegressor(kernels.Precomputed(), fit_intercept=False, weights="shared")
        .__sklearn_tags__()
        .input_tags.pairwise
    )
    assert (
        not GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared")
        .__sklearn_tags__()
        .input_tags.pairwise
    )


class PairwiseOnes(GPXRegressor):
    """A precomputed-kernel GPR: z = 1 for every row, as a user would wrap it."""

    def __init__(self, inner=None):
        self.inner = inner

    def fit(self, X, y):
        self.inner_ = clone(self.inner).fit(X, y, np.ones((len(X), 1)))
        return self

    def predict(self, X):
        return self.inner_.predict(X, np.ones((len(X), 1)))

    def __sklearn_tags__(self):
        return self.inner.__sklearn_tags__()


def test_intercept_goes_to_the_base_value(problem):
    model = GPXRegressor(optimizer=None, fit_intercept=True).fit(
        problem.X, problem.y + 7.0, problem.Z
    )
    explanation = model.explain(problem.X_query, problem.Z_query)
    assert explanation.weights.shape == problem.Z_query.shape
    assert (explanation.base_values_std > 0).all()
    assert np.ptp(explanation.base_values) > 0
    assert_allclose(
        explanation.prediction, model.predict(problem.X_query, problem.Z_query), rtol=1e-11
    )
    by_hand = GPXRegressor(optimizer=None).fit(
        problem.X, problem.y + 7.0, np.column_stack([problem.Z, np.full(len(problem.Z), 3.0)])
    )
    Z_query = np.column_stack([problem.Z_query, np.full(len(problem.Z_query), 3.0)])
    assert_allclose(by_hand.predict(problem.X_query, Z_query), explanation.prediction, rtol=1e-10)
    assert model.sample_weights(problem.X_query, problem.Z_query, n_samples=2).shape == (6, 4, 2)
    assert model.training_explanation().weights.shape == problem.Z.shape


def test_kernel_objects_and_ard(problem):
    for kernel in (
        kernels.RBF(0.5, 3.0),
        kernels.RBF() + kernels.Matern12(0.1),
        kernels.RBF() * kernels.Matern52(),
    ):
        model = GPXRegressor(kernel, random_state=0, fit_intercept=False, weights="shared").fit(
            problem.X, problem.y, problem.Z
        )
        assert kernel.as_dict().keys() <= model.hyperparameters_.keys()
        assert model.log_marginal_likelihood() > -60
    ard = GPXRegressor(ard=True, kernel="rbf", fit_intercept=False, weights="shared").fit(
        problem.X, problem.y, problem.Z
    )
    assert ard.hyperparameters_["theta2"].shape == (3,)
    assert (
        ard.log_marginal_likelihood()
        > GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared")
        .fit(problem.X, problem.y, problem.Z)
        .log_marginal_likelihood()
        - 0.5
    )


def test_ard_finds_the_dimension_that_matters():
    problem = make_problem(n=150, p=3, d=1, seed=5)
    model = GPXRegressor(ard=True, kernel="rbf", fit_intercept=False, weights="shared").fit(
        problem.X, 3 * np.sin(2 * problem.X[:, 1]), np.ones((150, 1))
    )
    assert model.hyperparameters_["theta2"].argmin() == 1
