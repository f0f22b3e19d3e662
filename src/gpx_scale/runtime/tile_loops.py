"""Loops over tiles that run in numba's threads, and where they must run serially instead.

Every loop is compiled twice from one source: with `parallel=True`, where `prange` divides its
iterations among numba's threads, and without, where `prange` is `range`. Each iteration owns what
it writes, so both give the same bits, whatever the number of threads. The serial twin runs

- if one thread is asked for, as inside a joblib or Dask worker;
- in a forked child, because numba ends a child that enters a parallel region after its parent has
  used OpenMP;
- if numba finds no threading layer.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numba

from ..compiled import FASTMATH, compiled_and_cached
from .parallel import ForkSafeLock, effective_jobs, numba_threads, tile_scope

# numba's workqueue layer ends a process that enters it from two Python threads at once.
_one_at_a_time = ForkSafeLock()
_is_forked = False


def _mark_forked() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


class TileLoop:
    """A loop over tiles, compiled in parallel and serially; `Threads.run` takes one of the two."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.__doc__ = function.__doc__
        self.parallel = compiled_and_cached(function, fastmath=FASTMATH, parallel=True)
        self.serial = compiled_and_cached(_renamed(function, "_serial"), fastmath=FASTMATH)


class Threads:
    """The threads that loops over tiles use inside `tile_threads`."""

    def __init__(self, lock: AbstractContextManager[Any] | None) -> None:
        self._lock = lock  # None: loops run serially.

    def run(self, loop: TileLoop, *arguments: Any) -> None:
        """Run a loop. Ctrl-C is noticed after it, so that a call should take less than a second."""
        if self._lock is None:
            loop.serial(*arguments)
        else:
            with self._lock:
                loop.parallel(*arguments)


@contextmanager
def tile_threads(n_jobs: int | None) -> Iterator[Threads]:
    """Let loops over tiles use `n_jobs` threads inside `with`, and BLAS one thread in each.

    numba never uses more threads than NUMBA_NUM_THREADS.
    """
    n = effective_jobs(n_jobs)
    layer = None if n == 1 or _is_forked else threading_layer()
    with tile_scope(n):
        if layer is None:
            yield Threads(None)
        else:
            yield Threads(_one_at_a_time if layer == "workqueue" else nullcontext())


@lru_cache(maxsize=1)
def threading_layer() -> str | None:
    """Start numba's threading layer and return its name; None if there is none to load."""
    if numba_threads() is None:
        return None
    return str(numba.threading_layer())  # type: ignore[attr-defined]


def _renamed(function: Any, ending: str) -> Any:
    """Return a copy under another name, by which numba's cache on disk tells the two apart."""
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__ + ending,
        function.__defaults__,
        function.__closure__,
    )
    copy.__qualname__ = function.__qualname__ + ending
    copy.__module__ = function.__module__
    return copy
