"""Damaged files: model files and checkpoints with one thing changed, drawn from a seed.

A mutation of *value* leaves all names, types and sizes as they were. The file then holds another
model, whose answers must be finite and add up. Any other mutation must be refused with a GPXError,
or change no answer.
"""

import io
import json
import random as python_random
import zipfile

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler

from gpx_scale import GPXRegressor, datasets, kernels

DATA = datasets.synth10(48)
SMALL = {"max_iter": 1, "random_state": 0, "n_jobs": 1, "weights": "shared"}
WORDS = sp.random(48, 9, 0.3, format="csr", random_state=0)
X1, X2 = DATA.X[:, :1].copy(), DATA.X[:, :2].copy()
SUM = kernels.RBF() + kernels.Matern32()

CASES = {
    "exact": (
        GPXRegressor(solver="exact", **SMALL, kernel="rbf", fit_intercept=False),
        DATA.X,
        None,
    ),
    "exact, compared": (
        GPXRegressor(candidates=["rbf", "matern32"], solver="exact", warm_start=True, **SMALL),
        np.insert(DATA.X[:, :4], 1, 2.0, axis=1),
        None,
    ),
    "exact, float32": (
        GPXRegressor(solver="exact", dtype="float32", **SMALL, kernel="rbf", fit_intercept=False),
        DATA.X,
        None,
    ),
    "exact, sparse": (
        GPXRegressor(solver="exact", fit_intercept=True, **SMALL, kernel="rbf"),
        X2,
        WORDS,
    ),
    "exact, weights": (
        GPXRegressor(
            "rbf",
            groups={"both": [0, 1]},
            prune=False,
            warm_start=True,
            **SMALL | {"weights": "additive"},
        ),
        X2,
        None,
    ),
    "exact, sum": (
        GPXRegressor(
            SUM * kernels.RationalQuadratic(), solver="exact", **SMALL, fit_intercept=False
        ),
        X2,
        None,
    ),
    "exact, Gram matrix": (
        GPXRegressor("precomputed", solver="exact", **SMALL, fit_intercept=False),
        DATA.X @ DATA.X.T,
        DATA.X,
    ),
    "exact, sparse X": (
        GPXRegressor(solver="exact", **SMALL, kernel="rbf", fit_intercept=False),
        WORDS,
        None,
    ),
    "exact, transformed": (
        GPXRegressor(
            solver="exact",
            x_transformer=StandardScaler(),
            **SMALL,
            kernel="rbf",
            fit_intercept=False,
        ),
        X2,
        None,
    ),
    "cg": (GPXRegressor(solver="cg", **SMALL, kernel="rbf", fit_intercept=False), X2, None),
    "cg, sparse": (
        GPXRegressor(solver="cg", **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        WORDS,
    ),
    "cg, sum": (
        GPXRegressor(SUM, solver="cg", prune=False, **SMALL | {"weights": "additive"}),
        X2,
        None,
    ),
    "neighbors": (
        GPXRegressor(solver="neighbors", n_neighbors=9, **SMALL, kernel="rbf", fit_intercept=False),
        DATA.X,
        None,
    ),
    "neighbors, sparse": (
        GPXRegressor(solver="neighbors", n_shared=4, **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        WORDS,
    ),
    "inducing": (
        GPXRegressor(solver="inducing", n_inducing=7, **SMALL, kernel="rbf", fit_intercept=False),
        DATA.X,
        None,
    ),
    "inducing, sparse": (
        GPXRegressor(solver="inducing", n_inducing=7, **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        WORDS,
    ),
    "inducing, sum": (
        GPXRegressor(SUM, solver="inducing", n_inducing=7, **SMALL, fit_intercept=False),
        X2,
        None,
    ),
    "basis": (GPXRegressor(solver="basis", **SMALL, kernel="rbf", fit_intercept=False), X1, None),
    "basis, sum": (
        GPXRegressor(SUM, solver="basis", n_basis=7, **SMALL, fit_intercept=False),
        X2,
        None,
    ),
    "grid": (GPXRegressor(solver="grid", **SMALL, kernel="rbf", fit_intercept=False), X1, None),
    "grid, sum": (
        GPXRegressor(kernels.RBF() + kernels.RBF(), solver="grid", **SMALL, fit_intercept=False),
        X1,
        None,
    ),
}

# arrays


def cut(A):
    return A[:-1]


def longer(A):
    return np.concatenate([A, A[:1]])


OF_SIZE = [
    *(
        cut,
        longer,
        np.ravel,
        lambda A: A[None],
        lambda A: A[..., :-1],
        lambda A: A[..., None],
        lambda A: A[:0],
        lambda A: A[:1],
    ),
    *(lambda A: A.T, lambda A: A.ravel()[0], lambda A: np.repeat(A, 2, axis=-1)),
]
OF_TYPE = [
    lambda A, kind=kind: A.astype(kind)
    for kind in (
        np.float32,
        np.float64,
        np.int8,
        np.int32,
        np.int64,
        np.uint64,
        bool,
        complex,
        "S4",
        "U4",
        ">f8",
    )
]
OF_VALUE = [
    *(
        lambda A: -A,
        lambda A: A * 0,
        lambda A: A + 1,
        lambda A: A * 1e300,
        lambda A: A[::-1].copy(),
        lambda A: A - 10**6,
    ),
    *(
        lambda A: A * np.nan,
        lambda A: A + np.inf,
        lambda A: A - np.inf,
        lambda A: A * 1e-300,
        np.asfortranarray,
    ),
]


def changed(array, random):
    """Return the array after a mutation, or None if this array cannot have it."""
    how = random.choice(random.choice([OF_SIZE, OF_TYPE, OF_VALUE]))
    try:
        with np.errstate(all="ignore"):
            return np.asarray(how(array))
    except (TypeError, ValueError, IndexError, AttributeError):
        return None


def is_of_value(before, after):
    return before.shape == after.shape and before.dtype == after.dtype


def npy(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


# files


def members(blob):
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(found):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in found.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def mutated(blob, seed):
    """A file with one thing changed, and whether only values were changed."""
    random = python_random.Random(seed)
    kind = random.choices(["array", "tree", "member", "bytes"], [10, 10, 1, 1])[0]
    found = members(blob)
    arrays = [name for name in found if name.endswith(".npy")]
    trees = [name for name in found if name.endswith(".json")]
    if kind == "bytes":
        at = random.randrange(len(blob))
        flipped = bytes([blob[at] ^ random.randrange(1, 256)])
        return random.choice(
            [blob[:at], blob[:at] + flipped + blob[at + 1 :], blob + b"x", b"x" + blob]
        ), False
    if kind == "member":
        one, other = random.choice(list(found)), random.choice(arrays)
        how = random.choice(["drop", "swap", "empty", "text"])
        if how == "drop":
            return zipped({name: content for name, content in found.items() if name != one}), False
        found[one] = {"swap": found[other], "empty": b"", "text": b"text"}[how]
        return zipped(found), how == "swap"
    if kind == "tree" and trees:
        tree = json.loads(found[trees[0]])
        of_value = mutate_tree(tree, random)
        return zipped(found | {trees[0]: json.dumps(tree).encode()}), of_value
    name = random.choice(arrays)
    before = np.load(io.BytesIO(found[name]), allow_pickle=False)
    after = changed(before, random)
    if after is None:
        return blob, False
    return zipped(found | {name: npy(after)}), is_of_value(before, after)


PLANTED = [
    None,
    -1,
    0,
    1,
    3,
    10**9,
    10**400,
    2.5,
    -2.5,
    1e308,
    "text",
    "",
    [],
    [1],
    {},
    True,
    False,
]
PLANTED += [
    {"is": "float", "of": "nan"},
    {"is": "array", "of": 0},
    {"is": "tuple", "of": [1, 2]},
    {"is": "RBF", "of": {}},
]


def is_number(node):
    """Return whether a node of a tree is a number, or the name of an array."""
    named = isinstance(node, dict) and node.get("is") == "array"
    return named or (isinstance(node, int | float | str) and not isinstance(node, bool))


def mutate_tree(tree, random):
    """Change one node of a model's tree in place.

    Return whether a number, a name or an array was replaced by another one of its type.
    """
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(tree["state"])
    node, key = random.choice(places)
    before = node[key]
    how = random.choice(["delete", "plant", "plant", "copy"])
    if how == "delete":
        del node[key]
        return False
    if how == "copy":
        other, at = random.choice(places)
        node[key] = json.loads(json.dumps(other[at]))
    else:
        node[key] = random.choice(PLANTED)
    return is_number(before) and is_number(node[key])


def answers(model, X, Z):
    """Return all numbers that a model predicts for some rows."""
    rows = slice(0, 5)
    queries = X[rows], None if Z is None else Z[rows]
    if model.kernel == "precomputed" if isinstance(model.kernel, str) else False:
        queries = np.hstack([X[rows], X[rows, rows]]), queries[1]
    explanation = model.explain(*queries)
    contributions, weights, std = (
        A.toarray() if sp.issparse(A) else A
        for A in (explanation.contributions, explanation.weights, explanation.weights_std)
    )
    mean, deviation = model.predict(*queries, return_std=True)
    np.testing.assert_allclose(
        explanation.base_values + contributions.sum(axis=1),
        mean,
        rtol=1e-6,
        atol=1e-6 * np.abs(mean).max(),
    )
    assert (std >= 0).all()
    assert (deviation >= 0).all()
    samples = model.sample_y(*queries, random_state=0)
    if model.solver_ == "cg" and sp.issparse(
        Z
    ):  # solved for when asked, to a tolerance that depends on the preconditioner
        samples = np.isfinite(samples)
    found = [contributions, weights, std, mean, deviation, samples]
    return np.concatenate([np.ravel(A) for A in found])
