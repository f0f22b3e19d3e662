"""Threads, workers and memory.

Scopes restore the thread counts from before, and results do not depend on the number of workers.
"""

import _thread
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import joblib
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose

import gpx_scale.linalg.cholesky
from gpx_scale import InputError, load
from gpx_scale.runtime.memory import available_memory, format_bytes, parse_memory
from gpx_scale.runtime.parallel import (
    Executor,
    _blas_libraries,
    effective_jobs,
    evenly_spaced,
    largest,
    slices,
    threads,
)
from problems import make_problem


def blas_counts():
    return [library.get_num_threads() for library, _ in _blas_libraries()]


def answers(n_jobs=None):
    """Return all answers of a model as one vector. Other processes import this function."""
    problem = make_problem(n=500, p=5, d=5, m=50, theta2=12.0)
    model = problem.fitted(n_jobs=n_jobs)
    explanation = model.explain(problem.X_query, problem.Z_query)
    value, gradient = model.log_marginal_likelihood(eval_gradient=True)
    return np.concatenate(
        [explanation.weights.ravel(), explanation.weights_std.ravel(), [value], gradient]
    )


def usable_workers(_):
    return effective_jobs(None)


def test_scopes_restore_what_they_found():
    before = blas_counts(), numba.get_num_threads()

    def fail_inside():
        with threads(1):
            assert set(blas_counts()) == {1}
            assert numba.get_num_threads() == 1
            with threads(2):
                assert set(blas_counts()) == {1}  # the least of all open requests
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert (blas_counts(), numba.get_num_threads()) == before


def test_overlapping_scopes_of_many_threads_restore_too():
    before = blas_counts()
    barrier = threading.Barrier(8)

    def work(k):
        barrier.wait()
        for _ in range(50):
            with threads(1 + k % 2), Executor(2) as executor:
                executor.map(lambda i: i, range(3))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert blas_counts() == before


@pytest.fixture
def ctrl_c_interrupts():
    """Let SIGINT raise KeyboardInterrupt, even if the suite runs with SIGINT ignored.

    This is so under nohup and in many CI systems. Python then installs no handler, and
    `_thread.interrupt_main` does nothing without one.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# After Ctrl-C between the opening of a file and the `with` that closes it, Python closes the file
# and warns.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_ctrl_c_at_any_moment_restores_the_threads(problem):
    """Real interrupts of the main thread, spread over fit and predict."""
    before = blas_counts(), numba.get_num_threads()
    model = problem.fitted()
    expected = model.predict(problem.X_query, problem.Z_query)
    interrupted = 0
    for k in range(150):
        timer = threading.Timer(0.0002 * (1 + k % 25), _thread.interrupt_main)
        try:
            timer.start()
            for _ in range(10):
                problem.model(n_jobs=2).fit(problem.X, problem.y, problem.Z).predict(
                    problem.X_query, problem.Z_query
                )
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            timer.cancel()
    assert interrupted > 10
    with threads(1):
        pass
    assert (blas_counts(), numba.get_num_threads()) == before
    assert_allclose(model.predict(problem.X_query, problem.Z_query), expected)


def test_only_one_blas_pool_works_at_a_time():
    ours = [flag for _, flag in _blas_libraries()]
    with threads(2) as n:
        assert blas_counts() == [n if flag else 1 for flag in ours]


def test_executor_keeps_order_and_raises_what_was_raised():
    with Executor(4) as executor:
        assert executor.map(lambda i: i * i, range(50)) == [i * i for i in range(50)]
        assert executor.map(lambda i: i, []) == []
        with pytest.raises(ZeroDivisionError):
            executor.map(lambda i: 1 // (i - 20), range(50))
        assert executor.map(lambda i: -i, range(5)) == [0, -1, -2, -3, -4]
        A, B = np.random.RandomState(0).randn(301, 17), np.random.RandomState(1).randn(17, 5)
        assert_allclose(executor.matmul(A, B), A @ B, rtol=1e-12)


def test_any_number_of_workers_gives_the_same_answers():
    one = answers(1)
    for n_jobs in (2, 16, -1, None):
        assert_allclose(answers(n_jobs), one, rtol=1e-9, atol=1e-9)


def test_eight_python_threads_at_once():
    problem = make_problem(n=300, m=40)
    model = problem.fitted()
    alone = model.explain(problem.X_query, problem.Z_query).weights_std
    barrier = threading.Barrier(8)

    def work(k):
        barrier.wait()
        for _ in range(5):
            if k % 4 == 0:
                problem.fitted()
            mean = model.predict(problem.X_query, problem.Z_query)
            together = model.explain(problem.X_query, problem.Z_query)
            assert_allclose(together.weights_std, alone, rtol=1e-10)
            assert_allclose(together.prediction, mean, rtol=1e-9, atol=1e-12)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_workers_of_joblib_use_one_thread_and_agree():
    assert effective_jobs(None) == joblib.cpu_count()
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(answers)() for _ in range(2))
    for one in found:
        assert_allclose(one, answers(1), rtol=1e-9, atol=1e-9)
    for backend in ("loky", "threading"):
        assert joblib.Parallel(n_jobs=2, backend=backend)(
            joblib.delayed(usable_workers)(i) for i in range(2)
        ) == [1, 1]


def test_spawned_processes_agree():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(answers, [1, 2]):
            assert_allclose(found, answers(1), rtol=1e-9, atol=1e-9)


def test_importing_compiles_nothing_and_makes_no_threads():
    code = """
