"""Long fits: progress bars, log records, checkpoints, warm starts."""

import io
import logging
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale import GPXRegressor, InputError, datasets, kernels
from gpx_scale.errors import GPXWarning
from gpx_scale.runtime.journal import Journal, ProgressBar

data = datasets.synth10(700)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def small_subset(monkeypatch):
    monkeypatch.setattr("gpx_scale.solvers.cg.planning.SUBSET_ROWS", 200)


def test_silent_by_default_and_logged(small_subset, capsys, caplog):
    with caplog.at_level(logging.DEBUG, logger="gpx_scale"):
        GPXRegressor(
            solver="cg", random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X, data.y)
    assert capsys.readouterr() == ("", "")
    messages = [record.message for record in caplog.records]
    assert any("solver 'cg'" in m for m in messages)
    assert any("all rows evaluation 1" in m for m in messages)
    assert any("iteration" in m and "nats" in m for m in messages)


def test_a_terminal_gets_a_bar_that_is_cleared(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = iter(np.arange(0.0, 1000.0, 0.5))
    monkeypatch.setattr("gpx_scale.runtime.journal.time.perf_counter", lambda: next(clock))
    journal = Journal(verbose=1)
    with journal.phase("hyperparameters, all rows"):
        for k in range(1, 9):
            journal.iterated(k, 10.0 ** (4 - k), 1e-4)
    text = sys.stderr.getvalue()
    assert "hyperparameters, all rows |" in text
    assert "iteration 8, 1.0e-04 nats" in text
    assert "s left" in text
    assert "#" * ProgressBar.WIDTH in text
    assert (
        text.rstrip()
        .split("\n")[-1]
        .split("\r\x1b[K")[-1]
        .startswith("[gpx_scale] hyperparameters, all rows: ")
    )


def test_long_explanations_have_a_bar_that_is_cleared(monkeypatch):
    model = GPXRegressor(solver="neighbors", optimizer=None, random_state=0, n_neighbors=20)
    model.fit(data.X, data.y).set_params(verbose=1)
    monkeypatch.setattr("gpx_scale.solvers.neighbors.posterior.query_bytes", lambda *given: 2**26)
    asked = [
        ("explaining", lambda: model.explain(data.X)),
        ("explaining", lambda: model.training_explanation(cov=True)),
        ("predicting", lambda: model.predict(data.X, return_std=True)),
        ("leaving rows out", model.leave_one_out),
    ]
    for name, ask in asked:
        monkeypatch.setattr(sys, "stderr", Terminal())
        clock = iter(np.arange(0.0, 1e6, 0.5))
        with monkeypatch.context() as patched:
            patched.setattr("gpx_scale.runtime.journal.time.perf_counter", clock.__next__)
            ask()
        text = sys.stderr.getvalue()
        assert f"[gpx_scale] {name} |" in text
        assert " rows, " in text
        assert text.endswith("\r\x1b[K")
        assert "\n" not in text  # Work that is often short leaves no line.


def test_elsewhere_lines_and_few_of_them(small_subset, capsys):
    GPXRegressor(
        solver="cg", random_state=0, verbose=1, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    lines = capsys.readouterr().err.splitlines()
    assert not any("\r" in line or "\x1b" in line for line in lines)
    assert any("posterior" in line for line in lines)


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_an_interrupted_fit_goes_on_from_its_checkpoint(solver, small_subset, tmp_path):
    path, counts = tmp_path / "state.npz", []

    def interrupt(state):
        counts.append(state["phase"])
        if counts.count("all rows") == 1:
            raise KeyboardInterrupt

    arguments = {"solver": solver, "random_state": 0, "checkpoint": path}
    with pytest.raises(KeyboardInterrupt):
        GPXRegressor(
            callbacks=interrupt, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X, data.y)
    assert path.exists()
    resumed = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y
    )
    assert set(resumed.fit_report_.evaluations) == {"all rows"}  # The subset is not searched again.
    whole = GPXRegressor(
        solver=solver, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    exact = GPXRegressor(solver="exact", optimizer=None).fit(data.X, data.y)
    assert exact.log_marginal_likelihood(resumed.theta_) == pytest.approx(
        exact.log_marginal_likelihood(whole.theta_), abs=1.0
    )
    again = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y
    )  # There is nothing left to search.
    assert not again.fit_report_.evaluations
    assert_allclose(again.theta_, resumed.theta_)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_a_search_on_some_rows_goes_on_from_its_checkpoint(solver, small_subset, tmp_path):
    path, counts = tmp_path / "state.npz", []

    def interrupt(state):
        counts.append(state["phase"])
        if counts.count("300 rows") == 2:
            raise KeyboardInterrupt

    arguments = {"solver": solver, "random_state": 0, "checkpoint": path, "search_rows": 300}
    with pytest.raises(KeyboardInterrupt):
        GPXRegressor(
            callbacks=interrupt, **arguments, kernel="rbf", fit_intercept=False, weights="shared"
        ).fit(data.X, data.y)
    assert path.exists()
    resumed = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y
    )
    assert set(resumed.fit_report_.evaluations) == {"300 rows"}
    assert resumed.fit_report_.search_rows_used == 300
    again = GPXRegressor(**arguments, kernel="rbf", fit_intercept=False, weights="shared").fit(
        data.X, data.y
    )
    assert not again.fit_report_.evaluations


