"""Plain state to a file and back: a zip of one JSON tree and of arrays as npy, read without pickle and without running code.

A file may name the classes of ours that declare it with `runtime.state.stored`, and the
transformers of scikit-learn that are listed below. What a model needs and none of them can say (a
function, an estimator of another package) is refused when it is saved.
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
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from ..errors import GPXWarning, InputError
from ..runtime.files import atomic_write, read_npy
from ..runtime.state import must, must_be_typed, stored_by_name, stored_by_type
from .checks import must_be_model, must_be_transformer
from .version_1 import translated

FORMAT, VERSION = "gpx_scale model", 2
TREE = "model.json"
LARGEST_INTEGER = 2**63  # what numpy and zip files count by

# Transformers: made without their constructors, of attributes that this file's rules can say. A pipeline's `memory` is a
# folder that pickles are read from, and stays behind.
LEFT_BEHIND = "memory"
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
    ),
    "sklearn.decomposition": ("TruncatedSVD", "PCA", "NMF"),
    "sklearn.impute": ("SimpleImputer",),
    "sklearn.feature_selection": ("VarianceThreshold",),
    "sklearn.compose": ("ColumnTransformer",),
    "sklearn.pipeline": ("Pipeline", "FeatureUnion"),
}


# to a file


def write_state(path: Any, state: dict[str, Any]) -> None:
    """`state` as a file, whole or not at all; what cannot be said in it is named."""
    writer = _Writer([], {})
    tree = {name: writer.node(value, name) for name, value in state.items()}
    document = {"format": FORMAT, "version": VERSION, "state": tree}
    if writer.borrowed:
        document["scikit-learn"] = sklearn.__version__
    with atomic_write(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(TREE, json.dumps(document, allow_nan=False))
        for k, array in enumerate(writer.arrays):
            with archive.open(_member(k), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


@dataclass
class _Writer:
    """Collects arrays, each once however often it is met."""

    arrays: list[np.ndarray]
    known: dict[int, int]
    borrowed: bool = False

    def node(self, value: Any, where: str) -> Any:
        """JSON of anything that a model is made of; `where` is for messages."""
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
        if value.dtype == object:
            if value.ndim != 1:
                raise InputError(f"{where} is a table of objects, which a model file cannot hold")
            return {"is": "objects", "of": self.node(value.tolist(), where)}
        if id(value) not in self.known:
            self.known[id(value)] = len(self.arrays)
            self.arrays.append(np.asarray(value))
        return {"is": "array", "of": self.known[id(value)]}

    def _matrix(self, value: Any, where: str) -> Any:
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
        name = type(value).__name__
        module = next((module for module, names in TRANSFORMERS.items() if name in names), None)
        if module is None or getattr(importlib.import_module(module), name) is not type(value):
            what = getattr(value, "__name__", type(value).__name__)
            raise InputError(
                f"{where} is {what!r}, which a model file cannot hold: it has numbers and names, and no code. Apply it before "
                "fit, use one of the transformers in docs/models.md or a kernel of gpx_scale, or save with joblib"
            )
        self.borrowed = True
        kept = {key: None if key == LEFT_BEHIND else item for key, item in vars(value).items()}
        return {
            "is": f"{module}.{name}",
            "of": {key: self.node(item, f"{where}.{key}") for key, item in kept.items()},
        }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else {"is": "float", "of": str(float(value))}
    return value


def _member(k: int) -> str:
    return f"arrays/{k}.npy"


# from a file


def read_state(path: Any) -> dict[str, Any]:
    """What `write_state` wrote; anything else is refused with what was seen."""
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        if TREE not in archive.namelist():
            raise InputError(
                f"{str(path)!r} is a zip file, but not a saved model: it has no {TREE}"
            )
        # what is stored as it is: a small file cannot ask for much memory
        must(
            {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED},
            "it is compressed",
        )
        document = json.loads(archive.read(TREE).decode("utf-8"))
        must(document.get("format") == FORMAT, "it does not say that it is a model")
        version = document["version"]
        if version not in (1, VERSION):
            raise InputError(
                f"{str(path)!r} has format version {version}, this gpx_scale reads versions 1 to {VERSION}: update gpx_scale, "
                "or save the model again with the one that wrote it"
            )
        written_with = document.get("scikit-learn", sklearn.__version__)
        if written_with != sklearn.__version__:
            warnings.warn(
                f"{str(path)!r} holds transformers of scikit-learn {written_with}, this is {sklearn.__version__}: they may "
                "answer differently",
                GPXWarning,
                stacklevel=3,
            )
        reader = _Reader(archive, {})
        state = translated(document["state"]) if version == 1 else document["state"]
        return {name: reader.value(node) for name, node in state.items()}


def check_model(state: dict[str, Any], parameters: set[str], path: Any) -> None:
    """Refuse what is not a whole model of `GPXRegressor`; `parameters` are the names of its arguments."""
    with _damage_named(path):
        must_be_model(state, parameters)


@contextmanager
def _damage_named(path: Any) -> Iterator[None]:
    """Whatever a file that is not whole makes of reading it is one clear error that names the file."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except zipfile.BadZipFile as error:
        raise InputError(f"{str(path)!r} is not a saved model, or is damaged: {error}") from error
    except Exception as error:  # a file may hold anything
        if isinstance(error, InputError) and str(path) in str(error):
            raise
        what = (
            error
            if isinstance(error, InputError) or type(error) is ValueError
            else f"{type(error).__name__}: {error}"
        )
        raise InputError(f"{str(path)!r} is damaged: {what}") from error


