"""Tables in CSV, TSV and Parquet files: read and checked in chunks, written whole.

A first pass surveys the file: which columns are numbers, which are categories, and whether a
value is missing. A table of few rows is kept in memory; every later pass over a longer one
reads the file again.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data.column_encodings import MAX_CATEGORY_LEVELS
from ..data.frame_columns import ISO_DATE, OFFSET
from ..data.frame_encoder import INDICATOR
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
from ..runtime.problems import Problems
from ..solvers.contract import CG_ROWS

# A table of more rows is read in chunks. From this number on, the solvers that `auto` takes
# need only sums over the rows.
MAX_HELD_ROWS = CG_ROWS
# These are numbers that are not written plainly, such as 1,200 or 5 %.
NUMBER = re.compile(r"(?=.*[,' %€$£\u00a0\u202f])[-+€$£]?\d[\d.,' \u00a0\u202f]*[%€]?")
# These are dates, with or without a time of day, in any order.
DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d{1,2}/\d{1,2}/\d{2})"
    r"([ T]\d{1,2}:\d{2}.*)?"
)
# A spreadsheet runs a text that begins so as a formula. OWASP's page on CSV injection lists these.
FORMULA_STARTS = tuple("=+-@\t\r\n")
PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Reading:
    """How the columns of a file are read.

    text_format : the separator and the encoding of a text file.
    missing : "indicator" if values may be missing, or "error".
    dates : the formats of columns of dates, by name; None stands for ISO 8601.
    row_names : the column that names the rows, or None.
    """

    text_format: TextFormat = PLAIN
    missing: str = INDICATOR
    dates: Mapping[str, str | None] = field(default_factory=dict)
    row_names: str | None = None


# A file about which the user says nothing.
AS_USUAL = Reading()


@dataclass
class Column:
    """A column of a table.

    `kind` is "number", "category", "date", "text" (documents), "name" (of rows, or a column that is
    only passed on) or, if it is not known, "". `wanted` is the kind that it must have, if that is
    known; "target" stands for numbers none of which is missing. Nothing more is added to a column
    that is `broken`. `levels` are the values of a category. `seen` has a row for each level, for
    the smallest and the largest number, and for a missing value: rows that show all that the column
    has.
    """

    name: str
    kind: str = ""
    wanted: str = ""
    levels: set[str] = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf
    missing: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    broken: bool = False


@dataclass(frozen=True)
class Table:
    """The wanted columns of a file, in its order.

    `held` is a frame of all rows if they are few, and None otherwise. The index of its frames are
    the names of the rows, or numbers that begin with 1.
    """

    path: Path
    reading: Reading
    columns: dict[str, Column]
    rows: int
    held: Any

    def chunks(self) -> Iterator[Any]:
        """Return all rows as frames, in which numbers are float64."""
        if self.held is not None:
            yield self.held
            return
        kinds = {name: "str" for name, column in self.columns.items() if column.kind != "number"}
        start = 0
        for frame in frames(
            self.path, self.reading.text_format, list(self.columns), kinds, FILE_CHUNK_ROWS
        ):
            yield _typed(frame, self.columns, self.reading, start)
            start += len(frame)

    def evenly(self, most: int) -> np.ndarray:
        """Return the numbers of at most `most` rows, evenly spread over the table."""
        return evenly_spaced(most, self.rows)

    def showing(self, most: int) -> np.ndarray:
        """Return the numbers of about `most` rows, in which every column has all that it has."""
        special = [row for column in self.columns.values() for row in column.seen.values()]
        return np.union1d(self.evenly(most), np.array(special, dtype=int))

    def taken(self, rows: np.ndarray) -> Any:
        """Return rows, whose numbers are in ascending order, as one frame."""
        start, found = 0, []
        for frame in self.chunks():
            inside = rows[(rows >= start) & (rows < start + len(frame))]
            found.append(frame.iloc[inside - start])
            start += len(frame)
        return import_optional("pandas", "cli").concat(found)


def read_table(
    path: Any,
    wanted: Sequence[str] | None = None,
    reading: Reading = AS_USUAL,
    kinds: Mapping[str, str] | None = None,
    hold: int | None = None,
    problems: Problems | None = None,
) -> Table:
    """Survey a file.

    `wanted` are the columns to read, by default all; `kinds` says what columns must be, as far
    as that is known; a table of more than `hold` rows is not kept in memory. What is wrong with
    columns is added to `problems`, or raised as one error.
    """
    path, hold = Path(path), MAX_HELD_ROWS if hold is None else hold
    names, kinds = header_of(path, reading.text_format), dict(kinds or {})
    if reading.row_names is not None:
        kinds[reading.row_names] = "name"
        wanted = None if wanted is None else [*wanted, reading.row_names]
    if wanted is not None:
        must_have(wanted, names, path.name)
    must_have(list(reading.dates), names, path.name)
    some = set(names if wanted is None else wanted)
    wanted = [name for name in names if name in some]
    kinds |= dict.fromkeys(reading.dates, "date")
    found = {name: Column(name, wanted=kinds.get(name, "")) for name in wanted}
    for column in found.values():
        column.kind = "number" if column.wanted == "target" else column.wanted
    survey = _Survey(path.name, reading, is_parquet(path))
    rows = 0
    kept: list[Any] | None = []
    as_written = {
        name: "str" for name in wanted if found[name].wanted not in ("", "number", "target")
    }
    with closing(frames(path, reading.text_format, wanted, as_written, FILE_CHUNK_ROWS)) as chunks:
        for frame in chunks:
            for name in wanted:
                survey.add(frame[name], found[name], rows)
            if kept is not None:
                fits = rows + len(frame) <= hold and not survey.problems.found
                kept = [*kept, _typed(frame, found, reading, rows)] if fits else None
            rows += len(frame)
    if not rows:
        raise InputError(
            f"{path.name} has columns ({listed(names)}) and no rows. Give a table with rows."
        )
    if problems is None:
        survey.problems.raise_all()
    else:
        problems.found += survey.problems.found
    held = None if kept is None else import_optional("pandas", "cli").concat(kept)
    return Table(path, reading, found, rows, held)


class _Survey:
    """What is found out about the columns of a file, and what is wrong with them.

    If the file is `typed`, it says what its columns are, and texts are not taken for numbers,
    whatever they look like. Errors name rows, counted from 1 below the header.
    """

    def __init__(self, file: str, reading: Reading, typed: bool) -> None:
        self.file, self.reading, self.typed = file, reading, typed
        self.problems = Problems()

    def add(self, values: Any, column: Column, start: int) -> None:
        """Add what a chunk shows to what is known of a column, unless something is wrong with it.

        `start` is the number of rows before the chunk.
        """
        if column.broken or column.wanted == "name":
            return
        column.broken = True
        with self.problems:
            missing = values.isna().to_numpy()
            if missing.any():
                self._add_missing(missing, column, start)
            rows = start + np.flatnonzero(~missing)
            if rows.size:
                self._add(values[~missing], column, rows)
            column.broken = False

    def _add_missing(self, missing: np.ndarray, column: Column, start: int) -> None:
        """Count missing values, or raise an error if there may be none."""
        count, first = int(missing.sum()), start + int(missing.argmax())
        column.missing += count
        column.seen.setdefault("missing value", first)
        if self.reading.missing == INDICATOR and column.wanted not in ("target", "text"):
            return
        may_be = "" if column.wanted in ("target", "text") else ", or give --missing indicator"
        raise InputError(
            f"{self.file}: column {column.name!r} has {count} missing value{'s' * (count > 1)} in "
            f"rows {start + 1} to {start + len(missing)}, the first in row {first + 1}. (A value "
            "is missing if it is empty, or a word such as NA, None or null.) Fill in such values, "
            f"or remove their rows{may_be}."
        )

    def _add(self, values: Any, column: Column, rows: np.ndarray) -> None:
        """Add values that are not missing, which are those of the given rows."""
        first = values.iloc[0]
        if column.wanted == "text":
            return
        if column.name in self.reading.dates:
            _as_dates(values, column.name, self.reading.dates[column.name], self.file)
            return
        if values.dtype.kind in "Mm" or isinstance(first, datetime.date | datetime.time):
            self._agree(column, "date", rows[0], first)
            return
        if isinstance(first, list | tuple | dict | set | bytes | np.ndarray):
            raise InputError(
                f"{self.file}: column {column.name!r} has a {type(first).__name__} in each row. "
                "Leave it out with --drop."
            )
        if values.dtype == object and all(isinstance(value, bool | np.bool_) for value in values):
            values = values.astype(bool)
        if values.dtype.kind in "biuf" and column.wanted != "category":
            self._add_numbers(values.to_numpy(dtype=float), column, rows, first)
            return
        texts = values.astype(str)
        number = (
            import_optional("pandas", "cli").to_numeric(texts, errors="coerce").notna().to_numpy()
        )
        if self.typed and isinstance(first, str):
            number = np.zeros_like(number)
        at = int((~number).argmax())
        # The file may keep numbers as texts.
        if number.all() and column.wanted not in ("category", "date"):
            self._add_numbers(texts.to_numpy(dtype=float), column, rows, first)
        elif column.wanted in ("number", "target") or (
            2 * number.sum() > len(number) and column.wanted not in ("category", "date")
        ):
            has = "must have numbers" if column.wanted else "has numbers"
            raise self._mixed(column.name, has, rows[at], texts.iloc[at])
        elif column.wanted != "category" and (is_date := _are_dates(texts)).mean() > 0.5:
            self._agree(column, "date", rows[0], first)
            if not is_date.all():
                at = int(is_date.argmin())
                raise self._mixed(column.name, "has dates", rows[at], texts.iloc[at])
            _as_dates(texts, column.name, None, self.file)
        else:
            self._agree(column, "category", rows[at], texts.iloc[at])
            if len(column.levels) <= MAX_CATEGORY_LEVELS:
                new = ~texts.duplicated().to_numpy()
                for level, row in zip(texts[new].tolist(), rows[new].tolist(), strict=True):
                    column.levels.add(level)
                    column.seen.setdefault(f"level {level}", row)

    def _add_numbers(
        self, numbers: np.ndarray, column: Column, rows: np.ndarray, first: Any
    ) -> None:
        """Add numbers, which must be finite."""
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InputError(
                f"{self.file}: the value in row {rows[at] + 1}, column {column.name!r} is "
                f"{numbers[at]}. Replace it by a finite number, or remove its row."
            )
        self._agree(column, "number", rows[0], first)
        for extreme, at in (("low", int(numbers.argmin())), ("high", int(numbers.argmax()))):
            best = getattr(column, extreme)
            if (numbers[at] < best) if extreme == "low" else (numbers[at] > best):
                setattr(column, extreme, float(numbers[at]))
                column.seen[extreme] = int(rows[at])

    def _agree(self, column: Column, kind: str, row: int, value: Any) -> None:
        """Set the kind of a column; another kind than before is an error at a row."""
        if column.kind and column.kind != kind:
            has = {"number": "numbers", "date": "dates"}.get(column.kind, "texts")
            must = "must have" if column.wanted else "has"
            raise self._mixed(column.name, f"{must} {has}", row, value)
        column.kind = kind

    def _mixed(self, name: str, has: str, row: int, value: Any) -> InputError:
        """Return the error of a column that `has` values of one kind, and another in a row."""
        what = has.rpartition(" ")[2]
        remedy = (
            "Write numbers plainly, as in 1200.5."
            if what == "numbers" and looks_like(NUMBER, [str(value)])
            else f"Make all of its values {what}."
            if has.startswith("must")
            else f"Make all of its values {what}, or all of them texts."
            if what != "texts"
            else "Make all of its values numbers, or all of them texts."
        )
        return InputError(
            f"{self.file}: column {name!r} {has}, but row {row + 1} has {str(value)!r}. {remedy}"
        )


def _are_dates(texts: Any) -> np.ndarray:
    """Return which texts are dates in the order of ISO 8601;  (n,)."""
    return np.asarray(texts.str.strip().str.fullmatch(ISO_DATE).to_numpy(dtype=bool))


def _as_dates(values: Any, name: str, form: str | None, file: str) -> Any:
    """Return texts as dates, or raise an error that names the column."""
    if values.dtype.kind == "M":
        return values
    texts, pandas = values.astype(str).where(values.notna()), import_optional("pandas", "cli")
    try:
        zoned = form is None and texts.str.fullmatch(OFFSET).fillna(False).any()
        return pandas.to_datetime(texts, format=form or "ISO8601", utc=bool(zoned))
    except (ValueError, OverflowError) as error:
        said = str(error).splitlines()[0].partition(". You might")[0].rstrip(".")
        raise InputError(
            f"{file}: column {name!r} has dates that cannot be read: {said}. Say how they are "
            f"written, such as --dates '{name}:%d/%m/%Y'."
        ) from None


def looks_like(form: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Return whether every text has a form."""
    return all(form.fullmatch(text.strip()) for text in texts)


def _typed(frame: Any, columns: dict[str, Column], reading: Reading, start: int) -> Any:
    """Return a frame with numbers as float64, dates as such, and all else as text or None.

    Its index are the names of the rows, or their numbers from `start` + 1.
    """
    pandas = import_optional("pandas", "cli")
    rows = pandas.RangeIndex(start + 1, start + len(frame) + 1)
    if reading.row_names is not None:
        rows = pandas.Index(frame[reading.row_names].astype(str), name=reading.row_names)
    typed = {}
    for name in frame:
        column, values = columns[name], frame[name]
        if name == reading.row_names:
            continue
        if column.kind == "number":
            typed[name] = values.astype(float)
        elif name in reading.dates:
            typed[name] = _as_dates(values, name, reading.dates[name], "The table")
        elif column.kind == "date":
            typed[name] = values
        else:
            typed[name] = values.astype(str).astype(object).where(values.notna(), None)
    return pandas.DataFrame(typed).set_axis(rows)


def names_of_rows(frame: Any, named: Any) -> list[str]:
    """Return the names of the rows of a frame: its index, which are numbers if nothing is `named`.

    A number is written as "row 7".
    """
    return [str(label) if named is not None else f"row {label}" for label in frame.index]


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
