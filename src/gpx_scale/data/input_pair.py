"""`XZ`, a pair of inputs whose rows are selected together, and rows of any kind of table."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..runtime.arguments import real_array
from ..runtime.state import stored


@stored
class XZ:
    """A pair of inputs X and Z whose rows are selected together.

    Give it in the place of X to functions that split rows, such as `cross_val_score` and
    `GridSearchCV` of scikit-learn, so that a separate Z is split in the same way.

    Parameters
    ----------
    X : array, data frame, sparse matrix or list of n rows
        What the kernel compares. For a precomputed kernel, it is the Gram matrix.
    Z : array, data frame or sparse matrix of shape (n, d)
        The readable features that explanations are made of.

    Raises
    ------
    InputError
        If X and Z do not have the same number of rows.

    Examples
    --------
    >>> from gpx_scale import XZ
    >>> pair = XZ([[0.0], [1.0], [2.0]], [[1.0, 5.0], [1.0, 6.0], [1.0, 7.0]])
    >>> len(pair), pair[1:].Z.tolist()
    (3, [[1.0, 6.0], [1.0, 7.0]])

    The pair takes the place of X in cross-validation:

    >>> import numpy as np
    >>> from gpx_scale import GPXRegressor
    >>> from sklearn.model_selection import cross_val_predict
    >>> X = np.linspace(0.0, 1.0, 12)[:, None]
    >>> Z, y = np.hstack([X, X**2]), X[:, 0] ** 3
    >>> cross_val_predict(GPXRegressor(optimizer=None), XZ(X, Z), y, cv=3).shape
    (12,)
    """

    def __init__(self, X: Any, Z: Any) -> None:
        # Not every sparse format can select rows.
        X, Z = (A.tocsr() if sp.issparse(A) else A for A in (X, Z))
        try:
            self.X = X if hasattr(X, "shape") else as_rows(X)
            self.Z = Z if hasattr(Z, "shape") else np.asarray(Z)
        except (TypeError, ValueError):
            raise InputError(
                "XZ needs rows of X and a table Z. Give both, in this order."
            ) from None
        rows, others = count_rows(self.X), count_rows(self.Z)
        if rows != others:
            raise InputError(
                f"XZ got {rows} rows of X and {others} rows of Z. Give as many rows of Z as of X."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of X."""
        return (count_rows(self.X), *getattr(self.X, "shape", (0,))[1:])

    def __len__(self) -> int:
        return count_rows(self.X)

    def __getitem__(self, rows: Any) -> XZ:
        """Return the pair of the selected rows."""
        # scikit-learn selects from a Gram matrix by np.ix_(rows, columns), and from all other
        # inputs by rows or by (rows, Ellipsis).
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is not Ellipsis:
            at = np.asarray(rows[0]).ravel()
            return XZ(self.X[rows], take(self.Z, at))
        if isinstance(rows, tuple):
            rows = rows[0]
        if isinstance(rows, int | np.integer):
            rows = [rows]
        return XZ(take(self.X, rows), take(self.Z, rows))

    def __repr__(self) -> str:
        return f"XZ(X: {self.shape}, Z: {self.Z.shape})"


def as_rows(X: Any) -> Any:
    """Return a list of vectors of one length as an array, and other sequences as lists."""
    rows = real_array(X)
    return rows if rows.ndim == 2 else list(X)


def count_rows(A: Any) -> int:
    """Return the number of rows of an array, data frame, sparse matrix or list."""
    if getattr(A, "shape", None) == () or not (hasattr(A, "shape") or hasattr(A, "__len__")):
        raise InputError(
            f"A table with rows is needed, but {type(A).__name__} was given. "
            "Give an array, a data frame or a list."
        )
    return int(A.shape[0]) if hasattr(A, "shape") else len(A)


def take(A: Any, rows: Any) -> Any:
    """Return the selected rows of an array, data frame, sparse matrix or list."""
    if hasattr(A, "iloc"):
        return A.iloc[rows]
    if hasattr(A, "shape"):
        return A[rows]
    return [A[i] for i in np.arange(len(A))[rows]]


def unpack(X: Any, Z: Any) -> tuple[Any, Any]:
    """Return X and Z, which may have been given as one XZ pair."""
    if not isinstance(X, XZ):
        return X, Z
    if Z is not None:
        raise InputError("Z is given twice, in the XZ pair and as Z=. Give it once.")
    return X.X, X.Z
