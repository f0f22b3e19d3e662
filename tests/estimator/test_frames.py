"""The estimator takes data frames as they come, and explanations keep their index."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from frames import mixed_frame
from gpx_scale import GPXRegressor, InputError, load
from gpx_scale.data.frame_encoder import FrameEncoder

N = 80
FRAME = mixed_frame(N)
Y = np.where(FRAME["city"] == "Rome", 2.0, 0.0) + FRAME["floor"] + np.sin(np.arange(N))
FIXED = {"optimizer": None, "kernel": "rbf", "fit_intercept": False}


@pytest.fixture(scope="module")
def model():
    return GPXRegressor(**FIXED).fit(FRAME.assign(same=1.0), Y)


def test_a_frame_is_fitted_as_its_encoded_columns(model):
    numbers = FrameEncoder().fit(FRAME).transform(FRAME)
    plain = GPXRegressor(**FIXED).fit(numbers, Y)
    new = FRAME[:5].assign(same=2.0)
    assert_allclose(model.predict(new), plain.predict(numbers[:5]), rtol=1e-12)
    explanation = model.explain(new)
    assert explanation.feature_names[:3] == ["size", "size_missing", "city_Nara"]
    assert_allclose(explanation.weights_std, plain.explain(numbers[:5]).weights_std, rtol=1e-9)
    assert model.n_features_in_ == FRAME.shape[1] + 1
    assert model.z_groups_["size"] == ["size", "size_missing"]
    assert "left out, because they are constant or without values: 'same'" in str(model.fit_report_)


def test_later_rows_may_have_new_levels_dates_and_missing_values(model):
    later = FRAME[:3].assign(same=1.0, city=["Paris", None, "Rome"], size=None)
    later["sold"] = later["sold"] + pd.Timedelta(days=4000)
    assert np.isfinite(model.predict(later)).all()


def test_the_index_survives(model, tmp_path):
    new = FRAME[10:14].assign(same=1.0)
    explanation = model.explain(new)
    assert explanation.index.tolist() == new.index.tolist()
    assert explanation[1:3].index.tolist() == ["house 11", "house 12"]
    assert explanation.to_frame(wide=True).index.tolist() == new.index.tolist()
    long = explanation.to_frame()
    assert long.loc["house 12", "sample"].unique().tolist() == [2]
    samples = json.loads(explanation.to_json())["samples"]
    assert [sample["index"] for sample in samples] == new.index.tolist()
    assert model.training_explanation().index.tolist() == FRAME.index.tolist()
    pairs = new.set_index(
        pd.MultiIndex.from_product([["a", "b"], pd.date_range("2020", periods=2)])
    )
    found = model.explain(pairs)
    assert found.to_frame(wide=True).index.equals(pairs.index)
    assert json.loads(found.to_json())["samples"][3]["index"].startswith("('b'")


def test_a_saved_model_encodes_alike(model, tmp_path):
    model.save(tmp_path / "model.gpx")
    loaded, new = load(tmp_path / "model.gpx"), FRAME.assign(same=1.0)
    assert_array_equal(loaded.predict(new), model.predict(new))
    assert loaded.z_groups_ == model.z_groups_
    assert loaded._preprocessor.transforms.are_alike


def test_lists_of_columns_are_encoded():
    model = GPXRegressor(x_transformer=["floor", "sold"], z_transformer=["city", "new"], **FIXED)
    model.fit(FRAME, Y)
    assert model.explain(FRAME[:2]).feature_names[-2:] == ["city_missing", "new"]
    assert model.posterior_.support.x.shape[1] == 6
    floors = GPXRegressor(**FIXED).fit(FRAME[["floor"]], Y, FRAME[["city", "new"]])
    assert floors.z_groups_ == model.z_groups_
    ones = GPXRegressor(**FIXED).fit(FRAME[["floor"]], Y, pd.DataFrame({"one": np.ones(N)}))
    assert ones.explain(FRAME[["floor"]], np.ones((N, 1))).feature_names == ["one"]


def test_additive_weights_take_frames():
    frame = FRAME[["size", "city", "floor"]]
    model = GPXRegressor("rbf", weights="additive", fit_intercept=False, max_iter=2, prune=False)
    model.fit(frame[:40], Y[:40])
    assert np.isfinite(model.predict(frame)).all()


def test_missing_values_may_be_an_error():
    model = GPXRegressor(missing="error", **FIXED)
    with pytest.raises(InputError, match=r"(?s)'size' has 1 missing value.*row 4 .*'city' has 1"):
        model.fit(FRAME, Y)
    model.fit(FRAME[10:], Y[10:])
    with pytest.raises(InputError, match=r"'size' has 1 missing value, the first in row 4"):
        model.predict(FRAME[:4])
    for wrong in ({"missing": "drop"}, {"encode": "all"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            GPXRegressor(**wrong).fit(FRAME, Y)


def test_frames_of_sparse_columns_stay_sparse():
    words = sp.random(N, 5, 0.3, format="csr", random_state=0)
    frame = pd.DataFrame.sparse.from_spmatrix(words)
    assert GPXRegressor(**FIXED).fit(frame, Y)._preprocessor.sparse_z


@pytest.mark.parametrize("name", ["<b>size</b>", "=1+1", "a\nb", "", "size]", "日本", "{0}%s"])
def test_hostile_names_and_levels_stay_text(name):
    frame = pd.DataFrame({name: np.arange(20.0), "c": [name, "other"] * 10})
    model = GPXRegressor(**FIXED).fit(frame, np.arange(20.0))
    explanation = model.explain(frame[:2])
    assert explanation.feature_names == [name, *sorted([f"c_{name}", "c_other"])]
    assert explanation.to_frame()["feature"].tolist()[:3] == explanation.feature_names


def test_broken_names_leave_the_estimator_as_it_was(model):
    frame = FRAME[["size", "floor"]]
    for wrong, words in (
        (frame.set_axis(["a", "a"], axis=1), "more than one column named 'a'"),
        (frame.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]), axis=1), "MultiIndex"),
    ):
        with pytest.raises(InputError, match=words):
            GPXRegressor(**FIXED).fit(wrong, Y)


def test_a_nan_of_an_array_is_named():
    A = np.arange(12.0).reshape(4, 3)
    model = GPXRegressor(**FIXED).fit(pd.DataFrame(A, columns=list("abc")), np.arange(4.0))
    A[2, 1] = np.nan
    words = r"X contains NaN: 1 value, the first of which is X\[2, 1\]"
    with pytest.warns(UserWarning, match="feature names"), pytest.raises(InputError, match=words):
        model.predict(A)
    with pytest.raises(InputError, match=words + ", of the column 'b'"):
        GPXRegressor(encode=None, **FIXED).fit(pd.DataFrame(A, columns=list("abc")), np.arange(4.0))
    A[2, 1] = np.inf
    with pytest.raises(InputError, match=r"X contains infinity: 1 value, .*X\[2, 1\]"):
        GPXRegressor(**FIXED).fit(A, np.arange(4.0))
