"""Threads: how many BLAS and numba use, worker threads, and how work is cut into tiles for them."""

from __future__ import annotations

import _thread
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numba
import numba.np.ufunc.parallel as numba_layer
import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

from ..errors import InputError
from .fork import compiler_lock, open_property_locks

T = TypeVar("T")
R = TypeVar("R")

# A fork waits this long for threads that are changing thread counts, which takes microseconds, and
# for numba's compiler, which takes seconds.
FORK_PATIENCE_SECONDS = 5.0
COMPILER_PATIENCE_SECONDS = 60.0
# Rows and columns of a tile of a matrix. This is the measured best of 128 to 512 at n = 1,437 and
# 4,000, with one and two threads.
TILE_ROWS = 384
# The settings by which threads of the OpenMP libraries of GNU and LLVM spin for some microseconds
# at most. Without any spinning, products with pairs of a sparse Z, which have a barrier every tenth
# of a millisecond, take 1.1 times as long; a fit beside a busy process takes 0.97 of the time.
PASSIVE_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "0"}
# A worker multiplies this many rows at once. BLAS is near its full speed from 64 on, and sixteen
# workers share 2,048 rows evenly.
PRODUCT_ROWS = 128


@lru_cache(maxsize=1)
def usable_cores() -> int:
    """Return the number of cores that affinity and control groups leave to this process.

    It is read once, because that opens files.
    """
    return int(cpu_count())


def effective_jobs(n_jobs: int | None) -> int:
    """Return the number of workers to use.

    None stands for all usable cores, or for one inside a joblib or Dask worker. Negative numbers
    count back from the number of cores, so -1 stands for all of them and -2 for all but one.
    """
    if n_jobs is None:
        return 1 if _inside_worker() else usable_cores()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InputError(
            f"n_jobs={n_jobs!r} is not valid. "
            "Give None, a positive number of workers, or -1 for all cores."
        )
    return int(n_jobs) if n_jobs > 0 else max(1, usable_cores() + 1 + int(n_jobs))


def most_threads() -> int:
    """Return the number of threads that can work at the same time in this process.

    These are as many as there are usable cores, or NUMBA_NUM_THREADS if that is more.
    """
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    return max(usable_cores(), most)


def _inside_worker() -> bool:
    """Return whether this is a worker of joblib or Dask, which has other workers beside it."""
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
    """Return the BLAS libraries in this process, each with whether it may use several threads.

    The wheels of numpy and scipy bring one OpenBLAS each. Their two pools of waiting threads get in
    each other's way: a triangular solve (trsm) took twice as long with both at two threads as with
    numpy's at one. So only scipy's library, which factorises, has several threads; products by
    numpy are split over the workers of an `Executor`.
    """
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    ours = [
        bool(re.search(r"scipy\.libs|scipy[/\\]\.dylibs", library.filepath))
        for library in libraries
    ]
    return list(zip(libraries, ours if any(ours) else [True] * len(libraries), strict=True))


