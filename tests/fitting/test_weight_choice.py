"""weights="auto": the choice of the priors of the weights by the integrated evidence."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from gpx_scale import GPXRegressor, InputError, datasets, kernels, load
from gpx_scale.fitting import model_decision
from gpx_scale.fitting.model_choice import AUTO_WEIGHTS
from gpx_scale.fitting.model_comparison import Contender
from gpx_scale.fitting.procedure import reason_against_terms
from gpx_scale.fitting.weight_choice import MAX_FEATURES, reasons_for, simplest_of_the_best
from gpx_scale.fitting.weight_fit import WeightFit
from gpx_scale.fitting.weight_options import WeightNames, WeightOptions
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.optimize.evidence import Evidence
from gpx_scale.optimize.objective import Point
from gpx_scale.solvers.contract import Problem, SolverOptions

COMPARED = "choice of the model"
AUTO = {"kernel": "rbf", "weights": "auto", "random_state": 0}
NO_INTERCEPT = {**AUTO, "fit_intercept": False}


def chosen(model):
    """Return the kind of priors that was chosen."""
    (found,) = [one for one in model.fit_report_.prior_table if one.chosen]
    return found.weights


def compared_on(model):
    """Return how often models were evaluated for the comparisons of the last fit."""
    counts = model.fit_report_.evaluations
    return sum(count for phase, count in counts.items() if phase.startswith(COMPARED))


def shared_rows(n=120, d=4):
    """Return X, y and Z of weights that share their prior."""
    random = np.random.RandomState(0)
    X, Z = random.uniform(-1.0, 1.0, (n, 2)), random.standard_normal((n, d))
    L = np.linalg.cholesky(kernels.RBF(1.0, 0.5)(X) + 1e-8 * np.eye(n))
    weights = L @ random.standard_normal((n, d))
    return X, (weights * Z).sum(axis=1) + 0.2 * random.standard_normal(n), Z


def semi_rows(n=300):
    """Return X, y and Z of weights of which three vary, two are constant, and ten are zero."""
    data = datasets.synth_semi(n, 0)
    return data.X, data.y, data.Z


def additive_rows(n=100):
    """Return X and y = sin(2 a) + b^2, with two columns of noise."""
    random = np.random.RandomState(1)
    X = random.uniform(-2.0, 2.0, (n, 4))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * random.standard_normal(n)


def test_weights_that_share_their_prior_are_recognised():
    X, y, Z = shared_rows()
    model = GPXRegressor(**NO_INTERCEPT).fit(X, y, Z)
    assert chosen(model) == "shared"
    assert {one.weights for one in model.fit_report_.prior_table} == {"shared", "relevance", "semi"}
    assert not model.fit_report_.kernel_table
    assert not hasattr(model, "weight_table_")
    named = GPXRegressor("rbf", random_state=0, fit_intercept=False, weights="shared").fit(X, y, Z)
    gap = model.log_marginal_likelihood_value_ - named.log_marginal_likelihood_value_
    assert gap == pytest.approx(0.0, abs=1e-3)


def test_constant_weights_and_zeros_are_recognised():
    X, y, Z = semi_rows()
    model = GPXRegressor(**NO_INTERCEPT).fit(X, y, Z)
    assert chosen(model) == "semi"
    named = GPXRegressor(**{**NO_INTERCEPT, "weights": "semi"}).fit(X, y, Z)
    assert [row.decision for row in model.fit_report_.weight_table] == [
        row.decision for row in named.fit_report_.weight_table
    ]
    assert "The weights are 'semi': of 3 priors" in str(model.fit_report_)


def test_curves_of_single_features_are_recognised():
    X, y = additive_rows()
    model = GPXRegressor(**AUTO).fit(X, y)
    assert chosen(model) == "additive"
    assert {one.weights for one in model.fit_report_.prior_table} == {*AUTO_WEIGHTS}
    # An additive model has an intercept where that is open.
    assert model._preprocessor.scaling.intercept
    assert len(model.fit_report_.weight_table) == 5
    without = GPXRegressor(**NO_INTERCEPT).fit(X, y)
    assert not without._preprocessor.scaling.intercept


def test_the_kernel_is_chosen_before():
    X, y = additive_rows(70)
    model = GPXRegressor(weights="auto", candidates=["rbf", "matern32"], random_state=0).fit(X, y)
    (kernel,) = [one for one in model.fit_report_.kernel_table if one.chosen]
    assert {one.kernel for one in model.fit_report_.prior_table} == {kernel.kernel}
    assert {one.ard for one in model.fit_report_.prior_table} == {kernel.ard}


def test_columns_that_leave_the_kernel_have_curves_of_their_own():
    X, y = additive_rows(80)
    X = np.insert(X, 2, 5.0, axis=1)
    arguments = {**AUTO, "ard": True, "max_iter": 8}
    model = GPXRegressor(**arguments).fit(X, y)
    assert "does not read" in str(model.fit_report_)
    assert not any("Error" in one.note for one in model.fit_report_.prior_table)
    assert np.isfinite(model.predict(X)).all()


def test_weights_share_their_prior_where_the_solver_takes_no_others():
    X, y = additive_rows(40)
    model = GPXRegressor(**NO_INTERCEPT, solver="grid", n_basis=6, max_iter=2)
    model.fit(X[:, :1], y, X)
    assert "the solver takes no weights" in str(model.fit_report_)
    assert not model.fit_report_.prior_table


def test_terms_without_prospects_are_not_searched_on_all_rows(monkeypatch):
    monkeypatch.setattr(model_decision, "COMPARISON_ROWS", 120)
    X, y, Z = semi_rows(200)
    states = []
    model = GPXRegressor(**NO_INTERCEPT, callbacks=[lambda state: states.append(state)])
    model.fit(X, y, Z)
    first = next(state for state in states if state["phase"] == "all rows")
    # Most of the 10 features that do nothing have no variance from the beginning.
    assert (np.asarray(first["hyperparameters"]["varying_variances"]) == 0.0).sum() >= 8
    named = GPXRegressor(**{**NO_INTERCEPT, "weights": "semi"}).fit(X, y, Z)
    found, wanted = (
        [row.decision for row in one.fit_report_.weight_table] for one in (model, named)
    )
    assert found == wanted
    gap = model.log_marginal_likelihood_value_ - named.log_marginal_likelihood_value_
    assert gap == pytest.approx(0.0, abs=0.1)


def test_weights_are_shared_where_no_feature_earns_one():
    """The model without any weight has the largest evidence, and is not taken."""
    random = np.random.RandomState(0)
    model = GPXRegressor(**NO_INTERCEPT).fit(
        random.standard_normal((60, 3)), random.standard_normal(60)
    )
    best = max(model.fit_report_.prior_table, key=lambda one: one.integrated)
    assert best.weights != "shared"
    assert chosen(model) == "shared"
    assert "no feature earns its weight" in str(model.fit_report_)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_few_rows_are_fitted(n):
    X, y = additive_rows(n)
    model = GPXRegressor(**AUTO).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_one_column_and_a_constant_y():
    X, y = additive_rows(60)
    model = GPXRegressor(**AUTO).fit(X[:, :1], y)
    assert np.isfinite(model.predict(X[:, :1])).all()
    flat = GPXRegressor(**AUTO).fit(X, np.full(60, 2.0))
    assert flat.predict(X) == pytest.approx(2.0)
    assert not flat.fit_report_.prior_table


@pytest.mark.parametrize(
    ("arguments", "change", "words"),
    [
        ({}, lambda X: sp.csr_array(X > 0), "Z is sparse"),
        ({}, lambda X: np.tile(X, (1, MAX_FEATURES)), f"Up to {MAX_FEATURES}"),
    ],
)
def test_weights_share_their_prior_where_others_are_not_possible(arguments, change, words):
    X, y = additive_rows(40)
    model = GPXRegressor(**NO_INTERCEPT, max_iter=3, **arguments).fit(X, y, change(X))
    assert words in str(model.fit_report_)
    assert not model.fit_report_.prior_table
    assert model.posterior_.hyperparameters.weight_prior.is_shared


def test_a_fit_that_would_take_much_longer_is_not_tried():
    sizes = {"memory_limit": 10**12, "n_jobs": 1, "weight_kernels": 1}
    small = Problem(1_000, 3, 3, **sizes)
    assert reason_against_terms(small, 0.1) is None
    large = Problem(20_000, 3, 3, **sizes)
    assert "is predicted to take" in reason_against_terms(large, 1.0)
    tight = Problem(20_000, 3, 3, **{**sizes, "memory_limit": 10**6})
    assert "memory_limit" in reason_against_terms(tight, 1.0)
    other = Problem(100, 3, 3, **sizes, options=SolverOptions("grid"))
    assert "the solver" in reason_against_terms(other, 1.0)


def test_without_a_search_auto_means_shared():
    X, y = additive_rows(40)
    given = {"optimizer": None, "theta1": 0.7, "theta2": 3.0}
    auto = GPXRegressor(**given, weights="auto").fit(X, y)
    assert_array_equal(auto.predict(X), GPXRegressor(**given).fit(X, y).predict(X))


def test_groups_are_tied():
    X, y, Z = semi_rows(200)
    groups = {"last": [*range(5, 15)]}
    model = GPXRegressor(**NO_INTERCEPT, groups=groups).fit(X, y, Z)
    assert chosen(model) in ("relevance", "semi")
    assert len(model.fit_report_.weight_table) == 6
    with pytest.raises(InputError, match="no column of Z"):
        GPXRegressor(**NO_INTERCEPT, groups={"last": [99]}).fit(X, y, Z)


def test_a_warm_start_keeps_the_choice():
    X, y, Z = semi_rows(200)
    model = GPXRegressor(**NO_INTERCEPT, warm_start=True).fit(X, y, Z)
    first = model.fit_report_.prior_table
    assert chosen(model) != "shared"
    assert compared_on(model)
    model.fit(X, y + 0.01 * X[:, 0], Z)
    assert model.fit_report_.prior_table == first
    assert not compared_on(model)
    model.set_params(weights="shared").fit(X, y, Z)
    assert not model.fit_report_.prior_table
    assert model.posterior_.hyperparameters.weight_prior.is_shared
    # What was not compared is not kept.
    assert chosen(model.set_params(weights="auto").fit(X, y, Z))


def test_a_checkpoint_keeps_the_choice(tmp_path):
    X, y, Z = semi_rows(200)
    path = tmp_path / "state.npz"
    model = GPXRegressor(**NO_INTERCEPT, checkpoint=path).fit(X, y, Z)
    again = GPXRegressor(**NO_INTERCEPT, checkpoint=path).fit(X, y, Z)
    assert not compared_on(again)
    assert again.fit_report_.prior_table == model.fit_report_.prior_table
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    changed = str(arrays["choice"]).replace('"weights": "semi"', '"weights": "other"')
    np.savez(path, **arrays | {"choice": np.array(changed)})
    with pytest.raises(InputError, match="cannot be read"):
        GPXRegressor(**NO_INTERCEPT, checkpoint=path).fit(X, y, Z)


def test_rows_that_are_added_find_the_priors_of_the_first_fit():
    X, y = additive_rows(60)
    model = GPXRegressor(**AUTO, n_inducing=15, max_iter=3).partial_fit(X[:50], y[:50])
    before = chosen(model), model.parameter_names_
    model.partial_fit(X[50:], y[50:])
    assert (chosen(model), model.parameter_names_) == before
    assert model.fit_report_.n_samples == 60


def test_a_saved_model_has_the_comparison(tmp_path):
    X, y, Z = semi_rows(200)
    model = GPXRegressor(**NO_INTERCEPT).fit(X, y, Z)
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert loaded.prior_table_.equals(model.prior_table_)
    assert str(loaded.fit_report_) == str(model.fit_report_)
    assert model.prior_table_["weights"][0] == "semi"
    assert not hasattr(GPXRegressor("rbf", optimizer=None).fit(X, y, Z), "prior_table_")


@pytest.mark.parametrize("evaluation", [1, 8, 20])
def test_an_interrupted_comparison_leaves_a_model(evaluation):
    X, y, Z = semi_rows(200)
    calls = []

    def interrupt(state):
        calls.append(state)
        if len(calls) == evaluation:
            raise KeyboardInterrupt

    model = GPXRegressor(**NO_INTERCEPT, callbacks=interrupt)
    with pytest.raises(KeyboardInterrupt, match="best hyperparameters"):
        model.fit(X, y, Z)
    assert len(calls) == evaluation
    assert np.isfinite(model.predict(X, Z)).all()


def test_the_simpler_of_two_priors_wins_where_they_are_close():
    given = Hyperparameters.of(kernels.RBF(1.0, 8.0), 0.1, 0.1)
    names = WeightNames(("a", "b"), None)
    point = Point(
        np.zeros(4), 0.0, np.zeros(4), np.eye(4), given, Evidence(-1.0, None, 9, np.ones(1))
    )
    shared = Contender(given.kernel, False, False, given, given, point, -11.0)

    def with_priors(kind, integrated):
        priors = WeightFit(WeightOptions(kind), names)
        found = priors.applied(given)
        return replace(shared, found=found, integrated=integrated, priors=priors)

    semi = with_priors("semi", -10.0)
    assert simplest_of_the_best([semi, shared]) is shared
    assert "the simplest prior" in reasons_for(shared, [semi, shared])[0]
    behind = replace(shared, integrated=-12.0)
    assert simplest_of_the_best([semi, behind]) is semi
    assert "2.0 nats more than 'shared'" in reasons_for(semi, [semi, behind])[0]
    relevance = with_priors("relevance", -9.5)
    assert simplest_of_the_best([relevance, semi, behind]) is relevance
    assert "no other prior" in reasons_for(shared, [shared])[0]
