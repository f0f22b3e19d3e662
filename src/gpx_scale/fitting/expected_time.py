"""How long a fit may take: the work of its plan, at the rate that this machine multiplies matrices. To a factor of 3."""

from __future__ import annotations

import time

import numpy as np

from ..runtime.parallel import threads
from ..solvers import registry
from ..solvers.contract import Plan

FACTOR = 3.0  # either way (docs/measured.md)


def expected_seconds(plan: Plan) -> float | None:
    """Of the search for hyperparameters and the posterior; None where it cannot be told before: of a grid, it is its length
    scales'."""
    work = registry.find(plan.solver).work(plan)
    return None if work is None else 0.3 + work / multiplication_rate(plan.n_jobs)


SIDE = 768  # of the matrices: a tenth of a second in all


def multiplication_rate(n_jobs: int) -> float:
    """Flops a second of a product of matrices with this many threads, the best of five."""
    A = np.random.RandomState(0).standard_normal((SIDE, SIDE))
    with threads(n_jobs):
        A @ A
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            A @ A
            seconds.append(time.perf_counter() - start)
    return 2.0 * SIDE**3 / min(seconds)


def in_words(seconds: float | None) -> str:
    """
    >>> in_words(4.2), in_words(150.0), in_words(7200.0), in_words(None)
    ('about 4 s', 'about 2 min', 'about 2 h', 'not known before its length scales are')
    """
    if seconds is None:
        return "not known before its length scales are"
    if seconds < 100:
        return f"about {seconds:.0f} s" if seconds >= 1 else "less than a second"
    return (
        f"about {seconds / 60:.0f} min" if seconds < 100 * 60 else f"about {seconds / 3600:.0f} h"
    )
