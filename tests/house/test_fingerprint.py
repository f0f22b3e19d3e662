"""Models that an earlier version saved predict the same; every fingerprint has its values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import fingerprint

# Relative to the largest magnitude of a field. Another processor or BLAS rounds differently.
RTOL = 1e-9
RECORDED, _ = fingerprint.read_values(fingerprint.VALUES)


def is_answer(field):
    """Return whether a field is of predictions or explanations; samples amplify rounding."""
    return field in ("mean", "std") or field.startswith(("explain.", "training."))


def is_read(field):
    """Return whether a field was written in the file."""
    return field in ("theta", "hyperparameters", "evidence", "evaluations", "report")


def assert_close(now, was, field):
    assert_allclose(now, was, rtol=0.0, atol=RTOL * np.abs(was).max(), err_msg=field)


# A file with transformers warns if another version of scikit-learn has written it.
@pytest.mark.filterwarnings("ignore::gpx_scale.errors.GPXWarning")
@pytest.mark.parametrize("name", fingerprint.SAVED)
def test_a_committed_model_loads_and_predicts_the_same(name):
    was, now = RECORDED[fingerprint.name_of_file_case(name)], fingerprint.of_file(name)
    assert now.keys() == was.keys()
    answers = [field for field in was if is_answer(field)]
    assert len(answers) >= 10
    for field in answers:
        assert_close(now[field], was[field], field)
    for field in filter(is_read, was):
        assert_allclose(now[field], was[field], rtol=1e-13, err_msg=field)
    for field in ("solver", "names", "converged"):
        assert_array_equal(now[field], was[field], err_msg=field)


def test_every_solver_has_a_committed_model():
    names = {path.stem for path in fingerprint.MODELS.glob("*.gpx")}
    assert names == set(fingerprint.SAVED)
    dense = {f"{solver}-dense" for solver in ("exact", "cg", "inducing", "basis", "grid")}
    sparse = {f"{solver}-sparse" for solver in ("exact", "cg", "inducing")}
    assert dense | sparse <= names


def test_every_case_has_recorded_values():
    assert RECORDED.keys() == fingerprint.CASES.keys()
    assert all(RECORDED.values())


def test_a_case_is_reproduced_closely():
    """One case without a search, whose values do not depend much on how a processor rounds."""
    was, now = RECORDED["exact held"], fingerprint.run("exact held")
    assert now.keys() == was.keys()
    for field in filter(is_answer, was):
        assert_close(now[field], was[field], field)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ([1.0, 4.0], [1.0, 4.0], None),
        ([1.0, 4.0], [1.0, 5.0], 0.25),
        ([0.0], [-0.0], 0.0),
        ([np.nan, 2.0], [np.nan, 2.0], None),
        ([np.nan, 2.0], [np.nan, 3.0], 0.5),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([1.0], [np.nan], np.inf),
        ([0.0], [1.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        (["a"], ["b"], np.inf),
        (["a"], ["a"], None),
    ],
)
def test_differences_are_relative_to_the_largest_magnitude(was, now, expected):
    assert fingerprint.difference(np.array(was), np.array(now)) == expected


def test_missing_fields_are_differences():
    one, two = {"a": np.ones(1)}, {"a": np.ones(1), "b": np.ones(1)}
    assert fingerprint.compare(one, one) == (True, "equal to the bit")
    for was, now in ((one, two), (two, one), (None, one), (one, None)):
        same, _ = fingerprint.compare(was, now)
        assert not same
