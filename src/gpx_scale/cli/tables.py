"""Tables on disk: CSV, TSV and Parquet files, checked as they are read, and written whole.

A first pass surveys the file in chunks: which columns are numbers, which are categories, where something is missing. A table
of few rows is kept as it is read; of more, every later pass reads the file again.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data.table_files import (
    FILE_CHUNK_ROWS,
    PLAIN,
    TextFormat,
    frames,
    header_of,
    is_parquet,
    listed,
    must_have,
)
from ..errors import InputError
from ..plan import CG_ROWS
from ..runtime.files import atomic_write, import_optional, writable
from ..runtime.parallel import evenly_spaced

HELD_ROWS = CG_ROWS  # where `auto` goes over to sums
MOST_LEVELS = 1000  # of a category; more are not counted


@dataclass
class Column:
    """What is known of a column: "number" (with extremes), "category" (with levels), "text"."""

    name: str
    kind: str = ""
    levels: set[str] = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf


@dataclass(frozen=True)
class Table:
    """The columns asked for, in the order of the file; `held` are all rows where they are few."""

    path: Path
    way: TextFormat
    columns: dict[str, Column]
    rows: int
    held: Any

    def chunks(self) -> Iterator[Any]:
        """All rows as frames: numbers are float64, all else is text."""
        if self.held is not None:
            return iter([self.held])
        kinds = {
            name: "float64" if column.kind == "number" else "str"
            for name, column in self.columns.items()
        }
        return (
            _typed(frame, self.columns)
            for frame in frames(self.path, self.way, list(self.columns), kinds, FILE_CHUNK_ROWS)
        )

    def evenly(self, most: int) -> np.ndarray:
        """Numbers of rows spread over the table, at most so many."""
        return evenly_spaced(most, self.rows)

    def taken(self, rows: np.ndarray) -> Any:
        """Some rows, in ascending order, as one frame."""
        start, found = 0, []
        for frame in self.chunks():
            inside = rows[(rows >= start) & (rows < start + len(frame))]
            found.append(frame.iloc[inside - start])
            start += len(frame)
        return import_optional("pandas", "cli").concat(found, ignore_index=True)


# reading


def read_table(
    path: Any,
    wanted: Sequence[str] | None = None,
    way: TextFormat = PLAIN,
    kinds: dict[str, str] | None = None,
    hold: int | None = None,
) -> Table:
    """Survey a file. wanted: its columns, or all; kinds: what columns must be, where that is known; hold: the rows that are
    kept in memory at most."""
    path, hold = Path(path), HELD_ROWS if hold is None else hold
    names = header_of(path, way)
    if wanted is not None:
        must_have(wanted, names, path.name)
    some = set(names if wanted is None else wanted)
    wanted = [name for name in names if name in some]
    found = {name: Column(name, (kinds or {}).get(name, "")) for name in wanted}
    rows = 0
    kept: list[Any] | None = []
    as_written = {name: "str" for name in wanted if found[name].kind in ("category", "text")}
    with closing(frames(path, way, wanted, as_written, FILE_CHUNK_ROWS)) as chunks:
        for frame in chunks:
            for name in wanted:
                _survey(
                    frame[name],
                    found[name],
                    rows,
                    path.name,
                    (kinds or {}).get(name, ""),
                    is_parquet(path),
                )
            rows += len(frame)
            if kept is not None:
                kept = [*kept, _typed(frame, found)] if rows <= hold else None
    if not rows:
        raise InputError(f"{path.name} has columns ({listed(names)}) and no rows")
    held = (
        None if kept is None else import_optional("pandas", "cli").concat(kept, ignore_index=True)
    )
    return Table(path, way, found, rows, held)


# surveying


def _survey(
    values: Any, column: Column, start: int, file: str, must_be: str = "", typed: bool = False
) -> None:
    """What a chunk of a column says of it; what is wrong is named by its row, counted from 1 below the header. `typed`: the
    file says what its columns are, so that texts are no numbers, whatever they look like."""
    missing = values.isna().to_numpy()
    if missing.any():
        raise InputError(
            f"{file}: row {start + int(missing.argmax()) + 1}, column {column.name!r} is missing, one of {missing.sum()} "
            "(empty, or a word for that such as NA, None or null): fill or drop such rows first"
        )
    first = values.iloc[0]
    if values.dtype.kind in "Mm" or isinstance(first, datetime.date | datetime.time):
        raise InputError(
            f"{file}: column {column.name!r} holds times: make numbers of them, such as days since the first"
        )
    if isinstance(first, list | tuple | dict | set | bytes | np.ndarray):
        raise InputError(
            f"{file}: column {column.name!r} holds a {type(first).__name__} in each row: leave it out with --drop"
        )
    if values.dtype.kind in "biuf":
        numbers = values.to_numpy(dtype=float)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InputError(
                f"{file}: row {start + at + 1}, column {column.name!r} is {numbers[at]}"
            )
        _agree(column, "number", lambda: (start, values.iloc[0]), file)
        column.low, column.high = min(column.low, numbers.min()), max(column.high, numbers.max())
        return
    texts = values.astype(str)
    if column.kind == "text":
        return
    number = import_optional("pandas", "cli").to_numeric(texts, errors="coerce").notna().to_numpy()
    if typed and isinstance(first, str):
        number = np.zeros_like(number)
    at = int((~number).argmax())
    if number.all() and must_be != "category":  # numbers that the file keeps as text
        _survey(texts.astype(float), column, start, file)
    elif must_be == "number" or (2 * number.sum() > len(number) and must_be != "category"):
        raise _mixed(file, column.name, start + at, texts.iloc[at])
    else:
        _agree(column, "category", lambda: (start + at, texts.iloc[at]), file)
        if len(column.levels) <= MOST_LEVELS:
            column.levels.update(texts.unique())


def _agree(column: Column, kind: str, where: Callable[[], tuple[int, Any]], file: str) -> None:
    if column.kind and column.kind != kind:
        raise _mixed(file, column.name, *where())
    column.kind = kind


def _mixed(file: str, name: str, row: int, value: Any) -> InputError:
    remedy = (
        "write numbers plainly, as in 1200.5"
        if looks_like(NUMBER, [str(value)])
        else "make it one or the other"
    )
    return InputError(
        f"{file}: column {name!r} is to hold numbers, or holds some, and row {row + 1} is {str(value)!r}: {remedy}"
    )


NUMBER = re.compile(
    r"(?=.*[,' %€$£\u00a0\u202f])[-+€$£]?\d[\d.,' \u00a0\u202f]*[%€]?"
)  # but not written plainly
DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d{1,2}/\d{1,2}/\d{2})([ T]\d{1,2}:\d{2}.*)?"
)


def looks_like(form: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Whether every text has a form."""
    return all(form.fullmatch(text.strip()) for text in texts)


