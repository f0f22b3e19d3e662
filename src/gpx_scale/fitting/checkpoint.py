"""Checkpoints, which are files with the best hyperparameters of a running fit.

A later fit of the same model to the same data resumes from such a file. The file contains arrays
of numbers and a fingerprint of the data and the model. It is replaced as a whole. Everything that
is read from it is checked, because compiled loops rely on the sizes of these arrays.
"""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..data.features import DenseFeatures
from ..data.inputs import InputRows
from ..data.row_source import RowSource
from ..errors import GPXWarning, InputError
from ..kernels.kernel import Kernel
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.files import atomic_write, digest, path_of, read_npy
from .model_choice import ModelChoice, OpenModel

# The result of a function that makes something of the arrays of a file.
Made = TypeVar("Made")

# The version of the file format.
VERSION = 1
# The arrays that every checkpoint has.
REQUIRED_ARRAYS = {"theta", "finished", "version", "fingerprint"}
# The further arrays of a checkpoint with dense inducing points.
POINT_ARRAYS = {"x", "z"}
# The further array of a checkpoint of a fit that has chosen its model.
CHOICE_ARRAY = "choice"
# The logarithm of a hyperparameter may be outside of its bounds by this much, which is rounding.
BOUND_ROUNDING_LOG = 1e-9


@dataclass(frozen=True)
class State:
    """The state of a search: its best hyperparameters, and whether it has ended.

    `theta` are the logarithms of the hyperparameters. The inducing points, if there are any, are
    written to a file if they are dense.
    """

    theta: np.ndarray
    finished: bool
    points: InputRows | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """Return what a file has of the state, as arrays by name."""
        found: dict[str, Any] = {"theta": self.theta, "finished": self.finished}
        points = self.points
        if points is not None and not points.Z.is_sparse and isinstance(points.x, np.ndarray):
            found |= {"x": points.x, "z": points.Z.to_dense()}
        return found


def checked_path(checkpoint: Any) -> Path:
    """Return the path of a checkpoint that may be read and written.

    Anything else is an InputError that names it.
    """
    path = path_of(checkpoint, "checkpoint")
    if path.exists() and not path.is_file():
        raise InputError(
            f"checkpoint={str(path)!r} is not an ordinary file. Name a file that may be replaced."
        )
    if not path.parent.is_dir():
        raise InputError(
            f"checkpoint={str(path)!r} cannot be written, because there is no folder "
            f"{str(path.parent)!r}. Create the folder, or name another file."
        )
    return path


