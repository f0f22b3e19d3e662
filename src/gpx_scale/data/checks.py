"""Numbers that the engine can use, or an error that says what was seen and what to do: tables, targets, Gram matrices."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_array, column_or_1d

from ..errors import InputError
from ..runtime.parallel import slices
from ..runtime.state import must, must_be_numbers
from .features import DenseFeatures, Features, SparseFeatures

LARGEST_NUMBER = 1e150  # beyond it, squares overflow
LARGEST_UNSCALED = 1e70  # what is not scaled is squared once more, in norms of C
LOOKED_AT = 100  # Dates among Python objects are looked for in so many rows, and in all rows where a conversion fails.


def _must_not_be_masked(A: Any, name: str) -> None:
    if np.ma.is_masked(A):
        raise InputError(
            f"{name} has masked entries, which would be taken as numbers: fill or drop them"
        )


def matrix_of(A: Any, name: str, like: bool | None = None) -> Any:
    """A finite float64 (n, columns) with at least one row and column: an array, or where A is sparse a csr matrix.

    `like`: whether it must be sparse (rows of an array are made so) or must not be; None takes either."""
    _must_not_be_masked(A, name)
    if _is_text(A):
        raise InputError(
            f"{name} holds text: give x_transformer= and z_transformer= that make numbers of it (docs/text.md)"
        )
    if sp.issparse(A) and A.ndim == 2 and not A.shape[1]:
        raise InputError(
            f"{name} has no columns: is the vocabulary empty? A lower min_df or a higher max_df keeps more words"
        )
    _must_be_whole(A, name)
    _must_not_be_dates(A, name, LOOKED_AT)
    with (
        _texts_named(A, name),
        np.errstate(all="ignore"),
    ):  # the check adds up: inf - inf is an error below, not a warning
        A = check_array(
            A,
            accept_sparse="csr" if like is not False else False,
            dtype=np.float64,
            order="C",
            input_name=name,
            estimator="GPXRegressor",
        )
    _must_fit(A.data if sp.issparse(A) else A, name)
    if like is None or like == sp.issparse(A):
        return A
    return sp.csr_array(A)


def table_of(A: Any, name: str) -> Any:
    """A finite float64 (n, columns), dense or sparse, whose squares are finite too."""
    A = matrix_of(A, name)
    must_be_moderate(SparseFeatures.of(A) if sp.issparse(A) else A, name, standardize=True)
    return A


def _must_fit(numbers: np.ndarray, name: str) -> None:
    if (size := np.abs(numbers).max(initial=0.0)) > 1e300:
        raise InputError(f"{name} holds {size:.1e}: rescale it, numbers this large leave float64")


@contextmanager
def _texts_named(A: Any, name: str) -> Iterator[None]:
    """An error on a frame with texts says which column, and what makes numbers of it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        _must_not_be_dates(A, name)
        for column in A.columns if hasattr(A, "iloc") and A.ndim == 2 else ():
            first = (
                next((value for value in A[column].head(100) if isinstance(value, str)), None)
                if _once(A, column)
                else None
            )
            if first is not None:
                raise InputError(
                    f"column {column!r} of {name} holds text ({first!r}): give a z_transformer (and x_transformer) that makes "
                    "numbers of it, such as a ColumnTransformer with OneHotEncoder (docs/tabular.md)"
                ) from error
        raise


def _once(A: Any, column: Any) -> bool:
    return list(A.columns).count(column) == 1


def _is_text(A: Any) -> bool:
    if hasattr(A, "iloc"):
        return A.ndim == 1 and len(A) > 0 and isinstance(A.iloc[0], str)
    return isinstance(A, list | tuple | np.ndarray) and len(A) > 0 and isinstance(A[0], str)


def _must_not_be_dates(A: Any, name: str, rows: int | None = None) -> None:
    """Refuse dates and durations by the name of their column. numpy would take some of them as numbers, in a unit that
    depends on how they are stored, and NaT as -9e18.

    rows: how many are looked at where values are Python objects; None looks at all.
    """
    if hasattr(A, "iloc") and A.ndim == 2:
        others = (
            k for k, dtype in enumerate(A.dtypes) if getattr(dtype, "kind", "O") not in "biufc"
        )
        for column, label in ((A.iloc[:, k], A.columns[k]) for k in others):
            if what := _dates_of_type(column.dtype) or _dates_among(islice(column, rows)):
                remedy = _as_numbers(what, column.dtype, f"frame[{label!r}]")
                raise InputError(
                    f"column {label!r} of {name} holds {what}: make numbers of them, such as {remedy}"
                )
    elif hasattr(A, "iloc"):
        if what := _dates_of_type(A.dtype) or _dates_among(islice(A, rows)):
            raise InputError(
                f"{name} holds {what}: make numbers of them, such as {_as_numbers(what, A.dtype, name)}"
            )
    elif isinstance(A, np.ndarray) and A.dtype.kind in "Mm":
        since = f"({name} - numpy.datetime64('2000-01-01'))" if A.dtype.kind == "M" else name
        raise InputError(
            f"{name} holds {DATES[A.dtype.kind]}: make numbers of them, such as days: {since} / numpy.timedelta64(1, 'D')"
        )
    elif isinstance(A, list | tuple) or (
        isinstance(A, np.ndarray) and A.dtype.kind == "O" and A.ndim
    ):
        for row in A[:rows]:
            if what := _dates_among(
                row if isinstance(row, list | tuple | np.ndarray) and np.ndim(row) else [row]
            ):
                raise InputError(
                    f"{name} holds {what}: make numbers of them, such as {NUMBERS[what]}"
                )


