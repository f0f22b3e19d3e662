"""Network lasso (Hallac 2015), localized lasso (Yamada 2017): one weight vector a sample, fused along a graph of neighbours.

    minimise  sum_i (y_i - w_i.z_i)^2 + lambda1 sum_ij r_ij |w_i - w_j|_2 + lambda2 sum_i |w_i|_1^2 + ridge sum_i |w_i|_2^2

R = (S + S^T)/2, S_ij = 1 where x_j is among the k rows nearest to x_i by cosine similarity. Norms are smoothed at 0: |v|
becomes sqrt(v^2 + s^2), s = `smoothing`. Iteratively reweighted least squares: each norm is bounded from above by the parabola
that touches it at the weights so far, and what minimises the sum of those solves a linear system of order nd,

    (blockdiag_i(z_i z_i^T) + lambda1 L (x) I + diag(ridge + lambda2 u)) w = (z_i y_i)_i

with the graph's Laplacian L, L_ij = -r_ij/|w_i - w_j|, and u_il = |w_i|_1/|w_il|: by conjugate gradients, a product in
O(d (n + edges)); of the order nd, nothing but vectors is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from sklearn.neighbors import NearestNeighbors

from ..errors import NotConverged
from ..linalg.conjugate_gradients import Progress, iterate
from ..runtime.arguments import positive, whole
from .method import Method, asked, dense, training

FIRST_SMOOTHING = 1.0  # halved from here on: rows that meet early would stay together for very long
SOLVED = 1e-2  # residual of an inner solve beside that of its start: the parabolas change before more would pay
INNER = 200  # products of one inner solve at most
ROUNDING = 1e-9  # of the objective
UNSOLVED = 1e-2  # of the objective: what the last system may leave; 1e-5 is usual
CHUNK = 2**23  # numbers: of the neighbours' weights of some queries


@dataclass(frozen=True)
class Fusion:
    """The problem above, for rows Z (n, d), y (n,) and edges i < j of weight r."""

    Z: np.ndarray
    y: np.ndarray
    i: np.ndarray
    j: np.ndarray
    r: np.ndarray
    lambda1: float
    lambda2: float
    ridge: float

    @classmethod
    def of(
        cls, Z: np.ndarray, y: np.ndarray, R: Any, lambda1: float, lambda2: float, ridge: float
    ) -> Fusion:
        upper = sp.triu(R, k=1).tocoo()
        return cls(Z, y, upper.row, upper.col, upper.data, lambda1, lambda2, ridge)

    def value(self, W: np.ndarray, smoothing: float) -> float:
        """What is minimised, at W (n, d), less what smoothing adds to fused rows."""
        residual = self.y - np.einsum("nd,nd->n", self.Z, W)
        squared = self.squared_lengths(W)
        bent = squared / np.maximum(
            np.sqrt(squared + smoothing**2) + smoothing, np.finfo(float).tiny
        )
        fused = 2.0 * float(self.r @ bent)  # both orders of a pair
        exclusive = float((_smooth(W, smoothing).sum(axis=1) ** 2).sum()) if self.lambda2 else 0.0
        return (
            float(residual @ residual)
            + self.lambda1 * fused
            + self.lambda2 * exclusive
            + self.ridge * float((W**2).sum())
        )

    def squared_lengths(self, W: np.ndarray) -> np.ndarray:
        """|w_i - w_j|^2 of every edge."""
        apart = W[self.i] - W[self.j]
        return np.einsum("ed,ed->e", apart, apart)

    def parabola(self, W: np.ndarray, smoothing: float) -> Parabola:
        """The bound that touches at W."""
        n, weight = (
            len(self.y),
            self.lambda1 * self.r / np.sqrt(self.squared_lengths(W) + smoothing**2),
        )
        degree = (np.bincount(self.i, weight, n) + np.bincount(self.j, weight, n)).astype(
            float
        )  # whole numbers without edges
        pairs = np.r_[self.i, self.j], np.r_[self.j, self.i]
        L = sp.csr_array(
            sp.diags_array(degree) - sp.csr_array((np.r_[weight, weight], pairs), shape=(n, n))
        )
        own = np.full(W.shape, self.ridge)
        if self.lambda2:
            sizes = _smooth(W, smoothing)
            own += self.lambda2 * sizes.sum(axis=1, keepdims=True) / sizes
        return Parabola.of(self.Z, L, degree, own)


@dataclass(frozen=True)
class Parabola:
    """The system of one reweighting, on matrices W (n, d), and a preconditioner of two levels: each row's own block
    diag(h) + z z^T, and the weights that all rows share."""

    Z: np.ndarray
    L: Any
    own: np.ndarray
    inverse: np.ndarray
    scaled: np.ndarray
    shared: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, Z: np.ndarray, L: Any, degree: np.ndarray, own: np.ndarray) -> Parabola:
        inverse = 1.0 / (own + degree[:, None])
        part = Z * inverse
        scaled = (
            part / np.sqrt(1.0 + np.einsum("nd,nd->n", Z, part))[:, None]
        )  # Sherman and Morrison
        return cls(Z, L, own, inverse, scaled, _shared(Z, own.sum(axis=0)))

    def times(self, W: np.ndarray) -> np.ndarray:
        return self.Z * np.einsum("nd,nd->n", self.Z, W)[:, None] + self.L @ W + self.own * W

    def precondition(self, V: np.ndarray) -> np.ndarray:
        rows = V * self.inverse - self.scaled * np.einsum("nd,nd->n", self.scaled, V)[:, None]
        return rows + self.shared(V.sum(axis=0))

    def left(self, B: np.ndarray, W: np.ndarray) -> float:
        """About how far the least of the parabola is below it at W."""
        residual = B - self.times(W)
        return float((residual * self.precondition(residual)).sum())

    def solve(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Return the solution from W on, until the residual is SOLVED of its first;  (n, d).

        All n d numbers are one vector, a column of a system of order nd.
        """

        def times(v: np.ndarray) -> np.ndarray:
            return self.times(v.reshape(B.shape)).reshape(-1, 1)

        def precondition(v: np.ndarray) -> np.ndarray:
            return self.precondition(v.reshape(B.shape)).reshape(-1, 1)

        w = W.reshape(-1, 1).copy()
        residual = B.reshape(-1, 1) - times(w)
        better = precondition(residual)
        enough = SOLVED**2 * _total(residual, better)

        def goes_on(at: Progress) -> np.ndarray:
            return at.moved & ~(at.energy <= enough)

        iterate(times, precondition, w, residual, better, goes_on, INNER, _total)
        return w.reshape(W.shape)


