"""Groups of features are one reason: sums of contributions, with the deviations of these sums."""

import json
import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import oracle
from gpx_scale import GPXRegressor, InputError
from gpx_scale.explanation import Groups
from gpx_scale.metrics import faithfulness, sufficiency
from problems import make_problem
from solver_cases import CASES

GROUPS = {"first": [0, 2], "single": [3]}
MEMBERS = [[0, 2], [3], [1]]  # the last one is "others"


@pytest.fixture(scope="module")
def problem():
    return make_problem(p=1, d=4, m=5)


@pytest.fixture(scope="module")
def model(problem):
    return problem.fitted(weights="shared")


def deviations_of_sums(problem, shift):
    """Return the oracle's standard deviations of the contributions of each group;  (m, g)."""
    found = np.empty((len(shift), len(MEMBERS)))
    for i, x in enumerate(problem.X_query):
        cov = oracle.weights(problem.k, *problem.data, x, *problem.noise)[1]
        for g, columns in enumerate(MEMBERS):
            a = shift[i, columns]
            found[i, g] = np.sqrt(a @ cov[np.ix_(columns, columns)] @ a)
    return found


@pytest.mark.parametrize("baseline", ["zero", [0.5, -1.0, 0.0, 2.0]])
def test_deviations_of_groups_are_the_oracles(problem, model, baseline):
    explanation = model.explain(
        problem.X_query, problem.Z_query, groups=GROUPS, baseline=baseline, cov=True
    )
    view, origin = explanation.grouped(), np.zeros(4) if baseline == "zero" else baseline
    expected = deviations_of_sums(problem, problem.Z_query - origin)
    assert view.feature_names == ["first", "single", "others"]
    np.testing.assert_allclose(view.contributions_std, expected, rtol=1e-10)
    # Covariances, where they are asked for, give the same.
    again = explanation.grouped({"others too": [1], "first": [2, 0], "single": [3]})
    np.testing.assert_allclose(again.contributions_std[:, [1, 2, 0]], expected, rtol=1e-10)


@pytest.mark.parametrize("solver", CASES)
def test_every_solver_has_deviations_of_groups(problem, solver):
    """They are those of the covariance matrices that the same solver gives."""
    model = problem.fitted(
        solver=solver, random_state=0, weights="shared", **CASES[solver].arguments
    )
    known = model.explain(problem.X_query, problem.Z_query, groups=GROUPS, cov=True)
    view, error = known.grouped(), CASES[solver].allowed(problem, model).covariance
    for g, columns in enumerate(MEMBERS):
        a, cov = problem.Z_query[:, columns], known.weights_cov[:, columns][:, :, columns]
        expected = np.einsum("ij,ijk,ik->i", a, cov, a)
        sizes = np.square(a).sum(axis=1)
        assert (
            np.abs(view.contributions_std[:, g] ** 2 - expected) <= 2 * error * sizes + 1e-12
        ).all()
    total = view.base_values + view.contributions.sum(axis=1)
    np.testing.assert_allclose(total, known.prediction, rtol=1e-12)


def test_groups_of_a_sparse_z_are_those_of_a_dense_one(problem, model):
    sparse = problem.model(weights="shared").fit(problem.X, problem.y, sp.csr_array(problem.Z))
    Z = np.where(np.abs(problem.Z_query) > 0.4, problem.Z_query, 0.0)
    expected = model.explain(problem.X_query, Z, groups=GROUPS).grouped()
    for options in ({}, {"dense": True}, {"dense": True, "baseline": np.ones(4)}):
        found = sparse.explain(problem.X_query, sp.csr_array(Z), groups=GROUPS, **options).grouped()
        if "baseline" in options:
            same = {"groups": GROUPS, "baseline": np.ones(4)}
            expected = model.explain(problem.X_query, Z, **same).grouped()
        for name in ("contributions", "contributions_std"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


@pytest.mark.parametrize("std", ["surface", "certified"])
def test_other_deviations_have_groups_too(problem, model, std):
    explanation = model.explain(problem.X_query, problem.Z_query, groups=GROUPS, std=std)
    usual = model.explain(problem.X_query, problem.Z_query, groups=GROUPS).grouped()
    found = explanation.grouped().contributions_std
    joint = np.square(usual.contributions_std[:, 0])
    noise = problem.sigma_w**2 * np.square(problem.Z_query[:, [0, 2]]).sum(axis=1)
    expected = joint - noise if std == "surface" else joint
    np.testing.assert_allclose(found[:, 0] ** 2, expected, rtol=1e-9)


def test_other_groups_need_covariances_and_say_so(problem, model):
    explanation = model.explain(problem.X_query, problem.Z_query, groups=GROUPS)
    with pytest.raises(InputError, match="cov=True"):
        explanation.grouped({"new": [0, 1]})
    with pytest.raises(InputError, match=r"groups=\{"):
        model.explain(problem.X_query, problem.Z_query).grouped()
    # Sums alone, and groups that are known, need none.
    same = explanation.grouped({"one": [1], "pair": [2, 0], "last": [3]}).contributions_std
    np.testing.assert_array_equal(same[:, [1, 2, 0]], explanation.grouped().contributions_std)
    without = model.explain(problem.X_query, problem.Z_query, std=False)
    view = without.grouped({"new": [0, 1]})
    np.testing.assert_allclose(view.contributions[:, 0], without.contributions[:, :2].sum(axis=1))
    assert view.contributions_std is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": [0, 0]}, "once"),
        ({"a": [0], "b": [1, 0]}, "once"),
        ({"a": ["nothing"]}, "no column"),
        ({"a": [4]}, "no column"),
        ({"a": "x0"}, "list"),
        ({"a": []}, "at least one"),
        ({"others": [0]}, "another name"),
        ([[0, 1]], "dict"),
        (3, "dict"),
    ],
)
def test_groups_that_cannot_be_used_are_refused(problem, model, groups, message):
    with pytest.raises(InputError, match=message):
        model.explain(problem.X_query, problem.Z_query, groups=groups)


