"""The Cholesky factor of C, which is computed and kept in one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import NotConverged
from .cholesky import COVARIANCE_JITTER, factor_with_jitter
from .conjugate_gradients import Progress, iterate
from .covariance import TiledCovariance
from .lower_tiles import LowerTiles, factor_in_tiles

# The explicit inverse is used for variances if the relative rounding error of b.C^-1 b is below
# this.
INVERSE_MAX_ROUNDING = 1e-10
# The relative residual at which the refinement of a solve with a float32 factor ends.
REFINED_RESIDUAL = 1e-12
# A solve with a larger relative residual after its refinement is an error.
ACCEPTED_RESIDUAL = 1e-8
# A refinement has at most this many iterations. Each gains several digits, unless C is so
# ill-conditioned that its float32 factor has none.
MAX_REFINEMENTS = 50


@dataclass(frozen=True)
class CholeskyFactor:
    """The Cholesky factor L of C + jitter diag(C), in the lower triangle of `buffer`.

    If the buffer is float32, solves are refined against C in float64.
    """

    covariance: TiledCovariance
    buffer: np.ndarray
    jitter: float

    @classmethod
    def of(cls, covariance: TiledCovariance, buffer: np.ndarray) -> CholeskyFactor:
        """Return the factor of C, which is formed and factorised in the buffer;  n^3/3 flops."""
        most = COVARIANCE_JITTER.jitters(buffer.dtype)[-1]
        failure = (
            f"The covariance of {len(covariance)} rows has no {buffer.dtype} Cholesky factor, even "
            f"with jitter of {most:.0e} of its diagonal. Check that the kernel is positive "
            "definite, raise sigma_y, or drop duplicate rows."
        )
        if buffer.dtype == np.float32:
            failure += ' With dtype="float64" there may be a factor.'
        L, jitter = factor_with_jitter(
            buffer,
            covariance.diagonal,
            COVARIANCE_JITTER,
            failure,
            routine=partial(factor_in_tiles, n_jobs=covariance.session.executor.n_jobs),
            fill=partial(covariance.fill_lower, buffer),
        )
        return cls(covariance, L, jitter)

    def multiply(self, X: np.ndarray) -> np.ndarray:
        """Return (C + jitter diag(C)) X in float64, by tiles;  (n, c) -> (n, c)."""
        product = self.covariance.matmul(X)
        if self.jitter:
            product += self.jitter * self.covariance.diagonal[:, None] * X
        return product

    @property
    def _tiles(self) -> LowerTiles:
        """Return the tiles of the factor, in the memory of the buffer."""
        return LowerTiles.of(self.buffer, self.covariance.session.executor.n_jobs)

    @property
    def refined(self) -> bool:
        """Return whether solves are refined, because the factor is float32."""
        return self.buffer.dtype == np.float32

    @property
    def condition(self) -> float:
        """Return (max L_ii / min L_ii)^2, a lower bound of the condition number of C."""
        diagonal = self.buffer.diagonal().astype(float)
        return float((diagonal.max() / diagonal.min()) ** 2)

    def half_log_determinant(self) -> float:
        """Return log|C| / 2 = sum_i log L_ii."""
        return float(np.log(self.buffer.diagonal().astype(float)).sum())

    def _apply_inverse(self, B: np.ndarray) -> np.ndarray:
        """Return (L L^T)^-1 B in the dtype of the factor;  (n, c) -> (n, c)."""
        rows = np.array(B.T, self.buffer.dtype, order="C")
        self._tiles.solve(rows)
        return rows.T

    def solve(self, B: np.ndarray) -> np.ndarray:
        """Return C^-1 B;  (n, c) -> (n, c).

        A float32 factor is a preconditioner of conjugate gradients in float64.
        """
        if not self.refined:
            return self._apply_inverse(B)
        # Columns are scaled to size 1, since float32 has neither 1e-98 nor 1e98.
        size = np.abs(B).max(axis=0, initial=0.0)
        size[size == 0] = 1.0
        X: np.ndarray = size * self._refine(B / size)
        return X

    def _refine(self, B: np.ndarray) -> np.ndarray:
        """Return C^-1 B, refined from the solution of the float32 factor;  (n, c) -> (n, c).

        All columns go on until the last one is done: there are few iterations, so ending columns
        one by one would save little.
        """
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0

        def worst(R: np.ndarray) -> float:
            return float((np.linalg.norm(R, axis=0) / scale).max(initial=0.0))

        def goes_on(at: Progress) -> np.ndarray:
            return np.full(at.running.size, not worst(at.residual) <= REFINED_RESIDUAL)

        def precondition(R: np.ndarray) -> np.ndarray:
            return self._apply_inverse(R).astype(float)

        X = precondition(B)
        R = B - self.multiply(X)
        H = precondition(R)
        iterate(self.multiply, precondition, X, R, H, goes_on, MAX_REFINEMENTS, order="K")
        left = worst(B - self.multiply(X))  # The recurrence of residuals may drift.
        if not left <= ACCEPTED_RESIDUAL:  # This is also true of NaN.
            raise NotConverged(
                "The refinement of a solve with a float32 factor stopped at a relative residual "
                f"of {left:.1e}, above {ACCEPTED_RESIDUAL:.0e}. Raise sigma_y, or use "
                'dtype="float64".'
            )
        return X

    def inverse_in_place(self) -> np.ndarray:
        """Return C^-1 in the lower triangle of the buffer, where it replaces the factor.

        2 n^3/3 flops. The factor cannot be used any more.
        """
        self._tiles.invert()
        return self.buffer

    def halves(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P and Q (c, n) with P Q^T = B C^-1 B^T for rows B (c, n), which are overwritten.

        In float64, both are B L^-T;  n^2 c flops. In float32, they are the refined X = C^-1 B and
        2 B - C X. Their product 2 B.X - X.C X has an error of second order in that of X, and is
        never above B.C^-1 B, so no variance that is computed with it is too small.
        """
        if self.refined:
            X = self.solve(B.T)
            Q = self.multiply(X)
            np.subtract(2.0 * B.T, Q, out=Q)
            return X.T, Q.T
        V = np.ascontiguousarray(B)
        self._tiles.half_solve(V)
        return V, V
