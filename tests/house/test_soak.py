"""Load: many fits, predictions and explanations run in several threads and processes at once.

They must answer as they do alone, and memory must not grow. Some of them run in a child that is
forked while other threads fit. The load lasts GPX_SCALE_SOAK_SECONDS, or 60 seconds if that is not
set, which the threading layers of numba share.
"""

import faulthandler
import gc
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_predict

import gpx_scale
from gpx_scale import XZ, GPXRegressor
from problems import make_problem

SECONDS = float(os.environ.get("GPX_SCALE_SOAK_SECONDS", "60"))
# The threading layers of numba. Where one cannot be loaded, its part is skipped.
LAYERS = ("omp", "workqueue", "tbb")
# The number of threads of each process.
THREADS = (4, 1, 1)
# Each thread does this many jobs between two measurements of the memory.
ROUND = 3
# Memory counts after this share of the time, and after one and a half rounds of all jobs: pools
# start before that, and malloc finds its size.
SETTLING = 0.3
# Memory is then measured at least this many times, even if that takes longer than asked for.
LOOKS = 10
# Memory may grow by this share.
GROWTH = 0.05
# No round takes this many seconds. Jobs take tenths of a second alone, and up to a minute on busy
# cores.
STUCK = 300.0


def told(explanation):
    """Return all arrays of an explanation as one vector."""
    fields = (
        "weights",
        "weights_std",
        "contributions",
        "contributions_std",
        "base_values",
        "prediction",
        "prediction_std",
    )
    found = [getattr(explanation, name) for name in fields]
    return np.concatenate([A.toarray().ravel() if sp.issparse(A) else A.ravel() for A in found])


def answers(model, X, Z):
    mean, std = model.predict(X, Z, return_std=True)
    return np.concatenate([model.predict(X, Z), mean, std, told(model.explain(X, Z)), model.theta_])


def fitted(n_jobs, problem, **arguments):
    return GPXRegressor(
        n_jobs=n_jobs,
        random_state=0,
        **arguments,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    ).fit(problem.X, problem.y, problem.Z)


def dense(n_jobs, n, p=3, **arguments):
    problem = make_problem(n=n, p=p, m=50, seed=n)
    return answers(fitted(n_jobs, problem, **arguments), problem.X_query, problem.Z_query)


