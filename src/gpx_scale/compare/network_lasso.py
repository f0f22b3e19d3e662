"""Network lasso (Hallac 2015) and localized lasso (Yamada 2017).

Every training row has a weight vector, and those of neighbours in a graph are pulled together:

    minimise  sum_i (y_i - w_i.z_i)^2 + lambda1 sum_ij r_ij |w_i - w_j|_2
              + lambda2 sum_i |w_i|_1^2 + ridge sum_i |w_i|_2^2

R = (S + S^T) / 2, and S_ij = 1 if x_j is among the k rows nearest to x_i by cosine similarity.
Norms are smoothed at 0: |v| becomes sqrt(v^2 + s^2), s = `smoothing`. The problem is solved by
iteratively reweighted least squares. Each norm is bounded from above by the parabola that touches
it at the current weights. The sum of these bounds is minimised by the solution of a linear system
of order nd,

    (blockdiag_i(z_i z_i^T) + lambda1 L (x) I + diag(ridge + lambda2 u)) w = (z_i y_i)_i

with the Laplacian L of the graph, L_ij = -r_ij / |w_i - w_j|, and u_il = |w_i|_1 / |w_il|. It is
solved by conjugate gradients, with products in O(d (n + edges)) and no matrix of order nd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from sklearn.neighbors import NearestNeighbors

from ..errors import NotConverged
from ..linalg.conjugate_gradients import Progress, iterate
from ..runtime.arguments import positive, whole
from .method import Method, asked, dense, training

# Smoothing starts here and is halved in each reweighting, down to what was asked for. Rows whose
# weights meet too early would stay together for many reweightings.
FIRST_SMOOTHING = 1.0
# An inner solve ends when its residual is this share of the first one. The parabolas change before
# more accuracy would be of use.
INNER_RESIDUAL_SHARE = 1e-2
# An inner solve has at most this many products with the matrix.
INNER_MAX_PRODUCTS = 200
# The objective may rise by this share of itself, which is rounding.
OBJECTIVE_ROUNDING_SHARE = 1e-9
# At the end, the minimum of the last parabola may be below the objective by this share of it. Usual
# values are 1e-5.
UNSOLVED_SHARE = 1e-2
# The weights of the neighbours of queries are gathered in chunks of about this many numbers, that
# is 64 MiB.
CHUNK_NUMBERS = 2**23


@dataclass(frozen=True)
class Fusion:
    """The problem above, for rows Z (n, d), targets y (n,) and edges i < j of weight r."""

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
        """Return the problem for a symmetric matrix R (n, n) of the weights of edges."""
        upper = sp.triu(R, k=1).tocoo()
        return cls(Z, y, upper.row, upper.col, upper.data, lambda1, lambda2, ridge)

    def value(self, W: np.ndarray, smoothing: float) -> float:
        """Return the smoothed objective at W (n, d).

        The constant that smoothing adds to the norm of an edge is subtracted: it is
        sqrt(v^2 + s^2) - s, in a form without cancellation.
        """
        residual = self.y - np.einsum("nd,nd->n", self.Z, W)
        squared = self.squared_lengths(W)
        bent = squared / np.maximum(
            np.sqrt(squared + smoothing**2) + smoothing, np.finfo(float).tiny
        )
        # The sum over all ij has both orders of each edge.
        fused = 2.0 * float(self.r @ bent)
        exclusive = float((_smooth(W, smoothing).sum(axis=1) ** 2).sum()) if self.lambda2 else 0.0
        return (
            float(residual @ residual)
            + self.lambda1 * fused
            + self.lambda2 * exclusive
            + self.ridge * float((W**2).sum())
        )

    def squared_lengths(self, W: np.ndarray) -> np.ndarray:
        """Return |w_i - w_j|^2 of every edge;  (n, d) -> (edges,)."""
        apart = W[self.i] - W[self.j]
        squared: np.ndarray = np.einsum("ed,ed->e", apart, apart)
        return squared

    def parabola(self, W: np.ndarray, smoothing: float) -> Parabola:
        """Return the upper bound of the objective that touches it at W."""
        n = len(self.y)
        weight = self.lambda1 * self.r / np.sqrt(self.squared_lengths(W) + smoothing**2)
        # Without edges, bincount returns integers.
        degree = (np.bincount(self.i, weight, n) + np.bincount(self.j, weight, n)).astype(float)
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
    """The linear system of one reweighting, for matrices W (n, d), and its preconditioner.

    The preconditioner adds two parts: the inverse of each row's own block diag(h) + z z^T, and the
    inverse of the system for weights that all rows share.
    """

    Z: np.ndarray
    L: Any
    own: np.ndarray
    inverse: np.ndarray
    scaled: np.ndarray
    shared: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, Z: np.ndarray, L: Any, degree: np.ndarray, own: np.ndarray) -> Parabola:
        """Return the system of a Laplacian L with degrees (n,) and of a diagonal `own` (n, d)."""
        inverse = 1.0 / (own + degree[:, None])
        part = Z * inverse
        # The blocks are inverted by the Sherman-Morrison formula.
        scaled = part / np.sqrt(1.0 + np.einsum("nd,nd->n", Z, part))[:, None]
        return cls(Z, L, own, inverse, scaled, _shared(Z, own.sum(axis=0)))

    def times(self, W: np.ndarray) -> np.ndarray:
        """Return the product of the system's matrix with W;  (n, d) -> (n, d)."""
        fits = self.Z * np.einsum("nd,nd->n", self.Z, W)[:, None]
        product: np.ndarray = fits + self.L @ W + self.own * W
        return product

    def precondition(self, V: np.ndarray) -> np.ndarray:
        """Return the product of the preconditioner with V;  (n, d) -> (n, d)."""
        rows = V * self.inverse - self.scaled * np.einsum("nd,nd->n", self.scaled, V)[:, None]
        product: np.ndarray = rows + self.shared(V.sum(axis=0))
        return product

    def unsolved(self, B: np.ndarray, W: np.ndarray) -> float:
        """Estimate how far the minimum of the parabola is below its value at W."""
        residual = B - self.times(W)
        return float((residual * self.precondition(residual)).sum())

    def solve(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Return an approximate solution, by conjugate gradients that start at W;  (n, d).

        All n d numbers are one vector, a column of a system of order nd.
        """

        def times(v: np.ndarray) -> np.ndarray:
            return self.times(v.reshape(B.shape)).reshape(-1, 1)

        def precondition(v: np.ndarray) -> np.ndarray:
            return self.precondition(v.reshape(B.shape)).reshape(-1, 1)

        w = W.reshape(-1, 1).copy()
        residual = B.reshape(-1, 1) - times(w)
        better = precondition(residual)
        enough = INNER_RESIDUAL_SHARE**2 * _total(residual, better)

        def goes_on(at: Progress) -> np.ndarray:
            return at.moved & ~(at.energy <= enough)

        iterate(times, precondition, w, residual, better, goes_on, INNER_MAX_PRODUCTS, _total)
        return w.reshape(W.shape)


def _total(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a.b of two columns;  (n d, 1), (n d, 1) -> (1,).

    Pairwise summation of all products is more accurate than einsum for long vectors.
    """
    return np.array([(a * b).sum()])


def _shared(Z: np.ndarray, h: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function v -> (Z^T Z + diag(h))^-1 v;  (d,) -> (d,).

    It uses a Cholesky factor of the smaller order, d or (by the Woodbury formula) n.
    """
    n, d = Z.shape
    if d <= n:
        factor = cho_factor(Z.T @ Z + np.diag(h))
        return lambda v: cho_solve(factor, v)
    part = Z / h
    inner = cho_factor(np.eye(n) + part @ Z.T)
    return lambda v: v / h - part.T @ cho_solve(inner, part @ v)


def _smooth(W: np.ndarray, smoothing: float) -> np.ndarray:
    """Return the smoothed absolute values sqrt(W^2 + s^2)."""
    sizes: np.ndarray = np.sqrt(W**2 + smoothing**2)
    return sizes


def fused_weights(problem: Fusion, smoothing: float, tol: float, max_iter: int) -> np.ndarray:
    """Return the weights W (n, d) that minimise the objective.

    Reweighting ends when the objective falls by less than `tol` of itself. If it rises by more than
    rounding, the linear system is too badly conditioned, and NotConverged is raised.
    """
    B = problem.Z * problem.y[:, None]
    W = B / (1.0 + np.einsum("nd,nd->n", problem.Z, problem.Z))[:, None]
    now, before = max(FIRST_SMOOTHING, smoothing), np.inf
    for _ in range(max_iter):
        new = problem.parabola(W, now).solve(B, W)
        value = problem.value(new, now)
        # The comparison is negated so that it catches NaN, too.
        if not value <= problem.value(W, now) * (1.0 + OBJECTIVE_ROUNDING_SHARE):
            raise NotConverged(_hard(problem))
        W = new
        if now > smoothing:
            now, value = max(smoothing, 0.5 * now), np.inf
        elif before - value <= tol * value:
            if not problem.parabola(W, now).unsolved(B, W) <= UNSOLVED_SHARE * value:
                raise NotConverged(_hard(problem))
            return W
        before = value
    raise NotConverged(
        f"The objective still falls by more than {tol:g} of itself after {max_iter} reweightings. "
        "Raise max_iter."
    )


def _hard(problem: Fusion) -> str:
    """Return the message for penalties with which the problem cannot be solved."""
    return (
        f"lambda1={problem.lambda1:g} and lambda2={problem.lambda2:g} are too large beside "
        f"ridge={problem.ridge:g}, and the problem cannot be solved. Lower them, or raise ridge."
    )


class LocalizedLasso(Method):
    """Localized lasso (Yamada 2017): weights of each row, similar between neighbours and sparse.

    The weights of a new row are the Weber point of the weights of its k nearest training rows: the
    point with the smallest sum of distances to them.

    Parameters
    ----------
    lambda1 : float, default=1.0
        The penalty on differences between the weights of neighbours.
    lambda2 : float, default=0.01
        The penalty on the squared L1 norm of the weights of each row (exclusive sparsity).
    n_neighbors : int, default=5
        The number k of neighbours of a row in the graph, by cosine similarity of X.
    ridge : float, default=1e-3
        The penalty on squared weights. It is small, and makes the problem strictly convex.
    smoothing : float, default=1e-3
        The smoothing of the norms at 0, in the units of the weights.
    tol : float, default=1e-4
        The search ends when the objective falls by less than this share of itself.
    max_iter : int, default=500
        The largest number of reweightings.

    Attributes
    ----------
    W_ : ndarray of shape (n, d)
        The weights of the training rows.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> method = compare.LocalizedLasso(lambda1=1.0).fit(X, y)
    >>> method.W_.shape, method.weights(X[:5]).shape
    ((60, 3), (5, 3))
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

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Find the weights of the training rows.

        Parameters
        ----------
        X : array-like of shape (n, p)
            The inputs, standardised.
        y : array-like of shape (n,)
            The target, standardised.
        Z : array-like of shape (n, d), default=None
            The readable features. None takes X.

        Returns
        -------
        self : LocalizedLasso
            The fitted method.

        Raises
        ------
        NotConverged
            If the problem cannot be solved with these penalties, or within `max_iter` reweightings.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.LocalizedLasso().fit(X, y).W_.shape
        (60, 3)
        """
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
        """Return the indices of the training rows that are nearest to new rows.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.

        Returns
        -------
        neighbours : ndarray of shape (m, k)
            The indices, the nearest row first.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.LocalizedLasso(n_neighbors=4).fit(X, y).neighbours(X[:5]).shape
        (5, 4)
        """
        near: np.ndarray = self._nearest.kneighbors(_directions(dense(X)), return_distance=False)
        return near

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the weights of new rows: the Weber points of their neighbours' weights.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.

        Returns
        -------
        weights : ndarray of shape (m, d)
            The weights, which are slopes.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.LocalizedLasso().fit(X, y).weights(X[:5]).shape
        (5, 3)
        """
        X, Z = asked(self, X, Z)
        if not len(X):
            return np.empty(Z.shape)
        near = self.neighbours(X)
        rows = max(1, CHUNK_NUMBERS // (near.shape[1] * Z.shape[1]))
        return np.vstack(
            [weber_points(self.W_[near[at : at + rows]]) for at in range(0, len(X), rows)]
        )

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        """Predict y for new rows by w . z.

        Parameters
        ----------
        X : array-like of shape (m, p)
            The inputs, standardised as in `fit`.
        Z : array-like of shape (m, d), default=None
            The readable features. None takes X.

        Returns
        -------
        mean : ndarray of shape (m,)
            The predictions.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.preprocessing import scale
        >>> from gpx_scale import compare
        >>> X, y = load_diabetes(return_X_y=True)
        >>> X, y = scale(X[:60, :3]), scale(y[:60])
        >>> compare.LocalizedLasso().fit(X, y).predict(X[:5]).shape
        (5,)
        """
        X, Z = asked(self, X, Z)
        mean: np.ndarray = np.einsum("md,md->m", self.weights(X, Z), Z)
        return mean


class NetworkLasso(LocalizedLasso):
    """Network lasso (Hallac 2015): weights of each row, similar between neighbours.

    It is the localized lasso without its penalty for sparsity, that is with lambda2 = 0.

    Parameters
    ----------
    lambda1 : float, default=1.0
        The penalty on differences between the weights of neighbours.
    n_neighbors : int, default=5
        The number k of neighbours of a row in the graph, by cosine similarity of X.
    ridge : float, default=1e-3
        The penalty on squared weights. It is small, and makes the problem strictly convex.
    smoothing : float, default=1e-3
        The smoothing of the norms at 0, in the units of the weights.
    tol : float, default=1e-4
        The search ends when the objective falls by less than this share of itself.
    max_iter : int, default=500
        The largest number of reweightings.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> compare.NetworkLasso(lambda1=1.0).fit(X, y).weights(X[:5]).shape
    (5, 3)
    """

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
    """Return argmin_w sum_k |w - p_k|_2 of every set of points, by Weiszfeld's iteration.

    (m, k, d) -> (m, d). The iteration of a set ends when its step is below `tol` of its extent.
    Distances below that are replaced by it.
    """
    w: np.ndarray = points.mean(axis=1)
    extent = np.abs(points - w[:, None, :]).max(axis=(1, 2), initial=0.0)
    left = np.flatnonzero(extent > 0)
    for _ in range(max_iter):
        if not left.size:
            break
        # Distances are relative to the extent, so that their inverses exist in any unit.
        apart = (points[left] - w[left, None, :]) / extent[left, None, None]
        pull = 1.0 / np.maximum(np.sqrt(np.einsum("mkd,mkd->mk", apart, apart)), tol)
        step = np.einsum("mk,mkd->md", pull, apart) / pull.sum(axis=1, keepdims=True)
        w[left] += step * extent[left, None]
        left = left[np.abs(step).max(axis=1) > tol]
    return w


def _directions(X: np.ndarray) -> np.ndarray:
    """Return rows of length 1, whose Euclidean distances have the order of cosine similarity.

    A row of zeros stays as it is, and has the same distance to all others.
    """
    length = np.sqrt(np.einsum("np,np->n", X, X))[:, None]
    unit: np.ndarray = X / np.where(length > 0, length, 1.0)
    return unit