def _typed(frame: Any, columns: dict[str, Column]) -> Any:
    number = {name for name in frame.columns if columns[name].kind == "number"}
    typed = {
        name: frame[name].astype(float)
        if name in number
        else frame[name].astype(str).astype(object)
        for name in frame
    }
    return import_optional("pandas", "cli").DataFrame(typed)


# writing

FORMULA_STARTS = tuple(
    "=+-@\t\r\n"
)  # A spreadsheet runs what begins so. OWASP's page on CSV injection lists these.
PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def write_csv(frame: Any, where: Any, separator: str = ",") -> None:
    """Write a frame as text, with an apostrophe before each name and each text that a spreadsheet would run as a formula."""
    _without_formulas(frame).to_csv(where, index=False, sep=separator)


def _without_formulas(frame: Any) -> Any:
    safe = frame.set_axis([_inert(name) for name in frame.columns], axis=1)
    for k, (_, column) in enumerate(frame.items()):
        if column.dtype.kind in "biufMm":
            continue
        changed = {text: _inert(text) for text in column.unique() if _inert(text) != text}
        if changed:
            safe.isetitem(
                k, column.astype(object).map(lambda cell, changed=changed: changed.get(cell, cell))
            )
    return safe


def _inert(cell: Any) -> Any:
    """Return a cell as it is, or with an apostrophe before it if it is a text that begins as a formula, and no number."""
    runs = (
        isinstance(cell, str)
        and cell.startswith(FORMULA_STARTS)
        and not PLAIN_NUMBER.fullmatch(cell)
    )
    return f"'{cell}" if runs else cell


WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    ".csv": write_csv,
    ".csv.gz": write_csv,
    ".tsv": lambda frame, path: write_csv(frame, path, "\t"),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".json": lambda frame, path: path.write_text(
        json.dumps(frame.to_dict("records"), allow_nan=False), encoding="utf-8"
    ),
}


def writable_table(out: Path | None, *inputs: Path) -> None:
    """An error where a table could not be written, before it is computed."""
    if out is not None:
        _writer(apart(out, *inputs))


def apart(out: Path, *inputs: Path) -> Path:
    """A file that can be written, and is none of those that are read."""
    path = writable(out)
    if any(other.exists() and path.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"--out {str(out)!r} is also what is read: name another file")
    return path


def write_table(frame: Any, out: Path) -> None:
    with atomic_write(out) as beside:
        _writer(out)(frame, beside)


def _writer(out: Path) -> Callable[[Any, Path], Any]:
    found = [write for suffix, write in WRITERS.items() if out.name.lower().endswith(suffix)]
    if not found:
        raise InputError(f"--out {str(out)!r}: give a file that ends in {', '.join(WRITERS)}")
    return found[0]
