"""How long a fit may take: the work of its plan, at the rate that this machine multiplies matrices. To a factor of 3."""

from __future__ import annotations

import time

import numpy as np

from ..plan import Plan
from ..runtime.parallel import threads

FACTOR = 3.0  # either way (docs/measured.md)


def expected_seconds(plan: Plan) -> float | None:
    """Of the search for hyperparameters and the posterior; None where it cannot be told before: of a grid, it is its length
    scales'."""
    work = expected_work(plan)
    return None if work is None else 0.3 + work / multiplication_rate(plan.n_jobs)


def expected_work(plan: Plan) -> float | None:
    """Flops of a matrix product that would take as long. Counts of evaluations are those of searches that were measured:
    some from two starts on a quarter of the rows, some on half of them, five on all."""
    n, wide = float(plan.n), (plan.d + plan.p) / 20.0
    if plan.solver == "exact":
        return 12.0 * n**3 + 900.0 * n**2 * (1.0 + wide)
    if plan.solver == "cg":
        return 12.0 * float(plan.subset) ** 3 + 10000.0 * n**2 * plan.density * (0.5 + 0.5 * wide)
    if plan.solver == "inducing":
        return plan.points**2 * (50.0 * n + 900.0 * plan.sample)
    if plan.solver == "basis":
        return 1e11 + 5e5 * n * (0.5 + 0.5 * wide)
    return None


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
    return f"about {seconds / 60:.0f} min" if seconds < 100 * 60 else f"about {seconds / 3600:.0f} h"
