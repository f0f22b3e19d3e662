"""Training rows, wherever they are: in memory, in a stream, or on a cluster.

Every sum over rows is computed block by block, and the results are added up. Blocks have the same
rows however the data are cut into chunks, and a subset has the same rows wherever the data are. So
a fit to an array and a fit to a stream of it give the same numbers to the last digit.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..errors import InputError
from ..kernels.kernel import Kernel
from ..runtime.files import digest
from ..runtime.parallel import slices
from ..runtime.session import Session
from .features import SparseFeatures, stacked
from .inputs import TrainingRows
from .row_columns import joined_columns

# Rows of a block. From 512 to 2,048, the time of an evaluation with 500 and with 1,000 inducing
# points differs by less than 10%.
BLOCK_ROWS = 1024
# The rows of a function that yields chunks cannot be read by their numbers.
READ_IN_ORDER = (
    "These rows can be read only in their order, and this solver reads single rows at random. Give "
    "arrays, a memory map or a folder of files, or use solver='inducing'."
)
R = TypeVar("R")
# A function that is called with the number of rows done and the number of all rows.
ReportProgress = Callable[[int, int], None]


def ignore_progress(done: int, rows: int) -> None:
    """Do nothing with the progress of a pass over rows."""


class RowSource(abc.ABC):
    """A set of training rows in standardised units, which is read in passes."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abc.abstractmethod
    def subset(self, count: int) -> TrainingRows:
        """Return `count` rows chosen at random, or all if they are fewer, in their order.

        They are the rows with the smallest `keys`, so a smaller subset is part of a larger one.
        """

    @abc.abstractmethod
    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        """Return the sum of task(block) over all blocks of rows, in one pass."""

    in_memory: ClassVar[bool] = False

    def prepared(self, kernel: Kernel, keep: bool, session: Session) -> RowSource:
        """Return the rows in the form that a kernel and a solver take.

        `keep` says whether the solver keeps all rows in memory for its posterior.
        """
        return self

    @abc.abstractmethod
    def with_intercept(self) -> RowSource:
        """Return the same rows with the column of an intercept in Z."""

    @abc.abstractmethod
    def load(self) -> TrainingRows:
        """Return all rows if they are in memory, and raise an InputError if they are not."""

    @property
    def is_indexed(self) -> bool:
        """Return whether given rows can be read by their numbers, as from arrays and files."""
        return self.in_memory

    def indexed(self) -> Any:
        """Return the rows in a form from which given ones can be read by their numbers.

        They are `TrainingRows` in memory, or `indexed_rows.IndexedRows`. If rows can be read only
        in their order, an InputError says so.
        """
        raise InputError(READ_IN_ORDER)

    @abc.abstractmethod
    def fingerprint(self, kernel: Kernel) -> bytes:
        """Return a checksum of the rows, as this kernel takes them, in one pass.

        A checkpoint tells by it whether it was made from the same rows.
        """


@dataclass(frozen=True)
class MemoryRows(RowSource):
    """Training rows in memory. Subsets are chosen by the seed, or by the seed 0 if it is None."""

    data: TrainingRows
    seed: int | None = None

    in_memory = True

    def __len__(self) -> int:
        return len(self.data)

    def subset(self, count: int) -> TrainingRows:
        return self.data[least(keys(0, len(self.data), self.seed or 0), count)]

    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        blocks = (self.data[rows] for rows in slices(len(self), BLOCK_ROWS))
        reported = reporting_progress(blocks, len(self), session.journal.passed)
        total: R = session.executor.sum_over(task, reported)
        return total

    def load(self) -> TrainingRows:
        return self.data

    def indexed(self) -> TrainingRows:
        return self.data

    def with_intercept(self) -> MemoryRows:
        return replace(self, data=self.data.with_intercept())

    def prepared(self, kernel: Kernel, keep: bool, session: Session) -> MemoryRows:
        """Return these rows with x in the form that the kernel takes.

        A solver that does not keep all rows works on blocks and subsets, so x must then be in a
        form from which rows can be selected, and a seed for the subsets is drawn.
        """
        if keep:
            return replace(self, data=replace(self.data, x=kernel.training_input(self.data.x)))
        if self.seed is not None:
            return self
        return MemoryRows(replace(self.data, x=kernel.sliceable(self.data.x)), session.draw_seed())

    def fingerprint(self, kernel: Kernel) -> bytes:
        data = self.data
        known = [column for _, column in sorted(data.columns.known.items())]
        return digest([*data.Z.arrays, data.y, *kernel.input_arrays(data.x), *known])


def reporting_progress(
    blocks: Iterable[TrainingRows], rows: int, report: ReportProgress
) -> Iterator[TrainingRows]:
    """Yield these blocks, and report after each one how many of the rows are done."""
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        report(done, rows)


def keys(start: int, count: int, seed: int) -> np.ndarray:
    """Return a random number for each row;  (count,) uint64.

    It depends only on the seed and on the row's position in all rows, by the generator splitmix64.
    `start` is the position of the first row.
    """
    with np.errstate(over="ignore"):
        key = np.arange(start, start + count, dtype=np.uint64) + np.uint64(seed) * np.uint64(
            0x632BE59BD9B4E019
        )
        key *= np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return key ^ (key >> np.uint64(31))


def least(keys: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` smallest keys, or of all if they are fewer, ascending."""
    if count >= keys.size:
        return np.arange(keys.size)
    return np.sort(np.argpartition(keys, count)[:count])


def blocks_of(chunks: Iterable[TrainingRows], size: int = BLOCK_ROWS) -> Iterator[TrainingRows]:
    """Yield the rows of all chunks in blocks of `size` rows; the last block may have fewer."""
    waiting: list[TrainingRows] = []
    have = 0
    for chunk in chunks:
        at = 0
        while have + len(chunk) - at >= size:
            cut = at + size - have
            yield joined([*waiting, chunk[at:cut]])
            waiting, have, at = [], 0, cut
        if at < len(chunk):
            waiting.append(chunk[at:])
            have += len(chunk) - at
    if waiting:
        yield joined(waiting)


def joined(parts: list[TrainingRows]) -> TrainingRows:
    """Return the rows of all parts as one, in their order."""
    if len(parts) == 1:
        return parts[0]
    x = [part.x for part in parts]
    return TrainingRows(
        stacked(x) if isinstance(x[0], SparseFeatures) else np.concatenate(x),
        stacked([part.Z for part in parts]),
        np.concatenate([part.y for part in parts]),
        columns=joined_columns([part.columns for part in parts]),
    )
