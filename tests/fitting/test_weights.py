"""Weights with priors of their own: the interface, decisions, explanations, files, bad input."""

import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from scipy.stats import norm

from gpx_scale import GPXRegressor, datasets, kernels, load
from gpx_scale.errors import GPXWarning, InputError, MemoryLimitError, SolverUnavailable
from gpx_scale.solvers.contract import Capability
from gpx_scale.solvers.registry import SOLVERS

FAST = {"kernel": "rbf", "fit_intercept": False, "random_state": 0}


def rows(n=300, irrelevant=3, seed=0):
    """Return rows with two weights that vary, one constant weight, and irrelevant features."""
    random = np.random.RandomState(seed)
    X, Z = random.uniform(0.0, 1.0, (n, 1)), random.standard_normal((n, 3 + irrelevant))
    weights = np.zeros(Z.shape)
    weights[:, 0] = np.sin(2.0 * np.pi * X[:, 0])
    weights[:, 1] = 1.0 + np.cos(3.0 * X[:, 0])
    weights[:, 2] = -1.0
    y = (weights * Z).sum(axis=1) + 0.3 * random.standard_normal(n)
    return X, y, Z, weights


@cache
def semi():
    X, y, Z, _ = rows()
    return GPXRegressor(weights="semi", **FAST).fit(X, y, Z)


def decisions(model):
    return [row.decision for row in model.fit_report_.weight_table]


def test_zero_constant_and_varying_weights_are_recognised():
    assert decisions(semi()) == ["varying", "varying", "constant", "zero", "zero", "zero"]
    table = semi().weight_table_
    assert (table["nats"][:3] > 20.0).all()
    assert table["nats"][3:].isna().all()
    assert_allclose(table["share"].sum(), 1.0)
    assert_allclose(table["mean"][2], -1.0, atol=0.1)
    assert table["std"][2] == pytest.approx(0.0, abs=1e-12)
    assert (table["length_scale"][:2] > 0.05).all()
    assert (table["length_scale"][:2] < 2.0).all()
    assert table["length_scale"][2:].isna().all()


def test_weights_are_nearer_to_the_truth_than_those_that_share_a_prior():
    X, y, Z, truth = rows()
    shared = GPXRegressor(weights="shared", **FAST).fit(X, y, Z)
    errors = [
        np.sqrt(np.mean((model.explain(X, Z, std=False).weights - truth) ** 2))
        for model in (semi(), shared)
    ]
    assert errors[0] < 0.8 * errors[1]
    assert semi().log_marginal_likelihood_value_ > shared.log_marginal_likelihood_value_ + 20.0


def test_removed_variances_are_no_parameters():
    model = semi()
    assert model.parameter_names_[:2] == ["theta1", "theta2"]
    assert "varying_variances[z2]" not in " ".join(model.parameter_names_)
    assert len(model.parameter_names_) == model.theta_.size
    names = [name for name in model.parameter_names_ if "variances" in name]
    assert len(names) <= 5
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_)
    assert gradient.shape == model.theta_.shape


def test_nothing_is_removed_without_pruning():
    X, y, Z, _ = rows(120)
    model = GPXRegressor(weights="semi", prune=False, **FAST).fit(X, y, Z)
    assert decisions(model) == ["varying"] * 6
    assert model.theta_.size == 2 + 6 + 6 + 2
    assert np.isfinite(model.weight_table_["nats"]).all()


def test_one_variance_for_each_weight_is_no_less_than_one_for_all():
    X, y, Z, _ = rows(150, seed=1)
    relevance = GPXRegressor(weights="relevance", **FAST).fit(X, y, Z)
    assert decisions(relevance) == ["varying"] * 3 + ["zero"] * 3
    shared = GPXRegressor(weights="shared", **FAST).fit(X, y, Z)
    gain = relevance.log_marginal_likelihood_value_ - shared.log_marginal_likelihood_value_
    assert gain > 10.0


