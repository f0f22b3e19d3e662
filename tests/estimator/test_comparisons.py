"""What-if answers are differences of predictions; supporting rows are the terms of a prediction."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder

import oracle
from gpx_scale import XZ, GPXRegressor, InputError
from gpx_scale.errors import SolverUnavailable
from problems import make_problem
from solver_cases import CASES

CHANGES = {"x0": 0.5, "z1": -1.0}
KEEPS_ROWS = ("exact", "cg", "neighbors", "grid")


@pytest.fixture(scope="module")
def problem():
    return make_problem(p=1, d=4, m=5)


@pytest.fixture(scope="module")
def both(problem):
    """The first query before and after the changes."""
    X, Z = np.repeat(problem.X_query[:1], 2, axis=0), np.repeat(problem.Z_query[:1], 2, axis=0)
    X[1, 0], Z[1, 1] = 0.5, -1.0
    return X, Z


def deviation_of_change(problem, X, Z):
    """Return the oracle's standard deviation of the second prediction minus the first."""
    cov = oracle.predict(problem.k, *problem.data, X, Z, *problem.noise)[1]
    noise = problem.sigma_y**2 + problem.sigma_w**2 * np.square(Z).sum(axis=1)
    cov = cov - np.diag(noise)
    return np.sqrt(np.array([-1.0, 1.0]) @ cov @ np.array([-1.0, 1.0]))


@pytest.mark.parametrize("solver", CASES)
def test_a_change_is_the_difference_of_two_predictions(problem, both, solver):
    case, options = CASES[solver], {"solver": solver, "random_state": 0, "weights": "shared"}
    model = problem.fitted(**options, **case.arguments)
    row = XZ(problem.X_query[:1], problem.Z_query[:1])
    answer = model.what_if(row, CHANGES)
    before, after = model.predict(*both)
    size = max(abs(before), abs(after))
    assert answer.before == pytest.approx(before, abs=1e-9 * size)
    assert answer.after == pytest.approx(after, abs=1e-9 * size)
    assert answer.change == pytest.approx(after - before, abs=1e-9 * size)
    expected = deviation_of_change(problem, *both)
    error = 4.0 * case.allowed(problem, model).y_covariance + 1e-10
    assert answer.change_std**2 == pytest.approx(expected**2, abs=error)
    assert sum(answer.contributions.values()) == pytest.approx(answer.change, abs=1e-9 * size)
    if solver == "exact":
        assert answer.change_std == pytest.approx(expected, rel=1e-10)


def test_neighbours_condition_both_rows_on_the_union_of_their_neighbours(problem, both):
    """With few neighbours, the answer is that of an exact model of the rows of both."""
    few = {"n_neighbors": 6, "n_shared": 4, "random_state": 0, "weights": "shared"}
    model = problem.fitted(solver="neighbors", **few)
    answer = model.what_if(XZ(problem.X_query[:1], problem.Z_query[:1]), CHANGES)
    rows = {
        each.row
        for i in range(2)
        for each in model.supporting_rows(XZ(both[0][[i]], both[1][[i]]), k=100)
    }
    some = sorted(rows)
    assert 10 <= len(some) <= 16
    exact = problem.model(solver="exact", weights="shared")
    exact.fit(problem.X[some], problem.y[some], problem.Z[some])
    expected = exact.what_if(XZ(problem.X_query[:1], problem.Z_query[:1]), CHANGES)
    assert answer.change == pytest.approx(expected.change, rel=1e-9)
    assert answer.change_std == pytest.approx(expected.change_std, rel=1e-9)


@pytest.mark.parametrize("solver", KEEPS_ROWS)
def test_supporting_rows_make_the_prediction(problem, solver):
    case, options = CASES[solver], {"solver": solver, "random_state": 0, "weights": "shared"}
    model = problem.fitted(**options, **case.arguments)
    row = XZ(problem.X_query[:1], problem.Z_query[:1])
    found = model.supporting_rows(row, k=1000)
    assert sorted(each.row for each in found) == list(range(len(problem.y)))
    np.testing.assert_allclose([each.y for each in found], problem.y[[e.row for e in found]])
    sizes = [abs(each.weight) for each in found]
    assert sizes == sorted(sizes, reverse=True)
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    b = problem.k(problem.X_query[:1], problem.X)[0] * (problem.Z @ problem.Z_query[0])
    expected = np.linalg.solve(C, b)[[each.row for each in found]]
    close = 1e-9 if solver in ("exact", "neighbors") else 0.02
    np.testing.assert_allclose([e.weight for e in found], expected, atol=close)
    assert len(model.supporting_rows(row, k=3)) == 3


def test_solvers_without_rows_say_so(problem):
    model = problem.fitted(solver="basis", weights="shared", random_state=0)
    with pytest.raises(SolverUnavailable, match="keep the training rows"):
        model.supporting_rows(XZ(problem.X_query[:1], problem.Z_query[:1]))


