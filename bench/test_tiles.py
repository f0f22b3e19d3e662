"""Loops over tiles beside LAPACK, BLAS, numpy, scipy.sparse and the copy of memory in the same
run, as ratios, some of which have targets: `make bench CASE=tiles`, and the large cases by `make
bench CASE=tiles_full`.

A row whose case was not run stays as it is in results/tiles.json. `make bench-compare` measures
the cases that are not large again, and compares their ratios with the committed ones.
"""

from __future__ import annotations

import tempfile
from functools import cache

import numpy as np
import pytest
from scipy.linalg import get_blas_funcs, get_lapack_funcs

import numpy_peers
from gpx_scale import GPXRegressor, datasets, kernels
from gpx_scale.compiled import dense as dense_loops
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.datasets.sources import DataUnavailable
from gpx_scale.linalg.covariance import StoredCovariance
from gpx_scale.linalg.kernel_tiles import KernelTiles
from gpx_scale.linalg.lower_tiles import LowerTiles, tile_size
from gpx_scale.linalg.sparse_covariance import PairCovariance, Pairs
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import Executor, slices, threads
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.exact.solver import ExactSolver
from machine import usable_threads
from measure import Row, in_turn, peak_bytes, report, seconds
from numpy_peers import STRIP_ROWS
from text import words
from tile_processes import GIVEN, alone

ROWS: list[Row] = []
P = 10
PARAMS = Hyperparameters.of(kernels.RBF(1.0, 20.0), 0.1, 0.5)
# OpenBLAS's threads spin for 0.105 s after their last work (processor time during a sleep), and
# would take a core from what is measured next.
PAUSE_SECONDS = 0.15
# Operations that have no target of their own are compared with their peers at so many rows.
N = 4000
# Columns of a product with C, and of vectors that are contracted.
COLUMNS = 16
# A product of two such matrices runs at the highest rate of gemm.
GEMM_ROWS = 4000
THREADS = pytest.mark.parametrize("jobs", usable_threads(), ids="{}t".format)
BOTH_THREADS = pytest.mark.skipif(max(usable_threads()) < 2, reason="there is only one core")
PRECISIONS = pytest.mark.parametrize("dtype", ["float64", "float32"])


@pytest.fixture(scope="module", autouse=True)
def table():
    """Write the rows of all cases when the last of them has run."""
    yield
    report(ROWS, "tiles")


def beside(what, measured, ratio, at_most):
    """Keep a row whose ratio has an upper bound."""
    ROWS.append(Row(what, measured, f"at most {at_most:g}", bool(ratio <= at_most), ratio))


def compare(benchmark, what, peer, ours, theirs, prepare=None):
    """Keep a row about a ratio that has no target; bench-compare sees whether it grows."""
    _, _, ratio = in_turn(ours, theirs, 7, prepare, PAUSE_SECONDS)
    benchmark.pedantic(ours, setup=prepare, rounds=1)
    ROWS.append(Row(what, f"{ratio:.2f} x {peer}", ratio=ratio))


def in_words(jobs):
    return f"{jobs} thread{'s' * (jobs > 1)}"


@cache
def training_rows(n):
    random = np.random.RandomState(0)
    X = random.randn(n, P)
    return TrainingRows(X, DenseFeatures(X), random.randn(n))


class Problem:
    """A covariance in packed tiles, and what fills it and is solved with it."""

    def __init__(self, n, dtype, jobs):
        self.rows = training_rows(n)
        prepared = PARAMS.weight_prior.prepare(self.rows, np.dtype(dtype).type)
        self.profile, self.Z = PARAMS.kernel.profile(prepared.points), prepared.Z.to_dense()
        self.diagonal = PARAMS.weight_prior.diagonal(prepared) + PARAMS.noise(self.rows)
        self.tiles = LowerTiles.empty(n, dtype, jobs)
        self.kernel_tiles = KernelTiles(self.profile, prepared.Z, jobs)

    def fill(self):
        self.kernel_tiles.fill(self.tiles, self.diagonal)

    def contract(self):
        self.kernel_tiles.contract_inverse(self.tiles, self.rows.y)


