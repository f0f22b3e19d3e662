"""Files that are written whole or not at all, and packages that only some files need."""

from __future__ import annotations

import hashlib
import importlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError


def import_optional(module: str, extra: str) -> Any:
    """An optional package, or an error that says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {module.split('.')[0]}: pip install 'gpx-scale[{extra}]'"
        ) from error


def digest(arrays: Iterable[np.ndarray]) -> bytes:
    """Return 16 bytes by which these arrays, with their shapes, are told from others."""
    seen = hashlib.blake2b(digest_size=16)
    for array in arrays:
        seen.update(str(array.shape).encode())
        seen.update(np.ascontiguousarray(array).data)
    return seen.digest()


def path_of(path: Any, name: str = "path") -> Path:
    """Return what names a file as a Path; anything else is an InputError that shows it."""
    try:
        found = Path(os.fspath(path))
        os.lstat(
            found
        )  # says what the system cannot look for: a NUL in the name, or a name that is too long
    except FileNotFoundError:
        return found
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{name}={path!r} is not the path of a file: {error}") from None
    return found


def writable(path: Any) -> Path:
    """The path of a file that can be written, or an error that names what is in the way; nothing is left behind."""
    path = Path(os.path.realpath(path_of(path)))  # a link stays one
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{str(path)!r} is not an ordinary file: name one that may be replaced")
    if not path.parent.is_dir():
        raise InputError(
            f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}"
        )
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{str(path)!r} cannot be written: no permission to write in {str(path.parent)!r}"
        )
    return path


@contextmanager
def atomic_write(path: Any) -> Iterator[Path]:
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


def read_npy(file: Any, size: int) -> np.ndarray:
    """Return the array of an open npy member of `size` bytes.

    The header is compared with the size before anything is allocated, so a damaged header cannot ask for more memory than
    the file has bytes. An array of objects is refused, because only pickle could read it.
    """
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    count = int(np.prod(shape, dtype=object))
    if not 0 <= count * dtype.itemsize <= size:
        raise ValueError("an array is shorter than it says")
    array = np.empty(count, dtype)
    content = array.view(np.uint8)
    if file.readinto(content) != content.size:
        raise ValueError("an array ends too early")
    if file.read(1):  # reading to the end compares the checksum of the member, too
        raise ValueError("an array is longer than it says")
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
