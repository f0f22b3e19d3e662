"""Tables in CSV, TSV and Parquet files: read and checked in chunks, written whole.

A first pass surveys the file: which columns are numbers, which are categories, and whether a
value is missing. A table of few rows is kept in memory; every later pass over a longer one
reads the file again.
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
from ..runtime.files import atomic_write, import_optional, writable
from ..runtime.parallel import evenly_spaced
from ..solvers.contract import CG_ROWS

# A table of more rows is read in chunks. From this number on, the solvers that `auto` takes
# need only sums over the rows.
MAX_HELD_ROWS = CG_ROWS
# A category has at most this many values; more are not counted.
MAX_CATEGORY_LEVELS = 1000
# These are numbers that are not written plainly, such as 1,200 or 5 %.
NUMBER = re.compile(r"(?=.*[,' %€$£\u00a0\u202f])[-+€$£]?\d[\d.,' \u00a0\u202f]*[%€]?")
# These are dates, with or without a time of day.
DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d{1,2}/\d{1,2}/\d{2})"
    r"([ T]\d{1,2}:\d{2}.*)?"
)
# A spreadsheet runs a text that begins so as a formula. OWASP's page on CSV injection lists these.
FORMULA_STARTS = tuple("=+-@\t\r\n")
PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass
class Column:
    """A column of a table.

    `kind` is "number", "category", "text" or, if it is not known, "". Numbers have extremes,
    `low` and `high`; a category has `levels`, its values.
    """

    name: str
    kind: str = ""
    levels: set[str] = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf


@dataclass(frozen=True)
class Table:
    """The wanted columns of a file, in its order.

    `held` is a frame of all rows if they are few, and None otherwise.
    """

    path: Path
    text_format: TextFormat
    columns: dict[str, Column]
    rows: int
    held: Any

    def chunks(self) -> Iterator[Any]:
        """Return all rows as frames, in which numbers are float64 and all else is text."""
        if self.held is not None:
            return iter([self.held])
        kinds = {
            name: "float64" if column.kind == "number" else "str"
            for name, column in self.columns.items()
        }
        return (
            _typed(frame, self.columns)
            for frame in frames(
                self.path, self.text_format, list(self.columns), kinds, FILE_CHUNK_ROWS
            )
        )

    def evenly(self, most: int) -> np.ndarray:
        """Return the numbers of at most `most` rows, evenly spread over the table."""
        return evenly_spaced(most, self.rows)

    def taken(self, rows: np.ndarray) -> Any:
        """Return rows, whose numbers are in ascending order, as one frame."""
        start, found = 0, []
        for frame in self.chunks():
            inside = rows[(rows >= start) & (rows < start + len(frame))]
            found.append(frame.iloc[inside - start])
            start += len(frame)
        return import_optional("pandas", "cli").concat(found, ignore_index=True)


def read_table(
    path: Any,
    wanted: Sequence[str] | None = None,
    text_format: TextFormat = PLAIN,
    kinds: dict[str, str] | None = None,
    hold: int | None = None,
) -> Table:
    """Survey a file.

    `wanted` are the columns to read, by default all; `kinds` says what columns must be, as far
    as that is known; a table of more than `hold` rows is not kept in memory.
    """
    path, hold = Path(path), MAX_HELD_ROWS if hold is None else hold
    names = header_of(path, text_format)
    if wanted is not None:
        must_have(wanted, names, path.name)
    some = set(names if wanted is None else wanted)
    wanted = [name for name in names if name in some]
    found = {name: Column(name, (kinds or {}).get(name, "")) for name in wanted}
    rows = 0
    kept: list[Any] | None = []
    as_written = {name: "str" for name in wanted if found[name].kind in ("category", "text")}
    with closing(frames(path, text_format, wanted, as_written, FILE_CHUNK_ROWS)) as chunks:
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
        raise InputError(
            f"{path.name} has columns ({listed(names)}) and no rows. Give a table with rows."
        )
    held = (
        None if kept is None else import_optional("pandas", "cli").concat(kept, ignore_index=True)
    )
    return Table(path, text_format, found, rows, held)


def _survey(
    values: Any, column: Column, start: int, file: str, must_be: str = "", typed: bool = False
) -> None:
    """Add what a chunk shows to what is known of a column.

    An error names its row, counted from 1 below the header. If the file is `typed`, it says
    what its columns are, and texts are not taken for numbers, whatever they look like.
    """
    missing = values.isna().to_numpy()
    if missing.any():
        count = int(missing.sum())
        raise InputError(
            f"{file}: column {column.name!r} has {count} missing value{'s' * (count > 1)} in rows "
            f"{start + 1} to {start + len(missing)}, the first in row "
            f"{start + int(missing.argmax()) + 1}. (A value is missing if it is empty, or a word "
            "such as NA, None or null.) Fill in such values, or remove their rows."
        )
    first = values.iloc[0]
    if values.dtype.kind in "Mm" or isinstance(first, datetime.date | datetime.time):
        raise InputError(
            f"{file}: column {column.name!r} has dates or times. Replace them by numbers, such "
            "as days since the first."
        )
    if isinstance(first, list | tuple | dict | set | bytes | np.ndarray):
        raise InputError(
            f"{file}: column {column.name!r} has a {type(first).__name__} in each row. Leave it "
            "out with --drop."
        )
    if values.dtype.kind in "biuf":
        numbers = values.to_numpy(dtype=float)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InputError(
                f"{file}: the value in row {start + at + 1}, column {column.name!r} is "
                f"{numbers[at]}. Replace it by a finite number, or remove its row."
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
    # The file may keep numbers as texts.
    if number.all() and must_be != "category":
        _survey(texts.astype(float), column, start, file)
    elif must_be == "number" or (2 * number.sum() > len(number) and must_be != "category"):
        has = "must have numbers" if must_be == "number" else "has numbers"
        raise _mixed(file, column.name, has, start + at, texts.iloc[at])
    else:
        _agree(column, "category", lambda: (start + at, texts.iloc[at]), file)
        if len(column.levels) <= MAX_CATEGORY_LEVELS:
            column.levels.update(texts.unique())


def _agree(column: Column, kind: str, where: Callable[[], tuple[int, Any]], file: str) -> None:
    """Set the kind of a column; another kind than before is an error at `where` (row, value)."""
    if column.kind and column.kind != kind:
        has = "has numbers" if column.kind == "number" else "has texts"
        raise _mixed(file, column.name, has, *where())
    column.kind = kind


def _mixed(file: str, name: str, has: str, row: int, value: Any) -> InputError:
    """Return the error of a column that `has` values of one kind, and another kind in a row."""
    remedy = (
        "Write numbers plainly, as in 1200.5."
        if looks_like(NUMBER, [str(value)])
        else "Make all of its values numbers."
        if has.startswith("must")
        else "Make all of its values numbers, or all of them texts."
    )
    return InputError(
        f"{file}: column {name!r} {has}, but row {row + 1} has {str(value)!r}. {remedy}"
    )


def looks_like(form: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Return whether every text has a form."""
    return all(form.fullmatch(text.strip()) for text in texts)