@THREADS
@PRECISIONS
@pytest.mark.parametrize("n", [4000, 8000])
def test_cholesky(benchmark, n, dtype, jobs):
    problem = Problem(n, dtype, jobs)
    C = np.eye(n, dtype=dtype, order="F") + np.full((), 1.0 / n, dtype)
    (potrf,) = get_lapack_funcs(("potrf",), (C,))
    work = np.empty_like(C, order="F")

    def prepare():
        problem.fill()
        np.copyto(work, C)

    def theirs():
        with threads(jobs):
            potrf(work, lower=0, overwrite_a=1, clean=0)

    ours, rounds = problem.tiles.factor, 5 if n <= 4000 else 3
    _, _, ratio = in_turn(ours, theirs, rounds, prepare, PAUSE_SECONDS)
    benchmark.pedantic(ours, setup=prepare, rounds=1)
    what = f"Cholesky, n = {n:,}, {dtype}, {in_words(jobs)}"
    beside(what, f"{ratio:.2f} x {potrf.typecode}potrf", ratio, 1.05)


@THREADS
def test_evidence_with_gradient(benchmark, jobs):
    n = 5000
    data = training_rows(n)
    rows, C = MemoryRows(data), np.eye(n, order="F") + 1.0 / n
    work = np.empty_like(C, order="F")
    potrf, potri = get_lapack_funcs(("potrf", "potri"), (C,))

    def theirs():
        with threads(jobs):
            potrf(work, lower=0, overwrite_a=1, clean=0)
            potri(work, lower=0, overwrite_c=1)

    with Executor(jobs) as executor:
        session = Session.of(executor)
        solver = ExactSolver(n, np.float64, session)

        def ours():
            # A fit has one BLAS thread outside of its loops over tiles, too.
            with threads(1):
                solver.evaluate(rows, PARAMS)

        _, _, ratio = in_turn(ours, theirs, 5, lambda: np.copyto(work, C), PAUSE_SECONDS)
        benchmark.pedantic(ours, rounds=1)
        peak = peak_bytes(lambda: ExactSolver(n, np.float64, session).evaluate(rows, PARAMS))
    what = f"evidence with gradient, n = {n:,}, {in_words(jobs)}"
    beside(what, f"{ratio:.2f} x (dpotrf + dpotri)", ratio, 1.1)
    memory = peak / (8 * n * n)
    beside(f"{what}: peak memory", f"{memory:.2f} n^2 doubles", memory, 2.2)


@THREADS
@PRECISIONS
def test_filling_the_covariance(benchmark, dtype, jobs):
    """The peer multiplies the same tiles by numpy, strip by strip, each worker on its own."""
    n = 8000
    problem = Problem(n, dtype, jobs)
    profile, Z = problem.profile, problem.Z
    lower = [
        (rows, cols)
        for rows in slices(n, STRIP_ROWS)
        for cols in slices(n, tile_size(n))
        if cols.start < rows.stop
    ]
    out = np.empty((len(lower), STRIP_ROWS, tile_size(n)), dtype)
    exponents = np.empty((jobs, STRIP_ROWS, tile_size(n)), dtype)

    def share(worker):
        for number in range(worker, len(lower), jobs):
            rows, cols = lower[number]
            m, w = rows.stop - rows.start, min(cols.stop, n) - cols.start
            E, G = exponents[worker].ravel()[: m * w].reshape(m, w), out[number].ravel()
            G = G[: m * w].reshape(m, w)
            np.matmul(profile.left[rows], profile.right[cols].T, out=E)
            np.matmul(Z[rows], Z[cols].T, out=G)
            dense_loops.times_profile(profile.family, profile.shape, profile.scale, E, G)

    with threads(1), Executor(jobs) as executor:
        _, _, ratio = in_turn(
            problem.fill, lambda: executor.map(share, range(jobs)), 15, pause=PAUSE_SECONDS
        )
        benchmark.pedantic(problem.fill, rounds=3)
    what = f"filling C, n = {n:,}, {dtype}, {in_words(jobs)}"
    beside(what, f"{ratio:.2f} x (two gemm + our exp)", ratio, 1.25)


