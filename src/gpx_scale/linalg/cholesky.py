"""One Cholesky factorisation for all matrices, with a policy of jitter for each kind of matrix.

A covariance that is positive definite may be singular to rounding. If so, a small share of its
diagonal, the jitter, is added to it. Each kind of matrix has a policy of its own, which says which
shares are tried, one after the other, and which factor is good enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cholesky

from ..errors import NotPositiveDefinite


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

    def accepts(self, L: np.ndarray, diagonal: np.ndarray) -> bool:
        """Return whether the pivots of a factor are large enough;  (n, n), (n,)."""
        if self.least_pivot is None:
            return True
        least = self.least_pivot * float(np.finfo(L.dtype).eps)
        return bool((np.square(L.diagonal(), dtype=float) > least * diagonal).all())


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
    anew. If no jitter helps, NotPositiveDefinite is raised with the message `failure`.
    """
    for jitter in policy.jitters(A.dtype):
        if fill is None:
            np.fill_diagonal(A, diagonal * (1.0 + jitter))
        else:
            fill(jitter)
        try:
            L = routine(A)
        except np.linalg.LinAlgError:
            continue
        if policy.accepts(L, diagonal):
            return L, jitter
    raise NotPositiveDefinite(failure)


def factor_of_few_rows(C: np.ndarray, more_noise: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the lower Cholesky factor of C + diag(more_noise) of a few rows.

    (r, r), (r,) -> (r, r);  r^3/3 flops. The diagonal of C is overwritten.
    """
    rows = f"The covariance of {len(C)} rows"
    failure = f"{rows} has no Cholesky factor, even with jitter. Raise sigma_y."
    diagonal = C.diagonal() + more_noise
    return factor_with_jitter(C, diagonal, FEW_ROWS_JITTER, failure, factor_c_ordered)[0]
