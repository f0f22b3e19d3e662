"""The benchmark of the default: its splits, scores, results and verdicts."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Import bench/default.py."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield __import__("default")
    for name in ("default", "measure"):
        sys.modules.pop(name, None)


@pytest.fixture
def results(bench, tmp_path):
    """Return results of Boston, on whose splits the default has errors of 0.3, 0.4 and 0.5.

    It has an intercept on the first split only. The best candidate has 0.9 of these errors.
    """
    found = bench.Results(tmp_path / "default.json")
    sizes = {"n": 405, "p": 13, "log_likelihood": -0.5, "coverage": 0.95, "explain": 0.2}
    for number, error in enumerate((0.3, 0.4, 0.5)):
        intercept = number == 0
        choice = {"kernel": "rq", "ard": True, "fit_intercept": intercept}
        rows = {"default": (error, 4.0), "rbf": (1.2 * error, 1.0), "paper": (error / 1.02, 1.0)}
        rows |= {"LightGBM": (1.1 * error, 0.5)}
        for one in bench.candidates(intercept):
            is_best = (one.kernel, one.ard) == ("matern32", True)
            rows[str(one)] = 0.9 * error if is_best else error, 1.0
        # Candidates with the other intercept do not count.
        rows[str(bench.Candidate("rbf", False, not intercept))] = 0.1 * error, 1.0
        for method, (rmse, fit) in rows.items():
            more = choice if method == "default" else {}
            found.add(
                bench.key_of("boston", number, method), {"rmse": rmse, "fit": fit, **sizes, **more}
            )
    return found


def test_splits_have_rows_of_their_own(bench):
    split, other = bench.split_of("diabetes", 0), bench.split_of("diabetes", 1)
    assert split.X.shape == (354, 10)
    assert split.X_test.shape == (88, 10)
    assert not np.array_equal(split.y, other.y)
    rows = np.column_stack([np.vstack([split.X, split.X_test]), np.r_[split.y, split.y_test]])
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize(("name", "columns"), [("king_county", 18), ("bike", 12)])
def test_tables_have_logarithms_and_no_leaks(bench, name, columns, shared_data):
    split = bench.split_of(name, 0)
    assert split.X.shape == (3000, columns)
    assert len(split.y_test) == 3000
    assert split.y.max() < 20
    # A column that gives the target away would be correlated with it nearly perfectly.
    correlations = [abs(np.corrcoef(column, split.y)[0, 1]) for column in split.X.T]
    assert max(correlations) < 0.9


def test_scores_are_in_units_of_the_training_rows(bench):
    y, y_test = np.array([0.0, 4.0]), np.array([1.0, 2.0, 9.0])
    split = bench.Split(np.zeros((2, 1)), y, np.zeros((3, 1)), y_test)
    mean, std = np.array([1.0, 3.0, 3.0]), np.array([1.0, 1.0, 2.0])
    found = bench.scores(split, mean, std)
    assert found["rmse"] == pytest.approx(np.sqrt((0.0 + 0.25 + 9.0) / 3))
    density = norm.logpdf(y_test / 2, mean / 2, std / 2).mean()
    assert found["log_likelihood"] == pytest.approx(density)
    assert found["coverage"] == pytest.approx(2 / 3)
    assert set(bench.scores(split, mean, None)) == {"rmse"}


def test_results_are_kept_and_forgotten_by_name_and_method(bench, results):
    again = bench.Results(results.path)
    assert again.found == results.found
    again.add("weights", {"coverage": 0.9})
    again.forget(["boston"], ["candidates", "paper"])
    kinds = {key.split(", ", 2)[2] for key in again.found if key != "weights"}
    assert kinds == {"default", "rbf", "LightGBM"}
    assert "weights" in again.found
    again.forget(["weights"], [])
    assert "weights" not in again.found


def test_the_best_candidate_has_the_intercept_of_the_default(bench, results):
    best, error = results.best_of_eight("boston")
    assert (best.kernel, best.ard) == ("matern32", True)
    assert error == pytest.approx(0.9 * 0.4)
    del results.found[bench.key_of("boston", 2, "candidate matern32, ard")]
    assert results.best_of_eight("boston") is None


def test_candidates_that_are_far_behind_are_measured_once(bench, results):
    """On the first split, all but the best candidate are 1 / 0.9 behind, which is far."""
    assert [one.title for one in results.promising("boston")] == ["matern32, ARD"]
    *_, later = bench.groups("boston", 1, ["candidates"], results)
    assert later == ["candidate matern32, ard"]
    *_, first = bench.groups("boston", 0, ["candidates"], results)
    assert len(first) == 8
    for number in (1, 2):
        del results.found[bench.key_of("boston", number, "candidate rq")]
    assert results.best_of_eight("boston")[1] == pytest.approx(0.9 * 0.4)
    assert "(0.300)" in bench.markdown(results)


def test_verdicts_follow_from_the_results(bench, results):
    rows = {row.what: row for row in bench.targets(results)}

    def row(start):
        (found,) = [row for what, row in rows.items() if what.startswith(start)]
        return found

    best = row("RMSE of the default / best of eight candidates, 1 tables: largest")
    assert (best.measured, best.met) == ("1.111 (boston)", False)
    assert not row("RMSE of the default / paper's").met
    peer = row("RMSE of the default / LightGBM, 1 tables: no larger")
    assert (peer.measured, peer.met) == ("on 1", True)
    assert row("95% intervals of the default").met
    seconds = row("seconds of the default")
    assert (seconds.measured, seconds.met) == ("4.0 times, +3.0 s (boston)", True)


def test_tables_show_every_measured_table(bench, results):
    text = bench.markdown(results)
    assert text.count("| boston |") == 4
    assert "| rq, ARD, intercept (1); rq, ARD (2) |" in text
    assert "0.360 (matern32, ARD)" in text


def test_draws_of_the_model_have_its_covariance(bench):
    """The mean of squared residuals of y = w . x is sigma_y^2, up to its sampling error."""
    X, y, weights = bench.drawn(0, 0.9)
    assert X.shape == weights.shape == (200, 4)
    noise = y - (weights * X).sum(axis=1)
    assert noise.std() == pytest.approx(0.1, rel=4 / np.sqrt(400))
    assert np.corrcoef(X.T)[0, 1] > 0.8
    again = bench.drawn(0, 0.9)
    assert np.array_equal(again[2], weights)
    drawn = np.concatenate([bench.drawn(number, 0.0)[2].ravel() for number in range(20)])
    # theta1 + sigma_w^2 is the variance. Weights of a draw are correlated, so the bound is loose.
    assert drawn.var() == pytest.approx(1.01, rel=0.3)
