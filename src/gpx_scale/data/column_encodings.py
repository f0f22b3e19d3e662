"""How one column of a data frame becomes columns of numbers, as learned from the training rows."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..errors import InputError
from ..runtime.state import must, stored
from .frame_columns import (
    CATEGORY,
    DATE,
    HOURS,
    NUMBER,
    PLACE,
    PLURALS,
    SECONDS,
    ColumnValues,
    level_text,
    row_named,
)

# A column of texts is a category if it has at most this many different values. With more of them it
# is one if they are at most a tenth of the rows, and at most MAX_CATEGORY_LEVELS.
FEW_CATEGORY_LEVELS = 50
MAX_CATEGORY_LEVELS = 1000
# The cycles of the calendar, with their length in days.
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
# 1970-01-01, from which numpy counts days, was a Thursday. Weeks begin on Mondays.
FIRST_MONDAY = -3.0
# Dates are at one place of a cycle if the mean of their unit vectors is this close to the unit
# circle. The first of January is, though leap years move it by a day.
SAME_PLACE = 1e-3
# The endings of the names of columns that numbers in some unit make.
ENDINGS = {NUMBER: "", SECONDS: "_seconds", HOURS: "_hours"}


def is_category(levels: int, rows: int) -> bool:
    """Return whether so many different texts in so many rows are the levels of a category."""
    return levels <= FEW_CATEGORY_LEVELS or levels <= min(rows / 10, MAX_CATEGORY_LEVELS)


@dataclass(frozen=True)
class ColumnEncoding(abc.ABC):
    """How a column becomes columns of numbers.

    `indicator` says whether the training rows had missing values, so that a column of 0 and 1
    says where they are.
    """

    name: str
    indicator: bool

    @property
    @abc.abstractmethod
    def endings(self) -> list[str]:
        """Return what is added to the name of the column, for each column of its values."""

    @property
    @abc.abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of values that can be encoded."""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that are made."""
        return [self.name + ending for ending in [*self.endings, *["_missing"] * self.indicator]]

    @abc.abstractmethod
    def values(self, given: ColumnValues, column: Any) -> np.ndarray:
        """Return the columns of numbers, without the indicator;  (n,) -> (n, k)."""

    def encode(self, given: ColumnValues, column: Any) -> np.ndarray:
        """Return the columns of numbers of given values;  (n,) -> (n, k)."""
        if given.kind not in ("", *self.kinds):
            at = int((~given.missing).argmax())
            raise InputError(
                f"Column {self.name!r} has {PLURALS[given.kind]} here, such as that of "
                f"{row_named(column, at)}, and had {PLURALS[self.kinds[0]]} at fit. Give values of "
                "that kind."
            )
        made = [self.values(given, column)]
        if self.indicator:
            made.append(given.missing[:, None].astype(float))
        return np.hstack(made)


@stored
@dataclass(frozen=True)
class NumberEncoding(ColumnEncoding):
    """Numbers stay as they are, and missing ones become the median.

    `kind` is that of the training rows: numbers, durations in seconds or times of day in hours. If
    all numbers were the same, only the indicator is kept, and `varies` is false.
    """

    kind: str
    median: float
    varies: bool

    @classmethod
    def of(cls, name: str, given: ColumnValues, indicator: bool, varies: bool) -> Self:
        """Return the encoding of the numbers of the training rows."""
        return cls(name, indicator, given.kind, float(np.nanmedian(given.values)), varies)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def endings(self) -> list[str]:
        return [ENDINGS.get(self.kind, "")] * self.varies

    def values(self, given: ColumnValues, column: Any) -> np.ndarray:
        if not given.kind or not self.varies:
            return np.full((len(given.missing), int(self.varies)), self.median)
        return np.where(given.missing, self.median, given.values)[:, None]


@stored
@dataclass(frozen=True)
class CategoryEncoding(ColumnEncoding):
    """Every level of a category has a column, which is 1 in its rows and 0 in others.

    All are 0 for a missing value, and for a level that no training row has.
    """

    levels: list[str]

    @property
    def kinds(self) -> tuple[str, ...]:
        return (CATEGORY, NUMBER, DATE)

    @property
    def endings(self) -> list[str]:
        return [f"_{level}" for level in self.levels]

    def values(self, given: ColumnValues, column: Any) -> np.ndarray:
        texts = given.values if given.kind else [None] * len(given.missing)
        if given.kind in (NUMBER, DATE):
            # A text may look like a date, and a category may have numbers as its levels.
            texts = np.array([level_text(value) for value in column], dtype=object)
        made = np.zeros((len(given.missing), len(self.levels)))
        position: dict[Any, int] = {level: k for k, level in enumerate(self.levels)}
        at = np.array([position.get(text, -1) for text in texts], dtype=int)
        rows = np.flatnonzero((at >= 0) & ~given.missing)
        made[rows, at[rows]] = 1.0
        return made


@stored
@dataclass(frozen=True)
class DateEncoding(ColumnEncoding):
    """Dates become days since the first one, and a sine and a cosine of each cycle they go through.

    The cycles are the year, the week and the day, as far as the training rows cover one and are at
    more than one place in it. Days, with fractions, are those of the clock in the `zone` of the
    training rows; dates of other zones are converted. `first` counts from 1970. A missing date
    becomes the median.
    """

    zone: str | None
    first: float
    median: float
    cycles: list[str]

    @classmethod
    def of(cls, name: str, given: ColumnValues, indicator: bool) -> Self:
        """Return the encoding of the dates of the training rows."""
        zone = getattr(given.values.dt, "tz", None)
        days = _clock_days(given.values)
        known = days[~given.missing]
        first, last = float(known.min()), float(known.max())
        cycles = [
            cycle
            for cycle, length in CYCLES.items()
            if last - first >= length and _is_spread(_phase(known, cycle))
        ]
        named = None if zone is None else str(zone)
        return cls(name, indicator, named, first, float(np.median(known)), cycles)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (DATE,)

    @property
    def endings(self) -> list[str]:
        waves = [f"_{cycle}_{wave}" for cycle in self.cycles for wave in ("sin", "cos")]
        return ["_days", *waves]

    def values(self, given: ColumnValues, column: Any) -> np.ndarray:
        days = np.full(len(given.missing), self.median)
        if given.kind and not given.missing.all():
            found = _clock_days(self._in_zone(given.values))
            days = np.where(given.missing, self.median, found)
        phases = [_phase(days, cycle) for cycle in self.cycles]
        waves = [wave(phase) for phase in phases for wave in (np.sin, np.cos)]
        return np.column_stack([days - self.first, *waves])

    def _in_zone(self, dates: Any) -> Any:
        """Return dates in the zone of the training rows, or raise an InputError without one."""
        zone = getattr(dates.dt, "tz", None)
        if (zone is None) != (self.zone is None):
            here, then = ("no ", "one") if zone is None else ("a ", "none")
            raise InputError(
                f"The dates of column {self.name!r} have {here}time zone here, and had {then} at "
                "fit. Give them as at fit, by dt.tz_localize of pandas."
            )
        return dates if zone is None else dates.dt.tz_convert(self.zone)


def _clock_days(dates: Any) -> np.ndarray:
    """Return the days since 1970 on the clock of the dates' own zone, NaN if missing;  (n,)."""
    clock = dates.dt.tz_localize(None) if getattr(dates.dt, "tz", None) is not None else dates
    moments = clock.to_numpy(dtype="datetime64[us]")
    days = (moments - np.datetime64(0, "us")) / np.timedelta64(1, "D")
    return np.asarray(np.where(np.isnat(moments), np.nan, days))


