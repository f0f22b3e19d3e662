"""Mean and variance of the weights of a sparse Z, feature by feature.

The weight of feature l depends on the rows R that contain this feature:

    E[w_l(x*)]    =  k(x*, X_R) diag(alpha_R) z_Rl
    Var[g_l(x*)]  =  k**  -  b.(C^-1)_RR b,      b = k(x*, X_R) o z_Rl

where k is the covariance of this weight, a sum of terms if weights have priors of their own.
Both are computed at the features that a query contains, as its prediction needs no others. This
takes one kernel value for every feature that a query and a row share.

Each solver provides b.(C^-1)_RR b in its own way, as an `EntryReduction`. It may condition on R and
some other rows only: fewer rows reduce the variance less than all rows do, so that the variance is
never too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import solve_triangular

from ..compiled import sparse as sparse_loops
from ..data.features import SparseFeatures
from ..data.inputs import InputRows
from ..kernels.kernel import Prepared
from ..linalg.cholesky import factor_of_few_rows
from ..linalg.covariance import TiledCovariance
from ..model.term import VARYING, Term
from ..model.weight_prior import WeightPrior, kernel_matrix
from ..runtime.parallel import largest, slices
from ..runtime.session import Session

# A worker takes at most this many features at once.
FEATURES_AT_ONCE = 32
# Progress is told after so many batches of each worker, so that workers seldom wait for the others.
PROGRESS_BATCHES = 16
# `LocalEntryReduction` conditions on all rows with a feature if they are at most this many.
MAX_ROWS_OF_A_FEATURE = 1_024
# For a feature in more rows, it conditions on this many of them: those most correlated with each
# query.
ROWS_OF_A_FREQUENT_FEATURE = 512
# It conditions on at least this many rows: those with the feature, then rows that share other
# features with them.
LEAST_ROWS = 256
# These other rows are chosen by what they share with this many rows that contain the feature.
ROWS_TO_COMPARE_WITH = 64

# The rows R in ascending order (r,), z_Rl (r,), and the right-hand sides b (c, r).
Block = tuple[np.ndarray, np.ndarray, np.ndarray]
# A feature l, and some of its entries (c,).
Job = tuple[int, np.ndarray]


class EntryReduction(Protocol):
    """A function that returns b.(C^-1)_RR b, by which the data reduce the variance of a weight.

    `parallel` says whether several workers may call it at once.
    """

    parallel: bool

    def __call__(self, blocks: list[Block]) -> list[np.ndarray]:
        """Return b.(C^-1)_RR b, or less, for every right-hand side;  (c,) for each block."""


@dataclass(frozen=True)
class Entries:
    """The queries x, as the kernel takes them, and a `pattern` of their features.

    `own` says whether the queries are the training rows, which ask for their own weights.
    """

    x: Any
    pattern: SparseFeatures
    own: bool = False


def entry_moments(
    weight_prior: WeightPrior,
    support: InputRows,
    coefficients: np.ndarray,
    entries: Entries,
    reduction: EntryReduction | None,
    session: Session,
    part: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[w_l(x*)] and the reduction of its variance at every entry of the pattern.

    Both are (entries,), and those of one `part` of the weights if it is given. Without `reduction`,
    the second one is 0. The cost is one kernel value for
    every feature that a query and a row of the support share, and the calls of `reduction`.
    """
    Z = support.Z
    assert isinstance(Z, SparseFeatures)
    starts, rows, values = Z.by_feature
    asked, entry_rows, order = _entries_by_feature(entries.pattern)
    mean, reduced = np.zeros(order.size), np.zeros(order.size)
    of_terms = [
        _TermAtEntries.of(term, support, entries, session)
        for term in weight_prior.active
        if part is None or term.part == part
    ]
    # The noise of the weights belongs to the part that varies.
    has_noise = entries.own and part in (None, VARYING)

    def block(l: int, some: np.ndarray) -> Block:
        """Return the right-hand sides of some entries of feature l, and write their means."""
        R, z = rows[starts[l] : starts[l + 1]], values[starts[l] : starts[l + 1]]
        Q = entry_rows[some]
        B = np.zeros((Q.size, R.size))
        for one in of_terms:
            one.add(l, Q, R, B)
        if has_noise:
            B[Q[:, None] == R] += weight_prior.sigma_w**2
        B *= z
        mean[some] = B @ coefficients[R]
        return R, z, B

    def work(jobs: list[Job]) -> None:
        """Write the means and the reductions of some jobs."""
        blocks = [block(*job) for job in jobs]
        if reduction is not None:
            for (_, some), less in zip(jobs, reduction(blocks), strict=True):
                reduced[some] = less

    parallel = reduction is None or reduction.parallel
    at_once = session.chunk_bytes // (64 * session.executor.n_jobs)
    # The numbers of a right-hand side while the reduction works on it.
    width = np.diff(starts) if parallel else np.full(Z.shape[1], len(Z))
    jobs = [
        (l, order[asked[l] : asked[l + 1]][some])
        for l in np.flatnonzero(np.diff(asked) * np.diff(starts)).tolist()
        for some in slices(asked[l + 1] - asked[l], max(1, at_once // width[l]))
    ]
    batches = _batches(jobs, [some.size * width[l] for l, some in jobs], at_once)
    done = 0
    session.journal.passed(0, len(jobs), "features")
    for some in slices(len(batches), PROGRESS_BATCHES * session.executor.n_jobs):
        if parallel:
            session.executor.map(work, batches[some])
        else:
            for batch in batches[some]:
                work(batch)
        done += sum(map(len, batches[some]))
        session.journal.passed(done, len(jobs), "features")
    return mean, reduced


@dataclass(frozen=True)
class _TermAtEntries:
    """A term between queries and rows, as its kernel takes them.

    `K` (m, n) is the matrix of a kernel of objects. Such a function is slow, so it is called once
    for each pair and not once for each feature that a pair shares.
    """

    term: Term
    seen: Prepared
    points: Prepared
    K: np.ndarray | None

    @classmethod
    def of(
        cls, term: Term, support: InputRows, entries: Entries, session: Session
    ) -> _TermAtEntries:
        """Return a term between the queries of the entries and the rows of the support."""
        kernel = term.kernel
        seen, points = kernel.prepare(entries.x), kernel.prepare(support.x)
        is_vector = kernel.input_kind == "vectors"
        K = None if is_vector else kernel_matrix(kernel, seen, points, session)
        return cls(term, seen, points, K)

    def add(self, l: int, Q: np.ndarray, R: np.ndarray, B: np.ndarray) -> None:
        """Add the covariance of weight l at queries Q and rows R;  -> B (q, r)."""
        if self.term.weight_variances is None:
            variance = 1.0
        else:
            variance = float(self.term.weight_variances[l])
        if variance == 0.0:
            return
        kernel, K = self.term.kernel, self.K
        tile = kernel.tile(self.seen[Q], self.points[R]) if K is None else K[np.ix_(Q, R)]
        B += tile if variance == 1.0 else variance * tile


def _batches(jobs: list[Job], sizes: list[int], most: int) -> list[list[Job]]:
    """Return batches of consecutive jobs.

    A batch has at most FEATURES_AT_ONCE jobs, and at most `most` numbers unless it is a single job.
    """
    batches: list[list[Job]] = []
    total = 0
    for job, size in zip(jobs, sizes, strict=True):
        if not batches or len(batches[-1]) == FEATURES_AT_ONCE or total + size > most:
            batches.append([])
            total = 0
        batches[-1].append(job)
        total += size
    return batches


def _entries_by_feature(at: SparseFeatures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each feature starts among the entries sorted by feature, and how to sort them.

    These are starts (d + 1,), the row of each entry (entries,), and the order (entries,).
    """
    indices = at.indices[at.span]
    starts = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=at.d))])
    return starts, at.entry_rows, np.argsort(indices, kind="stable")


@dataclass(frozen=True)
class LocalEntryReduction:
    """An `EntryReduction` that conditions on the rows with the feature and on a few other rows.

    The other rows tell the feature from features that occur together with it. The cost is r^3/3
    flops per feature and r^2 per query. On `vader_snippets`, standard deviations exceed the exact
    ones by 8% in the median and 28% at most with the rows of the feature alone, and by 5% and 13%
    with LEAST_ROWS.
    """

    covariance: TiledCovariance
    parallel = True

    def __call__(self, blocks: list[Block]) -> list[np.ndarray]:
        return [self._one(*block) for block in blocks]

    def _one(self, R: np.ndarray, z: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return the reductions of one feature;  (r,), (r,), (c, r) -> (c,).

        The rows are chosen by the feature or by the single query, so that no result depends on what
        else is asked.
        """
        diagonal = self.covariance.diagonal
        if R.size > MAX_ROWS_OF_A_FEATURE:
            order = np.argsort(-np.square(B) / diagonal[R], axis=1, kind="stable")
            most = order[:, :ROWS_OF_A_FREQUENT_FEATURE]
            return np.concatenate(
                [
                    self._conditioned(R[rows], b[None, rows])
                    for rows, b in zip(np.sort(most), B, strict=True)
                ]
            )
        if R.size < LEAST_ROWS:
            others = self._other_rows(R, np.abs(z) / np.sqrt(diagonal[R]))
            R, B = np.concatenate([R, others]), np.pad(B, ((0, 0), (0, others.size)))
        return self._conditioned(R, B)

    def _conditioned(self, R: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return b.(C_RR)^-1 b;  (r,), (c, r) -> (c,);  r^3/3 + r^2 c flops."""
        C = self.covariance
        rows = C.prepared[R]
        A = C.weight_prior.tile(rows, rows)
        np.fill_diagonal(A, C.diagonal[R])
        half = solve_triangular(factor_of_few_rows(A), B.T, lower=True, check_finite=False)
        reduced: np.ndarray = np.square(half).sum(axis=0)
        return reduced

    def _other_rows(self, R: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return rows outside R that share the most features with the rows of R of largest weight.

        Together with R they are at most LEAST_ROWS. Any choice of rows gives a valid bound.
        """
        Z = self.covariance.rows.Z
        assert isinstance(Z, SparseFeatures)
        some = np.sort(np.argsort(-weights, kind="stable")[:ROWS_TO_COMPARE_WITH])
        rows, score = Z[R[some]], np.zeros(len(Z))
        sparse_loops.couple(
            rows.pointers, rows.indices, rows.values, weights[some], *Z.by_feature, score
        )
        score /= np.sqrt(self.covariance.diagonal)
        score[R] = 0.0
        met = np.flatnonzero(score)
        others: np.ndarray = met[largest(score[met], LEAST_ROWS - R.size)]
        return others


@dataclass(frozen=True)
class InverseEntryReduction:
    """An `EntryReduction` from the lower triangle of C^-1;  r^2 flops per query.

    The factor `safe`, a little below 1, makes up for the rounding of C^-1.
    """

    inverse: np.ndarray
    safe: float
    parallel = True

    def __call__(self, blocks: list[Block]) -> list[np.ndarray]:
        found = []
        for R, _, B in blocks:
            lower = np.tril(self.inverse[np.ix_(R, R)])
            found.append(
                self.safe
                * (2.0 * np.einsum("ij,ij->i", B @ lower, B) - np.square(B) @ lower.diagonal())
            )
        return found


@dataclass(frozen=True)
class SolvedEntryReduction:
    """An `EntryReduction` that calls a solver's `quadratic` with right-hand sides for all n rows.

    `quadratic` returns b.C^-1 b;  (c, n) -> (c,);  n^2 flops per query.
    """

    n: int
    quadratic: Callable[[np.ndarray], np.ndarray]
    parallel = False

    def __call__(self, blocks: list[Block]) -> list[np.ndarray]:
        sizes = [len(B) for _, _, B in blocks]
        whole = np.zeros((sum(sizes), self.n))
        for at, (R, _, B) in zip(np.cumsum(sizes) - sizes, blocks, strict=True):
            whole[at : at + len(B), R] = B
        return np.split(self.quadratic(whole), np.cumsum(sizes)[:-1])
