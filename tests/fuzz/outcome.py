"""The outcomes that a fuzz case may have: a result, or a GPXError. Anything else is a bug.

`@fuzz(share)` turns a test into a hypothesis run over its share of GPX_SCALE_FUZZ_CASES cases,
which are drawn from GPX_SCALE_FUZZ_SEED.
"""

import functools
import os
import signal
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, seed, settings
from sklearn.exceptions import DataConversionWarning, NotFittedError, UndefinedMetricWarning

from gpx_scale import GPXError, GPXWarning

TOTAL = int(os.environ.get("GPX_SCALE_FUZZ_CASES", "10000"))
SEED = int(os.environ.get("GPX_SCALE_FUZZ_SEED", str(int.from_bytes(os.urandom(4), "big"))))
# One call may take so long, because the first call of a process compiles.
SECONDS = 60
# The number of cases of each test.
run: Counter = Counter()
# The numbers of calls that were answered and refused.
ended: Counter = Counter()


def fuzz(share, **strategies):
    """Turn a function into a test of a `share` of all cases, with drawn values as its arguments."""

    def decorate(test):
        @functools.wraps(test)
        def counted(**drawn):
            run[test.__name__] += 1
            test(**drawn)

        drawn = given(**strategies)(counted)
        drawn = settings(
            max_examples=max(1, round(share * TOTAL)),
            deadline=None,
            derandomize=False,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )(drawn)
        return pytest.mark.fuzz(seed(SEED)(drawn))

    return decorate


@dataclass(frozen=True)
class Refused:
    """An outcome that is an error which says what is wrong."""

    error: Exception

    def __bool__(self) -> bool:
        return False


class Hang(BaseException):
    """A call that took too long. It is no Exception, so that no handler on the way catches it."""


@contextmanager
def seconds(limit):
    def ring(*_):
        raise Hang(f"no answer within {limit} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(call: Any, *arguments: Any, also: tuple = (), **named: Any) -> Any:
    """Return the result of `call`, or `Refused`.

    Any other error, any warning but a GPXWarning, a hang, or a change of the arguments fails.
    """
    held = [Held.of(value) for value in (*arguments, *named.values())]
    try:
        with seconds(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", GPXWarning)
            warnings.simplefilter("ignore", DataConversionWarning)  # y as a column
            warnings.simplefilter("ignore", UndefinedMetricWarning)  # R^2 of one row
            warnings.filterwarnings(
                "ignore", message=".* feature names", category=UserWarning
            )  # a frame, then an array
            result = call(*arguments, **named)
    except (GPXError, NotFittedError, *also) as error:
        result = Refused(error)
    except (ValueError, TypeError) as error:
        if not by_scikit_learn(error):
            raise
        result = Refused(error)
    assert not isinstance(result, Refused) or str(result.error), "an error without a message"
    for one in held:
        one.must_be_unchanged()
    ended["refused" if isinstance(result, Refused) else "answered"] += 1
    return result


def by_scikit_learn(error: Exception) -> bool:
    """Return whether an error comes from scikit-learn: our last frame called one of its."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = max((at for at, name in enumerate(files) if "/gpx_scale/" in name), default=-1)
    return any("/sklearn/" in name for name in files[ours + 1 : ours + 2])


@dataclass(frozen=True)
class Held:
    """An argument, and its content before the call."""

    value: Any
    bytes: Any

    @classmethod
    def of(cls, value: Any) -> "Held":
        return cls(value, content(value))

    def must_be_unchanged(self) -> None:
        assert content(self.value) == self.bytes, (
            f"an argument was changed: {type(self.value).__name__}"
        )


def content(value: Any) -> Any:
    """Return all that a caller could see change in an array, sparse matrix, frame or list."""
    if sp.issparse(value):
        parts = {
            k: v for k, v in vars(value).items() if isinstance(v, np.ndarray | tuple | dict | list)
        }
        return (
            type(value).__name__,
            value.shape,
            {name: content(part) for name, part in parts.items()},
        )
    if hasattr(value, "iloc"):
        return (
            content(value.to_numpy(dtype=object)),
            list(map(repr, value.index)),
            list(map(repr, getattr(value, "columns", []))),
        )
    if isinstance(value, np.ndarray):
        plain = repr(value.tolist()) if value.dtype == object else value.tobytes()
        return value.shape, value.dtype.str, value.strides, value.flags.writeable, plain
    if isinstance(value, list | tuple | dict):
        return repr(value)
    return None
