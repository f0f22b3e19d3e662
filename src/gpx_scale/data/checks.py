"""Checks of tables, targets and Gram matrices.

Each returns finite numbers that can be computed with, or raises an InputError that says what was
found and what to do.
"""

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

# Squares of larger numbers overflow.
LARGEST_NUMBER = 1e150
# Numbers that are not standardised are squared once more, in norms of C.
LARGEST_UNSCALED = 1e70
# Sums and differences of larger numbers may overflow, even before they are standardised.
LARGEST_GIVEN = 1e300
# Dates among Python objects are looked for in this many rows, which is quick, and in all rows if
# the conversion to numbers fails.
DATE_CHECK_ROWS = 100
# Text is looked for in this many rows of a column if the conversion to numbers fails.
TEXT_CHECK_ROWS = 100
# A matrix is symmetric if A - A^T is at most this share of the largest entry of A.
SYMMETRY_TOLERANCE = 1e-8
# Dates and durations by the `kind` of their numpy dtype.
DATES = {"M": "dates", "m": "durations"}
# Numbers that can stand for dates, durations and times of day.
NUMBERS = {
    "dates": "days since a date that is the same for fit and predict",
    "durations": "seconds",
    "times of day": "hours since midnight",
}


def _must_not_be_masked(A: Any, name: str) -> None:
    """Raise an InputError if a numpy array has masked entries."""
    if np.ma.is_masked(A):
        raise InputError(
            f"{name} has masked entries, which would be taken as numbers. Fill or drop them."
        )


def matrix_of(A: Any, name: str, like: bool | None = None) -> Any:
    """Return a table of finite float64 with at least one row and one column.

    It is an array, or a csr matrix if A is sparse. `like` says whether it must be sparse (an array
    is then converted) or must not be; with None, both are accepted.
    """
    _must_not_be_masked(A, name)
    if _is_text(A):
        raise InputError(
            f"{name} holds text. Give an x_transformer and a z_transformer that make numbers of "
            "it, such as TfidfVectorizer."
        )
    if sp.issparse(A) and A.ndim == 2 and not A.shape[1]:
        raise InputError(
            f"{name} has no columns. If it comes from a vectorizer, its vocabulary is empty: a "
            "lower min_df or a higher max_df keeps more words."
        )
    _must_be_whole(A, name)
    _must_not_be_dates(A, name, DATE_CHECK_ROWS)
    labels = getattr(A, "columns", None)
    with _texts_named(A, name):
        A = check_array(
            A,
            accept_sparse="csr" if like is not False else False,
            dtype=np.float64,
            order="C",
            ensure_all_finite=False,
            input_name=name,
            estimator="GPXRegressor",
        )
    _must_be_finite(A, name, labels)
    _must_fit(A.data if sp.issparse(A) else A, name)
    if like is None or like == sp.issparse(A):
        return A
    return sp.csr_array(A)


def table_of(A: Any, name: str) -> Any:
    """Return a table of finite float64, dense or sparse, whose squares are finite, too."""
    A = matrix_of(A, name)
    must_be_moderate(SparseFeatures.of(A) if sp.issparse(A) else A, name, standardize=True)
    return A


def _must_be_finite(A: Any, name: str, labels: Any = None) -> None:
    """Raise an InputError that says where the first number is that is not finite, if there is one.

    A is an array or a csr matrix. `labels` are the names of its columns, if it has some.
    """
    numbers = A.data if sp.issparse(A) else A
    with np.errstate(all="ignore"):
        # A sum is finite only if all numbers are, and needs no further memory.
        if np.isfinite(numbers.sum()):
            return
    bad = np.argwhere(~np.isfinite(numbers))
    if not len(bad):
        return
    first = numbers[tuple(bad[0])]
    row, *columns = bad[0].tolist()
    if sp.issparse(A):
        columns = [int(A.indices[row])]
        row = int(np.searchsorted(A.indptr, row, side="right")) - 1
    where = f"{name}[{', '.join(map(str, [row, *columns]))}]"
    if labels is not None and columns:
        where += f", of the column {labels[columns[0]]!r}"
    count = f"{len(bad)} value{'s' * (len(bad) > 1)}, the first of which is {where}"
    if np.isinf(first):
        raise InputError(f"{name} contains infinity: {count}. Replace it by finite numbers.")
    encoded = " In a pandas data frame, missing values are encoded." * (name != "y")
    raise InputError(
        f"{name} contains NaN: {count}. Fill in missing values, or leave out their rows.{encoded}"
    )


