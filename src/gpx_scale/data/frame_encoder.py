"""From a pandas data frame as it comes to columns of numbers: `FrameEncoder`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from ..runtime.arguments import one_of
from ..runtime.files import import_optional
from ..runtime.problems import Problems
from ..runtime.state import must, stored
from .checks import matrix_of
from .column_encodings import (
    NumberEncoding,
    encoding_of,
    must_be_encodings,
)
from .frame_columns import CATEGORY, NUMBER, ColumnValues, is_frame, row_named, values_of
from .scaling import ColumnMoments
from .table_files import listed

# What becomes of missing values.
INDICATOR, ERROR = "indicator", "error"
# A message names at most this many columns.
MAX_NAMED_COLUMNS = 5


def _attributes_of(encoder: Any) -> dict[str, Any]:
    """Return what a file holds of an encoder."""
    return dict(vars(encoder))


def _from_attributes(**attributes: Any) -> FrameEncoder:
    """Return the encoder with attributes that were read from a file."""
    encoder = FrameEncoder()
    encoder.__dict__.update(attributes)
    must_be_encodings(attributes.get("encodings_"))
    return encoder


@stored(take=_attributes_of, make=_from_attributes)
class FrameEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer that makes numbers of the columns of a pandas data frame.

    - Numbers and booleans stay as they are.
    - Texts and categories have a column of 0 and 1 for each level, `city_Rome`. A level that is
      new in later rows is 0 everywhere.
    - Dates, also texts that are written as 2024-05-31, become days since the first date,
      `when_days`, and a sine and a cosine of each cycle of the calendar (year, week, day) that they
      go through, `when_year_sin`. Durations become seconds, times of day hours since midnight.
    - The geometry of a GeoDataFrame becomes the coordinates of its centre, `geometry_x` and
      `geometry_y`.
    - A missing value becomes the median of its column (all levels of a category are 0), and a
      column `city_missing` says where values are missing, if training rows had some.
    - Constant columns, and columns without values, are left out.

    Parameters
    ----------
    columns : list, default=None
        The columns that are encoded, by name or by position. None takes all.
    missing : {"indicator", "error"}, default="indicator"
        Whether missing values are replaced, as above, or are an error that names row and column.
    keep_constants : bool, default=False
        Whether constant numbers stay, which are an intercept in Z.

    Attributes
    ----------
    names_in_ : list of str
        The names of all columns of the frame.
    encodings_ : list of ColumnEncoding
        How each column is encoded that is not left out.
    left_out_ : list of str
        The columns that are constant or have no values.

    Examples
    --------
    >>> import pandas as pd
    >>> from gpx_scale.data.frame_encoder import FrameEncoder
    >>> frame = pd.DataFrame({"size": [50.0, None, 70.0], "city": ["Rome", "Oslo", "Rome"]})
    >>> encoder = FrameEncoder().fit(frame)
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'size_missing', 'city_Oslo', 'city_Rome']
    >>> encoder.transform(frame)[1].tolist()
    [60.0, 1.0, 1.0, 0.0]
    >>> encoder.z_groups
    {'size': [0, 1], 'city': [2, 3]}
    """

    columns: Any
    missing: str
    keep_constants: bool
    names_in_: list[str]
    encodings_: list[Any]
    left_out_: list[str]

    def __init__(
        self, columns: Any = None, missing: str = INDICATOR, keep_constants: bool = False
    ) -> None:
        self.columns = columns
        self.missing = missing
        self.keep_constants = keep_constants

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn how each column is encoded. All columns that cannot be are named in one error."""
        one_of(self.missing, (INDICATOR, ERROR), "missing")
        if not is_frame(X):
            raise InputError("A FrameEncoder is fitted on a pandas data frame. Give one.")
        self.names_in_ = names_of(X)
        at = _positions(self.columns, self.names_in_)
        self.encodings_, self.left_out_ = [], []
        if not self._learn_numbers(X, at):
            problems = Problems()
            for k in at:
                with problems:
                    self._learn(X.iloc[:, k], self.names_in_[k])
            problems.raise_all()
        counts = Counter(self.get_feature_names_out().tolist())
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise InputError(
                f"{listed(twice, MAX_NAMED_COLUMNS)} would be the name of two columns: one of a "
                "column, and one that is made of a level, a date or missing values of another. "
                "Rename one of them."
            )
        if not self.encodings_:
            raise InputError(
                f"No column varies: {listed(self.left_out_, MAX_NAMED_COLUMNS)}. Give columns that "
                "differ between rows."
            )
        return self

    def _learn_numbers(self, frame: Any, at: list[int]) -> bool:
        """Learn all columns at once if all are numbers without missing values, and say so."""
        A = _as_numbers(frame, at)
        if A is None or not len(A) or not np.isfinite(A).all():
            return False
        constant, medians = self._are_constant(A), np.median(A, axis=0)
        for k, left_out, median in zip(at, constant, medians, strict=True):
            name = self.names_in_[k]
            if left_out:
                self.left_out_.append(name)
            else:
                self.encodings_.append(NumberEncoding(name, False, NUMBER, float(median), True))
        return True

    def _are_constant(self, A: np.ndarray) -> np.ndarray:
        """Return which columns of numbers are constant and not wanted;  (n, k) -> (k,)."""
        if len(A) < 2 or self.keep_constants:
            return np.zeros(A.shape[1], bool)
        return ColumnMoments.of(A).constant

    def _learn(self, column: Any, name: str) -> None:
        """Learn how one column is encoded, or that it is left out."""
        given = self._values(column, name)
        if not given.kind:
            self.left_out_.append(name)
            return
        indicator = bool(given.missing.any())
        rows, varies = len(column), True
        found = encoding_of(name, given, rows, indicator, varies)
        made = found.encode(given, column)
        if self._are_constant(made).all():
            self.left_out_.append(name)
            return
        if isinstance(found, NumberEncoding) and self._are_constant(made[:, :1]).all():
            found = encoding_of(name, given, rows, indicator, varies=False)
        self.encodings_.append(found)

    def _values(self, column: Any, name: str) -> ColumnValues:
        """Return the values of a column, or raise an InputError if some may not be missing."""
        found = values_of(column, name)
        if self.missing == ERROR and found.missing.any():
            count, first = int(found.missing.sum()), int(found.missing.argmax())
            raise InputError(
                f"Column {name!r} has {count} missing value{'s' * (count > 1)}, the first in "
                f"{row_named(column, first)}. Fill in such values, leave out their rows, or give "
                "missing='indicator'."
            )
        return found

    def transform(self, X: Any) -> np.ndarray:
        """Return the columns of numbers of a frame, or of an array with its columns;  (n, k)."""
        check_is_fitted(self, "encodings_")
        frame = self._frame(X)
        names = names_of(frame)
        position = {name: k for k, name in enumerate(names)}
        if lacking := [one.name for one in self.encodings_ if one.name not in position]:
            raise InputError(
                f"The frame lacks {listed(lacking, MAX_NAMED_COLUMNS)}. Give the columns as at fit."
            )
        at = [position[one.name] for one in self.encodings_]
        if all(one.names == [one.name] for one in self.encodings_):
            A = _as_numbers(frame, at)
            if A is not None and np.isfinite(A).all():
                return A
        problems, made = Problems(), []
        for k, encoding in zip(at, self.encodings_, strict=True):
            with problems:
                column = frame.iloc[:, k]
                made.append(encoding.encode(self._values(column, names[k]), column))
        problems.raise_all()
        return np.hstack(made)

    def _frame(self, X: Any) -> Any:
        """Return a table as a frame. One of numbers without names may have no missing values."""
        if is_frame(X):
            return X
        if sp.issparse(X) or getattr(getattr(X, "dtype", None), "kind", "") in "biufc":
            X = matrix_of(X, "X", like=False)
        try:
            return import_optional("pandas", "files").DataFrame(X, columns=self.names_in_)
        except ValueError:
            raise InputError(
                f"The model was fitted on a frame of {len(self.names_in_)} columns. Give a frame "
                "or an array of these columns."
            ) from None

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that `transform` makes;  (k,)."""
        check_is_fitted(self, "encodings_")
        return np.array([name for one in self.encodings_ for name in one.names], dtype=object)

    @property
    def z_groups(self) -> dict[str, list[int]]:
        """The numbers of the columns that are made of one column, if these are more than one.

        These are the levels of a category, the parts of a date, and the indicator of missing
        values.
        """
        sizes = [len(one.names) for one in self.encodings_]
        ends = np.cumsum(sizes).tolist()
        return {
            one.name: list(range(end - size, end))
            for one, size, end in zip(self.encodings_, sizes, ends, strict=True)
            if size > 1
        }

    @property
    def categories(self) -> list[str]:
        """The names of the columns that are categories."""
        return [one.name for one in self.encodings_ if CATEGORY in one.kinds]

    @property
    def levels(self) -> dict[str, list[str]]:
        """The levels of each category, by its name."""
        return {one.name: one.levels for one in self.encodings_ if one.kinds[0] == CATEGORY}

    def is_like(self, other: Any) -> bool:
        """Return whether another object is an encoder that makes the same of every frame."""
        return isinstance(other, FrameEncoder) and vars(self) == vars(other)

    def must_make(self, count: int) -> None:
        """Raise a ValueError unless this encoder, read from a file, makes so many columns."""
        names = [name for one in self.encodings_ for name in one.names]
        must(len(names) == count, f"an encoder makes {len(names)} columns, and {count} are needed")
        must(
            {one.name for one in self.encodings_} <= set(self.names_in_),
            "an encoder names columns that its frame does not have",
        )


