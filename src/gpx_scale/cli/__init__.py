"""The command `gpx-scale`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

try:
    # rich prints the tables, typer reads the arguments.
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as missing:
    raise SystemExit(
        f"gpx-scale needs the package {missing.name}. Install it with: pip install 'gpx-scale[cli]'"
    ) from None

from ..errors import GPXError

# These modules add their commands to the app when they are imported.
from . import demo_command, fit_commands, predict_commands  # noqa: F401
from .app import app

__all__ = ["main"]

INTERRUPTED_EXIT_CODE = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    The code is 0 if all went well, 1 after an error with a message, 2 for a wrong usage, and 130
    after an interruption. `arguments` are those of the process by default.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            app(args=None if arguments is None else list(arguments), prog_name="gpx-scale")
    except (SystemExit, KeyboardInterrupt) as stop:
        code = INTERRUPTED_EXIT_CODE if isinstance(stop, KeyboardInterrupt) else stop.code
        if code == INTERRUPTED_EXIT_CODE:
            print(
                "gpx-scale: Interrupted. No file was written in part. Run the command again; a fit "
                "with --checkpoint goes on where it was.",
                file=sys.stderr,
            )
        return code if isinstance(code, int) else 0
    except (GPXError, ImportError, OSError, MemoryError) as error:
        print(f"gpx-scale: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if os.environ.get("GPX_SCALE_DEBUG"):
            raise
        message = " ".join(str(error).split())
        print(
            f"gpx-scale: {type(error).__name__}: {message} (Set GPX_SCALE_DEBUG=1 to see where.)",
            file=sys.stderr,
        )
        return 1
    return 0


def _print_warning(message: Any, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the line of code that it comes from."""
    print(f"gpx-scale: {message}", file=sys.stderr)
