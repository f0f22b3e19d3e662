"""X, y and Z are checked once, where they enter, and brought into standardised units.

Below this module, nobody checks shape, dtype and finiteness again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from ..errors import GPXError, InputError
from ..runtime.state import fields_of, must, must_be_numbers, stored
from .checks import bounded, matrix_of, must_be_features, must_be_moderate, symmetric, target_of
from .features import Features, stacked
from .frame_columns import is_frame
from .frame_encoder import FrameEncoder, encoder_for, names_of
from .input_pair import as_rows, count_rows, unpack
from .row_columns import NO_COLUMNS, RowColumns
from .scaling import Scaling
from .table_files import listed

# A report names at most this many columns that were left out.
MAX_NAMED_COLUMNS = 10


def _input_rows(x: Any, Z: Features, columns: RowColumns = NO_COLUMNS) -> InputRows:
    """Return rows that were read from a file, or raise a ValueError if they do not fit."""
    _must_be_as_long(x, Z)
    return InputRows(x, Z, columns=columns)


def _training_rows(
    x: Any, Z: Features, y: np.ndarray, columns: RowColumns = NO_COLUMNS
) -> TrainingRows:
    """Return training rows that were read from a file, or raise a ValueError."""
    _must_be_as_long(x, Z, y)
    return TrainingRows(x, Z, y, columns=columns)


def _fields_of_rows(rows: Any) -> dict[str, Any]:
    """Return what a file holds of rows: columns only if there are any."""
    found = fields_of(rows)
    return found if rows.columns else {k: v for k, v in found.items() if k != "columns"}


def _must_be_as_long(x: Any, *others: Any) -> None:
    """Raise a ValueError unless all have the same number of rows."""
    must({len(x)} == {len(other) for other in others}, "x, y and Z have different lengths")


@stored(take=_fields_of_rows, make=_input_rows)
@dataclass(frozen=True)
class InputRows:
    """Checked rows in standardised units.

    x has n rows in the form that the kernel takes;  Z is (n, d). `columns` has what else is known
    of each row.
    """

    x: Any
    Z: Features
    columns: RowColumns = field(default=NO_COLUMNS, kw_only=True)

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, rows: Any) -> InputRows:
        """Return the selected rows."""
        return InputRows(self.x[rows], self.Z[rows], columns=self.columns[rows])

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        """Raise a ValueError unless these rows, read from a file, fit the rest of a model.

        `n_train` is the number of columns that a Gram matrix must have, if it is known.
        """
        must_be_features(self.Z, (len(self.Z), preprocessor.n_weights), "Z")
        alike = self.Z.is_sparse == preprocessor.sparse_z
        must(alike, "Z is sparse in one place and dense in another")
        kernel.must_fit_input(self.x, len(self.Z), preprocessor, n_train)
        self.columns.must_fit(len(self.Z))


@stored(take=_fields_of_rows, make=_training_rows)
@dataclass(frozen=True)
class TrainingRows(InputRows):
    """Checked rows in standardised units with their targets y (n,)."""

    y: np.ndarray

    in_memory: ClassVar[bool] = True

    @property
    def n_weights(self) -> int:
        """Return the number of weights, which is that of the columns of Z."""
        count: int = self.Z.shape[1]
        return count

    def __getitem__(self, rows: Any) -> TrainingRows:
        return TrainingRows(self.x[rows], self.Z[rows], self.y[rows], columns=self.columns[rows])

    def with_rows(self, more: TrainingRows) -> TrainingRows:
        """Return these rows and others after them, of which x are vectors."""
        x = [self.x, more.x]
        both = stacked(x) if isinstance(self.x, Features) else np.concatenate(x)
        y, columns = np.concatenate([self.y, more.y]), self.columns.with_rows(more.columns)
        return TrainingRows(both, stacked([self.Z, more.Z]), y, columns=columns)

    def with_intercept(self) -> TrainingRows:
        """Return these rows with the column of an intercept in Z;  O(n d)."""
        return replace(self, Z=self.Z.with_ones())

    def must_fit(self, kernel: Any, preprocessor: Preprocessor, n_train: int | None = None) -> None:
        super().must_fit(kernel, preprocessor, n_train)
        must_be_numbers(self.y, (len(self.Z),), "y")
        must_be_moderate(self.y, "y", standardize=True)


@dataclass(frozen=True)
class Queries(InputRows):
    """Rows to predict and explain. `raw_Z` is their Z in the user's units.

    If `own` is true, they are the training rows, and their own weights w_i (which include the
    noise of the weights) are asked for.
    """

    raw_Z: Any = None
    own: bool = False


def _input_transforms(input_kind: str, x_transformer: Any, z_transformer: Any) -> InputTransforms:
    """Return transformers that were read from a file, of which equal encoders become one."""
    if isinstance(x_transformer, FrameEncoder) and x_transformer.is_like(z_transformer):
        z_transformer = x_transformer
    return InputTransforms(input_kind, x_transformer, z_transformer)


@stored(make=_input_transforms)
@dataclass(frozen=True)
class InputTransforms:
    """The fitted transformers of X and Z, and the checks of their results.

    `input_kind` is what the kernel takes: "vectors", "gram" (a Gram matrix) or "objects". If x and
    z are made of X in the same way, both transformers are the same object or None.
    """

    input_kind: str
    x_transformer: Any
    z_transformer: Any

    @property
    def are_alike(self) -> bool:
        """Return whether x and z are the same columns, if both are made of X."""
        return self.x_transformer is self.z_transformer

    @property
    def encoders(self) -> list[FrameEncoder]:
        """Return the encoders of frames, each of them once."""
        some = [self.x_transformer, *([] if self.are_alike else [self.z_transformer])]
        return [one for one in some if isinstance(one, FrameEncoder)]

    def __call__(
        self, X: Any, Z: Any, sparse: tuple[bool | None, bool | None] = (None, None)
    ) -> tuple[Any, Any, Any]:
        """Return x in the form that the kernel takes, Z as a checked table, and Z with its names.

        All are in the user's units. `sparse` says whether x and Z must be sparse, with None for
        both forms.
        """
        x = z = _transform_queries("x_transformer", self.x_transformer, X)
        if Z is not None or not self.are_alike:
            z = _transform_queries("z_transformer", self.z_transformer, X if Z is None else Z)
        return self.check(x, z, "X" if Z is None else "Z", sparse)

    def check(
        self, x: Any, z: Any, name: str, sparse: tuple[bool | None, bool | None] = (None, None)
    ) -> tuple[Any, Any, Any]:
        """Return x, Z and Z with its names, as `__call__` does, from transformed inputs.

        `name` is what messages call Z.
        """
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
    """The arguments of the estimator that concern the inputs.

    If `standardize` is true, columns are standardised, and y if `standardizes_target` is, too. If
    `fit_intercept` is true, a column of ones is added to Z. If `encode` is true, the columns of
    data frames are encoded as numbers; `missing` says what becomes of their missing values.
    """

    x_transformer: Any = None
    z_transformer: Any = None
    standardize: bool = True
    fit_intercept: bool = False
    standardizes_target: bool = True
    encode: bool = False
    missing: str = "indicator"

    def transformers(self, X: Any, Z: Any, input_kind: str) -> tuple[Any, Any]:
        """Return the transformers of x and z, which for frames may be encoders."""
        x, z = self.x_transformer, self.z_transformer
        if not self.encode:
            return x, z
        of_x = encoder_for(X, x, self.missing) if input_kind == "vectors" else None
        of_z = encoder_for(X if Z is None else Z, z, self.missing, keep_constants=Z is not None)
        if of_x is not None and of_x.is_like(of_z):
            of_z = of_x
        return (x if of_x is None else of_x), (z if of_z is None else of_z)


@stored
@dataclass(frozen=True)
class Preprocessor:
    """The steps from the user's inputs to checked rows in standardised units, as fitted.

    separate : whether Z was given apart from X.
    z_columns : the names of the columns of that Z, or None if it had none.
    n_z, z_names : the number and the names of the columns of Z after its transformer.
    sparse_x, sparse_z : whether X and Z are sparse.
    """

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
        """Return the number of columns of X, or 0 if the kernel does not take vectors."""
        return self.scaling.x_shift.size

    @property
    def n_weights(self) -> int:
        """Return the number of weights: the columns of Z, and the intercept if there is one."""
        return self.n_z + self.scaling.intercept

    @property
    def z_groups(self) -> dict[str, list[int]]:
        """The columns of Z that come from one column of a frame, by the name of that column.

        The values are the numbers of columns of Z: the levels of a category, the parts of a date,
        and the indicator of missing values. A column of a frame that makes one column of Z is not
        in it, and it is empty if Z was not encoded.
        """
        encoder = self.transforms.z_transformer
        return encoder.z_groups if isinstance(encoder, FrameEncoder) else {}

    @property
    def z_categories(self) -> list[str]:
        """The names of the columns of a frame of which Z has the levels."""
        encoder = self.transforms.z_transformer
        return encoder.categories if isinstance(encoder, FrameEncoder) else []

    @property
    def notes(self) -> list[str]:
        """Return what a report of the fit says about the columns."""
        left_out = [name for one in self.transforms.encoders for name in one.left_out_]
        if not left_out:
            return []
        some = listed(list(dict.fromkeys(left_out)), MAX_NAMED_COLUMNS)
        return [f"left out, because they are constant or without values: {some}"]

    def with_intercept(self) -> Preprocessor:
        """Return the preprocessor that also adds the column of an intercept to Z."""
        return replace(self, scaling=replace(self.scaling, intercept=True))

    def transform(self, X: Any, Z: Any) -> Queries:
        """Return checked queries in standardised units."""
        X, Z = unpack(X, Z)
        self._must_be_separate(Z)
        x, raw, _ = self.transforms(X, Z, (self.sparse_x, self.sparse_z))
        self.must_match(x, raw, Z)
        return Queries(*self.scaled(x, raw), raw_Z=raw)

    def _must_be_separate(self, Z: Any) -> None:
        """Raise an InputError if Z was given at fit but not here, or here but not at fit."""
        if self.separate and Z is None:
            raise InputError(
                "This model was fitted with a separate Z. Give Z= (or an XZ pair) here, too."
            )
        if not self.separate and Z is not None:
            raise InputError(
                "This model was fitted without a separate Z. Give X alone, or fit with Z=."
            )

    def must_match(self, x: Any, raw: Any, Z: Any) -> None:
        """Raise an InputError unless the columns of X and Z are those that were fitted."""
        self._must_be_separate(Z)
        if (
            self.z_columns is not None
            and (given := _column_names(Z)) is not None
            and given != self.z_columns
        ):
            raise InputError(
                f"The feature names of Z differ from those at fit: they are {given} here, and "
                f"were {self.z_columns} then. Give the columns of Z under those names, in that "
                "order."
            )
        if raw.shape[1] != self.n_z:
            raise InputError(
                f"Z has {raw.shape[1]} columns here and had {self.n_z} at fit. Give the same "
                "columns as at fit."
            )
        if self.transforms.input_kind == "vectors" and x.shape[1] != self.scaling.x_shift.size:
            raise InputError(
                f"X has {x.shape[1]} features here, but {self.scaling.x_shift.size} features are "
                "expected. Give the same columns as at fit."
            )

    def scaled_target(self, y: Any, n: int) -> np.ndarray:
        """Return the checked targets of n rows in standardised units;  (n,)."""
        target = self.scaling.y(target_of(y))
        if len(target) != n:
            raise InputError(
                f"X and y have inconsistent numbers of samples: {n} rows of X, {len(target)} of y. "
                "Give one y per row of X."
            )
        must_be_moderate(target, "y", standardize=True)
        return target

    def scaled(self, x: Any, raw: Any, standardize: bool = True) -> tuple[Any, Features]:
        """Return x and Z of checked rows in standardised units."""
        if self.transforms.input_kind == "vectors":
            x = self.scaling.x(x)
            must_be_moderate(x, "X", standardize)
        Z = self.scaling.z(raw)
        must_be_moderate(Z, "Z", standardize)
        return x, Z

    def training(self, x: Any, raw: Any, y: np.ndarray, standardize: bool = True) -> TrainingRows:
        """Return checked training rows in standardised units."""
        y = self.scaling.y(y)
        must_be_moderate(y, "y", standardize)
        return TrainingRows(*self.scaled(x, raw, standardize), y)


def fit_preprocessor(
    X: Any, y: Any, Z: Any, *, input_kind: str = "vectors", options: InputOptions = InputOptions()
) -> tuple[Preprocessor, TrainingRows]:
    """Fit the transformers and the scaling, and return them with the rows in standardised units."""
    X, Z = unpack(X, Z)
    x_transformer, z_transformer = options.transformers(X, Z, input_kind)
    if Z is None and z_transformer is None and input_kind != "vectors":
        raise InputError(
            "This kernel does not take vectors, so X has no readable columns. Give the readable "
            "features as Z=, or a z_transformer that makes them of X."
        )
    are_alike = Z is None and x_transformer is z_transformer
    x_transformer, x = _fit_transform("x_transformer", x_transformer, X, y)
    if are_alike:
        z_transformer, z = x_transformer, x
    else:
        z_transformer, z = _fit_transform("z_transformer", z_transformer, X if Z is None else Z, y)
    transforms = InputTransforms(input_kind, x_transformer, z_transformer)
    x, raw, z = transforms.check(x, z, "X" if Z is None else "Z")
    y = target_of(y)
    if input_kind == "gram":
        if x.shape[0] != x.shape[1] or not symmetric(x):
            raise InputError(
                'kernel="precomputed" needs a symmetric n x n Gram matrix at fit, but got the '
                f"shape {x.shape}."
            )
        # The model keeps the Gram matrix, and the caller may write to theirs.
        x = x.copy()
    _same_length(x, raw, y)
    vectors = x if input_kind == "vectors" else None
    scaling = Scaling.of(
        vectors, raw, y, standardize=options.standardize, fit_intercept=options.fit_intercept
    )
    if not options.standardizes_target:
        scaling = replace(scaling, y_shift=0.0, y_scale=1.0)
    made = preprocessor_for(transforms, Z, x, raw, z, scaling)
    return made, made.training(x, raw, y, options.standardize)


def preprocessor_for(
    transforms: InputTransforms, Z: Any, x: Any, raw: Any, z: Any, scaling: Scaling
) -> Preprocessor:
    """Return the preprocessor of rows whose scaling is known.

    Z is what the user gave, z has the names of its columns, and raw is the checked table.
    """
    if scaling.has_units_apart():
        raise InputError(
            "Weights, in units of y over those of Z, would leave float64. Rescale y, or the "
            "columns of Z."
        )
    names = _feature_names(z, transforms.z_transformer, raw.shape[1])
    sparse = transforms.input_kind == "vectors" and sp.issparse(x), sp.issparse(raw)
    return Preprocessor(
        transforms, Z is not None, _column_names(Z), raw.shape[1], names, scaling, *sparse
    )


def remember_columns(estimator: Any, X: Any, *, reset: bool) -> None:
    """Set scikit-learn's n_features_in_ and feature_names_in_, or compare X with them.

    They are set if `reset` is true. Lists of objects have neither.
    """
    X, _ = unpack(X, None)
    if is_frame(X):
        names_of(X)
    if reset:
        for name in ("n_features_in_", "feature_names_in_"):
            estimator.__dict__.pop(name, None)
    table = hasattr(X, "shape") or (isinstance(X, list | tuple) and hasattr(as_rows(X), "shape"))
    if (
        table
        and len(getattr(X, "shape", (0, 0))) == 2
        and (reset or hasattr(estimator, "n_features_in_"))
    ):
        validate_data(estimator, X, reset=reset, skip_check_array=True)


def name_of(y: Any) -> str | None:
    """Return the name of a target, or None.

    A series has a name. If rows are read from files, y is the name of a column itself.
    """
    name = y if isinstance(y, str) else getattr(y, "name", None)
    return name if isinstance(name, str) else None


def _column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a data frame, or None for other tables."""
    return list(table.columns) if hasattr(table, "columns") else None


