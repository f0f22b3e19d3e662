"""Parallel work: one process per core with one thread each, which is how splits and small fits
use cores best.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from joblib import cpu_count

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)


@contextmanager
def processes() -> Iterator[Executor]:
    """Yield as many worker processes as there are cores, with one thread each.

    Libraries read the environment when they are loaded, so it is set before the workers start.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    # The workers start with the first work.
    workers = ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn"))
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
