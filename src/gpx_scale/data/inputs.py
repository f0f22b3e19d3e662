"""Checks of X, y and Z, once, where they enter. After that, shape, dtype and finiteness are facts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from ..errors import GPXError, InputError
from ..runtime.arguments import real_array
from ..runtime.state import must, must_be_numbers, stored
from .checks import bounded, matrix_of, must_be_features, must_be_moderate, symmetric, target_of
from .features import Features
from .scaling import Scaling


@stored
class XZ:
    """A pair of inputs that slices by rows as one: the safe way to carry a separate Z through cross-validation.

    >>> pair = XZ([[0.0], [1.0], [2.0]], [[1.0, 5.0], [1.0, 6.0], [1.0, 7.0]])
    >>> len(pair), pair[1:].Z.tolist()
    (3, [[1.0, 6.0], [1.0, 7.0]])
    """

    def __init__(self, X: Any, Z: Any) -> None:
        X, Z = (
            A.tocsr() if sp.issparse(A) else A for A in (X, Z)
        )  # not every sparse form slices by rows
        try:
            self.X = X if hasattr(X, "shape") else _as_rows(X)
            self.Z = Z if hasattr(Z, "shape") else np.asarray(Z)
        except (TypeError, ValueError):
            raise InputError("XZ needs rows of X, and a table Z") from None
        if count_rows(self.X) != count_rows(self.Z):
            raise InputError(
                f"XZ needs as many rows of X as of Z, got {count_rows(self.X)} and {count_rows(self.Z)}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (count_rows(self.X), *getattr(self.X, "shape", (0,))[1:])

    def __len__(self) -> int:
        return count_rows(self.X)

    def __getitem__(self, rows: Any) -> XZ:
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is not Ellipsis:
            at = np.asarray(
                rows[0]
            ).ravel()  # scikit-learn slices a Gram matrix by np.ix_(rows, columns)
            return XZ(self.X[rows], take(self.Z, at))
        if isinstance(rows, tuple):  # and all else by [rows, ...]
            rows = rows[0]
        if isinstance(rows, int | np.integer):
            rows = [rows]
        return XZ(take(self.X, rows), take(self.Z, rows))

    def __repr__(self) -> str:
        return f"XZ(X: {self.shape}, Z: {self.Z.shape})"


def _as_rows(X: Any) -> Any:
    """A list of equal-length numbers is an array; any other sequence stays a list of objects."""
    rows = real_array(X)
    return rows if rows.ndim == 2 else list(X)


def count_rows(A: Any) -> int:
    if getattr(A, "shape", None) == () or not (hasattr(A, "shape") or hasattr(A, "__len__")):
        raise InputError(f"rows are needed, got {type(A).__name__}")
    return A.shape[0] if hasattr(A, "shape") else len(A)


def take(A: Any, rows: Any) -> Any:
    if hasattr(A, "iloc"):
        return A.iloc[rows]
    if hasattr(A, "shape"):
        return A[rows]
    return [A[i] for i in np.arange(len(A))[rows]]


def _input_rows(x: Any, Z: Features) -> InputRows:
    """Return the rows of a file."""
    _must_be_as_long(x, Z)
    return InputRows(x, Z)


def _training_rows(x: Any, Z: Features, y: np.ndarray) -> TrainingRows:
    """Return the training rows of a file."""
    _must_be_as_long(x, Z, y)
    return TrainingRows(x, Z, y)


def _must_be_as_long(x: Any, *others: Any) -> None:
    must({len(x)} == {len(other) for other in others}, "x, y and Z of different lengths")


@stored(make=_input_rows)
@dataclass(frozen=True)
class InputRows:
    """Checked rows in standardised units: x for the kernel, Z (n, d)."""

    x: Any
    Z: Features

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, rows: Any) -> Any:
        return InputRows(self.x[rows], self.Z[rows])

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        """Raise a ValueError unless a model with this kernel takes such rows.

        `n_train` is the number of columns that the rows of a Gram matrix must have, if it is known.
        """
        must_be_features(self.Z, (len(self.Z), preprocessor.n_weights), "Z")
        alike = self.Z.is_sparse == preprocessor.sparse_z
        must(alike, "Z is sparse in one place and dense in another")
        kernel.must_fit_input(self.x, len(self.Z), preprocessor, n_train)


@stored(make=_training_rows)
@dataclass(frozen=True)
class TrainingRows(InputRows):
    """Training data: such rows and their y (n,)."""

    y: np.ndarray

    def __getitem__(self, rows: Any) -> TrainingRows:
        return TrainingRows(self.x[rows], self.Z[rows], self.y[rows])

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        super().must_fit(kernel, preprocessor, n_train)
        must_be_numbers(self.y, (len(self.Z),), "y")
        must_be_moderate(self.y, "y", standardize=True)


@dataclass(frozen=True)
class Queries(InputRows):
    """Rows to predict and explain, with Z as the user knows it.

    `own`: they are the training rows, and ask for their own weights w_i.
    """

    raw_Z: Any = None
    own: bool = False


# preprocessing


@stored
@dataclass(frozen=True)
class InputTransforms:
    """The transformers, fitted, and what the kernel takes: checks of everything but scale."""

    input_kind: str
    x_transformer: Any
    z_transformer: Any

    def __call__(
        self, X: Any, Z: Any, sparse: tuple[bool | None, bool | None] = (None, None)
    ) -> tuple[Any, Any, Any]:
        """x as the kernel takes it and Z, both in the user's units, and Z with its names. `sparse`: whether they must be."""
        x = _transform_queries("x_transformer", self.x_transformer, X)
        z = _transform_queries("z_transformer", self.z_transformer, X if Z is None else Z)
        return self.check(x, z, "X" if Z is None else "Z", sparse)

    def check(
        self, x: Any, z: Any, name: str, sparse: tuple[bool | None, bool | None] = (None, None)
    ) -> tuple[Any, Any, Any]:
        raw, is_z = matrix_of(z, name, like=sparse[1]), x is z
        if self.input_kind == "vectors":
            x = raw if is_z else matrix_of(x, "X", like=sparse[0])
        else:
            x = (
                bounded(matrix_of(x, "X", like=False), "the Gram matrix")
                if self.input_kind == "gram"
                else _objects(x)
            )
        _same_length(x, raw)
        return x, raw, z


