"""Complete fits beside those of the commit before the tile engine: `make bench CASE=search`.

That commit is checked out into a git worktree, and each fit runs in a process of its own with
either package, one after the other. A fit of a few rows compiles everything before the clock
runs. `python bench/search.py NAME ...` runs some cases and leaves the results of the others. All
fits have the paper's kernel. Fits of all solvers show how well their time was predicted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fits
from measure import Row, report, seconds, steady

# The last commit whose kernels ran from a pool of Python threads.
BEFORE = "dea8361"
ROOT = Path(__file__).resolve().parent.parent
QUERIES = 1000
# Seconds that one fit may take.
PATIENCE = 1800
# The evaluations of GPyTorch's SGPR, and its points.
PEER_EVALUATIONS, PEER_POINTS = 72, 500


def _synth10(n, queries=QUERIES):
    """Return X, y and Z of n rows, and the same of some queries."""
    from gpx_scale import datasets

    data = datasets.synth10(n + queries)
    return (data.X[:n], data.y[:n], None), (data.X[n:], data.y[n:], None)


def _kin40k(n, queries=QUERIES):
    from gpx_scale import datasets

    data = datasets.load_kin40k()
    order = np.random.RandomState(0).permutation(len(data.y))[: n + queries]
    X, y = data.X[order], data.y[order]
    y = (y - y.mean()) / y.std()
    return (X[:n], y[:n], None), (X[n:], y[n:], None)


def _kin40k_1500(n):
    return _kin40k(n, 1500)


def _synth2(n):
    from gpx_scale import datasets

    data, more = datasets.synth2(n), datasets.synth2(QUERIES, random_state=1)
    return (data.X, data.y, data.Z), (more.X, more.y, more.Z)


def _wiggles(n):
    """A fast oscillation in one dimension, which takes too many functions for a basis."""
    random = np.random.RandomState(0)
    x = random.uniform(0.0, 200.0, (n + QUERIES, 1))
    y = np.sin(6.0 * x[:, 0]) + np.sin(2.1 * x[:, 0]) + 0.3 * random.standard_normal(len(x))
    Z = np.ones_like(x)
    return (x[:n], y[:n], Z[:n]), (x[n:], y[n:], Z[n:])


def _vader(n):
    from gpx_scale import datasets
    from text import split, vectors, words

    train, y, test, yq = split(datasets.load_vader(), n)
    X, Xq = vectors(train, test)
    Z, Zq = words(train, test, max_df=0.05)
    return (X, y, Z), (Xq, yq, Zq)


@dataclass(frozen=True)
class Case:
    """A fit: its data, arguments of the estimator, and what is timed.

    `more` are arguments that the earlier commit does not have. `timed` is "fit", "fit and
    predict", "predict", "fit and explain", or "product", that of C with 16 vectors. The gain over
    the earlier commit is `at_least` this; None means that only the new package is run. The log
    marginal likelihood may be lower by `nats_per_row` at most; None stands for no limit.
    """

    load: Callable
    n: float
    arguments: dict = field(default_factory=dict)
    more: dict = field(default_factory=dict)
    timed: str = "fit"
    at_least: float | None = None
    nats_per_row: float | None = None


CASES = {
    "synth10, n = 8,000": Case(_synth10, 8_000, at_least=2.5, nats_per_row=0.002),
    'synth10, n = 8,000, search_rows="all"': Case(
        _synth10, 8_000, more={"search_rows": "all"}, at_least=1.3, nats_per_row=0.5 / 8_000
    ),
    "kin40k, n = 12,000, with predictions": Case(
        _kin40k, 12_000, timed="fit and predict", at_least=3.0
    ),
    "synth10, n = 20,000, with predictions": Case(
        _synth10, 20_000, timed="fit and predict", at_least=1.5
    ),
    "synth10, n = 30,000": Case(_synth10, 30_000),
    "synth10, n = 50,000, 4 GiB": Case(_synth10, 50_000, {"memory_limit": "4GiB"}, at_least=2.0),
    "synth10, n = 50,000, 16 GiB": Case(_synth10, 50_000, {"memory_limit": "16GiB"}, at_least=2.0),
    "kin40k, n = 13,500, cg: 1,500 predictions": Case(
        _kin40k_1500, 13_500, {"solver": "cg"}, timed="predict", at_least=4.0
    ),
    "vader, a fifth held out": Case(
        _vader, 0.2, {"memory_limit": "4GB"}, timed="fit and explain", at_least=1.2
    ),
    "vader, a fifth held out: product of 16 vectors with the pairs": Case(
        _vader, 0.2, timed="product", at_least=1.0
    ),
    "synth10, n = 20,000, inducing, 500 points": Case(
        _synth10, 20_000, {"solver": "inducing", "n_inducing": 500}
    ),
    "synth10, n = 100,000, neighbors": Case(_synth10, 100_000, {"solver": "neighbors"}),
    "synth2, n = 100,000, basis": Case(_synth2, 100_000, {"solver": "basis"}),
    "oscillations, n = 30,000, grid": Case(_wiggles, 30_000, {"solver": "grid"}),
}
# The case that is compared with one factorisation in float32, and the largest ratio.
FACTORISED, FACTORISATIONS = "synth10, n = 30,000", 4.0
# The case that is compared with SGPR, and the largest ratio of the errors.
BESIDE_SGPR, ERROR_RATIO = "synth10, n = 20,000, with predictions", 0.65


def compile_all(X, y, Z, Xq, Zq, arguments):
    """Fit a few rows by every way that the case may take, before the clock runs."""
    from gpx_scale import GPXRegressor

    def some(A, rows):
        return None if A is None else A[:rows]

    ways = [{}, {"solver": "exact", "dtype": "float32"}, {"solver": "cg", "dtype": "float32"}]
    for way in (*ways, arguments):
        for rows in (600, 2100):
            model = GPXRegressor(
                kernel="rbf",
                max_iter=1,
                random_state=0,
                **way,
                fit_intercept=False,
                weights="shared",
            )
            model.fit(X[:rows], y[:rows], some(Z, rows))
            model.predict(Xq[:5], some(Zq, 5), return_std=True)
            model.explain(Xq[:5], some(Zq, 5))


def one(name, is_new):
    """Return seconds, error, log-likelihood and evidence of a case, in this process."""
    from gpx_scale import GPXRegressor

    case = CASES[name]
    (X, y, Z), (Xq, yq, Zq) = case.load(case.n)
    compile_all(X, y, Z, Xq, Zq, case.arguments)
    arguments = case.arguments | (case.more if is_new else {})
    model = GPXRegressor(
        kernel="rbf", random_state=0, **arguments, fit_intercept=False, weights="shared"
    )
    fitted = seconds(lambda: model.fit(X, y, Z))
    answers = []
    predicted = seconds(lambda: answers.append(model.predict(Xq, Zq, return_std=True)))
    explained = 0.0
    if case.timed == "fit and explain":
        explained = seconds(lambda: model.explain(Xq, Zq))
    mean, std = answers[0]
    density = -0.5 * np.log(2 * np.pi * std**2) - (yq - mean) ** 2 / (2 * std**2)
    times = {
        "fit": fitted,
        "fit and predict": fitted + predicted,
        "predict": predicted,
        "fit and explain": fitted + explained,
    }
    return {
        "seconds": times[case.timed],
        "planned": model._plan.seconds if is_new else None,
        "fitted": fitted,
        "solver": model.solver_,
        "dtype": model.fit_report_.dtype,
        "rmse": float(np.sqrt(np.mean((mean - yq) ** 2))),
        "log_likelihood": float(density.mean()),
        "evidence": float(model.log_marginal_likelihood_value_),
        "rows": len(y),
    }


def product(name):
    """Return the median seconds of a product of 16 vectors with C on pairs, in this process."""
    from gpx_scale import kernels
    from gpx_scale.data.features import SparseFeatures
    from gpx_scale.data.inputs import TrainingRows
    from gpx_scale.linalg.sparse_covariance import PairCovariance, Pairs
    from gpx_scale.model.hyperparameters import Hyperparameters
    from gpx_scale.runtime.session import Session

    (X, y, Z), _ = CASES[name].load(CASES[name].n)
    params = Hyperparameters.of(kernels.RBF(1.0, 20.0), 0.1, 0.5)
    rows = TrainingRows(X, SparseFeatures.of(Z), y)
    V = np.random.RandomState(0).randn(len(y), 16)
    with Session.open() as session:
        pairs = Pairs.of(rows, params.kernel, session)
        C = PairCovariance(rows, params, session, np.float32, pairs)
        _, taken = steady(lambda: C.matmul(V), rounds=25)
    return {"seconds": taken}


def factorisation(name):
    """Return the seconds of one float32 factorisation of as many rows, in this process."""
    from machine import usable_threads
    from test_tiles import Problem

    for n in (1200, CASES[name].n):  # The first one compiles.
        problem = Problem(n, "float32", max(usable_threads()))
        problem.fill()
        taken = seconds(problem.tiles.factor)
    return {"seconds": taken}


def sgpr(name):
    """Return the seconds and the error of GPyTorch's SGPR, in this process."""
    from large import sgpr_fit

    (X, y, _), (Xq, yq, _) = CASES[name].load(CASES[name].n)
    mean, size = y.mean(), y.std()
    rows = X, (y - mean) / size, Xq, (yq - mean) / size
    found = sgpr_fit(*rows, inducing=PEER_POINTS, evaluations=PEER_EVALUATIONS)
    return {"seconds": found["seconds"], "rmse": float(size * found["mse"] ** 0.5)}


