"""Every kernel and solver over n, d, density of Z, threads and dtype: `make bench`, and the
large cases by `make bench CASE=full`.

CASES lists everything that is measured. A case is measured by the job that its `work` names,
and reports: its time (median of the rounds, after compilation), the seconds that a fresh
install compiles for its solver, the peak of allocated memory, flops and bytes by formula, and
which share of the limits of the machine that is (bench/machine.py). `bench/compare.py`
compares two runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial

import numpy as np
import pytest
import scipy.sparse as sp

from gpx_scale import GPXRegressor, datasets
from gpx_scale.compiled import dense as dense_loops
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.kernels import RBF
from gpx_scale.linalg.covariance import StoredCovariance, TiledCovariance
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.linalg.sparse_covariance import PairCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.basis.solver import BasisSettings, BasisSolver
from gpx_scale.solvers.cg.planning import CGSettings, usual_rank
from gpx_scale.solvers.cg.solver import CGSolver
from gpx_scale.solvers.contract import Plan
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.grid.interpolation import Grid, GridCovariance, Interpolated
from gpx_scale.solvers.grid.solver import GridSettings, GridSolver
from gpx_scale.solvers.inducing.point_selection import PointSelection
from gpx_scale.solvers.inducing.solver import InducingSolver
from gpx_scale.solvers.low_dimensional import InputExtent
from machine import counted, epilogue
from measure import peak_bytes, seconds

QUERIES = 200
# Columns of the matrix that C is multiplied by.
COLUMNS = 16
# Columns of a sparse Z.
WORDS = 2000
# A case is measured for about this long, by a number of rounds between two bounds. A case whose
# single round takes longer is measured by three.
SECONDS_PER_CASE = 1.5
FEWEST_ROUNDS = 5
MOST_ROUNDS = 15
ROUNDS_OF_SLOW_CASES = 3
FORMS = {"cg": "stored", "cg_recomputed": "recomputed", "cg_pairs": "pairs"}
PARAMS = {
    # These are near the optimum of synth10.
    "dense": Hyperparameters.of(RBF(0.132, 17.5), 0.002, 0.0563),
    "sparse": Hyperparameters.of(RBF(1.0, 20.0), 0.1, 0.5),
    # The coefficients of synth2 vary over half of its square with the first, and over a third of
    # that with the second.
    "basis": Hyperparameters.of(RBF(0.5, 0.15), 0.02, 0.3),
    "grid": Hyperparameters.of(RBF(0.5, 0.02), 0.02, 0.3),
}


@dataclass(frozen=True)
class Case:
    """One measurement: which work, by which solver, at which sizes."""

    work: str
    solver: str
    n: int
    d: int = 10
    density: float = 1.0
    threads: int = 2
    dtype: str = "float64"
    points: int = 300  # This is the number of inducing points.
    full: bool = False

    @property
    def name(self) -> str:
        """Return a name such as evidence-exact-n2000-d10-2t, with the fields that differ from
        the defaults.
        """
        parts = [self.work, self.solver, f"n{self.n}", f"d{self.d}"]
        parts += [f"density{self.density:g}"] if self.density < 1 else []
        parts += [f"m{self.points}"] if self.solver == "inducing" else []
        parts += [self.dtype] if self.dtype != "float64" else []
        return "-".join([*parts, f"{self.threads}t"])

    def over(self, **values) -> list[Case]:
        """Return a copy of the case for each value of one field."""
        ((name, several),) = values.items()
        return [replace(self, **{name: value}) for value in several]


def _low(work, solver, n, **more):
    """Return a case with X of two columns and five features."""
    return Case(work, solver, n, d=5, **more)


def _text(work, n, density=0.005, **more):
    """Return a case with a sparse Z."""
    return Case(work, "cg_pairs", n, d=WORDS, density=density, **more)


CASES = [
    # Kernels.
    *Case("exp", "kernel", 256, threads=1).over(dtype=["float64", "float32"]),
    *Case("build", "exact", 3000).over(threads=[1, 2]),
    *Case("build", "exact", 3000, d=50).over(dtype=["float64", "float32"]),
    *_text("build", 6000).over(density=[0.002, 0.01]),
    *Case("product", "cg", 8000, dtype="float32").over(threads=[1, 2]),
    *Case("product", "cg_recomputed", 4000).over(dtype=["float64", "float32"]),
    Case("product", "cg_recomputed", 4000, dtype="float32", threads=1),
    *_text("product", 8000, dtype="float32").over(density=[0.002, 0.01]),
    _text("product", 8000, 0.01, dtype="float32", threads=1),
    *_low("product", "grid", 20_000, dtype="float32").over(threads=[1, 2]),
    # The log marginal likelihood with its gradient.
    *Case("evidence", "exact", 2000).over(n=[500, 1000, 2000]),
    *Case("evidence", "exact", 2000, threads=1).over(dtype=["float64", "float32"]),
    *Case("evidence", "exact", 1000).over(d=[2, 50, 200]),
    *Case("evidence", "cg", 3000).over(threads=[1, 2]),
    Case("evidence", "cg", 6000),
    Case("evidence", "cg_recomputed", 3000),
    *_text("evidence", 4000).over(density=[0.002, 0.01]),
    *Case("evidence", "inducing", 10_000).over(threads=[1, 2]),
    *Case("evidence", "inducing", 20_000).over(points=[100, 300]),
    *_low("evidence", "basis", 10_000).over(threads=[1, 2]),
    *_low("pass", "basis", 20_000).over(threads=[1, 2]),
    *_low("evidence", "grid", 5000).over(threads=[1, 2]),
    # Fits with given hyperparameters, then with a search.
    *Case("condition", "exact", 2000).over(dtype=["float64", "float32"]),
    Case("condition", "cg", 4000),
    _text("condition", 4000),
    Case("condition", "inducing", 20_000),
    _low("condition", "basis", 20_000),
    _low("condition", "grid", 5000),
    *Case("fit", "exact", 800).over(threads=[1, 2]),
    Case("fit", "cg", 800),
    Case("fit", "inducing", 5000, points=50),
    _low("fit", "basis", 10_000),
    # Queries.
    *Case("predict", "exact", 2000).over(threads=[1, 2]),
    *Case("explain", "exact", 2000).over(threads=[1, 2]),
    *(
        Case(work, solver, n, d)
        for solver, n, d in (("cg", 3000, 10), ("grid", 5000, 5))
        for work in ("predict", "explain")
    ),
    *(
        Case(work, solver, n, d)
        for solver, n, d in (("inducing", 10_000, 10), ("basis", 10_000, 5))
        for work in ("predict", "explain")
    ),
    *(_text(work, 4000) for work in ("predict", "explain")),
    # Large cases.
    *Case("evidence", "exact", 10_000, full=True).over(threads=[1, 2]),
    Case("evidence", "exact", 20_000, dtype="float32", full=True),
    *Case("product", "cg", 20_000, dtype="float32", full=True).over(n=[20_000, 40_000]),
    Case("product", "cg_recomputed", 20_000, dtype="float32", full=True),
    *Case("evidence", "cg", 20_000, full=True).over(threads=[1, 2]),
    Case("evidence", "cg_recomputed", 20_000, full=True),
    Case("fit", "cg", 20_000, full=True),
    *(Case(work, "cg", 20_000, full=True) for work in ("predict", "explain")),
    *_text("evidence", 20_000, full=True).over(density=[0.002, 0.01]),
    *Case("evidence", "inducing", 200_000, points=500, full=True).over(threads=[1, 2]),
    Case("fit", "inducing", 50_000, points=500, full=True),
    *_low("pass", "basis", 1_000_000, full=True).over(threads=[1, 2]),
    _low("fit", "basis", 1_000_000, full=True),
    *_low("product", "grid", 200_000, dtype="float32", full=True).over(threads=[1, 2]),
    _low("evidence", "grid", 50_000, full=True),
]


@lru_cache(maxsize=4)
def rows(solver, n, d, density):
    """Return X, y, Z of n rows for training and QUERIES more."""
    m = n + QUERIES
    if solver in ("basis", "grid"):
        made = datasets.synth2(m)
        return made.X, made.y, made.Z
    made = datasets.synth10(m)
    if density < 1:
        return (
            made.X,
            made.y,
            sp.random_array(
                (m, d), density=density, format="csr", random_state=np.random.default_rng(0)
            ),
        )
    return (
        made.X,
        made.y,
        made.X if d == 10 else np.random.RandomState(0).standard_normal((m, d)) / np.sqrt(d),
    )


def _params(case):
    return PARAMS[
        case.solver
        if case.solver in ("basis", "grid")
        else "sparse"
        if case.density < 1
        else "dense"
    ]


def _inputs(case):
    X, y, Z = rows(case.solver, case.n, case.d, case.density)
    Z = Z[: case.n]
    return TrainingRows(
        X[: case.n], SparseFeatures.of(Z) if sp.issparse(Z) else DenseFeatures(Z), y[: case.n]
    )


def _extent(data, session):
    return MemoryRows(data).sum_over(InputExtent.of, session)


def _plan(case, session):
    """Return a plan with the fields that solvers read: sizes, the dtype of tiles, and the
    memory limit.
    """
    X, _, Z = rows(case.solver, case.n, case.d, case.density)
    dtype = np.float32 if case.solver in (*FORMS, "grid") else np.float64
    sizes, solver = (case.n, X.shape[1], Z.shape[1]), case.solver.split("_")[0]
    return Plan(*sizes, solver, dtype, case.threads, 0, session.memory_limit)


@dataclass(frozen=True)
class Job:
    """The function that is timed, and its work if no operation of the package counts it."""

    run: Callable[[], object]
    work: dict = field(default_factory=dict)


def exp(case, session):
    dtype = np.dtype(case.dtype).type
    E, out = (
        -np.random.RandomState(0).rand(case.n, 512).astype(dtype) * 30,
        np.ones((case.n, 512), dtype),
    )

    def run():
        for _ in range(20):
            dense_loops.times_profile(dense_loops.RBF, dtype(1), dtype(1), E, out)

    return Job(run, epilogue(20 * E.size, dtype))


def build(case, session):
    data = _inputs(case)
    if case.density < 1:
        return Job(lambda: Pairs.of(data, _params(case).kernel, session))
    C = TiledCovariance(data, _params(case), session, np.dtype(case.dtype).type)
    out = C.empty_tiles(case.dtype)
    return Job(lambda: replace(C).fill(out))


def product(case, session):
    data, dtype = _inputs(case), np.dtype(case.dtype).type
    how = data, _params(case), session, dtype
    if case.solver == "grid":
        grid = Grid.around(_extent(data, session), _params(case).kernel)
        C = GridCovariance(*how, Interpolated.of(grid, data.x))
    elif case.density < 1:
        C = PairCovariance(*how, Pairs.of(data, _params(case).kernel, session))
    else:
        C = (StoredCovariance if case.solver == "cg" else TiledCovariance)(*how)
    V = np.random.RandomState(1).standard_normal((case.n, COLUMNS))
    return Job(lambda: C.matmul(V))


def evidence(case, session):
    data, params = MemoryRows(_inputs(case)), _params(case)
    solver = _solver(case, data, params, session)
    return Job(lambda: solver.evaluate(data, params))


def _solver(case, data, params, session):
    plan, rank = _plan(case, session), usual_rank(case.n)
    if case.solver == "exact":
        return ExactSolver(case.n, case.dtype, session)
    if case.solver in FORMS:
        return CGSolver(plan, CGSettings(FORMS[case.solver], rank), session)
    if case.solver == "inducing":
        selection = PointSelection(case.points, "rpcholesky", 10 * case.points)
        return InducingSolver(plan, selection, session)
    if case.solver == "basis":
        found = BasisSolver(plan, session, BasisSettings())
        found._prepare(data, params)
        return found
    extent = _extent(data.load(), session)
    found = GridSolver(plan, GridSettings("grid", rank, extent=extent), session)
    found.build_grid(data.load(), params, fixed=True)
    return found


def one_pass(case, session):
    """Return the job that sums over all rows, with which every evaluation of a basis begins."""
    data = MemoryRows(_inputs(case))
    plan = _plan(case, session)
    return Job(lambda: BasisSolver(plan, session, BasisSettings())._prepare(data, _params(case)))


def _model(case, **more):
    params = _params(case)
    given = {**params.kernel.as_dict(), "sigma_w": params.sigma_w, "sigma_y": params.sigma_y}
    solver = case.solver.split("_")[0]
    arguments = {
        "n_inducing": case.points,
        "n_jobs": case.threads,
        "random_state": 0,
        "standardize": False,
        "kernel": "rbf",
        "fit_intercept": False,
    }
    arguments |= {"dtype": case.dtype} if solver == "exact" else {}
    return GPXRegressor(solver=solver, **arguments, **given, **more)


def fit(case, session, **more):
    X, y, Z = (part[: case.n] for part in rows(case.solver, case.n, case.d, case.density))
    return Job(lambda: _model(case, **more).fit(X, y, Z))


@lru_cache(maxsize=1)
def _fitted(case):
    return fit(case, None, optimizer=None).run()


def predict(case, session, explain=False):
    X, _, Z = (part[case.n :] for part in rows(case.solver, case.n, case.d, case.density))
    model = _fitted(replace(case, work="condition"))
    return Job(
        (lambda: model.explain(X, Z)) if explain else (lambda: model.predict(X, Z, return_std=True))
    )


JOBS = {
    "exp": exp,
    "build": build,
    "product": product,
    "evidence": evidence,
    "pass": one_pass,
    "condition": partial(fit, optimizer=None),
    "fit": fit,
    "predict": predict,
    "explain": partial(predict, explain=True),
}


@contextmanager
def prepared(case):
    """Yield the job of a case, within a session with its number of threads."""
    with Session.open(case.threads, random_state=0) as session:
        yield JOBS[case.work](case, session)


def once(case):
    """Prepare and run a case once, to measure its memory.

    Buffers and tiles that stay between rounds count. The data, and a fitted model that is only
    queried, do not.
    """
    with prepared(case) as job:
        job.run()


@cache
def compilation(solver):
    """Return the seconds that a fresh install compiles for a small fit with explanations.

    This is the first call less the second, in a process of its own with an empty cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        command, environment = (
            [sys.executable, __file__, solver],
            {**os.environ, "NUMBA_CACHE_DIR": folder},
        )
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    first, second = json.loads(done.stdout.splitlines()[-1])
    return first - second


