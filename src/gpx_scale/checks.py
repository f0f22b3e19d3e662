"""Numbers that the engine can use, or an error that says what was seen and what to do: tables, targets, Gram matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_array, column_or_1d

from .errors import InputError
from .features import DenseFeatures, SparseFeatures
from .runtime import slices

LARGEST_NUMBER = 1e150  # beyond it, squares overflow
LARGEST_UNSCALED = 1e70  # what is not scaled is squared once more, in norms of C


def _must_not_be_masked(A: Any, name: str) -> None:
    if np.ma.is_masked(A):
        raise InputError(f"{name} has masked entries, which would be taken as numbers: fill or drop them")


def matrix_of(A: Any, name: str, like: bool | None = None) -> Any:
    """A finite float64 (n, columns) with at least one row and column: an array, or where A is sparse a csr matrix.

    `like`: whether it must be sparse (rows of an array are made so) or must not be; None takes either."""
    _must_not_be_masked(A, name)
    if _is_text(A):
        raise InputError(f"{name} holds text: give x_transformer= and z_transformer= that make numbers of it (docs/text.md)")
    if sp.issparse(A) and A.ndim == 2 and not A.shape[1]:
        raise InputError(f"{name} has no columns: is the vocabulary empty? A lower min_df or a higher max_df keeps more words")
    _must_be_whole(A, name)
    with _texts_named(A, name), np.errstate(all="ignore"):  # the check adds up: inf - inf is an error below, not a warning
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
        for column in A.columns if hasattr(A, "iloc") and A.ndim == 2 else ():
            first = (
                next((value for value in A[column].head(100) if isinstance(value, str)), None) if _once(A, column) else None
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


def _must_be_whole(A: Any, name: str) -> None:
    """A sparse matrix whose arrays were changed by hand may point outside itself, which scipy does not see."""
    if not sp.issparse(A) or A.format not in ("csr", "csc"):
        return
    width = A.shape[1] if A.format == "csr" else A.shape[0]
    inside = not A.indices.size or (A.indices.min() >= 0 and A.indices.max() < width)
    if not inside or A.indptr[0] != 0 or (np.diff(A.indptr) < 0).any() or A.indptr[-1] > min(A.indices.size, A.data.size):
        raise InputError(f"{name} is not a valid sparse matrix: its indices point outside of {A.shape}")


def bounded(A: np.ndarray, name: str) -> np.ndarray:
    """A, if squares and products of its entries stay in float64."""
    if A.size and not max(A.max(), -A.min()) <= LARGEST_UNSCALED:
        raise InputError(f"{name} has entries beyond {LARGEST_UNSCALED:.0e}: rescale it, which theta1 makes up for")
    return A


def symmetric(A: np.ndarray) -> bool:
    """Whether A = A^T to 1e-8 of its largest entry, by strips: no n^2 temporaries."""
    size = max(A.max(), -A.min())
    return all((np.abs(A[rows] - A[:, rows].T) <= 1e-8 * size).all() for rows in slices(len(A), 256))


def target_of(y: Any) -> np.ndarray:
    if y is None:
        raise InputError("GPXRegressor requires y to be passed, but the target y is None")
    _must_not_be_masked(y, "y")
    y = column_or_1d(y, warn=True)
    with np.errstate(all="ignore"):
        y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y", estimator="GPXRegressor")
    _must_fit(y, "y")
    return y


def must_be_moderate(A: Any, name: str, standardize: bool) -> None:
    numbers = A.values if isinstance(A, SparseFeatures) else A.array if isinstance(A, DenseFeatures) else A
    largest = LARGEST_UNSCALED if isinstance(A, SparseFeatures) else LARGEST_NUMBER
    if not (size := np.abs(numbers).max(initial=0.0)) < largest:
        remedy = "rescale it" if standardize or isinstance(A, SparseFeatures) else "rescale it, or use standardize=True"
        raise InputError(f"{name} reaches {size:.1e}, whose square overflows: {remedy}")