def names_of(frame: Any) -> list[str]:
    """Return the names of a frame's columns as texts, or raise an InputError if two are the same.

    A column with several names (of a MultiIndex) is refused, too.
    """
    if frame.columns.nlevels > 1:
        raise InputError(
            "The columns of the frame have names of several levels (a MultiIndex). Give each one "
            "name, such as by frame.columns = ['_'.join(map(str, name)) for name in frame.columns]."
        )
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise InputError(
            f"The frame has more than one column named {listed(twice, MAX_NAMED_COLUMNS)}. Rename "
            "them, or keep the first by frame.loc[:, ~frame.columns.duplicated()]."
        )
    return names


def encoder_for(
    A: Any, transformer: Any, missing: str, keep_constants: bool = False
) -> FrameEncoder | None:
    """Return the encoder that takes the place of a user's transformer, or None if it stays.

    Frames are encoded if there is no transformer, or if that is a list of columns. Frames of sparse
    columns stay as they are.
    """
    is_list = isinstance(transformer, Sequence | np.ndarray) and not isinstance(transformer, str)
    if not is_frame(A) or not (transformer is None or is_list) or not A.size:
        return None
    if all(hasattr(dtype, "fill_value") for dtype in A.dtypes):
        return None
    columns = None if transformer is None else list(transformer)
    return FrameEncoder(columns, missing, keep_constants)


def _positions(columns: Any, names: list[str]) -> list[int]:
    """Return the positions of columns that are given by position or by name."""
    if columns is None:
        return list(range(len(names)))
    position: dict[Any, int] = {name: k for k, name in enumerate(names)}
    columns = list(columns)
    if all(isinstance(one, int | np.integer) for one in columns):
        position = {k - len(names) * below: k for k in position.values() for below in (0, 1)}
    else:
        columns = [str(one) for one in columns]
    if lacking := [one for one in columns if one not in position]:
        raise InputError(
            f"Not all of the columns {columns} are in the input, which lacks "
            f"{listed(lacking, MAX_NAMED_COLUMNS)}. Give an input that has them, or name columns "
            "that it has."
        )
    return [position[one] for one in columns]


def _as_numbers(frame: Any, at: list[int]) -> np.ndarray | None:
    """Return columns of a frame as floats (n, k), or None if one of them has no plain numbers."""
    kinds = {dtype.kind if isinstance(dtype, np.dtype) else "" for dtype in frame.dtypes.iloc[at]}
    if not kinds <= set("biuf"):
        return None
    whole = at == list(range(frame.shape[1]))
    return np.asarray((frame if whole else frame.iloc[:, at]).to_numpy(dtype=float))