import threading
from numba.core import event
with event.install_recorder("numba:compile") as seen:
    import gpx_scale
    gpx_scale.kernels.RBF(1.0, 1.0) + gpx_scale.kernels.Matern32(1.0, 1.0)
assert not seen.buffer, seen.buffer
assert threading.active_count() == 1
import sys
heavy = {"matplotlib", "torch", "dask", "gpx_scale.cli"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


FIT_AND_EXPLAIN = """
import gpx_scale
from gpx_scale.datasets import synth10
X, y, _ = synth10(200)
for solver in ("exact", "inducing"):
    model = gpx_scale.GPXRegressor(solver=solver, optimizer=None, random_state=0).fit(X, y)
    explanation = model.explain(X[:3])
    print(explanation.weights_std.min() > 0, end=" ")
print(gpx_scale.__file__)
"""


def test_an_install_that_cannot_be_written_works_without_any_cache(tmp_path):
    """An account without a home uses an administrator's install, so no cache can be written.

    A file stands in the place of each folder that would be written to. This stops root, too, who
    may write to any folder.
    """
    package = tmp_path / "gpx_scale"
    shutil.copytree(
        Path(gpx_scale.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in {source.parent for source in package.rglob("*.py")}:
        folder.chmod(
            0o755
        )  # The copy of an install that cannot be written could not be written either.
        (folder / "__pycache__").touch()
    before = sorted(package.rglob("*"))
    (no_folder := tmp_path / "home").touch()
    env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")}
    env.update(
        PYTHONPATH=str(tmp_path),
        HOME=str(no_folder),
        XDG_CACHE_HOME=str(no_folder),
        LOCALAPPDATA=str(no_folder),
    )
    command = [sys.executable, "-W", "error", "-c", FIT_AND_EXPLAIN]
    run = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.stdout == f"True True {package / '__init__.py'}\n", run.stdout + run.stderr
    assert run.stderr == ""
    assert sorted(package.rglob("*")) == before


def test_memory_in_words():
    assert parse_memory("8GiB") == 8 * 2**30
    assert parse_memory(" 500 mb ") == 500 * 2**20
    assert parse_memory(1e9) == 10**9
    assert 0 < parse_memory(None) < available_memory()
    assert format_bytes(3 * 2**30) == "3.0 GiB"
    assert format_bytes(2**10) == "1.0 KiB"
    for broken in ("much", "", 0, -1, float("nan"), float("inf"), True, "5 parsecs"):
        with pytest.raises(InputError, match="memory_limit"):
            parse_memory(broken)


def test_jobs_in_words():
    assert effective_jobs(3) == 3
    assert effective_jobs(-1) == joblib.cpu_count()
    for broken in (0, 1.5, "two", True):
        with pytest.raises(InputError, match="n_jobs"):
            effective_jobs(broken)


def test_slices_cover_all_rows():
    assert [s.stop - s.start for s in slices(10, 3)] == [3, 3, 3, 1]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 100, 1_234_567])
@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000])
def test_evenly_spaced_numbers_are_distinct_and_reach_both_ends(count, size):
    found = evenly_spaced(count, size)
    assert (found.size, found.dtype.kind) == (min(count, size), "i")
    assert (np.diff(found) > 0).all()
    if size:
        assert (found[0], found[-1]) == (0, size - 1 if count > 1 else 0)
    if found.size > 2:
        assert np.ptp(np.diff(found)) <= 1
    if count >= size:
        np.testing.assert_array_equal(found, np.arange(size))


@pytest.mark.parametrize("count", [1, 4, 30, 31])
def test_the_largest_are_those_at_the_end_of_a_sort(count):
    scores = np.random.RandomState(0).randn(30)
    np.testing.assert_array_equal(largest(scores, count), np.sort(np.argsort(scores)[-count:]))
    assert largest(scores[:0], count).size == 0


