"""The methods with which the paper compares GPX.

They are tested on small cases computed by hand, on known special cases, and by their interface.
"""

import importlib.util
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from gpx_scale import GPXRegressor, InputError, compare, datasets
from gpx_scale.compare import network_lasso as graph
from gpx_scale.compare.network_lasso import Fusion, fused_weights, weber_points
from gpx_scale.errors import NotConverged

foreign = pytest.mark.filterwarnings("ignore")  # shap and lime warn of other packages.
needs_lime = pytest.mark.skipif(
    importlib.util.find_spec("lime") is None, reason="lime is not installed (extra [bench])"
)
needs_shap = pytest.mark.skipif(
    importlib.util.find_spec("shap") is None, reason="shap is not installed (extra [bench])"
)


@pytest.fixture
def halves():
    """Rows on two sides of a plane, each with a linear model of its own."""
    random = np.random.RandomState(0)
    X = random.normal(size=(120, 4))
    slope = np.where(X[:, :1] > 0, [[2.0, 1.0, 0.0, 0.0]], [[-1.0, 0.0, 3.0, 0.0]])
    return X, (slope * X).sum(axis=1) + 0.05 * random.normal(size=120)


class Linear:
    """A linear model as a black box, whose slopes shap and lime should find."""

    def __init__(self, slopes):
        self.slopes, self.n_features_in_ = np.array(slopes), len(slopes)

    def predict(self, X):
        return np.asarray(X) @ self.slopes


def small(lambda1=0.7, lambda2=0.3, n=9, d=3):
    random = np.random.RandomState(1)
    Z, y = random.normal(size=(n, d)), random.normal(size=n)
    S = sp.csr_array((random.rand(n, n) < 0.4) * (1.0 - np.eye(n)))
    return Fusion.of(Z, y, (S + S.T) / 2, lambda1, lambda2, 0.05), ((S + S.T) / 2).toarray()


def test_the_objective_is_the_one_written_down():
    problem, R = small()
    W = np.random.RandomState(2).normal(size=(9, 3))
    pairs = sum(R[i, j] * np.linalg.norm(W[i] - W[j]) for i in range(9) for j in range(9))
    expected = ((problem.y - (W * problem.Z).sum(1)) ** 2).sum() + 0.7 * pairs
    expected += 0.3 * (np.abs(W).sum(axis=1) ** 2).sum() + 0.05 * (W**2).sum()
    assert problem.value(W, 0.0) == pytest.approx(expected, rel=1e-12)


def test_a_parabola_touches_the_objective_and_lies_above_it():
    """The minimum of the parabola does not raise the objective; its system equals the dense one."""
    problem, _ = small()
    W = np.random.RandomState(2).normal(size=(9, 3))
    system, s = problem.parabola(W, 0.1), 0.1
    dense = np.column_stack([system.times(e.reshape(9, 3)).ravel() for e in np.eye(27)])
    assert np.allclose(dense, dense.T)
    assert np.linalg.eigvalsh(dense)[0] > 0

    def above(V):
        return float(V.ravel() @ dense @ V.ravel()) - 2 * float(
            (problem.Z * problem.y[:, None] * V).sum()
        )

    for seed in range(20):
        V = W + np.random.RandomState(seed).normal(size=(9, 3))
        assert problem.value(V, s) - problem.value(W, s) <= above(V) - above(W) + 1e-9
    step = 1e-5 * np.random.RandomState(3).normal(size=(9, 3))
    slopes = (
        problem.value(W + step, s) - problem.value(W - step, s),
        above(W + step) - above(W - step),
    )
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-5)
    precondition = np.column_stack(
        [system.precondition(e.reshape(9, 3)).ravel() for e in np.eye(27)]
    )
    assert np.allclose(precondition, precondition.T)
    assert np.linalg.eigvalsh(precondition)[0] > 0


