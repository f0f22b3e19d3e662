"""Model files, which are zip archives of one JSON tree and of arrays in npy format.

They are read without pickle and without running code. A file may name the classes of this package
that are declared with `runtime.state.stored`, and the transformers of scikit-learn that are listed
below. A model that needs anything else, such as a function or an estimator of another package, is
refused when it is saved.
"""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import sklearn
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from ..errors import GPXWarning, InputError
from ..runtime.files import atomic_write, read_npy
from ..runtime.state import (
    function_named,
    must,
    must_be_typed,
    stored_by_name,
    stored_by_type,
)
from .checks import must_be_model, must_be_transformer
from .version_1 import translated

# The name of the format, by which a file is recognised.
FORMAT = "gpx_scale model"
# The version of the format that is written. Version 2 has no weights with priors of their own.
VERSION = 3
# The member of the archive with the JSON tree.
TREE = "model.json"
# Whole numbers in a file are smaller than this, because numpy counts in 64 bits.
INTEGER_LIMIT = 2**63
# The argument of a pipeline that is not saved. It names a folder that pickles are read from.
UNSAVED_ARGUMENT = "memory"
# The transformers that a file may name. They are made from their attributes, without calling their
# constructors.
TRANSFORMERS = {
    "sklearn.feature_extraction.text": (
        "CountVectorizer",
        "TfidfVectorizer",
        "TfidfTransformer",
        "HashingVectorizer",
    ),
    "sklearn.feature_extraction": ("DictVectorizer",),
    "sklearn.preprocessing": (
        *(
            "OneHotEncoder",
            "OrdinalEncoder",
            "StandardScaler",
            "MinMaxScaler",
            "MaxAbsScaler",
            "RobustScaler",
            "Normalizer",
        ),
        *("PolynomialFeatures", "PowerTransformer", "QuantileTransformer", "KBinsDiscretizer"),
        "FunctionTransformer",
        "SplineTransformer",
    ),
    "sklearn.decomposition": ("TruncatedSVD", "PCA", "NMF"),
    "sklearn.impute": ("SimpleImputer",),
    "sklearn.feature_selection": ("VarianceThreshold",),
    "sklearn.compose": ("ColumnTransformer", "make_column_selector"),
    "sklearn.pipeline": ("Pipeline", "FeatureUnion"),
}
# The types by which columns of a frame are selected. Those of numpy that have a size are dtypes.
TYPES: dict[str, type] = {
    **{kind.__name__: kind for kind in (object, int, float, bool, str)},
    **{kind.__name__: kind for kind in (np.number, np.integer, np.floating, np.generic)},
}


