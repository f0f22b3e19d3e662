"""How many BLAS threads a dense factorisation takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from .runtime import threads

THREADS_FROM = 800
THREADS_UP_TO = {8: 15_000, 4: 23_000}  # rows by item size: OpenBLAS's threaded potrf ends the process at 16,000 and 30,000


def safe_threads(n: int, itemsize: int = 8) -> Any:
    """Return a scope for the Cholesky factorisation of n rows: one BLAS thread where several might end the process."""
    return nullcontext() if n <= THREADS_UP_TO[itemsize] else threads(1)


def worthwhile_threads(n: int, itemsize: int = 8) -> Any:
    """One BLAS thread for small matrices (two gain a third at n = 442 on idle cores, and wait for seconds on busy ones), and
    for those too large for several."""
    return safe_threads(n, itemsize) if n >= THREADS_FROM else threads(1)


class Watch:
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
