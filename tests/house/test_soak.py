"""Load: fits, predictions, explanations from several threads and processes at once answer as alone, in no more memory.

GPX_SCALE_SOAK_SECONDS says how long (60 unless it is set).
"""

import faulthandler
import gc
import itertools
import multiprocessing
import os
import pickle
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
from sklearn.model_selection import cross_val_predict

import gpx_scale
from gpx_scale import XZ, GPXRegressor
from problems import make_problem

SECONDS = float(os.environ.get("GPX_SCALE_SOAK_SECONDS", "60"))
THREADS = (4, 1, 1)  # of the processes
ROUND = 3  # jobs of each thread between two looks at the memory
SETTLING = 0.3  # of the time, and each job once and a half, before memory counts: pools start, malloc finds its size
LOOKS = 10  # at the memory after that, at least: on a busy machine it takes longer than asked for
GROWTH = 0.05
STUCK = 300.0  # seconds that no round takes: jobs are tenths of a second alone, and a minute on cores held by others


# jobs


def told(explanation):
    """Everything that an explanation says, as one vector."""
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
    return GPXRegressor(n_jobs=n_jobs, random_state=0, **arguments).fit(
        problem.X, problem.y, problem.Z
    )


def dense(n_jobs, n, p=3, **arguments):
    problem = make_problem(n=n, p=p, m=50, seed=n)
    return answers(fitted(n_jobs, problem, **arguments), problem.X_query, problem.Z_query)


def sparse(n_jobs, n, **arguments):
    problem = make_problem(n=n, d=40, m=50, share=0.1, seed=n)
    model = GPXRegressor(n_jobs=n_jobs, random_state=0, **arguments)
    model.fit(problem.X, problem.y, sp.csr_array(problem.Z))
    return answers(model, problem.X_query, sp.csr_array(problem.Z_query))


def grown(n_jobs, p, **arguments):
    """By three calls of partial_fit."""
    problem = make_problem(n=600, p=p, m=50)
    model = GPXRegressor(max_iter=2, n_jobs=n_jobs, random_state=0, **arguments)
    for rows in np.array_split(np.arange(600), 3):
        model.partial_fit(problem.X[rows], problem.y[rows], problem.Z[rows])
    return answers(model, problem.X_query, problem.Z_query)


def kept(n_jobs):
    """From a file: answers, draws, the evidence with its gradient."""
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


LOKY = threading.Lock()  # joblib's one pool of processes; it is not ours to load


def folds(n_jobs, backend):
    problem = make_problem(n=200, p=3)
    model = GPXRegressor(max_iter=3, random_state=0)
    with LOKY if backend == "loky" else nullcontext(), joblib.parallel_config(backend=backend):
        return cross_val_predict(model, XZ(problem.X, problem.Z), problem.y, cv=3, n_jobs=n_jobs)


ROUNDING = 1e-9  # of matrices of condition 1e4


class Job(NamedTuple):
    """n_jobs -> a vector, the same but for rounding: BLAS has one number of threads for the whole process, as other threads
    leave it, and adds up in another order where a matrix is large enough for two."""

    call: object
    apart: float = ROUNDING


STOPPED = 3e-3  # twice sqrt(2e-6): conjugate gradients end within 1e-6 nats, (difference / deviation)^2 / 2
BY_PROCESSES = "cross-validated by processes"

JOBS = {
    "exact": Job(partial(dense, n=200, solver="exact", max_iter=4)),
    "exact, two BLAS threads": Job(partial(dense, n=850, solver="exact", optimizer=None)),
    "exact, float32": Job(partial(dense, n=300, solver="exact", dtype="float32", optimizer=None)),
    "exact, sparse Z": Job(partial(sparse, n=250, solver="exact", max_iter=3)),
    "cg": Job(partial(dense, n=400, solver="cg", preconditioner_rank=50, optimizer=None), STOPPED),
    "cg, sparse Z": Job(partial(sparse, n=200, solver="cg", optimizer=None), STOPPED),
    "inducing": Job(partial(dense, n=500, solver="inducing", n_inducing=30, max_iter=2)),
    "basis": Job(partial(dense, n=800, p=2, solver="basis", n_basis=8, optimizer=None)),
    "grid": Job(partial(dense, n=200, p=2, solver="grid", n_basis=12, optimizer=None), STOPPED),
    "partial_fit, inducing": Job(partial(grown, p=3, solver="inducing", n_inducing=40)),
    "partial_fit, basis": Job(partial(grown, p=1, solver="basis")),
    "saved, loaded, drawn from": Job(kept),
    "cross-validated by threads": Job(partial(folds, backend="threading")),
    BY_PROCESSES: Job(partial(folds, backend="loky")),
}


