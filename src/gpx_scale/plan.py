"""Sizes -> solver, precision, memory; printable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .covariance import COLUMNS, GROUPS, STRIP, TILE, WIDE
from .errors import InputError, MemoryLimitError, SolverUnavailable
from .local import SHARED
from .params import whole
from .runtime import effective_jobs, format_bytes, parse_memory

AVAILABLE = ("exact", "cg")
SOLVERS = ("exact", "cg", "inducing", "nystrom", "basis", "grid")
EXACT_ROWS = 10_000  # up to which `auto` is exact: minutes, and variances that are exact too (docs/scaling.md)
FLOAT64_ROWS = 15_000  # of the exact solver: beyond, half the time and memory by a float32 factor
LAPACK_ROWS = 46_340
SUBSET_ROWS = 5_000  # of the exact search that `cg` starts from
RANK_PER_ROOT, LARGEST_RANK, SMALLEST_RANK = 14.0, 3_000, 64


@dataclass(frozen=True)
class Plan:
    """How a fit will run. `print(plan)` says why; `bytes_needed` is known before anything is allocated.

    `stored`, `rank`, `subset` and `shared` are of the iterative solver: whether it keeps its tiles, the preconditioner's rank
    at most, the rows that its hyperparameters start from, and those that all its variances condition on.
    """

    n: int
    p: int
    d: int
    solver: str
    dtype: Any
    n_jobs: int
    bytes_needed: int
    memory_limit: int
    reasons: list[str] = field(default_factory=list)
    stored: bool = False
    rank: int = 0
    subset: int = 0
    shared: int = 0

    def __str__(self) -> str:
        head = (
            f"n = {self.n}, p = {self.p}, d = {self.d}: solver {self.solver!r}, {np.dtype(self.dtype).name}, "
            f"{self.n_jobs} threads, {format_bytes(self.bytes_needed)} of {format_bytes(self.memory_limit)}"
        )
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


def chunk_bytes(memory_limit: int) -> int:
    """Working memory for one chunk of queries: large enough for BLAS, small beside the limit."""
    return max(2**20, min(2**28, memory_limit // 8))


def exact_bytes(n: int, p: int, d: int, itemsize: int, n_jobs: int, gram: bool = False) -> int:
    """The buffer, a kernel function's Gram matrix, points and features, tiles in work."""
    return (
        itemsize * n * n
        + 8 * n * n * gram
        + 8 * n * (4 * (p + 2) + 3 * d + 10)
        + n_jobs * 4 * 8 * min(n, TILE) * min(n, 4 * TILE)
    )


def cg_bytes(n: int, p: int, d: int, *, stored: bool, rank: int, subset: int, n_jobs: int, gram: bool = False) -> int:
    """Tiles if kept, the preconditioner and a copy of it while it is differentiated, vectors, partial sums, tiles in work;
    or the subset's exact search, if that is more."""
    tiles = 2 * n * n + 4 * STRIP * n if stored else 0
    vectors = 8 * n * (8 * COLUMNS + GROUPS * COLUMNS)
    working = n_jobs * 4 * 8 * min(n, STRIP) * min(n, WIDE) + 8 * n * (4 * (p + 2) + 3 * d + 10)
    iterating = tiles + 3 * 8 * n * rank + 4 * 8 * rank * rank + vectors + working
    return 8 * n * n * gram + max(iterating, exact_bytes(subset, p, d, 8, n_jobs))


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
    rank: int | str = "auto",
) -> Plan:
    """Choose solver, precision, tiles and rank for n rows, p columns of X, d of Z; `gram`: a kernel function's matrix is kept.

    >>> print(make_plan(2000, 10, 10, memory_limit="1GiB", n_jobs=2))
    n = 2000, p = 10, d = 10: solver 'exact', float64, 2 threads, 67.9 MiB of 1.0 GiB
      n <= 10000: everything exact, for n^3 flops an evaluation and one n^2 buffer
      float64: 67.9 MiB fit
    >>> print(make_plan(50_000, 10, 10, memory_limit="16GiB", n_jobs=2))
    n = 50000, p = 10, d = 10: solver 'cg', float32, 2 threads, 9.0 GiB of 16.0 GiB
      n > 10000: conjugate gradients cost n^2 flops a product
      tiles stored in float32: 9.0 GiB fit
      preconditioner of rank 3000 at most: 14 sqrt(n), no more than 3000
      hyperparameters start from 5000 rows, exactly
    """
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    if solver != "auto" and solver not in SOLVERS:
        raise InputError(f"solver={solver!r}: give one of auto, {', '.join(SOLVERS)}")
    if solver != "auto" and solver not in AVAILABLE:
        raise SolverUnavailable(f"solver={solver!r} is not in this version; available: auto, {', '.join(AVAILABLE)}")
    if rank != "auto":
        whole(rank, "preconditioner_rank", least=1)
    asked = "auto" if dtype == "auto" else _dtype_name(dtype)
    if solver == "exact" or (solver == "auto" and n <= EXACT_ROWS):
        try:
            return _exact_plan(n, p, d, solver, asked, limit, jobs, gram)
        except MemoryLimitError as too_much:
            if solver == "exact":
                raise
            reason = f"n <= {EXACT_ROWS}, but {str(too_much).split(':')[0]}"
    else:
        reason = "solver as asked" if solver == "cg" else f"n > {EXACT_ROWS}: conjugate gradients cost n^2 flops a product"
    return _cg_plan(n, p, d, reason, asked, limit, jobs, gram, rank)


