"""Chunks of rows from a function, from files or from a memory map.

Only one chunk at a time is in memory.
"""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils.validation import check_is_fitted

from ..errors import GPXWarning, InputError
from ..runtime.arguments import real_array
from ..runtime.files import path_of
from ..runtime.parallel import slices
from .checks import target_of
from .inputs import InputTransforms, count_rows, take, unpack
from .table_files import (
    FILE_CHUNK_ROWS,
    SUFFIXES,
    TextFormat,
    common_columns,
    frames,
    is_table,
    listed,
)

# The endings of the names of files that are read.
NPZ = ".npz"
READ = (NPZ, *SUFFIXES)
# Text files that `fit` reads, with advice for users of Python instead of the command line.
FROM_PYTHON = TextFormat(
    separator_remedy="Then write it with commas, or give fit a function that yields (X, y) of what "
    "pandas reads with sep={!r}.",
    encoding_remedy="Write it as UTF-8, or give fit a function that yields (X, y) of what pandas "
    "reads with encoding=.",
)


class Chunk(NamedTuple):
    """Some rows in the user's form, with a name for messages, such as "chunk 3"."""

    name: str
    X: Any
    y: Any
    Z: Any


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
            return _files(path_of(X, "X"), y)
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
    return lambda: _mapped(inner, target, z)


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


def _mapped(X: Any, y: Any, Z: Any) -> Iterator[Chunk]:
    """Yield the chunks of a memory map."""
    for k, rows in enumerate(slices(count_rows(X), FILE_CHUNK_ROWS)):
        yield Chunk(
            f"chunk {k + 1}", _rows_of(X, rows), y[rows], None if Z is None else _rows_of(Z, rows)
        )


def _rows_of(A: Any, rows: slice) -> Any:
    """Return some rows of a table in memory. A data frame keeps the names of its columns."""
    taken = take(A, rows)
    return np.asarray(taken) if isinstance(taken, np.memmap) else taken


def _files(path: Path, target: Any) -> Source:
    """Return the chunks of the files of a folder, or of one file.

    The columns of all tables are compared before a row is read.
    """
    files = _data_files(path)
    tables = [file for file in files if is_table(file)]
    if tables and len(tables) < len(files):
        raise InputError(
            f"The folder {str(path)!r} holds both npz files and tables, which bring y in different "
            "ways. Give each kind a folder of its own."
        )
    if tables and not isinstance(target, str):
        raise InputError(
            "CSV and Parquet files need the name of the target column. Call fit(folder, 'name')."
        )
    if not tables and target is not None:
        raise InputError("Files that end in .npz bring their own y. Call fit(folder).")
    columns = common_columns(tables, target, FROM_PYTHON) if tables else []

    def chunks() -> Iterator[Chunk]:
        for file in files:
            found = _read_table(file, columns, target) if tables else _read_npz(file)
            for k, (X, y, Z) in enumerate(found):
                yield Chunk(f"{file.name}, chunk {k + 1}", X, y, Z)

    return chunks


def _data_files(path: Path) -> list[Path]:
    """Return the files of a folder that can be read, sorted by name, or one such file itself.

    Hidden files and those that begin with an underscore (_SUCCESS, _metadata) are not data. A
    GPXWarning names all other files that are skipped.
    """
    if not path.exists():
        raise InputError(
            f"X={str(path)!r} is not valid: there is no such folder or file. Give the path of one "
            "that exists."
        )
    if not path.is_dir():
        if not _is_data(path):
            raise InputError(
                f"X={str(path)!r} is not a file that fit reads. "
                f"Give one that ends in {', '.join(READ)}."
            )
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._")
    skipped = [file.name for file in found if not _is_data(file)]
    if len(skipped) == len(found):
        others = f", only {listed(skipped, 5)}" if skipped else ""
        raise InputError(
            f"The folder {str(path)!r} holds no {', '.join(READ)} file{others}. Give a folder that "
            "holds such files."
        )
    if skipped:
        warnings.warn(
            f"The folder {str(path)!r} holds files that are not read: {listed(skipped, 5)}. Write "
            f"their rows to {', '.join(READ)} files if they are data, and move them elsewhere if "
            "they are not.",
            GPXWarning,
            stacklevel=2,
        )
    return [file for file in found if _is_data(file)]


def _is_data(path: Path) -> bool:
    """Return whether the name of a file ends as one that can be read."""
    return path.name.lower().endswith(NPZ) or is_table(path)


def _read_table(path: Path, columns: list[str], target: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (X, y, None) of the chunks of a table."""
    for frame in frames(path, FROM_PYTHON, columns, {}, FILE_CHUNK_ROWS):
        yield frame.drop(columns=target), frame[target], None


def _read_npz(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (X, y, Z) of the chunks of an npz file; Z is None if the file has none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := {"X", "y"} - set(file.files):
                lacking = " and no ".join(sorted(missing))
                raise InputError(
                    f"The file {path.name} has no {lacking}, only {', '.join(file.files)}. "
                    "Save it with numpy.savez(path, X=..., y=...)."
                )
            X, y, Z = file["X"], file["y"], file["Z"] if "Z" in file.files else None
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"The file {path.name} cannot be read: {str(error).removesuffix('.')}. Write it again "
            "with numpy.savez(path, X=..., y=...)."
        ) from error
    lengths = [count_rows(A) for A in (X, y, Z) if A is not None]
    if len(set(lengths)) > 1:
        raise InputError(
            f"In the file {path.name}, X, y and Z have {', '.join(map(str, lengths))} rows. "
            "Their numbers of rows must be the same."
        )
    for rows in slices(len(X), FILE_CHUNK_ROWS):
        yield X[rows], y[rows], None if Z is None else Z[rows]


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