def write_state(path: Any, state: dict[str, Any]) -> None:
    """Write the attributes of a model to a file, as a whole or not at all.

    An attribute that a file cannot contain raises an InputError that names it.
    """
    writer = _Writer([], {})
    tree = {name: writer.node(value, name) for name, value in state.items()}
    document = {"format": FORMAT, "version": VERSION, "state": tree}
    if writer.has_transformers:
        document["scikit-learn"] = sklearn.__version__
    with atomic_write(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(TREE, json.dumps(document, allow_nan=False))
        for k, array in enumerate(writer.arrays):
            with archive.open(_member(k), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def reason_not_to_save(**parts: Any) -> str | None:
    """Return why a file cannot hold parts of a model, given by name, or None if it can."""
    try:
        for name, part in parts.items():
            _Writer([], {}).node(part, name)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


@dataclass
class _Writer:
    """A converter of values to JSON, which collects arrays and writes each of them once.

    `known` is the position of every array in `arrays`, by its id.
    """

    arrays: list[np.ndarray]
    known: dict[int, int]
    has_transformers: bool = False

    def node(self, value: Any, where: str) -> Any:
        """Return a value as JSON; `where` is its place in the model, for error messages."""
        if value is None or isinstance(
            value, str | bool | np.bool_ | int | np.integer | float | np.floating
        ):
            return _plain(value)
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, list):
            return [self.node(item, f"{where}[{k}]") for k, item in enumerate(value)]
        if (known := stored_by_type(type(value))) is not None:
            kept = known.take(value)
            return {
                "is": type(value).__name__,
                "of": {name: self.node(kept[name], f"{where}.{name}") for name in kept},
            }
        if isinstance(value, tuple) and type(value) is tuple:
            return {"is": "tuple", "of": self.node(list(value), where)}
        if type(value) in (dict, Bunch) or (
            isinstance(value, dict) and type(value).__module__ == "collections"
        ):
            pairs = [
                [self.node(key, where), self.node(item, f"{where}[{key!r}]")]
                for key, item in value.items()
            ]
            return {"is": "Bunch" if isinstance(value, Bunch) else "dict", "of": pairs}
        if isinstance(value, set | frozenset):
            return {"is": "set", "of": self.node(sorted(value), where)}
        if isinstance(value, slice):
            return {
                "is": "slice",
                "of": [self.node(part, where) for part in (value.start, value.stop, value.step)],
            }
        if (tag := _tag_of_name(value)) is not None:
            return {"is": tag, "of": value.__name__}
        if isinstance(value, BSpline):
            parts = [value.t, value.c, value.k, value.extrapolate, value.axis]
            return {"is": "BSpline", "of": self.node(parts, where)}
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return {"is": "dtype", "of": np.dtype(value).name, "type": isinstance(value, type)}
        if sp.issparse(value):
            return self._matrix(value, where)
        if isinstance(value, np.random.RandomState):
            _, *numbers = value.get_state(legacy=True)
            return {"is": "RandomState", "of": self.node(numbers, where)}
        return self._transformer(value, where)

    def _array(self, value: np.ndarray, where: str) -> Any:
        """Return an array as JSON, which has its position among the arrays."""
        if value.dtype == object:
            if value.ndim != 1:
                raise InputError(
                    f"{where} is a table of objects, which a model file cannot hold. Save the "
                    "model with joblib."
                )
            return {"is": "objects", "of": self.node(value.tolist(), where)}
        if id(value) not in self.known:
            self.known[id(value)] = len(self.arrays)
            self.arrays.append(np.asarray(value))
        return {"is": "array", "of": self.known[id(value)]}

    def _matrix(self, value: Any, where: str) -> Any:
        """Return a sparse matrix as JSON, by its three arrays in CSR format."""
        rows = value.tocsr()
        parts = [
            self.node(np.array(part), where) for part in (rows.data, rows.indices, rows.indptr)
        ]
        return {
            "is": "csr",
            "of": parts,
            "shape": list(rows.shape),
            "array": isinstance(value, sp.sparray),
        }

    def _transformer(self, value: Any, where: str) -> Any:
        """Return a transformer of scikit-learn as JSON; anything else is refused."""
        name = type(value).__name__
        module = next((module for module, names in TRANSFORMERS.items() if name in names), None)
        if module is None or getattr(importlib.import_module(module), name) is not type(value):
            what = getattr(value, "__name__", type(value).__name__)
            raise InputError(
                f"{where} is {what!r}, which a model file cannot hold: files have numbers and "
                "names, and no code. Apply it before fit, use a kernel of gpx_scale or a common "
                "transformer of scikit-learn (such as StandardScaler, OneHotEncoder, "
                "ColumnTransformer or TfidfVectorizer), declare a function by "
                "gpx_scale.runtime.state.stored_function, or save the model with joblib."
            )
        self.has_transformers = True
        kept = {key: None if key == UNSAVED_ARGUMENT else item for key, item in vars(value).items()}
        return {
            "is": f"{module}.{name}",
            "of": {key: self.node(item, f"{where}.{key}") for key, item in kept.items()},
        }


def _tag_of_name(value: Any) -> str | None:
    """Return the tag of a type or a function that a file names, or None for other values."""
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    if TYPES.get(name) is value:
        return "type"
    if isinstance(value, np.ufunc) and getattr(np, name, None) is value:
        return "ufunc"
    return "function" if function_named(name) is value else None


def _plain(value: Any) -> Any:
    """Return None, a text or a number as JSON; JSON has no infinity and no NaN."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else {"is": "float", "of": str(float(value))}
    return value


def _member(k: int) -> str:
    """Return the name of an array in the archive."""
    return f"arrays/{k}.npy"


def read_state(path: Any) -> dict[str, Any]:
    """Return the attributes that `write_state` wrote to a file.

    Any other file raises an InputError that says what was found in it.
    """
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        if TREE not in archive.namelist():
            raise InputError(
                f"{str(path)!r} is a zip file, but not a saved model, because it has no {TREE}. "
                "Name a file that was written by save."
            )
        # A compressed file is refused, because a small one could expand to any size.
        must(
            {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED},
            "it is compressed",
        )
        document = json.loads(archive.read(TREE).decode("utf-8"))
        must(document.get("format") == FORMAT, "it does not say that it is a model")
        version = document["version"]
        if version not in (1, 2, VERSION):
            raise InputError(
                f"{str(path)!r} has format version {version}, and this gpx_scale reads versions 1 "
                f"to {VERSION}. Update gpx_scale."
            )
        written_with = document.get("scikit-learn", sklearn.__version__)
        if written_with != sklearn.__version__:
            warnings.warn(
                f"{str(path)!r} has transformers of scikit-learn {written_with}, and this is "
                f"scikit-learn {sklearn.__version__}. They may give other results. Install "
                f"scikit-learn {written_with}, or fit the model again.",
                GPXWarning,
                stacklevel=3,
            )
        reader = _Reader(archive, {})
        state = translated(document["state"]) if version == 1 else document["state"]
        # A kernel has an infinite theta2 where it does not use a column. `must_be_model` compares
        # these two with the posterior.
        lenient = replace(reader, finite=False)
        may_be_infinite = ("hyperparameters_", "fit_report_")
        return {
            name: (lenient if name in may_be_infinite else reader).value(node)
            for name, node in state.items()
        }


def check_model(state: dict[str, Any], parameters: set[str], path: Any) -> None:
    """Raise an InputError unless these are the attributes of a fitted `GPXRegressor`.

    `parameters` are the names of its constructor's arguments.
    """
    with _damage_named(path):
        must_be_model(state, parameters)


@contextmanager
def _damage_named(path: Any) -> Iterator[None]:
    """Turn any error of reading a damaged file into an InputError that names the file."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except zipfile.BadZipFile as error:
        what = str(error).removesuffix(".")
        raise InputError(
            f"{str(path)!r} is not a saved model, or is damaged: {what}. Load another copy of it."
        ) from error
    except Exception as error:  # A damaged file may raise anything.
        if isinstance(error, InputError) and str(path) in str(error):
            raise
        what = str(error).removesuffix(".")
        if not isinstance(error, InputError) and type(error) is not ValueError:
            what = f"{type(error).__name__}: {what}"
        raise InputError(f"{str(path)!r} is damaged: {what}. Load another copy of it.") from error


@dataclass
class _Reader:
    """A converter of JSON to values, which reads each array once.

    If `finite` is true, an array with NaN or infinity is refused. Those of transformers may have
    them.
    """

    archive: zipfile.ZipFile
    arrays: dict[int, np.ndarray]
    finite: bool = True

    def value(self, node: Any) -> Any:
        """Return the value of a node of the JSON tree."""
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            must(
                not isinstance(node, int) or abs(node) < INTEGER_LIMIT,
                "it has a whole number that is too large",
            )
            return node
        name, of = node["is"], node["of"]
        if (known := stored_by_name(name)) is not None:
            made = known.make(**{key: self.value(item) for key, item in of.items()})
            must_be_typed(made)
            return made
        if name in ("dict", "Bunch"):
            pairs = {self.value(key): self.value(item) for key, item in of}
            return Bunch(**pairs) if name == "Bunch" else pairs
        if name == "dtype":
            return np.dtype(of).type if node["type"] else np.dtype(of)
        if name == "array":
            must(type(of) is int, "the position of an array is not a whole number")
            return self._array(of)
        if name == "csr":
            data, indices, pointers = map(self.value, of)
            made = (sp.csr_array if node["array"] else sp.csr_matrix)(
                (data, indices, pointers), shape=node["shape"]
            )
            made.check_format(full_check=True)
            return made
        if name in CONVERTERS:
            return CONVERTERS[name](self.value(of))
        return self._transformer(name, of)

    def _array(self, k: int) -> np.ndarray:
        """Return an array of the archive by its position."""
        if k not in self.arrays:
            info = self.archive.getinfo(_member(k))
            with self.archive.open(info) as file:
                array = read_npy(file, info.file_size)
            # An array may have -inf, which is the logarithm of sigma_w = 0.
            must(
                not self.finite or array.dtype.kind != "f" or (array < np.inf).all(),
                "an array has NaN or infinity",
            )
            self.arrays[k] = array
        return self.arrays[k]

    def _transformer(self, name: str, of: dict[str, Any]) -> Any:
        """Return a transformer of scikit-learn, made from its attributes."""
        module, _, kind = name.rpartition(".")
        must(
            kind in TRANSFORMERS.get(module, ()),
            f"it names {name!r}, which is not among the classes that a model may hold",
        )
        made: BaseEstimator = object.__new__(getattr(importlib.import_module(module), kind))
        inside = replace(self, finite=False)
        # An argument that the version which wrote the file did not have takes its default.
        defaults = inspect.signature(type(made)).parameters.values()
        made.__dict__.update(
            {one.name: one.default for one in defaults if one.default is not one.empty}
        )
        made.__dict__.update(
            {
                key: None if key == UNSAVED_ARGUMENT else inside.value(item)
                for key, item in of.items()
            }
        )
        must_be_transformer(made)
        return made


def _random_state(numbers: list[Any]) -> np.random.RandomState:
    """Return the random state with these numbers."""
    state = np.random.RandomState()
    state.set_state(("MT19937", *numbers))
    return state


def _objects(items: list[Any]) -> np.ndarray:
    """Return an array of objects, one for each item."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _type(name: Any) -> type:
    """Return a type by which columns are selected."""
    must(isinstance(name, str) and name in TYPES, f"it names the type {name!r}, which is unknown")
    return TYPES[name]


def _ufunc(name: Any) -> np.ufunc:
    """Return a function of numpy that acts on each number."""
    found = getattr(np, name, None) if isinstance(name, str) else None
    must(isinstance(found, np.ufunc), f"it names {name!r}, which is no ufunc of numpy")
    return found  # type: ignore[return-value]


def _function(name: Any) -> Callable[..., Any]:
    """Return a function that was declared, or raise an error that says how to declare it."""
    found = function_named(name)
    must(
        found is not None,
        f"it names the function {name!r}, which is not declared here: import the module that "
        "declares it by stored_function",
    )
    return found  # type: ignore[return-value]


def _spline(of: list[Any]) -> BSpline:
    """Return a spline with these knots, coefficients, degree, extrapolation and axis."""
    knots, coefficients, degree, extrapolate, axis = of
    return BSpline(knots, coefficients, degree, extrapolate=extrapolate, axis=axis)


# Functions that make values of a kind from what a node contains.
CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "slice": lambda of: slice(*of),
    "float": float,
    "objects": _objects,
    "RandomState": _random_state,
    "type": _type,
    "ufunc": _ufunc,
    "function": _function,
    "BSpline": _spline,
}