DATES = {"M": "dates", "m": "durations"}
NUMBERS = {
    "dates": "days since a date that is the same for fit and predict",
    "durations": "seconds",
    "times of day": "hours since midnight",
}


def _dates_of_type(dtype: Any) -> str | None:
    """Return whether a pandas dtype, or the one of its categories, is of dates or of durations; None where it is neither."""
    inner = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    return "dates" if str(inner).startswith("period") else DATES.get(getattr(inner, "kind", ""))


def _dates_among(values: Iterable[Any]) -> str | None:
    for value in values:
        if isinstance(value, datetime.date | np.datetime64) or type(value).__name__ == "Period":
            return "dates"
        if isinstance(value, datetime.timedelta | np.timedelta64):
            return "durations"
        if isinstance(value, datetime.time):
            return "times of day"
    return None


def _as_numbers(what: str, dtype: Any, column: str) -> str:
    """Return which numbers stand for the dates of a pandas column, and the line of code that makes them."""
    if what == "durations":
        code = f"pandas.to_timedelta({column}).dt.total_seconds()"
    elif what == "times of day":
        code = f"{column}.map(lambda time: time.hour + time.minute / 60)"
    elif isinstance(dtype, np.dtype) and dtype.kind == "M":
        code = f"({column} - pandas.Timestamp('2000-01-01')).dt.days"
    elif str(dtype).startswith("period"):
        code = f"({column}.dt.to_timestamp() - pandas.Timestamp('2000-01-01')).dt.days"
    else:
        code = f"(pandas.to_datetime({column}, utc=True) - pandas.Timestamp('2000-01-01', tz='UTC')).dt.days"
    return f"{NUMBERS[what]}: {code}"


def _must_be_whole(A: Any, name: str) -> None:
    """A sparse matrix whose arrays were changed by hand may point outside itself, which scipy does not see."""
    if not sp.issparse(A) or A.format not in ("csr", "csc"):
        return
    width = A.shape[1] if A.format == "csr" else A.shape[0]
    inside = not A.indices.size or (A.indices.min() >= 0 and A.indices.max() < width)
    if (
        not inside
        or A.indptr[0] != 0
        or (np.diff(A.indptr) < 0).any()
        or A.indptr[-1] > min(A.indices.size, A.data.size)
    ):
        raise InputError(
            f"{name} is not a valid sparse matrix: its indices point outside of {A.shape}"
        )


def bounded(A: np.ndarray, name: str) -> np.ndarray:
    """A, if squares and products of its entries stay in float64."""
    if A.size and not max(A.max(), -A.min()) <= LARGEST_UNSCALED:
        raise InputError(
            f"{name} has entries beyond {LARGEST_UNSCALED:.0e}: rescale it, which theta1 makes up for"
        )
    return A


def symmetric(A: np.ndarray) -> bool:
    """Whether A = A^T to 1e-8 of its largest entry, by strips: no n^2 temporaries."""
    size = max(A.max(), -A.min())
    return all(
        (np.abs(A[rows] - A[:, rows].T) <= 1e-8 * size).all() for rows in slices(len(A), 256)
    )


def target_of(y: Any) -> np.ndarray:
    if y is None:
        raise InputError("GPXRegressor requires y to be passed, but the target y is None")
    _must_not_be_masked(y, "y")
    _must_not_be_dates(y, "y", LOOKED_AT)
    y = column_or_1d(y, warn=True)
    with _texts_named(y, "y"), np.errstate(all="ignore"):
        y = check_array(
            y, dtype=np.float64, ensure_2d=False, input_name="y", estimator="GPXRegressor"
        )
    _must_fit(y, "y")
    return y


def must_be_features(Z: Any, shape: tuple[int, int], what: str) -> None:
    """Raise a ValueError unless Z has this shape, and numbers that compiled loops can use."""
    must(isinstance(Z, Features), f"{what} is no table")
    must(Z.shape == shape, f"{what} has the shape {Z.shape}, and {shape} is needed")
    if isinstance(Z, DenseFeatures):
        must_be_numbers(Z.array, shape, what)
        must(Z.array.flags.c_contiguous, f"{what} is not stored by rows")
    else:
        must_be_numbers(Z.values, Z.values.shape, what)
    must_be_moderate(Z, what, standardize=True)


def must_be_moderate(A: Any, name: str, standardize: bool) -> None:
    numbers = (
        A.values
        if isinstance(A, SparseFeatures)
        else A.array
        if isinstance(A, DenseFeatures)
        else A
    )
    largest = LARGEST_UNSCALED if isinstance(A, SparseFeatures) else LARGEST_NUMBER
    if not (size := np.abs(numbers).max(initial=0.0)) < largest:
        remedy = (
            "rescale it"
            if standardize or isinstance(A, SparseFeatures)
            else "rescale it, or use standardize=True"
        )
        raise InputError(f"{name} reaches {size:.1e}, whose square overflows: {remedy}")
