"""Tables on disk: CSV, TSV and Parquet files, checked as they are read, and written whole.

A first pass surveys the file in chunks: which columns are numbers, which are categories, where something is missing. A table
of few rows is kept as it is read; of more, every later pass reads the file again.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import InputError
from .files import needed, writable, written_whole
from .plan import CG_ROWS

HELD_ROWS = CG_ROWS  # where `auto` goes over to sums
CHUNK = 65_536
MOST_LEVELS = 1000  # of a category; more are not counted
SUFFIXES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")


class Way(NamedTuple):
    """How a text file is read."""

    separator: str | None = None
    encoding: str = "utf-8-sig"  # which is UTF-8, with a byte order mark or without


PLAIN = Way()


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
    way: Way
    columns: dict[str, Column]
    rows: int
    held: Any

    def chunks(self) -> Iterator[Any]:
        """All rows as frames: numbers are float64, all else is text."""
        if self.held is not None:
            return iter([self.held])
        kinds = {name: "float64" if column.kind == "number" else "str" for name, column in self.columns.items()}
        return (_typed(frame, self.columns) for frame in _frames(self.path, self.way, list(self.columns), kinds))

    def evenly(self, most: int) -> np.ndarray:
        """Numbers of rows spread over the table, at most so many."""
        return np.unique(np.linspace(0, self.rows - 1, min(most, self.rows)).astype(int))

    def taken(self, rows: np.ndarray) -> Any:
        """Some rows, in ascending order, as one frame."""
        start, found = 0, []
        for frame in self.chunks():
            inside = rows[(rows >= start) & (rows < start + len(frame))]
            found.append(frame.iloc[inside - start])
            start += len(frame)
        return needed("pandas", "cli").concat(found, ignore_index=True)


# reading


def header_of(path: Any, way: Way = PLAIN) -> list[str]:
    """The names of a file's columns, each of them once."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    if not path.name.lower().endswith(SUFFIXES):
        raise InputError(f"{path.name!r}: give a file that ends in {', '.join(SUFFIXES)}")
    with _readable(path):
        if _is_parquet(path):
            names = _parquet_names(path)
        else:
            first = needed("pandas", "cli").read_csv(
                path, header=None, nrows=1, dtype=str, keep_default_na=False, **_how(path, way)
            )
            names = [str(name).strip() for name in first.iloc[0]]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(f"{path.name} has more than one column named {', '.join(map(repr, twice))}: rename them")
    if "" in names:
        raise InputError(f"{path.name}: column {names.index('') + 1} of {len(names)} has no name")
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise InputError(f"{path.name} has one column, {names[0]!r}: is it separated by {other!r}? Then give --sep {other!r}")
    return names


def read_table(
    path: Any,
    wanted: Sequence[str] | None = None,
    way: Way = PLAIN,
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
    with closing(_frames(path, way, wanted, as_written)) as frames:
        for frame in frames:
            for name in wanted:
                _survey(frame[name], found[name], rows, path.name, (kinds or {}).get(name, ""), _is_parquet(path))
            rows += len(frame)
            if kept is not None:
                kept = [*kept, _typed(frame, found)] if rows <= hold else None
    if not rows:
        raise InputError(f"{path.name} has columns ({listed(names)}) and no rows")
    held = None if kept is None else needed("pandas", "cli").concat(kept, ignore_index=True)
    return Table(path, way, found, rows, held)


def must_have(wanted: Sequence[str], names: list[str], file: str) -> None:
    known = set(names)
    for name in wanted:
        if name not in known:
            folded = {other.strip().casefold(): other for other in names}
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.6)
            hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
            raise InputError(f"{file} has no column {name!r}, only {listed(names)}{hint}")


def listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(".parquet")


def _parquet(path: Path) -> Any:
    return needed("pyarrow.parquet", "files").ParquetFile(path)


def _parquet_names(path: Path) -> list[str]:
    """Without the index that pandas leaves among the columns."""
    schema = _parquet(path).schema_arrow
    index = {name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)}
    return [str(name) for name in schema.names if name not in index]


