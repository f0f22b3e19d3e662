"""Which samples a model was fitted on, and how well it predicts them without having seen them."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from gpx_scale import GPXRegressor, InputError, datasets
from gpx_scale.data.row_source import keys

MODEL = {"kernel": "rbf", "theta2": 9.0, "sigma_y": 0.7, "fit_intercept": False, "optimizer": None}


@pytest.fixture(scope="module")
def rows():
    data = datasets.load_diabetes()
    return data.X, data.y


def honest(model, explanation, y):
    """Which samples were seen, and the position of each among the rows that were left out."""
    record = explanation.training_record
    found = record.targets(explanation.row_keys, y)
    left_out = record.left_out()
    return record.seen(found), left_out, left_out.find(found)


@pytest.mark.parametrize("solver", ["exact", "neighbors"])
def test_rows_are_left_out_one_by_one_where_a_solver_can(rows, solver):
    X, y = rows
    model = GPXRegressor(**MODEL, solver=solver).fit(X[:200], y[:200])
    explanation = model.explain(X[150:250])
    seen, left_out, at = honest(model, explanation, y[150:250])
    assert seen.tolist() == [True] * 50 + [False] * 50
    assert (at[:50] == np.arange(150, 200)).all()
    assert (at[50:] == -1).all()
    residuals, std = model.leave_one_out()
    np.testing.assert_array_equal(left_out.residuals, residuals)
    np.testing.assert_array_equal(left_out.std, std)


@pytest.mark.parametrize("solver", ["cg", "inducing", "basis", "grid"])
def test_a_fold_is_predicted_as_by_a_model_of_the_others(rows, solver):
    X, y = rows
    X, y = (X[:, [2]], y) if solver in ("basis", "grid") else (X, y)
    X, y = X[:160], y[:160]
    model = GPXRegressor(**MODEL, solver=solver, n_inducing=300, random_state=0).fit(X, y)
    seen, left_out, at = honest(model, model.explain(X), y)
    assert seen.all()
    assert (np.sort(at) == np.arange(160)).all()
    assert "5 folds of 160 rows" in left_out.how
    fold = np.argsort(keys(0, 160, 0), kind="stable")[::5]
    # The twin has the exact solver, and the scaling of all rows instead of that of the others.
    scaled = ((X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std())
    rest = np.setdiff1d(np.arange(160), fold)
    twin = GPXRegressor(**MODEL, solver="exact", standardize=False)
    twin.fit(scaled[0][rest], scaled[1][rest])
    mean, std = twin.predict(scaled[0][fold], return_std=True)
    # Grids interpolate; the other solvers differ by rounding and their tolerances.
    near = 0.03 if solver in ("basis", "grid") else 1e-3
    np.testing.assert_allclose(
        left_out.residuals[at[fold]] / y.std(), scaled[1][fold] - mean, atol=near
    )
    np.testing.assert_allclose(left_out.std[at[fold]] / y.std(), std, rtol=near)


def test_a_sample_is_seen_if_its_target_is_that_of_the_row_too(rows):
    X, y = rows
    model = GPXRegressor(**MODEL).fit(X[:60], y[:60])
    other = np.where(np.arange(60) < 7, y[:60] + 1.0, y[:60])
    explanation = model.explain(X[:60])
    assert honest(model, explanation, other)[0].tolist() == [False] * 7 + [True] * 53
    assert honest(model, explanation[40:], y[40:60])[0].tolist() == [True] * 20


def test_sparse_rows_are_recognised(rows):
    X, y = rows
    X = sp.csr_array(np.where(np.abs(X) > 0.04, X, 0.0))
    model = GPXRegressor(**MODEL, standardize=False).fit(X[:80], y[:80])
    seen, _, at = honest(model, model.explain(X[70:90]), y[70:90])
    assert seen.tolist() == [True] * 10 + [False] * 10
    assert (at[:10] == np.arange(70, 80)).all()


def test_of_another_fit_and_in_a_copy_nothing_is_known(rows):
    X, y = rows
    model = GPXRegressor(**MODEL).fit(X[:60], y[:60])
    explanation = model.explain(X[:9])
    assert pickle.loads(pickle.dumps(explanation)).training_record is None
    model.fit(X[:50], y[:50])
    assert explanation.training_record.targets(explanation.row_keys, y[:9]) is None
    assert explanation.training_record.left_out() is None


def test_a_gram_matrix_has_no_rows_to_compare(rows):
    _, y = rows
    K = np.eye(20)
    Z = np.arange(20.0)[:, None]
    model = GPXRegressor("precomputed", optimizer=None, fit_intercept=False).fit(K, y[:20], Z)
    explanation = model.explain(K, Z, std=False)
    assert explanation.row_keys is None
    assert explanation.training_record.left_out() is None


def test_units_are_kept_in_the_explanation(rows):
    X, y = rows
    model = GPXRegressor(**MODEL).fit(X[:60], y[:60])
    explanation = model.explain(X[:9], units={"x2": "kg/m²"}, target_units="points")
    assert explanation[:3].units == {"x2": "kg/m²"}
    assert explanation.with_units(target_units="mg").target_units == "mg"
    assert explanation.with_units(target_units="mg").units == {"x2": "kg/m²"}
    for wrong in ({"bmi": "kg/m²"}, "kg"):
        with pytest.raises(InputError, match="units"):
            explanation.with_units(wrong)
