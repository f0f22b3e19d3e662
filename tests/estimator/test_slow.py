"""Tests on larger or real data that take minutes. `make test-all` runs them."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from gpx_scale import PAPER, GPXRegressor, datasets

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("digits", 0.093),
        ("diabetes", 0.53),
        ("boston", 0.13),
        ("fish", 0.38),
        ("abalone", 0.45),
        ("wine", 0.60),
    ],
)
def test_accuracy_of_the_paper(name, most, shared_data):
    data, errors = getattr(datasets, f"load_{name}")(), []
    for seed in range(2 if name == "wine" else 5):
        X, Xq, y, yq = train_test_split(data.X, data.y, test_size=0.2, random_state=seed)
        model = GPXRegressor(**PAPER, random_state=seed).fit(X, y)
        assert model.fit_report_.converged
        errors.append(np.mean((model.predict(Xq) - yq) ** 2) / np.var(y))
    assert np.mean(errors) <= most


def test_float32_fit_of_5000_rows_agrees_with_float64():
    data = datasets.synth10(5500)
    X, y, Xq = data.X[:5000], data.y[:5000], data.X[5000:]
    double, single = (
        GPXRegressor(
            dtype=dtype, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(X, y)
        for dtype in ("float64", "float32")
    )
    exact = double.log_marginal_likelihood(single.theta_)
    assert exact > double.log_marginal_likelihood() - 1.0  # The optimum is the same within one nat.
    assert single.log_marginal_likelihood() == pytest.approx(exact, abs=0.5)
    at_same = GPXRegressor(
        optimizer=None,
        **{key: single.hyperparameters_[key] for key in ("theta1", "theta2", "sigma_w", "sigma_y")},
    ).fit(X, y)
    a, b = single.explain(Xq), at_same.explain(Xq)
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-6, atol=1e-7)
    assert (a.weights_std >= b.weights_std * (1 - 1e-9)).all()
    assert np.median(a.weights_std / b.weights_std) < 1.001


def test_iterative_beside_exact_at_5000_rows_with_equal_hyperparameters():
    data = datasets.synth10(6000)
    X, y, Xq = data.X[:5000], data.y[:5000], data.X[5000:]
    given = {
        "theta1": 0.15,
        "theta2": 19.0,
        "sigma_w": 0.006,
        "sigma_y": 0.06,
        "optimizer": None,
        "random_state": 0,
    }
    exact, iterative = (
        GPXRegressor(solver=name, **given, kernel="rbf", fit_intercept=False).fit(X, y).explain(Xq)
        for name in ("exact", "cg")
    )
    assert (np.abs(exact.prediction - iterative.prediction) < 1e-3 * exact.prediction_std).all()
    for a, b in (
        (exact.weights_std, iterative.weights_std),
        (exact.prediction_std, iterative.prediction_std),
    ):
        assert (b / a).min() > 1 - 1e-6
        assert np.median(b / a) < 1.10


def test_iterative_hyperparameters_at_8000_rows_are_the_optimum_within_a_nat():
    data = datasets.synth10(8000)
    given = {"search_rows": "all", "random_state": 0}
    exact = GPXRegressor(solver="exact", **given, kernel="rbf", fit_intercept=False).fit(
        data.X, data.y
    )
    iterative = GPXRegressor(solver="cg", **given, kernel="rbf", fit_intercept=False).fit(
        data.X, data.y
    )
    assert exact.log_marginal_likelihood(iterative.theta_) > exact.log_marginal_likelihood() - 1.0


def test_a_search_that_stops_in_time_at_8000_rows_loses_little():
    data = datasets.synth10(8000)
    whole = GPXRegressor(
        solver="exact",
        search_rows="all",
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(data.X, data.y)
    for solver in ("exact", "cg"):
        model = GPXRegressor(
            solver=solver, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X, data.y)
        lost = whole.log_marginal_likelihood() - whole.log_marginal_likelihood(model.theta_)
        assert lost < 0.002 * 8000 + 2.0
        assert model.fit_report_.evaluations["all rows"] <= 3


STREAM = """
import resource, sys
import numpy as np
from gpx_scale import GPXRegressor
X, y = (np.load(f"{sys.argv[1]}/{name}.npy", mmap_mode="r") for name in "Xy")
rows = slice(int(sys.argv[2]))
model = GPXRegressor(
    "rbf", fit_intercept=False, solver="inducing", n_inducing=60, random_state=0, max_iter=3
)
model.fit(X[rows], y[rows])
assert model.fit_report_.reasons[0].startswith("rows come in chunks")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_of_a_stream_does_not_grow_with_its_rows(tmp_path):
    X, y, _ = datasets.synth10(800_000)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    peaks = []
    for rows in (200_000, 800_000):
        command = [sys.executable, "-c", STREAM, str(tmp_path), str(rows)]
        peaks.append(
            int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024
        )
    # Pages of the file count as resident memory until it is needed.
    mapped = 600_000 * 11 * 8 / 2**20
    assert peaks[1] - peaks[0] < mapped + 20
