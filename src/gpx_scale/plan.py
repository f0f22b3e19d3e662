"""Sizes -> solver, precision, memory; printable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .data.row_source import BLOCK
from .errors import InputError, MemoryLimitError, SolverUnavailable
from .linalg.covariance import COLUMNS, GROUPS, STRIP, WIDE
from .linalg.sparse_covariance import PAIR_BYTES
from .runtime.arguments import flag, positive, whole
from .runtime.memory import counted, format_bytes, parse_memory, within
from .runtime.parallel import TILE, effective_jobs
from .solvers.basis.laplacian_basis import (
    BASIS_MOST,
    basis_bytes,
    counts_of,
    functions_in,
    must_have_density,
    suits_a_basis,
)
from .solvers.cg.solver import LESS
from .solvers.grid.interpolation import (
    ROUGHEST,
    grid_bytes,
    must_be_smooth,
    points_of,
    points_per_length,
    resolves,
)
from .solvers.low_dimensional import InputExtent, InputResolution, must_be_low
from .solvers.neighborhood import SHARED

INDUCING = ("inducing", "nystrom")  # two names for one
BY_PASSES = ("inducing", "basis", "grid")  # rows may be elsewhere, or length scales are to be found on a sample of them
SOLVERS = ("exact", "cg", *INDUCING, "basis", "grid")
EXACT_ROWS = 10_000  # up to which `auto` is exact: minutes, and variances that are exact too (docs/scaling.md)
FLOAT64_ROWS = 15_000  # of the exact solver: beyond, half the time and memory by a float32 factor
LAPACK_ROWS = 46_340
SUBSET_ROWS = 5_000  # of the exact search that `cg` starts from
RANK_PER_ROOT, LARGEST_RANK, SMALLEST_RANK = 14.0, 3_000, 64
DENSE = 0.5  # density of ZZ^T from which tiles are faster than pairs
CG_ROWS = 100_000  # up to which `auto` takes `cg` of a dense Z: beyond, n^2 kernel values a product are minutes
INDUCING_SUBSET = 2_000  # of the exact search that `inducing` starts from
SAMPLE_PER_POINT, SMALLEST_SAMPLE = 10, 10_000  # rows that inducing points are chosen from, and moved on
GRID_RANK, GRID_COARSEST = 1_000, 0.6  # of the preconditioner at most; share of the points that should be
BASIS_SUBSET = 1_000  # of the exact search that length scales come from
ANY = InputResolution()  # a smooth kernel of vectors
PAIRS_SUBSET = 2_500  # of a sparse Z: evaluations on all rows cost less, so a subset has less to save


def streamed_from(solver: str) -> float:
    """Return the number of rows above which a memory map is streamed to this solver, and not loaded."""
    if solver in (*INDUCING, "basis"):
        return 0
    return CG_ROWS if solver == "auto" else float("inf")


@dataclass(frozen=True)
class Plan:
    """How a fit will run. `print(plan)` says why; `bytes_needed` is known before anything is allocated.

    `form`, `rank`, `try_jacobi`, `subset` and `shared` are of the iterative solver: how it holds C ("stored" or "recomputed"
    tiles, "pairs" of a sparse Z, a "grid"), the preconditioner's rank at most, whether none may do better, the rows that its
    hyperparameters start from, and those that all its variances condition on. `points` and `sample` are of the inducing
    solver: its points, and the rows that they are chosen from and moved on. `count` is of the basis, its functions a dimension
    (None: as many as the length scales ask for), and of the grid, its points (None: a `share` of what they ask for), `extent`
    what x they are for. `again` plans once more, with length scales; until then the plan is `provisional`.
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
    form: str = ""
    rank: int = 0
    try_jacobi: bool = False
    subset: int = 0
    shared: int = 0
    points: int = 0
    sample: int = 0
    count: Any = None
    share: float = 1.0
    density: float = 1.0
    stream: bool = False
    extent: InputExtent | None = field(default=None, repr=False, compare=False)
    again: Callable[[InputResolution], Plan] | None = field(default=None, repr=False, compare=False)

    @property
    def provisional(self) -> bool:
        return self.again is not None

    def __str__(self) -> str:
        wide = f"d = {self.d}{' a row' if self.form == 'pairs' else ''}"
        head = (
            f"n = {self.n}, p = {self.p}, {wide}: solver {self.solver!r}, {np.dtype(self.dtype).name}, "
            f"{counted(self.n_jobs, 'thread')}, {format_bytes(self.bytes_needed)} of {format_bytes(self.memory_limit)}"
        )
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