@pytest.mark.parametrize(("lambda2", "d"), [(0.0, 3), (0.3, 3), (0.3, 12)])
def test_the_least_objective_is_found(lambda2, d):
    problem, _ = small(lambda2=lambda2, d=d)
    W = fused_weights(problem, 1e-2, 1e-9, 5000)
    other = minimize(
        lambda w: problem.value(w.reshape(9, d), 1e-2),
        np.zeros(9 * d),
        method="L-BFGS-B",
        options={"maxfun": 10**6},
    )
    assert problem.value(W, 1e-2) <= other.fun * (1 + 1e-6)


def test_localized_without_the_exclusive_penalty_is_network(halves):
    X, y = halves
    ours, theirs = (
        compare.LocalizedLasso(lambda1=1.0, lambda2=0.0).fit(X, y),
        compare.NetworkLasso(lambda1=1.0).fit(X, y),
    )
    assert np.array_equal(ours.W_, theirs.W_)
    assert np.array_equal(ours.predict(X[:7]), theirs.predict(X[:7]))


def test_network_of_endless_fusion_is_ridge_with_shared_weights(halves):
    X, y = halves
    fused = compare.NetworkLasso(lambda1=1e6, ridge=0.5, n_neighbors=10).fit(X, y)
    shared = Ridge(alpha=0.5 * len(y), fit_intercept=False).fit(X, y).coef_
    assert np.allclose(fused.W_, shared, atol=1e-4)
    assert np.allclose(fused.predict(X), X @ shared, atol=1e-3)


def test_network_without_fusion_has_a_ridge_a_row(halves):
    X, y = halves
    alone = compare.NetworkLasso(lambda1=0.0, ridge=0.5, tol=1e-12).fit(X, y)
    assert np.allclose(alone.W_, X * (y / (0.5 + (X**2).sum(axis=1)))[:, None], atol=1e-6)


def test_network_finds_two_models_where_there_are_two(halves):
    X, y = halves
    found = compare.NetworkLasso(lambda1=1.0, n_neighbors=3).fit(X[:100], y[:100])
    one = Ridge(alpha=1.0).fit(X[:100], y[:100])
    assert np.mean((found.predict(X[100:]) - y[100:]) ** 2) < 0.5 * np.mean(
        (one.predict(X[100:]) - y[100:]) ** 2
    )


def test_the_exclusive_penalty_makes_weights_sparse(halves):
    X, y = halves
    few = [
        np.mean(np.abs(compare.LocalizedLasso(0.3, penalty).fit(X, y).W_) < 1e-2)
        for penalty in (0.001, 1.0)
    ]
    assert few[1] > few[0] + 0.1


def test_weber_points():
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    line = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])  # The Weber point is the median.
    heavy = np.array([[0.0, 0.0], [0.0, 0.0], [7.0, 1.0]])
    points = weber_points(np.array([corners, line, heavy]), max_iter=2000, tol=1e-9)
    assert np.allclose(points, [corners.mean(axis=0), [1.0, 0.0], [0.0, 0.0]], atol=1e-4)
    random = np.random.RandomState(0).normal(size=(4, 6, 3))
    for some, found in zip(random, weber_points(random, tol=1e-9), strict=True):
        best = minimize(
            lambda w, some=some: np.linalg.norm(some - w, axis=1).sum(),
            some.mean(axis=0),
            method="Nelder-Mead",
        )
        assert np.linalg.norm(some - found, axis=1).sum() <= best.fun * (1 + 1e-5)


def test_queries_in_chunks_are_the_same(halves, monkeypatch):
    X, y = halves
    model = compare.NetworkLasso().fit(X, y)
    before = model.weights(X)
    monkeypatch.setattr(graph, "CHUNK_NUMBERS", 50)
    assert np.allclose(model.weights(X), before, atol=1e-5)
    assert model.weights(X[:0]).shape == (0, 4)