def _objects(x: Any) -> list[Any]:
    """Return the rows of a list, array or frame as Python objects."""
    return list(np.asarray(x)) if hasattr(x, "iloc") else list(x)


def _same_length(*arrays: Any) -> None:
    """Raise an InputError unless all have the same number of rows."""
    lengths = [count_rows(A) for A in arrays]
    if len(set(lengths)) > 1:
        raise InputError(
            f"X, y and Z have inconsistent numbers of samples: {', '.join(map(str, lengths))} "
            "rows. Give the same number of rows of each."
        )


def _fit_transform(name: str, transformer: Any, A: Any, y: Any) -> tuple[Any, Any]:
    """Return a fitted transformer and its output.

    An estimator is cloned. A function or a list of columns is used as it is.
    """
    if hasattr(transformer, "transform"):
        transformer = clone(transformer)
        if hasattr(transformer, "fit_transform"):
            return transformer, _row_by_row(name, A, transformer.fit_transform(A, y))
        transformer.fit(A, y)
    return transformer, _row_by_row(name, A, _transform(transformer, A))


def _transform_queries(name: str, transformer: Any, A: Any) -> Any:
    """Return the output of a fitted transformer, or raise an InputError that names it."""
    try:
        return _row_by_row(name, A, _transform(transformer, A))
    except (GPXError, NotFittedError, MemoryError):
        raise
    except Exception as error:
        # A transformer may raise any error.
        raise InputError(
            f"{name} failed on these rows ({type(error).__name__}: {error})."
        ) from error