def test_a_warm_start_on_many_rows_needs_no_subset(monkeypatch):
    monkeypatch.setattr("gpx_scale.optimize.search.EXACT_GRADIENT_ROWS", 300)
    model = GPXRegressor(
        random_state=0, warm_start=True, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X, data.y)
    assert len(model.fit_report_.evaluations) == 3
    model.fit(data.X, data.y)
    assert set(model.fit_report_.evaluations) == {"all rows"}
    assert model.fit_report_.evaluations["all rows"] <= 3


def test_a_callback_stops_a_search_with_estimated_gradients(monkeypatch):
    monkeypatch.setattr("gpx_scale.optimize.search.EXACT_GRADIENT_ROWS", 300)
    model = GPXRegressor(
        random_state=0,
        callbacks=lambda state: state["phase"] == "all rows",
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(data.X, data.y)
    assert model.fit_report_.message == "stopped by a callback"
    assert model.fit_report_.evaluations["all rows"] == 1
    assert model.fit_report_.search_rows_used == 700


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    GPXRegressor(
        checkpoint=path, max_iter=2, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X[:60], data.y[:60])
    for X, y, arguments in (
        (data.X[:61], data.y[:61], {}),
        (data.X[:60], data.y[60:120], {}),
        (data.X[:60], data.y[:60], {"kernel": "matern32"}),
        (data.X[:60], data.y[:60], {"ard": True}),
    ):
        with pytest.raises(InputError, match="other data"):
            GPXRegressor(
                checkpoint=path,
                **{"kernel": "rbf", "fit_intercept": False, "weights": "shared", **arguments},
            ).fit(X, y)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="cannot be read"):
        GPXRegressor(checkpoint=path, kernel="rbf", fit_intercept=False, weights="shared").fit(
            data.X[:60], data.y[:60]
        )
    with pytest.raises(InputError, match="no folder"):
        GPXRegressor(
            checkpoint=tmp_path / "nowhere" / "state.npz",
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(data.X[:60], data.y[:60])


@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_a_warm_start_needs_no_subset(solver, small_subset):
    model = GPXRegressor(
        solver=solver,
        random_state=0,
        warm_start=True,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(data.X, data.y)
    first = model.fit_report_.evaluations
    model.fit(data.X, data.y)
    assert set(model.fit_report_.evaluations) == {"all rows"}
    assert sum(model.fit_report_.evaluations.values()) < sum(first.values())


def test_a_callback_stops_the_search_in_any_phase(small_subset):
    for stop in ("200 rows", "all rows"):
        model = GPXRegressor(
            solver="cg",
            random_state=0,
            callbacks=lambda state, stop=stop: state["phase"] == stop,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        model.fit(data.X, data.y)
        assert model.fit_report_.message == "stopped by a callback"
        assert model.fit_report_.evaluations[stop] == 1


def test_a_search_cut_by_max_iter_is_not_finished(tmp_path):
    path = tmp_path / "state.npz"
    short = GPXRegressor(
        checkpoint=path,
        max_iter=1,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(data.X[:200], data.y[:200])
    assert not short.fit_report_.converged
    longer = GPXRegressor(
        checkpoint=path, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(data.X[:200], data.y[:200])
    assert longer.fit_report_.evaluations
    assert longer.log_marginal_likelihood() > short.log_marginal_likelihood()


def test_a_checkpoint_knows_combined_kernels_and_their_x(tmp_path):
    path, X, y = tmp_path / "state.npz", data.X[:60], data.y[:60]
    GPXRegressor(
        kernels.RBF() + kernels.Matern32(),
        checkpoint=path,
        max_iter=2,
        fit_intercept=False,
        weights="shared",
    ).fit(X, y)
    for kernel, x in (
        (kernels.Matern52() + kernels.RBF(), X),
        (kernels.RBF() + kernels.Matern32(), data.X[60:120]),
    ):
        with pytest.raises(InputError, match="other data"):
            GPXRegressor(kernel, checkpoint=path, fit_intercept=False, weights="shared").fit(
                x, y, X
            )


def test_a_checkpoint_that_cannot_be_written_is_only_warned_of(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(GPXWarning, match="no space left"):
        model = GPXRegressor(
            checkpoint=tmp_path / "state.npz",
            max_iter=3,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(data.X[:60], data.y[:60])
    assert model.predict(data.X[:2]).shape == (2,)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("solver", ["basis", "grid", "inducing"])
@pytest.mark.parametrize("how", ["Ctrl-C", "callback"])
def test_a_search_for_length_scales_that_is_stopped_is_the_last_one(solver, how, monkeypatch):
    x = np.ascontiguousarray(data.X[:, :1])
    asked, given = solver, (x, data.y)
    if solver == "inducing":
        # A stream takes it if its length scales turn out to be too short for a basis.
        monkeypatch.setattr("gpx_scale.solvers.basis.laplacian_basis.AUTO_MAX_FUNCTIONS", 5)
        asked, given = "auto", (lambda: iter([(x, data.y)]),)
    told = []

    def third(state):
        told.append(state["phase"])
        if len(told) == 3 and how == "Ctrl-C":
            raise KeyboardInterrupt
        return len(told) == 3

    model = GPXRegressor(
        solver=asked,
        callbacks=third,
        random_state=0,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    if how == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt, match="best hyperparameters"):
            model.fit(*given)
    else:
        model.fit(*given)
    assert len(told) == 3
    assert model.solver_ == solver
    assert not model.fit_report_.converged
    assert np.isfinite(model.predict(x[:3])).all()


def test_a_fit_that_was_stopped_on_a_subset_reports_no_error_of_that_subset(small_subset):
    model = GPXRegressor(
        solver="cg",
        random_state=0,
        callbacks=lambda state: state["phase"] == "200 rows",
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(data.X, data.y)
    assert np.isnan(model.fit_report_.leave_one_out_rmse)
    assert "leave-one-out" not in str(model.fit_report_)


def test_the_report_after_more_rows_is_of_the_model_as_it_is_then(small_subset):
    model = GPXRegressor(
        solver="cg",
        random_state=0,
        n_inducing=50,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(data.X[:500], data.y[:500])
    before = model.fit_report_
    assert before.evidence_deviation > 0
    model.set_params(solver="auto").partial_fit(data.X[500:], data.y[500:])
    after = model.fit_report_
    assert (after.solver, after.n_samples, after.dtype) == ("inducing", 700, "float64")
    assert after.evidence_deviation == 0.0
    assert after.evidence == model.log_marginal_likelihood()
    assert any("50 inducing points" in reason for reason in after.reasons)
    assert not any("preconditioner" in reason for reason in after.reasons)
    assert after.memory_planned != before.memory_planned
    assert after.evaluations == before.evaluations
    assert after.message == before.message + "; rows were added since, at these hyperparameters"
    assert model.partial_fit(data.X[:9], data.y[:9]).fit_report_.message == after.message