def _must_fit(numbers: np.ndarray, name: str) -> None:
    """Raise an InputError if sums of the numbers may overflow."""
    if (size := np.abs(numbers).max(initial=0.0)) > LARGEST_GIVEN:
        raise InputError(
            f"{name} holds {size:.1e}, which is too large to compute with in float64. Rescale it."
        )


@contextmanager
def _texts_named(A: Any, name: str) -> Iterator[None]:
    """Raise an InputError that names the column, if a conversion fails because of text or dates."""
    try:
        yield
    except (ValueError, TypeError) as error:
        _must_not_be_dates(A, name)
        for column in A.columns if hasattr(A, "iloc") and A.ndim == 2 else ():
            first = (
                next((v for v in A[column].head(TEXT_CHECK_ROWS) if isinstance(v, str)), None)
                if _once(A, column)
                else None
            )
            if first is not None:
                raise InputError(
                    f"Column {column!r} of {name} holds text ({first!r}). Give a z_transformer "
                    "(and x_transformer) that makes numbers of it, such as a ColumnTransformer "
                    "with OneHotEncoder."
                ) from error
        raise


def _once(A: Any, column: Any) -> bool:
    """Return whether only one column of a frame has this name."""
    return list(A.columns).count(column) == 1


def _is_text(A: Any) -> bool:
    """Return whether a list, array or series begins with a text."""
    if hasattr(A, "iloc"):
        return A.ndim == 1 and len(A) > 0 and isinstance(A.iloc[0], str)
    return isinstance(A, list | tuple | np.ndarray) and len(A) > 0 and isinstance(A[0], str)


def _must_not_be_dates(A: Any, name: str, rows: int | None = None) -> None:
    """Raise an InputError that names the column if a table holds dates or durations.

    numpy would take some of them as numbers, in a unit that depends on how they are stored, and NaT
    as -9e18. If values are Python objects, the first `rows` rows are checked, or all with None.
    """
    if hasattr(A, "iloc") and A.ndim == 2:
        others = (
            k for k, dtype in enumerate(A.dtypes) if getattr(dtype, "kind", "O") not in "biufc"
        )
        for column, label in ((A.iloc[:, k], A.columns[k]) for k in others):
            if what := _dates_of_type(column.dtype) or _dates_among(islice(column, rows)):
                remedy = _as_numbers(what, column.dtype, f"frame[{label!r}]")
                raise InputError(
                    f"Column {label!r} of {name} holds {what}. "
                    f"Make numbers of them, such as {remedy}"
                )
    elif hasattr(A, "iloc"):
        if what := _dates_of_type(A.dtype) or _dates_among(islice(A, rows)):
            remedy = _as_numbers(what, A.dtype, name)
            raise InputError(f"{name} holds {what}. Make numbers of them, such as {remedy}")
    elif isinstance(A, np.ndarray) and A.dtype.kind in "Mm":
        since = f"({name} - numpy.datetime64('2000-01-01'))" if A.dtype.kind == "M" else name
        raise InputError(
            f"{name} holds {DATES[A.dtype.kind]}. Make numbers of them, such as days: "
            f"{since} / numpy.timedelta64(1, 'D')"
        )
    elif isinstance(A, list | tuple) or (
        isinstance(A, np.ndarray) and A.dtype.kind == "O" and A.ndim
    ):
        for row in A[:rows]:
            if what := _dates_among(
                row if isinstance(row, list | tuple | np.ndarray) and np.ndim(row) else [row]
            ):
                raise InputError(
                    f"{name} holds {what}. Make numbers of them, such as {NUMBERS[what]}."
                )


def _dates_of_type(dtype: Any) -> str | None:
    """Return "dates" or "durations" if a pandas dtype, or that of its categories, has them.

    It is None for all other dtypes.
    """
    inner = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    return "dates" if str(inner).startswith("period") else DATES.get(getattr(inner, "kind", ""))


