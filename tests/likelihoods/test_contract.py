"""The contract of every likelihood: derivatives, expectations and draws agree with log p(y | f)."""

import numpy as np
import pytest
from scipy.integrate import quad

from gpx_scale.likelihoods import (
    BinomialLikelihood,
    GaussianLikelihood,
    LogitLikelihood,
    NegativeBinomialLikelihood,
    Observed,
    PoissonLikelihood,
    ProbitLikelihood,
    StudentLikelihood,
)

F = np.array([-2.5, -0.7, 0.0, 0.4, 1.9])
Y = {"logit": [0, 1, 1, 0, 1], "gaussian": [-2.0, 0.3, 0.2, -1.0, 4.0]}
Y |= {"probit": Y["logit"], "student": Y["gaussian"], "poisson": [0, 1, 2, 0, 9]}
Y |= {"negbinomial": Y["poisson"], "binomial": [0, 2, 5, 1, 3]}
TRIALS = np.array([3.0, 2.0, 7.0, 4.0, 3.0])
LIKELIHOODS = [
    GaussianLikelihood(0.7),
    LogitLikelihood(),
    ProbitLikelihood(),
    BinomialLikelihood(),
    PoissonLikelihood(),
    NegativeBinomialLikelihood(2.5),
    StudentLikelihood(0.6, 4.0),
]
STEP = 1e-5


def observed_of(likelihood):
    trials = TRIALS if likelihood.name == "binomial" else None
    return Observed(np.array(Y[likelihood.name], float), trials)


def difference(function):
    return (function(STEP) - function(-STEP)) / (2 * STEP)


@pytest.fixture(params=LIKELIHOODS, ids=lambda one: one.name)
def likelihood(request):
    return request.param


def test_derivatives_by_f_are_those_of_finite_differences(likelihood):
    observed = observed_of(likelihood)
    at = likelihood.slopes(observed, F)
    by_value = difference(lambda h: likelihood.slopes(observed, F + h).value)
    by_slope = difference(lambda h: likelihood.slopes(observed, F + h).first)
    by_curvature = difference(lambda h: likelihood.slopes(observed, F + h).curvature)
    np.testing.assert_allclose(at.first, by_value, atol=1e-8)
    np.testing.assert_allclose(at.curvature, -by_slope, atol=1e-8)
    third = likelihood.third_ratio(observed, F) * at.curvature
    np.testing.assert_allclose(third, -by_curvature, atol=1e-7)


def test_derivatives_by_the_parameters_are_those_of_finite_differences(likelihood):
    observed, theta = observed_of(likelihood), likelihood.theta
    found = likelihood.parameter_slopes(observed, F)
    assert found.value.shape == (len(F), theta.size) == (len(F), len(likelihood.parameter_kinds))
    for k, unit in enumerate(np.eye(theta.size)):

        def at(h, unit=unit):
            return likelihood.with_theta(theta + h * unit).slopes(observed, F)

        for name in ("value", "first", "curvature"):
            expected = difference(lambda h, name=name: getattr(at(h), name))
            np.testing.assert_allclose(getattr(found, name)[:, k], expected, atol=1e-7)


def test_expectations_are_those_of_integrals(likelihood):
    observed, v = observed_of(likelihood), np.array([0.1, 0.5, 0.3, 0.2, 0.4])
    found = likelihood.smoothed(observed, F, v)
    along = likelihood.smoothed_parameter_slopes(observed, F, v)
    for i in range(len(F)):
        trials = None if observed.trials is None else observed.trials[i : i + 1]
        one = Observed(observed.y[i : i + 1], trials)

        def expected(function, i=i):
            def integrand(x):
                return np.exp(-0.5 * x * x) * function(F[i : i + 1] + np.sqrt(v[i]) * x)

            return quad(integrand, -9, 9, limit=200)[0] / np.sqrt(2 * np.pi)

        for name in ("value", "first", "curvature"):
            integral = expected(
                lambda f, one=one, name=name: getattr(likelihood.slopes(one, f), name)[0]
            )
            np.testing.assert_allclose(getattr(found, name)[i], integral, atol=2e-3)
        for k in range(likelihood.theta.size):
            integral = expected(
                lambda f, one=one, k=k: likelihood.parameter_slopes(one, f).value[0, k]
            )
            np.testing.assert_allclose(along[i, k], integral, atol=2e-3)


def test_draws_have_the_moments_that_are_predicted(likelihood):
    random = np.random.RandomState(0)
    mean, variance, count = 0.4, 0.3, 200_000
    trials = np.full(count, 5.0) if likelihood.name == "binomial" else None
    f = mean + np.sqrt(variance) * random.standard_normal(count)
    draws = likelihood.draw(f, random, trials)
    few = None if trials is None else trials[:1]
    y_mean, y_variance = likelihood.predict(np.array([mean]), np.array([variance]), few)
    np.testing.assert_allclose(draws.mean(), y_mean[0], atol=6 * np.sqrt(y_variance[0] / count))
    np.testing.assert_allclose(draws.var(), y_variance[0], rtol=0.08)


def test_densities_of_counts_and_classes_add_up_to_one():
    f = np.array([0.3])
    for one, values, trials in (
        (LogitLikelihood(), 2, None),
        (ProbitLikelihood(), 2, None),
        (BinomialLikelihood(), 6, np.array([5.0])),
        (PoissonLikelihood(), 60, None),
        (NegativeBinomialLikelihood(2.5), 300, None),
    ):
        logs = [one.slopes(Observed(np.array([float(y)]), trials), f).value for y in range(values)]
        np.testing.assert_allclose(np.exp(logs).sum(), 1.0, rtol=1e-9)


def test_no_latent_value_of_a_class_is_too_large():
    f = np.array([-1e200, -1e6, -40.0, 40.0, 1e6, 1e200])
    for one in (LogitLikelihood(), ProbitLikelihood()):
        for y in (0.0, 1.0):
            with np.errstate(over="ignore"):
                found = one.slopes(Observed(np.full(6, y)), f)
            assert np.isfinite(found.first).all()
            assert (found.curvature >= 0).all()
