"""Rows to fit on, wherever they are. Every sum over them is a map over blocks of rows and an addition of its results.

Blocks have the same rows however the data are cut into chunks, and a sample takes the same rows wherever they are: what is
fitted to an array, and to a stream of it, is the same to the last digit.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..kernels.kernel import Kernel
from ..runtime.files import digest
from ..runtime.parallel import slices
from ..runtime.session import Session
from .features import DenseFeatures, Features, SparseFeatures
from .inputs import TrainingRows

BLOCK = 1024  # rows: from 512 to 2,048, an evaluation differs by less than 10% (m = 500 and 1,000)
Tell = Callable[[int, int], None]  # rows done, rows in all


def nobody(done: int, rows: int) -> None:
    """Who is told of progress where nobody asks."""


class RowSource(abc.ABC):
    """A set of rows that passes are made over."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def subset(self, count: int) -> TrainingRows:
        """The `count` rows (or all) of the least keys, in their order: a smaller sample is part of a larger one."""

    @abc.abstractmethod
    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        """sum of task(block) over all rows;  one pass."""

    in_memory: ClassVar[bool] = False

    def prepared(self, kernel: Kernel, keep: bool, session: Session) -> RowSource:
        """Return the rows as a kernel and a solver take them, which `keep`s them for its posterior or not."""
        return self

    @abc.abstractmethod
    def load(self) -> TrainingRows:
        """Return all rows, which are in memory already; an InputError where they are not."""

    @abc.abstractmethod
    def fingerprint(self, kernel: Kernel) -> bytes:
        """Return bytes by which a checkpoint tells these rows, as this kernel sees them, from others;  one pass."""


@dataclass(frozen=True)
class MemoryRows(RowSource):
    """Rows in memory."""

    data: TrainingRows
    seed: int | None = None

    in_memory = True

    def __len__(self) -> int:
        return len(self.data)

    def subset(self, count: int) -> TrainingRows:
        return self.data[least(keys(0, len(self.data), self.seed or 0), count)]

    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        return session.executor.sum_over(
            task,
            told(
                (self.data[rows] for rows in slices(len(self), BLOCK)),
                len(self),
                session.journal.passed,
            ),
        )

    def load(self) -> TrainingRows:
        return self.data

    def prepared(self, kernel: Kernel, keep: bool, session: Session) -> MemoryRows:
        """Return the same rows with x as the kernel takes it; a solver that does not keep them takes subsets by a seed."""
        if keep:
            return replace(self, data=replace(self.data, x=kernel.training_input(self.data.x)))
        if self.seed is not None:
            return self
        return MemoryRows(replace(self.data, x=kernel.sliceable(self.data.x)), session.draw_seed())

    def fingerprint(self, kernel: Kernel) -> bytes:
        return digest([*self.data.Z.arrays, self.data.y, *kernel.input_arrays(self.data.x)])


def told(blocks: Iterable[TrainingRows], rows: int, tell: Tell) -> Iterator[TrainingRows]:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        tell(done, rows)


# sample


def keys(start: int, count: int, seed: int) -> np.ndarray:
    """A random number for each row, from its place in the whole and the seed alone (splitmix64);  (count,) uint64."""
    with np.errstate(over="ignore"):
        key = np.arange(start, start + count, dtype=np.uint64) + np.uint64(seed) * np.uint64(
            0x632BE59BD9B4E019
        )
        key *= np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return key ^ (key >> np.uint64(31))


def least(keys: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` least keys are, in ascending order of place."""
    if count >= keys.size:
        return np.arange(keys.size)
    return np.sort(np.argpartition(keys, count)[:count])


# blocks


def blocks_of(chunks: Iterable[TrainingRows], size: int = BLOCK) -> Iterator[TrainingRows]:
    """The rows of all chunks, cut anew into blocks of `size` (the last one of what is left)."""
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
    """One below the other."""
    if len(parts) == 1:
        return parts[0]
    x = [part.x for part in parts]
    return TrainingRows(
        stacked(x) if isinstance(x[0], SparseFeatures) else np.concatenate(x),
        stacked([part.Z for part in parts]),
        np.concatenate([part.y for part in parts]),
    )


def stacked(parts: list[Any]) -> Features:
    if isinstance(parts[0], DenseFeatures):
        return DenseFeatures(np.concatenate([part.array for part in parts]))
    counts = np.concatenate([part.counts for part in parts])
    indices = np.concatenate([part.indices[part.span] for part in parts])
    values = np.concatenate([part.values[part.span] for part in parts])
    return SparseFeatures(np.concatenate([[0], np.cumsum(counts)]), indices, values, parts[0].d)
