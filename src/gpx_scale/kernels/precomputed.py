"""Kernels whose values the user gives: a Gram matrix, or a function of Python objects."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from ..data.checks import bounded, symmetric
from ..data.inputs import Preprocessor
from ..errors import InputError
from ..runtime.arguments import moderate, real_array
from ..runtime.parallel import slices
from ..runtime.state import must, must_be_indices, must_be_numbers, stored
from .kernel import Kernel, OwnPrepared

# Objects are told from other objects by this many kernel values each, which takes 3% of the time of
# one pass over 1,000 inducing points.
RECOGNITION_ROWS = 32


@stored
@dataclass(frozen=True)
class GramPoints:
    """Rows of a Gram matrix.

    `rows` are (m, columns). `columns` (m,) is the column of the matrix that belongs to each row
    itself, and `own` (m,) is its k(x, x); they are empty where they are not known.
    """

    rows: np.ndarray
    columns: np.ndarray
    own: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | np.ndarray) -> GramPoints:
        return GramPoints(
            self.rows[rows], *(a[rows] if a.size else a for a in (self.columns, self.own))
        )


def _as_slice(index: np.ndarray) -> slice | np.ndarray:
    """Return a slice for consecutive indices, since slicing copies nothing, and others as given."""
    consecutive = index[-1] - index[0] + 1 == index.size and (np.diff(index) == 1).all()
    return slice(index[0], index[-1] + 1) if consecutive else index


def _block(gram: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return some rows and columns of a matrix, without a copy if both are consecutive."""
    spans = _as_slice(rows), _as_slice(columns)
    if all(isinstance(span, slice) for span in spans):
        return gram[spans]
    picked: np.ndarray = gram[np.ix_(rows, columns)]
    return picked


@dataclass(frozen=True)
class Scaled(Kernel):
    """A kernel that is theta1 times a kernel without parameters."""

    theta1: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", moderate(self.theta1, "theta1"))

    @abc.abstractmethod
    def block(self, a: OwnPrepared, b: OwnPrepared) -> np.ndarray:
        """Return the kernel without parameters between prepared rows;  (len(a), len(b))."""

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        return ("theta1",)

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.theta1])

    def with_theta(self, theta: np.ndarray) -> Scaled:
        return replace(self, theta1=float(np.exp(theta[0])))

    def as_dict(self) -> dict[str, Any]:
        return {"theta1": self.theta1}

    def diagonal_gradient(self, points: OwnPrepared) -> np.ndarray:
        return self.diagonal(points)[:, None]

    def multiply(self, a: OwnPrepared, b: OwnPrepared, out: np.ndarray) -> None:
        out *= self.theta1
        out *= self.block(a, b)

    def contract_gradient(self, a: OwnPrepared, b: OwnPrepared, G: np.ndarray) -> np.ndarray:
        sums: np.ndarray = np.einsum("ij,ij->i", G, self.block(a, b))
        return self.theta1 * sums[:, None]


