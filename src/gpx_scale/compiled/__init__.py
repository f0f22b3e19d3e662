"""The compiled loops over dense tiles and sparse rows, and the decorator that compiles them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# The liberties that the compiler may take with floating point numbers. "reassoc" is not among them,
# because it would cancel the number by which the exponential rounds (`_ROUNDING` in dense.py).
# "nnan" and "ninf" are safe, because data are checked for finite numbers where they enter.
FASTMATH = {"contract", "nnan", "nsz", "ninf", "arcp"}


def jit(
    function: Callable[..., Any] | None = None, *, reassociate: bool = False, inline: bool = False
) -> Any:
    """Compile a function by numba at its first call, without the GIL.

    The machine code is cached on disk if the folder of the package, or the user's cache folder, can
    be written. With `reassociate`, the compiler may change the order of sums. With `inline`, the
    function becomes part of its callers, as pays where a call takes as long as its work.

    Such a function runs in the thread that calls it. Loops that numba runs in parallel are a
    `TileLoop` of runtime/tile_loops.py.
    """
    if function is None:
        return lambda f: jit(f, reassociate=reassociate, inline=inline)
    fastmath = FASTMATH | {"reassoc"} if reassociate else FASTMATH
    options = {"inline": "always"} if inline else {}
    return compiled_and_cached(function, fastmath=fastmath, **options)


def compiled_and_cached(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function that numba compiles without the GIL, and caches on disk if it can."""
    options["nogil"] = True
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # No folder for the cache can be written, so each process compiles for itself.
        return numba.njit(**options)(function)
