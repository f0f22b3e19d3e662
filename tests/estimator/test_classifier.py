"""`GPXClassifier`: labels, probabilities, explanations, bad input, files."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

from gpx_scale import GPXClassifier, InputError, load
from gpx_scale.errors import SolverUnavailable

NAMED = {"kernel": "rbf", "fit_intercept": False}
# Rows that are given twice have noise of their own weights each, and move means and scales of X; a
# row with a weight of 2 does neither. Probabilities depend on the variance of f, and the decision
# function does not, so that their ranks may differ.
NOT_CLAIMED = {
    f"check_sample_weight_equivalence_on_{form}_data": "a weight multiplies the log-likelihood"
    for form in ("dense", "sparse")
} | {"check_decision_proba_consistency": "probabilities depend on the variance of f, too"}


def made(count=90, classes=2, seed=0):
    random = np.random.RandomState(seed)
    X = random.standard_normal((count, 3))
    score = np.column_stack([1.5 * X[:, k] * (1 + 0.3 * X[:, 0]) for k in range(classes)])
    labels = np.array(["no", "yes", "maybe"])[:classes]
    return X, labels[np.argmax(score + 0.5 * random.gumbel(size=score.shape), axis=1)]


@pytest.fixture(scope="module", params=[2, 3])
def fitted(request):
    X, y = made(classes=request.param)
    return GPXClassifier(**NAMED, random_state=0).fit(X[:60], y[:60]), X[60:], y[60:]


@pytest.mark.parametrize(
    "arguments",
    [
        NAMED | {"max_iter": 1},
        pytest.param(NAMED, marks=pytest.mark.slow),
        pytest.param(NAMED | {"inference": "laplace", "link": "probit"}, marks=pytest.mark.slow),
    ],
)
def test_scikit_learn_s_own_checks_pass(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of checks that do not apply.
        results = check_estimator(
            GPXClassifier(**arguments),
            on_fail=None,
            expected_failed_checks=NOT_CLAIMED,
        )
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped", "xfail")]
    assert not failed
    assert len(results) > 50


def test_probabilities_labels_and_latent_values_agree(fitted):
    model, X, y = fitted
    probability = model.predict_proba(X)
    assert probability.shape == (len(X), len(model.classes_))
    assert_allclose(probability.sum(axis=1), 1.0)
    assert_allclose(np.exp(model.predict_log_proba(X)), probability)
    assert (model.predict(X) == model.classes_[probability.argmax(axis=1)]).all()
    f, std = model.decision_function(X, return_std=True)
    assert f.shape == std.shape
    if len(model.classes_) == 2:
        assert ((f > 0) == (model.predict(X) == model.classes_[1])).all()
    assert model.score(X, y) > 0.55
    assert model.score(X, y, sample_weight=(model.predict(X) == y).astype(float)) == 1.0


def test_explanations_add_up_to_the_latent_values(fitted):
    model, X, _ = fitted
    f, std = model.decision_function(X, return_std=True)
    f, std = f.reshape(len(X), -1), std.reshape(len(X), -1)
    for k, label in enumerate(model.classes_):
        found = model.explain(X, class_=label, cov=True)
        sign, column = (1.0, k) if len(model.classes_) > 2 else (2.0 * k - 1.0, 0)
        total = found.base_values + found.contributions.sum(axis=1)
        assert_allclose(total, sign * f[:, column], atol=1e-12)
        assert_allclose(found.prediction, sign * f[:, column], atol=1e-12)
        assert_allclose(found.prediction_std, std[:, column])
        assert_allclose(found.odds_factors, np.exp(found.contributions))
        assert (found.classes == label).all()
    if len(model.classes_) == 2:
        assert_allclose(found.probability, model.predict_proba(X)[:, 1])


def test_by_default_the_predicted_class_is_explained(fitted):
    model, X, _ = fitted
    found = model.explain(X, std=False)
    expected = model.predict(X) if len(model.classes_) > 2 else [model.classes_[1]] * len(X)
    assert found.classes.tolist() == list(expected)
    for i in (0, 5, len(X) - 1):
        alone = model.explain(X[i : i + 1], class_=found.classes[i], std=False)
        assert_allclose(found[i].weights, alone.weights)
        assert_allclose(found[i].probability, alone.probability)
    assert "ClassExplanation(30 samples" in repr(found)


def test_a_change_of_probability_is_that_of_leaving_the_contribution_out(fitted):
    model, X, _ = fitted
    found = model.explain(X)
    likelihood = model.posterior_.hyperparameters.likelihood
    without = found.prediction - found.contributions[:, 1]
    left, _ = likelihood.predict(without, found.prediction_std**2)
    assert_allclose(found.probability_changes[:, 1], found.probability - left)


def test_a_file_and_a_copy_predict_the_same(fitted, tmp_path):
    model, X, _ = fitted
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert type(loaded) is GPXClassifier
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert (loaded.predict(X) == model.predict(X)).all()
    value, _ = loaded.log_marginal_likelihood(loaded.theta_, eval_gradient=True)
    assert_allclose(value, model.log_marginal_likelihood_value_, atol=1e-4)


def test_the_training_rows_are_explained_by_their_own_weights(fitted):
    model, _, _ = fitted
    found = model.training_explanation(class_=model.classes_[1])
    assert len(found) == 60
    assert_allclose(found.base_values + found.contributions.sum(axis=1), found.prediction)


def test_labels_of_any_type_are_predicted_as_they_were_given():
    X, y = made()
    for labels in (y == "yes", np.where(y == "yes", 3, -1), np.where(y == "yes", "b", "a")):
        for given in (labels, labels.astype(object), labels.tolist()):
            model = GPXClassifier(**NAMED, optimizer=None).fit(X, given)
            assert set(model.predict(X).tolist()) == set(labels.tolist())


def test_weights_change_the_probabilities():
    X, y = made()
    usual = GPXClassifier(**NAMED, optimizer=None).fit(X, y).predict_proba(X)[:, 1]
    more = {"no": 1.0, "yes": 5.0}
    by_class = GPXClassifier(**NAMED, optimizer=None, class_weight=more).fit(X, y)
    weight = np.where(y == "yes", 5.0, 1.0)
    by_row = GPXClassifier(**NAMED, optimizer=None).fit(X, y, sample_weight=weight)
    assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X))
    assert by_class.predict_proba(X)[:, 1].mean() > usual.mean() + 0.05
    even = GPXClassifier(**NAMED, optimizer=None, class_weight="balanced").fit(X, y)
    assert even.predict(X).shape == y.shape
    kept = np.arange(90) % 3 > 0
    without = GPXClassifier(**NAMED, optimizer=None).fit(X[kept], y[kept])
    zero = GPXClassifier(**NAMED, optimizer=None).fit(X, y, sample_weight=kept.astype(float))
    assert_allclose(zero.predict_proba(X), without.predict_proba(X))


def test_separable_classes_and_a_class_of_one_row_stay_finite():
    X = np.linspace(-1.0, 1.0, 40)[:, None]
    model = GPXClassifier(**NAMED).fit(X, X[:, 0] > 0)
    assert np.isfinite(model.decision_function(X)).all()
    assert np.isfinite(model.explain(X).weights_std).all()
    alone = GPXClassifier(**NAMED).fit(X, np.arange(40) == 7)
    assert np.isfinite(alone.predict_log_proba(X)).all()


@pytest.mark.parametrize("weights", ["relevance", "semi", "additive"])
def test_weights_may_have_priors_of_their_own(weights):
    X, y = made(150)
    model = GPXClassifier("rbf", fit_intercept=False, weights=weights).fit(X, y)
    found = model.explain(X[:5])
    assert len(model.weight_table_) >= 3
    parts = [part for part in (found.constant, found.own, found.varying) if part is not None]
    assert_allclose(sum(parts), found.weights, atol=1e-10)


def test_the_evidence_chooses_kernel_and_intercept():
    X, y = made()
    y[:20] = "yes"
    model = GPXClassifier(candidates=["rbf", "matern32"], random_state=0).fit(X, y)
    assert len(model.fit_report_.kernel_table) >= 2
    again = GPXClassifier(candidates=["rbf", "matern32"], random_state=0).fit(X, y)
    assert (again.theta_ == model.theta_).all()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.ones(6), "only one class"),
        (np.array([0.0, 1.0, np.nan, 1.0, 0.0, 1.0]), "NaN"),
        (np.array(["a", None, "b", "a", "a", "b"], object), "None"),
        (np.linspace(0.0, 1.0, 6), "continuous"),
        (np.array([0, 1, 0, 1, 0]), "inconsistent"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(y, message):
    with pytest.raises(InputError, match=message):
        GPXClassifier(**NAMED).fit(np.arange(12.0).reshape(6, 2), y)


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ({"link": "log"}, {}, "link"),
        ({"inference": "mcmc"}, {}, "inference"),
        ({"class_weight": {"no": -1.0}}, {}, "class_weight"),
        ({"class_weight": "even"}, {}, "class_weight"),
        ({"class_weight": {"no": 0.0}}, {}, "only one class"),
        ({}, {"sample_weight": np.full(90, -1.0)}, "sample_weight"),
        ({}, {"sample_weight": np.ones(3)}, "sample_weight"),
        ({}, {"sample_weight": np.zeros(90)}, "weight of zero"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, given, message):
    with pytest.raises(InputError, match=message):
        GPXClassifier(**NAMED, **arguments).fit(*made(), **given)


def test_what_classes_do_not_have_is_refused_by_name():
    X, y = made()
    for solver in ("cg", "inducing", "basis", "grid", "neighbors"):
        with pytest.raises(SolverUnavailable, match="classes, counts"):
            GPXClassifier(**NAMED, solver=solver).fit(X, y)
    with pytest.raises(SolverUnavailable, match="chunks"):
        GPXClassifier(**NAMED).fit(lambda: iter([(X, y)]))
    model = GPXClassifier(**NAMED, optimizer=None).fit(X, y)
    assert not hasattr(model, "partial_fit")
    for call in (model.leave_one_out, lambda: model.sample_y(X)):
        with pytest.raises(SolverUnavailable, match="classes"):
            call()
    with pytest.raises(InputError, match="not a class"):
        model.explain(X, class_="perhaps")
    with pytest.raises(InputError, match="odds"):
        GPXClassifier(**NAMED, link="probit", optimizer=None).fit(X, y).explain(X).odds_factors  # noqa: B018


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X, y = made()
    model = GPXClassifier(**NAMED, optimizer=None).fit(X, y)
    with pytest.raises(InputError):
        model.fit(X[:5], np.array(["a", "b", "a", "b", "a", "b"]))
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) == {"no", "yes"}


def test_the_plan_counts_the_latent_functions():
    X, y = made(classes=3)
    plan = GPXClassifier(**NAMED).plan(X, y)
    assert plan.latent_functions == 3
    assert plan.solver == "exact"
    assert "Gaussian noise alone" in str(plan)
