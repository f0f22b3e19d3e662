"""The search for hyperparameters.

Steps at bounds go downhill, updates of the metric stay positive definite, and the prior is centred
at the start.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpx_scale import GPXRegressor, datasets
from gpx_scale.model.hyperparameters import HyperparameterPrior
from gpx_scale.optimize import newton
from problems import make_problem


@given(st.integers(0, 2**20), st.integers(1, 6))
def test_a_projected_step_descends_and_leaves_no_bound(seed, size):
    random = np.random.RandomState(seed)
    A = random.randn(size, size)
    H, slope = A @ A.T + 0.1 * np.eye(size), random.randn(size)
    at_low, at_high = random.rand(size) < 0.3, random.rand(size) > 0.8
    at_high &= ~at_low
    step = newton.projected_step(H, slope, at_low, at_high)
    assert not (at_low & (step < 0)).any()
    assert not (at_high & (step > 0)).any()
    assert slope @ step <= 0
    if not (at_low | at_high).any():
        np.testing.assert_allclose(H @ step, -slope, rtol=1e-6, atol=1e-8)


@given(st.integers(0, 2**20), st.integers(1, 6))
def test_updates_stay_positive_definite(seed, size):
    random = np.random.RandomState(seed)
    A = random.randn(size, size)
    H = A @ A.T + 0.1 * np.eye(size)
    changes = [newton.Change(random.randn(size), random.randn(size)) for _ in range(3)]
    updated = newton.damped_update(H, changes)
    assert np.linalg.eigvalsh(updated).min() > 0
    none = newton.Change(np.zeros(size), np.zeros(size))
    assert np.array_equal(newton.damped_update(H, [none]), H)


def test_search_with_a_parameter_at_its_bound_converges():
    """On these rows sigma_w runs to its lower bound and back."""
    data = datasets.load_digits()
    model = GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X[:1437], data.y[:1437]
    )
    assert model.fit_report_.converged
    # A search that ignores the bound ends at -384.4.
    assert model.log_marginal_likelihood() > -374.0


def test_prior_is_centred_at_the_start_and_holds_zero():
    params = make_problem(sigma_w=0.0).params
    prior = HyperparameterPrior.around(params)
    value, slope = prior.value_and_gradient(params.theta)
    assert value == 0.0
    assert not slope.any()
    assert prior.free.tolist() == [True, True, False, True]
    moved = params.theta + np.array([0.3, -0.2, 0.0, 0.5])
    value, slope = prior.value_and_gradient(moved)
    assert value == pytest.approx(-0.5 * ((0.3 / 3) ** 2 + (0.2 / 2) ** 2 + (0.5 / 3) ** 2))
    assert slope[0] == pytest.approx(-0.3 / 9)
