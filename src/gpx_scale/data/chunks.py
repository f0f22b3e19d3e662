"""Chunks of rows from a function, from files or from a memory map.

Only one chunk at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils.validation import check_is_fitted

from ..compiled.checksums import checksum
from ..errors import InputError
from ..runtime.arguments import real_array
from ..runtime.files import path_of
from ..runtime.state import stored
from .checks import target_of
from .input_pair import count_rows, unpack
from .inputs import InputTransforms
from .row_files import Chunk, DataFiles, MappedArrays, RowFiles

# When the rows that a stream must bring again were seen, and what a stream must do.
PASS = "the first pass"
SAME_ROWS = "A stream must bring the same rows in every pass."

# A function that returns an iterator over all chunks, anew at every call.
Source = Callable[[], Iterator[Chunk]]


def source_of(
    X: Any, y: Any, Z: Any, streamed_from: float = 0, input_kind: str = "vectors"
) -> Source | None:
    """Return the chunks of the data that `fit` was given, or None if they are arrays in memory.

    A memory map is read in chunks if it has more rows than `streamed_from`.
    """
    if hasattr(X, "__next__"):
        raise InputError(
            "X is a generator, and a generator is used up by one pass. Give the function that "
            "makes it."
        )
    if callable(X) or isinstance(X, str | Path):
        if Z is not None:
            raise InputError(
                "A stream brings its own Z. Yield (X, y, Z), or give columns as x_transformer and "
                "z_transformer."
            )
        if not callable(X):
            return DataFiles.of(path_of(X, "X"), y)
        if y is not None:
            raise InputError(
                "A stream brings its own y. Call fit(stream), and yield (X, y) or (X, y, Z)."
            )
        return lambda: _yielded(X)
    inner, z = unpack(X, Z)
    mapped = [len(A) for A in (inner, z) if isinstance(A, np.memmap)]
    if not mapped or input_kind != "vectors" or mapped[0] <= streamed_from:
        return None
    target = y.reshape(-1) if getattr(y, "shape", ())[1:] == (1,) and hasattr(y, "reshape") else y
    if y is None or {count_rows(A) for A in (inner, z, target) if A is not None} != set(mapped[:1]):
        raise InputError(
            f"A memory map of {mapped[0]} rows needs y (and X and Z) with the same number of rows."
        )
    return MappedArrays.of(inner, target, z)


def is_indexed(source: Source) -> bool:
    """Return whether single rows can be read by their numbers, as from files and memory maps."""
    return isinstance(source, RowFiles)


def _yielded(factory: Callable[[], Any]) -> Iterator[Chunk]:
    """Yield the chunks of the user's function."""
    chunks = factory()
    if not hasattr(chunks, "__iter__"):
        raise InputError(
            "A stream is a function that yields chunks (X, y) or (X, y, Z) at every call, but this "
            f"one returned {type(chunks).__name__}."
        )
    for k, item in enumerate(chunks):
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise InputError(
                f"The chunk {k + 1} of the stream is of type {type(item).__name__}. "
                "Yield (X, y) or (X, y, Z)."
            )
        yield Chunk(f"chunk {k + 1}", item[0], item[1], item[2] if len(item) == 3 else None)


class Raw(NamedTuple):
    """A chunk of checked numbers in the user's units, after its transformers.

    X, separate : X and Z as the user gave them; `separate` is None if there is no separate Z.
    x, Z, y : checked tables after the transformers.
    z : Z after its transformer, with the names of its columns.
    """

    X: Any
    x: Any
    Z: Any
    y: np.ndarray
    z: Any
    separate: Any


@stored
@dataclass(frozen=True)
class ChunkChecksum:
    """The checksum of a chunk, by which later passes check that it brings the same rows."""

    name: str
    rows: int
    checksum: int

    @classmethod
    def of(cls, name: str, raw: Raw) -> ChunkChecksum:
        """Return the checksum of a chunk's numbers."""
        seen = 0
        A: Any
        for A in (raw.x, raw.y) if raw.x is raw.Z else (raw.x, raw.Z, raw.y):
            for array in (A.indptr, A.indices, A.data) if sp.issparse(A) else (A,):
                seen = checksum(array, seen)
        return cls(name, len(raw.y), seen)

    @classmethod
    def of_nothing(cls, name: str) -> ChunkChecksum:
        """Return the checksum of a chunk without rows."""
        return cls(name, 0, 0)

    def must_be(self, before: ChunkChecksum, since: str = PASS, remedy: str = SAME_ROWS) -> None:
        """Raise an InputError unless this is the chunk that was there `before`.

        `since` says when that was, and `remedy` what to do.
        """
        if (self.rows, self.checksum) != (before.rows, before.checksum):
            what = (
                f"{self.rows} rows, {before.rows} before"
                if self.rows != before.rows
                else "other numbers"
            )
            raise InputError(f"In {self.name}, the data differ from {since} ({what}). {remedy}")