def first_and_second(solver):
    """Return the seconds of two equal fits with explanations in this process."""
    case = {
        "cg_pairs": _text("fit", 400, 0.02),
        "basis": _low("fit", "basis", 1200),
        "grid": _low("fit", "grid", 1200),
    }
    case = case.get(solver, Case("fit", solver, 400, points=20))
    X, y, Z = rows(case.solver, case.n, case.d, case.density)

    def run():
        _model(case, max_iter=2).fit(X[: case.n], y[: case.n], Z[: case.n]).explain(
            X[-20:], Z[-20:]
        )

    return [seconds(run), seconds(run)]


def timed(benchmark, case):
    """Run the rounds of a case, and return its work."""
    with prepared(case) as job:
        took = [seconds(job.run)]  # The first run may compile.
        work = counted(lambda: took.append(seconds(job.run))) or job.work
        usual = min(took)
        fewest = FEWEST_ROUNDS if usual < SECONDS_PER_CASE else ROUNDS_OF_SLOW_CASES
        rounds = int(np.clip(SECONDS_PER_CASE / usual, fewest, MOST_ROUNDS))
        benchmark.pedantic(job.run, rounds=rounds)
    return work


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(benchmark, limits, case):
    benchmark.extra_info |= {
        "work": timed(benchmark, case),
        "threads": case.threads,
        "memory": peak_bytes(partial(once, case)),
        "compilation": compilation(
            {"kernel": "exact", "cg_recomputed": "cg"}.get(case.solver, case.solver)
        ),
    }


if __name__ == "__main__":
    print(json.dumps(first_and_second(sys.argv[1])))
