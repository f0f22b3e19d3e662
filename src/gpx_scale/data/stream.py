"""Training rows that come in chunks and are read anew in every pass.

The first pass surveys them: number of rows, moments of the columns, a sample, checksums. Every
later pass compares checksums, so a stream that brings other rows is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..kernels.kernel import Kernel
from ..runtime.session import Session
from .chunks import SAME_ROWS, ChunkChecksum, Raw, Source, named, read_through
from .indexed_rows import FileRows
from .inputs import InputTransforms, Preprocessor, TrainingRows, preprocessor_for
from .row_files import RowFiles
from .row_source import (
    READ_IN_ORDER,
    R,
    ReportProgress,
    RowSource,
    blocks_of,
    ignore_progress,
    keys,
    least,
    reporting_progress,
)
from .scaling import ColumnMoments, Scaling


@dataclass(frozen=True)
class SurveyOptions:
    """The options for surveying rows that are not in memory.

    A subset of `keep` rows, chosen by `seed`, is kept in memory. If `standardize` is true, columns
    are standardised. If `fit_intercept` is true, a column of ones is added to Z after that.
    """

    keep: int
    seed: int
    standardize: bool
    fit_intercept: bool


@dataclass
class Survey:
    """The results of the first pass over some rows. Surveys of parts add up to that of all rows.

    rows : number of rows.
    x, z, y : moments of the columns.
    keys, sample : the smallest `keep` keys, and the rows (x, Z, y) that have them.
    first : the first row, which has the names and the form of all.
    prints : checksums of the chunks.
    """

    rows: int
    x: ColumnMoments
    z: ColumnMoments
    y: ColumnMoments
    keys: np.ndarray
    sample: tuple[Any, Any, np.ndarray]
    first: Raw
    keep: int
    prints: list[ChunkChecksum]

    @classmethod
    def of(cls, name: str, raw: Raw, start: int, keep: int, seed: int) -> Survey:
        """Return the survey of one chunk; `start` is the number of rows before it."""
        row_keys = keys(start, len(raw.y), seed)
        at = least(row_keys, keep)
        columns = ColumnMoments.of(raw.x), ColumnMoments.of(raw.Z), ColumnMoments.of(raw.y[:, None])
        sample = raw.x[at], raw.Z[at], raw.y[at]
        return cls(
            len(raw.y),
            *columns,
            row_keys[at],
            sample,
            _head(raw),
            keep,
            [ChunkChecksum.of(name, raw)],
        )

    def __iadd__(self, other: Survey) -> Survey:
        """Add the survey of the rows that come next."""
        try:
            same_columns(self.first, other.first)
        except InputError as error:
            raise InputError(f"In {other.prints[0].name}: {error}") from None
        self.rows += other.rows
        self.prints = self.prints + other.prints
        self.x, self.z, self.y = self.x + other.x, self.z + other.z, self.y + other.y
        both = np.concatenate([self.keys, other.keys])
        at = least(both, self.keep)
        mine, theirs = at[at < self.keys.size], at[at >= self.keys.size] - self.keys.size
        if theirs.size:
            pairs = zip(self.sample, other.sample, strict=True)
            x, Z, y = (_below(a[mine], b[theirs]) for a, b in pairs)
            self.keys, self.sample = both[at], (x, Z, y)
        return self

    def preprocessor(self, transforms: InputTransforms, options: SurveyOptions) -> Preprocessor:
        """Return the preprocessor with the scaling that follows from the column moments."""
        scaling = Scaling.from_columns(
            self.x, self.z, self.y, options.standardize, options.fit_intercept
        )
        head = self.first
        return preprocessor_for(transforms, head.separate, head.x, head.Z, head.z, scaling)


def _head(raw: Raw) -> Raw:
    """Return a copy of the first row of a chunk. A view would keep all rows in memory."""
    first: list[Any] = [None if A is None else copy.deepcopy(A[:1]) for A in raw]
    return Raw(*first)


def _below(a: Any, b: Any) -> Any:
    """Return the rows of a and then those of b, dense or sparse."""
    return sp.vstack([a, b], format="csr") if sp.issparse(a) else np.concatenate([a, b])


def same_columns(first: Raw, other: Raw) -> None:
    """Raise an InputError unless two chunks have the same columns, in the same form."""
    for name, a, b in (("X", first.x, other.x), ("Z", first.Z, other.Z)):
        if a.shape[1] != b.shape[1]:
            raise InputError(
                f"{name} has {b.shape[1]} columns here and {a.shape[1]} in the first chunk. Give "
                "all chunks the same columns."
            )
        if sp.issparse(a) != sp.issparse(b):
            here, there = ("sparse", "dense") if sp.issparse(b) else ("dense", "sparse")
            raise InputError(
                f"{name} is {here} here and {there} in the first chunk. Make it {there} in all "
                "chunks."
            )
    if (first.separate is None) != (other.separate is None):
        raise InputError(
            "Some chunks bring a Z of their own, and some do not. Give every chunk a Z, or none."
        )
    for pair in ((first.X, other.X), (first.z, other.z)):
        names = [getattr(A, "columns", None) for A in pair]
        if names[0] is not None and names[1] is not None and list(names[0]) != list(names[1]):
            raise InputError(
                f"The columns are {list(names[1])} here and {list(names[0])} in the first chunk. "
                "Give all chunks the same columns, in the same order."
            )


def chunks_through(
    preprocessor: Preprocessor, source: Source, check: Callable[[Any], None]
) -> Iterator[TrainingRows]:
    """Yield the chunks of a stream in standardised units, by a preprocessor that is known.

    `check` is called with X of every chunk, and raises an error if its columns have other names.
    """
    for chunk, raw, _ in read_through(
        preprocessor.transforms, source, (preprocessor.sparse_x, preprocessor.sparse_z)
    ):
        with named(chunk):
            check(raw.X)
            preprocessor.must_match(raw.x, raw.Z, raw.separate)
            inputs = preprocessor.training(raw.x, raw.Z, raw.y)
        yield inputs


@dataclass(frozen=True)
class SurveyedRows(RowSource):
    """Training rows that are not in memory, after the pass that surveys them."""

    survey: Survey
    preprocessor: Preprocessor
    standardize: bool

    def __len__(self) -> int:
        return self.survey.rows

    def subset(self, count: int) -> TrainingRows:
        at = least(self.survey.keys, count)
        x, Z, y = self.survey.sample
        return self.preprocessor.training(x[at], Z[at], y[at], self.standardize)

    def with_intercept(self) -> SurveyedRows:
        return replace(self, preprocessor=self.preprocessor.with_intercept())

    def load(self) -> TrainingRows:
        raise InputError(
            "These rows come in chunks and are never in memory as a whole. Give arrays instead."
        )

    def fingerprint(self, kernel: Kernel) -> bytes:
        return np.array([chunk.checksum for chunk in self.survey.prints], np.int64).tobytes()


@dataclass(frozen=True)
class StreamRows(SurveyedRows):
    """Training rows of a stream, which are read and standardised anew in every pass."""

    source: Source

    @classmethod
    def open(
        cls,
        source: Source,
        transforms: InputTransforms,
        options: SurveyOptions,
        report: ReportProgress = ignore_progress,
    ) -> StreamRows:
        """Survey all chunks of a stream in one pass, and return its rows."""
        survey: Survey | None = None
        for chunk, raw, start in read_through(transforms, source):
            found = Survey.of(chunk.name, raw, start, options.keep, options.seed)
            if survey is None:
                survey = found
            else:
                survey += found
            report(start + len(raw.y), 0)
        if survey is None:
            raise InputError("The stream has no rows. Yield at least one chunk that has some.")
        return cls(survey, survey.preprocessor(transforms, options), options.standardize, source)

    @property
    def is_indexed(self) -> bool:
        return isinstance(self.source, RowFiles)

    def indexed(self) -> FileRows:
        return self._in_files

    @cached_property
    def _in_files(self) -> FileRows:
        """Return the rows as those of files, the same object at every call."""
        if not isinstance(self.source, RowFiles):
            raise InputError(READ_IN_ORDER)
        return FileRows(self.source, self.preprocessor, self.standardize, self.survey.prints)

    def sum_over(self, task: Callable[[TrainingRows], R], session: Session) -> R:
        blocks = blocks_of(self._chunks())
        reported = reporting_progress(blocks, len(self), session.journal.passed)
        total: R = session.executor.sum_over(task, reported)
        return total

    def _chunks(self) -> Iterator[TrainingRows]:
        """Yield the chunks in standardised units, each checked to be that of the first pass."""
        expected, seen = iter(self.survey.prints), 0
        for chunk, raw, start in read_through(
            self.preprocessor.transforms,
            self.source,
            (self.preprocessor.sparse_x, self.preprocessor.sparse_z),
        ):
            if (before := next(expected, None)) is None:
                raise InputError(f"In the first pass, {chunk.name} was not there. {SAME_ROWS}")
            ChunkChecksum.of(chunk.name, raw).must_be(before)
            with named(chunk):
                inputs = self.preprocessor.training(raw.x, raw.Z, raw.y, self.standardize)
            seen = start + len(raw.y)
            yield inputs
        if (missing := next(expected, None)) is not None:
            raise InputError(
                f"The stream ended before {missing.name}, after {seen:,} of {len(self):,} rows. "
                f"{SAME_ROWS} A generator is used up by one pass, so give the function that makes "
                "it."
            )
