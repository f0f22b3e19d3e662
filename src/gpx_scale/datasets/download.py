"""The bytes at a URL, by HTTP or HTTPS and nothing else: streamed, limited, tried again after a passing fault."""

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

TRIES = 3
PAUSE = 0.5  # seconds before the second try, doubled before the third
TIMEOUT = 30.0  # seconds without a byte
LIMIT = 64 * 2**20  # bytes; the largest of our sources has some 3 MB
CHUNK = 2**16
HEADERS = {"User-Agent": "gpx_scale (Python)"}  # publishers turn urllib's own away


def at_mirror(url: str) -> str:
    """`url`, or the same path at GPX_SCALE_MIRROR in place of the publisher's host."""
    mirror = os.environ.get("GPX_SCALE_MIRROR", "").rstrip("/")
    if not mirror:
        return url
    if not _is_host(mirror):
        raise InputError(
            f"GPX_SCALE_MIRROR={mirror!r}: give what stands for the publisher's host, as in 'https://mirror.org'"
        )
    return mirror + urlsplit(url)._replace(scheme="", netloc="").geturl()


def _is_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def fetch(url: str, stream: IO[bytes], title: str, progress: bool | None = None) -> None:
    """The body at `url` into `stream`, from its start; OSError if it cannot be had.

    progress : on stderr; by default where that is a terminal.
    """
    meter = Meter(title) if (_on_terminal() if progress is None else progress) else None
    _say(meter, f"{title}: downloading {url}")
    for attempt in range(1, TRIES + 1):
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
        last = attempt == TRIES or not _passes(fault)
        _say(meter, f"{title}: {reason(fault)}{'' if last else '; trying again'}")
        if last:
            raise fault
        time.sleep(PAUSE * 2 ** (attempt - 1))


def reason(error: OSError) -> str:
    """What went wrong, without urllib's wrapping."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return (
        (cause.strerror if isinstance(cause, OSError) else None)
        or str(cause)
        or type(cause).__name__
    )


def _passes(error: OSError) -> bool:
    """Whether a second try may do: time-outs, broken connections, a server's own faults; not a refusal or a wrong name."""
    if isinstance(error, HTTPError):
        return error.code >= 500 or error.code in (408, 429)
    cause = error.reason if isinstance(error, URLError) else error
    return isinstance(cause, TimeoutError | ConnectionResetError | ConnectionAbortedError)


def _body(url: str, stream: IO[bytes], meter: Meter | None) -> None:
    with _opener().open(Request(url, headers=HEADERS), timeout=TIMEOUT) as response:
        length, count = response.length, 0
        while chunk := response.read(CHUNK):
            count += stream.write(chunk)
            if max(count, length or 0) > LIMIT:
                raise OSError(f"it is longer than {format_bytes(LIMIT)}")
            if meter is not None:
                meter.show_bytes(count, length)
    if length is not None and count < length:  # read(amount) does not tell
        raise ConnectionAbortedError(f"{count:,} of {length:,} bytes came")


def _opener() -> OpenerDirector:
    """Handlers of HTTP alone: no redirection or environment leads to a file, an FTP server or a data: URL."""
    opener = OpenerDirector()
    for handler in (
        *(ProxyHandler, HTTPHandler, HTTPSHandler),
        *(HTTPRedirectHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, UnknownHandler),
    ):
        opener.add_handler(handler())
    return opener


class Meter(ProgressBar):
    """A bar of bytes."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def show_bytes(self, done: int, length: int | None) -> None:
        of = f" of {format_bytes(length)}" if length else ""
        self._draw(
            self._title, min(1.0, done / length) if length else 0.0, f"{format_bytes(done)}{of}"
        )


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _say(meter: Meter | None, message: str) -> None:
    logger.info(message)
    if meter is not None:
        meter.line(message)
