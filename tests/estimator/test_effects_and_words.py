"""Effects are centred means of contributions, and words have the numbers of an explanation."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from matplotlib.figure import Figure

from gpx_scale import GPXClassifier, GPXRegressor, InputError
from gpx_scale.plots import plot_effect
from problems import make_problem

NAMES = ["size", "cut=Fair", "cut=Good", "cut=Ideal"]


@pytest.fixture(scope="module")
def diamonds():
    """Explanations of a table with a number and a category, by groups."""
    random = np.random.RandomState(0)
    cut, size = random.randint(3, size=80), random.rand(80)
    Z = np.column_stack([size, *(cut == level for level in range(3))]).astype(float)
    y = 3.0 * size + np.array([0.0, 1.0, 4.0])[cut]
    model = GPXRegressor("rbf", weights="shared", random_state=0, fit_intercept=False).fit(Z, y)
    options = {"feature_names": NAMES, "groups": {"cut": NAMES[1:]}}
    return model, model.explain(Z, **options), Z


@pytest.fixture(scope="module")
def problem():
    return make_problem(p=1, d=4, m=60)


def test_an_effect_is_the_centred_mean_of_contributions(problem):
    explanation = problem.fitted(weights="shared").explain(problem.X_query, problem.Z_query)
    effect = explanation.effect(2, points=6)
    values, found = problem.Z_query[:, 2], explanation.contributions[:, 2]
    assert effect.counts.tolist() == [10] * 6
    order = np.argsort(values).reshape(6, 10)
    np.testing.assert_allclose(effect.values, values[order].mean(axis=1))
    np.testing.assert_allclose(effect.mean, found[order].mean(axis=1) - found.mean())
    std = explanation.contributions_std[:, 2][order].mean(axis=1)
    np.testing.assert_allclose(effect.std, std)
    assert effect.counts @ effect.mean == pytest.approx(0.0, abs=1e-10)
    lower, upper = effect.interval(0.95)
    np.testing.assert_allclose(upper - lower, 2 * 1.959963984540054 * std)


def test_the_band_is_wide_enough_for_joint_samples(problem):
    """The deviation of the mean of a range is never above the mean of the deviations."""
    model = problem.fitted(weights="shared")
    effect = model.explain(problem.X_query, problem.Z_query).effect(0, points=5)
    drawn = model.sample_weights(problem.X_query, problem.Z_query, 300, random_state=0)[:, 0]
    order = np.argsort(problem.Z_query[:, 0]).reshape(5, 12)
    means = (drawn * problem.Z_query[:, [0]])[order].mean(axis=1)
    assert (means.std(axis=1) <= 1.15 * effect.std).all()


def test_a_category_has_an_effect_for_each_level(diamonds):
    _, explanation, Z = diamonds
    effect = explanation.effect("cut")
    assert effect.values.tolist() == ["Fair", "Good", "Ideal"]
    assert effect.counts.tolist() == Z[:, 1:].sum(axis=0).tolist()
    assert effect.is_category
    np.testing.assert_allclose(effect.mean - effect.mean[0], [0.0, 1.0, 4.0], atol=0.2)
    assert not explanation.effect("size").is_category
    assert len(explanation.effect("cut=Fair")) == 2
    assert effect.to_frame()["value"].tolist() == effect.values.tolist()
    ax = plot_effect(explanation, "cut", ax=Figure().subplots())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["Fair", "Good", "Ideal"]


def test_curves_are_drawn_with_their_band(diamonds):
    _, explanation, _ = diamonds
    ax = plot_effect(explanation, "size", ax=Figure().subplots(), level=0.9)
    effect = explanation.effect("size")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), effect.mean)
    (band,) = ax.collections
    lower, upper = effect.interval(0.9)
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(lower.min())
    assert heights.max() == pytest.approx(upper.max())
    assert "90%" in ax.get_ylabel()


def test_sparse_constant_and_single_values(problem):
    Z = np.where(np.abs(problem.Z) > 0.5, problem.Z, 0.0)
    model = problem.model(weights="shared").fit(problem.X, problem.y, sp.csr_array(Z))
    Z_query = np.where(np.abs(problem.Z_query) > 0.5, problem.Z_query, 0.0)
    explanation = model.explain(problem.X_query, sp.csr_array(Z_query))
    effect = explanation.effect(1)
    assert effect.counts.sum() == len(Z_query)
    assert effect.counts @ effect.mean == pytest.approx(0.0, abs=1e-10)
    one = explanation[0].effect(1)
    assert (len(one), one.mean.tolist()) == (1, [0.0])
    assert plot_effect(explanation[0], 1, ax=Figure().subplots()).get_title() == "effect of x1"


@pytest.mark.parametrize("feature", ["colour", 4, -1, True, None])
def test_features_that_are_none_are_refused(diamonds, feature):
    with pytest.raises(InputError, match="Give a number below 4 or one of 'cut', 'others', 'size'"):
        diamonds[1].effect(feature)


def test_what_has_no_effect_says_why(diamonds, problem):
    model, explanation, Z = diamonds
    several = model.explain(Z[:5], feature_names=NAMES, groups={"mixed": [0, 1]})
    with pytest.raises(InputError, match="no values of its own"):
        several.effect("mixed")
    with pytest.raises(InputError, match="no samples"):
        explanation[:0].effect("size")
    with pytest.raises(InputError, match="std=True"):
        model.explain(Z[:5], std=False).effect(0).interval()


def test_words_have_the_numbers_of_the_explanation(diamonds):
    _, explanation, _ = diamonds
    text = explanation.with_units({"size": "mm"}, "EUR").in_words(3, groups=False)
    prediction, std = explanation.prediction[3], explanation.prediction_std[3]
    places = len(re.search(r"is (−?[\d.]+) EUR\.", text)[1].split(".")[1])
    assert f"is {prediction:.{places}f} EUR." in text
    assert f"{prediction - 1.959964 * std:.{places}f}" in text.replace("−", "-")
    assert "starting point" in text
    assert "The other feature " in text
    assert text.count("95%") == 2
    first = explanation.top(3, k=1, groups=False)[0]
    moved = (
        f"{'adds' if first.contribution > 0 else 'takes away'} {abs(first.contribution):.{places}f}"
    )
    assert moved in text
    assert all(word not in text for word in ("std", "deviation", "posterior", "nan"))


def test_words_say_groups_and_levels(diamonds):
    _, explanation, Z = diamonds
    level = ["Fair", "Good", "Ideal"][int(Z[3, 1:].argmax())]
    text = explanation.in_words(3)
    assert f"cut = {level} " in text
    assert "All other features together" in text
    assert "with a probability of 50%" in explanation.in_words(3, level=0.5)


def test_words_without_uncertainty_give_no_ranges(diamonds):
    model, _, Z = diamonds
    text = model.explain(Z[:2], std=False, feature_names=NAMES).in_words(0)
    assert "probability" not in text
    assert "(" not in text


def test_words_say_what_is_not_known(diamonds):
    model, _, Z = diamonds
    text = model.explain(Z[:1] + 1e3, feature_names=NAMES).in_words(0)
    assert "nothing like this case" in text
    explanation = model.explain(Z, feature_names=NAMES)
    low, high = explanation.interval(0.95)
    (i, _), *_ = np.argwhere((low < 0) & (high > 0) & (explanation.contributions != 0))
    assert "may as well do the opposite" in explanation[int(i)].in_words(0, k=4)


def test_a_row_of_words_is_one_line_of_text(diamonds):
    _, explanation, _ = diamonds
    text = explanation[:1].in_words(0, k=0)
    assert "\n" not in text
    assert text.endswith(".")
    with pytest.raises(InputError):
        explanation.in_words(0, level=95)
    with pytest.raises(IndexError):
        explanation.in_words(1000)


@pytest.mark.parametrize("sparse", [False, True])
def test_words_about_a_class_are_about_its_probability(problem, sparse):
    Z = sp.csr_array(problem.Z) if sparse else problem.Z
    labels = np.where(problem.y > 0.0, "yes", "no")
    model = GPXClassifier("rbf", optimizer=None, weights="shared").fit(problem.X, labels, Z)
    explanation = model.explain(problem.X[:3], Z[:3])
    text = explanation.in_words(1, k=1)
    assert text.startswith(f"The probability of yes is {explanation.probability[1]:.0%}. ")
    first = explanation.top(1, k=1)[0]
    at = explanation.feature_names.index(first.feature)
    changes = explanation.probability_changes
    change = (changes.toarray() if sparse else changes)[1, at]
    assert (
        f"{'raises' if change > 0 else 'lowers'} it by {100 * abs(change):.0f} percentage" in text
    )
    grouped = model.explain(problem.X[:3], Z[:3], groups={"pair": [0, 1]})
    assert "pair " in grouped.in_words(0)
