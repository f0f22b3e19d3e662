"""Kernels as Gram matrices, as functions of objects, and as sums and products.

Results are those of the oracle, or the kernel is refused.
"""

import numpy as np
import pandas as pd
import scipy.sparse as sp
from hypothesis import strategies as st

import oracle
from fuzz import hostile
from fuzz.invariant import must_explain, must_predict, scale_of
from fuzz.outcome import fuzz, outcome
from gpx_scale import GPXRegressor, kernels

SOUND = {
    "as it is": lambda K, r: K,
    "float32": lambda K, r: K.astype("f4").astype(float),
    "Fortran": lambda K, r: np.asfortranarray(K),
    "list": lambda K, r: K.tolist(),
    "frame": lambda K, r: pd.DataFrame(K),
    "of rank 1": lambda K, r: np.ones(K.shape),
    "zero": lambda K, r: 0.0 * K,
}
SPOILT = {
    "asymmetric": lambda K, r: K + np.triu(r.standard_normal(K.shape), 1),
    "indefinite": lambda K, r: K - 3.0 * np.eye(*K.shape),
    "negative": lambda K, r: -K,
    "nan": lambda K, r: np.where(r.rand(*K.shape) < 0.2, np.nan, K),
    "inf": lambda K, r: np.where(r.rand(*K.shape) < 0.2, np.inf, K),
    "huge": lambda K, r: 1e300 * K,
    "tiny": lambda K, r: 1e-300 * K,
    "denormal": lambda K, r: 5e-324 * np.ceil(np.abs(K)),
    "one row less": lambda K, r: K[1:],
    "one column less": lambda K, r: K[:, 1:],
    "sparse": lambda K, r: sp.csr_array(K),
    "complex": lambda K, r: K + 0j,
    "text": lambda K, r: K.astype("U"),
    "whole numbers": lambda K, r: np.rint(3 * K).astype("i8"),
    "a vector": lambda K, r: K[:, 0] if K.shape[1] else K.ravel(),
    "nothing": lambda K, r: None,
    "an object": lambda K, r: object(),
}
FORMS = {**SOUND, **SPOILT}
SOLVERS = ("auto", "exact", "exact", "cg", "inducing", "basis", "grid")
PARTS = (
    kernels.RBF,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.RationalQuadratic,
)


