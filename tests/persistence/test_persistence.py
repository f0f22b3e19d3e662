"""Saved models answer as before, loading runs no code, and only a whole model is loaded."""

import functools
import io
import json
import pickle
import warnings
import zipfile
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    SplineTransformer,
    StandardScaler,
)

import gpx_scale
from damage import CASES as DAMAGED
from damage import DATA
from gpx_scale import GPXRegressor, GPXWarning, InputError, kernels
from gpx_scale.persistence.model_file import TREE, read_state, write_state
from gpx_scale.runtime import state
from gpx_scale.runtime.state import stored, stored_by_name, stored_classes

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(120, 2))
Y = X[:, 0] * np.sin(X[:, 1]) + 0.1 * RANDOM.normal(size=120)
WORDS = sp.random(120, 30, 0.15, format="csr", random_state=0)
FRAME = pd.DataFrame(
    {"size": X[:, 0], "age": X[:, 1], "city": RANDOM.choice(["Kyoto", "Nara"], 120)}
)
TEXTS = [f"{'good' if y > 0 else 'bad'} film number {k % 7}" for k, y in enumerate(Y)]
CITIES = ColumnTransformer(
    [
        ("number", "passthrough", ["size", "age"]),
        ("kind", OneHotEncoder(sparse_output=False), ["city"]),
    ],
    verbose_feature_names_out=False,
)

