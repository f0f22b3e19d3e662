"""Tasks that a Dask worker runs on one partition of the rows: read, survey, scale, and sum over it.

A partition is a triple (X, y, Z) as the user gave it; Z may be None. Errors name the partition.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..data.chunks import ChunkChecksum, is_empty, named, through
from ..data.input_pair import take
from ..data.inputs import InputTransforms, Preprocessor, TrainingRows
from ..data.row_files import Chunk
from ..data.row_source import MemoryRows, joined, keys, least
from ..data.stream import Survey
from ..errors import InputError
from ..runtime.memory import available_memory
from ..runtime.parallel import threads
from ..runtime.session import serial_session

# A worker holds partitions as long as it uses at most this share of its memory. Scaled rows can be
# larger than the partitions that they replace, and Dask pauses a worker at 80%: with a share of
# 0.6, one of three fits with little memory had a worker restarted.
MAX_HELD_MEMORY_SHARE = 0.5
# The parameters of glibc's mallopt, by their numbers in malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
# glibc accepts no larger threshold above which an allocation has pages of its own.
MMAP_THRESHOLD_BYTES = 32 * 2**20
# The process keeps up to this much free memory at the top of its heap.
TRIM_THRESHOLD_BYTES = 512 * 2**20


def triple_of(X: Any, y: Any, Z: Any = None) -> tuple[Any, Any, Any]:
    """Return the arguments as one partition."""
    return X, y, Z


def triple_of_blocks(*blocks: Any) -> tuple[Any, Any, Any]:
    """Return the only block of each array as one partition.

    Dask passes the block of a table inside of a list for each axis except that of the rows.
    """
    found = []
    for block in blocks:
        while isinstance(block, list):
            (block,) = block
        found.append(block)
    return triple_of(*found)


def triple_of_future(parts: Any) -> tuple[Any, Any, Any]:
    """Return the result of a user's future as one partition."""
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
        raise InputError(
            f"The result of a future is of the type {type(parts).__name__}. "
            "Give futures of (X, y) or (X, y, Z)."
        )
    return triple_of(*parts)


def head_of(parts: Any) -> tuple[int, Any]:
    """Return the number of rows, and a copy of the first row of X.

    A view of the row would keep all rows in memory.
    """
    return len(parts[1]), copy.deepcopy(take(parts[0], slice(0, 1)))


def has_room(parts: Any) -> bool:
    """Return whether this worker can hold the partition that it has just read.

    It holds others already. A worker without a limit has the memory of its machine. Memory that
    other processes use is not available to it.
    """
    import distributed

    worker = distributed.get_worker()
    limit = worker.memory_manager.memory_limit or distributed.system.MEMORY_LIMIT
    left = min(limit - worker.monitor.get_process_memory(), available_memory())
    return bool(left >= (1.0 - MAX_HELD_MEMORY_SHARE) * limit)


def survey_partition(
    parts: Any, transforms: InputTransforms, name: str, start: int | None = None
) -> Survey | None:
    """Return the survey of a partition, without a subset of its rows; None if it has no rows.

    The rows of a subset depend on the number of rows before the partition, which is not known yet.
    """
    chunk = Chunk(name, *parts)
    return None if is_empty(chunk) else Survey.of(name, through(transforms, chunk, start), 0, 0, 0)


def rows_of_survey(survey: Survey | None) -> int:
    """Return the number of rows that were surveyed."""
    return 0 if survey is None else survey.rows


def with_intercept(data: TrainingRows | None) -> TrainingRows | None:
    """Return the rows of a partition with the column of an intercept; None if there are none."""
    return None if data is None else data.with_intercept()


def scale_partition(
    parts: Any,
    preprocessor: Preprocessor,
    name: str,
    start: int | None,
    standardize: bool,
    before: ChunkChecksum | None = None,
) -> TrainingRows | None:
    """Return the rows in standardised units; None if there are none.

    If there was a survey, `before` is its checksum, and the rows must be those that it saw.
    """
    chunk = Chunk(name, *parts)
    if is_empty(chunk):
        if before is not None:
            ChunkChecksum.of_nothing(name).must_be(before)
        return None
    raw = through(
        preprocessor.transforms, chunk, start, (preprocessor.sparse_x, preprocessor.sparse_z)
    )
    if before is not None:
        ChunkChecksum.of(name, raw).must_be(before)
    with named(chunk):
        preprocessor.must_match(raw.x, raw.Z, raw.separate)
        return preprocessor.training(raw.x, raw.Z, raw.y, standardize)


def rows_of_inputs(data: TrainingRows | None) -> int:
    """Return the number of scaled rows."""
    return 0 if data is None else len(data)


@dataclass
class Sample:
    """The `keep` rows with the smallest keys, in standardised units.

    Samples of partitions add up to the sample of all rows.
    """

    keys: np.ndarray
    data: TrainingRows
    keep: int

    @classmethod
    def of(cls, data: TrainingRows | None, start: int, keep: int, seed: int) -> Sample | None:
        """Return the sample of a partition with `start` rows before it; None if it has no rows."""
        if data is None:
            return None
        row_keys = keys(start, len(data), seed)
        at = least(row_keys, keep)
        return cls(row_keys[at], data[at], keep)

    def __iadd__(self, other: Sample) -> Sample:
        both = np.concatenate([self.keys, other.keys])
        at = least(both, self.keep)
        self.keys, self.data = both[at], joined([self.data, other.data])[at]
        return self


def take_rows(data: TrainingRows, index: np.ndarray) -> TrainingRows:
    """Return some rows of a partition by their numbers in it."""
    return data[index]


def pass_over(data: TrainingRows, task: Any, start: int) -> Any:
    """Return a task after it has seen a partition, whose first row has the number `start`."""
    _keep_freed_memory()
    with threads(1):
        task.add(data, start, serial_session())
    return task


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Let this process keep the memory that it frees.

    Dask's nannies have malloc give back freed memory at once. Every block of rows then waits for
    the same pages again, which takes 1.7 times the time.
    """
    # Only glibc has mallopt.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def sum_over(task: Callable[[TrainingRows], Any], data: TrainingRows | None) -> Any:
    """Return the sum of a task over the blocks of a partition, in one thread; None without rows."""
    if data is None:
        return None
    _keep_freed_memory()
    with threads(1):
        return MemoryRows(data).sum_over(task, serial_session())


def add_together(parts: list[Any]) -> Any:
    """Return the sum of those parts that are not None; None if all are."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    # Dask keeps the parts, so the sum is written to a copy.
    total = copy.deepcopy(found[0])
    for part in found[1:]:
        total += part
    return total


def itself(value: Any) -> Any:
    """Return the value unchanged.

    Submitting this task makes a worker store the value for other tasks.
    """
    return value
