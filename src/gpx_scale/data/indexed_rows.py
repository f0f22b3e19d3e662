"""Training rows that are not all in memory, but of which given ones are read by their numbers.

A search reads them all in one pass. What it finds is gathered, and is then in memory.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ..errors import InputError
from ..kernels.kernel import Kernel
from ..runtime.session import Session
from ..runtime.state import must, stored
from .chunks import ChunkChecksum, Raw, is_empty, named, through
from .features import SparseFeatures
from .inputs import Preprocessor, TrainingRows
from .row_files import Chunk, RowFiles
from .row_source import (
    MemoryRows,
    R,
    RowSource,
    blocks_of,
    joined,
    keys,
    least,
    reporting_progress,
)

# When the rows of a model were seen, and what to do if they are others now.
FIT = "those at fit"
PUT_BACK = (
    "The model needs the rows that it was fitted to: put them back into their files, or fit it "
    "again."
)


# The memory of a row is the mean of so many rows: sparse rows differ.
MEASURED_ROWS = 100


class PassOverRows(Protocol):
    """What is computed in one pass over rows, such as the best rows of some queries.

    The result is the same however rows are cut into parts, and in whatever order parts are merged.
    """

    def add(self, rows: TrainingRows, start: int, session: Session) -> None:
        """Take in consecutive rows, of which the first has the number `start`."""

    def of_part(self, start: int, stop: int) -> Self:
        """Return the same task without any rows, for those with numbers from `start` on."""

    def merge(self, other: Self) -> None:
        """Take in the result of a task that has seen other rows."""


P = TypeVar("P", bound=PassOverRows)


class IndexedRows(RowSource):
    """Training rows of which given ones can be read by their numbers."""

    @property
    def is_indexed(self) -> bool:
        return True

    def indexed(self) -> Self:
        return self

    @property
    @abc.abstractmethod
    def n_weights(self) -> int:
        """Return the number of weights, which is that of the columns of Z."""

    @property
    @abc.abstractmethod
    def bytes_per_row(self) -> int:
        """Return the memory of a row in standardised units, on average."""

    @abc.abstractmethod
    def __getitem__(self, index: np.ndarray) -> TrainingRows:
        """Return the rows with these numbers, in memory;  (r,)."""

    @abc.abstractmethod
    def run(self, task: P, session: Session) -> P:
        """Return the task after it has seen all rows, in one pass."""

    def local(self) -> TrainingRows | IndexedRows:
        """Return rows that need no cluster: these, or the same ones in memory."""
        return self

    @abc.abstractmethod
    def with_intercept(self) -> IndexedRows:
        """Return the same rows with the column of an intercept in Z."""

    @abc.abstractmethod
    def with_rows(self, more: TrainingRows) -> IndexedRows:
        """Return these rows with others in memory after them."""

    @abc.abstractmethod
    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        """Raise a ValueError unless these rows, named in a file, fit the rest of a model."""

    @property
    def added(self) -> int:
        """Return how many of these rows were added in memory, after those that are elsewhere."""
        return 0

    def subset(self, count: int) -> TrainingRows:
        return self[least(keys(0, len(self), 0), count)]


@stored
@dataclass(frozen=True)
class FileRows(IndexedRows):
    """Training rows in files, which are read and standardised whenever they are needed.

    Attributes
    ----------
    files : RowFiles
        The files, or memory maps of them.
    preprocessor : Preprocessor
        The steps from their numbers to standardised units.
    standardize : bool
        Whether columns are standardised, which decides what messages advise.
    prints : list of ChunkChecksum
        The checksums of their chunks at fit.
    """

    files: RowFiles
    preprocessor: Preprocessor
    standardize: bool
    prints: list[ChunkChecksum]

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self.prints)

    @property
    def n_weights(self) -> int:
        return self.preprocessor.n_weights

    def with_intercept(self) -> FileRows:
        return replace(self, preprocessor=self.preprocessor.with_intercept())

    @property
    def bytes_per_row(self) -> int:
        return bytes_per_row_of(self._first)

    @cached_property
    def _first(self) -> TrainingRows:
        """Return the first rows."""
        return self[np.arange(min(MEASURED_ROWS, len(self)))]

    def __getitem__(self, index: np.ndarray) -> TrainingRows:
        if not len(index):
            return self._first[:0]
        order, places = np.unique(np.asarray(index, np.int64), return_inverse=True)
        table = [(chunk.name, chunk.rows) for chunk in self.prints]
        parts = []
        for chunk in self.files.take(order, table):
            with named(chunk):
                parts.append(self._standardised(self._read(chunk)))
        found = joined(parts) if parts else None
        if found is None or len(found) != order.size:
            raise InputError(f"The files of the training rows lack some of them. {PUT_BACK}")
        return found if order.size == places.size and _ascends(places) else found[places]

    def run(self, task: P, session: Session) -> P:
        start = 0
        for rows in self._chunks():
            task.add(rows, start, session)
            start += len(rows)
            session.journal.passed(start, len(self))
        return task

    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        reported = reporting_progress(blocks_of(self._chunks()), len(self), session.journal.passed)
        total: R = session.executor.sum_over(task, reported)
        return total

    def load(self) -> TrainingRows:
        return joined(list(self._chunks()))

    def with_rows(self, more: TrainingRows) -> AddedRows:
        return AddedRows(self, more)

    def fingerprint(self, kernel: Kernel) -> bytes:
        return np.array([chunk.checksum for chunk in self.prints], np.int64).tobytes()

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        must(n_train in (None, len(self)), "its rows are not as many as planned")
        must(all(chunk.rows >= 0 for chunk in self.prints), "a chunk has a negative number of rows")
        must(kernel.input_kind == "vectors", "its rows are in files, and its kernel takes no files")
        mine, other = self.preprocessor.scaling, preprocessor.scaling
        same = (
            mine.x_scale.shape == other.x_scale.shape and mine.z_scale.shape == other.z_scale.shape
        )
        must(same and mine.intercept == other.intercept, "its rows have other columns than it")

    def _chunks(self) -> Iterator[TrainingRows]:
        """Yield all chunks in standardised units, each checked to be that of the fit."""
        self.files.must_be_there()
        expected = iter(self.prints)
        for chunk in self.files():
            if is_empty(chunk):
                continue
            before = next(expected, None)
            if before is None:
                raise InputError(f"At fit, {chunk.name} was not there. {PUT_BACK}")
            raw = self._read(chunk)
            ChunkChecksum.of(chunk.name, raw).must_be(before, FIT, PUT_BACK)
            with named(chunk):
                yield self._standardised(raw)
        if (missing := next(expected, None)) is not None:
            raise InputError(f"The rows end before {missing.name}. {PUT_BACK}")

    def _read(self, chunk: Chunk) -> Raw:
        """Return the numbers of a chunk in the user's units, after its transformers.

        Arrays of float64 without transformers are taken as they are: at fit, they were checked to
        be finite, and their checksums tell whether they have changed.
        """
        steps = self.preprocessor.transforms
        tables = [chunk.X] if chunk.Z is None else [chunk.X, chunk.Z]
        is_plain = steps.x_transformer is None and steps.z_transformer is None
        if is_plain and all(_is_table(A) for A in tables) and _is_float64(chunk.y):
            # Compiled loops and model files have tables that are stored by rows.
            x = np.ascontiguousarray(chunk.X)
            z = x if chunk.Z is None else np.ascontiguousarray(chunk.Z)
            return Raw(chunk.X, x, z, chunk.y.reshape(-1), z, chunk.Z)
        return through(steps, chunk, None, (self.preprocessor.sparse_x, self.preprocessor.sparse_z))

    def _standardised(self, raw: Raw) -> TrainingRows:
        """Return the numbers of a chunk in standardised units."""
        return self.preprocessor.training(raw.x, raw.Z, raw.y, self.standardize)


@stored
@dataclass(frozen=True)
class AddedRows(IndexedRows):
    """Training rows that are elsewhere, and rows in memory that were added after the fit."""

    first: IndexedRows
    more: TrainingRows

    def __len__(self) -> int:
        return len(self.first) + len(self.more)

    @property
    def added(self) -> int:
        return len(self.more)

    @property
    def n_weights(self) -> int:
        return self.first.n_weights

    @property
    def bytes_per_row(self) -> int:
        return self.first.bytes_per_row

    def __getitem__(self, index: np.ndarray) -> TrainingRows:
        is_more = index >= len(self.first)
        if not is_more.any():
            return self.first[index]
        found = joined([self.first[index[~is_more]], self.more[index[is_more] - len(self.first)]])
        order = np.concatenate([np.flatnonzero(~is_more), np.flatnonzero(is_more)])
        return found[np.argsort(order)]

    def run(self, task: P, session: Session) -> P:
        task = self.first.run(task, session)
        task.add(self.more, len(self.first), session)
        return task

    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        total: Any = self.first.sum_over(task, session)
        total += MemoryRows(self.more).sum_over(task, session)
        found: R = total
        return found

    def load(self) -> TrainingRows:
        return joined([self.first.load(), self.more])

    def local(self) -> TrainingRows | IndexedRows:
        return self.first.local().with_rows(self.more)

    def with_rows(self, more: TrainingRows) -> AddedRows:
        return AddedRows(self.first, joined([self.more, more]))

    def with_intercept(self) -> AddedRows:
        return AddedRows(self.first.with_intercept(), self.more.with_intercept())

    def fingerprint(self, kernel: Kernel) -> bytes:
        return self.first.fingerprint(kernel) + MemoryRows(self.more).fingerprint(kernel)

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        must(n_train in (None, len(self)), "its rows are not as many as planned")
        self.first.must_fit(kernel, preprocessor)
        self.more.must_fit(kernel, preprocessor)

    def __reduce__(self) -> Any:
        """Return a copy. It is in memory if that of the first rows is, as for rows on a cluster."""
        return _with_rows, (self.first, self.more)


def bytes_per_row_of(some: TrainingRows) -> int:
    """Return the memory of a row in standardised units, as the mean of some rows.

    An entry of a sparse table is a number and the number of its column.
    """
    entries = 2
    for A in (some.x, some.Z):
        entries += 2 * A.entries_per_row if isinstance(A, SparseFeatures) else A.shape[1]
    return 8 * entries


def _with_rows(first: TrainingRows | IndexedRows, more: TrainingRows) -> TrainingRows | IndexedRows:
    """Return rows with others after them, in memory if the first ones are."""
    return first.with_rows(more)


def _is_float64(A: Any) -> bool:
    """Return whether this is an array of float64."""
    return isinstance(A, np.ndarray) and A.dtype == np.float64


def _is_table(A: Any) -> bool:
    """Return whether this is a table of float64."""
    return _is_float64(A) and A.ndim == 2


def _ascends(places: np.ndarray) -> bool:
    """Return whether these are the numbers 0, 1, 2, ... in this order."""
    return bool((places == np.arange(places.size)).all())