@THREADS
@PRECISIONS
def test_solves(benchmark, dtype, jobs):
    problem, columns = Problem(N, dtype, jobs), 512
    B = np.random.RandomState(0).standard_normal((columns, N)).astype(dtype)
    ours, theirs = B.copy(), np.asfortranarray(B.T)
    C = np.asfortranarray(np.eye(N) + 1.0 / N, dtype)
    potrf, potrs = get_lapack_funcs(("potrf", "potrs"), (C,))
    L, _ = potrf(C, lower=1, overwrite_a=1)
    _factored(problem)

    def peer():
        with threads(jobs):
            potrs(L, theirs, lower=1, overwrite_b=1)

    def prepare():
        np.copyto(ours, B)
        np.copyto(theirs, B.T)

    what = f"{columns} solves, n = {N:,}, {dtype}, {in_words(jobs)}"
    compare(
        benchmark, what, f"{potrs.typecode}potrs", lambda: problem.tiles.solve(ours), peer, prepare
    )


@THREADS
@PRECISIONS
def test_inverse(benchmark, dtype, jobs):
    problem = Problem(N, dtype, jobs)
    C = np.asfortranarray(np.eye(N) + 1.0 / N, dtype)
    potrf, potri = get_lapack_funcs(("potrf", "potri"), (C,))
    L, _ = potrf(C, lower=1, overwrite_a=1)
    work = np.empty_like(L)
    _factored(problem)
    factor = problem.tiles.buffer.copy()

    def peer():
        with threads(jobs):
            potri(work, lower=1, overwrite_c=1)

    def prepare():
        np.copyto(problem.tiles.buffer, factor)
        np.copyto(work, L)

    what = f"inverse from the factor, n = {N:,}, {dtype}, {in_words(jobs)}"
    compare(benchmark, what, f"{potri.typecode}potri", problem.tiles.invert, peer, prepare)


@THREADS
def test_stored_product(benchmark, jobs):
    random = np.random.RandomState(0)
    V, A = random.randn(N, COLUMNS), np.asfortranarray(random.randn(N, N), np.float32)
    single = np.asfortranarray(V, np.float32)
    (symm,) = get_blas_funcs(("symm",), (A,))
    with Session.open(jobs) as session:
        C = StoredCovariance(training_rows(N), PARAMS, session, np.float32)

        def peer():
            with threads(jobs):
                symm(1.0, A, single, lower=1)

        what = f"product of {COLUMNS} vectors with stored tiles, n = {N:,}, {in_words(jobs)}"
        compare(benchmark, what, "ssymm", lambda: C.matmul(V), peer)


@THREADS
@pytest.mark.parametrize("work", ["product", "contraction", "tangents"])
def test_formed_tiles(benchmark, work, jobs):
    problem = Problem(N, "float64", jobs)
    V, tiles = np.random.RandomState(0).randn(N, COLUMNS), problem.kernel_tiles
    ours, use, shape, what = {
        "product": (
            lambda: tiles.matmul(V, problem.diagonal),
            numpy_peers.multiply,
            (N, COLUMNS),
            f"product of {COLUMNS} vectors with formed tiles",
        ),
        "contraction": (
            lambda: tiles.contract(V, V),
            numpy_peers.contract,
            (2,),
            f"contraction of {COLUMNS} pairs of vectors",
        ),
        "tangents": (lambda: tiles.tangents(V[:, 0]), numpy_peers.tangents, (N, 2), "tangents"),
    }[work]
    formed = numpy_peers.Formed(problem.profile, problem.Z, jobs)
    out = np.zeros((jobs, *shape))
    with threads(1), Executor(jobs) as executor:

        def peer():
            formed.over(executor, use(out, V))

        compare(benchmark, f"{what}, n = {N:,}, {in_words(jobs)}", "numpy", ours, peer)