def _total(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a.b of two columns;  (n d, 1), (n d, 1) -> (1,).

    Pairwise summation of all products is more accurate than that of einsum, for long vectors.
    """
    return np.array([(a * b).sum()])


def _shared(Z: np.ndarray, h: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """v -> (Z^T Z + diag(h))^-1 v by a Cholesky factor of the smaller order, n or d (Woodbury);  (d,) -> (d,)."""
    n, d = Z.shape
    if d <= n:
        factor = cho_factor(Z.T @ Z + np.diag(h))
        return lambda v: cho_solve(factor, v)
    part = Z / h
    inner = cho_factor(np.eye(n) + part @ Z.T)
    return lambda v: v / h - part.T @ cho_solve(inner, part @ v)


def _smooth(W: np.ndarray, smoothing: float) -> np.ndarray:
    return np.sqrt(W**2 + smoothing**2)


def fused_weights(problem: Fusion, smoothing: float, tol: float, max_iter: int) -> np.ndarray:
    """W (n, d) of the least objective: reweighting until it falls by less than `tol` of itself. Where it rises, and not by
    rounding, the system is too badly conditioned to be solved."""
    B = problem.Z * problem.y[:, None]
    W = B / (1.0 + np.einsum("nd,nd->n", problem.Z, problem.Z))[:, None]
    now, before = max(FIRST_SMOOTHING, smoothing), np.inf
    for _ in range(max_iter):
        new = problem.parabola(W, now).solve(B, W)
        value = problem.value(new, now)
        if not value <= problem.value(W, now) * (1.0 + ROUNDING):  # also catches NaN
            raise NotConverged(_hard(problem))
        W = new
        if now > smoothing:
            now, value = max(smoothing, 0.5 * now), np.inf
        elif before - value <= tol * value:
            if not problem.parabola(W, now).left(B, W) <= UNSOLVED * value:
                raise NotConverged(_hard(problem))
            return W
        before = value
    raise NotConverged(
        f"the objective still falls by more than {tol:g} of itself after {max_iter} reweightings: raise max_iter"
    )


def _hard(problem: Fusion) -> str:
    sizes = f"lambda1 = {problem.lambda1:g}, lambda2 = {problem.lambda2:g}"
    return f"{sizes} are too large beside ridge = {problem.ridge:g} to be solved for: lower them, or raise ridge"


class LocalizedLasso(Method):
    """A weight vector for each row, alike along a graph of neighbours, sparse within each row.

    lambda1, lambda2 : of fusion and of exclusive sparsity; n_neighbors : k of the graph, by cosine similarity of X.
    ridge : keeps the problem strictly convex; it is small. smoothing : of both norms, in the units of the weights.
    A new row's weights are the Weber point of its k neighbours': the least sum of distances to theirs, each edge weighing 1.
    """

    def __init__(
        self,
        lambda1: float = 1.0,
        lambda2: float = 0.01,
        n_neighbors: int = 5,
        ridge: float = 1e-3,
        smoothing: float = 1e-3,
        tol: float = 1e-4,
        max_iter: int = 500,
    ) -> None:
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.n_neighbors = n_neighbors
        self.ridge = ridge
        self.smoothing = smoothing
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, Z: Any = None) -> LocalizedLasso:
        X, y, Z = training(X, y, Z)
        lambda1, lambda2 = (
            positive(self.lambda1, "lambda1", zero=True),
            positive(self.lambda2, "lambda2", zero=True),
        )
        ridge, smoothing = positive(self.ridge, "ridge"), positive(self.smoothing, "smoothing")
        tol, max_iter = (
            positive(self.tol, "tol", zero=True),
            whole(self.max_iter, "max_iter", least=1),
        )
        k = min(whole(self.n_neighbors, "n_neighbors", least=1), len(X) - 1)
        self._nearest = NearestNeighbors(n_neighbors=max(k, 1), algorithm="brute").fit(
            _directions(X)
        )
        S = self._nearest.kneighbors_graph() if k else sp.csr_array((1, 1))
        problem = Fusion.of(Z, y, (S + S.T) / 2, lambda1, lambda2, ridge)
        self.W_ = fused_weights(problem, smoothing, tol, max_iter)
        self._remember(X, Z)
        return self

    def neighbours(self, X: Any) -> np.ndarray:
        """Training rows nearest to those of X, the nearest first;  (m, k)."""
        return self._nearest.kneighbors(_directions(dense(X)), return_distance=False)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        X, Z = asked(self, X, Z)
        if not len(X):
            return np.empty(Z.shape)
        near = self.neighbours(X)
        rows = max(1, CHUNK // (near.shape[1] * Z.shape[1]))
        return np.vstack(
            [weber_points(self.W_[near[at : at + rows]]) for at in range(0, len(X), rows)]
        )

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        X, Z = asked(self, X, Z)
        return np.einsum("md,md->m", self.weights(X, Z), Z)


class NetworkLasso(LocalizedLasso):
    """Localized lasso without the exclusive penalty: lambda2 = 0."""

    def __init__(
        self,
        lambda1: float = 1.0,
        n_neighbors: int = 5,
        ridge: float = 1e-3,
        smoothing: float = 1e-3,
        tol: float = 1e-4,
        max_iter: int = 500,
    ) -> None:
        super().__init__(lambda1, 0.0, n_neighbors, ridge, smoothing, tol, max_iter)


def weber_points(points: np.ndarray, max_iter: int = 200, tol: float = 1e-6) -> np.ndarray:
    """argmin_w sum_k |w - p_k|_2 of every set of points, by Weiszfeld's iteration;  (m, k, d) -> (m, d).

    A set is done once its step is below `tol` of its extent; distances below that count as that."""
    w = points.mean(axis=1)
    extent = np.abs(points - w[:, None, :]).max(axis=(1, 2), initial=0.0)
    left = np.flatnonzero(extent > 0)
    for _ in range(max_iter):
        if not left.size:
            break
        apart = (points[left] - w[left, None, :]) / extent[
            left, None, None
        ]  # so that no unit is too small for its inverse
        pull = 1.0 / np.maximum(np.sqrt(np.einsum("mkd,mkd->mk", apart, apart)), tol)
        step = np.einsum("mk,mkd->md", pull, apart) / pull.sum(axis=1, keepdims=True)
        w[left] += step * extent[left, None]
        left = left[np.abs(step).max(axis=1) > tol]
    return w


def _directions(X: np.ndarray) -> np.ndarray:
    """Rows of length 1, whose Euclidean order is that of cosine similarity; a row of zeros is as near to all."""
    length = np.sqrt(np.einsum("np,np->n", X, X))[:, None]
    return X / np.where(length > 0, length, 1.0)
