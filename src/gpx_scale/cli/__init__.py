"""The `gpx-scale` command."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import GPXError
from . import demo_command, fit_commands, predict_commands  # noqa: F401 (they add their commands to the app)
from .app import app

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            app(args=None if arguments is None else list(arguments), prog_name="gpx-scale")
    except (SystemExit, KeyboardInterrupt) as stop:
        code = 130 if isinstance(stop, KeyboardInterrupt) else stop.code
        if code == 130:
            print("gpx-scale: interrupted, and nothing was written", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except (GPXError, ImportError, OSError, MemoryError) as error:
        print(f"gpx-scale: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if os.environ.get("GPX_SCALE_DEBUG"):
            raise
        said = " ".join(str(error).split())
        print(
            f"gpx-scale: {type(error).__name__}: {said} (set GPX_SCALE_DEBUG=1 to see where)",
            file=sys.stderr,
        )
        return 1
    return 0


def _warn(message: Any, *_: Any, **__: Any) -> None:
    print(f"gpx-scale: {message}", file=sys.stderr)