def exact_bytes(n: int, p: int, d: int, itemsize: int, n_jobs: int, gram: bool = False) -> int:
    """The buffer, a kernel function's Gram matrix, points and features, tiles in work."""
    return (
        itemsize * n * n
        + 8 * n * n * gram
        + 8 * n * (4 * (p + 2) + 3 * d + 10)
        + n_jobs * 4 * 8 * min(n, TILE) * min(n, 4 * TILE)
    )


def cg_bytes(
    n: int, p: int, d: int, *, form: str, rank: int, subset: int, n_jobs: int, gram: bool = False, density: float = 1.0
) -> int:
    """Tiles if kept, the preconditioner and a copy of it while it is differentiated, vectors, partial sums, tiles in work;
    or the subset's exact search, if that is more."""
    tiles = {"stored": 2 * n * n + 4 * STRIP * n, "pairs": pair_bytes(n, density, n_jobs), "recomputed": 0}[form]
    vectors = 8 * n * (8 * COLUMNS + (0 if form == "pairs" else GROUPS * COLUMNS))
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
    density: float | None = None,
    radial: bool = True,
    n_inducing: int = 1000,
    stream: bool = False,
    n_basis: int | str = "auto",
    low: InputResolution | None = ANY,
) -> Plan:
    """Choose solver, precision, form of C and rank for n rows, p columns of X, d of Z; `gram`: a kernel function's matrix is
    kept; `density` of ZZ^T for a sparse Z (d is then the entries a row); `radial`: k is a function of distance alone;
    `stream`: rows come in chunks, and are not kept; `low`: what is known of k and x in few dimensions, None where X or Z is
    sparse or k is not a kernel of vectors.

    >>> print(make_plan(2000, 10, 10, memory_limit="1GiB", n_jobs=2))
    n = 2000, p = 10, d = 10: solver 'exact', float64, 2 threads, 67.9 MiB of 1.0 GiB
      n <= 10000: everything exact, for n^3 flops an evaluation and one n^2 buffer
      float64: 67.9 MiB, within memory_limit
    >>> print(make_plan(50_000, 10, 10, memory_limit="16GiB", n_jobs=2))
    n = 50000, p = 10, d = 10: solver 'cg', float32, 2 threads, 9.0 GiB of 16.0 GiB
      n > 10000: conjugate gradients, a product at a time
      tiles stored in float32: 9.0 GiB, within memory_limit
      preconditioner of rank 3000 at most: 14 sqrt(n), no more than 3000
      hyperparameters start from 5000 rows, exactly
    >>> print(make_plan(20_000, 256, 9, memory_limit="4GiB", n_jobs=2, density=0.03))
    n = 20000, p = 256, d = 9 a row: solver 'cg', float32, 2 threads, 1.4 GiB of 4.0 GiB
      n > 10000: conjugate gradients, a product at a time
      pairs that share a feature: 3.0%, 0.1 GiB
      preconditioner: Jacobi, or rank 495 if that is faster; 1979 if it must be
      hyperparameters start from 2500 rows, exactly
    >>> print(make_plan(1_000_000, 10, 10, memory_limit="4GiB", n_jobs=2, stream=True))
    n = 1000000, p = 10, d = 10: solver 'inducing', float64, 2 threads, 0.2 GiB of 4.0 GiB
      rows come in chunks: sums over them are all that is kept
      1000 inducing points: 4 n m^2 flops an evaluation, over two passes
      chosen from, and moved on, a sample of 10000 rows; hyperparameters start from 2000 of them, exactly
    """
    given = dict(locals())

    def again(low: InputResolution) -> Plan:
        """The same with length scales."""
        return make_plan(**{**given, "low": low})

    n, p, d = whole(n, "n", least=1), whole(p, "p", least=0), whole(d, "d", least=1)
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    if not isinstance(solver, str) or solver not in ("auto", *SOLVERS):
        raise InputError(f"solver={solver!r}: give one of auto, {', '.join(SOLVERS)}")
    if not isinstance(rank, str) or rank != "auto":
        whole(rank, "preconditioner_rank", least=1)
    gram, radial, stream = flag(gram, "gram"), flag(radial, "radial"), flag(stream, "stream")
    if density is not None and not 0.0 <= positive(density, "density", zero=True) <= 1.0:
        raise InputError(f"density={density!r}: give a share between 0 and 1, or None")
    points = whole(n_inducing, "n_inducing", least=1)
    asked = "auto" if isinstance(dtype, str) and dtype == "auto" else _dtype_name(dtype)
    inducing = solver in INDUCING
    count = None if isinstance(n_basis, str) and n_basis == "auto" else whole(n_basis, "n_basis", least=2)
    if stream and solver in ("exact", "cg", "grid"):
        raise InputError(
            f"solver={solver!r} needs all rows in memory: fit a stream with solver='inducing', or 'basis' if X has few columns"
        )
    if solver in ("basis", "grid"):
        must_be_low(p, low, asked, solver)
        assert low is not None
        must_have_density(low) if solver == "basis" else must_be_smooth(low)
    if solver == "basis" or (solver == "auto" and suits_a_basis(n, p, d, low, stream, count, EXACT_ROWS)):
        assert low is not None
        reason = f"X of {counted(p, 'column')}: functions on a box, one pass over the rows"
        reason = "solver as asked" if solver == "basis" else reason
        plan = _basis_plan(n, p, d, reason, limit, jobs, stream, count, low)
        return plan if low.spans is not None else replace(plan, again=again)
    suits_a_grid = low is not None and low.spans is not None and low.smoothness >= ROUGHEST
    if solver == "grid" or (solver == "auto" and suits_a_grid and not stream and n > EXACT_ROWS):
        assert low is not None
        short = "solver as asked" if solver == "grid" else "length scales too short for a basis: interpolation on a grid"
        try:
            plan = _grid_plan(n, p, d, short, limit, jobs, count, rank, low)
            return plan if low.spans is not None else replace(plan, again=again)
        except MemoryLimitError:
            if solver == "grid":
                raise
    if stream or inducing:
        if asked == "float32" and inducing:
            raise InputError('dtype="float32": the inducing solver adds up in float64; give dtype="auto"')
        reason = "rows come in chunks: sums over them are all that is kept" if stream else "solver as asked"
        return _inducing_plan(n, p, d, reason, limit, jobs, points, stream)
    if solver == "exact" or (solver == "auto" and n <= EXACT_ROWS):
        try:
            return _exact_plan(n, p, d, solver, asked, limit, jobs, gram)
        except MemoryLimitError as too_much:
            if solver == "exact":
                raise
            reason = f"n <= {EXACT_ROWS}, but {str(too_much).split(':')[0]}"
    else:
        reason = "solver as asked" if solver == "cg" else f"n > {EXACT_ROWS}: conjugate gradients, a product at a time"
    density = density if radial else None
    if solver == "auto" and n > CG_ROWS and (density is None or density >= DENSE):
        reason = f"n > {CG_ROWS}: inducing points, whose cost grows with n only"
        return _inducing_plan(n, p, d, reason, limit, jobs, points, stream)
    try:
        return _cg_plan(n, p, d, reason, asked, limit, jobs, gram, rank, density)
    except MemoryLimitError as too_much:
        if solver == "cg" or rank != "auto":
            raise
        reason = str(too_much).split(":")[0]
    return _inducing_plan(n, p, d, reason, limit, jobs, points, stream)