@lru_cache(maxsize=1)
def start_numba_threads() -> None:
    """Start numba's threading layer, or raise a ValueError if there is none to load.

    OpenMP's threads wait for the next parallel loop by spinning, unless they are told otherwise
    when its library is loaded. Where other processes use the cores, spinning threads keep those
    that have work from running: a fit of 2,000 rows took 5 s with them and 3.6 s without (two
    threads beside one busy process), and 2.5 s without on idle cores.
    """
    unset = {name: value for name, value in PASSIVE_WAITING.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        numba.get_num_threads()
    finally:
        for name in unset:
            del os.environ[name]


class ForkSafeLock(_thread.RLock):  # type: ignore[misc]
    """A lock that is open in a forked child, even if a thread of the parent held it at the fork.

    Its `with` runs no Python code, in which Ctrl-C could come after the lock was taken and before
    the block that gives it back: a lock whose `__enter__` was written in Python stayed closed after
    every second interrupt of a loop that takes it.
    """

    def __init__(self) -> None:
        super().__init__()
        _fork_safe_locks.add(self)

    def renew(self) -> None:
        """Open the lock, whoever holds it."""
        self._at_fork_reinit()  # type: ignore[attr-defined]


_fork_safe_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class _ThreadCounts:
    """The open `threads` scopes of this process, and the thread counts that follow from them.

    The thread count of a BLAS library is global to the process. The least of all open requests is
    in force, and when the last scope ends, the counts from before the first one come back. The
    count of numba belongs to the Python thread that sets it. Both are read and set under one lock,
    and a fork waits for it, because numba takes a lock of its own that a child could not open. For
    the same reason it waits for numba's compiler: in a child that is forked while a thread of the
    parent compiles, the first function to compile or to load from the cache would wait for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # The requested number of threads and the Python thread of each open scope.
        self._open: dict[object, tuple[int, int]] = {}
        # The thread counts of the BLAS libraries before the first scope; None if none is open.
        self._before: list[int] | None = None
        # The locks that the forking thread holds.
        self._held_for_fork: list[threading.RLock] = []

    def enter(self, scope: object, n: int) -> None:
        """Open a scope that requests at most n threads."""
        with self._lock:
            if self._before is None:
                self._before = [library.get_num_threads() for library, _ in _blas_libraries()]
            self._open[scope] = n, threading.get_ident()
            self._apply()

    def leave(self, scope: object) -> None:
        """Close a scope. This may be called twice, or after an `enter` that was interrupted."""
        with self._lock:
            self._open.pop(scope, None)
            self._apply()
            if not self._open:
                self._before = None

    def _apply(self) -> None:
        """Set the BLAS libraries to the least open request, or back to their counts from before."""
        least = min((n for n, _ in self._open.values()), default=None)
        for (library, ours), before in zip(
            _blas_libraries(), self._before or (), strict=bool(self._before)
        ):
            wanted = before if least is None else least if ours else 1
            if library.get_num_threads() != wanted:
                _set_blas_threads(library, wanted)

    def set_numba(self, n: int | None) -> int | None:
        """Set numba's thread count, unless n is None, and return the count from before.

        It is None if no threading layer of numba can be loaded.
        """
        with self._lock:
            try:
                start_numba_threads()
            except ValueError:
                return None
            # numba's public functions take a lock in every call, by a `with` that is written in
            # Python. Ctrl-C in it leaves the lock closed, and another thread would wait for ever.
            before: int = getattr(numba_layer, "_get_num_threads", numba.get_num_threads)()
            if n is not None:
                most = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
                setter = getattr(numba_layer, "_set_num_threads", numba.set_num_threads)
                setter(min(n, most))
            return before

    def before_fork(self) -> None:
        """Wait until no other thread compiles or changes thread counts."""
        for lock, seconds in (
            (compiler_lock, COMPILER_PATIENCE_SECONDS),
            (self._lock, FORK_PATIENCE_SECONDS),
        ):
            if lock.acquire(timeout=seconds):
                self._held_for_fork.append(lock)

    def after_fork_in_parent(self) -> None:
        """Let the threads of the parent go on."""
        while self._held_for_fork:
            self._held_for_fork.pop().release()

    def after_fork_in_child(self) -> None:
        """Close the scopes of all other threads, which do not exist in the child.

        Locks that they held are replaced by open ones.
        """
        self.after_fork_in_parent()
        self._lock = threading.RLock()
        me = threading.get_ident()
        self._open = {scope: request for scope, request in self._open.items() if request[1] == me}
        self._apply()
        if not self._open:
            self._before = None
        for lock in list(_fork_safe_locks):
            lock.renew()
        open_property_locks()


def _set_blas_threads(library: Any, wanted: int) -> None:
    """Set the thread count of a BLAS library.

    threadpoolctl 3.8 lets only the thread that set OpenBLAS first set it again, and ignores calls
    from other threads. Our threads take turns by a lock, so each of them may.
    """
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


def numba_threads() -> int | None:
    """Return numba's thread count in this Python thread; None if it has no threading layer."""
    return _counts.set_numba(None)


@contextmanager
def threads(n_jobs: int | None) -> Iterator[int]:
    """Let numba (in this Python thread) and BLAS (in the process) use n threads inside `with`.

    There are never more threads than cores. Scopes may overlap between Python threads, and the
    counts from before are restored when the last scope ends. A forked child keeps the scopes that
    the forking thread is inside of, and no others.
    """
    n = min(effective_jobs(n_jobs), usable_cores())
    with _thread_counts(n, n):
        yield n


@contextmanager
def tile_scope(n_jobs: int) -> Iterator[None]:
    """Let numba use `n_jobs` threads, at most NUMBA_NUM_THREADS, and BLAS one thread in each."""
    with _thread_counts(blas=1, numba_threads=n_jobs):
        yield


@contextmanager
def _thread_counts(blas: int, numba_threads: int) -> Iterator[None]:
    """Set both counts inside `with`, and restore them whatever interrupts it."""
    scope, numba_before = object(), _counts.set_numba(None)

    def restore() -> None:
        _counts.leave(scope)
        _counts.set_numba(numba_before)

    try:
        _counts.set_numba(numba_threads)
        _counts.enter(scope, blas)
        yield
    finally:
        try:
            restore()
        except BaseException:
            # Ctrl-C may have interrupted it, so we try once more.
            restore()
            raise


class Executor:
    """A pool of worker threads, each of which uses one BLAS thread.

    Threads suffice, because compiled loops and BLAS release the GIL. Results come in the order of
    the items, so a sum over them does not depend on the number of workers.
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
        """Return the pool of threads, which starts at its first use."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_jobs, thread_name_prefix="gpx_scale")
        return self._pool

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return function(item) for all items, in their order."""
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
        """Return the sum of function(item) over all items, or None if there are no items.

        Results are added to the first one by `+=`, in the order of the items, so that the sum does
        not depend on the number of workers. An item is taken when a worker is free for it, so about
        two items per worker are in memory.
        """
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
        """Return A @ B with the rows of A split over the workers;  (m, n), (n, c) -> (m, c).

        The blocks of rows do not depend on the number of workers, and so neither do the last
        digits.
        """
        out = np.empty((len(A), B.shape[1]), np.result_type(A, B))

        def one(rows: slice) -> None:
            np.matmul(A[rows], B, out=out[rows])

        self.map(one, slices(len(A), PRODUCT_ROWS))
        return out


def _drop(futures: Iterable[Any]) -> None:
    """Cancel the tasks of a map after an error or Ctrl-C, and wait for those that run already."""
    futures = list(futures)
    for future in futures:
        future.cancel()
    for future in futures:
        if not future.cancelled():
            future.exception()


def slices(n: int, size: int) -> list[slice]:
    """Return consecutive slices of at most `size` rows that cover range(n)."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def all_but(n: int, excluded: np.ndarray) -> np.ndarray:
    """Return the numbers from 0 to n - 1 that are not `excluded`, ascending;  9 bytes each."""
    kept = np.ones(n, bool)
    kept[excluded] = False
    return np.flatnonzero(kept)


def evenly_spaced(count: int, size: int) -> np.ndarray:
    """Return `count` of the numbers from 0 to size - 1, or all of them if they are fewer.

    They are distinct and ascending, the first is 0, and with count > 1 the last is size - 1.
    Between those, multiples of the step (size - 1) / (count - 1) are rounded down.
    """
    return np.linspace(0, size - 1, min(count, size)).astype(int)


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest scores, or of all if they are fewer, ascending.

    (n,), count >= 1 -> (min(n, count),);  the cost is O(n) and a sort of `count` numbers.
    """
    rest = scores.size - count
    if rest <= 0:
        return np.arange(scores.size)
    return np.sort(np.argpartition(scores, rest)[rest:])