def _gain(benchmark, what, prepare, run, n=4000):
    """Keep a row about the gain of the second thread; run(tiles) is measured with one and two."""
    one, two = (Problem(n, "float64", jobs) for jobs in (1, 2))

    def both():
        for problem in (one, two):
            prepare(problem)

    both()
    _, _, ratio = in_turn(lambda: run(two), lambda: run(one), 7, both, PAUSE_SECONDS)
    benchmark.pedantic(lambda: run(two), setup=both, rounds=1)
    gain = 1.0 / ratio
    row = f"gain of the second thread: {what}", f"{gain:.2f} times", "at least 1.8", gain >= 1.8
    ROWS.append(Row(*row, ratio))


def _factored(problem):
    problem.fill()
    problem.tiles.factor()


@BOTH_THREADS
def test_gain_in_cholesky(benchmark):
    _gain(benchmark, "Cholesky, n = 4,000", Problem.fill, lambda problem: problem.tiles.factor())


@BOTH_THREADS
def test_gain_in_filling(benchmark):
    # 4,000 rows take ten milliseconds, of which threads need a part to wake up.
    _gain(benchmark, "filling C, n = 8,000", lambda problem: None, Problem.fill, 8000)


@BOTH_THREADS
def test_gain_in_the_contraction(benchmark):
    _gain(benchmark, "contraction of C^-1, n = 4,000", Problem.fill, Problem.contract)


@BOTH_THREADS
def test_gain_in_solves(benchmark):
    B = np.random.RandomState(0).standard_normal((512, 4000))
    work = B.copy()
    factored = set()

    def prepare(problem):
        # The factor is only read by solves, so it is made once.
        if id(problem) not in factored:
            _factored(problem)
            factored.add(id(problem))
        np.copyto(work, B)

    _gain(benchmark, "512 solves, n = 4,000", prepare, lambda problem: problem.tiles.solve(work))


