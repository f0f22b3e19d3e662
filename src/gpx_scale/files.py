"""Files that are written whole or not at all, and packages that only some files need."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError


def needed(module: str, extra: str) -> Any:
    """An optional package, or an error that says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.split('.')[0]}: pip install 'gpx-scale[{extra}]'") from error


def writable(path: Any) -> Path:
    """The path of a file that can be written, or an error that names what is in the way; nothing is left behind."""
    path = Path(os.path.realpath(os.fspath(path)))  # a link stays one
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{str(path)!r} is not an ordinary file: name one that may be replaced")
    if not path.parent.is_dir():
        raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{str(path)!r} cannot be written: no permission to write in {str(path.parent)!r}")
    return path


@contextmanager
def written_whole(path: Any) -> Iterator[Path]:
    """A new file beside `path` to write to, which takes its place at the end: a reader sees the old file or the new one, and
    after an error the old one."""
    path = writable(path)
    endings = "".join(path.suffixes[-2:])[-16:]  # kept, for those who go by them
    beside = path.with_name(f".{uuid.uuid4().hex}{endings}")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