@dataclass(frozen=True)
class InputOptions:
    """What a user asked of the inputs: transformers, standardised columns, and a further column of ones in Z."""

    x_transformer: Any = None
    z_transformer: Any = None
    standardize: bool = True
    fit_intercept: bool = False


@stored
@dataclass(frozen=True)
class Preprocessor:
    """What `fit` learned of the inputs, and the way for queries: `transform`."""

    transforms: InputTransforms
    separate: bool
    z_columns: list[Any] | None
    n_z: int
    z_names: list[str]
    scaling: Scaling
    sparse_x: bool
    sparse_z: bool

    @property
    def n_x(self) -> int:
        """Return the number of columns of X; 0 where the kernel does not take vectors."""
        return self.scaling.x_shift.size

    @property
    def n_weights(self) -> int:
        """Return the number of weights: the columns of Z, and the intercept if there is one."""
        return self.n_z + self.scaling.intercept

    def transform(self, X: Any, Z: Any) -> Queries:
        """Return checked queries in standardised units, and Z as the user knows it."""
        X, Z = unpack(X, Z)
        self._must_be_separate(Z)
        x, raw, _ = self.transforms(X, Z, (self.sparse_x, self.sparse_z))
        self.must_match(x, raw, Z)
        return Queries(*self.scaled(x, raw), raw_Z=raw)

    def _must_be_separate(self, Z: Any) -> None:
        if self.separate and Z is None:
            raise InputError(
                "this model was fitted with a separate Z: give Z= (or an XZ pair) here too"
            )
        if not self.separate and Z is not None:
            raise InputError(
                "this model was fitted without a separate Z: give X alone, or fit with Z="
            )

    def must_match(self, x: Any, raw: Any, Z: Any) -> None:
        """Columns as at fit."""
        self._must_be_separate(Z)
        if (
            self.z_columns is not None
            and (given := _column_names(Z)) is not None
            and given != self.z_columns
        ):
            raise InputError(
                f"Z's feature names differ from those at fit: {given} here, {self.z_columns} then"
            )
        if raw.shape[1] != self.n_z:
            raise InputError(f"Z has {raw.shape[1]} columns here and had {self.n_z} at fit")
        if self.transforms.input_kind == "vectors" and x.shape[1] != self.scaling.x_shift.size:
            raise InputError(
                f"X has {x.shape[1]} features here, expected {self.scaling.x_shift.size} as at fit"
            )

    def scaled_target(self, y: Any, n: int) -> np.ndarray:
        y = self.scaling.y(target_of(y))
        if len(y) != n:
            raise InputError(f"inconsistent numbers of samples: {n} rows of X, {len(y)} of y")
        must_be_moderate(y, "y", standardize=True)
        return y

    def scaled(self, x: Any, raw: Any, standardize: bool = True) -> tuple[Any, Features]:
        """Return checked rows in standardised units."""
        if self.transforms.input_kind == "vectors":
            x = self.scaling.x(x)
            must_be_moderate(x, "X", standardize)
        Z = self.scaling.z(raw)
        must_be_moderate(Z, "Z", standardize)
        return x, Z

    def training(self, x: Any, raw: Any, y: np.ndarray, standardize: bool = True) -> TrainingRows:
        """The same of rows to fit on."""
        y = self.scaling.y(y)
        must_be_moderate(y, "y", standardize)
        return TrainingRows(*self.scaled(x, raw, standardize), y)


