"""Planning of conjugate gradients: the form of C, the rank of the preconditioner, and the memory.

The size of the subset for a first, exact search is planned too. All of these depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.inputs import Preprocessor
from ...linalg.kernel_tiles import PARTIAL_SUMS, PRODUCT_COLUMNS
from ...linalg.lower_tiles import MAX_TILE_ROWS, longest_buffer, packed_length
from ...linalg.pairs import PAIR_BYTES, TERM_PAIR_BYTES
from ...runtime.memory import format_bytes
from ...runtime.state import must, stored
from ..contract import Plan, Problem, SolverSettings
from ..exact.solver import (
    WEIGHT_TERMS_FACTOR,
    forming_seconds,
    optimum_seconds,
    subset_search_seconds,
)
from ..neighborhood import MAX_SHARED_ROWS
from ..rates import Rates

# The search for hyperparameters starts with an exact one on this many rows.
SUBSET_ROWS = 5_000
# For pairs of a sparse Z the subset is smaller: evaluations on all rows cost less, so that it
# saves less.
PAIRS_SUBSET_ROWS = 2_500
# The subset is not made smaller than this, even where memory is short. The value was chosen by
# hand.
SMALLEST_SUBSET_ROWS = 500
# From this many rows on, the subset has sqrt(subset n) rows, which saves more time in the search on
# all rows than it costs.
MANY_ROWS = 25_000
# The usual rank of the preconditioner is this number times sqrt(n): then it costs about as much to
# build it as to iterate with it.
RANK_PER_ROOT_OF_ROWS = 14.0
# The rank is between these two unless the user asks for another one. Both were chosen by hand.
SMALLEST_RANK = 64
LARGEST_RANK = 3_000
# From this density of ZZ^T on, tiles are faster than pairs.
DENSE_PAIR_SHARE = 0.5
# The Jacobi preconditioner is compared with a low-rank one that has a quarter of the pivots.
TRIAL_RANK_DIVISOR = 4
# The time of a fit is predicted from these numbers, which were adjusted to measured times: after a
# search on the subset there are so many steps on all rows, the final solve included (vader has
# three, and 13,500 rows of kin40k have four),
STEPS_ON_ALL_ROWS = 3.0
# and so many more to the optimum, with search_rows="all",
STEPS_TO_OPTIMUM = 1.5
# of so many products with C each, with solves for so many columns,
PRODUCTS_PER_STEP = 60.0
SOLVE_COLUMNS = 16.0
# and building a preconditioner of rank r and its derivatives takes so many times n r^2 flops.
BUILD_FLOPS_PER_ROW_OF_RANK_SQUARED = 8.0
# Weights with priors of their own are searched again on all rows after terms are removed, which
# makes the time of the steps on all rows so many times as long.
WEIGHT_STEPS = 2.0


@stored
@dataclass(frozen=True)
class CGSettings(SolverSettings):
    """The settings of conjugate gradients.

    Attributes
    ----------
    form : str
        The form of C: "stored" or "recomputed" tiles, "pairs" of a sparse Z, or "grid".
    rank : int
        The largest rank of the preconditioner.
    try_jacobi : bool
        Whether the Jacobi preconditioner, which is the diagonal of C, is tried first.
    shared : int
        The number of rows that variances of all queries are conditioned on.
    pair_density : float
        The share of pairs of rows that C has, 1 for tiles.
    """

    form: str
    rank: int
    try_jacobi: bool = False
    shared: int = 0
    pair_density: float = 1.0

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must(0.0 <= self.pair_density <= 1.0, "a share of its plan is not between 0 and 1")
        must(min(self.rank, self.shared) >= 0, "a count of its plan is negative")


def usual_rank(n: int) -> int:
    """Return the rank at which the preconditioner costs as much to build as to iterate with."""
    return int(min(n, LARGEST_RANK, max(SMALLEST_RANK, RANK_PER_ROOT_OF_ROWS * np.sqrt(n))))


def pair_bytes(n: int, density: float, n_jobs: int, terms: bool = False) -> int:
    """Return the memory of the pairs of rows that share a feature of a sparse Z.

    With `terms`, weights have priors of their own. These are the numbers of each pair, the pointers
    to them, and the workers' memory while they list the pairs of a tile.
    """
    pairs = 0.5 * density * n * n
    each = PAIR_BYTES + TERM_PAIR_BYTES * terms
    return int(pairs * each + 4 * n * (n / 128) / 2 + n_jobs * 24 * pairs / 64)


def cg_bytes(problem: Problem, form: str, rank: int, subset: int) -> int:
    """Return the larger memory of conjugate gradients and of the exact search on the subset.

    The former has the stored tiles or pairs, the preconditioner (with a copy while it is
    differentiated), vectors, partial sums, and the workers' tiles.
    """
    n, n_jobs = problem.n, problem.n_jobs
    tiles = {
        "stored": 4 * packed_length(n),
        "pairs": pair_bytes(n, problem.pair_density or 1.0, n_jobs, problem.sparse_terms),
        "recomputed": 0,
    }[form]
    vectors = (
        8 * n * (8 * PRODUCT_COLUMNS + (0 if form == "pairs" else PARTIAL_SUMS * PRODUCT_COLUMNS))
    )
    working = n_jobs * 4 * 8 * min(n, MAX_TILE_ROWS) ** 2 + 8 * n * (
        4 * (problem.p + 2) + 3 * problem.d + 10
    )
    iterating = tiles + 3 * 8 * n * rank + 4 * 8 * rank * rank + vectors + working
    # The columns of constant weights are solved for.
    iterating += problem.weight_bytes(n) + 8 * n * 4 * problem.d * problem.weight_terms
    return 8 * n * n * problem.gram + max(iterating, problem.exact_bytes(subset))


def uses_pairs(problem: Problem) -> bool:
    """Return whether Z is sparse, and few pairs of rows share a feature."""
    density = problem.pair_density
    return density is not None and density < DENSE_PAIR_SHARE


def plan_conjugate_gradients(problem: Problem) -> Plan:
    """Return the plan of conjugate gradients.

    C has the form of pairs where Z is sparse and the pairs are few enough. Otherwise it has the
    form of float32 tiles, which are stored if they fit beside the preconditioner and recomputed if
    not. Where memory is short, the rank is reduced first, and then the subset.
    """
    n, limit, density = problem.n, problem.memory_limit, problem.pair_density
    dtype, rank = problem.options.dtype, problem.options.rank

    def needs(form: str, rank: int, subset: int) -> int:
        return cg_bytes(problem, form, rank, subset)

    reasons = ["Conjugate gradients need products with C, and no Cholesky factor."]
    sparse = uses_pairs(problem)
    if density is not None and not sparse:
        reasons.append(
            f"{density:.0%} of all pairs of rows share a feature, so tiles are faster than pairs."
        )
    least = SMALLEST_RANK if rank is None else min(n, rank)
    if sparse and needs("pairs", least, 0) > limit:
        sparse = False
        listed = format_bytes(needs("pairs", least, 0))
        reasons.append(
            f"{density:.1%} of all pairs of rows share a feature, but their list needs {listed}."
        )
    subset = min(n, PAIRS_SUBSET_ROWS if sparse else SUBSET_ROWS)
    wanted = usual_rank(n) if rank is None else min(n, rank)
    kept = needs("stored", wanted, subset)
    form = "pairs" if sparse else "stored" if dtype != "float64" and kept <= limit else "recomputed"
    why = f"this is {RANK_PER_ROOT_OF_ROWS:.0f} sqrt(n), or {LARGEST_RANK} if that is less"
    if rank is not None:
        why = "the user asked for it"
        if wanted != rank:
            why = f"these are all rows, and {rank} were asked for"
    while rank is None and wanted > SMALLEST_RANK and needs(form, wanted, 0) > limit:
        wanted, why = max(SMALLEST_RANK, wanted // 2), "this is what memory_limit leaves"
    while subset > SMALLEST_SUBSET_ROWS and needs(form, wanted, subset) > limit:
        subset = max(SMALLEST_SUBSET_ROWS, subset // 2)
    needed = needs(form, wanted, subset)
    remedy = "a smaller preconditioner_rank" if rank is not None else "fewer rows"
    problem.require(
        needed,
        f"the iterative solver (n = {n}, rank {wanted}, one strip of tiles per worker)",
        remedy,
    )
    try_jacobi = sparse and rank is None
    if form == "pairs":
        listed = format_bytes(pair_bytes(n, density or 0, problem.n_jobs, problem.sparse_terms))
        reasons.append(
            f"{density or 0:.1%} of all pairs of rows share a feature; their list takes {listed}."
        )
    elif form == "stored":
        reasons.append(
            f"Tiles are stored in float32: {format_bytes(needed)} are within memory_limit."
        )
    elif dtype == "float64":
        reasons.append("Tiles are recomputed for each product, as the user asked for float64.")
    else:
        stored_bytes = format_bytes(kept)
        reasons.append(
            f"Tiles are recomputed for each product; to store them would take {stored_bytes}."
        )
    if try_jacobi:
        reasons.append(
            "The preconditioner is Jacobi's, or one of rank "
            f"{-(-wanted // TRIAL_RANK_DIVISOR)} if that is faster, or of rank {wanted} if needed."
        )
    else:
        reasons.append(f"The preconditioner has rank {wanted} at most: {why}.")
    if problem.weight_terms:
        reasons.append("Weights have priors of their own, so the search takes longer.")
    if problem.options.searched:
        rows = f"{subset} rows" if subset < n else "all rows"
        reasons.append(f"The search for hyperparameters starts with the exact solver on {rows}.")
    else:
        subset = 0
    kind = np.float64 if dtype == "float64" else np.float32
    # A shared row takes n numbers in float64 and, while they are converted, in float32. They may
    # take a quarter of the memory.
    affordable = limit // (4 * 12 * n)
    shared = 0 if sparse else min(n, max(wanted, min(MAX_SHARED_ROWS, affordable)))
    share = (density or 1.0) if form == "pairs" else 1.0
    return problem.planned(
        *("cg", kind, needed, reasons),
        settings=CGSettings(form, wanted, try_jacobi, shared, share),
        subset=subset,
        d_is_per_row=form == "pairs" and not problem.sparse_terms,
    )


def larger_subset(plan: Plan) -> int:
    """Return the number of rows of a search between the subset and all rows, 0 if there is none.

    The memory that is planned for conjugate gradients is free before they begin.
    """
    larger = int(np.sqrt(plan.subset * plan.n))
    return larger if plan.n >= MANY_ROWS and 8 * longest_buffer(larger) <= plan.bytes_needed else 0


def expected_seconds(plan: Plan, rates: Rates) -> float:
    """Return the predicted time of a fit: a search on the subset, and steps on all rows."""
    settings, n = plan.settings_of(CGSettings), float(plan.n)
    entries, rank = 0.5 * n**2 * settings.pair_density, settings.rank
    search, kernels = 0.0, max(1, plan.weight_kernels)
    if plan.subset == plan.n:
        search = optimum_seconds(plan, plan.n, rates)
    elif plan.subset:
        search = subset_search_seconds(plan, larger_subset(plan), rates)
    if settings.form == "pairs":
        product, rank = entries / rates.pairs, rank // TRIAL_RANK_DIVISOR
    else:
        product = entries / rates.products
    if settings.form == "recomputed":
        # Each column of Z has about one term.
        of_entry = kernels * (0.5 + plan.p / 40.0) + plan.d / 40.0
        product += entries * of_entry / rates.entries32
    is_searched = 0 < plan.subset < plan.n
    steps = iterated_seconds(plan, product, rank, rates, PRODUCTS_PER_STEP, is_searched)
    if not plan.weight_kernels:
        return search + steps
    forming = kernels * forming_seconds(plan, plan.subset, rates)
    return WEIGHT_TERMS_FACTOR * (search + forming) + (WEIGHT_STEPS if is_searched else 1.0) * steps


def iterated_seconds(
    plan: Plan, product: float, rank: int, rates: Rates, products: float, is_searched: bool
) -> float:
    """Return the predicted time of the steps on all rows, from that of a product with C.

    A step has so many `products` and as many solves with the preconditioner, which is built
    for it. If all rows are not searched, there is one step, the final solve.
    """
    solve = 4.0 * plan.n * rank * SOLVE_COLUMNS / rates.flops64
    building = BUILD_FLOPS_PER_ROW_OF_RANK_SQUARED * plan.n * float(rank) ** 2 / rates.flops64
    step = products * (product + solve) + building
    steps = STEPS_ON_ALL_ROWS + STEPS_TO_OPTIMUM * (plan.search_rows == "all")
    return rates.startup + (steps if is_searched else 1.0) * step