def usual_rank(n: int) -> int:
    """Where building the preconditioner and iterating with it cost about the same."""
    return int(min(n, LARGEST_RANK, max(SMALLEST_RANK, RANK_PER_ROOT * np.sqrt(n))))


def _exact_plan(n: int, p: int, d: int, solver: str, dtype: str, limit: int, jobs: int, gram: bool) -> Plan:
    if n > LAPACK_ROWS:
        raise SolverUnavailable(
            f"n = {n}: LAPACK counts the entries of a matrix in 32 bits, which end at {LAPACK_ROWS} rows; use solver='cg'"
        )
    sizes = {name: exact_bytes(n, p, d, np.dtype(name).itemsize, jobs, gram) for name in ("float64", "float32")}
    if dtype != "auto":
        chosen, why = dtype, "dtype as asked"
    elif n <= FLOAT64_ROWS and sizes["float64"] <= limit:
        chosen, why = "float64", f"float64: {format_bytes(sizes['float64'])} fit"
    else:
        chosen = "float32"
        short = f"float64 needs {format_bytes(sizes['float64'])}" if n <= FLOAT64_ROWS else f"n > {FLOAT64_ROWS}"
        why = f"float32 factor, solves refined in float64: {short}"
    within(sizes[chosen], limit, f"the exact solver ({chosen}, n = {n})", "solver='cg' (n^2 numbers are not kept)")
    reason = (
        "solver as asked"
        if solver != "auto"
        else f"n <= {EXACT_ROWS}: everything exact, for n^3 flops an evaluation and one n^2 buffer"
    )
    return Plan(n, p, d, "exact", np.dtype(chosen).type, jobs, sizes[chosen], limit, [reason, why])


def _cg_plan(n: int, p: int, d: int, reason: str, dtype: str, limit: int, jobs: int, gram: bool, rank: int | str) -> Plan:
    """Stored float32 tiles where they fit beside the preconditioner, recomputed ones where not; less rank, then a smaller
    subset, where memory is short."""
    if rank == "auto":
        wanted = usual_rank(n)
        why = f"{RANK_PER_ROOT:.0f} sqrt(n), no more than {LARGEST_RANK}"
    else:
        wanted = min(n, int(rank))
        why = "as asked" if wanted == rank else f"all rows: {rank} asked for"
    subset = min(n, SUBSET_ROWS)

    def needs(stored: bool, rank: int, subset: int) -> int:
        return cg_bytes(n, p, d, stored=stored, rank=rank, subset=subset, n_jobs=jobs, gram=gram)

    kept = needs(True, wanted, subset)
    stored = dtype != "float64" and kept <= limit
    if stored:
        tiles = f"tiles stored in float32: {format_bytes(kept)} fit"
    elif dtype == "float64":
        tiles = "tiles recomputed: float64 as asked"
    else:
        tiles = f"tiles recomputed for each product: stored they need {format_bytes(kept)}"
        while rank == "auto" and wanted > SMALLEST_RANK and needs(False, wanted, 0) > limit:
            wanted, why = max(SMALLEST_RANK, wanted // 2), "what memory_limit leaves"
        while subset > 500 and needs(False, wanted, subset) > limit:
            subset = max(500, subset // 2)
    needed = needs(stored, wanted, subset)
    remedy = "a smaller preconditioner_rank" if rank != "auto" else "fewer rows"
    within(needed, limit, f"the iterative solver (n = {n}, rank {wanted}, one strip of tiles a worker)", remedy)
    reasons = [
        reason,
        tiles,
        f"preconditioner of rank {wanted} at most: {why}",
        f"hyperparameters start from {subset} rows, exactly" if subset < n else "hyperparameters from all rows, exactly",
    ]
    kind = np.float64 if dtype == "float64" else np.float32
    shared = min(n, max(wanted, min(SHARED, limit // (4 * 12 * n))))  # n numbers in float64 and, for a moment, in float32 each
    return Plan(n, p, d, "cg", kind, jobs, needed, limit, reasons, stored, wanted, subset, shared)


def within(needed: int, limit: int, what: str, instead: str = "fewer rows") -> None:
    """Refuse before allocating."""
    if needed > limit:
        raise MemoryLimitError(
            f"{what} needs {format_bytes(needed)}, memory_limit is {format_bytes(limit)}: raise memory_limit, or use {instead}"
        )


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in ("float64", "float32"):
        raise InputError(f'dtype={dtype!r}: give "auto", "float64" or "float32"')
    return name
