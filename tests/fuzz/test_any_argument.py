"""Arguments of any type and size are used, or refused with an error that names them.

They are those of the constructor, of `make_plan`, and of methods such as `predict`.
"""

import numpy as np
from hypothesis import strategies as st

from fuzz import hostile
from fuzz.invariant import must_add_up, must_explain, must_predict
from fuzz.outcome import Refused, fuzz, outcome
from gpx_scale import XZ, GPXRegressor, kernels, make_plan

NUMBERS = (
    0,
    1,
    2,
    7,
    -1,
    -3,
    0.0,
    0.5,
    -0.5,
    1e-300,
    1e300,
    5e-324,
    np.nan,
    np.inf,
    -np.inf,
    2**31,
    2**63,
    10**30,
    1e-8,
    1e8,
)
TYPES = (
    *(
        None,
        True,
        False,
        "",
        "auto",
        "median",
        "nonsense",
        "3",
        "1GiB",
        "exact",
        "é",
        b"auto",
        (),
        [],
        {},
        [1.0],
        (1.0, 2.0),
    ),
    *(
        np.float32(0.5),
        np.int8(3),
        np.array(2.0),
        np.array([1.0]),
        np.array([[1.0, 2.0]]),
        np.bool_(True),
        1j,
        object,
        float,
    ),
    *(
        np.nan,
        "float32",
        np.float32,
        np.float16,
        "int8",
        lambda *a: None,
        [None],
        {"a": 1},
        slice(None),
        Ellipsis,
    ),
)
values = st.sampled_from(NUMBERS) | st.sampled_from(TYPES)
ARGUMENTS = (
    *(
        "kernel",
        "ard",
        "solver",
        "theta1",
        "theta2",
        "sigma_w",
        "sigma_y",
        "optimizer",
        "search_rows",
        "max_iter",
        "tol",
        "n_restarts",
    ),
    *(
        "x_transformer",
        "z_transformer",
        "fit_intercept",
        "weights",
        "groups",
        "prune",
        "standardize",
        "n_inducing",
        "inducing_points",
        "optimize_inducing",
    ),
    *(
        "n_basis",
        "preconditioner_rank",
        "dtype",
        "memory_limit",
        "n_jobs",
        "warm_start",
        "callbacks",
        "random_state",
    ),
)
LONG = {"n_restarts", "max_iter"}  # what asks for a long search is no finding
X = np.random.RandomState(0).standard_normal((12, 2))
y = X[:, 0] + np.sin(X[:, 1])


@fuzz(
    0.1,
    names=st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=2, unique=True),
    given=st.lists(values, min_size=2, max_size=2),
    solver=st.sampled_from(("auto", "exact", "cg", "inducing", "basis", "grid")),
    searched=st.integers(0, 4),
)
def test_any_argument_is_used_or_refused(names, given, solver, searched):
    arguments = {
        "solver": solver,
        "optimizer": (None, "auto", "lbfgs")[searched % 3],
        "max_iter": 2,
        "n_basis": 6,
    }
    for name, value in zip(names, given, strict=False):
        long = name in LONG and isinstance(value, int | float) and value > 10
        if not long and not (
            name.endswith(("_transformer", "callbacks")) and callable(value)
        ):  # which may fail in ways of its own
            arguments[name] = value
    model = GPXRegressor(**arguments)
    outcome(lambda: str(model.plan(X, y)))
    if not outcome(model.fit, X, y):
        assert not [name for name in vars(model) if name.endswith("_")]
        return
    assert np.isfinite(model.log_marginal_likelihood_value_)
    must_predict(model, X)
    must_explain(model, X)


ODD_SIZES = st.sampled_from((0, 10**9, 10**15, 10**400, -1, 0.5, np.nan, None, "3", True))
ROWS = (
    st.sampled_from((1, 2, 3, 400, 6_000, 20_000, 60_000, 200_000, 10**6, np.int64(50))) | ODD_SIZES
)
WIDTHS = st.sampled_from((1, 2, 3, 5, 50, 1000, np.int32(4)) * 2) | st.integers(1, 20) | ODD_SIZES


