"""`GPXRegressor` for counts, successes and outliers: predictions, quantiles, offsets, bad input."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import GPXRegressor, InputError, load
from gpx_scale.errors import SolverUnavailable

NAMED = {"kernel": "rbf", "fit_intercept": False, "random_state": 0}
KINDS = ["poisson", "negbinomial", "binomial", "student"]


def made(kind, count=150):
    random = np.random.RandomState(1)
    X = random.standard_normal((count, 2))
    f = X[:, 0] * (0.6 + 0.3 * np.sin(X[:, 1]))
    known = {}
    if kind == "student":
        y = 50.0 + 10.0 * (f + 0.2 * random.standard_normal(count))
        y[::15] += 60.0
    elif kind == "binomial":
        known["trials"] = random.randint(1, 9, count)
        y = random.binomial(known["trials"], 1 / (1 + np.exp(-f - 0.5)))
    else:
        known["offset"] = np.log(random.uniform(1.0, 20.0, count))
        mean = np.exp(f + known["offset"])
        rate = random.gamma(2.0, mean / 2.0) if kind == "negbinomial" else mean
        y = random.poisson(rate)
    return X, y, known


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    X, y, known = made(request.param)
    return GPXRegressor(**NAMED, likelihood=request.param).fit(X, y, **known), X, y, known


def test_predictions_are_those_of_the_truth(fitted):
    model, X, y, known = fitted
    mean, std, quantiles = model.predict(X, return_std=True, quantiles=[0.05, 0.5, 0.95], **known)
    assert (std > 0).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    inside = (quantiles[:, 0] <= y) & (y <= quantiles[:, 2])
    assert inside.mean() > 0.85
    residuals = (y - mean) / std
    assert abs(np.median(residuals)) < 0.4
    assert_allclose(model.predict(X, **known), mean)


def test_explanations_add_up_on_the_latent_scale(fitted):
    model, X, _, known = fitted
    offset = known.get("offset")
    found = model.explain(X, offset=offset)
    total = found.base_values + found.contributions.sum(axis=1)
    assert_allclose(total, found.prediction)
    if model.likelihood == "student":
        assert_allclose(found.prediction, model.predict(X))
        _, std = model.predict(X, return_std=True)
        assert_allclose(found.prediction_std, std)
        return
    assert_allclose(found.factors, np.exp(found.contributions))
    assert_allclose(found.expected, model.predict(X, offset=offset))
    assert "logarithm of the" in found.in_words(0)


def test_files_keep_likelihoods(fitted, tmp_path):
    model, X, _, known = fitted
    model.save(tmp_path / "model.gpx")
    loaded = load(tmp_path / "model.gpx")
    assert (loaded.predict(X, **known) == model.predict(X, **known)).all()
    assert len(model.training_explanation()) == len(X)


def test_an_offset_is_the_logarithm_of_the_exposure():
    X, y, known = made("poisson")
    model = GPXRegressor(**NAMED, likelihood="poisson").fit(X, y, **known)
    twice = model.predict(X[:5], offset=np.full(5, np.log(2.0)))
    assert_allclose(twice, 2.0 * model.predict(X[:5]))
    # Exposures in another unit change nothing but the rate.
    other = GPXRegressor(**NAMED, likelihood="poisson").fit(X, y, offset=known["offset"] + 3.0)
    assert_allclose(other.predict(X[:5], offset=np.full(5, 3.0)), model.predict(X[:5]), rtol=1e-6)


def test_an_offset_of_gaussian_noise_is_in_units_of_y():
    X, y, _ = made("student")
    shift = np.linspace(0.0, 100.0, len(y))
    model = GPXRegressor(**NAMED).fit(X, y + shift, offset=shift)
    usual = GPXRegressor(**NAMED).fit(X, y)
    assert_allclose(model.predict(X, offset=shift), usual.predict(X) + shift)
    low, high = model.predict(X, quantiles=[0.025, 0.975])[1].T
    mean, std = model.predict(X, return_std=True)
    assert_allclose(high - low, 2 * 1.959964 * std, rtol=1e-5)
    assert_allclose(0.5 * (high + low), mean)


def test_dispersion_and_degrees_of_freedom_are_estimated():
    X, y, known = made("negbinomial", 300)
    model = GPXRegressor(**NAMED, likelihood="negbinomial").fit(X, y, **known)
    assert 1.2 < model.hyperparameters_["r"] < 3.5
    poisson = GPXRegressor(**NAMED, likelihood="poisson").fit(X, y, **known)
    assert poisson.log_marginal_likelihood_value_ < model.log_marginal_likelihood_value_
    assert "r" in model.parameter_names_


def test_outliers_move_a_model_with_heavy_tails_less():
    X, y, _ = made("student")
    truth = 50.0 + 10.0 * X[:, 0] * (0.6 + 0.3 * np.sin(X[:, 1]))
    errors = [
        np.sqrt(np.mean((GPXRegressor(**NAMED, likelihood=kind).fit(X, y).predict(X) - truth) ** 2))
        for kind in ("student", "gaussian")
    ]
    assert errors[0] < 0.7 * errors[1]


def test_quantiles_of_counts_are_those_of_draws():
    X, y, known = made("poisson")
    model = GPXRegressor(**NAMED, likelihood="poisson", optimizer=None).fit(X, y, **known)
    likelihood = model.posterior_.hyperparameters.likelihood
    random, mean, variance = np.random.RandomState(0), np.array([1.2]), np.array([0.3])
    draws = likelihood.draw(mean + np.sqrt(variance) * random.standard_normal(100_000), random)
    for level in (0.05, 0.5, 0.9):
        found = likelihood.quantile(level, mean, variance)[0]
        assert (draws <= found).mean() >= level - 0.005
        assert (draws <= found - 1).mean() < level + 0.005


@pytest.mark.parametrize(
    ("kind", "y", "given", "message"),
    [
        ("poisson", [1.0, -1.0, 2.0, 0.0], {}, "negative count"),
        ("negbinomial", [1.0, 0.5, 2.0, 0.0], {}, "no count"),
        ("poisson", [1, 0, 2, 0], {"offset": [0.0, -np.inf, 0.0, 0.0]}, "offset"),
        ("poisson", [1, 0, 2, 0], {"offset": [0.0, 1.0]}, "offset"),
        ("poisson", [1, 0, 2, 0], {"trials": [1, 1, 1, 1]}, "binomial"),
        ("binomial", [1, 0, 2, 0], {"trials": [1, 1, 1, 1]}, "more successes"),
        ("binomial", [1, 0, 1, 0], {"trials": [1, 0, 1, 1]}, "trials"),
        ("binomial", [1, 0, 1, 0], {"trials": [1.5, 1, 1, 1]}, "trials"),
        ("cauchy", [1, 0, 1, 0], {}, "likelihood"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(kind, y, given, message):
    with pytest.raises(InputError, match=message):
        GPXRegressor(**NAMED, likelihood=kind).fit(np.arange(8.0).reshape(4, 2), y, **given)


def test_no_counts_at_all_stay_finite():
    X = np.random.RandomState(0).standard_normal((40, 2))
    model = GPXRegressor(**NAMED, likelihood="poisson").fit(X, np.zeros(40))
    assert (model.predict(X) < 0.5).all()


def test_what_a_likelihood_does_not_have_is_refused():
    X, y, known = made("poisson")
    for solver in ("cg", "inducing", "basis", "grid", "neighbors"):
        with pytest.raises(SolverUnavailable, match="classes, counts"):
            GPXRegressor(**NAMED, likelihood="poisson", solver=solver).fit(X, y)
    with pytest.raises(SolverUnavailable, match="chunks"):
        GPXRegressor(**NAMED, likelihood="poisson").fit(lambda: iter([(X, y)]))
    model = GPXRegressor(**NAMED, likelihood="poisson", optimizer=None).fit(X, y, **known)
    assert not hasattr(model, "partial_fit")
    for call in (model.leave_one_out, lambda: model.sample_y(X)):
        with pytest.raises(SolverUnavailable, match="counts"):
            call()
    with pytest.raises(SolverUnavailable, match="joint covariance"):
        model.predict(X, return_cov=True)
    with pytest.raises(InputError, match="quantiles"):
        model.predict(X, quantiles=[1.5])


def test_deviance_residuals_are_of_about_unit_size(fitted):
    model, X, y, known = fitted
    residuals = model.deviance_residuals(X, y, **known)
    assert 0.4 < np.sqrt(np.mean(np.square(residuals))) < 1.6
    mean = model.predict(X, **known)
    clear = np.abs(residuals) > 0.5
    assert (np.sign(residuals) == np.sign(y - mean))[clear].mean() > 0.9


def test_deviance_residuals_of_gaussian_noise_are_differences_over_sigma_y():
    X, y, _ = made("student")
    model = GPXRegressor(**NAMED, optimizer=None).fit(X, y)
    expected = (y - model.predict(X)) / (y.std() * model.hyperparameters_["sigma_y"])
    assert_allclose(model.deviance_residuals(X, y), expected, rtol=1e-6)
    with pytest.raises(InputError, match="count the same"):
        model.outlier_weights(X, y)


def test_outliers_have_small_weights():
    X, y, _ = made("student")
    model = GPXRegressor(**NAMED, likelihood="student").fit(X, y)
    weights = model.outlier_weights(X, y)
    assert set(np.argsort(weights)[:10]) == set(range(0, 150, 15))
    assert weights[::15].max() < 0.2