def _phase(days: np.ndarray, cycle: str) -> np.ndarray:
    """Return the angle of each day within a cycle, which is 0 where the cycle begins;  (n,)."""
    start = FIRST_MONDAY if cycle == "week" else 0.0
    return 2 * np.pi * np.mod(days - start, CYCLES[cycle]) / CYCLES[cycle]


def _is_spread(phase: np.ndarray) -> bool:
    """Return whether angles are at more than one place of the circle."""
    return bool(1 - abs(np.exp(1j * phase).mean()) > SAME_PLACE)


@stored
@dataclass(frozen=True)
class PlaceEncoding(ColumnEncoding):
    """A shape becomes the two coordinates of its centre; a missing one the medians of them."""

    median_x: float
    median_y: float

    @classmethod
    def of(cls, name: str, given: ColumnValues, indicator: bool) -> Self:
        """Return the encoding of the shapes of the training rows."""
        return cls(name, indicator, *map(float, np.nanmedian(given.values, axis=0)))

    @property
    def kinds(self) -> tuple[str, ...]:
        return (PLACE,)

    @property
    def endings(self) -> list[str]:
        return ["_x", "_y"]

    def values(self, given: ColumnValues, column: Any) -> np.ndarray:
        medians = np.tile([self.median_x, self.median_y], (len(given.missing), 1))
        if not given.kind:
            return medians
        return np.where(given.missing[:, None], medians, given.values)


def encoding_of(
    name: str, given: ColumnValues, rows: int, indicator: bool, varies: bool
) -> ColumnEncoding:
    """Return the encoding of a column, as its values in the training rows suggest it."""
    if given.kind == DATE:
        return DateEncoding.of(name, given, indicator)
    if given.kind == PLACE:
        return PlaceEncoding.of(name, given, indicator)
    if given.kind != CATEGORY:
        return NumberEncoding.of(name, given, indicator, varies)
    levels = list(given.levels)
    if not is_category(len(levels), rows):
        raise InputError(
            f"Column {name!r} has {len(levels):,} different texts in {rows:,} rows, such as "
            f"{levels[0]!r}, which is no category. Leave it out, put rare values together under "
            "one name, or make numbers or dates of it (pandas.to_numeric, pandas.to_datetime). "
            "For texts whose words matter, give a z_transformer, such as CountVectorizer."
        )
    return CategoryEncoding(name, indicator, levels)


def must_be_encodings(encodings: Any) -> None:
    """Raise a ValueError unless these, which were read from a file, are encodings of columns."""
    right = isinstance(encodings, list) and all(
        isinstance(one, ColumnEncoding) for one in encodings
    )
    must(right, "the encodings of a frame are no list of encodings")
    for one in encodings:
        cycles = getattr(one, "cycles", [])
        must(set(cycles) <= CYCLES.keys(), f"{cycles} are no cycles of the calendar")
