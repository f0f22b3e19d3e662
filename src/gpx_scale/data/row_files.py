"""Rows in files: memory maps, and folders of tables or npz files.

They are read chunk by chunk, and single rows are read by their numbers. So a model can refer to
rows that stay where they are: a copy or a saved model has the paths, and no row.
"""

from __future__ import annotations

import abc
import mmap
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import GPXWarning, InputError
from ..runtime.parallel import slices
from ..runtime.state import must, stored
from .input_pair import count_rows, take
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
# Types of numbers that a memory map of training rows can have, by the `kind` of their dtype.
NUMBER_KINDS = "biuf"


class Chunk(NamedTuple):
    """Some rows in the user's form, with a name for messages, such as "chunk 3"."""

    name: str
    X: Any
    y: Any
    Z: Any


class RowFiles(abc.ABC):
    """Rows in files. A call returns an iterator over all chunks, anew each time."""

    @abc.abstractmethod
    def __call__(self) -> Iterator[Chunk]:
        """Return an iterator over all chunks of rows, in their order."""

    @abc.abstractmethod
    def take(self, index: np.ndarray, chunks: Sequence[tuple[str, int]]) -> Iterator[Chunk]:
        """Yield the rows with ascending numbers `index`, in one or more chunks.

        `chunks` has the name and the number of rows of every chunk that has rows.
        """

    @abc.abstractmethod
    def must_be_there(self) -> None:
        """Raise an InputError unless the files are there, with the sizes that they had at fit."""


@stored
@dataclass(frozen=True)
class MappedFile:
    """The place of an array in a file, from which it is mapped into memory.

    Attributes
    ----------
    path : str
        The file.
    size : int
        Its number of bytes.
    dtype : str
        The type of its numbers, as text.
    shape, strides : tuple of int
        The shape of the array, and the bytes from one number to the next along each axis.
    offset : int
        The bytes before the first number.
    """

    path: str
    size: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, array: np.memmap[Any, Any]) -> MappedFile | None:
        """Return where a memory map is, or None if its file has no name."""
        base: Any = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        path = getattr(array, "filename", None)
        if path is None or not isinstance(base.base, mmap.mmap) or not Path(path).is_file():
            return None
        # The map of a file begins at a whole page. `offset` of a slice is that of the whole array.
        start = int(base.offset) - int(base.offset) % mmap.ALLOCATIONGRANULARITY
        first = np.frombuffer(base.base, np.uint8).ctypes.data
        return cls(
            str(Path(path).resolve()),
            Path(path).stat().st_size,
            array.dtype.str,
            array.shape,
            array.strides,
            start + array.ctypes.data - first,
        )

    def must_be_there(self) -> None:
        """Raise an InputError unless the file is there and has its size."""
        _must_have_size(Path(self.path), self.size)

    def open(self) -> np.ndarray:
        """Return the array, mapped for reading."""
        self.must_be_there()
        dtype = np.dtype(self.dtype)
        if dtype.kind not in NUMBER_KINDS:
            raise InputError(f"The file {self.path!r} is said to hold {dtype}, and not numbers.")
        whole = np.memmap(self.path, np.uint8, "r")
        try:
            return np.ndarray(self.shape, dtype, whole, self.offset, self.strides)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"The file {self.path!r} does not hold the rows of this model ({error}). "
                "Fit the model again."
            ) from error


def _must_have_size(path: Path, size: int) -> None:
    """Raise an InputError unless there is an ordinary file with this number of bytes."""
    if not path.is_file():
        raise InputError(
            f"The training rows of this model are in {str(path)!r}, and there is no such file. "
            "Put it back, or fit the model again."
        )
    if (found := path.stat().st_size) != size:
        raise InputError(
            f"The file {str(path)!r} has {found:,} bytes, and had {size:,} at fit. The model needs "
            "the rows that it was fitted to: put them back, or fit it again."
        )