@st.composite
def objects(draw):
    """Draw (Gram matrix of n rows and m queries, n, m, Z of all, y)."""
    n, m, d = draw(st.integers(1, 15)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    random = np.random.RandomState(draw(hostile.seeds))
    x = random.standard_normal((n + m, 2))
    if draw(st.integers(0, 3)) == 0:
        x = np.round(x)  # objects that are the same
    return (
        oracle.rbf(1.0, 2.0)(x, x),
        n,
        m,
        random.standard_normal((n + m, d)),
        random.standard_normal(n),
    )


def must_agree(model, found, k, n, m, Z, y):
    """Compare with the oracle: rows are 0..n and queries n..n + m, which k knows by number."""
    rows, queries = np.arange(n), np.arange(n, n + m)
    noise = model.sigma_w, model.sigma_y
    mean, cov = oracle.predict(k, rows, y, Z[:n], queries, Z[n:], *noise)
    size = 1.0 + np.abs(mean).max() + np.abs(y).max()
    near = 1e-7 if model.solver_ == "exact" else 2e-3
    assert np.abs(found[0] - mean).max() <= near * size
    if model.solver_ == "exact":
        assert np.abs(found[1] - np.sqrt(np.diag(cov))).max() <= near * size
    else:
        assert (found[1] >= np.sqrt(np.diag(cov)) * (1 - 1e-2)).all()


@fuzz(
    0.03,
    case=objects(),
    form=st.sampled_from(sorted(FORMS)),
    asked=st.sampled_from(sorted(FORMS)),
    seed=hostile.seeds,
)
def test_any_gram_matrix_is_used_or_refused(case, form, asked, seed):
    K, n, m, Z, y = case
    random = np.random.RandomState(seed)
    solver = SOLVERS[seed % len(SOLVERS)]
    model = GPXRegressor(
        "precomputed",
        solver=solver,
        optimizer="lbfgs" if seed % 5 == 0 else None,
        max_iter=2,
        standardize=False,
        fit_intercept=False,
        weights="shared",
    )
    given = FORMS[form](K[:n, :n], random)
    if not outcome(model.fit, given, y, Z[:n]):
        assert form in SPOILT or solver in ("basis", "grid", "inducing"), (
            "a sound Gram matrix was refused"
        )
        return
    assert np.isfinite(model.log_marginal_likelihood_value_)
    queries = np.hstack([K[n:, :n], np.ones((m, 1))])
    found = must_predict(model, FORMS[asked](queries, random), Z[n:])
    must_explain(model, FORMS[asked](queries, random), Z[n:])
    if (
        form in ("as it is", "Fortran", "list", "frame")
        and asked == "as it is"
        and model.optimizer is None
    ):
        assert found is not None
        must_agree(
            model,
            model.predict(queries, Z[n:], return_std=True),
            lambda a, b: K[np.ix_(a, b)],
            n,
            m,
            Z,
            y,
        )


class Said(Exception):
    """An error that a user's function raises reaches the user unchanged."""


@fuzz(0.03, case=objects(), form=st.sampled_from(["raises", *sorted(FORMS)]), seed=hostile.seeds)
def test_any_function_of_objects_is_used_or_refused(case, form, seed):
    K, n, m, Z, y = case
    random, calls = np.random.RandomState(seed), []

    def kernel(a, b):
        calls.append((len(a), len(b)))
        block = K[np.ix_([int(i[1:]) for i in a], [int(i[1:]) for i in b])]
        late = seed % 3 == 0 and len(calls) < 2  # sound at first
        if form == "raises" and not late:
            raise Said("no")
        return block if late or form == "raises" else FORMS[form](block, random)

    names = [f"o{i}" for i in range(n + m)]
    solver = SOLVERS[seed % len(SOLVERS)]
    model = GPXRegressor(kernel, solver=solver, optimizer=None, standardize=False)
    if not outcome(model.fit, names[:n], y, Z[:n], also=(Said,)):
        assert form not in ("as it is", "Fortran") or solver in ("basis", "grid", "inducing"), (
            "a sound function was refused"
        )
        return
    answer = outcome(model.predict, names[n:], Z[n:], return_std=True, also=(Said,))
    if not isinstance(answer, tuple):
        assert form not in ("as it is", "Fortran")
        return
    assert all(np.isfinite(part).all() for part in answer)
    if form == "as it is":
        must_agree(model, answer, lambda a, b: K[np.ix_(a, b)], n, m, Z, y)


@st.composite
def composed(draw):
    parts = [
        draw(st.sampled_from(PARTS))(draw(st.floats(0.1, 3.0)), draw(st.floats(0.3, 10.0)))
        for _ in range(3)
    ]
    kernel = parts[0]
    for part in parts[1 : draw(st.integers(1, 3))]:
        kernel = kernel * part if draw(st.booleans()) else kernel + part
    return kernel


@fuzz(
    0.03,
    kernel=composed(),
    solver=st.sampled_from(("exact", "exact", "cg", "inducing", "auto")),
    seed=hostile.seeds,
)
def test_sums_and_products_give_what_the_oracle_says_with_any_threads(kernel, solver, seed):
    random = np.random.RandomState(seed)
    n, m, p, d = random.randint(1, 25), 3, random.randint(1, 4), random.randint(1, 4)
    X, Z, y = (
        random.standard_normal((n + m, p)),
        random.standard_normal((n + m, d)),
        random.standard_normal(n),
    )
    models = [
        outcome(
            GPXRegressor(kernel, solver=solver, optimizer=None, standardize=False, n_jobs=jobs).fit,
            X[:n],
            y,
            Z[:n],
        )
        for jobs in (1, 2)
    ]
    answers = [model.predict(X[n:], Z[n:], return_std=True) for model in models]
    K = outcome(kernel, X)
    must_agree(models[0], answers[0], lambda a, b: K[np.ix_(a, b)], n, m, Z, y)
    size = scale_of(models[0], answers[0][0])
    for one, other in zip(*answers, strict=True):
        assert np.abs(one - other).max() <= (1e-9 if solver == "exact" else 3e-3) * size


@fuzz(
    0.01, seed=hostile.seeds, solver=st.sampled_from(("basis", "grid")), length=st.floats(0.2, 2.0)
)
def test_functions_and_grids_give_what_the_oracle_says(seed, solver, length):
    """This holds for an RBF whose length scale is not short beside the extent of the data."""
    random = np.random.RandomState(seed)
    n, m, p, d = random.randint(2, 25), 3, random.randint(1, 3), random.randint(1, 4)
    X, Z, y = (
        random.uniform(0, 1, (n + m, p)),
        random.standard_normal((n + m, d)),
        random.standard_normal(n),
    )
    theta2 = max(length, 0.5 * p) ** 2
    given = {"theta1": 1.0, "theta2": theta2, "sigma_w": 0.1, "sigma_y": 0.3}
    model = GPXRegressor(solver=solver, optimizer=None, standardize=False, random_state=0, **given)
    fitted = outcome(model.fit, X[:n], y, Z[:n])
    assert fitted, fitted.error
    mean, cov = oracle.predict(oracle.rbf(1.0, theta2), X[:n], y, Z[:n], X[n:], Z[n:], 0.1, 0.3)
    found = model.predict(X[n:], Z[n:], return_std=True)
    size = 1.0 + np.abs(mean).max() + np.abs(y).max()
    assert np.abs(found[0] - mean).max() <= 1e-2 * size
    assert (found[1] >= np.sqrt(np.diag(cov)) * (1 - 1e-2)).all()
