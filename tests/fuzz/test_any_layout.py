"""Moderate numbers in any memory layout, container, dtype or sparse form.

Results are those of the slow oracle for the plain array.
"""

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

import oracle
from fuzz import hostile
from fuzz.invariant import must_explain, must_not_depend_on_company, must_predict
from fuzz.outcome import fuzz, outcome
from gpx_scale import GPXRegressor
from gpx_scale.explanation import dense

EXACT = ("exact", "exact", "cg", "inducing", "auto")
HELD = (
    "f8",
    "f8",
    "f8",
    "f4",
    "f2",
    "g",
    "O",
    ">f8",
)  # dtypes that hold what they are given, to their own digits
SAME = (*hostile.LAYOUTS, "masked", "object frame", "nullable frame", "subclass", "range index")


@st.composite
def twins(draw, n, columns, dtypes=HELD):
    """Draw (a table as a user might have it, its numbers as a plain array)."""
    random = np.random.RandomState(draw(hostile.seeds))
    A = hostile.numbers(
        draw(st.sampled_from(("normal", "uniform", "whole", "duplicates", "shifted"))),
        (n, columns),
        random,
    )
    if draw(st.integers(0, 2)) == 0:
        return hostile.sparse(
            A, draw(st.sampled_from(hostile.FORMATS)), draw(st.sampled_from(hostile.QUIRKS)), random
        )
    A = hostile.as_dtype(A, draw(st.sampled_from(dtypes)))
    layout = draw(
        st.sampled_from(
            SAME
            if A.dtype.kind == "f" and A.dtype.itemsize == 8
            else ("C", "F", "backwards", "list")
        )
    )
    if A.dtype.str == ">f8" and "frame" in layout:
        layout = "C"
    table = hostile.laid_out(A, layout, random)
    if hasattr(table, "columns"):
        table.columns = [
            f"c{k}" for k in range(columns)
        ]  # other names than at fit would be refused
    return table, A.astype(float)


@st.composite
def problems(draw):
    n, m, p, d = (
        draw(st.integers(1, 25)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    X, Z = draw(twins(n, p)), draw(twins(n, d))
    # The form of the queries need not be that of the fit.
    X_query, Z_query = draw(twins(m, p)), draw(twins(m, d))
    y = np.sin(X[1][:, 0]) + Z[1].sum(axis=1) + 0.1 * np.random.RandomState(0).standard_normal(n)
    number = st.floats(0.1, 3.0)
    theta1, theta2, sigma_w, sigma_y = (
        draw(number),
        draw(number),
        draw(st.sampled_from((0.0, 0.1, 0.5))),
        draw(number),
    )
    return X, y, Z, X_query, Z_query, (theta1, 4.0 * theta2, sigma_w, sigma_y)


@fuzz(
    0.14,
    problem=problems(),
    solver=st.sampled_from(EXACT),
    kind=st.sampled_from(("auto", "float64", "float32")),
    jobs=st.integers(1, 2),
)
def test_any_layout_gives_what_the_oracle_says(problem, solver, kind, jobs):
    (
        (X, plain_X),
        y,
        (Z, plain_Z),
        (Xq, plain_Xq),
        (Zq, plain_Zq),
        (theta1, theta2, sigma_w, sigma_y),
    ) = problem
    if solver == "inducing":
        kind = "auto"
    named = {"theta1": theta1, "theta2": theta2, "sigma_w": sigma_w, "sigma_y": sigma_y}
    model = GPXRegressor(
        solver=solver, dtype=kind, n_jobs=jobs, optimizer=None, standardize=False, **named
    )
    fitted = outcome(model.fit, X, y, Z)
    assert fitted, fitted.error
    k = oracle.rbf(theta1, theta2)
    mean, cov = oracle.predict(k, plain_X, y, plain_Z, plain_Xq, plain_Zq, sigma_w, sigma_y)
    precise = solver in ("exact", "auto") and kind != "float32"
    # The iterative solver stops at 1e-6 nats, a refined float32 factor at a residual of 1e-8, and
    # S_uu of all rows may need jitter. Each error is relative to the size of the predictions.
    tol = oracle.tolerance(k, plain_X, plain_Z, sigma_w, sigma_y) * 10 if precise else 2e-3
    if dense_and_sparse_mix(X, Xq) or dense_and_sparse_mix(Z, Zq):
        outcome(model.predict, Xq, Zq)
        return
    found = must_explain(model, Xq, Zq, must=True)
    must_predict(model, Xq, Zq, m=len(plain_Xq))
    size = np.abs(plain_Zq).sum(axis=1) * np.sqrt(theta1) + np.abs(mean) + sigma_y
    assert (np.abs(found.prediction - mean) <= tol * size * (1 + np.abs(y).max())).all()
    std = np.sqrt(np.diag(cov))
    if precise:
        assert (np.abs(found.prediction_std - std) <= tol * size).all()
    else:
        assert (found.prediction_std >= std * (1 - 1e-2)).all()
    weights = [oracle.weights(k, plain_X, y, plain_Z, x, sigma_w, sigma_y)[0] for x in plain_Xq]
    stored = np.array(dense(found.data)) != 0 if sp.issparse(found.weights) else True
    apart = np.where(stored, dense(found.weights) - np.array(weights), 0.0)
    assert (np.abs(apart) <= tol * (1 + np.abs(weights)) * (1 + np.abs(y).max()) * 10).all()
    must_not_depend_on_company(model, plain_Xq, plain_Zq)


def dense_and_sparse_mix(fitted, asked):
    """Return whether a query is sparse and the fit dense, which is refused.

    A dense query of a sparse fit is made sparse.
    """
    return sp.issparse(asked) and not sp.issparse(fitted)