@pytest.mark.parametrize("std", [True, "surface", "certified", False])
def test_parts_add_up_to_the_weights(std):
    X, _, Z, _ = rows(50, seed=1)
    found = semi().explain(X, Z, std=std)
    assert_allclose(found.constant + found.varying, found.weights, atol=1e-12)
    assert found.own is None
    assert found.own_std is None
    assert_allclose(found.constant, found.constant[[0]].repeat(50, axis=0))
    assert not found.varying[:, 3:].any()
    if std is False:
        assert found.constant_std is None
        assert found.varying_std is None
        return
    # The constant weight has no varying part, but for its own noise.
    alone = found.weights_std[:, 2] ** 2
    parts = found.constant_std[:, 2] ** 2 + found.varying_std[:, 2] ** 2
    assert_allclose(alone, parts, rtol=1e-6)
    if std == "surface":
        assert_allclose(found.varying_std[:, 2:], 0.0, atol=1e-12)
    assert (found.varying_std[:, 0] > 0).all()
    some = found[3:5]
    assert_allclose(some.varying_std, found.varying_std[3:5])


def test_local_t_values_are_weights_over_their_deviations():
    X, _, Z, _ = rows(20, seed=1)
    found = semi().explain(X, Z, std="surface")
    t = found.local_t()
    assert_allclose(t[:, :3], found.weights[:, :3] / found.weights_std[:, :3])
    assert not t[:, 3:].any()


def test_signs_of_weights_and_local_r2():
    X, y, Z, _ = rows()
    model = semi()
    found = model.explain(X, Z, std="surface")
    sure = norm.cdf(found.local_t()) * (found.weights_std > 0)
    assert_allclose(found.probability_positive("weights"), sure, atol=1e-12)
    with pytest.raises(InputError, match="of='parts' is not valid"):
        found.probability_positive("parts")
    # The share of the variance that one row's weights explain, of all rows if they had them.
    noise = model.hyperparameters_["sigma_y"] * y.std()
    explained = np.var(Z @ found.weights[0], ddof=1)
    assert_allclose(found.local_r2()[0], explained / (explained + noise**2), rtol=1e-10)
    assert (model.explain(X, Z).local_r2() <= found.local_r2()).all()
    for few, message in (
        (found[:1], "at least two"),
        (model.explain(X[:9], Z[:9], groups={"a": [0, 1]}).grouped(), "grouped"),
    ):
        with pytest.raises(InputError, match=message):
            few.local_r2()


def test_shares_of_the_parts_are_those_of_their_contributions(tmp_path):
    X, _, Z, _ = rows()
    found = semi().explain(X, Z)
    moved = Z - Z.mean(axis=0)
    constant, varying = (
        np.var((part * moved).sum(axis=1)) for part in (found.constant, found.varying)
    )
    shares = found.part_shares()
    assert shares.keys() == {"constant", "varying"}
    assert_allclose(shares["varying"], varying / (constant + varying), rtol=1e-9)
    assert found.to_html(tmp_path / "r.html").read_text().count("(interactions)") == 1


def test_the_levels_of_a_category_are_a_group():
    pd = pytest.importorskip("pandas")
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"size": random.standard_normal(80), "city": list("abca" * 20)})
    y = frame["size"] * frame["city"].map({"a": 1.0, "b": 3.0, "c": -2.0})
    model = GPXRegressor(weights="semi", **FAST, prune=False).fit(frame, y)
    assert model.weight_table_["feature"].tolist() == ["size", "city"]
    varying = model.hyperparameters_["varying_variances"]
    assert varying[1] == varying[2] == varying[3]
    both = GPXRegressor(weights="semi", groups={"both": ["city", "size"]}, max_iter=2, **FAST)
    assert [row.feature for row in both.fit(frame, y).fit_report_.weight_table] == ["both"]
    alone = GPXRegressor(weights="semi", groups={"one": ["city_a"]}, max_iter=2, **FAST)
    names = [row.feature for row in alone.fit(frame, y).fit_report_.weight_table]
    assert names == ["size", "one", "city_b", "city_c"]


def test_a_plan_without_enough_memory_for_length_scales_of_their_own_names_what_runs():
    """More than 3 columns of X, and more rows than the exact solver holds."""
    random = np.random.RandomState(0)
    X, y = random.standard_normal((6000, 5)), random.standard_normal(6000)
    plan = GPXRegressor(weights="multiscale", memory_limit="200MiB", **FAST).plan(X, y)
    assert plan.solver in ("cg", "neighbors")
    verdicts = {one.solver: one.verdict for one in plan.candidates}
    assert "not taken" in verdicts["exact"]


