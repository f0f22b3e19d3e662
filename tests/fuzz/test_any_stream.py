"""Rows in chunks and added rows: hostile chunks are refused, others act as one table."""

import numpy as np
from hypothesis import strategies as st

from fuzz import hostile
from fuzz.invariant import must_predict
from fuzz.outcome import Refused, fuzz, outcome
from gpx_scale import GPXRegressor


@st.composite
def chunks(draw, hostility=0.3):
    p, d = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    both = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(0, 4))):
        n = draw(st.integers(0, 8) | st.integers(3, 8))
        chunk = (draw(hostile.tables((n, p), hostility)), draw(hostile.targets(n, hostility)))
        made.append((*chunk, draw(hostile.tables((n, d), hostility))) if both else chunk)
    return made


@fuzz(
    0.04,
    made=chunks(),
    solver=st.sampled_from(("auto", "inducing", "basis", "exact")),
    standardize=st.booleans(),
)
def test_any_stream_is_fitted_or_refused(made, solver, standardize):
    model = GPXRegressor(
        solver=solver, optimizer=None, standardize=standardize, n_inducing=8, n_basis=5
    )
    if not outcome(model.fit, lambda: iter(made)):
        return
    first = made[0]
    must_predict(model, first[0], first[2] if len(first) == 3 else None)


@fuzz(
    0.03, made=chunks(hostility=0.15), solver=st.sampled_from(("auto", "inducing", "basis", "cg"))
)
def test_any_rows_are_added_or_refused(made, solver):
    model = GPXRegressor(solver=solver, optimizer=None, n_inducing=8, n_basis=5)
    before, asked = None, ()
    for X, y, *Z in made:
        # `cg` has no such method
        added = outcome(lambda *rows: model.partial_fit(*rows), X, y, *Z, also=(AttributeError,))
        if isinstance(added, Refused):
            if before is not None:
                assert (outcome(model.predict, *asked) == before).all(), (
                    "a refused addition changed the model"
                )
            continue
        asked = X, *Z
        assert np.isfinite(model.log_marginal_likelihood_value_)
        before = must_predict(model, *asked)
        if before is None:
            return
