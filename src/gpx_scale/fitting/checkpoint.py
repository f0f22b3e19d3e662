"""Checkpoints: a file with the best hyperparameters of a running fit, from which a later fit of the same data goes on.

The file holds numbers only, replaces the one before as a whole, and carries a fingerprint of its data and model. Nothing in
it is believed before it is checked: compiled loops go by the sizes of these arrays.
"""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.features import DenseFeatures
from ..data.inputs import InputRows
from ..data.row_source import RowSource
from ..errors import GPXWarning, InputError
from ..kernels.kernel import Kernel
from ..model.hyperparameters import HyperparameterPrior, Hyperparameters
from ..runtime.files import atomic_write, digest, path_of, read_npy

VERSION = 1
ALWAYS = {"theta", "finished", "version", "fingerprint"}  # arrays that every checkpoint has
POINTS = {"x", "z"}  # arrays that a checkpoint of dense inducing points has as well
ROUNDING = 1e-9  # by which the logarithm of a hyperparameter may lie outside of its bounds


@dataclass(frozen=True)
class State:
    """The best hyperparameters so far (logarithms), whether the search had ended, and the inducing points, if dense."""

    theta: np.ndarray
    finished: bool
    points: InputRows | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        found: dict[str, Any] = {"theta": self.theta, "finished": self.finished}
        points = self.points
        if points is not None and not points.Z.is_sparse and isinstance(points.x, np.ndarray):
            found |= {"x": points.x, "z": points.Z.to_dense()}
        return found


def checked_path(checkpoint: Any) -> Path:
    """Return the path of a checkpoint that may be read and written; anything else is an InputError that names it."""
    path = path_of(checkpoint, "checkpoint")
    if path.exists() and not path.is_file():
        raise InputError(
            f"checkpoint={str(path)!r} is not an ordinary file: name one that may be replaced"
        )
    if not path.parent.is_dir():
        raise InputError(f"checkpoint={str(path)!r}: there is no folder {str(path.parent)!r}")
    return path


@dataclass(frozen=True)
class Checkpoint:
    """The file at `path` for the fit of one model, which starts at `start`, to one set of data.

    `fingerprint` tells the model and its data from others. `like` is one of the rows, whose columns the inducing points must
    have, and `most_points` is the largest number of these that the fit may use.
    """

    path: Path
    fingerprint: str
    start: Hyperparameters
    like: InputRows
    most_points: int

    @classmethod
    def at(
        cls,
        path: Any,
        rows: RowSource,
        start: Hyperparameters,
        solver: Mapping[str, Any],
        most_points: int,
    ) -> Checkpoint:
        """Return the checkpoint of a fit; `solver` is what tells its searches apart (`Solver.fingerprint`)."""
        model = repr((_kinds(start.kernel), start.names, sorted(solver.items()))).encode()
        seen = b"".join([model, digest([start.theta]), rows.fingerprint(start.kernel)])
        found = hashlib.blake2b(seen, digest_size=16).hexdigest()
        return cls(checked_path(path), found, start, rows.subset(1), most_points)

    def read(self) -> State | None:
        """Return what an earlier fit left, or None if there is no file.

        A file of other data or of another model is an InputError, and so is a damaged one, whatever the damage.
        """
        if not self.path.exists():
            return None
        try:
            return self._state(_arrays_in(self.path))
        except InputError:
            raise
        except Exception as error:  # a damaged file may hold anything
            what = str(error) or type(error).__name__
            raise InputError(
                f"checkpoint {str(self.path)!r} cannot be read ({what}): delete it, or name another file"
            ) from error

    def _state(self, found: dict[str, np.ndarray]) -> State:
        """Return the checked contents; a ValueError says what does not fit."""
        _must(
            found.keys() in (ALWAYS, ALWAYS | POINTS),
            f"it holds {', '.join(sorted(found)) or 'nothing'}",
        )
        _must(
            _is_one(found["version"], "iu") and _is_one(found["fingerprint"], "U"),
            "it does not say what it is of",
        )
        if (int(found["version"]), str(found["fingerprint"])) != (VERSION, self.fingerprint):
            raise InputError(
                f"checkpoint {str(self.path)!r} is of other data, start values or kernel: delete it, or name another file"
            )
        _must(_is_one(found["finished"], "b"), "it does not say whether the search had ended")
        points = self._points(found["x"], found["z"]) if "x" in found else None
        return State(self._theta(found["theta"]), bool(found["finished"]), points)

    def _theta(self, theta: np.ndarray) -> np.ndarray:
        """Return logarithms that this model may have: as many as it has, within their bounds, -inf where one is held at 0."""
        prior = HyperparameterPrior.around(self.start)
        _must(
            theta.dtype == np.float64 and theta.shape == prior.centre.shape,
            "hyperparameters of another number or type",
        )
        free = prior.free
        inside = (theta >= prior.low - ROUNDING) & (theta <= prior.high + ROUNDING)
        _must(
            inside[free].all() and (theta[~free] == prior.centre[~free]).all(),
            "hyperparameters beyond their bounds",
        )
        return theta

    def _points(self, x: np.ndarray, z: np.ndarray) -> InputRows:
        """Return inducing points that have the columns of the data."""
        like = self.like
        _must(
            isinstance(like.x, np.ndarray) and not like.Z.is_sparse,
            "dense inducing points of sparse rows",
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
            _must(np.isfinite(points).all(), f"{name} holds what is not a finite number")
        _must(len(x) == len(z), f"{len(x)} inducing points in x and {len(z)} in z")
        _must(
            1 <= len(x) <= self.most_points,
            f"{len(x)} inducing points, and this fit takes 1 to {self.most_points}",
        )
        return InputRows(x, DenseFeatures(z))

    def write(self, state: State) -> None:
        """Replace the file; one that cannot be written is warned of, and the fit goes on."""
        try:
            self._write(state)
        except InputError as error:
            warnings.warn(f"checkpoint: {error}", GPXWarning, stacklevel=2)

    def _write(self, state: State) -> None:
        with atomic_write(self.path) as beside, open(beside, "wb") as file:
            np.savez(file, **state.arrays, version=VERSION, fingerprint=self.fingerprint)


def _arrays_in(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file that was written without compression, so that a small file cannot ask for much."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            _must(info.compress_type == zipfile.ZIP_STORED, "it is compressed")
            with archive.open(info) as file:
                found[info.filename.removesuffix(".npy")] = read_npy(file, info.file_size)
    return found


def _is_one(array: np.ndarray, kinds: str) -> bool:
    return array.shape == () and array.dtype.kind in kinds


def _must(right: Any, what: str) -> None:
    if not right:
        raise ValueError(what)


def _kinds(kernel: Kernel) -> tuple[Any, ...]:
    """Return the kernel's class, and those of the kernels it combines."""
    return type(kernel).__name__, *(_kinds(part) for part in kernel.components)