def test_one_row_and_duplicates_are_fitted():
    assert compare.NetworkLasso().fit([[1.0, 2.0]], [3.0]).predict([[1.0, 2.0]]) == pytest.approx(
        [3.0], rel=1e-3
    )
    twice = np.repeat(np.random.RandomState(0).normal(size=(10, 3)), 2, axis=0)
    assert np.isfinite(
        compare.LocalizedLasso().fit(twice, twice[:, 0]).predict(np.zeros((2, 3)))
    ).all()


def test_a_fit_that_does_not_settle_is_an_error(halves):
    with pytest.raises(NotConverged, match="Raise max_iter"):
        compare.NetworkLasso(max_iter=2).fit(*halves)


@pytest.mark.parametrize("lambda1", [1e13, 1e20, 1e100])
def test_a_system_that_cannot_be_solved_is_an_error(halves, lambda1):
    with pytest.raises(NotConverged, match="too large"):
        compare.NetworkLasso(lambda1).fit(*halves)


def test_smoothing_counts_above_its_start_too(halves):
    assert not np.allclose(
        compare.NetworkLasso(smoothing=1.0).fit(*halves).W_,
        compare.NetworkLasso(smoothing=9.0).fit(*halves).W_,
    )


def test_whole_numbers_and_sparse_inputs_are_numbers(halves):
    X, y = halves
    Z = np.random.RandomState(0).randint(0, 200, size=X.shape).astype("uint8")
    ours, theirs = (
        compare.NetworkLasso().fit(X, y, A).W_ for A in (sp.csr_array(Z), Z.astype(float))
    )
    assert np.array_equal(ours, theirs)
    assert compare.Ridge().fit(sp.csr_array(X), y).predict(sp.csr_array(X)).shape == y.shape


def test_methods_are_searched_as_estimators_are(halves):
    X, y = halves
    found = GridSearchCV(
        compare.LocalizedLasso(), {"lambda1": [0.1, 1.0], "n_neighbors": [3, 5]}, cv=3
    ).fit(X, y)
    assert found.best_score_ > 0.5
    assert compare.NetworkLasso(3.0).get_params()["lambda1"] == 3.0


def test_gpr_escapes_short_length_scales():
    """With the paper's start values alone, the search on Diabetes ends 70 to 80 nats too low."""
    data = datasets.load_diabetes()
    X, y = (
        (data.X - data.X.mean(axis=0)) / data.X.std(axis=0),
        (data.y - data.y.mean()) / data.y.std(),
    )
    model = compare.GPR(random_state=0).fit(X[:350], y[:350])
    assert np.mean((model.predict(X[350:]) - y[350:]) ** 2) < 0.55
    assert model.model_.hyperparameters_["sigma_y"] > 0.5
    assert model.predict(X[350:], return_std=True)[1].min() > 0.5


def test_gpr_of_a_model_is_that_model():
    X = np.random.RandomState(0).normal(size=(30, 2))
    model = GPXRegressor(standardize=False, sigma_w=0.0, optimizer=None).fit(
        X, X[:, 0], np.ones((30, 1))
    )
    gpr = compare.GPR.of(model)
    np.testing.assert_array_equal(gpr.predict(X), model.predict(X, np.ones((30, 1))))


def test_gpx_explains_what_it_predicts(halves):
    X, y = halves
    model = compare.GPX(random_state=0).fit(X, y)
    assert np.allclose(model.contributions(X).sum(axis=1), model.predict(X), atol=1e-9)


def test_ard_and_kl_find_the_relevant_feature():
    random = np.random.RandomState(0)
    X = random.uniform(-2, 2, size=(150, 3))
    ard = compare.ARD(random_state=0).fit(X, np.sin(2 * X[:, 0]) + 0.1 * X[:, 1])
    relevance = ard.weights(X[:4])
    assert relevance.shape == (4, 3)
    assert (relevance == relevance[0]).all()
    assert relevance[0].argmax() == 0
    assert np.array_equal(
        compare.KL(ard).fit(X, X[:, 0]).weights(X).mean(axis=0).argsort()[::-1][:1], [0]
    )


