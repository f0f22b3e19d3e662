"""Damaged model files and checkpoints of every solver give a clear error or a correct answer.

GPX_SCALE_DAMAGES is the number of mutations of each file that are tried, 40 by default. `make fuzz`
tries 1,000, with numba's bounds checks.
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
    """Return the result of a call, or its error if that is a clear one; raise any other error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GPXWarning)
        # Numbers such as 1e300 overflow before they are refused.
        warnings.simplefilter("ignore", RuntimeWarning)
        # numpy warns of a damaged header.
        warnings.filterwarnings("ignore", message=".*additional header parsing")
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
    assert min(outcomes.values()) > 0, outcomes  # Both outcomes occur.


def everything(model, X, Z):
    """Return the answers of a loaded model, after calling whatever else it can be used for."""
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
    # Each half of the mutations is tried on one of the two kinds of checkpoints.
    for seed in range(COUNT // 2 * finished, COUNT // 2 * (1 + finished)):
        damaged, _ = mutated(blob, seed)
        path.write_bytes(damaged)
        found = said(lambda: clone(model).fit(X, DATA.y, Z))
        if isinstance(found, GPXError):
            refused += 1
            continue
        assert np.isfinite(answers(found, X, Z)).all(), f"mutation {seed}"
    assert refused > 0