class Shared(NamedTuple):
    """A model that all threads of a process ask at once, fresh from its pickle in each round: what it makes on first use is
    made under load too."""

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


# load


class Load:
    """Threads of one process that do jobs until a time; after each round they all wait, and memory is looked at."""

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
        faulthandler.dump_traceback_later(
            self.stuck, file=sys.__stderr__
        )  # pytest's own has no descriptor
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
        """(jobs done, sizes of the memory, failures)."""
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            while worker.is_alive() and not self.barrier.broken:
                worker.join(1.0)
                if (
                    time.time() - self.looked > 1.5 * self.stuck
                ):  # a thread that waits says so itself, and earlier
                    self.failures.append("no thread has ended a round for long: it hangs")
                    self.barrier.abort()
            worker.join(5.0)
        faulthandler.cancel_dump_traceback_later()
        return sum(self.done), self.memory, self.failures


def in_a_process(pipe, *load):
    warnings.simplefilter("error")
    pipe.send("ready")
    pipe.send(Load(pipe.recv(), *load).run())


@contextmanager
def processes(jobs, alone, shared):
    """(process, pipe) of each, ready to begin; all of them are gone at the end. Not this one: what its memory has held of
    other tests would count, and it should outlive a crash."""
    spawn, others = multiprocessing.get_context("spawn"), []
    try:
        for seed, threads in enumerate(THREADS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=in_a_process, args=(theirs, jobs, alone, shared, threads, seed)
            )
            process.start()
            theirs.close()  # so that its end is heard
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
    """What a process says within that time and some more; a failure where it ends without a word, or hangs."""
    try:
        return pipe.recv() if pipe.poll(seconds + 3 * STUCK) else (0, [], ["it hangs"])
    except (EOFError, ConnectionResetError):
        process.join(STUCK)
        return 0, [], [f"it ended with {process.exitcode}"]


def growth(sizes):
    """From the median of the first fifth to that of the last."""
    fifth = max(1, len(sizes) // 5)
    return float(np.median(sizes[-fifth:]) / np.median(sizes[:fifth])) - 1.0


@pytest.mark.soak
def test_under_load_answers_are_those_of_alone_and_memory_stays(monkeypatch, capsys):
    # By default glibc has 16 arenas here, and each grows to the most that it has held: growth for minutes that is not ours.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    shared = shared_models()
    alone = {
        (name, n_jobs): job.call(n_jobs)
        for name, job in JOBS.items()
        if name != BY_PROCESSES
        for n_jobs in (1, 2)
    }
    alone |= {key: one.answers(pickle.loads(one.state)) for key, one in shared.items()}
    alone[BY_PROCESSES, 2] = alone["cross-validated by threads", 2]
    with processes(JOBS, alone, shared) as others:
        until = time.time() + SECONDS
        for _, pipe in others:
            pipe.send(until)
        found = [heard(*other, SECONDS) for other in others]
    for _, _, failures in found:
        assert not failures, "\n".join(failures)
    with capsys.disabled():
        for threads, (done, sizes, _) in zip(THREADS, found, strict=True):
            print(
                f"\n{threads} threads: {done} jobs, {sizes[-1] / 2**20:.0f} MiB, grown by {growth(sizes):+.2%}",
                end="",
            )
    for _, sizes, _ in found:
        assert growth(sizes) <= GROWTH, sizes


# what the load would not overlook


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
