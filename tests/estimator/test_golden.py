"""Agreement with the independent values in tests/data/golden."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from conftest import GOLDEN
from gpx_scale import PAPER, GPXRegressor


@pytest.mark.parametrize("name", ["tied", "separate", "bag_of_words"])
def test_golden_values(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    theta1, theta2, sigma_w, sigma_y = golden["theta"]
    given = {"theta1": theta1, "theta2": theta2, "sigma_w": sigma_w, "sigma_y": sigma_y}
    model = GPXRegressor(**PAPER, optimizer=None, standardize=False, **given)
    model.fit(golden["X"], golden["y"], golden["Z"])
    value, gradient = model.log_marginal_likelihood(eval_gradient=True)
    assert_allclose(value, golden["log_marginal_likelihood"], rtol=1e-10)
    assert_allclose(gradient, golden["gradient_log_theta"], rtol=1e-9)
    mean, std = model.predict(golden["X_query"], golden["Z_query"], return_std=True)
    assert_allclose(mean, golden["y_mean"], rtol=1e-8, atol=1e-10)
    assert_allclose(std**2, golden["y_var"], rtol=1e-9)
    explanation = model.explain(golden["X_query"], golden["Z_query"], cov=True)
    assert_allclose(explanation.weights, golden["w_mean"], rtol=1e-8, atol=1e-10)
    assert_allclose(explanation.weights_std**2, golden["w_var"], rtol=1e-9)
    assert_allclose(explanation.weights_cov[0], golden["w_cov_first"], rtol=1e-8, atol=1e-10)