CASES = {
    "exact": (
        GPXRegressor(solver="exact", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        None,
    ),
    "single": (
        GPXRegressor(
            solver="exact", dtype=np.float32, kernel="rbf", fit_intercept=False, weights="shared"
        ),
        X,
        Y,
        None,
    ),
    "cg": (
        GPXRegressor(solver="cg", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        None,
    ),
    "inducing": (
        GPXRegressor(
            solver="inducing", n_inducing=30, kernel="rbf", fit_intercept=False, weights="shared"
        ),
        X,
        Y,
        None,
    ),
    "places": (
        GPXRegressor(
            solver="inducing",
            inducing_points=X[:20].copy(),
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ),
        X,
        Y,
        None,
    ),
    "basis": (
        GPXRegressor(solver="basis", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        None,
    ),
    "grid": (
        GPXRegressor(solver="grid", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        None,
    ),
    "words": (
        GPXRegressor(solver="exact", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        WORDS,
    ),
    "words by cg": (
        GPXRegressor(solver="cg", kernel="rbf", fit_intercept=False, weights="shared"),
        X,
        Y,
        WORDS,
    ),
    "words by points": (
        GPXRegressor(
            solver="inducing", n_inducing=30, fit_intercept=True, kernel="rbf", weights="shared"
        ),
        X,
        Y,
        WORDS,
    ),
    "sparse x": (GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared"), WORDS, Y, None),
    "kernels": (
        GPXRegressor(
            kernels.RBF() + kernels.Matern12() * kernels.RationalQuadratic(),
            fit_intercept=False,
            weights="shared",
        ),
        X,
        Y,
        None,
    ),
    "ard": (
        GPXRegressor(
            "matern52",
            ard=True,
            random_state=np.random.RandomState(3),
            fit_intercept=False,
            weights="shared",
        ),
        X,
        Y,
        None,
    ),
    "columns": (
        GPXRegressor(
            x_transformer=["size"],
            z_transformer=CITIES,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ),
        FRAME,
        pd.Series(Y, name="price"),
        None,
    ),
    "scaled": (
        GPXRegressor(
            x_transformer=StandardScaler(),
            standardize=False,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ),
        X,
        Y,
        None,
    ),
    "texts": (
        GPXRegressor(
            x_transformer=make_pipeline(TfidfVectorizer(), TruncatedSVD(3, random_state=0)),
            z_transformer=CountVectorizer(binary=True, stop_words="english"),
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ),
        TEXTS,
        Y,
        None,
    ),
}


def answers(model, X, Z):
    """Return all numbers of some explanations, and the names of features."""
    found = model.explain(X[:7], None if Z is None else Z[:7])
    arrays = (
        found.weights,
        found.weights_std,
        found.contributions,
        found.prediction,
        found.prediction_std,
        found.base_values,
    )
    return [A.toarray() if sp.issparse(A) else A for A in arrays], found.feature_names


def plain(value):
    """Return a value as plain lists and dictionaries, whose contents == compares."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.tolist()]
    if isinstance(value, np.random.RandomState):
        return plain(value.get_state())
    return [type(value), plain(value.get_params())] if isinstance(value, BaseEstimator) else value


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a small saved model as bytes, and its predictions."""
    path = tmp_path_factory.mktemp("model") / "model.gpx"
    model = GPXRegressor(optimizer=None).fit(X[:12], Y[:12], WORDS[:12])
    model.save(path)
    return path.read_bytes(), model.predict(X, WORDS)


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_answers_the_same(name, tmp_path):
    model, A, y, Z = CASES[name]
    model.fit(A, y, Z)
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    (before, names), (after, names_after) = answers(model, A, Z), answers(loaded, A, Z)
    assert names == names_after
    # A factor that all variances use is computed again by these solvers.
    again = {"cg": 1e-12, "grid": 1e-12}.get(model.solver_, 0.0)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=again, atol=0)
    assert str(loaded.fit_report_) == str(model.fit_report_)
    assert plain(loaded.hyperparameters_) == plain(model.hyperparameters_)
    assert loaded.target_name_ == model.target_name_
    assert plain(loaded.get_params()) == plain(model.get_params())


@pytest.mark.parametrize("name", ["exact", "cg", "inducing", "basis"])
def test_a_loaded_model_goes_on(name, tmp_path):
    """It evaluates the evidence, draws samples, and takes further rows."""
    model, A, y, _ = CASES[name]
    model.fit(A, y)
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    assert loaded.log_marginal_likelihood() == model.log_marginal_likelihood()
    np.testing.assert_allclose(
        loaded.sample_y(X[:3], random_state=1), model.sample_y(X[:3], random_state=1), rtol=1e-9
    )
    if name in ("inducing", "basis"):
        np.testing.assert_array_equal(
            loaded.partial_fit(X[:9], Y[:9]).predict(X),
            pickle.loads(pickle.dumps(model)).partial_fit(X[:9], Y[:9]).predict(X),
        )
    assert loaded.fit(A, y).predict(A[:2]).shape == (2,)


def test_a_precomputed_kernel_is_kept(tmp_path):
    G = X @ X.T
    model = GPXRegressor("precomputed", fit_intercept=False, weights="shared").fit(G, Y, X)
    model.save(tmp_path / "model.gpx")
    np.testing.assert_array_equal(
        gpx_scale.load(tmp_path / "model.gpx").predict(G, X), model.predict(G, X)
    )


def test_pickle_joblib_and_skops_keep_working(tmp_path):
    sio = pytest.importorskip("skops.io", reason="skops is in the extra [bench]")
    for name in ("exact", "cg", "inducing", "basis", "grid"):
        model, A, y, _ = CASES[name]
        mean = model.fit(A, y).predict(A[:5])
        joblib.dump(model, tmp_path / "model.joblib")
        blob = sio.dumps(model)
        trusted = sio.get_untrusted_types(data=blob)
        assert all(kind.startswith(("gpx_scale.", "scipy.sparse.")) for kind in trusted)
        for loaded in (
            pickle.loads(pickle.dumps(model)),
            joblib.load(tmp_path / "model.joblib"),
            sio.loads(blob, trusted),
        ):
            np.testing.assert_allclose(loaded.predict(A[:5]), mean, rtol=1e-12)


def test_a_model_of_points_is_as_small_as_they_are(tmp_path):
    """Its file has no training rows, only the points."""
    random = np.random.RandomState(1)
    A = random.normal(size=(20_000, 3))
    model = GPXRegressor(
        solver="inducing", n_inducing=40, optimizer=None, optimize_inducing=False
    ).fit(A, A[:, 0])
    model.save(tmp_path / "model.gpx")
    assert (tmp_path / "model.gpx").stat().st_size < A.nbytes / 4


def halved(table):
    return table / 2


@pytest.fixture
def declared_function():
    """A function that a file may name, as long as the test runs."""
    yield state.stored_function(halved)
    del state._FUNCTIONS["halved"]


TABLE = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": FRAME["city"], "c": np.arange(120) % 5})


@pytest.mark.parametrize(
    "steps",
    [
        [
            (OneHotEncoder(), make_column_selector(dtype_include=[object, "string"])),
            (StandardScaler(), make_column_selector(dtype_include=np.number)),
        ],
        [(StandardScaler(), make_column_selector("^[ab]", dtype_exclude=[np.int64, bool]))],
        [(SplineTransformer(5), ["a", "b"]), (SplineTransformer(extrapolation="periodic"), ["c"])],
        [(FunctionTransformer(np.cbrt), ["a", "b"])],
        [(FunctionTransformer(halved), ["a", "b"])],
    ],
)
def test_transformers_of_columns_and_functions_by_name(steps, tmp_path, declared_function):
    columns = make_column_transformer(*steps, sparse_threshold=0)
    model = GPXRegressor("rbf", optimizer=None, x_transformer=columns, z_transformer=columns)
    model.fit(TABLE, Y)
    assert "save will refuse" not in str(model.fit_report_)
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    np.testing.assert_array_equal(loaded.predict(TABLE[:5]), model.predict(TABLE[:5]))
    again = clone(loaded).fit(TABLE, Y)
    np.testing.assert_array_equal(again.predict(TABLE[:5]), model.predict(TABLE[:5]))


def test_a_function_must_be_declared_where_the_file_is_read(tmp_path):
    state.stored_function(halved)
    GPXRegressor("rbf", optimizer=None, x_transformer=halved).fit(X, Y).save(tmp_path / "m.gpx")
    with pytest.raises(TypeError, match="another function named halved"):
        state.stored_function(functools.update_wrapper(lambda table: table, halved, ("__name__",)))
    del state._FUNCTIONS["halved"]
    with pytest.raises(InputError, match="names the function 'halved', which is not declared here"):
        gpx_scale.load(tmp_path / "m.gpx")
    with pytest.raises(TypeError, match="give this one a name"):
        state.stored_function(lambda table: table)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"is": "ufunc", "of": "load"}, "no ufunc of numpy"),
        ({"is": "ufunc", "of": ["exp"]}, "no ufunc of numpy"),
        ({"is": "type", "of": "eval"}, "type 'eval', which is unknown"),
        ({"is": "function", "of": "system"}, "function 'system', which is not declared"),
        ({"is": "BSpline", "of": [[0.0], [1.0], 3, True, 0]}, "damaged"),
    ],
)
def test_names_that_a_file_may_not_have(node, words, whole, tmp_path):
    with pytest.raises(InputError, match=words):
        load_bytes(tmp_path, rewritten(whole[0], with_state(x_transformer=node)))


# refused


def test_what_a_file_cannot_hold_is_named_when_saved(tmp_path):
    by_function = GPXRegressor(
        x_transformer=lambda table: table, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, Y)
    assert "save will refuse this model: x_transformer is '<lambda>'" in str(
        by_function.fit_report_
    )
    with pytest.raises(InputError, match=r"x_transformer is '<lambda>'.*no code.*joblib"):
        by_function.save(tmp_path / "model.gpx")
    graphs = GPXRegressor(lambda one, other: np.minimum.outer(one, other), optimizer=None)
    graphs.fit([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], np.ones((3, 1)))
    with pytest.raises(InputError, match=r"kernel is '<lambda>'.*no code"):
        graphs.save(tmp_path / "model.gpx")
    assert not list(tmp_path.iterdir())


def test_an_old_file_stays_when_saving_fails(tmp_path, monkeypatch):
    path = tmp_path / "model.gpx"
    model = GPXRegressor(optimizer=None).fit(X, Y)
    model.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(
        np.lib.format,
        "write_array",
        lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")),
    )
    with pytest.raises(InputError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.gpx"]


def test_places_that_cannot_be_written_are_named(tmp_path):
    model = GPXRegressor(optimizer=None).fit(X, Y)
    with pytest.raises(InputError, match="no folder"):
        model.save(tmp_path / "none" / "model.gpx")
    with pytest.raises(InputError, match="is a folder"):
        model.save(tmp_path)
    with pytest.raises(Exception, match="not fitted"):
        GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared").save(
            tmp_path / "model.gpx"
        )
    with pytest.raises(FileNotFoundError):
        gpx_scale.load(tmp_path / "none.gpx")
    assert not list(tmp_path.iterdir())


def rewritten(blob, change):
    """Return the file with its JSON tree changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(blob)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, json.dumps(change(json.loads(content))) if name == TREE else content)
    return out.getvalue()


def load_bytes(tmp_path, blob):
    path = tmp_path / "model.gpx"
    path.write_bytes(blob)
    return gpx_scale.load(path)


def with_state(**nodes):
    return lambda tree: tree | {"state": tree["state"] | nodes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree | {"version": 4}, "format version 4.*Update gpx_scale"),
        (lambda tree: tree | {"format": "other"}, "damaged"),
        (lambda tree: {"format": tree["format"]}, "damaged"),
        (
            with_state(kernel={"is": "os.system", "of": {"command": "true"}}),
            "not among the classes that a model may hold",
        ),
        (with_state(kernel={"is": "sklearn.pipeline.make_pipeline", "of": {}}), "not among"),
        (with_state(kernel={"is": "RBF", "of": {"other": 1.0}}), "damaged"),
        (with_state(theta_={"is": "array", "of": 10_000}), "damaged"),
        (with_state(theta_={"is": "array", "of": "__class__"}), "damaged"),
        (with_state(_preprocessor=None), "_preprocessor is not a Preprocessor"),
        (with_state(posterior_=[]), "posterior_ is not a Posterior"),
        (with_state(feature_names_in_=5), "names of columns"),
        (with_state(predict="shadowed"), "a model has no attribute predict"),
    ],
)
def test_files_that_are_no_model_are_refused(change, message, whole, tmp_path):
    with pytest.raises(InputError, match=message):
        load_bytes(tmp_path, rewritten(whole[0], change))


def test_other_files_are_refused(whole, tmp_path):
    for blob in (
        b"",
        b"PK",
        b"hello",
        pickle.dumps(GPXRegressor(kernel="rbf", fit_intercept=False, weights="shared")),
        whole[0][: len(whole[0]) // 2],
        whole[0][:-1],
    ):
        with pytest.raises(InputError, match="not a saved model"):
            load_bytes(tmp_path, blob)
    archive = io.BytesIO()
    np.savez(archive, a=np.ones(3))
    with pytest.raises(InputError, match=r"no model\.json"):
        load_bytes(tmp_path, archive.getvalue())


def test_objects_in_arrays_are_not_unpickled(whole, tmp_path):
    out, evil = io.BytesIO(), io.BytesIO()
    np.save(evil, np.array([print], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(io.BytesIO(whole[0])) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, evil.getvalue() if name.endswith("0.npy") else old.read(name))
    with pytest.raises(InputError, match="array of objects"):
        load_bytes(tmp_path, out.getvalue())


def changed_arrays(blob, change):
    """Return the file with every array replaced for which `change` returns another."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(blob)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("npy") and (other := change(np.load(io.BytesIO(content)))) is not None:
                file = io.BytesIO()
                np.save(file, other)
                content = file.getvalue()
            new.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda A: A[None] if A.dtype == np.int32 else None,
        lambda A: A + 1000 if A.dtype == np.int32 else None,
        lambda A: A.astype(float) if A.dtype == np.int64 else None,
        lambda A: A * np.nan if A.dtype == float else None,
        lambda A: A[:-1] if A.shape == (12,) else None,
        lambda A: A[:, :1] if A.shape == (12, 2) else None,
    ],
    ids=["shape", "outside", "type", "nan", "alpha", "columns"],
)
def test_arrays_that_do_not_fit_are_refused(change, whole, tmp_path):
    with pytest.raises(InputError, match="damaged"):
        load_bytes(tmp_path, changed_arrays(whole[0], change))