@contextmanager
def worktree():
    """Check the earlier commit out, and yield the folder of its package."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "before")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(path), BEFORE], check=True)
        try:
            yield path / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def alone(source, call):
    """Return what a call of this module finds in a process that uses the package in a folder."""
    caches = f"gpx_scale_{'new' if source == ROOT / 'src' else BEFORE}"
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    environment = os.environ | {
        "PYTHONPATH": path,
        "NUMBA_CACHE_DIR": str(Path(tempfile.gettempdir(), caches)),
    }
    code = f"import json, search; print(json.dumps(search.{call}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    print(time.strftime("%H:%M:%S"), call, found, flush=True)
    return found


def beside_before(name, before, now):
    """Yield the rows of the table that compare a case with the earlier commit."""
    least, gain = CASES[name].at_least, before["seconds"] / now["seconds"]
    times = f"{gain:.2f} times faster ({before['seconds']:.0f} s by {before['solver']}, "
    times += f"{now['seconds']:.0f} s by {now['solver']} in {now['dtype']})"
    yield Row(name, times, f"at least {least:g}", gain >= least)
    error = now["rmse"] / before["rmse"]
    yield Row(f"{name}: RMSE, new / before", f"{error:.3f}", "at most 1.01", error <= 1.01)
    gained = now["log_likelihood"] - before["log_likelihood"]
    per_row = f"{gained:+.4f} nats per row"
    yield Row(f"{name}: log-likelihood of queries", per_row, "at least -0.01", gained >= -0.01)
    more = (now["evidence"] - before["evidence"]) / now["rows"]
    lost = CASES[name].nats_per_row
    limit = () if lost is None else (f"at least {-lost:.2g}", bool(more >= -lost))
    yield Row(f"{name}: evidence", f"{more:+.5f} nats per row", *limit)


def rows_of(name, before):
    """Yield the rows of the table for one case, which is run."""
    new, case = ROOT / "src", CASES[name]
    if case.timed == "product":
        then, now = (alone(source, f"product({name!r})")["seconds"] for source in (before, new))
        words = f"{now / then:.2f} of the time before ({1e3 * then:.1f} ms)"
        yield Row(name, words, "at most 1", now <= then, now / then)
        return
    earlier = None if case.at_least is None else alone(before, f"one({name!r}, False)")
    now = alone(new, f"one({name!r}, True)")
    fits.keep(name, now)
    if earlier is not None:
        yield from beside_before(name, earlier, now)
    if name == FACTORISED:
        times = now["fitted"] / alone(new, f"factorisation({name!r})")["seconds"]
        words = f"{times:.2f} factorisations in float32 ({now['fitted']:.0f} s)"
        yield Row(name, words, f"at most {FACTORISATIONS:g}", times <= FACTORISATIONS, times)
    if name == BESIDE_SGPR:
        peer = alone(new, f"sgpr({name!r})")
        share, error = now["seconds"] / peer["seconds"], now["rmse"] / peer["rmse"]
        words = f"{share:.2f} of its time ({peer['seconds']:.0f} s)"
        what = (
            f"{name}: beside GPyTorch's SGPR, {PEER_POINTS} points, {PEER_EVALUATIONS} evaluations"
        )
        yield Row(what, words, "at most 1", share <= 1.0, share)
        words = f"{error:.2f} of its RMSE ({peer['rmse']:.3f})"
        yield Row(f"{what}: error", words, f"at most {ERROR_RATIO:g}", error <= ERROR_RATIO)
    ratio = now["planned"] / now["fitted"]
    words = f"{ratio:.2f} ({now['planned']:.0f} s / {now['fitted']:.0f} s by {now['solver']})"
    yield Row(f"{name}: predicted / measured seconds", words, "0.5 to 2", 0.5 <= ratio <= 2.0)


def main(names):
    unknown = [name for name in names if name not in CASES]
    if unknown:
        sys.exit(f"There is no case {unknown[0]!r}. There are: {', '.join(CASES)}.")
    with worktree() as before:
        for name in names or CASES:
            report(list(rows_of(name, before)), "search")
    fits.draw()


if __name__ == "__main__":
    main(sys.argv[1:])
