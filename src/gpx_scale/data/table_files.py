"""Readers of CSV, TSV and Parquet files, for the command line and for streams.

The header is checked before any row is read, rows come in chunks as pandas frames, and an error of
pandas or pyarrow is turned into one that names the file. The index that pandas leaves in a Parquet
file is not a column.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import warnings
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..runtime.files import import_optional

# This many rows of a file are in memory at once. Ten columns of numbers then take 5 MB.
FILE_CHUNK_ROWS = 65_536
# The endings of the names of tables.
SUFFIXES = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")
# The warning of pandas that it drops the ends of rows begins with these words.
LONG_ROWS = "Length of header"


class TextFormat(NamedTuple):
    """The separator and the encoding of a text file.

    The separator None stands for commas, or for tabs in a TSV file. The encoding utf-8-sig is UTF-8
    with or without a byte order mark. The remedies end the messages about files that have another
    separator or encoding.
    """

    separator: str | None = None
    encoding: str = "utf-8-sig"
    separator_remedy: str = "Then give --sep {!r}."
    encoding_remedy: str = "Give --encoding, such as latin-1."


# The format of text files about which the user says nothing.
PLAIN = TextFormat()


def is_table(path: Path) -> bool:
    """Return whether the name of a file ends as that of a table, in upper or lower case."""
    return path.name.lower().endswith(SUFFIXES)


def is_parquet(path: Path) -> bool:
    """Return whether the name of a file ends as that of a Parquet file."""
    return path.name.lower().endswith(".parquet")


def header_of(path: Any, way: TextFormat = PLAIN) -> list[str]:
    """Return the names of a file's columns.

    An InputError is raised if a column has no name, or if two columns have the same.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}. Give the path of one that exists.")
    if not is_table(path):
        raise InputError(
            f"The file {path.name!r} is not a table. Give one that ends in {', '.join(SUFFIXES)}."
        )
    with readable(path, way):
        if is_parquet(path):
            index = set(index_of(path))
            names = [str(name) for name in _parquet(path).schema_arrow.names if name not in index]
        else:
            names = [name.strip() for name in _first_line(path, way)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(
            f"The file {path.name} has more than one column named "
            f"{', '.join(map(repr, twice))}. Rename them."
        )
    if "" in names:
        raise InputError(
            f"In the file {path.name}, column {names.index('') + 1} of {len(names)} has no name. "
            "Give it one, or leave it out (pandas writes an index without a name, unless to_csv is "
            "given index=False)."
        )
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        remedy = way.separator_remedy.format(other)
        raise InputError(
            f"The file {path.name} has one column, {names[0]!r}. Is it separated by {other!r}? "
            f"{remedy}"
        )
    return names


def common_columns(files: Sequence[Path], target: str, way: TextFormat = PLAIN) -> list[str]:
    """Return the columns of the first file, or raise an InputError if another file has others.

    The order of the columns may differ between files. All files must have the target.
    """
    columns: list[str] = []
    for file in files:
        names = header_of(file, way)
        if target not in names:
            index = is_parquet(file) and target in index_of(file)
            remedy = (
                f" {target!r} is its index: write it after reset_index(), which makes it a column."
                if index
                else ""
            )
            raise InputError(
                f"The file {file.name} has no column {target!r}, only {', '.join(names)}.{remedy}"
            )
        if len(names) == 1:
            raise InputError(
                f"The file {file.name} has no column besides the target {target!r}. "
                "Give it columns to explain the target by."
            )
        columns = columns or names
        if (here := set(names)) != (first := set(columns)):
            lacking, more = (
                [name for name in columns if name not in here],
                [name for name in names if name not in first],
            )
            found = [f"it lacks {listed(lacking)}"] * bool(lacking) + [
                f"only it has {listed(more)}"
            ] * bool(more)
            raise InputError(
                f"The file {file.name} does not have the columns of {files[0].name}: "
                f"{', and '.join(found)}. Write all files of a folder with the same columns."
            )
    return columns


def index_of(path: Path) -> list[str]:
    """Return the names of those columns of a Parquet file that were the index of a pandas frame."""
    metadata = _parquet(path).schema_arrow.pandas_metadata or {}
    # An index that is a range is stored as a dict, and is no column.
    return [name for name in metadata.get("index_columns", ()) if isinstance(name, str)]


def frames(
    path: Path,
    way: TextFormat,
    columns: list[str],
    kinds: dict[str, str],
    rows: int = FILE_CHUNK_ROWS,
) -> Generator[Any]:
    """Yield these columns of a file, in this order, as frames of 1 to `rows` rows.

    `kinds` has the dtypes that columns of a text file are read as. pandas infers those of all other
    columns, chunk by chunk.
    """
    with readable(path, way):
        found: Iterator[Any]
        if is_parquet(path):
            batches = _parquet(path).iter_batches(batch_size=rows, columns=columns)
            found = (batch.to_pandas(ignore_metadata=True) for batch in batches)
        else:
            # All columns are read, because rows that are too long would not be noticed if some
            # columns were selected here.
            names = header_of(path, way)
            # In a table of one column, an empty line is a missing value.
            blank = len(names) > 1
            how = {"names": names, "header": 0, "skip_blank_lines": blank, **_how(path, way)}
            found = import_optional("pandas", "files").read_csv(
                path, dtype=kinds, chunksize=rows, **how
            )
    with closing(found):  # type: ignore[type-var]
        while True:
            with readable(path, way):
                frame = next(found, None)
                if frame is None:
                    return
                frame = frame[columns]
            if len(frame):
                yield frame


def _parquet(path: Path) -> Any:
    """Return an open Parquet file."""
    return import_optional("pyarrow.parquet", "files").ParquetFile(path)


def _first_line(path: Path, way: TextFormat) -> list[str]:
    """Return the fields of the first line that is not blank.

    pandas would take ten seconds for a line with 200,000 fields.
    """
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding=way.encoding, newline="") as lines:
        for fields in csv.reader(lines, delimiter=_how(path, way)["sep"]):
            if len(fields) > 1 or (fields and not fields[0].isspace()):
                return fields
    raise ValueError("it has no columns")


