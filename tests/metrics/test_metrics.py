"""The paper's measures, compared with cases computed by hand and with known special cases."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from gpx_scale import GPXRegressor, InputError, compare, metrics
from gpx_scale.metrics import each_moved, faithfulness, mean_squared_error, stability, sufficiency


def product(X):
    return X[:, 0] * X[:, 1]


@pytest.fixture
def rows():
    return np.random.RandomState(0).normal(size=(40, 5))


@pytest.fixture
def fitted(rows):
    y = np.sin(rows[:, 0]) * rows[:, 1] + rows[:, 2]
    return GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        rows, y, rows
    ), rows


def test_faithfulness_by_hand():
    """For f = x0 x1 at (2, 3, 1), removing x0 or x1 loses 6, and removing x2 loses nothing."""
    X = np.array([[2.0, 3.0, 1.0]])
    assert faithfulness(product, X, contributions=[[6.0, 6.0, 0.0]]) == pytest.approx(1.0)
    assert faithfulness(product, X, contributions=[[0.0, 0.0, 1.0]]) == pytest.approx(-1.0)
    expected = np.corrcoef([6.0, 6.0, 0.0], [1.0, 2.0, 3.0])[0, 1]
    assert faithfulness(product, X, contributions=[[1.0, 2.0, 3.0]]) == pytest.approx(expected)


def test_faithfulness_of_a_linear_model_is_one(rows):
    model = LinearRegression(fit_intercept=False).fit(rows, rows @ [1.0, -2.0, 0.5, 0.0, 3.0])
    scores = faithfulness(model, rows, contributions=rows * model.coef_, per_sample=True)
    assert np.allclose(scores, 1.0, rtol=0, atol=1e-12)


def test_faithfulness_of_gpx_is_one_where_z_alone_is_removed(fitted):
    model, X = fitted
    scores = faithfulness(model, X, X, remove="z", per_sample=True)
    assert np.allclose(scores, 1.0, rtol=0, atol=1e-10)
    # The weights change if a feature is removed from x too.
    assert faithfulness(model, X, X) < 1.0 - 1e-6


def test_relevances_are_compared_with_absolute_differences():
    X, relevances = np.array([[2.0, -1.0, 0.5]]), [[1.0, 3.0, 0.5]]
    # The model loses 2, -6 and 1.
    model = LinearRegression(fit_intercept=False).fit(np.eye(3), [1.0, 6.0, 2.0])
    assert faithfulness(model, X, contributions=relevances, signed=False) == pytest.approx(1.0)
    assert faithfulness(model, X, contributions=relevances) == pytest.approx(
        np.corrcoef([2, -6, 1], relevances[0])[0, 1]
    )
    model.signed = False  # ARD and KL have this attribute.
    assert faithfulness(model, X, contributions=relevances) == pytest.approx(1.0)


def test_a_row_whose_differences_do_not_vary_is_left_out():
    X = np.array([[2.0, 3.0], [1.0, 5.0]])
    contributions = [[1.0, 2.0], [3.0, 3.0]]
    scores = faithfulness(lambda X: X @ [1.0, 1.0], X, contributions=contributions, per_sample=True)
    assert scores[0] == pytest.approx(1.0)
    assert np.isnan(scores[1])
    assert faithfulness(lambda X: X @ [1.0, 1.0], X, contributions=contributions) == pytest.approx(
        1.0
    )


def test_contributions_that_do_not_vary_but_by_rounding_have_no_score():
    X = np.array([[2.0, 3.0, 4.0]])
    scores = faithfulness(
        lambda X: X @ [1.0, 2.0, 3.0], X, contributions=[[0.1] * 3], per_sample=True
    )
    assert np.isnan(scores).all()


def test_a_baseline_counts_for_every_model(rows):
    """The faithfulness of a linear model is 1 for any baseline, unit and kind of table."""
    X = rows * [1.0, 2.0, 3.0, 4.0, 5.0] + 7.0
    slopes, mean = np.array([1.0, -2.0, 0.5, 0.0, 3.0]), X.mean(axis=0)
    assert faithfulness(compare.Ridge().fit(X, X @ slopes), X, baseline=mean) == pytest.approx(1.0)
    model = GPXRegressor(optimizer=None, theta2=1e6, sigma_y=0.1).fit(X, X @ slopes)
    assert faithfulness(model, X, baseline=0.0) == pytest.approx(1.0, abs=1e-3)
    counts = sp.csr_array(np.random.RandomState(0).randint(0, 4, size=(40, 5)))
    linear = SimpleNamespace(predict=lambda X, Z: np.asarray(Z) @ slopes)
    C = (counts.toarray() - 0.9) * slopes
    assert faithfulness(
        linear, rows, counts, contributions=C, remove="z", baseline=0.9
    ) == pytest.approx(1.0)
    frame = pd.DataFrame(X, columns=list("abcde"))
    named = LinearRegression().fit(frame, X @ slopes)
    assert faithfulness(
        named, frame, contributions=(X - mean) * slopes, baseline=mean
    ) == pytest.approx(1.0)  # There is no warning.


def test_raw_units_are_measured_from_the_training_means(rows):
    """A model that standardises has the scores of one that is given standardised data."""
    y = np.sin(rows[:, 0]) * rows[:, 1] + rows[:, 2]
    raw = 7.0 * rows + 100.0
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    fixed = {"optimizer": None, "sigma_y": 0.3}
    ours, theirs = GPXRegressor(**fixed).fit(raw, y), GPXRegressor(**fixed).fit(scaled, y)
    assert np.allclose(ours.baseline_, raw.mean(axis=0))
    assert faithfulness(ours, raw) == pytest.approx(faithfulness(theirs, scaled), abs=1e-6)
    assert sufficiency(ours, raw) == pytest.approx(sufficiency(theirs, scaled), abs=1e-6)


def test_sufficiency_by_hand():
    """For f = 3 a + 2 b + c at (1, 1, 1), keeping a loses 3, a and b 1, and all nothing.

    A k above d keeps all features.
    """
    X, w = np.ones((1, 3)), np.array([3.0, 2.0, 1.0])
    assert sufficiency(lambda X: X @ w, X, ks=(1, 2, 3, 9), contributions=X * w).tolist() == [
        3.0,
        1.0,
        0.0,
        0.0,
    ]
    assert sufficiency(lambda X: X @ w, X, ks=(1,), contributions=X * -w).tolist() == [
        3.0
    ]  # Absolute contributions decide.
    assert sufficiency(lambda X: X @ w, X, ks=(1,), contributions=X * w, squared=True).tolist() == [
        9.0
    ]
    assert sufficiency(lambda X: X @ w, X, ks=(), contributions=X * w).shape == (0,)
    kept = sufficiency(
        lambda X: X @ w,
        X,
        ks=(1, 2),
        contributions=X * w,
        baseline=[1.0, 1.0, 5.0],
        per_sample=True,
    )
    assert kept.tolist() == [[4.0, 4.0]]


def test_sufficiency_of_z_alone_by_hand():
    """For f = x (3 a + 2 b + c), only z is set to its baseline of 1.

    x and the k most important features keep their values.
    """
    X, Z, w = (
        np.array([[2.0], [-1.0]]),
        np.array([[2.0, 2.0, 2.0], [2.0, 4.0, 1.0]]),
        np.array([3.0, 2.0, 1.0]),
    )
    found = sufficiency(
        SimpleNamespace(predict=lambda X, Z: X[:, 0] * (Z @ w)),
        *(X, Z),
        ks=(0, 1, 2, 3),
        contributions=X * (Z - 1.0) * w,  # These are 6, 4, 2 and -3, -6, 0.
        remove="z",
        baseline=1.0,
        per_sample=True,
    )
    assert found.tolist() == [[12.0, 6.0, 2.0, 0.0], [9.0, 3.0, 0.0, 0.0]]


def test_stability_by_hand():
    plain = {"scale_x": None, "scale_weights": None, "scale_z": None}
    # The last row has no neighbour.
    X = np.array([[0.0, 0.0], [0.03, 0.04], [0.0, 0.06], [5.0, 5.0]])
    W = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [9.0, 9.0]])
    found = stability(None, X, weights=W, **plain)
    between = np.hypot(1.0, 3.0) / np.hypot(0.03, 0.02)
    assert found.with_neighbour == 3
    assert np.allclose(found.samples[:3], [3.0 / 0.06, between, between])
    assert np.isnan(found.samples[3])
    assert found.score == pytest.approx(np.mean(found.samples[:3]))
    # Only the second row is less than 0.052 away from the first one.
    closer = stability(None, X, weights=W, epsilon=0.026, **plain)
    assert closer.samples[0] == pytest.approx(20.0)


def test_stability_of_global_weights_is_zero_and_of_noise_on_duplicates_unbounded(rows):
    twice = np.vstack([rows, rows])
    assert stability(None, twice, weights=np.ones((80, 5))).score == 0.0
    assert stability(None, twice, weights=np.vstack([rows, rows])).score < np.inf
    assert (
        stability(None, twice, weights=np.random.RandomState(1).normal(size=(80, 5))).score
        == np.inf
    )


def test_stability_does_not_depend_on_units_by_default(rows):
    weights = np.sin(rows)
    ours, theirs = (
        stability(None, rows, weights=weights),
        stability(None, 9.0 * rows - 4.0, weights=1e6 * weights + 3.0),
    )
    assert theirs.score == pytest.approx(ours.score)
    assert stability(None, rows, weights=weights, epsilon=1e-6)[1] == 0
    assert stability(None, 1e200 * rows, weights=1e-300 * weights).score == pytest.approx(
        ours.score
    )


def test_measures_do_not_depend_on_chunks(fitted, monkeypatch):
    model, X = fitted
    sizes = []

    def predict(X, Z):
        sizes.append(len(X))
        return model.predict(X, Z)

    contributions = model.explain(X, X, std=False).contributions
    before = faithfulness(predict, X, X, contributions=contributions), stability(model, X, X).score
    assert sizes == [40, 200]
    monkeypatch.setattr(metrics, "CHUNK_NUMBERS", 60)
    assert faithfulness(predict, X, X, contributions=contributions) == pytest.approx(
        before[0], rel=1e-12
    )
    assert max(sizes[3:]) == 10  # A chunk has two rows of five features.
    assert stability(model, X, X).score == pytest.approx(before[1], rel=1e-12)


def test_sparse_z_is_measured_too(rows):
    Z = sp.csr_array((np.random.RandomState(1).rand(40, 6) < 0.4).astype(float))
    model = GPXRegressor(optimizer=None, sigma_y=0.3).fit(rows, rows[:, 0], Z)
    scores = faithfulness(model, rows, Z, remove="z", per_sample=True)
    assert np.allclose(scores[~np.isnan(scores)], 1.0, atol=1e-10)
    assert np.isfinite(stability(model, rows, Z).score)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 200))
def test_each_row_is_moved_in_each_feature(m, d, chunk):
    X = np.arange(float(m * d)).reshape(m, d)
    seen = np.zeros((m, d))
    for rows, repeated, moved in each_moved(X, lambda A: A - 1000.0, chunk):
        changed = (repeated - moved).reshape(-1, d, d)
        assert np.array_equal(changed, np.broadcast_to(1000.0 * np.eye(d), changed.shape))
        assert np.array_equal(repeated, np.repeat(X[rows], d, axis=0))
        seen[rows] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda X: mean_squared_error([1.0], [1.0, 2.0]), "as many predictions"),
        (lambda X: mean_squared_error([], []), "at least one"),
        (lambda X: faithfulness(product, X), "does not explain"),
        (lambda X: faithfulness(3, X, contributions=X), "int does not predict"),
        (lambda X: faithfulness(product, X, contributions=X[:, :2]), "same columns"),
        (lambda X: faithfulness(product, X[:0], contributions=X[:0]), "same rows"),
        (lambda X: faithfulness(product, X, contributions=X * np.nan), "finite"),
        (lambda X: faithfulness(product, X, X + 1.0, contributions=X), 'remove="z"'),
        (lambda X: faithfulness(product, X, contributions=X, remove="y"), "remove='y'"),
        (lambda X: faithfulness(product, X, contributions=X, baseline=[1.0, 2.0]), "baseline"),
        (lambda X: stability(None, X, weights=X[1:]), "as many of each"),
        (lambda X: stability(None, X, weights=X, scale_x="log"), "scale_x='log'"),
        (lambda X: stability(None, X, weights=X, epsilon=0.0), "epsilon"),
        (lambda X: stability(None, X), "Give weights"),
        (lambda X: sufficiency(product, X, ks=(1.5,), contributions=X), "k=1.5"),
        (lambda X: faithfulness(product, X, contributions=X, baseline=np.nan), "finite number"),
        (lambda X: sufficiency(lambda X: 1.0, X, contributions=X), "per row"),
        (
            lambda X: faithfulness(lambda X: X[:, 0] * np.nan, X, contributions=X),
            "not finite",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(rows, call, said):
    with pytest.raises(InputError, match=said):
        call(rows)


def test_faithfulness_by_ranks_asks_for_the_order_alone():
    """For f = sum of cubes, contributions x have the same ranks as the losses, and other values."""
    X = np.array([[1.0, 2.0, -3.0, 0.5], [0.5, -2.0, 1.5, 4.0]])

    def predict(X):
        return (X**3).sum(axis=1)

    assert metrics.faithfulness(predict, X, contributions=X, ranks=True) == pytest.approx(1.0)
    assert metrics.faithfulness(predict, X, contributions=X) < 0.999
