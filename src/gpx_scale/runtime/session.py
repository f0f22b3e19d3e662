"""What one call works with: workers, memory, randomness, and who is told of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..errors import MemoryLimitError
from .journal import Journal
from .memory import chunk_bytes, format_bytes, parse_memory
from .parallel import Executor, threads


@dataclass(frozen=True)
class Session:
    """The workers, limits and listeners of one call of `fit`, `predict` or `explain`.

    `memory_limit` and `chunk_bytes` are in bytes: what the call may hold in all, and for one
    chunk of queries.
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
        """Return a session of workers that somebody else has started, without a scope of threads."""
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
        """Start the workers of a call, within one scope of threads, and end them with it."""
        journal = Journal(verbose, callbacks)
        with threads(n_jobs), Executor(n_jobs) as executor:
            yield cls.of(executor, memory_limit, random_state, journal)

    def draw_seed(self) -> int:
        """Return a seed of subsets of rows: always 0 without a random state, so that a checkpoint finds its subset again."""
        return int(self.random.randint(2**31)) if self.is_seeded else 0

    def require(self, bytes_needed: int, what: str, instead: str = "fewer rows") -> None:
        """Raise a MemoryLimitError, before anything is allocated, if the limit is lower."""
        if bytes_needed > self.memory_limit:
            raise MemoryLimitError(
                f"{what} needs {format_bytes(bytes_needed)}, memory_limit is "
                f"{format_bytes(self.memory_limit)}: raise memory_limit, or use {instead}"
            )


_serial: list[Session] = []


def serial_session() -> Session:
    """Return the session of work on one block inside a worker, which has one thread."""
    if not _serial:
        _serial.append(Session.of(Executor(1)))
    return _serial[0]