def test_parts_of_training_rows_add_up():
    found = semi().training_explanation()
    assert_allclose(found.constant + found.varying, found.weights, atol=1e-12)


def test_away_from_the_data_a_weight_returns_to_its_constant_part():
    Z = np.eye(6)[:3]
    found = semi().explain(np.full((3, 1), 50.0), Z, std=False)
    assert_allclose(found.varying, 0.0, atol=1e-8)
    assert_allclose(found.weights[:, 2], -1.0, atol=0.1)


def test_weights_that_share_their_prior_have_no_parts():
    X, y, Z, _ = rows(60)
    model = GPXRegressor(**FAST, optimizer=None).fit(X, y, Z)
    found = model.explain(X, Z)
    assert found.constant is None
    assert found.varying_std is None
    assert not hasattr(model, "weight_table_")
    assert model.parameter_names_ == ["theta1", "theta2", "sigma_w", "sigma_y"]


def test_given_hyperparameters_are_the_variances_of_all_weights():
    X, y, Z, _ = rows(60)
    given = {"theta1": 0.7, "theta2": 0.5, "optimizer": None, "kernel": "rbf"}
    relevance = GPXRegressor(weights="relevance", fit_intercept=False, **given).fit(X, y, Z)
    shared = GPXRegressor(fit_intercept=False, **given).fit(X, y, Z)
    assert_allclose(relevance.predict(X, Z), shared.predict(X, Z), rtol=1e-9, atol=1e-10)
    assert relevance.hyperparameters_["varying_variances"] == (0.7,) * 6
    assert relevance.hyperparameters_["theta1"] == 1.0


def test_groups_tie_their_columns():
    pd = pytest.importorskip("pandas")
    X, y, Z, _ = rows(150, seed=1)
    frame = pd.DataFrame(Z, columns=list("abcdef"))
    groups = {"first": ["a", "b"], "rest": ["d", 4, "f"]}
    model = GPXRegressor(weights="semi", groups=groups, **FAST).fit(X, y, frame)
    assert model.weight_table_["feature"].tolist() == ["first", "c", "rest"]
    assert decisions(model) == ["varying", "constant", "zero"]
    varying = model.hyperparameters_["varying_variances"]
    assert varying[0] == varying[1] > 0
    assert "varying_variances[first]" in model.parameter_names_
    assert model.explain(X, frame, std=False).varying[:, :2].any()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"one": [0, 1], "two": [1, 2]}, "'two'. Give each column to one group"),
        ({"one": [0, 0]}, "Give each column to one group"),
        ({"one": ["nothing"]}, "'nothing', which is no column of Z"),
        ({"one": [17]}, "17, which is no column of Z"),
        ({"one": []}, "Give a list of at least one"),
        ({"one": "a"}, "Give a list of at least one"),
        ([["a"]], "Give a dict"),
    ],
)
def test_groups_that_cannot_be_used_are_refused(groups, message):
    X, y, Z, _ = rows(60)
    with pytest.raises(InputError, match=message):
        GPXRegressor(weights="semi", groups=groups, **FAST).fit(X, y, Z)


def test_arguments_that_do_not_go_together_are_refused():
    X, y, Z, _ = rows(60)
    for arguments, message in (
        ({"weights": "all"}, "weights='all' is not valid"),
        ({"weights": "shared", "groups": {"one": [0]}}, "weights='shared' has none"),
        ({"weights": "semi", "prune": "no"}, "prune"),
    ):
        with pytest.raises(InputError, match=message):
            GPXRegressor(**FAST, **arguments).fit(X, y, Z)
    with pytest.raises(InputError, match="needs a dense Z"):
        GPXRegressor(weights="multiscale", **FAST).fit(X, y, sp.csr_array(Z))


WITHOUT_TERMS = [
    solver.name for solver in SOLVERS if Capability.WEIGHT_TERMS not in solver.capabilities
]