@stored
@dataclass(frozen=True)
class Precomputed(Scaled):
    """A kernel whose values are given in place of X, as a Gram matrix.

    k(x_i, x_j) is theta1 times an entry of the matrix. `fit` takes an X of shape (n, n). Queries
    take one of these shapes, since variances need more than the kernel between queries and
    training rows:

    - (m, n), for means only;
    - (m, n + 1), with k(x*, x*) in the last column, for means and variances;
    - (m, n + m), with the Gram matrix of the queries on the right, for joint covariances too.

    Parameters
    ----------
    theta1 : float, default=1.0
        The factor of the Gram matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.kernels import Precomputed
    >>> gram = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> Precomputed(theta1=2.0)(gram).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    input_kind: ClassVar[str] = "gram"

    def sliceable(self, x: np.ndarray) -> GramPoints:
        return GramPoints(x, np.arange(len(x)), x.diagonal().copy())

    def query_input(self, x: np.ndarray, n_train: int) -> GramPoints:
        m, extra = len(x), x.shape[1] - n_train
        none = np.empty(0, int)
        if extra == 0:
            return GramPoints(x, none, np.empty(0))
        if extra == m:  # With a single query, k(x*, x*) is its whole Gram matrix.
            return GramPoints(
                x, np.arange(n_train, n_train + m), x[np.arange(m), n_train + np.arange(m)]
            )
        if extra == 1:
            return GramPoints(x, none, x[:, n_train])
        raise InputError(
            f'With kernel="precomputed", X has shape {x.shape}. After a fit on {n_train} training '
            f"rows, give X of shape {(m, n_train)} for means only, {(m, n_train + 1)} with k(x*, "
            f"x*) in the last column, or {(m, n_train + m)} with the Gram matrix of the queries on "
            "the right."
        )

    def input_arrays(self, x: GramPoints) -> list[np.ndarray]:
        return [x.rows]

    def must_fit_input(
        self,
        x: Any,
        n: int,
        preprocessor: Preprocessor,
        n_train: int | None = None,
    ) -> None:
        must(isinstance(x, GramPoints), "its rows are not of a Gram matrix")
        columns = x.rows.shape[-1] if n_train is None else n_train
        must_be_numbers(x.rows, (n, columns), "the Gram matrix")
        must_be_indices(x.columns, columns, "the columns of the Gram matrix", n)
        must_be_numbers(x.own, (n,), "the diagonal of the Gram matrix")

    def prepare(self, x: Any, dtype: Any = np.float64) -> GramPoints:
        return x if isinstance(x, GramPoints) else self.sliceable(np.asarray(x, dtype=float))

    def diagonal(self, points: GramPoints) -> np.ndarray:
        if points.own.size != len(points):
            raise InputError(
                'With kernel="precomputed", a variance needs k(x*, x*), which X does not have. '
                "Give X of shape (m, n + 1) with k(x*, x*) in the last column, or (m, n + m) with "
                "the Gram matrix of the queries on the right, or ask for the mean only."
            )
        return self.theta1 * points.own

    def block(self, a: GramPoints, b: GramPoints) -> np.ndarray:
        if not len(b):
            return a.rows[:, :0]
        if not b.columns.size:
            raise InputError(
                'With kernel="precomputed", joint results need the Gram matrix of the queries, '
                "which X does not have. Give X of shape (m, n + m)."
            )
        return a.rows[:, _as_slice(b.columns)]


@dataclass(frozen=True)
class Objects:
    """Python objects of any kind, and the Gram matrix of the training objects if it is known.

    `gram` (n, n) has the kernel values of all pairs of training objects, computed once per fit, and
    `at` is the place of each of these objects in it.
    """

    items: list[Any]
    gram: np.ndarray | None = None
    at: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice | np.ndarray) -> Objects:
        index = np.arange(len(self))[rows]
        return Objects(
            [self.items[i] for i in index], self.gram, None if self.at is None else self.at[rows]
        )


@dataclass(frozen=True)
class Function(Scaled):
    """A kernel that is theta1 times a function of Python objects: graphs, sets, strings.

    Parameters
    ----------
    theta1 : float, default=1.0
        The factor of the function.
    function : callable
        A function that takes two lists, of a and b objects, and returns an array of shape (a, b),
        dense or sparse. It has to be symmetric and positive definite.

    Raises
    ------
    InputError
        If `function` is not callable, or returns something other than finite numbers of that shape.

    Examples
    --------
    >>> from gpx_scale.kernels import Function
    >>> def overlap(a, b):
    ...     return [[len(s & t) / len(s | t) for t in b] for s in a]
    >>> Function(2.0, overlap)([{1, 2}, {2}]).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    function: Callable[[list[Any], list[Any]], Any] = None  # type: ignore[assignment]

    input_kind: ClassVar[str] = "objects"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(
                f"The kernel Function needs a callable, not {self.function!r}. Give a function of "
                "two lists of objects."
            )

    def sliceable(self, x: Any) -> Objects:
        """Return the objects without the kernel values of all pairs."""
        return Objects(x.items if isinstance(x, Objects) else list(x))

    def prepare(self, x: Any, dtype: Any = np.float64) -> Objects:
        return x if isinstance(x, Objects) else self.sliceable(x)

    def input_arrays(self, x: Objects) -> list[np.ndarray]:
        """Return k of all pairs if it is known, else k within blocks of RECOGNITION_ROWS objects.

        Objects have no numbers of their own, and pickles of equal objects may differ, so they are
        recognised by their kernel values.
        """
        if x.gram is not None:
            return [x.gram]
        return [self.block(x[rows], x[rows]) for rows in slices(len(x), RECOGNITION_ROWS)]

    def training_input(self, x: Any) -> Objects:
        """Return the objects with the kernel values of all pairs, (n, n)."""
        objects = self.prepare(x)
        gram = self._evaluate(objects.items, objects.items)
        if not symmetric(gram):
            raise InputError(
                "The kernel function is not symmetric: k(a, b) and k(b, a) differ. Give a "
                "symmetric function."
            )
        return Objects(objects.items, gram, np.arange(len(objects)))

    def diagonal(self, points: Objects) -> np.ndarray:
        if points.gram is not None:
            return self.theta1 * points.gram.diagonal()[points.at]
        each = (self._evaluate([item], [item])[0, 0] for item in points.items)
        return self.theta1 * np.fromiter(each, float, len(points))

    def block(self, a: Objects, b: Objects) -> np.ndarray:
        if not len(a) or not len(b):
            return np.empty((len(a), len(b)))
        if a.gram is not None and a.gram is b.gram:
            assert a.at is not None
            assert b.at is not None
            return _block(a.gram, a.at, b.at)
        return self._evaluate(a.items, b.items)

    def _evaluate(self, a: list[Any], b: list[Any]) -> np.ndarray:
        """Return the values of the function, checked;  (a, b)."""
        returned = self.function(a, b)
        values = real_array(returned.toarray() if sp.issparse(returned) else returned)
        if values.shape != (len(a), len(b)) or not np.isfinite(values).all():
            flaw = "" if np.isfinite(values).all() else ", with NaN or infinity"
            raise InputError(
                f"The kernel function returned {type(returned).__name__} of shape {values.shape} "
                f"for {len(a)} and {len(b)} objects{flaw}. It has to return finite numbers of "
                f"shape {(len(a), len(b))}."
            )
        return bounded(values, "The matrix that the kernel function returned")