def fit_preprocessor(
    X: Any, y: Any, Z: Any, *, input_kind: str = "vectors", options: InputOptions = InputOptions()
) -> tuple[Preprocessor, TrainingRows]:
    """Fit the transformers, check everything, learn the scaling; returns the rows in standardised units, too."""
    X, Z = unpack(X, Z)
    x_transformer, z_transformer = options.x_transformer, options.z_transformer
    if Z is None and z_transformer is None and input_kind != "vectors":
        raise InputError(
            f"this kernel takes {input_kind}: give the readable features as Z= (or a z_transformer)"
        )
    x_transformer, x = _fit_transform("x_transformer", x_transformer, X, y)
    z_transformer, z = _fit_transform("z_transformer", z_transformer, X if Z is None else Z, y)
    transforms = InputTransforms(input_kind, x_transformer, z_transformer)
    x, raw, z = transforms.check(x, z, "X" if Z is None else "Z")
    y = target_of(y)
    if input_kind == "gram":
        if x.shape[0] != x.shape[1] or not symmetric(x):
            raise InputError(
                f'kernel="precomputed" needs a symmetric n x n Gram matrix at fit, got {x.shape}'
            )
        x = x.copy()  # it is kept, and the caller may write to it
    _same_length(x, raw, y)
    vectors = x if input_kind == "vectors" else None
    scaling = Scaling.of(
        vectors, raw, y, standardize=options.standardize, fit_intercept=options.fit_intercept
    )
    made = preprocessor_for(transforms, Z, x, raw, z, scaling)
    return made, made.training(x, raw, y, options.standardize)


def preprocessor_for(
    transforms: InputTransforms, Z: Any, x: Any, raw: Any, z: Any, scaling: Scaling
) -> Preprocessor:
    if scaling.has_units_apart():
        raise InputError(
            "weights, in units of y over those of Z, leave float64: rescale y, or the columns of Z"
        )
    names = _feature_names(z, transforms.z_transformer, raw.shape[1])
    sparse = transforms.input_kind == "vectors" and sp.issparse(x), sp.issparse(raw)
    return Preprocessor(
        transforms, Z is not None, _column_names(Z), raw.shape[1], names, scaling, *sparse
    )


def remember_columns(estimator: Any, X: Any, *, reset: bool) -> None:
    """scikit-learn's n_features_in_ and feature_names_in_, set or compared; lists of objects have none."""
    X, _ = unpack(X, None)
    if reset:
        for name in ("n_features_in_", "feature_names_in_"):
            estimator.__dict__.pop(name, None)
    table = hasattr(X, "shape") or (isinstance(X, list | tuple) and hasattr(_as_rows(X), "shape"))
    if (
        table
        and len(getattr(X, "shape", (0, 0))) == 2
        and (reset or hasattr(estimator, "n_features_in_"))
    ):
        validate_data(estimator, X, reset=reset, skip_check_array=True)


