"""The memory limit, the memory that the system has left, and numbers of bytes as text."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, MemoryLimitError

# The cache lines of x86-64 processors, and of most others, have 64 bytes.
CACHE_LINE_BYTES = 64
# Without a limit from the user, this share of the available memory is used. The rest is for other
# processes, and for what Python and the libraries allocate themselves.
DEFAULT_MEMORY_SHARE = 0.8
# This is assumed on a system that does not say how much memory it has: a small laptop.
UNKNOWN_SYSTEM_BYTES = 8 * 2**30
# A chunk of queries has an eighth of the memory limit, within these bounds: its matrices are large
# enough for BLAS to be efficient, and small beside the limit.
MIN_CHUNK_BYTES = 2**20
MAX_CHUNK_BYTES = 2**28


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Return zeros that begin at a cache line, which numpy's own arrays do not.

    A row that is one cache line long then takes one load.
    """
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    room = np.zeros(size + CACHE_LINE_BYTES, np.uint8)
    start = -room.ctypes.data % CACHE_LINE_BYTES
    zeros: np.ndarray = room[start : start + size].view(dtype).reshape(shape)
    return zeros


# Bytes per unit, by the unit's first letter.
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_memory(limit: int | float | str | None) -> int:
    """Return the bytes of a `memory_limit`.

    It is a number, a text such as "8GiB" or "500 MB", or None for 80% of the available memory.
    """
    if limit is None:
        return int(DEFAULT_MEMORY_SHARE * available_memory())
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*", limit.lower())
        if match is None:
            raise InputError(
                f"memory_limit={limit!r} is not valid. "
                'Give a number of bytes or a text such as "8GiB".'
            )
        limit = float(match[1]) * _UNITS[match[2]]
    if (
        isinstance(limit, bool)
        or not isinstance(limit, int | float | np.number)
        or not 0 < float(limit) < math.inf
    ):
        raise InputError(
            f"memory_limit={limit!r} is not valid. "
            'Give a positive number of bytes or a text such as "8GiB".'
        )
    return int(limit)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(2_000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in KiB, MiB or GiB.

    >>> format_bytes(2**31)
    '2.0 GiB'
    """
    unit, size = next(
        ((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20)) if count >= s / 10), ("KiB", 2**10)
    )
    return f"{count / size:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Return an expected time as text.

    >>> format_seconds(0.2), format_seconds(4.2), format_seconds(150.0), format_seconds(7200.0)
    ('less than a second', 'about 4 s', 'about 2 min', 'about 2 h')
    >>> format_seconds(1e7)
    'about 116 days'
    """
    if seconds < 1:
        return "less than a second"
    for unit, size, below in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 360_000)):
        if seconds < below:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds / 86_400:.0f} days"


def available_memory() -> int:
    """Return how many bytes can still be allocated.

    This is what the system has left, but no more than what the limits of the process's control
    groups leave.
    """
    system = _meminfo("MemAvailable") or _physical_memory()
    return min([system, *_control_group_left()])


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes.

    It is 0 on systems that do not tell.
    """
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _meminfo(key: str) -> int | None:
    """Return an entry of Linux's /proc/meminfo in bytes, or None on other systems."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _physical_memory() -> int:
    """Return the bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_SYSTEM_BYTES


def _control_group_left() -> list[int]:
    """Return how many bytes each control group with a limit leaves, for versions 2 and 1."""
    left = []
    for folder, limit, used, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        try:
            most, now = (int(Path(folder, name).read_text()) for name in (limit, used))
            kept = dict(
                line.split() for line in Path(folder, "memory.stat").read_text().splitlines()
            )
        except (OSError, ValueError):
            # There is no such group, or its limit is "max".
            continue
        # The system frees the file cache where memory is needed, so it counts as available.
        left.append(max(0, most - now + int(kept.get(cache, 0))))
    return left


def chunk_bytes(memory_limit: int) -> int:
    """Return the bytes for one chunk of queries."""
    return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, memory_limit // 8))


def within(needed: int, limit: int, what: str, instead: str = "fewer rows") -> None:
    """Raise a MemoryLimitError, before anything is allocated, if more is needed than the limit.

    `what` needs the memory (the subject of the message), and `instead` is a way to need less.
    """
    if needed > limit:
        raise MemoryLimitError(
            f"{what[0].upper()}{what[1:]} needs {format_bytes(needed)}, and memory_limit is "
            f"{format_bytes(limit)}. Raise memory_limit, or use {instead}."
        )