@dataclass
class _Reader:
    archive: zipfile.ZipFile
    arrays: dict[int, np.ndarray]
    finite: bool = True  # our own arrays are; a transformer's may hold NaN

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            must(
                not isinstance(node, int) or abs(node) < LARGEST_INTEGER,
                "a whole number is too large",
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
            must(type(of) is int, "an array has no number")
            return self._array(of)
        if name == "csr":
            data, indices, pointers = map(self.value, of)
            made = (sp.csr_array if node["array"] else sp.csr_matrix)(
                (data, indices, pointers), shape=node["shape"]
            )
            made.check_format(full_check=True)
            return made
        if name in SIMPLE:
            return SIMPLE[name](self.value(of))
        return self._transformer(name, of)

    def _array(self, k: int) -> np.ndarray:
        if k not in self.arrays:
            info = self.archive.getinfo(_member(k))
            with self.archive.open(info) as file:
                array = read_npy(file, info.file_size)
            # -inf is the logarithm of sigma_w = 0
            must(
                not self.finite or array.dtype.kind != "f" or (array < np.inf).all(),
                "an array holds what is no number",
            )
            self.arrays[k] = array
        return self.arrays[k]

    def _transformer(self, name: str, of: dict[str, Any]) -> Any:
        module, _, kind = name.rpartition(".")
        must(
            kind in TRANSFORMERS.get(module, ()),
            f"it names {name!r}, which is not among what a model may hold",
        )
        made: BaseEstimator = object.__new__(getattr(importlib.import_module(module), kind))
        inside = replace(self, finite=False)
        defaults = inspect.signature(
            type(made)
        ).parameters.values()  # of arguments that another version did not have
        made.__dict__.update(
            {one.name: one.default for one in defaults if one.default is not one.empty}
        )
        made.__dict__.update(
            {key: None if key == LEFT_BEHIND else inside.value(item) for key, item in of.items()}
        )
        must_be_transformer(made)
        return made


def _random_state(numbers: list[Any]) -> np.random.RandomState:
    state = np.random.RandomState()
    state.set_state(("MT19937", *numbers))
    return state


def _objects(items: list[Any]) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


SIMPLE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "slice": lambda of: slice(*of),
    "float": float,
    "objects": _objects,
    "RandomState": _random_state,
}
