"""Tables of text cells, by column: reading and writing their files, their numbers, their digest."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import InputError

Table = dict[str, tuple[str, ...]]


def table_of(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return rows as columns, by name. Blank lines are skipped.

    A row of another length, or a name that occurs twice, is a ValueError.
    """
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ValueError(f"it has more than one column {', '.join(map(repr, twice))}")
    kept = [row for row in rows if row]
    if not kept:
        raise ValueError("it has no rows")
    for k, row in enumerate(kept, 1):
        if len(row) != len(names):
            raise ValueError(f"row {k} has {len(row)} cells and not {len(names)}")
    return dict(zip(names, zip(*kept, strict=True), strict=True))


def read_table(path: Path, delimiter: str = ",") -> Table:
    """Return the columns of a file with a header row, compressed if its name ends in .gz."""
    try:
        with _opened(path, "r") as lines:
            rows = csv.reader(lines, delimiter=delimiter)
            return table_of(next(rows, []), rows)
    except (ValueError, csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{str(path)!r} cannot be read as a table with a header row: {error}."
        ) from error


def write_table(path: Path, table: Table) -> None:
    """Write a header row and the rows, compressed if the name ends in .gz."""
    with _opened(path, "w") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def _opened(path: Path, mode: str) -> IO[str]:
    """Open a text file in UTF-8, through gzip if its name ends in .gz."""
    encoding = "utf-8-sig" if mode == "r" else "utf-8"
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", encoding=encoding, newline="")  # type: ignore[return-value]
    return open(path, mode, encoding=encoding, newline="")


def column(table: Table, name: str) -> tuple[str, ...]:
    """Return the cells of a column; a missing one is an InputError."""
    if name not in table:
        raise InputError(
            f"The table has no column {name!r}. It has {', '.join(table)}. Give a table with this "
            "column."
        )
    return table[name]


def numbers(table: Table, name: str) -> np.ndarray:
    """Return a column as float64;  (n,)."""
    cells = column(table, name)
    try:
        return np.array(cells, dtype=float)
    except ValueError as error:
        raise InputError(f"The column {name!r} must have numbers only: {error}.") from error


def content_digest(table: Table, columns: Sequence[str]) -> str:
    """Return the sha256 of these columns, by name and in this order, whatever the file around them.

    Numbers count to ten digits, so that 4.09 is 4.0900. White space in texts counts as one space.
    """
    digest = hashlib.sha256()
    for name in columns:
        cells = "\x1f".join([name, *_canonical(table[name])])
        digest.update(f"{cells}\x1e".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _canonical(cells: Sequence[str]) -> list[str]:
    """Return cells in one spelling: numbers to ten digits, or texts with single spaces."""
    try:
        # Adding 0.0 makes zero of minus zero.
        return [f"{float(cell) + 0.0:.9e}" for cell in cells]
    except ValueError:
        return [" ".join(cell.split()) for cell in cells]
