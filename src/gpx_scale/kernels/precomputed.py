"""Kernels that somebody else evaluates: a Gram matrix, or a function of Python objects."""

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
from .kernel import Kernel

RECOGNITION_ROWS = 32  # Objects are told from others by 32 values of k each: 3% of one pass over 1,000 inducing points.


@stored
@dataclass(frozen=True)
class GramPoints:
    """Rows of a Gram matrix, the column in which each stands itself, and its own k(x, x); empty where not known."""

    rows: np.ndarray
    columns: np.ndarray
    own: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | np.ndarray) -> GramPoints:
        return GramPoints(
            self.rows[rows], *(a[rows] if a.size else a for a in (self.columns, self.own))
        )


def _run(index: Any) -> Any:
    """A slice for consecutive indices, which needs no copy."""
    consecutive = index[-1] - index[0] + 1 == index.size and (np.diff(index) == 1).all()
    return slice(index[0], index[-1] + 1) if consecutive else index


def _block(gram: np.ndarray, rows: Any, columns: Any) -> np.ndarray:
    spans = _run(rows), _run(columns)
    return (
        gram[spans]
        if all(isinstance(span, slice) for span in spans)
        else gram[np.ix_(rows, columns)]
    )


@dataclass(frozen=True)
class Scaled(Kernel):
    """theta1 times a kernel without parameters."""

    theta1: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta1", moderate(self.theta1, "theta1"))

    @abc.abstractmethod
    def block(self, a: Any, b: Any) -> np.ndarray:
        """The parameter-free kernel, (len(a), len(b))."""

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

    def diagonal_gradient(self, points: Any) -> np.ndarray:
        return self.diagonal(points)[:, None]

    def multiply(self, a: Any, b: Any, out: np.ndarray) -> None:
        out *= self.theta1
        out *= self.block(a, b)

    def contract_gradient(self, a: Any, b: Any, G: np.ndarray) -> np.ndarray:
        return self.theta1 * np.einsum("ij,ij->i", G, self.block(a, b))[:, None]


@stored
@dataclass(frozen=True)
class Precomputed(Scaled):
    """theta1 times a Gram matrix given as X: (n, n) at fit; at predict (m, n), or with the queries' own block beside it:
    (m, n + 1) with k(x*, x*) last, which variances need, or (m, n + m) with k(x*, x*'), which joint ones need."""

    input_kind: ClassVar[str] = "gram"

    def sliceable(self, x: np.ndarray) -> GramPoints:
        return GramPoints(x, np.arange(len(x)), x.diagonal().copy())

    def query_input(self, x: np.ndarray, n_train: int) -> GramPoints:
        m, extra = len(x), x.shape[1] - n_train
        none = np.empty(0, int)
        if extra == 0:
            return GramPoints(x, none, np.empty(0))
        if extra == m:  # with one query, its k(x*, x*) is the whole block
            return GramPoints(
                x, np.arange(n_train, n_train + m), x[np.arange(m), n_train + np.arange(m)]
            )
        if extra == 1:
            return GramPoints(x, none, x[:, n_train])
        raise InputError(
            f'kernel="precomputed": X is {x.shape}; with {n_train} training rows give {m} x {n_train} (mean only), '
            f"{m} x {n_train + 1} (k(x*, x*) last) or {m} x {n_train + m} (the queries' own Gram matrix beside it)"
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
                'kernel="precomputed": a variance needs k(x*, x*); give X of shape (m, n + 1) with it as the last column, '
                "or (m, n + m) with the queries' own Gram matrix, or ask for the mean only"
            )
        return self.theta1 * points.own

    def block(self, a: GramPoints, b: GramPoints) -> np.ndarray:
        if not len(b):
            return a.rows[:, :0]
        if not b.columns.size:
            raise InputError('kernel="precomputed": joint results need X of shape (m, n + m)')
        return a.rows[:, _run(b.columns)]


@dataclass(frozen=True)
class Objects:
    """Arbitrary Python objects, and where they stand `multiply_at` in a Gram matrix that was asked for once (training)."""

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
    """theta1 times function(list, list) -> (a, b) array, on any Python objects: graphs, sets, strings."""

    function: Callable[[list[Any], list[Any]], Any] = None  # type: ignore[assignment]

    input_kind: ClassVar[str] = "objects"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(
                f"Function kernel needs a callable on two lists of objects, got {self.function!r}"
            )

    def sliceable(self, x: Any) -> Objects:
        return Objects(
            x.items if isinstance(x, Objects) else list(x)
        )  # without a matrix of all pairs

    def prepare(self, x: Any, dtype: Any = np.float64) -> Objects:
        return x if isinstance(x, Objects) else self.sliceable(x)

    def input_arrays(self, x: Objects) -> list[np.ndarray]:
        """Return k of all pairs where it is known already, else k within blocks of RECOGNITION_ROWS objects.

        Objects have no numbers of their own, and pickles of equal objects may differ: what the kernel sees of them is what
        they are known by.
        """
        if x.gram is not None:
            return [x.gram]
        return [self.block(x[rows], x[rows]) for rows in slices(len(x), RECOGNITION_ROWS)]

    def training_input(self, x: Any) -> Objects:
        """The objects with k of all pairs, (n, n)."""
        objects = self.prepare(x)
        gram = self._evaluate(objects.items, objects.items)
        if not symmetric(gram):
            raise InputError("the kernel function is not symmetric: k(a, b) and k(b, a) differ")
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
            return _block(a.gram, a.at, b.at)
        return self._evaluate(a.items, b.items)

    def _evaluate(self, a: list[Any], b: list[Any]) -> np.ndarray:
        said = self.function(a, b)
        values = real_array(said.toarray() if sp.issparse(said) else said)
        if values.shape != (len(a), len(b)) or not np.isfinite(values).all():
            raise InputError(
                f"the kernel function gave {type(said).__name__} of shape {values.shape} for {len(a)} and {len(b)} objects"
                f"{'' if np.isfinite(values).all() else ', with NaN or infinity'}; needed: finite numbers, {(len(a), len(b))}"
            )
        return bounded(values, "what the kernel function gave")
