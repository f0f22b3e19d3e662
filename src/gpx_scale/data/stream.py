"""Rows that come in chunks: from a function, from files, from a memory map. One chunk at a time is in memory.

A first pass surveys them (sizes, scales, a sample, checksums); every later one is checked to bring the same rows.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..errors import GPXWarning, InputError
from ..kernels.kernel import Kernel
from ..runtime.arguments import real_array
from ..runtime.files import path_of
from ..runtime.parallel import slices
from ..runtime.session import Session
from .checks import target_of
from .inputs import InputTransforms, Preprocessor, TrainingRows, count_rows, preprocessor_for, take, unpack
from .row_source import RowSource, Tell, blocks_of, keys, least, nobody, told
from .scaling import ColumnMoments, Scaling
from .table_files import CHUNK, SUFFIXES, TextFormat, common_columns, frames, is_table, listed

NPZ = ".npz"
READ = (NPZ, *SUFFIXES)
FROM_PYTHON = TextFormat(
    separator_remedy="Then write it with commas, or give fit a function that yields (X, y) of what pandas reads with sep={!r}",
    encoding_remedy="write it as UTF-8, or give fit a function that yields (X, y) of what pandas reads with encoding=",
)


class Chunk(NamedTuple):
    """Some rows as the user gave them, and where they are from."""

    name: str
    X: Any
    y: Any
    Z: Any


Source = Callable[[], Iterator[Chunk]]


def source_of(X: Any, y: Any, Z: Any, streamed_from: float = 0, input_kind: str = "vectors") -> Source | None:
    """Chunks of what `fit` was given, afresh at every call; None where that is in memory, or is to be: a memory map streams if
    it has more rows than `streamed_from`."""
    if hasattr(X, "__next__"):
        raise InputError("a generator is used up by one pass: give the function that makes it")
    if callable(X) or isinstance(X, str | Path):
        if Z is not None:
            raise InputError("a stream brings its own Z: yield (X, y, Z), or give x_transformer and z_transformer columns")
        if not callable(X):
            return _files(path_of(X, "X"), y)
        if y is not None:
            raise InputError("a stream brings its own y: give fit(stream) alone, and yield (X, y) or (X, y, Z)")
        return lambda: _yielded(X)
    inner, z = unpack(X, Z)
    mapped = [len(A) for A in (inner, z) if isinstance(A, np.memmap)]
    if not mapped or input_kind != "vectors" or mapped[0] <= streamed_from:
        return None
    target = y.reshape(-1) if getattr(y, "shape", ())[1:] == (1,) and hasattr(y, "reshape") else y
    if y is None or {count_rows(A) for A in (inner, z, target) if A is not None} != set(mapped[:1]):
        raise InputError(f"a memory map of {mapped[0]} rows needs y (and X and Z) of as many")
    return lambda: _mapped(inner, target, z)


def _yielded(factory: Callable[[], Any]) -> Iterator[Chunk]:
    chunks = factory()
    if not hasattr(chunks, "__iter__"):
        raise InputError(f"a stream is a function that yields (X, y) or (X, y, Z) chunks at every call, got {type(chunks)}")
    for k, item in enumerate(chunks):
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise InputError(f"chunk {k + 1} is not (X, y) or (X, y, Z), but {type(item).__name__}")
        yield Chunk(f"chunk {k + 1}", item[0], item[1], item[2] if len(item) == 3 else None)


def _mapped(X: Any, y: Any, Z: Any) -> Iterator[Chunk]:
    for k, rows in enumerate(slices(count_rows(X), CHUNK)):
        yield Chunk(f"chunk {k + 1}", _rows_of(X, rows), y[rows], None if Z is None else _rows_of(Z, rows))


def _rows_of(A: Any, rows: slice) -> Any:
    """In memory, with the names that it has."""
    taken = take(A, rows)
    return np.asarray(taken) if isinstance(taken, np.memmap) else taken


def _files(path: Path, target: Any) -> Source:
    """Return the chunks of a folder's files, or of one file. The columns of all tables are compared before a row is read."""
    files = _data_files(path)
    tables = [file for file in files if is_table(file)]
    if tables and len(tables) < len(files):
        raise InputError(
            f"{str(path)!r} holds both npz files and tables, which bring y in different ways: give each a folder of its own"
        )
    if tables and not isinstance(target, str):
        raise InputError("CSV and Parquet files need the name of the target column: fit(folder, 'name')")
    if not tables and target is not None:
        raise InputError("npz files bring their own y: give fit(folder) alone")
    columns = common_columns(tables, target, FROM_PYTHON) if tables else []

    def chunks() -> Iterator[Chunk]:
        for file in files:
            found = _read_table(file, columns, target) if tables else _read_npz(file)
            for k, (X, y, Z) in enumerate(found):
                yield Chunk(f"{file.name}, chunk {k + 1}", X, y, Z)

    return chunks


