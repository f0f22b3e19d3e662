"""Explanations add up, and their intervals are Gaussian.

The other forms of an explanation (frames, JSON) have the same numbers.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.datasets import load_diabetes

from gpx_scale import GPXRegressor, InputError
from gpx_scale.explanation import joined
from problems import make_problem


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        X[:150], y[:150]
    )
    return model, X[150:170], y[150:170]


def made(kind):
    """An explanation of each form: dense, sparse, dense of a sparse Z, with an intercept."""
    problem = make_problem()
    if kind == "dense":
        return problem.fitted().explain(problem.X_query, problem.Z_query)
    Z, Z_query = (np.where(np.abs(A) > 0.5, A, 0.0) for A in (problem.Z, problem.Z_query))
    model = problem.model(fit_intercept=kind == "intercept").fit(
        problem.X, problem.y, sp.csr_array(Z)
    )
    return model.explain(problem.X_query, sp.csr_array(Z_query), dense=kind == "all weights")


KINDS = ("dense", "sparse", "all weights", "intercept")


def dense(A):
    return A.toarray() if sp.issparse(A) else A


@pytest.mark.parametrize("kind", KINDS)
def test_adds_up_to_the_last_digit(kind):
    explanation = made(kind)
    total = explanation.base_values + explanation.contributions.sum(axis=1)
    np.testing.assert_array_equal(total, explanation.prediction)


@pytest.mark.parametrize("baseline", ["mean", "zero", np.linspace(10, 200, 10)])
def test_a_baseline_moves_contributions_and_base_values_alike(baseline, diabetes):
    model, X, _ = diabetes
    explanation = model.explain(X, baseline=baseline)
    zero = {"mean": model._preprocessor.scaling.z_baseline, "zero": np.zeros(10)}.get(
        baseline if isinstance(baseline, str) else "", baseline
    )
    np.testing.assert_allclose(
        explanation.contributions, explanation.weights * (X.to_numpy() - zero), rtol=1e-12
    )
    np.testing.assert_array_equal(
        explanation.base_values + explanation.contributions.sum(axis=1), explanation.prediction
    )
    np.testing.assert_allclose(explanation.prediction, model.predict(X), rtol=1e-12)


@pytest.mark.parametrize("baseline", ["mean", "zero", np.linspace(-2.0, 3.0, 4)])
def test_base_values_are_predictions_at_the_baseline(baseline, problem):
    """The baseline replaces z, and x is not changed."""
    model = GPXRegressor(optimizer=None).fit(problem.X, problem.y, problem.Z + 5.0)
    zero = (
        {"mean": model.baseline_, "zero": np.zeros(4)}[baseline]
        if isinstance(baseline, str)
        else baseline
    )
    explanation = model.explain(problem.X_query, problem.Z_query, baseline=baseline)
    mean, std = model.predict(
        problem.X_query, np.tile(zero, (len(problem.X_query), 1)), return_std=True
    )
    np.testing.assert_allclose(explanation.base_values, mean, rtol=1e-12, atol=1e-14)
    noise = model._preprocessor.scaling.y_scale * model.hyperparameters_["sigma_y"]
    np.testing.assert_allclose(explanation.base_values_std**2, std**2 - noise**2, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_intervals_are_the_gaussians(kind, level):
    explanation = made(kind)
    for mean, std, interval in (
        (explanation.contributions, explanation.contributions_std, explanation.interval(level)),
        (explanation.weights, explanation.weights_std, explanation.weights_interval(level)),
        (
            explanation.prediction,
            explanation.prediction_std,
            explanation.prediction_interval(level),
        ),
    ):
        assert sp.issparse(interval.lower) == sp.issparse(mean)
        known = dense(std) > 0
        lower, upper = norm.interval(level, dense(mean)[known], dense(std)[known])
        np.testing.assert_allclose(dense(interval.lower)[known], lower, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dense(interval.upper)[known], upper, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_probability_of_the_sign(kind):
    explanation = made(kind)
    found, mean, std = (
        dense(A)
        for A in (
            explanation.probability_positive(),
            explanation.contributions,
            explanation.contributions_std,
        )
    )
    known = std > 0
    np.testing.assert_allclose(found[known], norm.sf(0.0, mean[known], std[known]), atol=1e-14)
    assert (found[~known] == 0.0).all()


def test_without_deviations_intervals_are_refused():
    problem = make_problem()
    explanation = problem.fitted().explain(problem.X_query, problem.Z_query, std=False)
    for ask in (
        explanation.interval,
        explanation.probability_positive,
        explanation.prediction_interval,
    ):
        with pytest.raises(InputError, match="std=True"):
            ask()
    for level in (0.0, 1.0, 95):
        with pytest.raises(InputError, match="between 0 and 1"):
            made("dense").interval(level)
    assert "lower" not in json.loads(explanation.to_json())["samples"][0]["reasons"][0]
    assert "contribution_std" not in explanation.to_frame()


@given(st.integers(0, 1000), st.sampled_from(KINDS))
def test_slices_of_all_forms(seed, kind):
    explanation = made(kind)
    rows = np.random.RandomState(seed).permutation(len(explanation))[: 1 + seed % len(explanation)]
    part = explanation[rows]
    assert len(part) == len(rows)
    assert part.feature_names == explanation.feature_names
    np.testing.assert_array_equal(dense(part.weights_std), dense(explanation.weights_std)[rows])
    np.testing.assert_array_equal(part.prediction, explanation.prediction[rows])
    np.testing.assert_array_equal(
        part.importance(), np.abs(dense(explanation.contributions)[rows]).mean(axis=0)
    )
    assert part.fit_report is explanation.fit_report
    mask = np.zeros(len(explanation), bool)
    mask[rows] = True
    assert len(explanation[mask]) == len(rows)
    assert explanation[-1].prediction[0] == explanation.prediction[-1]
    assert [one.prediction[0] for one in explanation[:3]] == explanation.prediction[:3].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_frames_and_json_say_the_same(kind, tmp_path):
    explanation = made(kind)
    long, wide = explanation.to_frame(level=0.9), explanation.to_frame(wide=True, level=0.9)
    entries = (
        explanation.weights.nnz if sp.issparse(explanation.weights) else explanation.weights.size
    )
    assert len(long) == entries
    assert list(wide)[:5] == ["base_value", "prediction", "prediction_std", "lower", "upper"]
    np.testing.assert_array_equal(
        dense(explanation.contributions), wide[explanation.feature_names].to_numpy()
    )
    lower, upper = explanation.interval(0.9)
    at = long["sample"], long["feature"].map(explanation.feature_names.index)
    np.testing.assert_array_equal(long["lower"], dense(lower)[at])
    np.testing.assert_array_equal(long["upper"], dense(upper)[at])
    np.testing.assert_array_equal(
        long["probability_positive"], dense(explanation.probability_positive())[at]
    )
    text = explanation.to_json(tmp_path / "e.json", level=0.9)
    assert (tmp_path / "e.json").read_text(encoding="utf-8") == text
    document = json.loads(text)
    assert document["level"] == 0.9
    reasons = [
        {"sample": i} | reason
        for i, sample in enumerate(document["samples"])
        for reason in sample["reasons"]
    ]
    for column in long:
        # JSON keeps every digit.
        assert [reason[column] for reason in reasons] == long[column].tolist()
    for i, sample in enumerate(document["samples"]):
        assert sample["prediction"] == explanation.prediction[i]
        assert sample["base_value_std"] == explanation.base_values_std[i]
        total = sample["base_value"] + sum(reason["contribution"] for reason in sample["reasons"])
        assert total == pytest.approx(sample["prediction"], rel=1e-12, abs=1e-12)


def test_names_of_the_target_come_with_it(diabetes):
    model, X, _ = diabetes
    assert model.target_name_ == "target"
    assert model.explain(X).target_name == "target"
    assert json.loads(model.explain(X).to_json())["target"] == "target"
    assert GPXRegressor(optimizer=None).fit(X.to_numpy(), np.arange(20.0)).target_name_ is None


def test_top_has_the_largest_first(diabetes):
    model, X, _ = diabetes
    explanation = model.explain(X)
    reasons = explanation.top(3, k=100)
    assert len(reasons) == 10
    sizes = [abs(reason.contribution) for reason in reasons]
    assert sizes == sorted(sizes, reverse=True)
    at = explanation.feature_names.index(reasons[0].feature)
    assert reasons[0].contribution == explanation.contributions[3, at]
    assert reasons[0].value == X.iloc[3, at]


def test_coverage_counts(diabetes):
    model, X, y = diabetes
    explanation = model.explain(X)
    mean, std = model.predict(X, return_std=True)
    assert explanation.coverage(y, 0.8) == np.mean(np.abs(y - mean) <= norm.ppf(0.9) * std)
    assert explanation.coverage(explanation.prediction) == 1.0
    for wrong in (y[:3], np.full(20, np.nan)):
        with pytest.raises(InputError, match="20 finite numbers"):
            explanation.coverage(wrong)


def test_samples_are_numbered(diabetes):
    explanation = diabetes[0].explain(diabetes[1])
    for wrong in (1.7, "0", True, None):
        with pytest.raises(TypeError):
            explanation[wrong]
        with pytest.raises(TypeError):
            explanation.top(wrong)
    for wrong in ([0, 1], slice(2)):
        with pytest.raises(TypeError):
            explanation.top(wrong)
    with pytest.raises(IndexError, match="no sample 20: there are 20"):
        explanation[20]
    with pytest.raises(InputError, match="k="):
        explanation.top(0, -1)
    assert len(explanation[[]]) == 0
    assert (explanation[:0].importance() == 0).all()


def test_a_baseline_far_away_is_refused(diabetes):
    model, X, _ = diabetes
    with pytest.raises(InputError, match="lose their digits"):
        model.explain(X, baseline=np.full(10, 1e15))


@pytest.mark.parametrize("kind", KINDS)
def test_explanations_are_joined(kind):
    explanation = made(kind)
    again = joined([explanation[:2], explanation[2:3], explanation[3:]])
    np.testing.assert_array_equal(
        dense(again.contributions_std), dense(explanation.contributions_std)
    )
    np.testing.assert_array_equal(again.prediction, explanation.prediction)
    assert again.weights_cov is None
    other = replace(explanation, feature_names=["other", *explanation.feature_names[1:]])
    with pytest.raises(InputError, match="different features"):
        joined([explanation, other])
    bare = replace(explanation, weights_std=None)
    assert joined([explanation, bare]).weights_std is None
    with pytest.raises(InputError, match="no explanations"):
        joined([])
