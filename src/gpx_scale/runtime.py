"""How work runs: the jit decorator, one scope for all threads, tiles over workers, memory before it is allocated."""

from __future__ import annotations

import math
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
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

from .errors import InputError

T = TypeVar("T")
R = TypeVar("R")

# No "reassoc": it cancels the magic number of the exponential. "nnan" and "ninf": the door has checked.
FASTMATH = {"contract", "nnan", "nsz", "ninf", "arcp"}


def jit(function: Callable[..., Any] | None = None, *, reassociate: bool = False) -> Any:
    """Compile lazily, without the GIL, cached on disk where the install (or the user's cache folder) can be written.

    Never `parallel=True`: tiles run in parallel through `Executor`, so that none of our work enters a numba threading
    layer, which is what makes concurrent calls safe under every layer. What it costs is measured in docs/measured.md.
    """
    if function is None:
        return lambda f: jit(f, reassociate=reassociate)
    options: dict[str, Any] = {"fastmath": FASTMATH | {"reassoc"} if reassociate else FASTMATH, "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written: compile in each process
        return numba.njit(**options)(function)


# threads


@lru_cache(maxsize=1)
def usable_cores() -> int:
    """Cores that affinity and control groups leave to this process; read once, since it opens files."""
    return cpu_count()


def effective_jobs(n_jobs: int | None) -> int:
    """Workers to use: None is every usable core, or one inside a joblib or Dask worker; negative counts from the end."""
    if n_jobs is None:
        return 1 if _inside_worker() else usable_cores()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r}: give None, a positive number of workers, or -1 for all cores")
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
    ours = [bool(re.search(r"scipy\.libs|scipy[/\\]\.dylibs", library.filepath)) for library in libraries]
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
        self._open: dict[object, tuple[int, int]] = {}  # scope -> its request, and the Python thread that opened it
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
        for (library, ours), before in zip(_blas_libraries(), self._before or (), strict=bool(self._before)):
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

    def add_up(self, function: Callable[[T], Any], items: Iterable[T]) -> Any:
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


def slices(n: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` that cover range(n)."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def lower_tiles(n: int, size: int) -> list[tuple[slice, slice]]:
    """Pairs (I, J) of slices that cover the lower triangle, diagonal tiles included, longest rows first."""
    cuts = slices(n, size)
    return [(rows, cols) for i, rows in reversed(list(enumerate(cuts))) for cols in cuts[: i + 1]]


# memory

CACHE_LINE = 64


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line, which numpy's own arrays do not: rows of a line each take one load."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].view(dtype).reshape(shape)


_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_memory(limit: int | float | str | None) -> int:
    """Bytes of a `memory_limit`: a number, a text such as "8GiB" or "500 MB", or None for 80% of what is available."""
    if limit is None:
        return int(0.8 * available_memory())
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*", limit.lower())
        if match is None:
            raise InputError(f'memory_limit={limit!r}: give bytes or a text such as "8GiB"')
        limit = float(match[1]) * _UNITS[match[2]]
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number) or not 0 < float(limit) < math.inf:
        raise InputError(f'memory_limit={limit!r}: give a positive number of bytes or a text such as "8GiB"')
    return int(limit)


def counted(count: int, noun: str) -> str:
    """1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    unit, size = next(((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20)) if count >= s / 10), ("KiB", 2**10))
    return f"{count / size:.1f} {unit}"


def available_memory() -> int:
    """Bytes that can still be allocated: what the system has left, within the control group's limit."""
    system = _meminfo("MemAvailable") or _physical_memory()
    return min([system, *_control_group_left()])


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes (0 where the system does not say)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _meminfo(key: str) -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30  # a system that says nothing: assume a small laptop


def _control_group_left() -> list[int]:
    left = []
    for folder, limit, used, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = (int(Path(folder, name).read_text()) for name in (limit, used))
            kept = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        left.append(max(0, most - now + int(kept.get(cache, 0))))  # file cache gives way to allocations
    return left