def sparse(n_jobs, n, **arguments):
    problem = make_problem(n=n, d=40, m=50, share=0.1, seed=n)
    model = GPXRegressor(
        n_jobs=n_jobs,
        random_state=0,
        **arguments,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    model.fit(problem.X, problem.y, sp.csr_array(problem.Z))
    return answers(model, problem.X_query, sp.csr_array(problem.Z_query))


def grown(n_jobs, p, **arguments):
    """Return the answers of a model that three calls of partial_fit made."""
    problem = make_problem(n=600, p=p, m=50)
    model = GPXRegressor(
        max_iter=2,
        n_jobs=n_jobs,
        random_state=0,
        **arguments,
        kernel="rbf",
        fit_intercept=False,
        weights="shared",
    )
    for rows in np.array_split(np.arange(600), 3):
        model.partial_fit(problem.X[rows], problem.y[rows], problem.Z[rows])
    return answers(model, problem.X_query, problem.Z_query)


def kept(n_jobs):
    """Return the answers of a loaded model, its samples, and its evidence with the gradient."""
    problem = make_problem(n=150, m=20)
    query = problem.X_query, problem.Z_query
    with tempfile.TemporaryDirectory() as folder:
        problem.fitted(n_jobs=n_jobs).save(Path(folder, "model.gpx"))
        model = gpx_scale.load(Path(folder, "model.gpx"))
    draws = (
        model.sample_y(*query, 3, random_state=0),
        model.sample_weights(*query, 3, random_state=0),
    )
    value, gradient = model.log_marginal_likelihood(eval_gradient=True)
    return np.concatenate([answers(model, *query), *map(np.ravel, draws), [value], gradient])


# joblib has one pool of processes, and this test is not about it.
LOKY = threading.Lock()


def folds(n_jobs, backend):
    problem = make_problem(n=200, p=3)
    model = GPXRegressor(
        max_iter=3, random_state=0, kernel="rbf", fit_intercept=False, weights="shared"
    )
    with LOKY if backend == "loky" else nullcontext(), joblib.parallel_config(backend=backend):
        return cross_val_predict(model, XZ(problem.X, problem.Z), problem.y, cv=3, n_jobs=n_jobs)


# scipy's Fourier transforms with several workers raise a RuntimeError ("Work item submitted after
# shutdown") in a process that forks meanwhile, because a fork ends their threads for a moment.
FOURIER = threading.Lock()


def on_grid(n_jobs):
    with FOURIER:
        return dense(n_jobs, n=200, p=2, solver="grid", n_basis=12, optimizer=None)


def forked(n_jobs, solver, **arguments):
    """Return the answers of a model that a forked child fits, while other threads compute."""
    reading, writing = os.pipe()
    with FOURIER:
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                # Several tiles, which loops would run in parallel if this were no child.
                pickle.dump(dense(n_jobs, 600, solver=solver, optimizer=None, **arguments), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a forked child ended with status {status}"
    return pickle.loads(found)


# Rounding errors of matrices with a condition number of 1e4 are below this.
ROUNDING = 1e-9


class Job(NamedTuple):
    """A function of n_jobs that returns a vector, which is always the same but for rounding."""

    call: object
    apart: float = ROUNDING


# Twice sqrt(2e-6): conjugate gradients end within 1e-6 nats, which are (difference / standard
# deviation)^2 / 2.
STOPPED = 3e-3
BY_PROCESSES = "cross-validated by processes"

JOBS = {
    "exact": Job(partial(dense, n=200, solver="exact", max_iter=4)),
    "exact, several tiles": Job(partial(dense, n=850, solver="exact", optimizer=None)),
    "exact, float32": Job(partial(dense, n=300, solver="exact", dtype="float32", optimizer=None)),
    "exact, sparse Z": Job(partial(sparse, n=250, solver="exact", max_iter=3)),
    "cg": Job(partial(dense, n=400, solver="cg", preconditioner_rank=50, optimizer=None), STOPPED),
    "cg, sparse Z": Job(partial(sparse, n=200, solver="cg", optimizer=None), STOPPED),
    "inducing": Job(partial(dense, n=500, solver="inducing", n_inducing=30, max_iter=2)),
    "basis": Job(partial(dense, n=800, p=2, solver="basis", n_basis=8, optimizer=None)),
    "grid": Job(on_grid, STOPPED),
    "partial_fit, inducing": Job(partial(grown, p=3, solver="inducing", n_inducing=40)),
    "partial_fit, basis": Job(partial(grown, p=1, solver="basis")),
    "saved, loaded, drawn from": Job(kept),
    "cross-validated by threads": Job(partial(folds, backend="threading")),
    BY_PROCESSES: Job(partial(folds, backend="loky")),
}
if hasattr(os, "fork"):
    JOBS |= {
        "exact, in a forked child": Job(partial(forked, solver="exact")),
        "inducing, in a forked child": Job(partial(forked, solver="inducing", n_inducing=30)),
    }


class Shared(NamedTuple):
    """A model that all threads of a process use at once.

    It is unpickled anew in each round, so what it computes at its first use is computed under
    load, too.
    """

    state: bytes
    X: np.ndarray
    Z: object
    apart: float

    @classmethod
    def of(cls, n_jobs, apart, d=4, share=1.0, **arguments):
        problem = make_problem(n=300, p=2, d=d, share=share, m=80)
        Z, Z_query = (sp.csr_array(A) if share < 1.0 else A for A in (problem.Z, problem.Z_query))
        model = GPXRegressor(optimizer=None, n_jobs=n_jobs, random_state=0, **arguments).fit(
            problem.X, problem.y, Z
        )
        return cls(pickle.dumps(model), problem.X_query, Z_query, apart)

    def answers(self, model):
        found = [answers(model, self.X, self.Z)]
        if model.solver_ == "exact":
            found.append(told(model.explain(self.X, self.Z, std="certified")))
        return np.concatenate(found)


def shared_models():
    forms = {
        "exact": (ROUNDING, {"solver": "exact"}),
        "exact, sparse Z": (ROUNDING, {"solver": "exact", "d": 40, "share": 0.1}),
        "cg": (STOPPED, {"solver": "cg", "preconditioner_rank": 50}),
        "inducing": (ROUNDING, {"solver": "inducing", "n_inducing": 40}),
        "basis": (ROUNDING, {"solver": "basis", "n_basis": 8}),
    }
    return {
        (f"shared {name}", n_jobs): Shared.of(n_jobs, apart, **given)
        for name, (apart, given) in forms.items()
        for n_jobs in (1, 2)
    }


class Load:
    """Threads of one process that do jobs until a given time.

    After each round, all of them wait while the memory is measured.
    """

    def __init__(self, until, jobs, alone, shared, threads, seed, stuck=STUCK):
        self.until, self.jobs, self.alone, self.shared, self.seed = until, jobs, alone, shared, seed
        self.stuck = stuck
        self.keys = sorted(alone)
        self.settled = time.time() + SETTLING * (until - time.time())
        self.models, self.memory, self.done, self.failures = {}, [], [0] * threads, []
        self.over, self.looked = False, time.time()
        self.barrier = threading.Barrier(threads, action=self.look, timeout=stuck)
        self.workers = [
            threading.Thread(target=self.work, args=(k,), daemon=True) for k in range(threads)
        ]

    def look(self):
        # The stderr of pytest has no file descriptor.
        faulthandler.dump_traceback_later(self.stuck, file=sys.__stderr__)
        self.models = {key: pickle.loads(shared.state) for key, shared in self.shared.items()}
        gc.collect()
        self.looked = time.time()
        if time.time() > self.settled and sum(self.done) > 1.5 * len(self.keys):
            self.memory.append(psutil.Process().memory_info().rss)
        self.over = time.time() > self.until and len(self.memory) >= LOOKS

    def work(self, k):
        random = np.random.RandomState([self.seed, k])
        turns = (
            self.keys[i] for _ in itertools.count() for i in random.permutation(len(self.keys))
        )
        try:
            self.barrier.wait()
            while not self.over:
                for key in itertools.islice(turns, ROUND):
                    self.do(*key)
                    self.done[k] += 1
                self.barrier.wait()
        except threading.BrokenBarrierError:
            self.failures.append(f"thread {k} has waited for another, which failed or hangs")
        except BaseException:
            self.failures.append(f"thread {k}\n{traceback.format_exc()}")
            self.barrier.abort()

    def do(self, name, n_jobs):
        key = name, n_jobs
        job = self.shared[key] if key in self.shared else self.jobs[name]
        found = job.answers(self.models[key]) if key in self.shared else job.call(n_jobs)
        assert_allclose(
            found,
            self.alone[key],
            rtol=job.apart,
            atol=job.apart,
            err_msg=f"{name}, n_jobs={n_jobs}",
        )

    def run(self):
        """Return (number of jobs done, measured sizes of the memory, failures)."""
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            while worker.is_alive() and not self.barrier.broken:
                worker.join(1.0)
                # A thread that waits for another reports that itself, and earlier.
                if time.time() - self.looked > 1.5 * self.stuck:
                    self.failures.append("no thread has ended a round for long: it hangs")
                    self.barrier.abort()
            worker.join(5.0)
        faulthandler.cancel_dump_traceback_later()
        return sum(self.done), self.memory, self.failures


def in_a_process(pipe, *load):
    warnings.simplefilter("error")
    # The fits are short on purpose.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    # Since 3.12, Python warns about every fork of a process that has threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    pipe.send("ready")
    pipe.send(Load(pipe.recv(), *load).run())


@contextmanager
def processes(jobs, alone, shared):
    """Yield (process, pipe) of new processes that are ready to begin, and end them afterwards.

    This process does not take part: memory that other tests have used would count, and it should
    outlive a crash.
    """
    spawn, others = multiprocessing.get_context("spawn"), []
    try:
        for seed, threads in enumerate(THREADS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=in_a_process, args=(theirs, jobs, alone, shared, threads, seed)
            )
            process.start()
            # Only the other process holds this end, so we notice when it ends.
            theirs.close()
            others.append((process, ours))
        assert [heard(*other) for other in others] == ["ready"] * len(THREADS)
        yield others
    finally:
        for process, pipe in others:
            process.join(10.0)
            process.kill()
            process.join()
            pipe.close()


def heard(process, pipe, seconds=0.0):
    """Return what a process sends in that time and some more, or a failure if it ends or hangs."""
    try:
        return pipe.recv() if pipe.poll(seconds + 3 * STUCK) else (0, [], ["it hangs"])
    except (EOFError, ConnectionResetError):
        process.join(STUCK)
        return 0, [], [f"it ended with {process.exitcode}"]


def growth(sizes):
    """Return the relative growth from the median of the first fifth to that of the last."""
    fifth = max(1, len(sizes) // 5)
    return float(np.median(sizes[-fifth:]) / np.median(sizes[:fifth])) - 1.0


@pytest.fixture(scope="module")
def load():
    """Return jobs that have their answers from a process without load, and shared models."""
    shared = shared_models()
    alone = {
        (name, n_jobs): job.call(n_jobs)
        for name, job in JOBS.items()
        if name != BY_PROCESSES
        for n_jobs in (1, 2)
    }
    alone |= {key: one.answers(pickle.loads(one.state)) for key, one in shared.items()}
    alone[BY_PROCESSES, 2] = alone["cross-validated by threads", 2]
    return alone, shared


def has_layer(name):
    """Return whether numba can load a threading layer, which it does once in a process."""
    code = "import numba; numba.get_num_threads()"
    environment = os.environ | {"NUMBA_THREADING_LAYER": name}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return done.returncode == 0


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_under_load_answers_are_those_of_alone_and_memory_stays(layer, load, monkeypatch, capsys):
    available = [name for name in LAYERS if has_layer(name)]
    if layer not in available:
        pytest.skip(f"numba cannot load the threading layer {layer}")
    monkeypatch.setenv("NUMBA_THREADING_LAYER", layer)
    # By default, glibc has 16 arenas, and each grows to the most that it has held. That is a growth
    # for minutes that is not ours.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    seconds = SECONDS / len(available)
    with processes(JOBS, *load) as others:
        until = time.time() + seconds
        for _, pipe in others:
            pipe.send(until)
        found = [heard(*other, seconds) for other in others]
    for _, _, failures in found:
        assert not failures, "\n".join(failures)
    with capsys.disabled():
        for threads, (done, sizes, _) in zip(THREADS, found, strict=True):
            print(
                f"\n{layer}, {threads} threads: {done} jobs, {sizes[-1] / 2**20:.0f} MiB, "
                f"grown by {growth(sizes):+.2%}",
                end="",
            )
    for _, sizes, _ in found:
        assert growth(sizes) <= GROWTH, sizes


KEPT = []


def leaking(n_jobs):
    KEPT.append(np.ones(2**19))  # 4 MiB
    time.sleep(0.01)
    return np.zeros(1)


def wrong(n_jobs):
    return np.full(1, 1e-6)


def hanging(n_jobs):
    time.sleep(60.0)


def crashing(n_jobs):
    os._exit(3)


@pytest.mark.parametrize(
    ("job", "seconds", "word"),
    [
        (leaking, 3.0, "grown"),
        (wrong, 0.1, "Not equal"),
        (hanging, 0.1, "hangs"),
        (crashing, 0.1, "it ended with 3"),
    ],
)
def test_load_notices(job, seconds, word):
    name = job.__name__
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    load = {name: Job(job)}, {(name, 1): np.zeros(1)}, {}, 2, 0, 3.0
    process = spawn.Process(target=in_a_process, args=(theirs, *load), daemon=True)
    process.start()
    theirs.close()
    try:
        assert heard(process, ours) == "ready"
        ours.send(time.time() + seconds)
        _, sizes, failures = heard(process, ours, seconds)
    finally:
        process.kill()
        process.join()
        ours.close()
    if word == "grown":
        assert not failures
        assert growth(sizes) > GROWTH
    else:
        assert word in "\n".join(failures)
