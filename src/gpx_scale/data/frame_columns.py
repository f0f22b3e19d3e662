"""The values of one column of a pandas data frame, in the form in which they are encoded.

pandas has many types for the same thing, and columns of Python objects may hold anything. Here
they become numbers, texts, dates or places, or an InputError that names the column and the row.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError

NUMBER, CATEGORY, DATE, SECONDS, HOURS, PLACE = (
    *("number", "category", "date"),
    *("duration", "time of day", "place"),
)
# A text is a date if it is written in the order of ISO 8601, which cannot be misread.
ISO_DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?"
)
OFFSET = re.compile(r".*:\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)")
TEXT, TRUTH = "text", "bool"
# How messages call values of a kind.
PLURALS = {
    **{NUMBER: "numbers", CATEGORY: "texts", DATE: "dates", SECONDS: "durations"},
    **{HOURS: "times of day", PLACE: "places", TEXT: "texts", TRUTH: "values True and False"},
}


@dataclass(frozen=True)
class ColumnValues:
    """The values of a column, and which of them are missing;  (n,) bool.

    `kind` says what `values` are: floats (n,) for numbers, durations in seconds and times of day in
    hours; texts (n,) for categories; a pandas Series of dates; centres (n, 2) for places. It is
    empty for a column without values, which suits every kind. `levels` are the texts that occur,
    in the order of the column's categories, or in alphabetical order.
    """

    kind: str
    values: Any
    missing: np.ndarray
    levels: tuple[str, ...] = ()


def is_frame(A: Any) -> bool:
    """Return whether A is a pandas data frame; nothing is imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(A, pandas.DataFrame)


def index_of_rows(A: Any) -> np.ndarray | None:
    """Return the index of a data frame as an array (m,), and None for all other inputs."""
    return np.asarray(A.index.to_numpy()) if is_frame(A) else None


def row_named(column: Any, k: int) -> str:
    """Return the name of row k of a column for messages: its number from 1, and its index."""
    return f"row {k + 1} (index {column.index[k]!s})"


def values_of(column: Any, name: str) -> ColumnValues:
    """Return the values of a column in one form, or raise an InputError that names it."""
    dtype = column.dtype
    missing = column.isna().to_numpy(dtype=bool)
    if missing.all():
        return ColumnValues("", None, missing)
    if (categories := getattr(dtype, "categories", None)) is not None:
        if getattr(categories.dtype, "kind", "") in "Mm":
            return values_of(column.astype(categories.dtype), name)
        return _of_categories(column, categories, missing)
    if str(dtype) == "geometry":
        return _of_places(column, missing)
    if str(dtype).startswith("period"):
        return ColumnValues(DATE, column.dt.to_timestamp(), missing)
    if str(dtype).startswith(("date32", "date64")):
        return ColumnValues(DATE, column.astype("timestamp[s][pyarrow]"), missing)
    kind = getattr(dtype, "kind", "O")
    if kind in "biuf":
        values = column.to_numpy(dtype=float, na_value=np.nan)
        _must_be_finite(column, name, values)
        return ColumnValues(NUMBER, values, missing)
    if kind == "M":
        return ColumnValues(DATE, column, missing)
    if kind == "m":
        return _of_durations(column, missing)
    if kind == "c":
        raise InputError(f"Column {name!r} has complex numbers. Give real ones.")
    return _of_objects(column, name, missing)


def _must_be_finite(column: Any, name: str, values: np.ndarray) -> None:
    """Raise an InputError that names the first row whose number is infinite."""
    if np.isinf(values).any():
        at = int(np.isinf(values).argmax())
        raise InputError(
            f"Column {name!r} has {values[at]} in {row_named(column, at)}. Replace it by a finite "
            "number, or by a missing value."
        )


def _of_categories(column: Any, categories: Any, missing: np.ndarray) -> ColumnValues:
    """Return the values of a categorical column. Categories that do not occur are left out."""
    codes = column.cat.codes.to_numpy()
    texts = np.array([level_text(level) for level in categories], dtype=object)
    values = np.full(len(codes), None, dtype=object)
    values[~missing] = texts[codes[~missing]]
    seen = np.unique(codes[~missing])
    return ColumnValues(CATEGORY, values, missing, tuple(dict.fromkeys(texts[seen].tolist())))