def through(
    transforms: InputTransforms,
    chunk: Chunk,
    start: int | None,
    sparse: tuple[bool | None, bool | None] = (None, None),
) -> Raw:
    """Return the checked numbers of a chunk after its transformers.

    An error names the chunk, and the row that has something else than a finite number. `start` is
    the number of rows before this chunk, or None if it is not known. `sparse` says whether x and Z
    must be sparse, with None for both forms.
    """
    X, Z = (A.tocsr() if sp.issparse(A) else A for A in unpack(chunk.X, chunk.Z))
    with named(chunk, lambda: _where((X, Z, chunk.y), start)):
        x, raw, z = transforms(X, Z, sparse)
        y = target_of(chunk.y)
        if len(y) != raw.shape[0]:
            raise InputError(f"There are {raw.shape[0]} rows of X, but {len(y)} of y.")
    return Raw(X, x, raw, y, z, Z)


@contextmanager
def named(chunk: Chunk, where: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn errors inside the `with` statement into InputErrors that name the chunk."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"In {chunk.name}{where()}: {error}") from error


def _where(arrays: tuple[Any, ...], start: int | None) -> str:
    """Return text that names the first row without finite numbers, empty if there is none."""
    rows = []
    for A in arrays:
        if sp.issparse(A):
            entries = np.flatnonzero(~np.isfinite(A.data))
            rows += (
                [int(np.searchsorted(A.indptr, entries[0], side="right")) - 1]
                if entries.size
                else []
            )
            continue
        numbers = real_array(A)
        bad = (
            ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
            if numbers.ndim
            else np.zeros(0, bool)
        )
        rows += [int(bad.argmax())] if bad.any() else []
    if not rows:
        return ""
    row = min(rows) + 1
    return f", its row {row}" if start is None else f", its row {row} (row {start + row:,} of all)"


def transforms_for(input_kind: str, x_transformer: Any, z_transformer: Any) -> InputTransforms:
    """Return the transformers of a stream, which must be fitted, or need no fitting.

    Fitting them to all rows would need all rows in memory.
    """
    if input_kind != "vectors":
        takes = "a Gram matrix" if input_kind == "gram" else input_kind
        raise InputError(
            f"A stream needs vectors, and this kernel takes {takes}. Use a kernel of vectors."
        )
    for name, transformer in (("x_transformer", x_transformer), ("z_transformer", z_transformer)):
        if hasattr(transformer, "transform"):
            try:
                check_is_fitted(transformer)
            except NotFittedError:
                # scikit-learn 1.7 does not know that a HashingVectorizer needs no fit.
                if isinstance(transformer, HashingVectorizer):
                    continue
                raise InputError(
                    f"{name} is not fitted. Fit it to a sample of the stream's rows before."
                ) from None
    return InputTransforms(input_kind, x_transformer, z_transformer)


def read_through(
    transforms: InputTransforms, source: Source, sparse: Any = (None, None)
) -> Iterator[tuple[Chunk, Raw, int]]:
    """Yield (chunk, checked numbers, number of rows before) of chunks that have rows;  one pass."""
    start = 0
    for chunk in source():
        if not is_empty(chunk):
            raw = through(transforms, chunk, start, sparse)
            yield chunk, raw, start
            start += len(raw.y)


def is_empty(chunk: Chunk) -> bool:
    """Return whether neither X nor y has a row."""
    X, _ = unpack(chunk.X, chunk.Z)
    sized = hasattr(chunk.y, "__len__") and getattr(chunk.y, "shape", None) != ()
    return sized and len(chunk.y) == 0 and count_rows(X) == 0
