"""Files that are written whole or not at all, and packages that only some functions need."""

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
    """Return an optional package, or raise an ImportError that says which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This needs the package {module.split('.')[0]}. "
            f"Install it with: pip install 'gpx-scale[{extra}]'"
        ) from error


def digest(arrays: Iterable[np.ndarray]) -> bytes:
    """Return a checksum of 16 bytes over the numbers and the shapes of these arrays."""
    seen = hashlib.blake2b(digest_size=16)
    for array in arrays:
        seen.update(str(array.shape).encode())
        seen.update(np.ascontiguousarray(array).data)
    return seen.digest()


def path_of(path: Any, name: str = "path") -> Path:
    """Return the name of a file as a Path; anything else raises an InputError that shows it.

    The file need not exist.
    """
    try:
        found = Path(os.fspath(path))
        # This fails if the system cannot look for such a name, because it has a NUL in it or is
        # too long.
        os.lstat(found)
    except FileNotFoundError:
        return found
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{name}={path!r} is not the path of a file ({error}).") from None
    return found


def writable(path: Any) -> Path:
    """Return the path of a file that can be written, or raise an InputError that says why not.

    Links are followed, so that a link stays one. Nothing is written.
    """
    found = Path(os.path.realpath(path_of(path)))
    if found.is_dir():
        raise InputError(f"The path {str(found)!r} is a folder. Give the path of a file.")
    if found.exists() and not found.is_file():
        raise InputError(
            f"The path {str(found)!r} is not an ordinary file. Name one that may be replaced."
        )
    if not found.parent.is_dir():
        raise InputError(
            f"The file {str(found)!r} cannot be written, because there is no folder "
            f"{str(found.parent)!r}. Create it first."
        )
    if not os.access(found.parent, os.W_OK):
        raise InputError(
            f"The file {str(found)!r} cannot be written, because you have no permission to write "
            f"in {str(found.parent)!r}. Choose another folder."
        )
    return found


@contextmanager
def atomic_write(path: Any) -> Iterator[Path]:
    """Yield a new file beside `path`, which replaces `path` at the end.

    A reader sees the old file or the new one, and never a part of it. After an error, the old file
    is still there.
    """
    path = writable(path)
    # Some writers go by the ending of the name, so the new file has the same one.
    endings = "".join(path.suffixes[-2:])[-16:]
    beside = path.with_name(f".{uuid.uuid4().hex}{endings}")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise InputError(
            f"The file {str(path)!r} cannot be written: {error.strerror or error}."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def read_npy(file: Any, size: int) -> np.ndarray:
    """Return the array of an open npy member of `size` bytes.

    The header is compared with the size before anything is allocated, so a damaged header cannot
    ask for more memory than the file has bytes. An array of objects is refused, because only
    pickle could read it.
    """
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds an array of objects")
    count = int(np.prod(shape, dtype=object))
    if not 0 <= count * dtype.itemsize <= size:
        raise ValueError("an array is shorter than it says")
    array = np.empty(count, dtype)
    content = array.view(np.uint8)
    if file.readinto(content) != content.size:
        raise ValueError("an array ends too early")
    # Reading to the end makes zipfile compare the checksum of the member, too.
    if file.read(1):
        raise ValueError("an array is longer than it says")
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
