"""Downloads by HTTP or HTTPS and nothing else.

They are streamed, limited in length, and tried again after a temporary error.
"""

from __future__ import annotations

import os
import sys
import time
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from ..errors import InputError
from ..runtime.journal import ProgressBar, logger
from ..runtime.memory import format_bytes

# A download that fails for a reason that may pass is tried this often.
MAX_TRIES = 3
# This is the pause before the second try; it is doubled before the third.
PAUSE_SECONDS = 0.5
# A connection that brings no byte for this long has failed.
TIMEOUT_SECONDS = 30.0
# Nothing longer is downloaded or unpacked. The largest of our sources has some 3 MB.
MAX_BYTES = 64 * 2**20
# The progress bar is updated after each of these parts.
CHUNK_BYTES = 2**16
# Publishers refuse the name that urllib gives itself.
HEADERS = {"User-Agent": "gpx_scale (Python)"}


def at_mirror(url: str) -> str:
    """Return `url`, with the publisher's host replaced by GPX_SCALE_MIRROR if that is set."""
    mirror = os.environ.get("GPX_SCALE_MIRROR", "").rstrip("/")
    if not mirror:
        return url
    if not _is_host(mirror):
        raise InputError(
            f"GPX_SCALE_MIRROR={mirror!r}: Give the address that replaces a publisher's host, "
            "such as 'https://mirror.org'."
        )
    return mirror + urlsplit(url)._replace(scheme="", netloc="").geturl()


def _is_host(url: str) -> bool:
    """Return whether this is the HTTP or HTTPS address of a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def fetch(url: str, stream: IO[bytes], title: str, progress: bool | None = None) -> None:
    """Write the body at `url` into `stream`, from its start; OSError if it cannot be downloaded.

    `progress` is whether the download is shown on stderr; by default if that is a terminal.
    """
    meter = Meter(title) if (_on_terminal() if progress is None else progress) else None
    _say(meter, f"{title}: downloading {url}")
    for attempt in range(1, MAX_TRIES + 1):
        stream.seek(0)
        stream.truncate()
        try:
            _body(url, stream, meter)
        except HTTPException as error:
            fault: OSError = ConnectionAbortedError(
                f"the answer broke off or is no HTTP ({type(error).__name__})"
            )
            fault.__cause__ = error
        except OSError as error:
            fault = error
        else:
            _say(meter, f"{title}: {format_bytes(stream.tell())}")
            stream.seek(0)
            return
        if isinstance(fault, HTTPError):
            fault.close()
        last = attempt == MAX_TRIES or not _may_pass(fault)
        _say(meter, f"{title}: {reason(fault)}{'' if last else '; trying again'}")
        if last:
            raise fault
        time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))


def reason(error: OSError) -> str:
    """Return what went wrong, without the text that urllib adds."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return (
        (cause.strerror if isinstance(cause, OSError) else None)
        or str(cause)
        or type(cause).__name__
    )


def _may_pass(error: OSError) -> bool:
    """Return whether a second try may succeed.

    It may after a time-out, a broken connection or an error of the server, but not after a refusal
    or with an unknown host.
    """
    if isinstance(error, HTTPError):
        return error.code >= 500 or error.code in (408, 429)
    cause = error.reason if isinstance(error, URLError) else error
    return isinstance(cause, TimeoutError | ConnectionResetError | ConnectionAbortedError)


def _body(url: str, stream: IO[bytes], meter: Meter | None) -> None:
    """Write the body at `url` into `stream`; OSError if it is too long or breaks off."""
    with _opener().open(Request(url, headers=HEADERS), timeout=TIMEOUT_SECONDS) as response:
        length, count = response.length, 0
        while chunk := response.read(CHUNK_BYTES):
            count += stream.write(chunk)
            if max(count, length or 0) > MAX_BYTES:
                raise OSError(f"it is longer than {format_bytes(MAX_BYTES)}")
            if meter is not None:
                meter.show_bytes(count, length)
    # read(amount) does not raise an error if the connection ends early.
    if length is not None and count < length:
        raise ConnectionAbortedError(f"{count:,} of {length:,} bytes came")


def _opener() -> OpenerDirector:
    """Return an opener with the handlers of HTTP alone.

    No redirection or environment variable then leads to a file, an FTP server or a data: URL.
    """
    opener = OpenerDirector()
    for handler in (
        *(ProxyHandler, HTTPHandler, HTTPSHandler),
        *(HTTPRedirectHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, UnknownHandler),
    ):
        opener.add_handler(handler())
    return opener


class Meter(ProgressBar):
    """A progress bar of the bytes that have come."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def show_bytes(self, done: int, length: int | None) -> None:
        """Draw the bar for `done` bytes, of `length` if that is known."""
        of = f" of {format_bytes(length)}" if length else ""
        self._draw(
            self._title, min(1.0, done / length) if length else 0.0, f"{format_bytes(done)}{of}"
        )


def _on_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def _say(meter: Meter | None, message: str) -> None:
    """Log a message, and show it if there is a progress bar."""
    logger.info(message)
    if meter is not None:
        meter.line(message)
