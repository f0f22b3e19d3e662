"""The expected time of a fit, from the work of its plan and the speed of matrix products.

The time is right to a factor of about 3.
"""

from __future__ import annotations

import time

import numpy as np

from ..runtime.parallel import threads
from ..solvers import registry
from ..solvers.contract import Plan

# The expected time may be wrong by this factor, either way (docs/measured.md).
EXPECTED_TIME_FACTOR = 3.0
# Every fit takes about this long, whatever its work.
LEAST_SECONDS = 0.3
# The matrices that are multiplied to measure the speed have this many rows and columns. All
# products together take a tenth of a second.
MEASURED_MATRIX_ROWS = 768


def expected_seconds(plan: Plan) -> float | None:
    """Return the expected time of the search for hyperparameters and of the posterior.

    It is None if the work is not known before the length scales are, as for a grid.
    """
    work = registry.find(plan.solver).work(plan)
    return None if work is None else LEAST_SECONDS + work / multiplication_rate(plan.n_jobs)


def multiplication_rate(n_jobs: int) -> float:
    """Return the flops per second of a matrix product with that many threads, the best of five."""
    rows = MEASURED_MATRIX_ROWS
    A = np.random.RandomState(0).standard_normal((rows, rows))
    with threads(n_jobs):
        A @ A
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            A @ A
            seconds.append(time.perf_counter() - start)
    return 2.0 * rows**3 / min(seconds)


def in_words(seconds: float | None) -> str:
    """Return an expected time as a text for users.

    >>> in_words(4.2), in_words(150.0), in_words(7200.0)
    ('about 4 s', 'about 2 min', 'about 2 h')
    >>> in_words(None)
    'not known before the length scales are estimated'
    """
    if seconds is None:
        return "not known before the length scales are estimated"
    if seconds < 100:
        return f"about {seconds:.0f} s" if seconds >= 1 else "less than a second"
    return (
        f"about {seconds / 60:.0f} min" if seconds < 100 * 60 else f"about {seconds / 3600:.0f} h"
    )