def _how(path: Path, way: Way) -> dict[str, Any]:
    tabbed = path.name.lower().endswith((".tsv", ".tsv.gz"))
    return {"sep": way.separator or ("\t" if tabbed else ","), "encoding": way.encoding, "index_col": False}


def _frames(path: Path, way: Way, columns: list[str], kinds: dict[str, str]) -> Generator[Any]:
    with _readable(path):
        frames: Iterator[Any]
        if _is_parquet(path):
            batches = _parquet(path).iter_batches(batch_size=CHUNK, columns=columns)
            frames = (batch.to_pandas(ignore_metadata=True) for batch in batches)
        else:  # all columns: of some, rows that are too long would pass
            names = header_of(path, way)
            blank = len(names) > 1  # in a table of one column, an empty line is a value that is missing
            how = {"names": names, "header": 0, "skip_blank_lines": blank, **_how(path, way)}
            frames = needed("pandas", "cli").read_csv(path, dtype=kinds, chunksize=CHUNK, **how)
    with closing(frames):  # type: ignore[type-var]
        while True:
            with _readable(path):
                frame = next(frames, None)
            if frame is None:
                return
            if len(frame):
                yield frame[columns]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What readers say of a file that is not a table, as one clear error. Rows longer than the header are an error too."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header")
            yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not UTF-8 ({error.reason} at byte {error.start}): give --encoding, such as latin-1"
        ) from error
    except (ValueError, OSError, EOFError, Warning, LookupError, zlib.error) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{path.name} cannot be read as a table: {said[0]}") from error


# surveying


def _survey(values: Any, column: Column, start: int, file: str, must_be: str = "", typed: bool = False) -> None:
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
        raise InputError(f"{file}: column {column.name!r} holds times: make numbers of them, such as days since the first")
    if isinstance(first, list | tuple | dict | set | bytes | np.ndarray):
        raise InputError(
            f"{file}: column {column.name!r} holds a {type(first).__name__} in each row: leave it out with --drop"
        )
    if values.dtype.kind in "biuf":
        numbers = values.to_numpy(dtype=float)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InputError(f"{file}: row {start + at + 1}, column {column.name!r} is {numbers[at]}")
        _agree(column, "number", lambda: (start, values.iloc[0]), file)
        column.low, column.high = min(column.low, numbers.min()), max(column.high, numbers.max())
        return
    texts = values.astype(str)
    if column.kind == "text":
        return
    number = needed("pandas", "cli").to_numeric(texts, errors="coerce").notna().to_numpy()
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
    remedy = "write numbers plainly, as in 1200.5" if looks_like(NUMBER, [str(value)]) else "make it one or the other"
    return InputError(
        f"{file}: column {name!r} is to hold numbers, or holds some, and row {row + 1} is {str(value)!r}: {remedy}"
    )


NUMBER = re.compile(r"(?=.*[,' %€$£\u00a0\u202f])[-+€$£]?\d[\d.,' \u00a0\u202f]*[%€]?")  # but not written plainly
DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d{1,2}/\d{1,2}/\d{2})([ T]\d{1,2}:\d{2}.*)?")


def looks_like(form: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Whether every text has a form."""
    return all(form.fullmatch(text.strip()) for text in texts)


def _typed(frame: Any, columns: dict[str, Column]) -> Any:
    number = {name for name in frame.columns if columns[name].kind == "number"}
    typed = {name: frame[name].astype(float) if name in number else frame[name].astype(str).astype(object) for name in frame}
    return needed("pandas", "cli").DataFrame(typed)


# writing

WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".json": lambda frame, path: path.write_text(json.dumps(frame.to_dict("records"), allow_nan=False), encoding="utf-8"),
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
    with written_whole(out) as beside:
        _writer(out)(frame, beside)


def _writer(out: Path) -> Callable[[Any, Path], Any]:
    found = [write for suffix, write in WRITERS.items() if out.name.lower().endswith(suffix)]
    if not found:
        raise InputError(f"--out {str(out)!r}: give a file that ends in {', '.join(WRITERS)}")
    return found[0]
