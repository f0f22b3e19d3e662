"""Locks of others that a thread may hold when the process forks, and that a child has to open.

A forked child has only the thread that forked. A lock that another thread held at that moment stays
closed in the child for ever, unless the fork waited for it or the child replaces it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from numba.core.compiler_lock import global_compiler_lock

# numba compiles, and loads what is cached, in one thread at a time. Its state would be unfinished
# in a child that is forked meanwhile, so a fork waits for this lock.
compiler_lock = getattr(global_compiler_lock, "_lock", None) or threading.RLock()


def open_property_locks() -> None:
    """Open the locks under which the cached properties of this package are computed.

    Only Python 3.11 has them, one for all objects of a class. No harm is done: the values that
    other threads were computing belong to objects which the child does not use.
    """
    for one in _cached_properties():
        if hasattr(one, "lock"):
            one.lock = threading.RLock()


def _cached_properties() -> Iterator[Any]:
    """Yield the cached properties of all classes of this package that have been imported."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for owner in list(vars(module).values()):
                if isinstance(owner, type) and owner.__module__ == name:
                    yield from (v for v in vars(owner).values() if isinstance(v, cached_property))