@pytest.fixture(scope="module")
def table():
    """A model of a table with numbers and a category, and the table."""
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"size": random.rand(60), "cut": random.choice(list("abc"), 60)})
    frame["floors"] = random.randint(1, 4, 60)
    y = frame["size"] * frame["floors"] + (frame["cut"] == "b") + 3.0
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["cut"]),
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    options = {"x_transformer": encoder, "z_transformer": encoder, "weights": "shared"}
    return GPXRegressor("rbf", optimizer=None, **options).fit(frame, y), frame


@pytest.mark.parametrize("changes", [{"size": 2.0}, {"cut": "b"}, {"floors": 2.5, "cut": "c"}])
def test_rows_of_frames_change_by_name(table, changes):
    model, frame = table
    changed = frame[:1].assign(**{name: [value] for name, value in changes.items()})
    expected = model.predict(changed)[0] - model.predict(frame[:1])[0]
    assert model.what_if(frame[:1], changes).change == pytest.approx(expected, rel=1e-9)
    assert model.what_if(frame.iloc[0], changes).change == pytest.approx(expected, rel=1e-9)
    as_category = frame[:1].assign(cut=frame["cut"].astype("category")[:1])
    assert model.what_if(as_category, changes).change == pytest.approx(expected, rel=1e-9)
    assert repr(model.what_if(frame[:1], changes)).startswith("WhatIf(")


def test_a_category_is_one_contribution_of_a_change(table):
    model, frame = table
    groups = {"cut": ["cut_a", "cut_b", "cut_c"], "rest": ["size", "floors"]}
    answer = model.what_if(frame[:1], {"cut": "b"}, groups=groups)
    assert set(answer.contributions) <= {"cut", "rest", "base value"}
    same = model.what_if(frame[:1], {"size": frame["size"].iloc[0]})
    assert (same.change, same.change_std, same.contributions) == (0.0, 0.0, {})


def test_sparse_rows_and_numbers_of_columns(problem):
    X = np.where(np.abs(problem.Z) > 0.5, problem.Z, 0.0)
    model = problem.model(weights="shared").fit(X, problem.y)
    sparse = problem.model(weights="shared").fit(sp.csr_array(X), problem.y)
    answer = model.what_if(X[0], {2: 1.5})
    assert answer.change == pytest.approx(model.what_if(X[0], {"x2": 1.5}).change)
    found = sparse.what_if(sp.csr_array(X[:1]), {2: 1.5})
    assert found.change == pytest.approx(answer.change, rel=1e-9)
    assert found.change_std == pytest.approx(answer.change_std, rel=1e-9)


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ("two", {"size": 1.0}, "one"),
        ("one", {"colour": 1.0}, "'size', 'cut', 'floors'"),
        ("one", {}, "dict"),
        ("one", ["size"], "dict"),
        ("words", {"size": 1.0}, "row"),
    ],
)
def test_rows_and_changes_that_cannot_be_used_are_refused(table, row, changes, message):
    model, frame = table
    given = {"two": frame[:2], "one": frame[:1], "words": ["a", "b", "c"]}[row]
    with pytest.raises(InputError, match=message):
        model.what_if(given, changes)


def test_values_that_are_no_numbers_are_refused(problem):
    model = problem.model(weights="shared").fit(problem.Z, problem.y)
    for value in (np.nan, "many", None):
        with pytest.raises(InputError, match="finite number"):
            model.what_if(problem.Z[0], {0: value})


@pytest.mark.parametrize("solver", ["exact", "neighbors"])
def test_kernels_of_objects_and_gram_matrices_have_both_answers(problem, solver):
    words = [["red", "green", "blue"][i % 3] * (1 + i % 2) for i in range(len(problem.y))]

    def alike(a, b):
        return np.array([[len(set(s) & set(t)) / len(set(s) | set(t)) for t in b] for s in a])

    options = {"solver": solver, "weights": "shared", "optimizer": None, "standardize": False}
    if solver == "neighbors":
        options |= {"n_neighbors": 60, "n_shared": 20}
    model = GPXRegressor(alike, **options).fit(words, problem.y, problem.Z)
    gram = GPXRegressor("precomputed", **options).fit(alike(words, words), problem.y, problem.Z)
    row = XZ(["grey"], problem.Z_query[:1])
    row_of_gram = XZ(alike(["grey"], words), problem.Z_query[:1])
    answer, Z = model.what_if(row, {"z0": 2.0}), problem.Z_query[:1].copy()
    Z[0, 0] = 2.0
    expected = model.predict(["grey"], Z)[0] - model.predict(["grey"], problem.Z_query[:1])[0]
    assert answer.change == pytest.approx(expected, rel=1e-8)
    # The rows are alike but for z0, so the change is a multiple of one weight.
    moved = Z - problem.Z_query[:1]
    cov = model.explain(["grey"], Z, std="surface", cov=True).weights_cov[0]
    assert answer.change_std**2 == pytest.approx(moved[0] @ cov @ moved[0], rel=1e-8)
    found = [
        {each.row: each.weight for each in one.supporting_rows(given, k=100)}
        for one, given in ((model, row), (gram, row_of_gram))
    ]
    assert found[0] == pytest.approx(found[1])
    with pytest.raises(InputError, match="return_cov=True"):
        gram.what_if(row_of_gram, {"z0": 2.0})
