"""What a case may end in: a result, or an error of ours; anything else is a finding.

`@fuzz(share)` makes a test a hypothesis run over its share of GPX_SCALE_FUZZ_CASES cases, drawn from GPX_SCALE_FUZZ_SEED.
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
SECONDS = 60  # of one call: the first of a process compiles
run: Counter = Counter()  # cases by test
ended: Counter = Counter()  # calls, answered or refused


def fuzz(share, **strategies):
    """A test of `share` of all cases; what is drawn comes by name."""

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
    """An error that says what is wrong."""

    error: Exception

    def __bool__(self) -> bool:
        return False


class Hang(BaseException):
    """Not an Exception, so that nothing on the way takes it for an answer."""


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
    """What `call` gives, or `Refused`; any other error, any warning but ours, a hang, or a change of the arguments fails."""
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
    """Whether the error comes from scikit-learn's checks: the frame that our last one called is its."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = max((at for at, name in enumerate(files) if "/gpx_scale/" in name), default=-1)
    return any("/sklearn/" in name for name in files[ours + 1 : ours + 2])


@dataclass(frozen=True)
class Held:
    """An argument, and the bytes it had."""

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
    """All that a caller could see change in an array, sparse matrix, frame or list."""
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
