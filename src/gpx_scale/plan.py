"""Sizes -> solver, precision, memory; printable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .covariance import TILE
from .errors import InputError, MemoryLimitError, SolverUnavailable
from .runtime import effective_jobs, format_bytes, parse_memory

AVAILABLE = ("exact",)
SOLVERS = ("exact", "cg", "inducing", "nystrom", "basis", "grid")
FLOAT64_ROWS, EXACT_ROWS, LAPACK_ROWS = 15_000, 30_000, 46_340


@dataclass(frozen=True)
class Plan:
    """How a fit will run. `print(plan)` says why; `bytes_needed` is known before anything is allocated."""

    n: int
    p: int
    d: int
    solver: str
    dtype: Any
    n_jobs: int
    bytes_needed: int
    memory_limit: int
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"n = {self.n}, p = {self.p}, d = {self.d}: solver {self.solver!r}, {np.dtype(self.dtype).name}, "
            f"{self.n_jobs} threads, {format_bytes(self.bytes_needed)} of {format_bytes(self.memory_limit)}"
        )
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


def chunk_bytes(memory_limit: int) -> int:
    """Working memory for one chunk of queries: large enough for BLAS, small beside the limit."""
    return max(2**20, min(2**28, memory_limit // 8))


def within(needed: int, limit: int, what: str) -> None:
    """Refuse before allocating."""
    if needed > limit:
        raise MemoryLimitError(
            f"{what} needs {format_bytes(needed)}, memory_limit is {format_bytes(limit)}: raise it, or ask for fewer rows"
        )


def exact_bytes(n: int, p: int, d: int, itemsize: int, n_jobs: int, gram: bool = False) -> int:
    """The buffer, a kernel function's Gram matrix, points and features, tiles in work."""
    return (
        itemsize * n * n
        + 8 * n * n * gram
        + 8 * n * (4 * (p + 2) + 3 * d + 10)
        + n_jobs * 4 * 8 * min(n, TILE) * min(n, 4 * TILE)
    )


def make_plan(
    n: int,
    p: int,
    d: int,
    *,
    solver: str = "auto",
    dtype: Any = "auto",
    memory_limit: int | float | str | None = None,
    n_jobs: int | None = None,
    gram: bool = False,
) -> Plan:
    """Choose solver and precision for n rows, p columns of X, d of Z; `gram`: a kernel function's matrix is kept too.

    >>> print(make_plan(2000, 10, 10, memory_limit="1GiB", n_jobs=2))
    n = 2000, p = 10, d = 10: solver 'exact', float64, 2 threads, 67.9 MiB of 1.0 GiB
      n <= 15000: the exact solver costs n^3 flops an evaluation and one n^2 buffer
      float64: n <= 15000 and 67.9 MiB fit
    """
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    if solver != "auto" and solver not in SOLVERS:
        raise InputError(f"solver={solver!r}: give one of auto, {', '.join(SOLVERS)}")
    if solver != "auto" and solver not in AVAILABLE:
        raise SolverUnavailable(f"solver={solver!r} is not in this version; available: auto, {', '.join(AVAILABLE)}")
    if n > LAPACK_ROWS:
        raise SolverUnavailable(
            f"n = {n}: LAPACK counts the entries of a matrix in 32 bits, which end at {LAPACK_ROWS} rows; "
            f"use solver='cg' or 'inducing'{_coming('cg')}, or fewer rows"
        )
    sizes = {name: exact_bytes(n, p, d, np.dtype(name).itemsize, jobs, gram) for name in ("float64", "float32")}
    if dtype == "auto":
        roomy = n <= FLOAT64_ROWS and sizes["float64"] <= limit
        chosen = "float64" if roomy else "float32"
        why = (
            f"float64: n <= {FLOAT64_ROWS} and {format_bytes(sizes['float64'])} fit"
            if roomy
            else f"float32 factor, solves refined in float64: n > {FLOAT64_ROWS}"
            if n > FLOAT64_ROWS
            else f"float32 factor, solves refined in float64: float64 needs {format_bytes(sizes['float64'])}"
        )
    else:
        chosen, why = _dtype_name(dtype), "dtype as asked"
    needed = sizes[chosen]
    if needed > limit:
        raise MemoryLimitError(
            f"the exact solver needs {format_bytes(needed)} for n = {n} ({chosen}), memory_limit is {format_bytes(limit)}: "
            f"raise memory_limit, fit fewer rows, or use solver='inducing' (memory flat in n)" + _coming("inducing")
        )
    if solver == "auto" and n > EXACT_ROWS:
        raise SolverUnavailable(
            f"n = {n} is beyond the exact solver ({EXACT_ROWS} rows): use solver='cg' or 'inducing'{_coming('cg')}, "
            "solver='exact' if you mean it, or fewer rows"
        )
    reason = (
        "solver as asked"
        if solver != "auto"
        else f"n <= {FLOAT64_ROWS if n <= FLOAT64_ROWS else EXACT_ROWS}: the exact solver costs n^3 flops an evaluation "
        "and one n^2 buffer"
    )
    return Plan(n, p, d, "exact", np.dtype(chosen).type, jobs, needed, limit, [reason, why])


def _coming(solver: str) -> str:
    return "" if solver in AVAILABLE else " (not in this version yet)"


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in ("float64", "float32"):
        raise InputError(f'dtype={dtype!r}: give "auto", "float64" or "float32"')
    return name