def name_of(y: Any) -> str | None:
    """Of a target: a series' or a column's; of files, y is the name itself."""
    name = y if isinstance(y, str) else getattr(y, "name", None)
    return name if isinstance(name, str) else None


def _column_names(table: Any) -> list[Any] | None:
    return list(table.columns) if hasattr(table, "columns") else None


def unpack(X: Any, Z: Any) -> tuple[Any, Any]:
    if not isinstance(X, XZ):
        return X, Z
    if Z is not None:
        raise InputError("Z is given twice: in the XZ pair and as Z=")
    return X.X, X.Z


def _objects(x: Any) -> list[Any]:
    """The rows of a list, array or frame, as Python objects."""
    return list(np.asarray(x)) if hasattr(x, "iloc") else list(x)


def _same_length(*arrays: Any) -> None:
    lengths = {count_rows(A) for A in arrays}
    if len(lengths) > 1:
        raise InputError(
            f"inconsistent numbers of samples: {', '.join(str(count_rows(A)) for A in arrays)} rows"
        )


# transformers


def _fit_transform(name: str, transformer: Any, A: Any, y: Any) -> tuple[Any, Any]:
    """(fitted transformer, its output). An estimator is cloned; a callable or list of columns is used as it is."""
    if hasattr(transformer, "transform"):
        transformer = clone(transformer)
        if hasattr(transformer, "fit_transform"):
            return transformer, _row_by_row(name, A, transformer.fit_transform(A, y))
        transformer.fit(A, y)
    return transformer, _row_by_row(name, A, _transform(transformer, A))


def _transform_queries(name: str, transformer: Any, A: Any) -> Any:
    """Return what a fitted transformer makes of further rows; one that fails on them is an InputError that names it."""
    try:
        return _row_by_row(name, A, _transform(transformer, A))
    except (GPXError, NotFittedError, MemoryError):
        raise
    except Exception as error:  # a transformer may raise anything
        raise InputError(
            f"{name} failed on these rows ({type(error).__name__}: {error})"
        ) from error


def _row_by_row(name: str, before: Any, after: Any) -> Any:
    """Return `after`, if it has as many rows as what it was made of: predictions belong to the rows that were given."""
    if hasattr(after, "shape") or hasattr(after, "__len__"):
        rows, left = count_rows(before), count_rows(after)
        if rows != left:
            raise InputError(
                f"{name} made {left} rows of {rows}: it must make one of each, so drop rows before fit or predict"
            )
    return after


def _transform(transformer: Any, A: Any) -> Any:
    if transformer is None:
        return A
    if hasattr(transformer, "transform"):
        return transformer.transform(A)
    if callable(transformer):
        return transformer(A)
    if (
        isinstance(transformer, Sequence | np.ndarray)
        and not isinstance(transformer, str | bytes)
        and np.ndim(transformer) == 1
    ):
        return _columns(A, list(transformer))
    raise InputError(
        f"a transformer is an estimator, a callable or a list of columns, got {transformer!r}"
    )


def _columns(A: Any, columns: list[Any]) -> Any:
    try:
        if hasattr(A, "iloc"):
            return (
                A.iloc[:, columns]
                if all(isinstance(c, int | np.integer) for c in columns)
                else A[columns]
            )
        return np.asarray(A)[:, columns]
    except (KeyError, IndexError) as error:
        raise InputError(f"columns {columns} are not all in the input: {error}") from None


def _feature_names(z: Any, transformer: Any, d: int) -> list[str]:
    names: Any = getattr(z, "columns", None)
    if hasattr(transformer, "get_feature_names_out"):
        with suppress(
            AttributeError, ValueError
        ):  # a pipeline may have a step without names to give
            names = transformer.get_feature_names_out()
    elif names is None and isinstance(transformer, Sequence | np.ndarray):
        names = [f"x{column}" for column in transformer]
    return [f"x{k}" for k in range(d)] if names is None else [str(name) for name in names]
