"""Training rows that come in chunks and are read anew for every pass.

A first pass surveys them (sizes, scales, a sample, checksums); every later one is checked to bring the same rows.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..kernels.kernel import Kernel
from ..runtime.session import Session
from .chunks import Raw, Source, named, read_through
from .inputs import InputTransforms, Preprocessor, TrainingRows, preprocessor_for
from .row_source import RowSource, Tell, blocks_of, keys, least, nobody, told
from .scaling import ColumnMoments, Scaling


@dataclass(frozen=True)
class ChunkChecksum:
    """By which a chunk is known again, in later passes."""

    name: str
    rows: int
    checksum: bytes

    @classmethod
    def of(cls, name: str, raw: Raw) -> ChunkChecksum:
        seen = hashlib.blake2b(digest_size=8)
        A: Any
        for A in (raw.x, raw.y) if raw.x is raw.Z else (raw.x, raw.Z, raw.y):
            for array in (A.indptr, A.indices, A.data) if sp.issparse(A) else (A,):
                seen.update(np.ascontiguousarray(array).data)
        return cls(name, len(raw.y), seen.digest())

    @classmethod
    def of_nothing(cls, name: str) -> ChunkChecksum:
        """Return that of a chunk without rows."""
        return cls(name, 0, b"")

    def must_be(self, before: ChunkChecksum) -> None:
        if (self.rows, self.checksum) != (before.rows, before.checksum):
            what = (
                f"{self.rows} rows, {before.rows} before"
                if self.rows != before.rows
                else "other numbers"
            )
            raise InputError(
                f"{self.name} differs from the first pass ({what}): it must bring the same rows every time"
            )


@dataclass(frozen=True)
class SurveyOptions:
    """How rows that are not in memory are surveyed.

    A subset of `keep` rows, chosen by `seed`, is kept in memory. If `standardize`, columns are scaled; if
    `fit_intercept`, a column of ones is added to Z after that.
    """

    keep: int
    seed: int
    standardize: bool
    fit_intercept: bool


@dataclass
class Survey:
    """What one pass learns of some rows; those of parts add up to that of all. The sample: the rows of the least keys."""

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
        try:
            same_columns(self.first, other.first)
        except InputError as error:
            raise InputError(f"{other.prints[0].name}: {error}") from None
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
        """Return the way of inputs into standardised units that these column moments give."""
        scaling = Scaling.from_columns(
            self.x, self.z, self.y, options.standardize, options.fit_intercept
        )
        head = self.first
        return preprocessor_for(transforms, head.separate, head.x, head.Z, head.z, scaling)


def _head(raw: Raw) -> Raw:
    """Return a copy of the first row, by which names and forms are known. A view would keep all rows in memory."""
    first: list[Any] = [None if A is None else copy.deepcopy(A[:1]) for A in raw]
    return Raw(*first)


def _below(a: Any, b: Any) -> Any:
    return sp.vstack([a, b], format="csr") if sp.issparse(a) else np.concatenate([a, b])


def same_columns(first: Raw, other: Raw) -> None:
    for name, a, b in (("X", first.x, other.x), ("Z", first.Z, other.Z)):
        if a.shape[1] != b.shape[1]:
            raise InputError(
                f"{name} has {b.shape[1]} columns here and {a.shape[1]} in the first chunk"
            )
        if sp.issparse(a) != sp.issparse(b):
            raise InputError(
                f"{name} is {'sparse' if sp.issparse(b) else 'dense'} here and not in the first chunk"
            )
    if (first.separate is None) != (other.separate is None):
        raise InputError("some chunks bring a Z of their own, and some do not")
    for pair in ((first.X, other.X), (first.z, other.z)):
        names = [getattr(A, "columns", None) for A in pair]
        if names[0] is not None and names[1] is not None and list(names[0]) != list(names[1]):
            raise InputError(
                f"columns are {list(names[1])} here and {list(names[0])} in the first chunk"
            )


def chunks_through(
    preprocessor: Preprocessor, source: Source, check: Callable[[Any], None]
) -> Iterator[TrainingRows]:
    """Behind a preprocessor that is known; `check` knows the names of X's columns."""
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
    """Rows that are elsewhere: of which one pass has learned the preprocessor and a sample."""

    survey: Survey
    preprocessor: Preprocessor
    standardize: bool

    def __len__(self) -> int:
        return self.survey.rows

    def subset(self, count: int) -> TrainingRows:
        at = least(self.survey.keys, count)
        x, Z, y = self.survey.sample
        return self.preprocessor.training(x[at], Z[at], y[at], self.standardize)

    def load(self) -> TrainingRows:
        raise InputError("these rows come in chunks, and are never in memory as a whole")

    def fingerprint(self, kernel: Kernel) -> bytes:
        return b"".join(chunk.checksum for chunk in self.survey.prints)


@dataclass(frozen=True)
class StreamRows(SurveyedRows):
    """Rows behind the preprocessor, read anew for every pass."""

    source: Source

    @classmethod
    def open(
        cls,
        source: Source,
        transforms: InputTransforms,
        options: SurveyOptions,
        tell: Tell = nobody,
    ) -> StreamRows:
        """After one pass that surveys all chunks."""
        survey: Survey | None = None
        for chunk, raw, start in read_through(transforms, source):
            found = Survey.of(chunk.name, raw, start, options.keep, options.seed)
            if survey is None:
                survey = found
            else:
                survey += found
            tell(start + len(raw.y), 0)
        if survey is None:
            raise InputError("the stream has no rows")
        return cls(survey, survey.preprocessor(transforms, options), options.standardize, source)

    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        return session.executor.sum_over(
            task, told(blocks_of(self._chunks()), len(self), session.journal.passed)
        )

    def _chunks(self) -> Iterator[TrainingRows]:
        expected, seen = iter(self.survey.prints), 0
        for chunk, raw, start in read_through(
            self.preprocessor.transforms,
            self.source,
            (self.preprocessor.sparse_x, self.preprocessor.sparse_z),
        ):
            if (before := next(expected, None)) is None:
                raise InputError(
                    f"{chunk.name} was not there in the first pass: a stream must bring the same rows every time"
                )
            ChunkChecksum.of(chunk.name, raw).must_be(before)
            with named(chunk):
                inputs = self.preprocessor.training(raw.x, raw.Z, raw.y, self.standardize)
            seen = start + len(raw.y)
            yield inputs
        if (missing := next(expected, None)) is not None:
            raise InputError(
                f"the stream ended before {missing.name}, after {seen:,} of {len(self):,} rows: "
                "it must bring the same rows every time (a generator is used up: give the function that makes it)"
            )