@THREADS
def test_pairs_of_a_sparse_z(benchmark, jobs):
    try:
        data = datasets.load_vader()
    except DataUnavailable as absent:
        pytest.skip(str(absent))
    Z, _ = words(data.texts, data.texts[:1], max_df=0.05)
    n = Z.shape[0]
    rows = TrainingRows(np.random.RandomState(0).randn(n, 8), SparseFeatures.of(Z), data.y)
    V = np.random.RandomState(1).randn(n, 16)
    with Session.open(jobs) as session:
        pairs = Pairs.of(rows, PARAMS.kernel, session)
        C = PairCovariance(rows, PARAMS, session, np.float32, pairs)
        read = int(pairs.product_bytes)
        source, target = np.ones(read, np.uint8), np.empty(read, np.uint8)

        def copy():
            session.executor.map(
                lambda part: np.copyto(target[part], source[part]), slices(read, -(-read // jobs))
            )

        _, _, ratio = in_turn(lambda: C.matmul(V), copy)
        benchmark.pedantic(lambda: C.matmul(V), rounds=3)
        what = f"product of 16 vectors with the pairs of vader, {in_words(jobs)}"
        beside(what, f"{ratio:.2f} x the copy of what it reads", ratio, 2.5)

        # Any matrix with the same nonzero entries, of which scipy stores both triangles.
        gram, single = (Z @ Z.T).tocsr().astype(np.float32), V.astype(np.float32)
        strips = [gram[rows] for rows in slices(n, -(-n // jobs))]

        def peer():
            session.executor.map(lambda strip: strip @ single, strips)

        _, _, ratio = in_turn(lambda: C.matmul(V), peer)
        ROWS.append(Row(f"{what}, beside scipy", f"{ratio:.2f} x scipy.sparse", ratio=ratio))


def test_first_call(benchmark):
    """Compilation and the loading of compiled functions, beside a call that needs neither."""
    with tempfile.TemporaryDirectory() as cache_folder:
        cold, warm = (alone("first_call", NUMBA_CACHE_DIR=cache_folder) for _ in range(2))
        benchmark.pedantic(lambda: alone("first_call", NUMBA_CACHE_DIR=cache_folder), rounds=1)
    what = "first fit and explanation of a process"
    for state, found in (("to compile", cold), ("to load what is cached", warm)):
        ROWS.append(Row(f"{what}: {state}", f"{found['first'] - found['next']:.2f} s"))


def test_ctrl_c(benchmark):
    found = alone("ctrl_c")
    benchmark.pedantic(lambda: None, rounds=1)
    longest = found["longest"]
    measured = f"{longest:.2f} s at most of {found['interrupts']}; it takes {found['whole']:.1f} s"
    what = "Ctrl-C inside a factorisation of 10,000 rows, one thread"
    ROWS.append(Row(what, measured, "at most 1 s", longest <= 1.0))


@pytest.mark.full
@BOTH_THREADS
@pytest.mark.parametrize(("n", "rounds"), [(20_000, 2), (30_000, 1)])
def test_float32_cholesky_at_the_rate_of_sgemm(benchmark, n, rounds):
    problem = Problem(n, "float32", 2)
    A = np.asfortranarray(np.random.RandomState(0).rand(GEMM_ROWS, GEMM_ROWS), np.float32)
    (gemm,) = get_blas_funcs(("gemm",), (A,))

    def theirs():
        with threads(2):
            gemm(1.0, A, A)

    def measure():
        return in_turn(problem.tiles.factor, theirs, rounds, problem.fill, PAUSE_SECONDS)

    took, _, ratio = benchmark.pedantic(measure, rounds=1)
    ratio *= 2.0 * GEMM_ROWS**3 / (n**3 / 3.0)
    what = f"Cholesky, n = {n:,}, float32, 2 threads"
    beside(what, f"{ratio:.2f} x n^3/3 flops of sgemm, {took:.0f} s", ratio, 1.35)


@pytest.mark.full
def test_float32_explanations(benchmark):
    n, queries = 12_000, 500
    data = datasets.synth10(n + queries)
    models = {
        dtype: GPXRegressor(solver="exact", optimizer=None, dtype=dtype, **GIVEN).fit(
            data.X[:n], data.y[:n]
        )
        for dtype in ("float32", "float64")
    }

    def explained(dtype, count):
        return seconds(lambda: models[dtype].explain(data.X[n : n + count]))

    for dtype in models:
        explained(dtype, 2)
    single = benchmark.pedantic(lambda: explained("float32", queries), rounds=1)
    double = explained("float64", queries)
    what = f"explanations of {queries} rows, n = {n:,}, float32"
    beside(what, f"{single / double:.2f} x float64 ({double:.1f} s)", single / double, 1.5)


@pytest.mark.full
def test_memory_of_a_float32_fit(benchmark):
    found = benchmark.pedantic(lambda: alone("fit_memory"), rounds=1)
    n = found["n"]
    above, allowed = found["above"], 1.15 * 2 * n * n + 200e6
    what = f"float32 fit, n = {n:,}"
    measured = f"{above / 1e6:,.0f} MB above a small fit, {found['seconds']:.0f} s"
    target = f"at most {allowed / 1e6:,.0f} MB"
    ROWS.append(Row(f"{what}: peak memory", measured, target, above <= allowed, above / allowed))
    relative = found["residual"]
    row = f"{what}: residual of alpha", f"{relative:.0e}", "at most 5e-7", relative <= 5e-7
    ROWS.append(Row(*row))
