"""Where a long fit has got to, in a file: numbers only, written whole or not at all, and tied to its data."""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import GPXWarning, InputError
from .features import DenseFeatures
from .files import written_whole
from .inputs import Inputs, Places
from .params import Params
from .rows import MemoryRows, Rows

VERSION = 1


@dataclass(frozen=True)
class State:
    """The best parameters so far (logs), whether the search had ended, and the inducing points (dense ones)."""

    theta: np.ndarray
    finished: bool
    places: Places | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        found: dict[str, Any] = {"theta": self.theta, "finished": self.finished}
        if self.places is not None and isinstance(self.places.Z, DenseFeatures) and isinstance(self.places.x, np.ndarray):
            found |= {"x": self.places.x, "z": self.places.Z.array}
        return found


@dataclass(frozen=True)
class Checkpoint:
    """The file at `path` for the fit of one model to one set of data, which `fingerprint` tells from others."""

    path: Path
    fingerprint: str

    @classmethod
    def at(cls, path: Any, data: Inputs | Rows, start: Params, choice: Any = None) -> Checkpoint:
        path = Path(os.fspath(path))
        if not path.parent.is_dir():
            raise InputError(f"checkpoint={str(path)!r}: there is no folder {str(path.parent)!r}")
        seen = hashlib.blake2b(repr((_kinds(start.kernel), start.names, choice)).encode(), digest_size=16)
        rows = data if isinstance(data, Rows) else MemoryRows(data)
        for array in (start.theta, *rows.arrays, *(choice.arrays if choice is not None else ())):
            seen.update(str(array.shape).encode())
            seen.update(np.ascontiguousarray(array).data)
        return cls(path, seen.hexdigest())

    def read(self) -> State | None:
        """What an earlier fit left; None where there is no file. A file of other data or another model is an error."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
            version, fingerprint = int(found["version"]), str(found["fingerprint"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"checkpoint {str(self.path)!r} cannot be read ({error}): delete it, or name another") from None
        if version != VERSION or fingerprint != self.fingerprint:
            raise InputError(
                f"checkpoint {str(self.path)!r} is of other data, start values or kernel: delete it, or name another file"
            )
        places = Places(found["x"], DenseFeatures(found["z"])) if "x" in found else None
        return State(found["theta"], bool(found["finished"]), places)

    def write(self, state: State) -> None:
        """Replace the file; one that cannot be written is warned of, and the fit goes on."""
        try:
            self._write(state)
        except InputError as error:
            warnings.warn(f"checkpoint: {error}", GPXWarning, stacklevel=2)

    def _write(self, state: State) -> None:
        with written_whole(self.path) as beside, open(beside, "wb") as file:
            np.savez(file, **state.arrays, version=VERSION, fingerprint=self.fingerprint)


def _kinds(kernel: Any) -> Any:
    """The kernel's class, and those of the kernels it combines."""
    parts = [getattr(kernel, name) for name in ("first", "second") if hasattr(kernel, name)]
    return type(kernel).__name__, *(_kinds(part) for part in parts)