def _basis_plan(
    n: int, p: int, d: int, reason: str, limit: int, jobs: int, stream: bool, count: int | None, low: InputResolution
) -> Plan:
    subset, reasons = min(n, BASIS_SUBSET), [reason]
    search = exact_bytes(subset, p, d, 8, jobs) + 8 * (p + 2 * d + 4) * (0 if stream else n)
    counts = np.full(p, count) if count is not None else None
    if low.spans is not None and counts is None:
        counts = counts_of(low, BASIS_MOST // d)
    if counts is None:
        needed = search
        reasons.append(f"as many as the length scales ask for, which are found on {subset} rows, exactly")
    else:
        needed = max(search, basis_bytes(n, p, d, counts, 14, jobs, stream))
        q = int(functions_in(counts))
        lengths = "" if low.spans is None else f", data of {', '.join(f'{2 * s:.1f}' for s in low.spans)} length scales"
        reasons.append(f"about {q} functions for each weight ({' x '.join(map(str, counts))}){lengths}: {q * d} in all")
    plan = Plan(n, p, d, "basis", np.float64, jobs, int(needed), limit, reasons)
    within(search, limit, "the basis solver's search on a subset")
    if count is not None:
        within(int(needed), limit, f"a basis of {count} functions a column of X for each of {d} weights", "a smaller n_basis")
    return replace(plan, subset=subset, stream=stream, count=count)


def _grid_plan(
    n: int, p: int, d: int, reason: str, limit: int, jobs: int, count: int | None, rank: int | str, low: InputResolution
) -> Plan:
    """A grid as fine as memory allows, down to GRID_COARSEST of what it should be; then less rank."""
    subset, reasons = min(n, BASIS_SUBSET), [reason]
    wanted = int(min(n, GRID_RANK, max(SMALLEST_RANK, 4.0 * np.sqrt(n)))) if rank == "auto" else min(n, int(rank))
    shared = min(n, GRID_RANK)
    if low.spans is None:
        needed = exact_bytes(subset, p, d, 8, jobs) + 8 * n * (p + 2 * d + 4)
        within(needed, limit, "the grid solver's search on a subset")
        reasons.append(f"as fine as the length scales ask for, which are found on {subset} rows, exactly")
        return replace(Plan(n, p, d, "grid", np.float64, jobs, needed, limit, reasons), subset=subset, count=count)
    shares = [share for share in (1.0, 0.8, GRID_COARSEST) if resolves(low, share)] if count is None else [1.0]
    ranks = [wanted, *(r for r in (wanted // 2, wanted // 4) if rank == "auto" and r >= SMALLEST_RANK)]
    for share, rank_used in ((a, b) for b in ranks for a in shares):
        points = points_of(low, share) if count is None else np.full(p, count)
        needed = grid_bytes(n, p, d, points, rank_used, min(shared, 4 * rank_used), jobs)
        if needed <= limit:
            break
    shape = " x ".join(map(str, points))
    within(needed, limit, f"a grid of {shape} points for each of {d} weights", "a smaller n_basis, or fewer rows")
    how = f"{points_per_length(low, share):.0f} points a length scale" if count is None else "as asked"
    reasons += [f"a grid of {shape} points, {how}", f"preconditioner of rank {rank_used} at most"]
    plan = Plan(n, p, d, "grid", np.float64, jobs, needed, limit, reasons, "grid", rank_used)
    return replace(plan, subset=subset, count=count, share=share, shared=min(shared, 4 * rank_used))


def inducing_bytes(n: int, p: int, d: int, *, points: int, sample: int, subset: int, n_jobs: int, stream: bool) -> int:
    """Rows unless they stream, the sample with its factor, m^2 matrices (two partial sums a worker), blocks in work."""
    held = 8 * (p + 2 * d + 4) * (0 if stream else n)
    choosing = 8 * sample * (points + 4 * (p + d + 2))
    passing = 8 * (points**2 * (2 * n_jobs + 8) + n_jobs * 5 * BLOCK * (points + p + d))
    return held + max(choosing, passing, exact_bytes(subset, p, d, 8, n_jobs))


def sample_rows(n_inducing: int) -> int:
    """Rows that inducing points are chosen from, and moved on."""
    return max(SMALLEST_SAMPLE, SAMPLE_PER_POINT * n_inducing)


def _inducing_plan(n: int, p: int, d: int, reason: str, limit: int, jobs: int, asked: int, stream: bool) -> Plan:
    points = min(n, asked)
    sample, subset = min(n, sample_rows(asked)), min(n, INDUCING_SUBSET)
    needed = inducing_bytes(n, p, d, points=points, sample=sample, subset=subset, n_jobs=jobs, stream=stream)
    within(needed, limit, f"the inducing solver (m = {points})", "a smaller n_inducing")
    reasons = [
        reason,
        f"{points} inducing points{f', all rows: {asked} asked for' if asked > n else ''}: 4 n m^2 flops an evaluation, "
        "over two passes",
        f"chosen from, and moved on, a sample of {sample} rows; hyperparameters start from {subset} of them, exactly",
    ]
    plan = Plan(n, p, d, "inducing", np.float64, jobs, needed, limit, reasons)
    return replace(plan, subset=subset, points=points, sample=sample)


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
        chosen, why = "float64", f"float64: {format_bytes(sizes['float64'])}, within memory_limit"
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


def _cg_plan(
    n: int,
    p: int,
    d: int,
    reason: str,
    dtype: str,
    limit: int,
    jobs: int,
    gram: bool,
    rank: int | str,
    density: float | None,
) -> Plan:
    """The pairs of a sparse Z where they are few and fit; else stored float32 tiles where they fit beside the preconditioner,
    recomputed ones where not; less rank, then a smaller subset, where memory is short."""

    def needs(form: str, rank: int, subset: int) -> int:
        return cg_bytes(n, p, d, form=form, rank=rank, subset=subset, n_jobs=jobs, gram=gram, density=density or 1.0)

    reasons = [reason]
    sparse = density is not None and density < DENSE
    if density is not None and not sparse:
        reasons.append(f"{density:.0%} of all pairs of rows share a feature: tiles, not pairs")
    least = SMALLEST_RANK if rank == "auto" else min(n, int(rank))
    if sparse and needs("pairs", least, 0) > limit:
        sparse = False
        reasons.append(f"{density:.1%} of all pairs share a feature, but they need {format_bytes(needs('pairs', least, 0))}")
    subset = min(n, PAIRS_SUBSET if sparse else SUBSET_ROWS)
    wanted = usual_rank(n) if rank == "auto" else min(n, int(rank))
    kept = needs("stored", wanted, subset)
    form = "pairs" if sparse else "stored" if dtype != "float64" and kept <= limit else "recomputed"
    why = f"{RANK_PER_ROOT:.0f} sqrt(n), no more than {LARGEST_RANK}"
    if rank != "auto":
        why = "as asked" if wanted == rank else f"all rows: {rank} asked for"
    while rank == "auto" and wanted > SMALLEST_RANK and needs(form, wanted, 0) > limit:
        wanted, why = max(SMALLEST_RANK, wanted // 2), "what memory_limit leaves"
    while subset > 500 and needs(form, wanted, subset) > limit:
        subset = max(500, subset // 2)
    needed = needs(form, wanted, subset)
    remedy = "a smaller preconditioner_rank" if rank != "auto" else "fewer rows"
    within(needed, limit, f"the iterative solver (n = {n}, rank {wanted}, one strip of tiles a worker)", remedy)
    try_jacobi = sparse and rank == "auto"
    reasons += [
        {
            "pairs": f"pairs that share a feature: {density or 0:.1%}, {format_bytes(pair_bytes(n, density or 0, jobs))}",
            "stored": f"tiles stored in float32: {format_bytes(needed)}, within memory_limit",
            "recomputed": "tiles recomputed: float64 as asked"
            if dtype == "float64"
            else f"tiles recomputed for each product: stored they need {format_bytes(kept)}",
        }[form],
        f"preconditioner: Jacobi, or rank {-(-wanted // LESS)} if that is faster; {wanted} if it must be"
        if try_jacobi
        else f"preconditioner of rank {wanted} at most: {why}",
        f"hyperparameters start from {subset} rows, exactly" if subset < n else "hyperparameters from all rows, exactly",
    ]
    kind = np.float64 if dtype == "float64" else np.float32
    affordable = limit // (4 * 12 * n)  # n numbers in float64 and, for a moment, in float32 each
    shared = 0 if sparse else min(n, max(wanted, min(SHARED, affordable)))
    met = (density or 1.0) if form == "pairs" else 1.0
    return Plan(n, p, d, "cg", kind, jobs, needed, limit, reasons, form, wanted, try_jacobi, subset, shared, density=met)


def pair_bytes(n: int, density: float, n_jobs: int) -> int:
    """The pairs of a sparse Z: what is kept of each, pointers to them, and what a worker needs to list those of a tile."""
    pairs = 0.5 * density * n * n
    return int(pairs * PAIR_BYTES + 4 * n * (n / 128) / 2 + n_jobs * 24 * pairs / 64)


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in ("float64", "float32"):
        raise InputError(f'dtype={dtype!r}: give "auto", "float64" or "float32"')
    return name