def _dates_among(values: Iterable[Any]) -> str | None:
    """Return what the first date, duration or time of day is called, or None if there is none."""
    for value in values:
        if isinstance(value, datetime.date | np.datetime64) or type(value).__name__ == "Period":
            return "dates"
        if isinstance(value, datetime.timedelta | np.timedelta64):
            return "durations"
        if isinstance(value, datetime.time):
            return "times of day"
    return None


def _as_numbers(what: str, dtype: Any, column: str) -> str:
    """Return which numbers can stand for the dates of a pandas column, and the code for that."""
    if what == "durations":
        code = f"pandas.to_timedelta({column}).dt.total_seconds()"
    elif what == "times of day":
        code = f"{column}.map(lambda time: time.hour + time.minute / 60)"
    elif isinstance(dtype, np.dtype) and dtype.kind == "M":
        code = f"({column} - pandas.Timestamp('2000-01-01')).dt.days"
    elif str(dtype).startswith("period"):
        code = f"({column}.dt.to_timestamp() - pandas.Timestamp('2000-01-01')).dt.days"
    else:
        since = "pandas.Timestamp('2000-01-01', tz='UTC')"
        code = f"(pandas.to_datetime({column}, utc=True) - {since}).dt.days"
    return f"{NUMBERS[what]}: {code}"


def _must_be_whole(A: Any, name: str) -> None:
    """Raise an InputError if the indices of a sparse matrix point outside of it.

    This happens if its arrays were changed by hand, and scipy does not notice.
    """
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
            f"{name} is not a valid sparse matrix, because its indices point outside of its "
            f"shape {A.shape}. Make it anew from its rows, columns and values."
        )


def bounded(A: np.ndarray, name: str) -> np.ndarray:
    """Return A, or raise an InputError if squares of its entries may leave float64."""
    if A.size and not max(A.max(), -A.min()) <= LARGEST_UNSCALED:
        raise InputError(
            f"{name} has entries beyond {LARGEST_UNSCALED:.0e}. Rescale it; theta1 makes up for it."
        )
    return A


def symmetric(A: np.ndarray) -> bool:
    """Return whether A = A^T up to SYMMETRY_TOLERANCE;  (n, n).

    Strips of rows are compared one after the other, so that no temporary array has n^2 numbers.
    """
    most = SYMMETRY_TOLERANCE * max(A.max(), -A.min())
    return all((np.abs(A[rows] - A[:, rows].T) <= most).all() for rows in slices(len(A), 256))


def target_of(y: Any) -> np.ndarray:
    """Return the target as finite float64, or raise an InputError;  (n,)."""
    if y is None:
        raise InputError("GPXRegressor requires y to be passed, but the target y is None.")
    _must_not_be_masked(y, "y")
    _must_not_be_dates(y, "y", DATE_CHECK_ROWS)
    y = column_or_1d(y, warn=True)
    target: np.ndarray
    with _texts_named(y, "y"):
        target = check_array(
            y,
            dtype=np.float64,
            ensure_2d=False,
            ensure_all_finite=False,
            input_name="y",
            estimator="GPXRegressor",
        )
    _must_be_finite(target, "y")
    _must_fit(target, "y")
    return target


def must_be_features(Z: Any, shape: tuple[int, int], what: str) -> None:
    """Raise a ValueError unless Z has this shape, and numbers that compiled loops can use.

    Z was read from a file. `what` is the subject of the message.
    """
    must(isinstance(Z, Features), f"{what} is no table")
    must(Z.shape == shape, f"{what} has the shape {Z.shape}, and {shape} is needed")
    if isinstance(Z, DenseFeatures):
        must_be_numbers(Z.array, shape, what)
        must(Z.array.flags.c_contiguous, f"{what} is not stored by rows")
    else:
        must_be_numbers(Z.values, Z.values.shape, what)
    must_be_moderate(Z, what, standardize=True)


def must_be_moderate(A: Any, name: str, standardize: bool) -> None:
    """Raise an InputError if squares of the numbers of a table overflow.

    `standardize` says whether the table was standardised, which decides what the message advises.
    """
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
            "Rescale it."
            if standardize or isinstance(A, SparseFeatures)
            else "Rescale it, or use standardize=True."
        )
        raise InputError(f"{name} reaches {size:.1e}, whose square overflows. {remedy}")