def level_text(value: Any) -> str:
    """Return the name of a level; whole numbers have no decimals, also if they are floats."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def _of_texts(column: Any, missing: np.ndarray) -> ColumnValues:
    """Return the values of a column of texts, which are dates if all are written as such."""
    values = np.full(len(missing), None, dtype=object)
    values[~missing] = [str(text) for text in column.to_numpy(dtype=object)[~missing]]
    levels = sorted(set(values[~missing]))
    if levels and all(ISO_DATE.fullmatch(text.strip()) for text in levels):
        return ColumnValues(DATE, _dates(column, "ISO8601", _have_offset(levels)), missing)
    return ColumnValues(CATEGORY, values, missing, tuple(levels))


def _have_offset(texts: Sequence[str]) -> bool:
    """Return whether one of some dates is written with the offset of its time zone."""
    return any(OFFSET.fullmatch(text.strip()) for text in texts)


def _dates(column: Any, form: str | None, utc: bool) -> Any:
    """Return a column of objects or texts as dates of pandas, in UTC if they have time zones."""
    pandas = sys.modules["pandas"]
    try:
        return pandas.to_datetime(column.astype(object), format=form, utc=utc)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(
            f"Column {str(column.name)!r} has dates that cannot be read: {error}. Give them as "
            "pandas.to_datetime does."
        ) from error


def _of_durations(column: Any, missing: np.ndarray) -> ColumnValues:
    """Return durations as numbers of seconds."""
    seconds = np.full(len(missing), np.nan)
    spans = column[~missing].to_numpy(dtype="timedelta64[us]")
    seconds[~missing] = spans / np.timedelta64(1, "s")
    return ColumnValues(SECONDS, seconds, missing)


def _of_places(column: Any, missing: np.ndarray) -> ColumnValues:
    """Return the centres of shapes, such as those of a GeoDataFrame;  (n, 2)."""
    centres = np.full((len(missing), 2), np.nan)
    for k, shape in enumerate(column.to_numpy(dtype=object)):
        if not missing[k] and not shape.is_empty:
            centres[k] = shape.centroid.x, shape.centroid.y
    missing = np.isnan(centres).any(axis=1)
    return ColumnValues("" if missing.all() else PLACE, centres, missing)


def _of_objects(column: Any, name: str, missing: np.ndarray) -> ColumnValues:
    """Return the values of a column of texts or of Python objects, which must be of one kind."""
    if str(column.dtype) != "object":
        dtype = str(column.dtype).lower()
        if dtype.startswith(("str", "large_string")):
            return _of_texts(column, missing)
    values, rows = column.to_numpy(dtype=object), np.flatnonzero(~missing)
    kinds = np.array([_kind_of(value) for value in values[rows]], dtype=object)
    if (other := kinds != kinds[0]).any():
        at = int(other.argmax())
        raise InputError(
            f"Column {name!r} has {_plural(kinds[0])}, such as {values[rows[0]]!r} in "
            f"{row_named(column, rows[0])}, and {_plural(kinds[at])}, such as "
            f"{values[rows[at]]!r} in {row_named(column, rows[at])}. Make all of its values of "
            "one kind."
        )
    kind = str(kinds[0])
    if kind == TEXT:
        return _of_texts(column, missing)
    if kind == DATE:
        zoned = [getattr(value, "tzinfo", None) is not None for value in values[rows]]
        if any(zoned) and not all(zoned):
            at = int(rows[int(np.argmin(zoned))])
            raise InputError(
                f"Column {name!r} has dates with a time zone, and dates without one, such as "
                f"that of {row_named(column, at)}. Give all of them a time zone, or none."
            )
        return ColumnValues(DATE, _dates(column, None, all(zoned)), missing)
    if kind == SECONDS:
        spans = sys.modules["pandas"].to_timedelta(column)
        return _of_durations(spans, missing)
    if kind == PLACE:
        return _of_places(column, missing)
    if kind in (NUMBER, TRUTH, HOURS):
        found = np.full(len(values), np.nan)
        found[rows] = [_hours(value) if kind == HOURS else float(value) for value in values[rows]]
        _must_be_finite(column, name, found)
        return ColumnValues(HOURS if kind == HOURS else NUMBER, found, missing)
    raise InputError(
        f"Column {name!r} has a {kind} in {row_named(column, rows[0])}. Make numbers, texts or "
        "dates of its values, or leave it out."
    )


def _plural(kind: str) -> str:
    """Return what messages call values of a kind, which may be the name of a Python type."""
    return PLURALS.get(kind, f"values of the type {kind}")


def _kind_of(value: Any) -> str:
    """Return the kind of a Python object, or the name of its type if it has no kind."""
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bool | np.bool_):
        return TRUTH
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return SECONDS
    if isinstance(value, numbers.Real | decimal.Decimal):
        return NUMBER
    if isinstance(value, datetime.date | np.datetime64):
        return DATE
    if isinstance(value, datetime.time):
        return HOURS
    if hasattr(value, "centroid") and hasattr(value, "is_empty"):
        return PLACE
    return type(value).__name__


def _hours(time: datetime.time) -> float:
    """Return the hours since midnight of a time of day."""
    return time.hour + time.minute / 60 + (time.second + time.microsecond / 1e6) / 3600