def test_kl_is_what_its_formula_says():
    """The relevances equal the written-out divergence of two normal distributions."""
    random = np.random.RandomState(0)
    X = random.uniform(-2, 2, size=(60, 2))
    ard = compare.ARD(random_state=0).fit(X, np.sin(X[:, 0]) + 0.3 * random.normal(size=60))
    rows, delta, expected = X[:5], 1e-2, np.zeros((5, 2))
    for i in range(5):
        for k in range(2):
            for side in (-delta, delta):
                moved = rows[i].copy()
                moved[k] += side
                (m, n), (s, t) = ard.predict(np.array([rows[i], moved]), return_std=True)
                expected[i, k] += (
                    0.5 * np.sqrt(np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5) / delta
                )
    assert np.allclose(
        compare.KL(ard, delta=delta).fit(X, X[:, 0]).weights(rows), expected, rtol=1e-5
    )


def test_linear_methods_have_one_weight_vector(halves):
    X, y = halves
    for method in (compare.Lasso(), compare.Ridge()):
        W = method.fit(X, y).weights(X)
        assert np.ptp(W, axis=0).max() == 0.0
        assert np.allclose((W * X).sum(axis=1) + method.model_.intercept_, method.predict(X))
    assert compare.Ridge().fit(X, y).model_.alpha_ in (0.1, 1.0, 10.0)


@needs_shap
@foreign
def test_shap_of_a_linear_model_is_weight_times_distance(halves):
    X, _ = halves
    box = Linear([1.0, -2.0, 0.0, 0.5])
    found = compare.SHAP(box, background=3, random_state=0).fit(X, X[:, 0]).weights(X[:5])
    assert np.allclose(found - found[0], (X[:5] - X[0]) * box.slopes, atol=1e-6)
    np.random.seed(1)  # noqa: NPY002
    expected = np.random.RandomState(1).rand()
    compare.SHAP(box, random_state=0).fit(X, X[:, 0]).weights(X[:1])
    assert np.random.rand() == expected  # noqa: NPY002


@needs_lime
@foreign
def test_lime_finds_which_feature_matters_and_repeats_itself(halves):
    X, _ = halves
    box = Linear([3.0, 0.0, 0.0, 0.0])
    first, second = (
        compare.LIME(box, random_state=0).fit(X, X[:, 0]).weights(X[:3]) for _ in range(2)
    )
    assert np.array_equal(first, second)
    assert (np.abs(first).argmax(axis=1) == 0).all()


@needs_lime
@foreign
def test_lime_without_quartiles_has_slopes(halves):
    X, _ = halves
    X, box = X * [1.0, 10.0, 0.1, 1.0], Linear([1.0, -2.0, 0.0, 0.5])
    method = compare.LIME(box, quartiles=False, kernel_width=5.0, random_state=0).fit(X, X[:, 0])
    assert not method.weights_are_contributions
    assert np.allclose(method.weights(X[:3]), box.slopes, rtol=0.02, atol=0.02)
    assert np.allclose(method.contributions(X[:3]), method.weights(X[:3]) * X[:3])
    with pytest.raises(InputError, match="kernel_width"):
        compare.LIME(box, kernel_width=-1.0).fit(X, X[:, 0])


@needs_shap
@foreign
def test_shap_takes_absent_features_from_given_rows(halves):
    X, _ = halves
    box, background = Linear([1.0, -2.0, 0.0, 0.5]), np.array([[1.0, 2.0, 3.0, 4.0]])
    found = compare.SHAP(box, background=background, random_state=0).fit(X, X[:, 0]).weights(X[:5])
    assert np.allclose(found, (X[:5] - background) * box.slopes, atol=1e-8)
    with pytest.raises(InputError, match="4 columns"):
        compare.SHAP(box, background=background[:, :2]).fit(X, X[:, 0])


