"""Damaged model files and checkpoints of every solver: a clear error or a right answer, nothing else.

GPX_SCALE_DAMAGES mutations of each file are tried, 40 unless that is set; `make fuzz` tries 1,000 with numba's bounds checks.
"""

import os
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import gpx_scale
from damage import CASES, DATA, answers, mutated
from fuzz.outcome import by_scikit_learn
from gpx_scale.errors import GPXError, GPXWarning, InputError

COUNT = int(os.environ.get("GPX_SCALE_DAMAGES", "40"))


def said(call):
    """What a call returns, or the error that it raises if that is clear; any other error is a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GPXWarning)
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # numbers of 1e300 overflow before they are refused
        warnings.filterwarnings(
            "ignore", message=".*additional header parsing"
        )  # numpy, of a damaged header
        try:
            return call()
        except GPXError as error:
            return error
        except ValueError as error:
            if not by_scikit_learn(error):
                raise
            return InputError(str(error))


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_model_is_refused_or_answers_rightly(case, tmp_path):
    model, X, Z = CASES[case]
    path = tmp_path / "model.gpx"
    fitted = said(lambda: clone(model).fit(X, DATA.y, Z))
    fitted.save(path)
    blob, expected = path.read_bytes(), answers(fitted, X, Z)
    outcomes = {"refused": 0, "answered": 0}
    for seed in range(COUNT):
        damaged, of_value = mutated(blob, seed)
        path.write_bytes(damaged)
        loaded = said(lambda: gpx_scale.load(path))
        found = (
            loaded
            if isinstance(loaded, GPXError)
            else said(lambda loaded=loaded: everything(loaded, X, Z))
        )
        if isinstance(found, GPXError):
            outcomes["refused"] += 1
            continue
        outcomes["answered"] += 1
        assert np.isfinite(found).all(), f"mutation {seed}"
        if not of_value:
            np.testing.assert_allclose(
                found, expected, rtol=1e-9, atol=1e-9, err_msg=f"mutation {seed}"
            )
    assert min(outcomes.values()) > 0, outcomes  # both ends are met


def everything(model, X, Z):
    """What a loaded model answers, and what it can be used for afterwards, in the order of least harm."""
    found = answers(model, X, Z)
    str(model.fit_report_), repr(model)
    for call in (
        lambda: model.log_marginal_likelihood(eval_gradient=True),
        lambda: model.training_explanation(std=False),
        lambda: model.partial_fit(X, DATA.y, Z) if hasattr(model, "partial_fit") else None,
    ):
        said(call)
    return found


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_checkpoint_is_refused_or_goes_on_rightly(case, finished, tmp_path):
    model, X, Z = CASES[case]
    path = tmp_path / "state.npz"
    model = clone(model).set_params(checkpoint=path)
    said(lambda: clone(model).fit(X, DATA.y, Z))
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **(arrays | {"finished": np.array(finished)}))
    blob, refused = path.read_bytes(), 0
    for seed in range(
        COUNT // 2 * finished, COUNT // 2 * (1 + finished)
    ):  # 1,000 of each case in all
        damaged, _ = mutated(blob, seed)
        path.write_bytes(damaged)
        found = said(lambda: clone(model).fit(X, DATA.y, Z))
        if isinstance(found, GPXError):
            refused += 1
            continue
        assert np.isfinite(answers(found, X, Z)).all(), f"mutation {seed}"
    assert refused > 0