def test_blas_threads_can_be_limited_from_any_thread():
    """threadpoolctl 3.8 lets only the thread that set the counts first set them again."""
    before = blas_counts()
    seen = []

    def limit():
        with threads(1):
            seen.append(blas_counts())

    with threads(1):
        pass
    worker = threading.Thread(target=limit)
    worker.start()
    worker.join()
    assert set(seen[0]) == {1}
    assert blas_counts() == before


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_sums_are_in_the_order_of_the_items_and_take_few_at_a_time(jobs):
    taken, done = [], []

    def items():
        for k in range(40):
            taken.append(k)
            assert len(taken) - len(done) <= 2 * jobs + 2  # what is in memory
            yield k

    def work(k):
        time.sleep(0.001 * (k % 3))
        return [k]

    class Told(list):
        def __iadd__(self, other):
            done.extend(other)
            return super().__iadd__(other)

    def first(k):
        done.extend([k] if k == 0 else [])
        return Told(work(k)) if k == 0 else work(k)

    with Executor(jobs) as executor:
        assert executor.sum_over(first, items()) == list(range(40))
        assert executor.sum_over(work, []) is None


def test_an_error_in_a_sum_ends_it_and_leaves_the_workers_usable():
    def fail(k):
        if k == 3:
            raise ValueError("three")
        return k

    with Executor(2) as executor:
        with pytest.raises(ValueError, match="three"):
            executor.sum_over(fail, range(10))
        assert executor.sum_over(lambda k: k, range(10)) == 45


FORK_WHILE_BUSY = """
import os, signal, sys, threading, time
import numba
from gpx_scale.runtime.parallel import _blas_libraries, _counts, threads

def counts():
    return [library.get_num_threads() for library, _ in _blas_libraries()], numba.get_num_threads()

before = counts()
stop = threading.Event()

def busy():
    while not stop.is_set():
        with threads(1):
            time.sleep(0)

def held():
    with threads(1):
        stop.wait()

workers = [threading.Thread(target=busy) for _ in range(3)] + [threading.Thread(target=held)]
for worker in workers:
    worker.start()
time.sleep(0.05)
wrong = 0
for k in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for ever is ended, and counts as wrong
        fresh = counts()[0] == before[0] and not _counts._open
        with threads(2):
            pass
        os._exit(0 if fresh and counts() == before else 1)
    wrong += os.waitpid(child, 0)[1] != 0
    if wrong > 2:
        break
stop.set()
for worker in workers:
    worker.join()
assert counts() == before, (counts(), before)
with threads(1):
    child = os.fork()  # the forking thread is inside its own scope, in the child too
    if child == 0:
        inside = set(counts()[0]) == {1}
        os._exit(0 if inside else 1)
    wrong += os.waitpid(child, 0)[1] != 0
print("wrong", wrong)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_other_threads_work_neither_hangs_nor_inherits_their_scopes():
    run = subprocess.run(
        [sys.executable, "-c", FORK_WHILE_BUSY], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "wrong 0\n", run.stdout + run.stderr


@pytest.fixture
def workers(monkeypatch):
    """Return a list that collects the number of workers of every executor that is made.

    This process has cores for three.
    """
    made, init = [], Executor.__init__

    def noted(self, n_jobs=None):
        init(self, n_jobs)
        made.append(self.n_jobs)

    monkeypatch.setattr(Executor, "__init__", noted)
    monkeypatch.setattr("gpx_scale.runtime.session.most_threads", lambda: 3)
    return made


@pytest.mark.parametrize("solver", ["basis", "inducing"])
def test_more_rows_are_added_by_as_many_workers_as_asked_for(solver, workers):
    problem = make_problem(n=60, p=1, d=2)
    model = problem.fitted(solver=solver, n_jobs=3)
    workers.clear()
    model.partial_fit(problem.X, problem.y, problem.Z)
    assert set(workers) == {3}


@pytest.mark.parametrize("copied", ["saved", "pickled"])
def test_a_copied_cg_model_answers_by_as_many_workers_as_asked_for(copied, workers, tmp_path):
    problem = make_problem(n=60)
    model = problem.fitted(solver="cg", n_jobs=3, random_state=0)
    before = model.explain(problem.X_query, problem.Z_query).weights_std
    model.save(tmp_path / "model.gpx")
    workers.clear()
    loaded = (
        load(tmp_path / "model.gpx") if copied == "saved" else pickle.loads(pickle.dumps(model))
    )
    assert_allclose(
        loaded.explain(problem.X_query, problem.Z_query).weights_std, before, rtol=1e-12
    )
    assert set(workers) == {3}


@pytest.mark.parametrize("solver", ["exact", "cg", "inducing", "basis"])
def test_blas_has_one_thread_inside_a_call(solver):
    """Work is divided by tiles and blocks of rows, so that its results do not depend on threads."""
    problem = make_problem(n=40, p=2, m=6)
    seen, before = [], blas_counts()

    def note(state):
        seen.append(set(blas_counts()))

    problem.fitted(solver=solver, n_jobs=2, optimizer="lbfgs", max_iter=2, callbacks=[note])
    assert seen
    assert set().union(*seen) == {1}
    assert blas_counts() == before