def _data_files(path: Path) -> list[Path]:
    """Return the files of a folder that can be read, in the order of their names, or one such file itself.

    Hidden files, and those that begin with an underscore (_SUCCESS, _metadata), are no data. A GPXWarning names all others
    that are skipped.
    """
    if not path.exists():
        raise InputError(f"X={str(path)!r}: there is no such folder or file")
    if not path.is_dir():
        if not _is_data(path):
            raise InputError(f"X={str(path)!r} is not a file that fit reads: give one that ends in {', '.join(READ)}")
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._")
    skipped = [file.name for file in found if not _is_data(file)]
    if len(skipped) == len(found):
        others = f", only {listed(skipped, 5)}" if skipped else ""
        raise InputError(f"{str(path)!r} holds no {', '.join(READ)} file{others}")
    if skipped:
        warnings.warn(
            f"{str(path)!r} holds files that are not read: {listed(skipped, 5)}. Write their rows to {', '.join(READ)} files "
            "if they are data, and move them elsewhere if they are not",
            GPXWarning,
            stacklevel=2,
        )
    return [file for file in found if _is_data(file)]


def _is_data(path: Path) -> bool:
    return path.name.lower().endswith(NPZ) or is_table(path)


def _read_table(path: Path, columns: list[str], target: str) -> Iterator[tuple[Any, Any, Any]]:
    for frame in frames(path, FROM_PYTHON, columns, {}, CHUNK):
        yield frame.drop(columns=target), frame[target], None


def _read_npz(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := {"X", "y"} - set(file.files):
                raise InputError(f"{path.name} has no {' and no '.join(sorted(missing))}, only {', '.join(file.files)}")
            X, y, Z = file["X"], file["y"], file["Z"] if "Z" in file.files else None
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
    if len({count_rows(A) for A in (X, y, Z) if A is not None}) > 1:
        raise InputError(f"{path.name}: X, y and Z have {', '.join(str(len(A)) for A in (X, y, Z) if A is not None)} rows")
    for rows in slices(len(X), CHUNK):
        yield X[rows], y[rows], None if Z is None else Z[rows]


# survey


class Raw(NamedTuple):
    """A chunk after its transformers: finite numbers in the user's units; X and z have names."""

    X: Any
    x: Any
    Z: Any
    y: np.ndarray
    z: Any
    separate: Any


def through(
    gate: InputTransforms, chunk: Chunk, start: int | None, sparse: tuple[bool | None, bool | None] = (None, None)
) -> Raw:
    """Checked; an error names the chunk, and the row where a number is missing. `start` rows come before; None: not known."""
    X, Z = (A.tocsr() if sp.issparse(A) else A for A in unpack(chunk.X, chunk.Z))
    with named(chunk, lambda: _where((X, Z, chunk.y), start)):
        x, raw, z = gate(X, Z, sparse)
        y = target_of(chunk.y)
        if len(y) != raw.shape[0]:
            raise InputError(f"{raw.shape[0]} rows of X, {len(y)} of y")
    return Raw(X, x, raw, y, z, Z)


@contextmanager
def named(chunk: Chunk, where: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Errors inside are of this chunk."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{chunk.name}{where()}: {error}") from error


def _where(arrays: tuple[Any, ...], start: int | None) -> str:
    """The first row with something that is not a finite number."""
    rows = []
    for A in arrays:
        if sp.issparse(A):
            entries = np.flatnonzero(~np.isfinite(A.data))
            rows += [int(np.searchsorted(A.indptr, entries[0], side="right")) - 1] if entries.size else []
            continue
        numbers = real_array(A)
        bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim))) if numbers.ndim else np.zeros(0, bool)
        rows += [int(bad.argmax())] if bad.any() else []
    if not rows:
        return ""
    row = min(rows) + 1
    return f", its row {row}" if start is None else f", its row {row} (row {start + row:,} of all)"


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
            what = f"{self.rows} rows, {before.rows} before" if self.rows != before.rows else "other numbers"
            raise InputError(f"{self.name} differs from the first pass ({what}): it must bring the same rows every time")


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
        return cls(len(raw.y), *columns, row_keys[at], sample, _head(raw), keep, [ChunkChecksum.of(name, raw)])

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

    def preprocessor(self, gate: InputTransforms, standardize: bool, fit_intercept: bool) -> Preprocessor:
        scaling = Scaling.from_columns(self.x, self.z, self.y, standardize, fit_intercept)
        head = self.first
        return preprocessor_for(gate, head.separate, head.x, head.Z, head.z, scaling)


def _head(raw: Raw) -> Raw:
    """Return a copy of the first row, by which names and forms are known. A view would keep all rows in memory."""
    first: list[Any] = [None if A is None else copy.deepcopy(A[:1]) for A in raw]
    return Raw(*first)


