"""Long work has a bar with its phase, the share that is done and the time that is left."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from gpx_scale import GPXRegressor
from gpx_scale.runtime.journal import Journal, ProgressBar
from problems import make_problem

SOLVERS = ("exact", "cg", "neighbors", "inducing", "basis", "grid")
DATA = make_problem(n=250, p=2, d=3, seed=0)
BAR = re.compile(r"\[gpx_scale\] (.+) \|(#*) *\| (.+), (.+ s left|time left unknown)")


@pytest.fixture
def bars(monkeypatch, capsys):
    """Draw every bar at once; return a function that reads (phase, state) of those so far."""
    began = ProgressBar.__init__

    def at_once(self):
        began(self)
        self._every = 0.0

    monkeypatch.setattr(ProgressBar, "__init__", at_once)

    def read():
        found = [BAR.match(line) for line in capsys.readouterr().err.splitlines()]
        return [(one[1], one[3]) for one in found if one]

    return read


def fitted(solver, **options):
    model = GPXRegressor(
        "rbf",
        solver=solver,
        ard=False,
        fit_intercept=False,
        n_inducing=20,
        random_state=0,
        weights="shared",
    )
    return model.set_params(**options).fit(DATA.X, DATA.y, DATA.Z)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_shows_its_fit_and_its_answers(solver, bars):
    model = fitted(solver, verbose=1, max_iter=2)
    phases = {phase for phase, _ in bars()}
    assert any(phase.startswith("hyperparameters") for phase in phases)
    assert "" not in phases
    for ask, phase in ((model.predict, "predicting"), (model.explain, "explaining")):
        ask(DATA.X, DATA.Z)
        found = bars()
        assert found[0] == (phase, "0 of 250 rows")
        assert found[-1] == (phase, "250 of 250 rows")


def test_weights_of_a_sparse_z_are_counted_by_feature(bars):
    Z = sp.csr_array(np.where(DATA.Z > 0.0, DATA.Z, 0.0))
    model = GPXRegressor("rbf", ard=False, fit_intercept=False, optimizer=None, standardize=False)
    model.fit(DATA.X, DATA.y, Z).set_params(verbose=1)
    bars()
    model.explain(DATA.X, Z)
    found = bars()
    assert found[:2] == [("explaining", "0 of 3 features"), ("explaining", "3 of 3 features")]
    assert found[-1] == ("explaining", "250 of 250 rows")


def test_without_verbose_nothing_is_shown(capsys):
    fitted("exact", optimizer=None).explain(DATA.X, DATA.Z)
    assert capsys.readouterr() == ("", "")


def test_the_models_that_are_compared_are_counted(bars):
    GPXRegressor(verbose=1, ard=False, fit_intercept=False, weights="shared", max_iter=1).fit(
        DATA.X[:60], DATA.y[:60], DATA.Z[:60]
    )
    counts = [state for phase, state in bars() if phase == "choice of the model"]
    assert counts == [f"{done} of 4 models" for done in range(4)]


def test_an_evaluation_of_many_rows_shows_its_share(bars):
    problem = make_problem(n=1100, p=2, d=2, seed=0)
    GPXRegressor(
        "rbf", ard=False, fit_intercept=False, solver="exact", optimizer=None, verbose=1
    ).fit(problem.X, problem.y, problem.Z)
    shares = [int(state.rstrip("%")) for phase, state in bars() if phase == "posterior"]
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(100, abs=12)


def test_a_search_comes_nearer_to_its_end_and_is_never_there():
    shown = []
    journal = Journal(verbose=1)
    journal._bar.show_share = lambda phase, share, state: shown.append((share, state))
    with journal.phase("hyperparameters, all rows", search=True):
        for _ in range(30):
            journal.begins(2.0)
            journal.worked(1.0)
            journal.worked(1.0)
            journal.evaluated("all rows", 0.0, {})
    shares = [share for share, _ in shown]
    assert (np.diff(shares) > 0).all()
    assert shares[-1] < 1.0
    assert shown[2][1] == "evaluation 2"


@pytest.mark.parametrize("solver", SOLVERS)
def test_means_alone_need_no_variances(solver, monkeypatch):
    model = fitted(solver, optimizer=None)
    expected, _ = model.predict(DATA.X[:9], DATA.Z[:9], return_std=True)

    def refuse(*_, **__):
        raise AssertionError("variances were computed")

    for name in ("reduction", "moments_of"):
        monkeypatch.setattr(type(model.posterior_), name, refuse)
    np.testing.assert_allclose(model.predict(DATA.X[:9], DATA.Z[:9]), expected, rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["auto", "lbfgs"])
def test_a_search_without_end_warns(optimizer):
    with pytest.warns(ConvergenceWarning, match=r"did not converge: .*Raise max_iter"):
        model = fitted("exact", max_iter=1, optimizer=optimizer)
    assert model.fit_report_.converged is False


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_a_search_that_ended_or_was_stopped_warns_of_nothing():
    assert fitted("exact").fit_report_.converged
    assert not fitted("exact", callbacks=lambda state: True).fit_report_.converged
    fitted("exact", optimizer=None)
    constant = GPXRegressor("rbf", ard=False, fit_intercept=False, weights="shared")
    constant.fit(DATA.X, np.ones(250), DATA.Z)