def test_levels_of_a_category_are_one_reason():
    """Reasons, frames, JSON and importance name the level that a sample has."""
    random = np.random.RandomState(0)
    cut, size = random.randint(3, size=60), random.rand(60)
    Z = np.column_stack([size, *(cut == level for level in range(3))]).astype(float)
    model = GPXRegressor(optimizer=None, weights="shared").fit(Z, size * cut)
    names = ["size", "cut=Fair", "cut=Good", "cut=Ideal"]
    groups = {"cut": names[1:]}
    explanation = model.explain(Z[:4], feature_names=names, groups=groups)
    reasons = {reason.feature: reason for reason in explanation.top(0)}
    assert reasons["cut"].value == ["Fair", "Good", "Ideal"][cut[0]]
    assert set(reasons) == {"cut", "others"}
    assert len(explanation.top(0, groups=False)) == 4
    assert explanation.importance().names == ["cut", "others"]
    assert explanation.importance(groups=False).shape == (4,)
    view = explanation.grouped()
    document = json.loads(view.to_json())["samples"][0]["reasons"][0]
    assert document["value"] == reasons["cut"].value
    assert document["weight"] is None
    assert view.to_frame()["value"][0] == reasons["cut"].value
    np.testing.assert_allclose(view[1:3].contributions, view.contributions[1:3])


def test_groups_of_encoded_columns_leave_others_alone():
    names = ["size", "a", "b", "c", "depth"]
    found = Groups.of_encoded({"cut": [1, 3], "colour": [2]}, ["cut"], names)
    assert found.names == ("size", "cut", "colour", "depth")
    assert found.members == ((0,), (1, 3), (2,), (4,))


def test_importance_has_names_and_an_upper_bound_of_its_deviation(problem, model):
    explanation = model.explain(problem.X_query, problem.Z_query, feature_names=list("abcd"))
    importance = explanation.importance()
    assert importance["c"] == np.abs(explanation.contributions[:, 2]).mean()
    assert importance.names == list("abcd")
    assert type(-importance) is np.ndarray
    samples = model.sample_weights(problem.X_query, problem.Z_query, 400, random_state=0)
    drawn = np.abs(samples * problem.Z_query[:, :, None]).mean(axis=0)
    assert (drawn.std(axis=1) <= 1.1 * importance.uncertainty).all()
    for same in (importance.copy(), pickle.loads(pickle.dumps(importance)), deepcopy(importance)):
        assert (same.names, same.tolist()) == (importance.names, importance.tolist())
        np.testing.assert_array_equal(same.uncertainty, importance.uncertainty)
    assert repr(importance.reshape(2, 2)) == repr(np.asarray(importance).reshape(2, 2))
    assert np.std(importance) == np.std(importance.tolist())
    assert repr(importance).splitlines()[0].startswith(importance.to_frame()["feature"][0])


def test_measures_remove_the_features_of_a_group_together():
    Z = np.random.RandomState(0).randn(20, 4)
    weights = np.array([1.0, -2.0, 3.0, 0.5])

    def model(rows):
        return rows @ weights + 5.0 * rows[:, 0] * rows[:, 2]

    # No sum over single features has the product, and that over the pair has it.
    C = Z * weights
    C[:, 0] += 5.0 * Z[:, 0] * Z[:, 2]
    groups = {"pair": [0, 2], "one": [1], "last": [3]}
    assert faithfulness(model, Z, contributions=C, baseline=0.0) < 0.99
    assert faithfulness(model, Z, contributions=C, baseline=0.0, groups=groups) == pytest.approx(
        1.0
    )
    found = sufficiency(model, Z, ks=(3,), contributions=C, baseline=0.0, groups=groups)
    assert found[0] == pytest.approx(0.0, abs=1e-12)
    first = sufficiency(model, Z[:1], ks=(1,), contributions=C[:1], baseline=0.0, groups=groups)
    sums = np.array([C[0, [0, 2]].sum(), C[0, 1], C[0, 3]])
    assert first[0] == pytest.approx(abs(sums.sum() - sums[np.abs(sums).argmax()]))


def test_columns_of_frames_are_groups_by_themselves():
    """A category has its level and a missing number says so, also in a row by itself."""
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"size": random.rand(50), "cut": random.choice(["Fair", "Good"], 50)})
    frame["sold"] = pd.date_range("2024-01-01", periods=50)
    frame["depth"] = np.where(np.arange(50) % 7 == 0, np.nan, random.rand(50))
    y = frame["size"] + (frame["cut"] == "Good")
    model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(frame, y)
    explanation = model.explain(frame)
    view = explanation.grouped()
    assert view.feature_names == ["size", "cut", "sold", "depth"]
    for i in (0, 1, 7):
        alone = model.explain(frame[i : i + 1])
        for one in (explanation[i], alone):
            reasons = {reason.feature: reason for reason in one.top(0)}
            assert reasons["cut"].value == frame["cut"][i]
            assert reasons["size"].value == pytest.approx(frame["size"][i])
            assert reasons["sold"].value != reasons["sold"].value  # a date has several numbers
            assert (reasons["depth"].value == "missing") == (i % 7 == 0)
        for name in ("contributions", "contributions_std"):
            found = getattr(alone.grouped(), name)
            np.testing.assert_allclose(found[0], getattr(view, name)[i], rtol=1e-9, atol=1e-12)
    assert explanation.effect("cut").values.tolist() == ["Fair", "Good"]
    assert explanation.effect("depth").counts.sum() == 42
    assert model.explain(frame, groups={}).groups is None