def test_a_file_that_would_grow_is_refused(whole, tmp_path):
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(whole[0])) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(InputError, match="compressed"):
        load_bytes(tmp_path, out.getvalue())


def test_folders_that_are_read_from_and_written_to_stay_behind(tmp_path):
    """A pipeline's cache, which has pickles, and a checkpoint are not saved."""
    pipeline = make_pipeline(StandardScaler(), PCA(2), memory=str(tmp_path / "cache"))
    model = GPXRegressor(
        x_transformer=pipeline,
        checkpoint=tmp_path / "fit.npz",
        callbacks=[print_nothing],
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(X, Y)
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    assert loaded.x_transformer.memory is None
    assert loaded.checkpoint is None
    assert loaded.callbacks is None
    planted = with_state(
        x_transformer={
            "is": "sklearn.pipeline.Pipeline",
            "of": {"steps": [], "memory": "/tmp/evil"},
        }
    )
    changed = load_bytes(tmp_path, rewritten((tmp_path / "model.gpx").read_bytes(), planted))
    assert changed.x_transformer.memory is None


def print_nothing(_):
    return None


def test_a_dask_model_is_loaded_as_a_local_one(tmp_path):
    distributed = pytest.importorskip("gpx_scale.distributed.regressor")
    local = GPXRegressor(
        solver="inducing", n_inducing=20, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, Y)
    model = distributed.DaskGPXRegressor(
        solver="inducing", n_inducing=20, kernel="rbf", fit_intercept=False, weights="shared"
    )
    model.__dict__.update({name: value for name, value in vars(local).items() if name != "_rows"})
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    assert type(loaded) is GPXRegressor
    np.testing.assert_array_equal(loaded.predict(X), local.predict(X))


def test_another_scikit_learn_is_warned_of(tmp_path):
    model, A, y, _ = CASES["columns"]
    model.fit(A, y).save(tmp_path / "model.gpx")
    blob = rewritten(
        (tmp_path / "model.gpx").read_bytes(), lambda tree: tree | {"scikit-learn": "1.0"}
    )
    with pytest.warns(GPXWarning, match=r"scikit-learn 1\.0"):
        assert load_bytes(tmp_path, blob).predict(A).shape == (120,)


@settings(max_examples=200)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found_or_harmless(where, flip, whole, tmp_path_factory):
    blob, mean = bytearray(whole[0]), whole[1]
    blob[int(where * len(blob))] ^= flip
    try:
        loaded = load_bytes(tmp_path_factory.mktemp("flipped"), bytes(blob))
    except InputError:
        return
    np.testing.assert_array_equal(loaded.predict(X, WORDS), mean)


def test_every_stored_class_has_a_name_of_its_own():
    names = [kind.__name__ for kind in stored_classes()]
    assert len(set(names)) == len(names) >= 40
    for taken in ("RBF", "tuple"):
        with pytest.raises(TypeError, match=r"already: give .* another name"):
            stored(type(taken, (), {}))
    assert stored_by_name("RBF").kind is kernels.RBF


def test_plain_values_of_every_kind_come_back(tmp_path):
    shared = np.arange(6.0).reshape(2, 3)
    state = {
        "a": [1, 2.5, "text", None, True, float("inf")],
        "b": ((1, (2,)), {"k": {3: "v"}}, {1, 2}, slice(1, None), np.dtype("float32"), np.float64),
        "c": shared,
        "d": [
            shared,
            np.asfortranarray(shared),
            np.empty((0, 2)),
            np.array(["a", "bc"]),
            np.array(["a", None], dtype=object),
        ],
        "e": sp.csr_matrix(shared),
        "f": np.float32(0.5),
    }
    write_state(tmp_path / "state", state)
    found = read_state(tmp_path / "state")
    assert found["a"] == state["a"]
    assert found["b"] == state["b"]
    assert found["c"] is found["d"][0]  # It is once in the file and once in memory.
    for one, other in zip(found["d"], state["d"], strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert (found["e"] != state["e"]).nnz == 0
    assert found["f"] == 0.5


@pytest.mark.parametrize(
    "case",
    ["exact", "cg", "inducing", "basis", "grid", "words", "words by cg", "sparse x", "scaled"],
)
@pytest.mark.parametrize("field", ["x_shift", "x_scale", "z_shift", "z_scale", "z_baseline"])
def test_a_scale_of_another_length_is_refused(case, field, tmp_path):
    model, A, y, Z = CASES[case]
    model.set_params(optimizer=None).fit(A, y, Z)
    preprocessor = model._preprocessor
    longer = np.append(getattr(preprocessor.scaling, field), 1.0)
    scaling = replace(preprocessor.scaling, **{field: longer})
    model._preprocessor = replace(preprocessor, scaling=scaling)
    model.save(tmp_path / "model.gpx")
    with pytest.raises(InputError, match=r"model\.gpx' is damaged"):
        gpx_scale.load(tmp_path / "model.gpx")


def test_a_path_that_has_lost_a_component_of_its_kernel_is_refused(tmp_path):
    """Fuzz found a model of a sum of kernels whose samples were those of one kernel."""
    model, X, Z = DAMAGED["grid, sum"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(model).fit(X, DATA.y, Z)
    path = model.posterior_.bank.paths[0]
    object.__setattr__(path, "components", path.components[1:])
    model.save(tmp_path / "model.gpx")
    with pytest.raises(InputError, match="another number of components"):
        gpx_scale.load(tmp_path / "model.gpx")