@pytest.mark.parametrize("solver", WITHOUT_TERMS)
def test_solvers_without_terms_refuse_them_and_name_those_with(solver):
    X, y, Z, _ = rows(60)
    model = GPXRegressor(weights="semi", solver=solver, **FAST)
    for call in (model.fit, model.plan):
        with pytest.raises(SolverUnavailable, match=r"These are 'exact'.*weights='shared'"):
            call(X, y, Z)


def test_rows_that_cannot_be_held_are_refused():
    X, y, Z, _ = rows(3000)
    with pytest.raises(MemoryLimitError, match="solver='cg'"):
        GPXRegressor(weights="semi", solver="exact", memory_limit="40MiB", **FAST).plan(X, y, Z)


def test_a_plan_says_that_priors_of_weights_take_time():
    X, y, Z, _ = rows(200)
    plans = {
        weights: GPXRegressor(weights=weights, **FAST).plan(X, y, Z)
        for weights in ("shared", "semi", "multiscale")
    }
    assert plans["shared"].seconds < plans["semi"].seconds < plans["multiscale"].seconds
    assert plans["shared"].bytes_needed < plans["semi"].bytes_needed
    assert "priors of their own" in str(plans["semi"])
    assert plans["multiscale"].weight_kernels == 6


def test_rows_are_added_to_a_model_that_keeps_its_terms():
    X, y, Z, weights = rows(100)
    model = GPXRegressor(weights="semi", **FAST).fit(X[:60], y[:60], Z[:60])
    before = model.hyperparameters_
    model.partial_fit(X[60:], y[60:], Z[60:])
    assert model.fit_report_.n_samples == 100
    assert_allclose(model.hyperparameters_["varying_variances"], before["varying_variances"])
    found = model.explain(X[60:], Z[60:], std=False).weights
    assert np.sqrt(np.mean((found - weights[60:]) ** 2)) < 0.2


def test_saved_models_predict_and_explain_alike(tmp_path):
    X, y, Z, _ = rows(40, seed=2)
    model = GPXRegressor(weights="semi", groups={"some": [3, 4]}, **FAST).fit(X, y, Z)
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    first, second = model.explain(X, Z), loaded.explain(X, Z)
    for name in ("weights", "weights_std", "constant_std", "varying_std"):
        assert (getattr(first, name) == getattr(second, name)).all()
    assert str(loaded.fit_report_) == str(model.fit_report_)
    assert loaded.parameter_names_ == model.parameter_names_


def test_reports_have_the_weights(tmp_path):
    pytest.importorskip("jinja2")
    X, _, Z, _ = rows(5, seed=3)
    page = semi().explain(X, Z).to_html(tmp_path / "report.html").read_text()
    assert "x2: constant (earns" in page
    assert "variances of the parts of weights that are the same everywhere" in page


def test_a_warm_start_finds_the_same_terms():
    X, y, Z, _ = rows()
    model = GPXRegressor(weights="semi", warm_start=True, **FAST).fit(X, y, Z)
    before = model.theta_
    model.fit(X, y, Z)
    assert decisions(model) == decisions(semi())
    assert_allclose(model.theta_, before, atol=0.05)


def test_a_checkpoint_is_resumed(tmp_path):
    X, y, Z, _ = rows(120)
    model = GPXRegressor(weights="semi", checkpoint=tmp_path / "state.npz", **FAST)
    first = model.fit(X, y, Z).theta_
    again = model.fit(X, y, Z)
    assert_allclose(again.theta_, first, atol=0.02)
    other = GPXRegressor(weights="relevance", checkpoint=tmp_path / "state.npz", **FAST)
    with pytest.raises(InputError, match="belongs to other"):
        other.fit(X, y, Z)


def test_one_feature_is_enough():
    X = np.linspace(-1.0, 1.0, 60)[:, None]
    model = GPXRegressor(weights="semi", **FAST).fit(X, X[:, 0] ** 3 - X[:, 0])
    assert decisions(model) == ["varying"]
    assert np.isfinite(model.predict(X)).all()


