"""The exact solver beside numpy in the same run, as ratios with their targets: `make bench`.

A row whose case was not run stays as it is in results/engine.json. bench/test_tiles.py compares
its loops over tiles with LAPACK and BLAS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numba
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from gpx_scale import GPXRegressor, datasets, kernels
from gpx_scale.compiled import FASTMATH
from gpx_scale.compiled import dense as dense_loops
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.linalg.covariance import TiledCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import effective_jobs
from gpx_scale.runtime.session import Session
from measure import in_turn, report, seconds, steady

ROWS: list[tuple] = []
N, P = 4000, 10
THETA2 = 20.0


@pytest.fixture(scope="module", autouse=True)
def table():
    """Write the rows of all cases when the last of them has run."""
    yield
    report(ROWS, "engine")


@pytest.fixture(scope="module")
def problem():
    """Return training rows and hyperparameters that all cases share."""
    random = np.random.RandomState(0)
    X = random.randn(N, P)
    params = Hyperparameters.of(kernels.RBF(1.0, THETA2), 0.1, 0.5)
    return TrainingRows(X, DenseFeatures(X), random.randn(N)), params


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_building_the_covariance(benchmark, problem, dtype):
    data, params = problem
    X = data.x
    jobs = effective_jobs(None)
    with Session.open(None) as session:
        covariance = TiledCovariance(data, params, session)
        tiles = covariance.empty_tiles(dtype)

        def ours():
            covariance.fill(tiles)

        # numpy's products have as many threads as they would have outside of the session.
        with_threads = _numpy_build(X, jobs)
        _, _, ratio = in_turn(ours, with_threads, rounds=9)
        benchmark.pedantic(ours, rounds=5)
    what = f"building C (lower triangle, {np.dtype(dtype).name}), n = {N}"
    ROWS.append(
        (what, f"{1 / ratio:.1f} times faster than cdist + np.exp", "at least 4", 1 / ratio >= 4)
    )


def _numpy_build(X, jobs):
    """Return a function that forms C with numpy and scipy."""
    from threadpoolctl import threadpool_limits

    def build():
        with threadpool_limits(jobs, user_api="blas"):
            np.exp(-cdist(X, X, "sqeuclidean") / THETA2) * (X @ X.T)

    return build


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exponential(benchmark, dtype):
    E, out = -np.random.RandomState(0).rand(256, 512).astype(dtype) * 30, np.ones((256, 512), dtype)
    scratch = np.empty_like(E)

    def ours():
        for _ in range(20):
            dense_loops.times_profile(dense_loops.RBF, dtype(1), dtype(1), E, out)

    def theirs():
        for _ in range(20):
            np.exp(E, out=scratch)
            np.multiply(scratch, out, out=scratch)

    # A function without a cache is compiled as on a new install.
    fresh = numba.njit(fastmath=FASTMATH, nogil=True)(dense_loops.times_profile.py_func)
    compiling = seconds(lambda: fresh(dense_loops.RBF, dtype(1), dtype(1), E, out))
    _, steady_seconds = steady(ours)
    _, _, ratio = in_turn(ours, theirs, rounds=15)
    benchmark.pedantic(ours, rounds=5)
    nanoseconds = steady_seconds / (20 * E.size) * 1e9
    ROWS.append(
        (
            f"theta1 exp(.) <z,z'>, one core, {np.dtype(dtype).name}",
            f"{nanoseconds:.2f} ns an entry, {1 / ratio:.1f} times numpy's speed",
            "",
            None,
        )
    )
    ROWS.append(
        (f"compilation of that kernel, {np.dtype(dtype).name}", f"{compiling:.2f} s", "", None)
    )


def test_digits_fit_and_explain(benchmark):
    data = datasets.load_digits()
    X, y, Xq = data.X[:1437], data.y[:1437], data.X[1437:]
    models = []

    def job():
        models.append(
            GPXRegressor(random_state=0, kernel="rbf", fit_intercept=False, weights="shared").fit(
                X, y
            )
        )
        models[-1].explain(Xq)

    first, after = steady(job, rounds=3)
    benchmark.pedantic(job, rounds=1)
    where = models[-1].fit_report_
    ROWS.append(
        (
            "Digits, fit + 360 explanations with std",
            f"{after:.2f} s steady, {first:.2f} s the first time",
            "",
            None,
        )
    )
    ROWS.append(
        (
            "Digits, evaluations of the evidence",
            ", ".join(f"{v} on {k}" for k, v in where.evaluations.items()),
            "",
            None,
        )
    )


def test_certified_queries(benchmark):
    data = datasets.synth10(6000)
    X, y, Xq = data.X[:5000], data.y[:5000], data.X[5000:]
    model = GPXRegressor(
        solver="exact", optimizer=None, theta1=0.23, theta2=23.7, sigma_w=0.003, sigma_y=0.062
    ).fit(X, y)
    shown = {}

    def exactly():
        shown["exact"] = model.explain(Xq).weights_std

    def certified():
        shown["certified"] = model.explain(Xq, std="certified").weights_std

    fast, slow, ratio = in_turn(certified, exactly, rounds=3)
    benchmark.pedantic(certified, rounds=1)
    excess = shown["certified"] / shown["exact"] - 1
    met = bool(np.median(excess) <= 0.03 and excess.min() > -1e-9)
    what = "1,000 queries' weight std, n = 5,000, d = 10"
    ROWS.append(
        (
            what,
            f"exact {slow:.2f} s, certified {fast:.2f} s ({1 / ratio:.1f} times faster)",
            "",
            None,
        )
    )
    words = (
        f"median +{np.median(excess):.2%}, least {excess.min():+.1e}, largest +{excess.max():.1%}"
    )
    ROWS.append(("certified over exact", words, "median at most 3%, never < 0", met))


def test_import_and_cold_start(benchmark):
    def run(code, **environment):
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})

    _, _, ratio = in_turn(
        lambda: run("import gpx_scale"), lambda: run("import numba, sklearn.base"), rounds=5
    )
    benchmark.pedantic(lambda: run("import gpx_scale"), rounds=1)
    ROWS.append(
        (
            "import gpx_scale",
            f"{ratio:.2f} x (import numba, sklearn.base)",
            "at most 1.5",
            ratio <= 1.5,
        )
    )
    code = (
        "from gpx_scale import datasets, GPXRegressor as G; d = datasets.load_diabetes(); "
        "G().fit(d.X, d.y).explain(d.X)"
    )
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (seconds(lambda: run(code, NUMBA_CACHE_DIR=cache)) for _ in range(2))
    ROWS.append(
        (
            "first fit of a fresh install (Diabetes)",
            f"{cold:.1f} s cold, {warm:.1f} s with the JIT cache",
            "",
            None,
        )
    )