@needs_shap
@needs_lime
@foreign
def test_words_are_taken_away_from_texts():
    """For a linear model of words, Shapley values are the slopes of the words that a text has.

    They are 0 for other words. The weights of LIME are within 0.5 of these values.
    """
    Z = sp.csr_array(np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    box, options = (
        Linear([1.0, -2.0, 3.0, 4.0]),
        {"encode": lambda Z: Z.toarray(), "random_state": 0},
    )
    for kind, near in ((compare.SHAP, 1e-8), (compare.LIME, 0.5)):
        found = kind(box, **options).fit(Z.toarray(), [0.0, 0.0, 0.0], Z).weights(Z.toarray(), Z)
        assert np.allclose(found, Z.toarray() * box.slopes, atol=near)


@needs_lime
@foreign
def test_lime_takes_words_as_often_as_they_are():
    Z = np.array([[2.0, 3.0]])
    method = compare.LIME(Linear([1.0, -2.0]), lambda Z: Z.toarray(), random_state=0).fit(
        Z, [0.0], Z
    )
    # The ridge penalty of LIME shrinks its weights.
    assert np.allclose(method.weights(Z, Z), [[2.0, -6.0]], atol=1.5)


@needs_lime
@needs_shap
@foreign
def test_packages_repeat_themselves_and_are_pickled(halves):
    X, y = halves
    box = Linear([1.0, -2.0, 0.0, 0.5])
    for kind in (compare.LIME, compare.SHAP):
        method = kind(box, random_state=0).fit(X, y)
        before = method.weights(X[:3])
        assert np.array_equal(method.weights(X[:3]), before)
        assert np.array_equal(pickle.loads(pickle.dumps(method)).weights(X[:3]), before)
        assert method.weights(X[:0]).shape == (0, 4)
    few = np.repeat(X[:3], 20, axis=0)
    assert compare.SHAP(box).fit(few, few[:, 0]).weights(few[:2]).shape == (2, 4)
    assert compare.SHAP(box)._selection(np.ones(2000)) == "aic"


@pytest.mark.parametrize("name", [name for name in compare.__all__ if name != "Method"])
def test_nothing_is_said_before_a_fit(name, halves):
    with pytest.raises(NotFittedError):
        getattr(compare, name)().predict(halves[0])
    with pytest.raises((NotFittedError, InputError)):
        getattr(compare, name)().weights(halves[0])


def test_a_copy_of_a_method_fits_its_model_again(halves):
    X, y = halves
    ard = compare.ARD(random_state=0).fit(X, y)
    again = clone(compare.KL(ard)).fit(X, y)
    assert np.allclose(again.weights(X[:3]), compare.KL(ard).fit(X, y).weights(X[:3]), rtol=1e-6)


def test_what_cannot_be_used_is_said(halves):
    X, y = halves
    with pytest.raises(InputError, match="does not explain"):
        compare.GPR(random_state=0).fit(X, y).weights(X)
    for method in (compare.NetworkLasso(), compare.Lasso()):
        with pytest.raises(InputError, match="finite"):
            method.fit(np.where(X > 2, np.nan, X), y)
        with pytest.raises(InputError, match="as many rows"):
            method.fit(X, y[:-1])
        with pytest.raises(InputError, match="columns"):
            method.fit(X, y).predict(X[:, :3])
    for wrong in (
        {"lambda1": -1.0},
        {"lambda2": np.nan},
        {"n_neighbors": 0},
        {"ridge": 0.0},
        {"tol": -1.0},
        {"max_iter": 1.5},
    ):
        with pytest.raises(InputError):
            compare.LocalizedLasso(**wrong).fit(X, y)
    with pytest.raises(InputError, match="delta"):
        compare.KL(delta=0.0).fit(X, y)
    with pytest.raises(InputError, match="squares"):
        compare.NetworkLasso().fit(1e200 * X, y)