def _how(path: Path, way: TextFormat) -> dict[str, Any]:
    """Return the arguments by which pandas reads a text file."""
    tabbed = path.name.lower().endswith((".tsv", ".tsv.gz"))
    return {
        "sep": way.separator or ("\t" if tabbed else ","),
        "encoding": way.encoding,
        "index_col": False,
    }


@contextmanager
def readable(path: Path, way: TextFormat = PLAIN) -> Iterator[None]:
    """Turn every error of a reader into an InputError that names the file.

    Rows that are longer than the header are an error, too.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=LONG_ROWS)
            yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"The file {path.name} is not UTF-8 ({error.reason} at byte {error.start}). "
            f"{way.encoding_remedy}"
        ) from error
    except (
        ValueError,
        OSError,
        EOFError,
        Warning,
        LookupError,
        NotImplementedError,
        csv.Error,
        zlib.error,
    ) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if said.startswith(LONG_ROWS):
            said = (
                "rows are longer than the header. Name every column, and quote fields that have "
                "the separator in them"
            )
        message = f"The file {path.name} cannot be read as a table: {said.rstrip('.')}."
        raise InputError(message) from error


def must_have(wanted: Sequence[str], names: list[str], file: str) -> None:
    """Raise an InputError that names the first column that a file lacks, and one like it."""
    known = set(names)
    for name in wanted:
        if name not in known:
            folded = {other.strip().casefold(): other for other in names}
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.6)
            hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
            raise InputError(f"The file {file} has no column {name!r}, only {listed(names)}.{hint}")


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names as text for a message: at most `most`, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
