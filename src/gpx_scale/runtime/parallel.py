"""How work runs: the jit decorator, one scope for all threads, tiles over workers, memory before it is allocated."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, TypeVar

import numba
import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

from ..errors import InputError

T = TypeVar("T")
R = TypeVar("R")


@lru_cache(maxsize=1)
def usable_cores() -> int:
    """Cores that affinity and control groups leave to this process; read once, since it opens files."""
    return cpu_count()


def effective_jobs(n_jobs: int | None) -> int:
    """Workers to use: None is every usable core, or one inside a joblib or Dask worker; negative counts from the end."""
    if n_jobs is None:
        return 1 if _inside_worker() else usable_cores()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InputError(
            f"n_jobs={n_jobs!r}: give None, a positive number of workers, or -1 for all cores"
        )
    return int(n_jobs) if n_jobs > 0 else max(1, usable_cores() + 1 + int(n_jobs))


def _inside_worker() -> bool:
    backend, _ = get_active_backend()
    if (backend.nesting_level or 0) > 0:
        return True
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _blas_libraries() -> list[tuple[Any, bool]]:
    """The BLAS libraries in this process, and whether each is the one that factorises (scipy's).

    numpy and scipy wheels bring one OpenBLAS each. Two pools of waiting threads get in each other's way: a trsm took
    twice as long with both at two threads as with numpy's at one. So ours is scipy's; numpy's products are split by
    `Executor`.
    """
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    ours = [
        bool(re.search(r"scipy\.libs|scipy[/\\]\.dylibs", library.filepath))
        for library in libraries
    ]
    return list(zip(libraries, ours if any(ours) else [True] * len(libraries), strict=True))


class ForkSafeLock:
    """A lock that is open in a forked child, even if a thread of the parent held it at the moment of the fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _fork_safe_locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        self._lock = threading.Lock()


_fork_safe_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
FORK_PATIENCE_SECONDS = 5.0  # A fork waits this long for threads that are changing thread counts; they take microseconds.


class _ThreadCounts:
    """The open scopes of this process, and the thread counts of BLAS and numba that follow from them.

    BLAS counts are global to the process: what is in force is the least of all open requests, and the counts from before the
    first request come back with the end of the last. numba's count belongs to the Python thread that sets it. Both are read
    and set under one lock, which a fork waits for, because numba takes a lock of its own that a child could not open.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[
            object, tuple[int, int]
        ] = {}  # scope -> its request, and the Python thread that opened it
        self._before: list[int] | None = None  # None while nothing of ours is in force
        self._held_for_fork = False

    def enter(self, scope: object, n: int) -> None:
        with self._lock:
            if self._before is None:
                self._before = [library.get_num_threads() for library, _ in _blas_libraries()]
            self._open[scope] = n, threading.get_ident()
            self._apply()

    def leave(self, scope: object) -> None:
        """May be called again, and after an `enter` that was interrupted."""
        with self._lock:
            self._open.pop(scope, None)
            self._apply()
            if not self._open:
                self._before = None

    def _apply(self) -> None:
        least = min((n for n, _ in self._open.values()), default=None)
        for (library, ours), before in zip(
            _blas_libraries(), self._before or (), strict=bool(self._before)
        ):
            wanted = before if least is None else least if ours else 1
            if library.get_num_threads() != wanted:
                _set_blas_threads(library, wanted)

    def set_numba(self, n: int | None) -> int | None:
        """Set numba's thread count and return the one before; None where no threading layer of numba's can be loaded."""
        with self._lock:
            try:
                before = numba.get_num_threads()
                if n is not None:
                    numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
            except ValueError:
                return None
            return before

    def before_fork(self) -> None:
        self._held_for_fork = self._lock.acquire(timeout=FORK_PATIENCE_SECONDS)

    def after_fork_in_parent(self) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Only the thread that forked goes on in the child: scopes of the others will never be left, so they end here."""
        self._lock, self._held_for_fork = threading.RLock(), False
        me = threading.get_ident()
        self._open = {scope: request for scope, request in self._open.items() if request[1] == me}
        self._apply()
        if not self._open:
            self._before = None
        for lock in list(_fork_safe_locks):
            lock.renew()


def _set_blas_threads(library: Any, wanted: int) -> None:
    """threadpoolctl 3.8 lets only the thread that set OpenBLAS first set it again, and passes over calls from others; ours
    take turns by a lock, so each may."""
    release = getattr(type(library), "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(wanted)
    if release is not None:
        release(force=True)


_counts = _ThreadCounts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_counts.before_fork,
        after_in_parent=_counts.after_fork_in_parent,
        after_in_child=_counts.after_fork_in_child,
    )


@contextmanager
def threads(n_jobs: int | None) -> Iterator[int]:
    """`with threads(n):` numba (of this Python thread) and our BLAS (of the process) use n threads, at most the cores.

    Scopes may overlap between Python threads; whatever was set before is restored when the last one ends. A forked child
    keeps the scopes that the forking thread is inside of, and no others.
    """
    n, scope = min(effective_jobs(n_jobs), usable_cores()), object()
    numba_before = _counts.set_numba(None)
    try:
        _counts.set_numba(n)
        _counts.enter(scope, n)
        yield n
    finally:
        try:
            _counts.leave(scope)
        except BaseException:  # Ctrl-C on the way out: once more, to the end
            _counts.leave(scope)
            raise
        finally:
            _counts.set_numba(numba_before)


def set_numba_threads(n: int) -> None:
    """Let numba use n threads, at most NUMBA_NUM_THREADS, when this Python thread enters a parallel loop."""
    _counts.set_numba(n)


class Executor:
    """Maps tiles over worker threads, BLAS at one thread in each; compiled kernels and BLAS let go of the GIL.

    Results come in the order of the items, so a sum over them does not depend on the number of workers.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = effective_jobs(n_jobs)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_jobs, thread_name_prefix="gpx_scale")
        return self._pool

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        items = list(items)
        if self.n_jobs == 1 or len(items) <= 1:
            return [function(item) for item in items]
        workers = self._workers()
        with threads(1):
            futures = [workers.submit(function, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                _drop(futures)
                raise

    def sum_over(self, function: Callable[[T], Any], items: Iterable[T]) -> Any:
        """sum of function(item), with `+=` on the first result, in the order of the items, so that it does not depend on the
        number of workers; None without items. Items are taken as workers come free: two a worker are in memory."""
        total = None

        def add(result: Any) -> None:
            nonlocal total
            if total is None:
                total = result
            else:
                total += result

        if self.n_jobs == 1:
            for item in items:
                add(function(item))
            return total
        workers = self._workers()
        waiting: deque[Any] = deque()
        with threads(1):
            try:
                for item in items:
                    waiting.append(workers.submit(function, item))
                    if len(waiting) > 2 * self.n_jobs:
                        add(waiting.popleft().result())
                while waiting:
                    add(waiting.popleft().result())
            except BaseException:
                _drop(waiting)
                raise
        return total

    def matmul(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """A @ B with the rows of A split over the workers;  (m, n), (n, c) -> (m, c)."""
        out = np.empty((len(A), B.shape[1]), np.result_type(A, B))

        def one(rows: slice) -> None:
            np.matmul(A[rows], B, out=out[rows])

        self.map(one, slices(len(A), max(64, -(-len(A) // self.n_jobs))))
        return out


def _drop(futures: Iterable[Any]) -> None:
    """After an error, or Ctrl-C: nothing of a map is left running when the caller goes on."""
    futures = list(futures)
    for future in futures:
        future.cancel()
    for future in futures:
        if not future.cancelled():
            future.exception()


TILE = 384  # rows and columns: measured best of 128-512 at n = 1437 and 4000, one and two threads


def slices(n: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` that cover range(n)."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def evenly_spaced(count: int, size: int) -> np.ndarray:
    """Return `count` of the numbers from 0 to size - 1, or all of them if they are fewer.

    They are distinct and ascending, the first is 0, and with count > 1 the last is size - 1. Between
    those, multiples of the step (size - 1) / (count - 1) are rounded down.
    """
    return np.linspace(0, size - 1, min(count, size)).astype(int)


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest scores in ascending order.

    All of them if they are fewer;  (n,), count >= 1 -> (min(n, count),);  O(n) and a sort of `count`.
    """
    rest = scores.size - count
    if rest <= 0:
        return np.arange(scores.size)
    return np.sort(np.argpartition(scores, rest)[rest:])


def lower_tiles(n: int, size: int) -> list[tuple[slice, slice]]:
    """Pairs (I, J) of slices that cover the lower triangle, diagonal tiles included, longest rows first."""
    cuts = slices(n, size)
    return [(rows, cols) for i, rows in reversed(list(enumerate(cuts))) for cols in cuts[: i + 1]]


THREADS_FROM = 800
THREADS_UP_TO = {
    8: 15_000,
    4: 23_000,
}  # rows by item size: OpenBLAS's threaded potrf ends the process at 16,000 and 30,000


def safe_threads(n: int, itemsize: int = 8) -> Any:
    """Return a scope for the Cholesky factorisation of n rows: one BLAS thread where several might end the process."""
    return nullcontext() if n <= THREADS_UP_TO[itemsize] else threads(1)


def worthwhile_threads(n: int, itemsize: int = 8) -> Any:
    """One BLAS thread for small matrices (two gain a third at n = 442 on idle cores, and wait for seconds on busy ones), and
    for those too large for several."""
    return safe_threads(n, itemsize) if n >= THREADS_FROM else threads(1)


class FactorisationThreads:
    """Of factorisations one after the other: where other processes hold the cores, OpenBLAS's threads wait for each other (50
    times slower at n = 1,000), and from then on one thread is taken."""

    def __init__(self, n_jobs: int, itemsize: int = 8) -> None:
        self.alone = n_jobs == 1
        self._itemsize = itemsize

    @contextmanager
    def over(self, n: int, flops: float = 0.0) -> Iterator[None]:
        """A scope of threads for a matrix of n rows; `flops` that will be taken, to be judged by (0: not)."""
        start = time.perf_counter()
        with threads(1) if self.alone else worthwhile_threads(n, self._itemsize):
            yield
        took = time.perf_counter() - start
        if flops and not self.alone and THREADS_FROM <= n <= THREADS_UP_TO[self._itemsize]:
            self.alone = flops / took < 0.4 * _one_thread_flops()


def _one_thread_flops() -> float:
    """Flops a second of one thread now, by a product of a few milliseconds."""
    A = np.ones((400, 400))
    start = time.perf_counter()
    A @ A
    return 2 * 400**3 / (time.perf_counter() - start)
