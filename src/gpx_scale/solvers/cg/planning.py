"""What conjugate gradients will hold and how long they may take: form of C, rank of the preconditioner, subset, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.inputs import Preprocessor
from ...linalg.covariance import PARTIAL_SUMS, PRODUCT_COLUMNS, STRIP_ROWS, TILE_COLUMNS
from ...linalg.sparse_covariance import PAIR_BYTES
from ...runtime.memory import format_bytes
from ...runtime.state import must, stored
from ..contract import Plan, Problem, SolverSettings
from ..neighborhood import SHARED

SUBSET_ROWS = 5_000  # of the exact search that conjugate gradients start from
PAIRS_SUBSET = (
    2_500  # of a sparse Z: evaluations on all rows cost less, so a subset has less to save
)
SMALLEST_SUBSET = 500
RANK_PER_ROOT, LARGEST_RANK, SMALLEST_RANK = 14.0, 3_000, 64
DENSE = 0.5  # density of ZZ^T from which tiles are faster than pairs
TRIAL_RANK_DIVISOR = (
    4  # The Jacobi preconditioner is compared with a low-rank one that has a quarter of the pivots.
)


@stored
@dataclass(frozen=True)
class CGSettings(SolverSettings):
    """What conjugate gradients plan.

    C is held as "stored" or "recomputed" tiles, as "pairs" of a sparse Z, or on a "grid". `rank` of the preconditioner at
    most; `try_jacobi`: whether none may do better. Variances condition all queries on `shared` rows.
    """

    form: str
    rank: int
    try_jacobi: bool = False
    shared: int = 0
    pair_density: float = 1.0

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must(0.0 <= self.pair_density <= 1.0, "a share of its plan is not one")
        must(min(self.rank, self.shared) >= 0, "a count of its plan is negative")


def usual_rank(n: int) -> int:
    """Return the rank where building the preconditioner and iterating with it cost about the same."""
    return int(min(n, LARGEST_RANK, max(SMALLEST_RANK, RANK_PER_ROOT * np.sqrt(n))))


def pair_bytes(n: int, density: float, n_jobs: int) -> int:
    """Return the memory of pairs of a sparse Z: what is kept of each, pointers, and what listing those of a tile needs."""
    pairs = 0.5 * density * n * n
    return int(pairs * PAIR_BYTES + 4 * n * (n / 128) / 2 + n_jobs * 24 * pairs / 64)


def cg_bytes(problem: Problem, form: str, rank: int, subset: int) -> int:
    """Return the memory of tiles if kept, preconditioner (and a copy while it is differentiated), vectors, partial sums and
    tiles in work; or that of the subset's exact search, if it is more."""
    n, n_jobs = problem.n, problem.n_jobs
    tiles = {
        "stored": 2 * n * n + 4 * STRIP_ROWS * n,
        "pairs": pair_bytes(n, problem.pair_density or 1.0, n_jobs),
        "recomputed": 0,
    }[form]
    vectors = (
        8 * n * (8 * PRODUCT_COLUMNS + (0 if form == "pairs" else PARTIAL_SUMS * PRODUCT_COLUMNS))
    )
    working = n_jobs * 4 * 8 * min(n, STRIP_ROWS) * min(n, TILE_COLUMNS) + 8 * n * (
        4 * (problem.p + 2) + 3 * problem.d + 10
    )
    iterating = tiles + 3 * 8 * n * rank + 4 * 8 * rank * rank + vectors + working
    return 8 * n * n * problem.gram + max(iterating, problem.exact_bytes(subset))


def plan_conjugate_gradients(problem: Problem, reason: str) -> Plan:
    """Return a plan: pairs of a sparse Z where they are few and fit; else stored float32 tiles where they fit beside the
    preconditioner, recomputed ones where not; less rank, then a smaller subset, where memory is short."""
    n, limit, density, dtype = (
        problem.n,
        problem.memory_limit,
        problem.pair_density,
        problem.options.dtype,
    )
    rank = problem.options.rank

    def needs(form: str, rank: int, subset: int) -> int:
        return cg_bytes(problem, form, rank, subset)

    reasons = [reason]
    sparse = density is not None and density < DENSE
    if density is not None and not sparse:
        reasons.append(f"{density:.0%} of all pairs of rows share a feature: tiles, not pairs")
    least = SMALLEST_RANK if rank is None else min(n, rank)
    if sparse and needs("pairs", least, 0) > limit:
        sparse = False
        listed = format_bytes(needs("pairs", least, 0))
        reasons.append(f"{density:.1%} of all pairs share a feature, but they need {listed}")
    subset = min(n, PAIRS_SUBSET if sparse else SUBSET_ROWS)
    wanted = usual_rank(n) if rank is None else min(n, rank)
    kept = needs("stored", wanted, subset)
    form = "pairs" if sparse else "stored" if dtype != "float64" and kept <= limit else "recomputed"
    why = f"{RANK_PER_ROOT:.0f} sqrt(n), no more than {LARGEST_RANK}"
    if rank is not None:
        why = "as asked" if wanted == rank else f"all rows: {rank} asked for"
    while rank is None and wanted > SMALLEST_RANK and needs(form, wanted, 0) > limit:
        wanted, why = max(SMALLEST_RANK, wanted // 2), "what memory_limit leaves"
    while subset > SMALLEST_SUBSET and needs(form, wanted, subset) > limit:
        subset = max(SMALLEST_SUBSET, subset // 2)
    needed = needs(form, wanted, subset)
    remedy = "a smaller preconditioner_rank" if rank is not None else "fewer rows"
    problem.require(
        needed,
        f"the iterative solver (n = {n}, rank {wanted}, one strip of tiles a worker)",
        remedy,
    )
    try_jacobi = sparse and rank is None
    reasons += [
        {
            "pairs": f"pairs that share a feature: {density or 0:.1%}, "
            f"{format_bytes(pair_bytes(n, density or 0, problem.n_jobs))}",
            "stored": f"tiles stored in float32: {format_bytes(needed)}, within memory_limit",
            "recomputed": "tiles recomputed: float64 as asked"
            if dtype == "float64"
            else f"tiles recomputed for each product: stored they need {format_bytes(kept)}",
        }[form],
        f"preconditioner: Jacobi, or rank {-(-wanted // TRIAL_RANK_DIVISOR)} if that is faster; {wanted} if it must be"
        if try_jacobi
        else f"preconditioner of rank {wanted} at most: {why}",
        f"hyperparameters start from {subset} rows, exactly"
        if subset < n
        else "hyperparameters from all rows, exactly",
    ]
    kind = np.float64 if dtype == "float64" else np.float32
    affordable = limit // (4 * 12 * n)  # n numbers in float64 and, for a moment, in float32 each
    shared = 0 if sparse else min(n, max(wanted, min(SHARED, affordable)))
    met = (density or 1.0) if form == "pairs" else 1.0
    settings = CGSettings(form, wanted, try_jacobi, shared, met)
    known = {"subset": subset, "settings": settings, "d_is_per_row": form == "pairs"}
    return problem.planned("cg", kind, needed, reasons, **known)


def expected_work(plan: Plan) -> float:
    """Return the flops of a matrix product that would take as long as the fit, by searches that were measured."""
    n, wide = float(plan.n), (plan.d + plan.p) / 20.0
    return 12.0 * float(plan.subset) ** 3 + 10000.0 * n**2 * plan.settings.pair_density * (
        0.5 + 0.5 * wide
    )