def _below(a: Any, b: Any) -> Any:
    return sp.vstack([a, b], format="csr") if sp.issparse(a) else np.concatenate([a, b])


def same_columns(first: Raw, other: Raw) -> None:
    for name, a, b in (("X", first.x, other.x), ("Z", first.Z, other.Z)):
        if a.shape[1] != b.shape[1]:
            raise InputError(f"{name} has {b.shape[1]} columns here and {a.shape[1]} in the first chunk")
        if sp.issparse(a) != sp.issparse(b):
            raise InputError(f"{name} is {'sparse' if sp.issparse(b) else 'dense'} here and not in the first chunk")
    if (first.separate is None) != (other.separate is None):
        raise InputError("some chunks bring a Z of their own, and some do not")
    for pair in ((first.X, other.X), (first.z, other.z)):
        names = [getattr(A, "columns", None) for A in pair]
        if names[0] is not None and names[1] is not None and list(names[0]) != list(names[1]):
            raise InputError(f"columns are {list(names[1])} here and {list(names[0])} in the first chunk")


def gate_for(input_kind: str, x_transformer: Any, z_transformer: Any) -> InputTransforms:
    """Transformers that need no fitting, or are fitted: what fits to all rows would need them all."""
    if input_kind != "vectors":
        raise InputError(f"a stream needs vectors, and this kernel takes {input_kind}")
    for name, transformer in (("x_transformer", x_transformer), ("z_transformer", z_transformer)):
        if hasattr(transformer, "transform"):
            try:
                check_is_fitted(transformer)
            except NotFittedError:
                raise InputError(f"{name} is not fitted: fit it to a sample of the stream's rows before") from None
    return InputTransforms(input_kind, x_transformer, z_transformer)


def chunks_through(preprocessor: Preprocessor, source: Source, check: Callable[[Any], None]) -> Iterator[TrainingRows]:
    """Behind a preprocessor that is known; `check` knows the names of X's columns."""
    for chunk, raw, _ in read_through(preprocessor.gate, source, (preprocessor.sparse_x, preprocessor.sparse_z)):
        with named(chunk):
            check(raw.X)
            preprocessor.must_match(raw.x, raw.Z, raw.separate)
            inputs = preprocessor.training(raw.x, raw.Z, raw.y)
        yield inputs


def read_through(gate: InputTransforms, source: Source, sparse: Any = (None, None)) -> Iterator[tuple[Chunk, Raw, int]]:
    """Yield chunks that have rows, their checked numbers, and how many rows came before;  one pass."""
    start = 0
    for chunk in source():
        if not is_empty(chunk):
            raw = through(gate, chunk, start, sparse)
            yield chunk, raw, start
            start += len(raw.y)


# rows


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

    def arrays(self, kernel: Kernel) -> list[np.ndarray]:
        return [np.frombuffer(b"".join(p.checksum for p in self.survey.prints), np.uint8)]


@dataclass(frozen=True)
class StreamRows(SurveyedRows):
    """Rows behind the preprocessor, read anew for every pass."""

    source: Source

    @classmethod
    def open(
        cls,
        source: Source,
        gate: InputTransforms,
        *,
        keep: int,
        seed: int,
        standardize: bool,
        fit_intercept: bool,
        tell: Tell = nobody,
    ) -> StreamRows:
        """After one pass that surveys all chunks."""
        survey: Survey | None = None
        for chunk, raw, start in read_through(gate, source):
            found = Survey.of(chunk.name, raw, start, keep, seed)
            if survey is None:
                survey = found
            else:
                survey += found
            tell(start + len(raw.y), 0)
        if survey is None:
            raise InputError("the stream has no rows")
        return cls(survey, survey.preprocessor(gate, standardize, fit_intercept), standardize, source)

    def sum_over(self, task: Callable[[TrainingRows], Any], session: Session) -> Any:
        return session.executor.sum_over(task, told(blocks_of(self._chunks()), len(self), session.journal.passed))

    def _chunks(self) -> Iterator[TrainingRows]:
        expected, seen = iter(self.survey.prints), 0
        for chunk, raw, start in read_through(
            self.preprocessor.gate, self.source, (self.preprocessor.sparse_x, self.preprocessor.sparse_z)
        ):
            if (before := next(expected, None)) is None:
                raise InputError(f"{chunk.name} was not there in the first pass: a stream must bring the same rows every time")
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


def is_empty(chunk: Chunk) -> bool:
    """Of neither X nor y a row."""
    X, _ = unpack(chunk.X, chunk.Z)
    sized = hasattr(chunk.y, "__len__") and getattr(chunk.y, "shape", None) != ()
    return sized and len(chunk.y) == 0 and count_rows(X) == 0
