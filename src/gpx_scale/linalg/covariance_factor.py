"""The Cholesky factor of C, which is computed and kept in packed tiles.

A float32 factor takes half the time and memory. Its solves are then approximations, with which
conjugate gradients converge to those in float64 in a few steps, since products with C are in
float64. For a right-hand side b and any x,

    b.C^-1 b  =  2 b.x - x.C x  +  r.C^-1 r,        r = b - C x

so 2 b.x - x.C x, in float64, is never above b.C^-1 b, and a variance that is computed with it is
never below the exact one, whatever the factor is worth. Its error r.C^-1 r is of second order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import NotConverged
from .cholesky import COVARIANCE_JITTER, least_jitter
from .conjugate_gradients import Progress, iterate
from .covariance import TiledCovariance
from .lower_tiles import LowerTiles

# The explicit inverse is used for variances if the relative rounding error of b.C^-1 b is below
# this.
INVERSE_MAX_ROUNDING = 1e-10
# The relative residual at which the refinement of a solve with a float32 factor ends.
REFINED_RESIDUAL = 1e-12
# The relative residual of alpha that is enough for a step of a search: y.alpha is then off by less
# than the rounding of the float32 log-determinant.
DRAFT_RESIDUAL = 1e-6
# A solve with a relative residual that is this many times larger after its refinement is an error.
ACCEPTED_EXCESS = 1e4
# A refinement has at most this many iterations. Each gains several digits, unless C is so
# ill-conditioned that its float32 factor has none.
MAX_REFINEMENTS = 50
# With a float32 factor, a variance may exceed the exact one by this share. Up to a condition number
# of 1e5, the first solution is that good; at 1e7, one more step is.
VARIANCE_EXCESS_SHARE = 1e-3
# Solutions for variances take at most this many steps of refinement.
MAX_VARIANCE_STEPS = 5
# Errors of at least this many solutions are judged by two values of b.C^-1 b, and those of fewer
# are computed, which takes two more products and solves.
MANY_COLUMNS = 64


@dataclass(frozen=True)
class CholeskyFactor:
    """The Cholesky factor L of C + jitter diag(C), in packed tiles.

    If the tiles are float32, solves are refined against C in float64.
    """

    covariance: TiledCovariance
    tiles: LowerTiles
    jitter: float

    @classmethod
    def of(cls, covariance: TiledCovariance, tiles: LowerTiles) -> CholeskyFactor:
        """Return the factor of C, which is formed and factorised in the tiles;  n^3/3 flops."""
        most = COVARIANCE_JITTER.jitters(tiles.dtype)[-1]
        failure = (
            f"The covariance of {len(covariance)} rows has no {tiles.dtype} Cholesky factor, even "
            f"with jitter of {most:.0e} of its diagonal. Check that the kernel is positive "
            "definite, raise sigma_y, or drop duplicate rows."
        )
        if tiles.dtype == np.float32:
            failure += ' With dtype="float64" there may be a factor.'

        def attempt(jitter: float) -> np.ndarray:
            covariance.fill(tiles, jitter)
            tiles.factor(covariance.session.journal.worked)
            return tiles.diagonal()

        policy = COVARIANCE_JITTER
        jitter = least_jitter(attempt, tiles.dtype, covariance.diagonal, policy, failure)
        return cls(covariance, tiles, jitter)

    def multiply(self, X: np.ndarray) -> np.ndarray:
        """Return (C + jitter diag(C)) X in float64, by tiles;  (n, c) -> (n, c)."""
        product = self.covariance.matmul(X)
        if self.jitter:
            product += self.jitter * self.covariance.diagonal[:, None] * X
        return product

    def _multiply_rows(self, X: np.ndarray) -> np.ndarray:
        """Return X (C + jitter diag(C)) in float64 for many rows;  (c, n) -> (c, n)."""
        product = self.covariance.matmul_rows(X)
        if self.jitter:
            product += self.jitter * self.covariance.diagonal * X
        return product

    def _energies(self, X: np.ndarray) -> np.ndarray:
        """Return x.(C + jitter diag(C)) x for each row of X, in float64;  (c, n) -> (c,)."""
        energies = self.covariance.quadratic(X)
        if self.jitter:
            energies += self.jitter * (np.square(X) @ self.covariance.diagonal)
        return energies

    @property
    def refined(self) -> bool:
        """Return whether solves are refined, because the factor is float32."""
        return self.tiles.dtype == np.float32

    @property
    def condition(self) -> float:
        """Return (max L_ii / min L_ii)^2, a lower bound of the condition number of C."""
        diagonal = self.tiles.diagonal()
        return float((diagonal.max() / diagonal.min()) ** 2)

    def half_log_determinant(self) -> float:
        """Return log|C| / 2 = sum_i log L_ii."""
        return float(np.log(self.tiles.diagonal()).sum())

    def average_information(self, alpha: np.ndarray) -> np.ndarray:
        """Return the average information, 1/2 (dC_s alpha)^T C^-1 (dC_t alpha);  (t, t).

        It is the mean of observed and expected information, and never indefinite. It takes n^2
        kernel values and n^2 t flops, which are few beside the n^3 of an evaluation.
        """
        U = np.array(self.covariance.tangents(alpha).T, self.tiles.dtype, order="C")
        self.tiles.half_solve(U)
        information: np.ndarray = 0.5 * (U @ U.T).astype(float)
        return information

    def _apply_inverse(self, B: np.ndarray) -> np.ndarray:
        """Return B (L L^T)^-1 in the dtype of the factor;  (c, n) -> (c, n)."""
        rows = np.array(B, self.tiles.dtype, order="C")
        self.tiles.solve(rows)
        return rows

    def solve(self, B: np.ndarray, residual: float = REFINED_RESIDUAL) -> np.ndarray:
        """Return C^-1 B;  (n, c) -> (n, c).

        A float32 factor is a preconditioner of conjugate gradients in float64, which end at this
        relative residual.
        """
        if not self.refined:
            return self._apply_inverse(B.T).T
        # Columns are scaled to size 1, since float32 has neither 1e-98 nor 1e98.
        size = _sizes(B.T)
        X: np.ndarray = size * self._refine(B / size, residual)
        return X

    def _refine(self, B: np.ndarray, residual: float) -> np.ndarray:
        """Return C^-1 B, refined from the solution of the float32 factor;  (n, c) -> (n, c).

        All columns go on until the last one is done: there are few iterations, so ending columns
        one by one would save little.
        """
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0

        def worst(R: np.ndarray) -> float:
            return float((np.linalg.norm(R, axis=0) / scale).max(initial=0.0))

        def goes_on(at: Progress) -> np.ndarray:
            return np.full(at.running.size, not worst(at.residual) <= residual)

        def precondition(R: np.ndarray) -> np.ndarray:
            return self._apply_inverse(R.T).T.astype(float)

        X = precondition(B)
        R = B - self.multiply(X)
        H = precondition(R)
        iterate(self.multiply, precondition, X, R, H, goes_on, MAX_REFINEMENTS, order="K")
        left = worst(B - self.multiply(X))  # The recurrence of residuals may drift.
        accepted = ACCEPTED_EXCESS * residual
        if not left <= accepted:  # This is also true of NaN.
            raise NotConverged(
                "The refinement of a solve with a float32 factor stopped at a relative residual "
                f"of {left:.1e}, above {accepted:.0e}. Raise sigma_y, or use "
                'dtype="float64".'
            )
        return X

    def inverse(self) -> LowerTiles:
        """Return the lower triangle of C^-1 in tiles of its own;  2 n^3/3 flops."""
        tiles = self.tiles.copy()
        tiles.invert()
        return tiles

    def quadratic(self, B: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return b.C^-1 b for rows b, which are overwritten;  (c, n), (c,) -> (c,).

        In float64, this takes n^2 c flops. With a float32 factor, the result is never above, and
        below by at most VARIANCE_EXCESS_SHARE of the variance that it leaves of `prior`, unless
        MAX_VARIANCE_STEPS are not enough; with a prior of 0, that is a share of b.C^-1 b itself. It
        takes 2 n^2 c flops in float32 and n^2 c in float64.
        """
        if not self.refined:
            V = np.ascontiguousarray(B)
            self.tiles.half_solve(V)
            return np.asarray(np.einsum("ij,ij->i", V, V))
        size = _sizes(B)
        B, prior = B / size[:, None], prior / size**2
        X, by_factor = self._first_solution(B)
        found = self._explained(B, X)
        # In float32 alone, b.C~^-1 b has an error of first order. If it agrees with the form that
        # has an error of second order for many right-hand sides, then those errors are small. One
        # alone may agree by chance.
        allowed = VARIANCE_EXCESS_SHARE * np.abs(prior - found)
        if len(B) < MANY_COLUMNS or not (np.abs(by_factor - found) <= allowed).all():
            X = self._refined_for_variances(B, X, prior)
            found = np.maximum(found, self._explained(B, X))
        scaled: np.ndarray = size**2 * found
        return scaled

    def halves(self, B: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P and Q (c, n) with P Q^T = B C^-1 B^T for rows B (c, n), which are overwritten.

        In float64, both are B L^-T;  n^2 c flops. With a float32 factor, they are X and 2 B - C X,
        with the X of `quadratic`: B C^-1 B^T minus their product is positive semidefinite.
        """
        if self.refined:
            size = _sizes(B)[:, None]
            scaled = B / size
            X, _ = self._first_solution(scaled)
            X = size * self._refined_for_variances(scaled, X, prior / size[:, 0] ** 2)
            return X, 2.0 * B - self._multiply_rows(X)
        V = np.ascontiguousarray(B)
        self.tiles.half_solve(V)
        return V, V

    def _first_solution(self, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return X = B C~^-1 and b.C~^-1 b, in float32 alone;  (c, n) -> (c, n), (c,)."""
        rows = np.array(B, self.tiles.dtype, order="C")
        self.tiles.half_solve(rows)
        by_factor = np.einsum("ij,ij->i", rows, rows, dtype=float)
        self.tiles.back_solve(rows)
        return rows.astype(float), by_factor

    def _explained(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return 2 b.x - x.C x in float64, which is at most b.C^-1 b;  (c, n), (c, n) -> (c,)."""
        explained: np.ndarray = 2.0 * np.einsum("ij,ij->i", B, X) - self._energies(X)
        return explained

    def _refined_for_variances(self, B: np.ndarray, X: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return approximations of B C^-1 that are good enough for variances, better than X.

        (c, n), (c, n), (c,) -> (c, n). The error of a row, in the variance that its solution leaves
        of `prior`, is r.C^-1 r, and r.C~^-1 r estimates it with the float32 factor C~.
        """
        R, H, error, allowed = self._errors(B, X, prior)
        todo = np.flatnonzero(~(error <= allowed))
        if not todo.size:
            return X

        def goes_on(at: Progress) -> np.ndarray:
            goes: np.ndarray = at.moved & ~(at.energy <= allowed[todo][at.running])
            return goes

        solution = np.ascontiguousarray(X[todo].T)
        iterate(
            lambda V: self._multiply_rows(np.ascontiguousarray(V.T)).T,
            lambda V: self._apply_inverse(V.T).T.astype(float),
            *(solution, R[todo].T, H[todo].T),
            goes_on,
            MAX_VARIANCE_STEPS,
        )
        X[todo] = solution.T
        return X

    def _errors(
        self, B: np.ndarray, X: np.ndarray, prior: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return residuals R (c, n), R C~^-1, the errors r.C~^-1 r, and the allowed ones (c,)."""
        product = self._multiply_rows(X)
        known = np.einsum("ij,ij->i", 2.0 * B - product, X)
        R = B - product
        H = self._apply_inverse(R).astype(float)
        allowed = VARIANCE_EXCESS_SHARE * np.abs(prior - known)
        return R, H, np.einsum("ij,ij->i", R, H), allowed


def _sizes(B: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each row, 1 for a row of zeros;  (c, n) -> (c,)."""
    size: np.ndarray = np.abs(B).max(axis=1, initial=0.0)
    size[size == 0] = 1.0
    return size
