"""Explanations used in odd ways: rows that do not exist, invalid levels, strange names."""

import json

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from fuzz import hostile
from fuzz.invariant import must_add_up
from fuzz.outcome import Refused, fuzz, outcome
from fuzz.test_any_argument import values
from gpx_scale import GPXRegressor
from gpx_scale.explanation import dense, joined

random = np.random.RandomState(1)
Z = random.standard_normal((9, 3)) * (random.rand(9, 3) < 0.6)
Z[4] = 0.0
X, y = random.standard_normal((9, 2)), random.standard_normal(9)
MODELS = {
    form: GPXRegressor(optimizer=None, fit_intercept=True).fit(X, y, make(Z))
    for form, make in (("dense", np.array), ("sparse", sp.csr_array))
}
EXPLAINED = {
    (form, std): MODELS[form].explain(X, Z, std=std) for form in MODELS for std in (True, False)
}
OWN = (IndexError, TypeError)  # as of any sequence
at = (
    values
    | st.integers(-12, 12)
    | st.slices(9)
    | st.lists(st.integers(-12, 12), max_size=4)
    | st.lists(st.booleans(), min_size=8, max_size=10)
    | st.integers(0, 8).map(np.int64)
)


@fuzz(
    0.05,
    which=st.sampled_from(sorted(EXPLAINED)),
    rows=at,
    level=values | st.floats(0, 1),
    k=values,
    wide=st.booleans(),
)
def test_any_part_of_an_explanation(which, rows, level, k, wide):
    found = EXPLAINED[which]
    some = outcome(lambda: found[rows], also=OWN)
    if not isinstance(some, Refused):
        must_add_up(some)
        assert isinstance(outcome(lambda: joined([some, found])), type(found))
        text = outcome(some.to_json)
        assert len(json.loads(text)["samples"]) == len(some)
        frame = outcome(some.to_frame, wide=wide)
        assert len(frame) == (
            len(some)
            if wide
            else some.weights.nnz
            if sp.issparse(some.weights)
            else some.weights.size
        )
        assert np.isfinite(outcome(some.importance)).all()
    outcome(lambda: found.top(rows, k), also=OWN)
    for ask in (found.interval, found.weights_interval, found.prediction_interval):
        bounds = outcome(ask, level)
        if bounds:
            lower, upper = (bound.toarray() if sp.issparse(bound) else bound for bound in bounds)
            assert (lower <= upper).all()
    outcome(found.to_frame, wide=wide, level=level)
    outcome(found.to_json, level=level)
    outcome(found.coverage, k, level)
    if which[1]:
        likely = dense(found.probability_positive())
        assert ((likely >= 0) & (likely <= 1)).all()


@fuzz(
    0.02,
    names=st.lists(st.text(max_size=3) | values, min_size=2, max_size=4),
    baseline=hostile.tables((1, 3)),
)
def test_any_names_and_baselines(names, baseline):
    for model in MODELS.values():
        found = outcome(model.explain, X, Z, feature_names=names)
        if not isinstance(found, Refused):
            outcome(found.to_frame, wide=True)
            outcome(found.to_json)
        found = outcome(model.explain, X, Z, baseline=baseline)
        if not isinstance(found, Refused):
            must_add_up(found)