def test_there_may_be_more_features_than_rows():
    random = np.random.RandomState(0)
    Z = random.standard_normal((30, 40))
    X = random.uniform(size=(30, 1))
    model = GPXRegressor(weights="semi", **FAST).fit(X, Z[:, 0] + Z[:, 1], Z)
    found = decisions(model)
    assert found[:2] == ["constant", "constant"]
    assert found.count("zero") > 25


def test_one_of_two_equal_features_stays():
    X, y, Z, _ = rows(150, irrelevant=0)
    model = GPXRegressor(weights="semi", **FAST).fit(X, y, np.column_stack([Z, Z[:, 2]]))
    assert sorted(decisions(model)[2:]) == ["constant", "zero"]


def test_a_constant_feature_is_named():
    X, y, Z, _ = rows(100)
    Z = np.column_stack([Z[:, :3], np.full(100, 7.0)])
    model = GPXRegressor(weights="semi", **FAST).fit(X, y + 3.0 * X[:, 0], Z)
    assert "'x3' is constant, so its weight and an intercept" in " ".join(model.fit_report_.notes)


def test_an_intercept_is_a_weight_like_the_others():
    X, y, Z, _ = rows(150, irrelevant=1)
    arguments = {**FAST, "fit_intercept": True}
    model = GPXRegressor(weights="semi", **arguments).fit(X, y + np.sin(6.0 * X[:, 0]), Z)
    table = model.weight_table_
    assert table["feature"].tolist()[-1] == "intercept"
    assert decisions(model)[-1] == "varying"
    found = model.explain(X, Z)
    assert found.constant.shape == (150, 4)
    assert_allclose(found.base_values + found.contributions.sum(axis=1), model.predict(X, Z))


def test_without_any_weight_the_model_predicts_the_mean():
    random = np.random.RandomState(3)
    X, Z, y = random.uniform(size=(80, 1)), random.standard_normal((80, 2)), random.randn(80) + 5.0
    with pytest.warns(GPXWarning, match="predicts the mean of y"):
        model = GPXRegressor(weights="semi", **FAST).fit(X, y, Z)
    assert decisions(model) == ["zero", "zero"]
    assert_allclose(model.predict(X, Z), y.mean())
    _, std = model.predict(X, Z, return_std=True)
    assert_allclose(std, y.std(), rtol=0.1)
    assert_allclose(model.explain(X, Z).weights, 0.0)
    assert model.sample_y(X[:3], Z[:3], n_samples=4).shape == (3, 4)


def test_the_kernel_and_the_intercept_are_chosen_first():
    X, y, Z, _ = rows(120, irrelevant=1)
    candidates = [kernels.RBF(), kernels.Matern32()]
    model = GPXRegressor(candidates=candidates, weights="semi", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y, Z)
    assert model.kernel_table_["chosen"].sum() == 1
    assert decisions(model)[:3] == ["varying", "varying", "constant"]
    assert "weight" in str(model.fit_report_)


def test_ard_and_sums_of_kernels_have_terms():
    random = np.random.RandomState(0)
    X, Z = random.uniform(size=(150, 2)), random.standard_normal((150, 2))
    y = np.sin(5.0 * X[:, 0]) * Z[:, 0] + 0.2 * random.standard_normal(150)
    ard = GPXRegressor("rbf", ard=True, weights="semi", fit_intercept=False).fit(X, y, Z)
    assert decisions(ard) == ["varying", "zero"]
    both = kernels.RBF(1.0, 0.1) + kernels.Matern32(1.0, 1.0)
    total = GPXRegressor(both, weights="semi", fit_intercept=False).fit(X, y, Z)
    assert decisions(total) == ["varying", "zero"]


def test_each_weight_that_varies_may_have_its_own_length_scale():
    data = datasets.synth_multiscale(350, 1)
    given = data.X, data.y, data.Z
    one = GPXRegressor(weights="semi", **FAST).fit(*given)
    several = GPXRegressor(weights="multiscale", **FAST).fit(*given)
    assert decisions(several) == ["constant", "varying", "varying"]
    gain = several.log_marginal_likelihood_value_ - one.log_marginal_likelihood_value_
    assert gain > 5.0
    _, smooth, rough = several.weight_table_["length_scale"]
    assert smooth > 2.0 * rough
    names = several.parameter_names_
    assert names[:4] == ["x1.theta1", "x1.theta2", "x2.theta1", "x2.theta2"]
    assert several.hyperparameters_["z1.theta2"] > several.hyperparameters_["z2.theta2"]
    found = several.explain(data.X[:9], data.Z[:9])
    assert_allclose(found.constant + found.varying, found.weights, atol=1e-12)


