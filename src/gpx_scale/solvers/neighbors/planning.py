"""Planning of the neighbours solver: numbers of rows, memory, and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...data.inputs import Preprocessor
from ...data.table_files import FILE_CHUNK_ROWS
from ...runtime.memory import format_bytes
from ...runtime.state import must, stored
from ..contract import Plan, Problem, SolverSettings
from ..exact.solver import WEIGHT_TERMS_FACTOR
from ..neighborhood import BLOCK_BYTES
from ..rates import Rates
from ..weighted_sums import MOST_STEPS, STEP_PAIRS, SUMMED_PAIRS
from .vecchia import LEAST_SAMPLED_ROWS, MOST_NEIGHBORS, MOST_SHARED, sampled_rows

# The search for hyperparameters starts at the exact optimum of this many rows.
SUBSET_ROWS = 3_000
# The subset is not made smaller than this, even where memory is short.
SMALLEST_SUBSET_ROWS = 500
# The shared rows are chosen from a sample of at most so many rows, and of so many for each shared
# one. On `synth10` with 50,000 rows, 2,048 of 4,096, of 16,384 and of 50,000 rows predict equally
# well: log densities differ by 0.007 +- 0.011 nats per row.
PIVOT_ROWS = 50_000
PIVOT_ROWS_PER_SHARED = 4
# With "auto", a query has at most so many neighbours and shared rows. With 512 and 2,048, it takes
# 6e8 flops: 2,000 predictions with standard deviations took 12 to 14 s on two cores. With 4,096
# shared rows, it takes twice that.
AUTO_NEIGHBORS = 512
AUTO_SHARED = 4_096
# If F_j is not kept, but computed for the neighbours of each query, "auto" takes at most so many
# shared rows: a query takes k m^2 flops then.
AUTO_SHARED_RECOMPUTED = 1_024
# F_j of all rows may take this share of the memory, counted in float64, which little noise needs.
# So may the choice of shared rows.
FACTOR_MEMORY_SHARE = 0.25
# A random order of all rows, from which Vecchia's likelihood and held-out rows are sampled, takes
# so many bytes per row while it is made: five arrays of 8 bytes.
ORDER_BYTES_PER_ROW = 40
# Weighted sums for constant weights are over so many rows of files.
SUMMED_FILE_ROWS = 4_096
# There are no sums unless so many rows for each of them are not near a query. A sum over only a few
# further rows would be determined by those that a query is conditioned on.
LEAST_ROWS_PER_SUM = 10
# The time of a fit is predicted from these numbers. They count operations, and were not adjusted to
# measured times. A search takes as long as so many evaluations of its subset, and so many of
# Vecchia's likelihood, which take so many flops per number of the r^3 of their sets of r rows.
SEARCHES_OF_SUBSET = 9.0
EVALUATIONS = 12.0
# Blocks of kernel values that are held at once where weights have priors of their own.
BLOCKS_OF_TERMS = 4
FLOPS_PER_CUBE = 2.0
# The pairs (k, m) that are compared take as many flops as so many queries of the largest one.
COMPARED_QUERIES = 1_200.0


@stored
@dataclass(frozen=True)
class NeighborsSettings(SolverSettings):
    """The settings of the neighbours solver.

    Attributes
    ----------
    neighbors, shared : int
        The numbers of neighbours and of shared rows, at most.
    choose_neighbors, choose_shared : bool
        Whether the numbers are chosen by held-out rows, and may be smaller.
    keeps_factor : bool
        Whether F_j of all rows is kept in memory.
    pivot_rows : int
        The number of rows that the shared ones are chosen from.
    """

    neighbors: int
    shared: int
    choose_neighbors: bool = False
    choose_shared: bool = False
    keeps_factor: bool = True
    pivot_rows: int = 0

    def must_fit(self, preprocessor: Preprocessor) -> None:
        counts = self.neighbors, self.shared, self.pivot_rows
        must(min(counts) >= 0, "a count of its plan is negative")


def query_bytes(neighbors: int, shared: int, columns: int, keeps_factor: bool) -> int:
    """Return the working memory of one query with so many right-hand sides.

    It has S_NN, F_N, the right-hand sides at both kinds of rows, and kernel values.
    """
    k, m, c = neighbors, shared, columns
    factors = k * m * (1 if keeps_factor else 3)
    return 8 * (2 * k * k + factors + 3 * (c + 1) * (k + m) + 64)


def gathered_bytes(rows: int, bytes_per_row: int) -> int:
    """Return the memory of rows that were gathered, with their scaled copies and heaps."""
    return rows * (5 * bytes_per_row + 64)


def neighbors_bytes(problem: Problem, settings: NeighborsSettings, subset: int) -> int:
    """Return the memory of a fit, in bytes.

    It has the rows with their scaled copies (or, of rows that are not in memory, their places in
    some orders), F_j of all rows if that is kept, and the largest of four: a batch of queries,
    choosing the shared rows, the exact search on a subset, and a worker's sets of Vecchia's
    likelihood.
    """
    n, k, m = problem.n, min(problem.n, settings.neighbors), settings.shared
    # Points of each kernel, and scaled features of the parts of a weight, with those of the rows of
    # weighted sums. These sums have coefficients, covariances, and columns of F.
    terms = 8 * (2 * problem.weight_kernels * problem.p + 14 * problem.d * problem.weight_terms)
    if problem.stream:
        chunk = min(n, FILE_CHUNK_ROWS) * (8 * (8 * (problem.p + 2) + 4 * problem.d) + terms)
        held = ORDER_BYTES_PER_ROW * n + chunk
    else:
        held = problem.held_bytes() + 8 * n * (4 * (problem.p + 2) + problem.d + 8)
        held += 8 * n * n * problem.gram + n * terms
    factor = 8 * n * m if settings.keeps_factor else 0
    batch = 2 * BLOCK_BYTES + 4 * query_bytes(k, m, problem.d + 2, settings.keeps_factor)
    # Weighted sums and searches by several kernels take some blocks of kernel values.
    batch += BLOCKS_OF_TERMS * BLOCK_BYTES * problem.weight_terms
    # Small problems have small batches.
    batch = min(batch, 4 * n * query_bytes(min(n, k), min(n, m), problem.d + 2, True))
    pivots = 8 * settings.pivot_rows * (2 * m + 4 * (problem.p + 2))
    sets = problem.n_jobs * 6 * 8 * (min(k, MOST_NEIGHBORS) + min(m, MOST_SHARED)) ** 2
    own = 24 * m * m
    return held + max(batch + own + factor, pivots, problem.exact_bytes(subset), sets)


def plan_neighbors(problem: Problem) -> Plan:
    """Return the plan of the neighbours solver.

    Where memory is short, F_j is not kept, then there are fewer shared rows, unless the user asked
    for them, and then the subset is smaller.
    """
    n, limit, options = problem.n, problem.memory_limit, problem.options
    stream, share = problem.stream, FACTOR_MEMORY_SHARE * limit
    asked_k, asked_m = options.n_neighbors, options.n_shared
    k = min(n, AUTO_NEIGHBORS if asked_k is None else asked_k)
    m = min(n, AUTO_SHARED if asked_m is None else asked_m)
    while m > AUTO_SHARED_RECOMPUTED and asked_m is None and (stream or 8 * n * m > share):
        m = max(m // 2, AUTO_SHARED_RECOMPUTED)
    keeps = 8 * n * m <= share and not stream
    while (
        asked_m is None
        and m > 0
        and 24 * m * m + 16 * min(n, PIVOT_ROWS_PER_SHARED * m) * m > share
    ):
        m //= 2
    if asked_k is None and k + m < 1:
        k = 1
    affordable = max(m, int(share / (16 * max(1, m))))
    pivots = min(n, PIVOT_ROWS, PIVOT_ROWS_PER_SHARED * m, affordable)
    # Rows may be added later, and a number that was asked for then holds for all of them.
    wanted = k if asked_k is None else asked_k
    settings = NeighborsSettings(wanted, m, asked_k is None, asked_m is None, keeps, pivots)
    subset = min(n, SUBSET_ROWS)
    while subset > SMALLEST_SUBSET_ROWS and neighbors_bytes(problem, settings, subset) > limit:
        subset = max(SMALLEST_SUBSET_ROWS, subset // 2)
    needed = neighbors_bytes(problem, settings, subset)
    remedy = "a smaller n_shared or n_neighbors" if asked_k or asked_m else "fewer rows"
    problem.require(needed, f"The neighbours solver (n = {n})", remedy)
    reasons = [_reason(k, asked_k, n, "neighbours"), _reason(m, asked_m, n, "shared rows")]
    size = format_bytes(8 * n * m)
    if keeps:
        reasons.append(f"The factors of all rows with the shared ones are kept ({size} at most).")
    else:
        reasons.append(
            "The factors of neighbours with shared rows are computed for each query; to keep them "
            f"would take {size}."
        )
    reasons.append(f"Hyperparameters start from the exact optimum of {subset} rows.")
    return problem.planned(
        *("neighbors", np.float64, needed, reasons), settings=settings, subset=subset
    )


def rows_of_sums(
    rest: np.ndarray, n: int, nearby: int, sums: int, kernels: int, in_memory: bool, seed: int
) -> np.ndarray:
    """Return the rows of weighted sums of y, among the `rest` that is not shared;  (s,).

    There are none for too few rows.
    """
    most = SUMMED_PAIRS / (n * max(1, kernels)) if in_memory else SUMMED_FILE_ROWS
    count = int(min(rest.size, most))
    if not sums or count < nearby + 1 + LEAST_ROWS_PER_SUM * sums:
        return rest[:0]
    return np.sort(np.random.RandomState(seed).permutation(rest)[:count])


def _reason(taken: int, asked: int | None, n: int, what: str) -> str:
    """Return a sentence about a number of rows and where it comes from."""
    of_query = "Each query has" if what == "neighbours" else "All queries have"
    if asked is None:
        return f"{of_query} up to {taken} {what}; held-out rows decide how many."
    if asked > n:
        return f"{of_query} {taken} {what}: these are all rows, and {asked} were asked for."
    return f"{of_query} {taken} {what}, as the user asked for."


def expected_seconds(plan: Plan, rates: Rates) -> float:
    """Return the predicted time of a fit.

    It has a search on the subset, evaluations of Vecchia's likelihood, the choice of the shared
    rows, F_j of all rows, and a comparison of numbers of rows.
    """
    settings, n = plan.settings_of(NeighborsSettings), float(plan.n)
    k, m, s = min(n, float(settings.neighbors)), float(settings.shared), float(plan.subset)
    wide = (0.5 + (plan.d + plan.p) / 40.0) * (1.0 + plan.weight_kernels)
    search = SEARCHES_OF_SUBSET * (s**3 / rates.flops64 + 2.0 * s**2 * wide / rates.entries64)
    r, sampled = min(k, MOST_NEIGHBORS) + min(m, MOST_SHARED), min(n, LEAST_SAMPLED_ROWS)
    if plan.weight_kernels:
        # Weights have two variances each, of which some are soon removed.
        sampled, search = min(n, sampled_rows(plan.d)), WEIGHT_TERMS_FACTOR * search
    sets = FLOPS_PER_CUBE * r**3 / rates.flops64 + 3.0 * r**2 * wide / rates.entries64
    finding = 2.0 * n * sampled * (plan.p + 10.0) / rates.flops64
    pivots = settings.pivot_rows * m**2 * 2.0 / rates.flops64
    factor = n * m**2 / rates.flops64 if settings.keeps_factor else 0.0
    if plan.weight_kernels:
        pairs = min(SUMMED_PAIRS + STEP_PAIRS, (MOST_STEPS + 1) * n**2 * plan.weight_kernels)
        factor += pairs / rates.entries64
    query = k**3 / 3.0 + k**2 * m + m**2 * (k if not settings.keeps_factor else 1.0)
    choosing = settings.choose_neighbors or settings.choose_shared
    compared = COMPARED_QUERIES * query / rates.flops64 if choosing else 0.0
    steps = EVALUATIONS * sampled * sets + 3.0 * finding
    return rates.startup + search + steps + pivots + factor + compared
