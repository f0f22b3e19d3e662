"""The resources of one call: worker threads, the memory limit, random numbers, and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .journal import Journal
from .memory import chunk_bytes, parse_memory, within
from .parallel import Executor, effective_jobs, most_threads, threads


@dataclass(frozen=True)
class Session:
    """The workers, limits and journal of one call of `fit`, `predict` or `explain`.

    `memory_limit` is the number of bytes that the call may use in all, and `chunk_bytes` the number
    that it may use for one chunk of queries. `is_seeded` says whether the user gave a random state.
    """

    executor: Executor
    journal: Journal
    random: np.random.RandomState
    memory_limit: int
    chunk_bytes: int
    is_seeded: bool = False

    @classmethod
    def of(
        cls,
        executor: Executor,
        memory_limit: int | float | str | None = None,
        random_state: Any = None,
        journal: Journal | None = None,
    ) -> Session:
        """Return a session that uses an executor which the caller starts and ends."""
        limit = parse_memory(memory_limit)
        random = check_random_state(random_state)
        seeded = random_state is not None
        return cls(executor, journal or Journal(), random, limit, chunk_bytes(limit), seeded)

    @classmethod
    @contextmanager
    def open(
        cls,
        n_jobs: int | None = None,
        memory_limit: int | float | str | None = None,
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None,
    ) -> Iterator[Session]:
        """Yield a session with workers of its own, which end with the `with` statement.

        BLAS uses one thread inside. Work is divided among `n_jobs` threads by the executor and by
        loops over tiles, whose results do not depend on the number of threads. There are never
        more than can work at the same time: further ones would only take memory, and every loop
        would be longer before Ctrl-C is noticed.
        """
        journal, workers = Journal(verbose, callbacks), min(effective_jobs(n_jobs), most_threads())
        with threads(1), Executor(workers) as executor:
            yield cls.of(executor, memory_limit, random_state, journal)

    def draw_seed(self) -> int:
        """Return a seed for choosing subsets of rows.

        It is always 0 without a random state, so that a fit that continues from a checkpoint uses
        the same subset.
        """
        return int(self.random.randint(2**31)) if self.is_seeded else 0

    def require(self, bytes_needed: int, what: str, instead: str = "fewer rows") -> None:
        """Raise a MemoryLimitError, before anything is allocated, if more than the limit is needed.

        `what` needs the memory (the subject of the message), and `instead` is a way to need less.
        """
        within(bytes_needed, self.memory_limit, what, instead)


_serial: list[Session] = []


def serial_session() -> Session:
    """Return a session with one thread, for work that a worker does on one block of rows."""
    if not _serial:
        _serial.append(Session.of(Executor(1)))
    return _serial[0]