def test_models_of_several_length_scales_are_saved_and_fitted_again(tmp_path):
    data = datasets.synth_multiscale(150, 1)
    given = data.X, data.y, data.Z
    arguments = {"weights": "multiscale", "groups": {"two": [1, 2]}, **FAST}
    model = GPXRegressor(prune=False, warm_start=True, **arguments).fit(*given)
    assert model.parameter_names_[:4] == ["x0.theta1", "x0.theta2", "two.theta1", "two.theta2"]
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert (loaded.predict(data.X, data.Z) == model.predict(data.X, data.Z)).all()
    before = model.log_marginal_likelihood_value_
    assert model.fit(*given).log_marginal_likelihood_value_ == pytest.approx(before, abs=0.5)


def additive_rows(n=200, seed=1):
    """Return y = sin(2 a) + b^2, and the columns a, b and two of noise."""
    random = np.random.RandomState(seed)
    X = random.uniform(-2.0, 2.0, (n, 4))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * random.standard_normal(n)


def test_curves_of_single_features_are_found_and_noise_is_not_important():
    X, y = additive_rows()
    model = GPXRegressor("rbf", weights="additive", random_state=0).fit(X[:150], y[:150])
    assert decisions(model) == ["own curve", "own curve", "zero", "zero", "constant"]
    assert "own.x0.theta2[0]" in model.parameter_names_
    found = model.explain(X[150:])
    assert_allclose(found.constant + found.own + found.varying, found.weights, atol=1e-12)
    assert (found.own_std[:, :2] > 0).all()
    assert not found.own[:, 2:].any()
    # The contribution of a curve is its main effect, whatever the other features are.
    other = X[150:].copy()
    other[:, 1:] = 0.5
    assert_allclose(model.explain(other).weights[:, 0], found.weights[:, 0], atol=1e-9)
    importance = found.importance()
    assert (importance[2:] < 0.05 * importance.max()).all()


def test_additive_models_are_saved_and_fitted_again(tmp_path):
    X, y = additive_rows(80)
    given = {"kernel": "rbf", "weights": "additive", "random_state": 0, "ard": True}
    model = GPXRegressor(groups={"noise": [2, 3]}, warm_start=True, **given).fit(X, y)
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    first, second = model.explain(X), loaded.explain(X)
    assert (first.own == second.own).all()
    assert (first.own_std == second.own_std).all()
    before = model.log_marginal_likelihood_value_
    assert model.fit(X, y).log_marginal_likelihood_value_ > before - 0.5


def test_additive_models_without_an_intercept_or_a_search():
    X, y = additive_rows(60)
    given = {"kernel": "rbf", "weights": "additive", "optimizer": None}
    model = GPXRegressor(**given).fit(X, y)
    assert len(model.fit_report_.weight_table) == 5
    assert len(model.posterior_.hyperparameters.weight_prior.terms) == 1 + 1 + 4 + 1
    without = GPXRegressor(fit_intercept=False, **given).fit(X, y)
    assert len(without.posterior_.hyperparameters.weight_prior.terms) == 1 + 4 + 1


def test_additive_models_need_the_columns_of_x_as_features():
    X, y = additive_rows(60)
    with pytest.raises(InputError, match="have to be the same columns"):
        GPXRegressor("rbf", weights="additive").fit(X, y, X[:, :2])
    with pytest.raises(InputError, match="have to be the same columns"):
        GPXRegressor("rbf", weights="additive", z_transformer=[0, 1]).fit(X, y)


def test_results_are_those_of_any_number_of_threads():
    X, y, Z, _ = rows(100)
    found = [
        GPXRegressor(weights="semi", n_jobs=n_jobs, **FAST).fit(X, y, Z).theta_ for n_jobs in (1, 2)
    ]
    assert (found[0] == found[1]).all()