@dataclass(frozen=True)
class Checkpoint:
    """The file at `path` for the fit of one model to one set of data.

    `fingerprint` identifies the model and its data, and `start` are the hyperparameters that the
    fit starts at. `like` is one of the rows: inducing points must have its columns. A fit may use
    at most `most_points` inducing points. If the fit has chosen its model, the file has the
    `choice`, too.
    """

    path: Path
    fingerprint: str
    start: Hyperparameters
    like: InputRows
    most_points: int
    choice: ModelChoice | None = None

    @classmethod
    def at(
        cls,
        path: Any,
        rows: RowSource,
        start: Hyperparameters,
        solver: Mapping[str, Any],
        most_points: int,
        choice: ModelChoice | None = None,
    ) -> Checkpoint:
        """Return the checkpoint of a fit; `solver` is the fingerprint of its solver."""
        tied = [term.tied is not None and term.tied.tolist() for term in start.weight_prior.terms]
        priors = [] if start.weight_prior.is_shared else [tied]
        kinds = _kinds(start.kernel), start.names, sorted(solver.items())
        likelihood = start.likelihood
        noise = [] if likelihood.is_gaussian else [repr(likelihood)]
        model = repr((*kinds, *priors, *noise)).encode()
        seen = b"".join([model, digest([start.theta]), rows.fingerprint(start.kernel)])
        found = hashlib.blake2b(seen, digest_size=16).hexdigest()
        return cls(checked_path(path), found, start, rows.subset(1), most_points, choice)

    def read(self) -> State | None:
        """Return the state that an earlier fit has written, or None if there is no file.

        A file of other data or of another model raises an InputError, and so does a damaged one,
        whatever the damage.
        """
        return _read(self.path, self._state)

    def _state(self, found: dict[str, np.ndarray]) -> State:
        """Return the checked contents; a ValueError says what is wrong with them."""
        _must(
            found.keys() - {CHOICE_ARRAY} in (REQUIRED_ARRAYS, REQUIRED_ARRAYS | POINT_ARRAYS),
            f"its arrays are {', '.join(sorted(found)) or 'none'}",
        )
        _must(
            _is_one(found["version"], "iu") and _is_one(found["fingerprint"], "U"),
            "its version or fingerprint is not a single value",
        )
        if (int(found["version"]), str(found["fingerprint"])) != (VERSION, self.fingerprint):
            raise InputError(
                f"The checkpoint {str(self.path)!r} belongs to other data, start values or another "
                "kernel. Delete it, or name another file."
            )
        _must(_is_one(found["finished"], "b"), "it does not say whether the search has ended")
        points = self._points(found["x"], found["z"]) if "x" in found else None
        return State(self._theta(found["theta"]), bool(found["finished"]), points)

    def _theta(self, theta: np.ndarray) -> np.ndarray:
        """Return theta if it can be that of this model;  (t,).

        Every free logarithm must be within its bounds. One that is held must be at its start, which
        is -inf for sigma_w = 0.
        """
        prior = HyperparameterPrior.around(self.start)
        _must(
            theta.dtype == np.float64 and theta.shape == prior.centre.shape,
            f"its hyperparameters are not {prior.centre.size} numbers in float64",
        )
        free, slack = prior.free, BOUND_ROUNDING_LOG
        inside = (theta >= prior.low - slack) & (theta <= prior.high + slack)
        _must(
            inside[free].all() and (theta[~free] == prior.centre[~free]).all(),
            "its hyperparameters are beyond their bounds",
        )
        return theta

    def _points(self, x: np.ndarray, z: np.ndarray) -> InputRows:
        """Return the inducing points if they fit the data;  (m, p), (m, d)."""
        like = self.like
        _must(
            isinstance(like.x, np.ndarray) and not like.Z.is_sparse,
            "its inducing points are dense, and X or Z is sparse",
        )
        for name, points, width in (("x", x, like.x.shape[1]), ("z", z, like.Z.shape[1])):
            _must(
                points.dtype == np.float64 and points.ndim == 2,
                f"{name} is not a matrix of float64",
            )
            _must(points.flags.c_contiguous, f"{name} is not stored by rows")
            _must(
                points.shape[1] == width,
                f"{name} has {points.shape[1]} columns, and the data have {width}",
            )
            _must(np.isfinite(points).all(), f"{name} has a number that is not finite")
        _must(len(x) == len(z), f"it has {len(x)} inducing points in x and {len(z)} in z")
        _must(
            1 <= len(x) <= self.most_points,
            f"it has {len(x)} inducing points, and this fit takes 1 to {self.most_points}",
        )
        return InputRows(x, DenseFeatures(z))

    def write(self, state: State) -> None:
        """Replace the file. If it cannot be written, warn, so that the fit goes on."""
        try:
            self._write(state)
        except InputError as error:
            warnings.warn(f"The checkpoint was not written. {error}", GPXWarning, stacklevel=2)

    def _write(self, state: State) -> None:
        """Replace the file, or raise an InputError."""
        choice = {} if self.choice is None else {CHOICE_ARRAY: np.array(self.choice.to_text())}
        arrays: dict[str, Any] = state.arrays | choice
        with atomic_write(self.path) as beside, open(beside, "wb") as file:
            np.savez(file, **arrays, version=VERSION, fingerprint=self.fingerprint)


def choice_in(path: Any, among: OpenModel) -> ModelChoice | None:
    """Return the model that the fit of a checkpoint has chosen, None if there is none.

    It is one of those that are open now. Whether the file belongs to the same data is found when
    its state is read.
    """

    def choice_of(found: dict[str, np.ndarray]) -> ModelChoice | None:
        if CHOICE_ARRAY not in found:
            return None
        _must(_is_one(found[CHOICE_ARRAY], "U"), "its choice of a model is not a text")
        return ModelChoice.from_text(str(found[CHOICE_ARRAY]), among)

    return _read(checked_path(path), choice_of)


def _read(path: Path, made_of: Callable[[dict[str, np.ndarray]], Made | None]) -> Made | None:
    """Return what a function makes of the arrays of a file, None if there is no file.

    Any error of a damaged file becomes an InputError that names it.
    """
    if not path.exists():
        return None
    try:
        return made_of(_arrays_in(path))
    except InputError:
        raise
    except Exception as error:  # A damaged file may raise anything.
        what = str(error) or type(error).__name__
        raise InputError(
            f"The checkpoint {str(path)!r} cannot be read ({what}). Delete it, or name another "
            "file."
        ) from error


def _arrays_in(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name.

    A compressed file is refused, because a small one could expand to any size.
    """
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            _must(info.compress_type == zipfile.ZIP_STORED, "it is compressed")
            with archive.open(info) as file:
                found[info.filename.removesuffix(".npy")] = read_npy(file, info.file_size)
    return found


def _is_one(array: np.ndarray, kinds: str) -> bool:
    """Return whether an array is a single value whose type is one of these kinds."""
    return array.shape == () and array.dtype.kind in kinds


def _must(right: Any, what: str) -> None:
    """Raise a ValueError that says what is wrong, unless all is right."""
    if not right:
        raise ValueError(what)


def _kinds(kernel: Kernel) -> tuple[Any, ...]:
    """Return the name of the kernel's class, and those of the kernels that it combines."""
    return type(kernel).__name__, *(_kinds(part) for part in kernel.components)