def _row_by_row(name: str, before: Any, after: Any) -> Any:
    """Return the output of a transformer, or raise an InputError if its number of rows differs.

    Every prediction belongs to one row that was given.
    """
    if hasattr(after, "shape") or hasattr(after, "__len__"):
        rows, left = count_rows(before), count_rows(after)
        if rows != left:
            raise InputError(
                f"{name} made {left} rows of {rows}, but must make one row of each. Drop rows "
                "before fit or predict instead."
            )
    return after


def _transform(transformer: Any, A: Any) -> Any:
    """Apply a fitted estimator, a function or a list of columns; None changes nothing."""
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
        f"The transformer {transformer!r} is not valid. Give an estimator, a function or a list of "
        "columns."
    )


def _columns(A: Any, columns: list[Any]) -> Any:
    """Return these columns of a table, by position, or by name if it is a data frame."""
    try:
        if hasattr(A, "iloc"):
            return (
                A.iloc[:, columns]
                if all(isinstance(c, int | np.integer) for c in columns)
                else A[columns]
            )
        return np.asarray(A)[:, columns]
    except (KeyError, IndexError) as error:
        raise InputError(
            f"Not all of the columns {columns} are in the input: {error}. Give an input that has "
            "them, or name columns that it has."
        ) from None


def _feature_names(z: Any, transformer: Any, d: int) -> list[str]:
    """Return names of the d columns of Z: from its transformer or its own, or x0, x1, ..."""
    names: Any = getattr(z, "columns", None)
    if hasattr(transformer, "get_feature_names_out"):
        # A pipeline may have a step that cannot give names.
        with suppress(AttributeError, ValueError):
            names = transformer.get_feature_names_out()
    elif names is None and isinstance(transformer, Sequence | np.ndarray):
        names = [f"x{column}" for column in transformer]
    return [f"x{k}" for k in range(d)] if names is None else [str(name) for name in names]
