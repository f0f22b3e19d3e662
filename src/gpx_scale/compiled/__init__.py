"""The jit decorator, and the compiled loops over dense tiles and sparse rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# No "reassoc": it cancels the magic number of the exponential. "nnan" and "ninf": numbers are checked where they enter.
FASTMATH = {"contract", "nnan", "nsz", "ninf", "arcp"}


def jit(function: Callable[..., Any] | None = None, *, reassociate: bool = False) -> Any:
    """Compile lazily, without the GIL, cached on disk where the install (or the user's cache folder) can be written.

    Never `parallel=True`: tiles run in parallel through `Executor`, so that none of our work enters a numba threading
    layer, which is what makes concurrent calls safe under every layer. What it costs is measured in docs/measured.md.
    """
    if function is None:
        return lambda f: jit(f, reassociate=reassociate)
    options: dict[str, Any] = {
        "fastmath": FASTMATH | {"reassoc"} if reassociate else FASTMATH,
        "nogil": True,
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written: compile in each process
        return numba.njit(**options)(function)