@fuzz(
    0.08,
    sizes=st.tuples(ROWS, WIDTHS, WIDTHS),
    names=st.lists(
        st.sampled_from(
            (
                "solver",
                "dtype",
                "memory_limit",
                "n_jobs",
                "gram",
                "rank",
                "density",
                "n_inducing",
                "stream",
                "n_basis",
            )
        ),
        max_size=2,
        unique=True,
    ),
    given=st.lists(values, min_size=2, max_size=2),
    solver=st.sampled_from(("auto", "auto", "exact", "cg", "inducing", "nystrom", "basis", "grid")),
)
def test_any_plan_is_made_or_refused(sizes, names, given, solver):
    arguments = {"solver": solver, **dict(zip(names, given, strict=False))}
    plan = outcome(lambda: make_plan(*sizes, **arguments))
    if not isinstance(plan, Refused):
        assert outcome(str, plan)
        assert 0 <= plan.bytes_needed <= plan.memory_limit


MODEL = GPXRegressor(optimizer=None).fit(X, y)
FLAGS = st.booleans()
EXPLAINED = {
    "std": st.sampled_from((True, False, "surface", "certified", "samples")),
    "cov": FLAGS,
    "baseline": st.sampled_from(("mean", "zero", (1.0, -2.0), np.zeros(2, np.float32))),
    "feature_names": st.sampled_from((None, ["a", "b"], ("", 3))),
    "dense": FLAGS,
}
DRAWN = {"n_samples": st.integers(0, 4), "random_state": st.none() | hostile.seeds}
ASKED = {
    "predict": {"return_std": FLAGS, "return_cov": FLAGS},
    "explain": EXPLAINED,
    "training_explanation": EXPLAINED,
    "sample_y": DRAWN,
    "sample_weights": DRAWN,
    "log_marginal_likelihood": {
        "theta": st.lists(st.floats(-8, 8), min_size=4, max_size=4),
        "eval_gradient": FLAGS,
    },
}


@st.composite
def questions(draw):
    method = draw(st.sampled_from(sorted(ASKED)))
    odd = draw(st.sampled_from((None, *ASKED[method])))
    names = [name for name in ASKED[method] if name == odd or draw(st.booleans())]
    return method, {name: draw(values if name == odd else ASKED[method][name]) for name in names}


@fuzz(0.06, question=questions())
def test_any_question_is_answered_or_refused(question):
    method, named = question
    if isinstance(named.get("n_samples"), int) and 10**4 < named["n_samples"] < 10**9:
        return
    ask = getattr(MODEL, method)
    found = (
        outcome(ask, **named)
        if method in ("training_explanation", "log_marginal_likelihood")
        else outcome(ask, X, **named)
    )
    if hasattr(found, "contributions"):
        must_add_up(found)
    parts = found if isinstance(found, tuple) else (found,)
    for part in parts:
        assert not isinstance(part, np.ndarray | float) or np.isfinite(part).all()


@st.composite
def kernel_calls(draw):
    make = draw(
        st.sampled_from(
            (
                kernels.RBF,
                kernels.Matern12,
                kernels.Matern32,
                kernels.Matern52,
                kernels.RationalQuadratic,
            )
        )
    )
    return make, [draw(values) for _ in range(draw(st.integers(0, 2)))]


@fuzz(
    0.04,
    call=kernel_calls(),
    other=kernel_calls(),
    product=st.booleans(),
    table=hostile.tables((4, 2), 0.5),
    more=values,
)
def test_any_kernel_is_evaluated_or_refused(call, other, product, table, more):
    made = [outcome(make, *given) for make, given in (call, other)]
    if any(isinstance(one, Refused) for one in made):
        return
    kernel = outcome(lambda: made[0] * made[1] if product else made[0] + made[1])
    for one in (made[0], kernel):
        K = outcome(one, table)
        if isinstance(K, Refused):
            continue
        assert K.shape[0] == K.shape[1]
        assert np.isfinite(K).all()
        assert np.abs(K - K.T).max(initial=0.0) <= 1e-7 * np.abs(K).max(initial=0.0)
    outcome(lambda: made[0] + more)
    outcome(lambda: made[0] * more)


rows = (
    st.integers(-8, 8)
    | st.slices(6)
    | st.lists(st.integers(-8, 8), max_size=3)
    | st.lists(st.booleans(), min_size=6, max_size=6)
)


@fuzz(0.02, table=hostile.tables((6, 2)), other=hostile.tables((6, 2)), rows=rows)
def test_any_pair_is_made_or_refused(table, other, rows):
    pair = outcome(XZ, table, other)
    if isinstance(pair, XZ):
        assert len(pair) == pair.shape[0]
        outcome(lambda: pair[rows], also=(IndexError,))
        repr(pair)