@stored(make=lambda X, y, Z: MappedArrays.read(X, y, Z))
@dataclass(frozen=True)
class MappedArrays(RowFiles):
    """Arrays of which at least one is a memory map.

    X, y and Z (which may be None) are what the user gave, or the places of memory maps. A copy or a
    saved model has the places of memory maps, and the numbers of all other arrays.
    """

    X: Any
    y: Any
    Z: Any

    @classmethod
    def of(cls, X: Any, y: Any, Z: Any) -> MappedArrays:
        """Return the source of these arrays, which stay open."""
        made = cls(*(_place_of(A) for A in (X, y, Z)))
        made.__dict__["_arrays"] = (X, y, Z)
        return made

    @classmethod
    def read(cls, X: Any, y: Any, Z: Any) -> MappedArrays:
        """Return a source that was read from a model file, or raise a ValueError."""
        counts = set()
        for A in (X, y, Z):
            must(A is None or isinstance(A, MappedFile | np.ndarray), "its rows are no arrays")
            if A is not None:
                must(len(A.shape) >= 1 and min(A.shape) >= 0, "its rows have no shape")
                counts.add(A.shape[0])
        must(X is not None and y is not None and len(counts) == 1, "X, y and Z differ in length")
        return cls(X, y, Z)

    def __getstate__(self) -> dict[str, Any]:
        """Return the places of memory maps, which are opened again when they are needed."""
        if any(isinstance(A, np.memmap) for A in (self.X, self.y, self.Z)):
            raise InputError(
                "A memory map without the name of a file cannot be copied or saved with a model. "
                "Open it by its path, as in numpy.load(path, mmap_mode='r')."
            )
        return {"X": self.X, "y": self.y, "Z": self.Z}

    @cached_property
    def _arrays(self) -> tuple[Any, Any, Any]:
        """Return X, y and Z, with files mapped into memory."""
        X, y, Z = (A.open() if isinstance(A, MappedFile) else A for A in (self.X, self.y, self.Z))
        return X, y, Z

    def must_be_there(self) -> None:
        for A in (self.X, self.y, self.Z):
            if isinstance(A, MappedFile):
                A.must_be_there()

    def __call__(self) -> Iterator[Chunk]:
        X, y, Z = self._arrays
        for k, rows in enumerate(slices(count_rows(X), FILE_CHUNK_ROWS)):
            yield Chunk(
                f"chunk {k + 1}",
                _rows_of(X, rows),
                y[rows],
                None if Z is None else _rows_of(Z, rows),
            )

    def take(self, index: np.ndarray, chunks: Sequence[tuple[str, int]]) -> Iterator[Chunk]:
        X, y, Z = self._arrays
        some = None if Z is None else _rows_of(Z, index)
        yield Chunk("some of the rows", _rows_of(X, index), _rows_of(y, index), some)


def _place_of(A: Any) -> Any:
    """Return the place of a memory map, and any other array, or a map without a name, as it is."""
    found = MappedFile.of(A) if isinstance(A, np.memmap) else None
    return A if found is None else found


def _rows_of(A: Any, rows: Any) -> Any:
    """Return some rows of a table in memory. A data frame keeps the names of its columns."""
    taken = take(A, rows)
    return np.asarray(taken) if isinstance(taken, np.memmap) else taken


@stored
@dataclass(frozen=True)
class DataFiles(RowFiles):
    """The files of a folder, in the order of their names, or one file.

    Attributes
    ----------
    paths : list of str
        The files.
    sizes : list of int
        Their numbers of bytes.
    columns : list of str
        The columns of tables, none for npz files.
    target : str or None
        The column of a table that is y, None for npz files.
    """

    paths: list[str]
    sizes: list[int]
    columns: list[str]
    target: str | None

    @classmethod
    def of(cls, path: Path, target: Any) -> DataFiles:
        """Return the files of a folder, or one file.

        The columns of all tables are compared before a row is read.
        """
        files = _data_files(path)
        tables = [file for file in files if is_table(file)]
        if tables and len(tables) < len(files):
            raise InputError(
                f"The folder {str(path)!r} holds both npz files and tables, which bring y in "
                "different ways. Give each kind a folder of its own."
            )
        if tables and not isinstance(target, str):
            raise InputError(
                "CSV and Parquet files need the name of the target column. Call fit(folder, "
                "'name')."
            )
        if not tables and target is not None:
            raise InputError("Files that end in .npz bring their own y. Call fit(folder).")
        columns = common_columns(tables, target, FROM_PYTHON) if tables else []
        paths = [str(file.resolve()) for file in files]
        return cls(paths, [file.stat().st_size for file in files], columns, target)

    def must_be_there(self) -> None:
        for path, size in zip(self.paths, self.sizes, strict=True):
            _must_have_size(Path(path), size)

    def __call__(self) -> Iterator[Chunk]:
        for path in map(Path, self.paths):
            yield from self._chunks(path)

    def take(self, index: np.ndarray, chunks: Sequence[tuple[str, int]]) -> Iterator[Chunk]:
        rows: Counter[str] = Counter()
        for name, count in chunks:
            rows[_file_of(name)] += count
        start = 0
        for path in map(Path, self.paths):
            stop = start + rows[path.name]
            # A file that has none of the rows is not read.
            if np.searchsorted(index, start) < np.searchsorted(index, stop):
                for chunk in self._chunks(path):
                    end = start + count_rows(chunk.y)
                    at = index[slice(*np.searchsorted(index, (start, end)))] - start
                    start = end
                    if at.size:
                        tables = (None if A is None else take(A, at) for A in chunk[1:])
                        yield Chunk(chunk.name, *tables)
            start = stop

    def _chunks(self, path: Path) -> Iterator[Chunk]:
        """Yield the chunks of one file."""
        found = _read_table(path, self.columns, self.target) if self.target else _read_npz(path)
        for k, (X, y, Z) in enumerate(found):
            yield Chunk(f"{path.name}, chunk {k + 1}", X, y, Z)


def _file_of(name: str) -> str:
    """Return the name of the file that a chunk with this name is in."""
    return name.rsplit(", chunk ", 1)[0]


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
