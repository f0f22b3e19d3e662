"""Tables of any numbers, dtype and container, with every solver and every method."""

import io
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from fuzz import hostile
from fuzz.invariant import must_add_up, must_explain, must_predict
from fuzz.outcome import fuzz, outcome
from gpx_scale import XZ, GPXRegressor, load

SOLVERS = ("auto", "exact", "exact", "cg", "inducing", "basis", "grid")
KERNELS = ("rbf", "rbf", "rbf", "matern12", "matern32", "matern52", "rq")


@st.composite
def models(draw, columns):
    """Draw a regressor with valid arguments, whose combination may not be valid."""
    solver = draw(st.sampled_from(SOLVERS))
    searched = draw(st.integers(0, 9)) == 0
    return GPXRegressor(
        draw(st.sampled_from(KERNELS)),
        solver=solver,
        ard=draw(st.integers(0, 5)) == 0,
        standardize=draw(st.sampled_from((True, True, True, False))),
        fit_intercept=draw(st.booleans()),
        dtype=draw(st.sampled_from(("auto", "auto", "float64", "float32"))),
        sigma_w=draw(st.sampled_from((0.1, 0.1, 0.0, 1.0, 1e-8, 1e6))),
        sigma_y=draw(st.sampled_from((0.1, 0.1, 0.1, 1.0, 1e-8, 1e6))),
        theta1=draw(st.sampled_from((1.0, 1.0, 1e-8, 1e8))),
        theta2=draw(st.sampled_from(("median", "median", 1.0, 1e-8, 1e8))),
        optimizer="lbfgs" if searched else None,
        max_iter=draw(st.integers(1, 3)),
        n_inducing=draw(st.sampled_from((1000, 5, 1))),
        n_basis=draw(
            st.sampled_from((2, 5, 12))
        ),  # "auto" may take 5,000 functions, which are half a minute
        random_state=draw(st.sampled_from((None, 0))),
        n_jobs=draw(st.sampled_from((1, 1, 2))),
        weights="shared",
    )


@st.composite
def cases(draw, hostility):
    """Draw (model, X, y, Z, queries of X and Z)."""
    n, p = draw(hostile.shapes())
    d, m = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    X = draw(hostile.tables((n, p), hostility))
    Z = draw(hostile.tables((n, d), hostility)) if draw(st.booleans()) else None
    # Lengths that do not fit are a case too, a rare one.
    y = draw(hostile.targets(n if draw(st.integers(0, 15)) else n + 1, hostility))
    same = draw(st.booleans())
    X_query = X if same else draw(hostile.tables((m, p), hostility / 2))
    Z_query = Z if same or Z is None else draw(hostile.tables((m, d), hostility / 2))
    return draw(models(p)), X, y, Z, X_query, Z_query


def fitted(case):
    model, X, y, Z, *_ = case
    return model if outcome(model.fit, X, y, Z) else None


@fuzz(0.16, case=cases(hostility=0.7))
def test_any_table_is_answered_or_refused(case):
    if (model := fitted(case)) is None:
        assert not [name for name in vars(case[0]) if name.endswith("_")], (
            "a refused fit left something behind"
        )
        return
    *_, X, Z = case
    assert np.isfinite(model.log_marginal_likelihood_value_)
    must_predict(model, X, Z)
    must_explain(model, X, Z)


@fuzz(0.1, case=cases(hostility=0.15), question=st.integers(0, 12), seed=hostile.seeds)
def test_every_question_is_answered_or_refused(case, question, seed):
    if (model := fitted(case)) is None:
        return
    _, X_train, y, Z_train, X, Z = case
    QUESTIONS[question](model, X, Z, (X_train, y, Z_train), seed)


def asked_for_samples(model, X, Z, train, seed):
    for ask in (model.sample_y, model.sample_weights):
        draws = outcome(ask, X, Z, n_samples=seed % 3, random_state=seed)
        if isinstance(draws, np.ndarray):
            assert np.isfinite(draws).all()
            assert draws.shape[-1] == seed % 3


def asked_for_covariances(model, X, Z, train, seed):
    answer = outcome(model.predict, X, Z, return_cov=True)
    if isinstance(answer, tuple):
        mean, cov = answer
        assert cov.shape == (len(mean),) * 2
        assert np.isfinite(cov).all()
        assert (np.diag(cov) >= 0).all()
    found = must_explain(model, X, Z, cov=True)
    if found is not None:
        assert np.isfinite(found.weights_cov).all()


def asked_of_training_rows(model, X, Z, train, seed):
    found = outcome(model.training_explanation, dense=bool(seed % 2))
    if found:
        must_add_up(found)


def asked_for_evidence(model, X, Z, train, seed):
    theta = (
        None
        if seed % 2
        else np.asarray(model.theta_)
        + np.random.RandomState(seed).uniform(-1, 1, model.theta_.size)
    )
    answer = outcome(model.log_marginal_likelihood, theta, eval_gradient=True)
    if isinstance(answer, tuple):
        value, gradient = answer
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert gradient.shape == model.theta_.shape


def asked_to_leave_one_out(model, X, Z, train, seed):
    answer = outcome(model.leave_one_out)
    if isinstance(answer, tuple):
        residuals, deviations = answer
        assert np.isfinite(residuals).all()
        assert (deviations > 0).all()


def asked_for_score(model, X, Z, train, seed):
    score = outcome(model.score, *train[:2], train[2])
    assert (
        not isinstance(score, float)
        or not np.isnan(score)
        or len(model.predict(train[0], train[2])) < 2
    )


def asked_to_keep(model, X, Z, train, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gpx"
        model.save(path)
        again = load(path)
    before, after = outcome(model.predict, X, Z), outcome(again.predict, X, Z)
    if isinstance(before, np.ndarray):
        assert (before == after).all()


def asked_to_go_on(model, X, Z, train, seed):
    outcome_of_more = outcome(
        getattr, model, "partial_fit", also=(AttributeError,)
    )  # solvers that cannot have no such method
    if outcome_of_more and outcome(model.partial_fit, *train):
        assert np.isfinite(model.log_marginal_likelihood_value_)
        must_predict(model, X, Z)


def asked_for_a_plan(model, X, Z, train, seed):
    outcome(lambda *given: str(model.plan(*given)), *train)


def asked_by_a_pair(model, X, Z, train, seed):
    pair = outcome(XZ, X, X if Z is None else Z)
    if isinstance(pair, XZ):
        outcome(model.predict, pair)
        outcome(lambda pair: pair[seed % max(len(pair), 1) :], pair)


def asked_for_bounds(model, X, Z, train, seed):
    must_explain(model, X, Z, std="certified")
    must_explain(model, X, Z, std="surface")
    must_explain(model, X, Z, std="samples")


def asked_for_all_weights(model, X, Z, train, seed):
    must_explain(model, X, Z, dense=True, baseline="zero", std=bool(seed % 2))


def asked_for_a_report(model, X, Z, train, seed):
    print(model.fit_report_, file=io.StringIO())
    found = must_explain(model, X, Z)
    if found is not None:
        outcome(found.to_json)
        outcome(found.to_frame, wide=bool(seed % 2))


QUESTIONS = (
    *(
        asked_for_samples,
        asked_for_covariances,
        asked_of_training_rows,
        asked_for_evidence,
        asked_to_leave_one_out,
    ),
    *(
        asked_for_score,
        asked_to_keep,
        asked_to_go_on,
        asked_for_a_plan,
        asked_by_a_pair,
        asked_for_bounds,
    ),
    *(asked_for_all_weights, asked_for_a_report),
)
