"""Memory limits, bytes as text, and what the system has left."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, MemoryLimitError

CACHE_LINE = 64


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line, which numpy's own arrays do not: rows of a line each take one load."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].view(dtype).reshape(shape)


_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_memory(limit: int | float | str | None) -> int:
    """Bytes of a `memory_limit`: a number, a text such as "8GiB" or "500 MB", or None for 80% of what is available."""
    if limit is None:
        return int(0.8 * available_memory())
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*", limit.lower())
        if match is None:
            raise InputError(f'memory_limit={limit!r}: give bytes or a text such as "8GiB"')
        limit = float(match[1]) * _UNITS[match[2]]
    if (
        isinstance(limit, bool)
        or not isinstance(limit, int | float | np.number)
        or not 0 < float(limit) < math.inf
    ):
        raise InputError(
            f'memory_limit={limit!r}: give a positive number of bytes or a text such as "8GiB"'
        )
    return int(limit)


def counted(count: int, noun: str) -> str:
    """1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    unit, size = next(
        ((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20)) if count >= s / 10), ("KiB", 2**10)
    )
    return f"{count / size:.1f} {unit}"


def available_memory() -> int:
    """Bytes that can still be allocated: what the system has left, within the control group's limit."""
    system = _meminfo("MemAvailable") or _physical_memory()
    return min([system, *_control_group_left()])


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes (0 where the system does not say)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _meminfo(key: str) -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30  # a system that says nothing: assume a small laptop


def _control_group_left() -> list[int]:
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
        except (OSError, ValueError):  # no such group, or "max"
            continue
        left.append(
            max(0, most - now + int(kept.get(cache, 0)))
        )  # file cache gives way to allocations
    return left


def chunk_bytes(memory_limit: int) -> int:
    """Working memory for one chunk of queries: large enough for BLAS, small beside the limit."""
    return max(2**20, min(2**28, memory_limit // 8))


def within(needed: int, limit: int, what: str, instead: str = "fewer rows") -> None:
    """Refuse before allocating."""
    if needed > limit:
        raise MemoryLimitError(
            f"{what} needs {format_bytes(needed)}, memory_limit is {format_bytes(limit)}: raise memory_limit, or use {instead}"
        )
