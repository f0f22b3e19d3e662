"""One Cholesky factorisation for all matrices, with a policy of jitter for each kind of matrix.

A covariance that is positive definite may be singular to rounding. If so, a small share of its
diagonal, the jitter, is added to it. Each kind of matrix has a policy of its own, which says which
shares are tried, one after the other, and which factor is good enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import cholesky

from ..errors import NotPositiveDefinite
from .lower_tiles import LowerTiles, factor_in_tiles


@dataclass(frozen=True)
class JitterPolicy:
    """The shares of the diagonal that are tried as jitter, in this order, and the least pivot.

    `steps` are shares of the diagonal, or multiples of the rounding error eps of the matrix's dtype
    if they are `in_units_of_eps`. A share of `below` or more is left out. If there is a
    `least_pivot`, every L_ii^2 has to be above `least_pivot` eps A_ii; a smaller pivot is rounding
    error that happened to be positive. Jitter and least pivot are relative to each row's own A_ii,
    so the rows may be of very different size.
    """

    steps: tuple[float, ...]
    in_units_of_eps: bool = False
    below: float = np.inf
    least_pivot: float | None = None

    def jitters(self, dtype: Any) -> list[float]:
        """Return the shares of the diagonal that are tried for matrices of this dtype."""
        unit = float(np.finfo(dtype).eps) if self.in_units_of_eps else 1.0
        return [step * unit for step in self.steps if step * unit < self.below]

    def accepts(self, pivots: np.ndarray, diagonal: np.ndarray, dtype: Any) -> bool:
        """Return whether the diagonal L_ii of a factor is large enough;  (n,), (n,)."""
        if self.least_pivot is None:
            return True
        least = self.least_pivot * float(np.finfo(dtype).eps)
        return bool((np.square(pivots, dtype=float) > least * diagonal).all())


# The covariance C of all training rows, in float64 or float32. With steps of a factor of 100, at
# most 100 times the jitter that is needed is added. In float32, 1e5 eps is 1.2% of the diagonal,
# and more would change the model.
COVARIANCE_JITTER = JitterPolicy(
    steps=(0.0, 1e1, 1e3, 1e5, 1e7, 1e9),
    in_units_of_eps=True,
    below=0.02,
    least_pivot=1.0,
)

# S_uu of inducing points has no noise on its diagonal, and points may meet while they move. Jitter
# is noise on the inducing variables, with which the bound stays a lower bound: 2e-7 of the diagonal
# is harmless.
INDUCING_JITTER = JitterPolicy(
    steps=(0.0, 1e1, 1e3, 1e5, 1e7, 1e9),
    in_units_of_eps=True,
    least_pivot=1.0,
)

# S_II of the pivot rows of a preconditioner. The pivots are chosen to be independent, so little
# jitter is enough. Small pivots do no harm, since F F^T <= S with any jitter.
PIVOT_ROWS_JITTER = JitterPolicy((0.0, 1e1, 1e3, 1e5, 1e7), in_units_of_eps=True)

# The kernel matrix of training rows and queries together, which samples are drawn from. Without
# noise it is singular to rounding in most cases, and 1e-8 of a variance is 1e-4 of a standard
# deviation, which no sample shows.
JOINT_PRIOR_JITTER = JitterPolicy((0.0, 1e-12, 1e-10, 1e-8))

# The posterior covariance of the weights at some queries, which samples are drawn from. It is a
# difference, whose rounding errors are relative to the prior variance, which may be many times
# larger: 1e-5 of a variance is 0.3% of a standard deviation.
JOINT_WEIGHTS_JITTER = JitterPolicy((0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5))

# C of the few rows that a variance is conditioned on. Jitter stands for more noise than there is,
# so it never makes a variance smaller, and more of it may be added than elsewhere.
FEW_ROWS_JITTER = JitterPolicy((0.0, 1e-12, 1e-10, 1e-8, 1e-6))

# I + Psi of the collapsed bound has no eigenvalue below 1. If it has no factor, then Psi is wrong,
# which jitter would hide.
NO_JITTER = JitterPolicy((0.0,))


# There are two routines here that call LAPACK, for matrices of at most a few thousand rows, and
# `lower_tiles.factor_in_tiles` for larger ones. Their factors differ in rounding and in memory
# order, and searches and conjugate gradients amplify such differences, so each kind of matrix is
# always factorised by the same routine.


def factor_fortran_ordered(A: np.ndarray) -> np.ndarray:
    """Return L, Fortran-ordered, with zeros above its diagonal; A is kept;  (n, n) -> (n, n)."""
    L: np.ndarray = cholesky(A, lower=True, check_finite=False)
    return L


def factor_c_ordered(A: np.ndarray) -> np.ndarray:
    """Return L, C-ordered, with zeros above its diagonal; A is kept;  (n, n) -> (n, n)."""
    return np.linalg.cholesky(A)


def least_jitter(
    attempt: Callable[[float], np.ndarray],
    dtype: Any,
    diagonal: np.ndarray,
    policy: JitterPolicy,
    failure: str,
) -> float:
    """Return the least jitter of the policy for which a matrix A has a Cholesky factor.

    `attempt(jitter)` factorises A + jitter diag(A), whose diagonal is (1 + jitter) `diagonal` (n,),
    and returns the diagonal of the factor, or raises LinAlgError. If no jitter helps,
    NotPositiveDefinite is raised with the message `failure`.
    """
    for jitter in policy.jitters(dtype):
        try:
            pivots = attempt(jitter)
        except np.linalg.LinAlgError:
            continue
        if policy.accepts(pivots, diagonal, dtype):
            return jitter
    raise NotPositiveDefinite(failure)


def factor_with_jitter(
    A: np.ndarray,
    diagonal: np.ndarray,
    policy: JitterPolicy,
    failure: str,
    routine: Callable[[np.ndarray], np.ndarray] = factor_fortran_ordered,
    fill: Callable[[float], None] | None = None,
) -> tuple[np.ndarray, float]:
    """Return the lower Cholesky factor, and the least jitter of the policy for which it exists.

    A + jitter diag(A) = L L^T;  (n, n), (n,) -> (n, n);  n^3/3 flops for each jitter that is tried.
    The diagonal of A is replaced by (1 + jitter) times the `diagonal` given here. If the `routine`
    overwrites A, give `fill`: `fill(jitter)` is called before each attempt and computes all of A
    anew.
    """
    L = A

    def attempt(jitter: float) -> np.ndarray:
        nonlocal L
        if fill is None:
            np.fill_diagonal(A, diagonal * (1.0 + jitter))
        else:
            fill(jitter)
        L = routine(A)
        return L.diagonal()

    jitter = least_jitter(attempt, A.dtype, diagonal, policy, failure)
    return L, jitter


def factor_in_parallel(
    A: np.ndarray, diagonal: np.ndarray, policy: JitterPolicy, failure: str, n_jobs: int
) -> tuple[np.ndarray, float]:
    """Return what `factor_with_jitter` does, factorised in tiles by `n_jobs` threads; A is kept.

    L is C-ordered, with zeros above its diagonal;  (n, n), (n,) -> (n, n).
    """
    work = np.empty(A.shape, A.dtype)

    def fill(jitter: float) -> None:
        work[...] = A
        np.fill_diagonal(work, diagonal * (1.0 + jitter))

    routine = partial(factor_in_tiles, n_jobs=n_jobs)
    L, jitter = factor_with_jitter(work, diagonal, policy, failure, routine, fill)
    return np.tril(L), jitter


def inverse_in_parallel(L: np.ndarray, n_jobs: int) -> np.ndarray:
    """Return (L L^T)^-1 for a C-ordered L, which is kept;  (n, n) -> (n, n);  2 n^3/3 flops."""
    work = L.copy()
    LowerTiles.of(work, n_jobs).invert()
    inverse = np.tril(work)
    inverse += np.tril(work, -1).T
    return inverse


def factor_of_few_rows(C: np.ndarray, more_noise: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the lower Cholesky factor of C + diag(more_noise) of a few rows.

    (r, r), (r,) -> (r, r);  r^3/3 flops. The diagonal of C is overwritten.
    """
    rows = f"The covariance of {len(C)} rows"
    failure = f"{rows} has no Cholesky factor, even with jitter. Raise sigma_y."
    diagonal = C.diagonal() + more_noise
    return factor_with_jitter(C, diagonal, FEW_ROWS_JITTER, failure, factor_c_ordered)[0]