def _typed(frame: Any, columns: dict[str, Column]) -> Any:
    """Return a frame with numbers as float64 and all else as text."""
    number = {name for name in frame.columns if columns[name].kind == "number"}
    typed = {
        name: frame[name].astype(float)
        if name in number
        else frame[name].astype(str).astype(object)
        for name in frame
    }
    return import_optional("pandas", "cli").DataFrame(typed)


def write_csv(frame: Any, where: Any, separator: str = ",") -> None:
    """Write a frame as text.

    Each name and each text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    _without_formulas(frame).to_csv(where, index=False, sep=separator)


def _without_formulas(frame: Any) -> Any:
    """Return a frame in which no name and no text is a formula."""
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
    """Return a cell, with an apostrophe before it if a spreadsheet would run it as a formula.

    That is a text that begins as a formula and is not a number.
    """
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


def check_output_table(out: Path | None, *inputs: Path) -> None:
    """Raise an error if a table cannot be written to `out`, before the table is computed."""
    if out is not None:
        _writer(output_path(out, *inputs))


def output_path(out: Path, *inputs: Path) -> Path:
    """Return the path of a file that can be written and is none of the `inputs`."""
    path = writable(out)
    if any(other.exists() and path.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"--out {str(out)!r} is also a file that is read. Give another file.")
    return path


def write_table(frame: Any, out: Path) -> None:
    """Write a frame to a file, whole or not at all."""
    with atomic_write(out) as beside:
        _writer(out)(frame, beside)


def _writer(out: Path) -> Callable[[Any, Path], Any]:
    """Return the function that writes files with the suffix of `out`."""
    found = [write for suffix, write in WRITERS.items() if out.name.lower().endswith(suffix)]
    if not found:
        raise InputError(f"--out {str(out)!r}: Give a file that ends in {', '.join(WRITERS)}.")
    return found[0]
