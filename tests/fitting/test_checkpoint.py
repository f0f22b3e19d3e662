"""A fit resumes correctly from a checkpoint, or refuses it with one clear error."""

import io
import os
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import GPXRegressor, InputError, datasets, kernels

data = datasets.synth10(300)
INDUCING = {"solver": "inducing", "n_inducing": 12, "max_iter": 2, "random_state": 0}


def common(a, b):
    """Return the number of letters that two words share, which is a kernel."""
    return np.array([[float(len(set(u) & set(v))) for v in b] for u in a]) + 0.1


@pytest.fixture
def left(tmp_path):
    """Return the path and arrays of a small checkpoint, and a function that replaces them."""
    path = tmp_path / "state.npz"
    GPXRegressor(
        checkpoint=path, **INDUCING, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    with np.load(path) as file:
        return path, {name: file[name] for name in file.files}


def refit(path):
    return GPXRegressor(
        checkpoint=path, **INDUCING, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)


def swapped(name, change):
    return lambda arrays: arrays | {name: change(arrays[name])}


def without(*names):
    return lambda arrays: {name: value for name, value in arrays.items() if name not in names}


DAMAGES = {
    "fewer rows of z": swapped("z", lambda z: z[:1]),
    "fewer rows of x": swapped("x", lambda x: x[:1]),
    "no points": lambda a: a | {"x": a["x"][:0], "z": a["z"][:0]},
    "more points than planned": lambda a: (
        a | {"x": np.vstack([a["x"]] * 2), "z": np.vstack([a["z"]] * 2)}
    ),
    "a column less of x": swapped("x", lambda x: np.ascontiguousarray(x[:, :-1])),
    "a column more of z": swapped("z", lambda z: np.hstack([z, z[:, :1]])),
    "a flat z": swapped("z", np.ravel),
    "a deep x": swapped("x", lambda x: x[None]),
    "x of float32": swapped("x", lambda x: x.astype(np.float32)),
    "z of integers": swapped("z", lambda z: z.astype(int)),
    "z of complex numbers": swapped("z", lambda z: z.astype(complex)),
    "x in Fortran's order": swapped("x", np.asfortranarray),
    "NaN in x": swapped(
        "x", lambda x: np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, x)
    ),
    "infinity in z": swapped("z", lambda z: np.full_like(z, np.inf)),
    "x alone": without("z"),
    "z alone": without("x"),
    "no theta": without("theta"),
    "no mark of the end": without("finished"),
    "no version": without("version"),
    "no fingerprint": without("fingerprint"),
    "something else as well": lambda a: a | {"w": np.zeros(3)},
    "theta of booleans": swapped("theta", lambda t: t > 0),
    "theta of text": swapped("theta", lambda t: t.astype(str)),
    "theta of another length": swapped("theta", lambda t: t[:-1]),
    "theta as a matrix": swapped("theta", lambda t: t[None]),
    "theta of NaN": swapped("theta", lambda t: np.full_like(t, np.nan)),
    "theta of infinity": swapped("theta", lambda t: np.full_like(t, np.inf)),
    "theta of zeros that are -inf": swapped("theta", lambda t: np.full_like(t, -np.inf)),
    "theta beyond its bounds": swapped("theta", lambda t: np.append(np.log(7.7e99), t[1:])),
    "finished in words": swapped("finished", lambda f: np.array("no")),
    "finished as a number": swapped("finished", lambda f: np.array(2.5)),
    "finished as an array": swapped("finished", lambda f: np.zeros(0, bool)),
    "version of infinity": swapped("version", lambda v: np.array(np.inf)),
    "version as an array": swapped("version", lambda v: np.arange(3)),
    "fingerprint as a number": swapped("fingerprint", lambda f: np.array(1)),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(damage, finished, left):
    path, arrays = left
    np.savez(path, **DAMAGES[damage](arrays | {"finished": np.array(finished)}))
    with pytest.raises(InputError, match="cannot be read"):
        refit(path)


def test_a_whole_checkpoint_is_taken(left):
    path, arrays = left
    np.savez(path, **(arrays | {"finished": np.array(True)}))
    resumed = refit(path)
    assert not resumed.fit_report_.evaluations
    assert_allclose(resumed.theta_, arrays["theta"], rtol=1e-12)


def test_a_checkpoint_of_sparse_rows_has_no_dense_points(tmp_path, left):
    import scipy.sparse as sp

    _, arrays = left
    path, Z = tmp_path / "sparse.npz", sp.csr_array(data.X)
    GPXRegressor(
        checkpoint=path, **INDUCING, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y, Z)
    with np.load(path) as file:
        own = {name: file[name] for name in file.files}
    np.savez(path, **(own | {name: arrays[name] for name in ("x", "z")}))
    with pytest.raises(InputError, match="cannot be read"):
        GPXRegressor(
            checkpoint=path, **INDUCING, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X, data.y, Z)


def member(name, content, how=zipfile.ZIP_STORED):
    """Return a zip file with one member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def npy(value):
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=True)
    return buffer.getvalue()


HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"
FILES = {
    "empty": b"",
    "text": b"not a checkpoint",
    "one array": npy(np.zeros(3)),
    "a pickle": npy(np.array([{"a": 1}], dtype=object)),
    "a zip of a pickle": member("theta.npy", npy(np.array([{"a": 1}], dtype=object))),
    "a zip of text": member("theta.npy", b"abc"),
    "an empty zip": member("theta.npy", b""),
    "a compressed zip": member("theta.npy", npy(np.zeros(10_000)), zipfile.ZIP_DEFLATED),
    "a zip that asks for a terabyte": member(
        "theta.npy", (HEADER % b"137438953472").ljust(128) + b"\n"
    ),
    "a zip of a negative size": member("theta.npy", (HEADER % b"-5").ljust(128) + b"\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_checkpoint_is_refused(name, left):
    path, _ = left
    path.write_bytes(FILES[name])
    with pytest.raises(InputError, match="cannot be read"):
        refit(path)


@pytest.mark.parametrize(
    "checkpoint",
    [3, True, 2.5, ["a"], b"a\0b", "a\0b", "x" * 5000 + "/a", "no/folder/state.npz", "."],
)
@pytest.mark.parametrize("optimizer", ["lbfgs", None])
def test_what_is_no_path_is_refused_before_anything_is_done(
    checkpoint, optimizer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="checkpoint="):
        GPXRegressor(
            checkpoint=checkpoint,
            optimizer=optimizer,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(data.X[:20], data.y[:20])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes.")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not an ordinary file"):
        GPXRegressor(
            checkpoint=tmp_path / "pipe", kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X[:20], data.y[:20])


@pytest.mark.parametrize(
    "kernel", [common, kernels.Function(function=common) + kernels.Function(function=common)]
)
def test_a_checkpoint_of_other_objects_is_refused(kernel, tmp_path):
    path, letters = tmp_path / "state.npz", "abcdefghij"
    random = np.random.RandomState(0)
    words = ["".join(random.choice(list(letters), 4)) for _ in range(90)]
    y, Z = random.standard_normal(90), random.standard_normal((90, 2))
    GPXRegressor(kernel, checkpoint=path, **INDUCING, fit_intercept=False, weights="shared").fit(
        words, y, Z
    )
    # A copy of the data is recognised.
    GPXRegressor(kernel, checkpoint=path, **INDUCING, fit_intercept=False, weights="shared").fit(
        list(words), y, Z
    )
    others = [*words[:-1], "zzzz"]
    with pytest.raises(InputError, match="other data"):
        GPXRegressor(
            kernel, checkpoint=path, **INDUCING, fit_intercept=False, weights="shared"
        ).fit(others, y, Z)
