"""The paper's block matrices, for its readers and for the tests.

Each matrix of order n d is here as a sparse matrix of SciPy, as a linear operator, or as both.
vec(W) stacks the columns of W (n, d): entry l n + i is the weight of feature l for row i. In that
order

    K-bar  = I_d (x) K                       (nd, nd)       block diagonal
    Z-bar  = (diag(Z_1), ..., diag(Z_d))     (n, nd)        y = Z-bar vec(W) + noise
    k-bar* = I_d (x) k*                      (nd, d)

where (x) is the Kronecker product. The solvers never form these matrices, since
Z-bar (K-bar + sigma_w^2 I) Z-bar^T = (K + sigma_w^2 I) o ZZ^T, where o multiplies elementwise
(docs/notation.md).

>>> K, Z = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
>>> np.allclose((Z_bar(Z) @ K_bar(K, 2) @ Z_bar(Z).T).toarray(), K * (Z @ Z.T))
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, aslinearoperator

__all__ = [
    "A_matrix",
    "K_bar",
    "K_bar_operator",
    "S_operator",
    "Z_bar",
    "Z_bar_operator",
    "k_bar_star",
    "k_bar_star_operator",
    "predictive_weights",
    "weights_posterior",
]


def K_bar(K: np.ndarray, d: int) -> sp.csr_array:
    """Return K-bar = I_d (x) K, with n^2 d stored entries.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    d : int
        The number of readable features.

    Returns
    -------
    csr_array of shape (n * d, n * d)
        K in each of the d diagonal blocks.

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> K_bar(K, 2).toarray().tolist()
    [[1.0, 0.5, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5], [0.0, 0.0, 0.5, 1.0]]
    """
    return sp.csr_array(sp.kron(sp.eye_array(d), sp.csr_array(K)))


def Z_bar(Z: Any) -> sp.csr_array:
    """Return Z-bar = (diag(Z_1), ..., diag(Z_d)), with n d stored entries, or those of a sparse Z.

    Parameters
    ----------
    Z : array or sparse matrix of shape (n, d)
        The readable features of the training rows.

    Returns
    -------
    csr_array of shape (n, n * d)
        A diagonal block for each column of Z.

    Examples
    --------
    >>> Z = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> Z_bar(Z).toarray().tolist()
    [[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 4.0]]
    """
    n, d = Z.shape
    if sp.issparse(Z):
        entries = sp.coo_array(Z)
        rows, features = (index.astype(np.int64) for index in entries.coords)
        return sp.csr_array(
            (entries.data.astype(float), (rows, features * n + rows)), shape=(n, n * d)
        )
    columns = np.arange(n)[:, None] + n * np.arange(d)[None, :]
    return sp.csr_array(
        (np.asarray(Z, float).ravel(), columns.ravel(), d * np.arange(n + 1)), shape=(n, n * d)
    )


def k_bar_star(k_star: np.ndarray, d: int) -> sp.csr_array:
    """Return k-bar* = I_d (x) k*, with n d stored entries.

    Parameters
    ----------
    k_star : ndarray of shape (n,)
        The kernel between a query and the training rows.
    d : int
        The number of readable features.

    Returns
    -------
    csr_array of shape (n * d, d)
        k* in each of the d diagonal blocks.

    Examples
    --------
    >>> k_bar_star(np.array([0.5, 0.25]), 2).toarray().tolist()
    [[0.5, 0.0], [0.25, 0.0], [0.0, 0.5], [0.0, 0.25]]
    """
    return sp.csr_array(sp.kron(sp.eye_array(d), sp.csr_array(k_star[:, None])))


def K_bar_operator(K: np.ndarray, d: int, shift: float = 0.0) -> LinearOperator:
    """Return K-bar + shift I as an operator, which maps vec(W) to vec(K W + shift W).

    A product takes 2 n^2 d flops.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    d : int
        The number of readable features.
    shift : float, default=0.0
        A number that is added to the diagonal.

    Returns
    -------
    LinearOperator of shape (n * d, n * d)
        The operator, which is symmetric.

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> v = np.arange(4.0)
    >>> np.allclose(K_bar_operator(K, 2).matvec(v), K_bar(K, 2) @ v)
    True
    """
    n = len(K)

    def apply(v: np.ndarray) -> np.ndarray:
        W = v.reshape(d, n)
        product: np.ndarray = W @ K + shift * W
        return product.ravel()

    return LinearOperator((n * d, n * d), matvec=apply, rmatvec=apply, dtype=float)


def Z_bar_operator(Z: Any) -> LinearOperator:
    """Return Z-bar as an operator, which maps vec(W) to the vector of w_i . z_i.

    The transpose maps u to vec(diag(u) Z). A product takes 2 n d flops.

    Parameters
    ----------
    Z : array or sparse matrix of shape (n, d)
        The readable features of the training rows.

    Returns
    -------
    LinearOperator of shape (n, n * d)
        The operator, which has a transpose (`rmatvec`).

    Examples
    --------
    >>> Z = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> v = np.arange(4.0)
    >>> np.allclose(Z_bar_operator(Z).matvec(v), Z_bar(Z) @ v)
    True
    """
    n, d = Z.shape
    if sp.issparse(Z):  # The matrix itself has as few entries as Z.
        return aslinearoperator(Z_bar(Z))
    return LinearOperator(
        (n, n * d),
        matvec=lambda v: np.einsum("ln,nl->n", v.reshape(d, n), Z),
        rmatvec=lambda u: (Z.T * u.ravel()).ravel(),
        dtype=float,
    )


def k_bar_star_operator(k_star: np.ndarray, d: int) -> LinearOperator:
    """Return k-bar* as an operator, which maps w to vec(k* w^T).

    The transpose maps vec(W) to W^T k*. A product takes 2 n d flops.

    Parameters
    ----------
    k_star : ndarray of shape (n,)
        The kernel between a query and the training rows.
    d : int
        The number of readable features.

    Returns
    -------
    LinearOperator of shape (n * d, d)
        The operator, which has a transpose (`rmatvec`).

    Examples
    --------
    >>> k_star, w = np.array([0.5, 0.25]), np.array([1.0, 2.0])
    >>> np.allclose(k_bar_star_operator(k_star, 2).matvec(w), k_bar_star(k_star, 2) @ w)
    True
    """
    n = len(k_star)
    return LinearOperator(
        (n * d, d),
        matvec=lambda w: np.outer(w, k_star).ravel(),
        rmatvec=lambda v: v.reshape(d, n) @ k_star,
        dtype=float,
    )


def A_matrix(K: np.ndarray, k_star: np.ndarray, d: int, sigma_w: float) -> sp.csr_array:
    """Return the paper's A = k-bar*^T (K-bar + sigma_w^2 I)^-1.

    It takes one Cholesky factorisation of an n x n matrix.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    k_star : ndarray of shape (n,)
        The kernel between a query and the training rows.
    d : int
        The number of readable features.
    sigma_w : float
        The standard deviation of the noise of the weights.

    Returns
    -------
    csr_array of shape (d, n * d)
        The matrix A.

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> A = A_matrix(K, np.array([0.5, 0.25]), 2, sigma_w=0.5)
    >>> np.allclose(A @ (K_bar(K, 2) + 0.25 * np.eye(4)), [[0.5, 0.25, 0, 0], [0, 0, 0.5, 0.25]])
    True
    """
    shifted = cho_factor(K + sigma_w**2 * np.eye(len(K)), lower=True)
    return sp.csr_array(k_bar_star(cho_solve(shifted, k_star), d).T)


def S_operator(K: np.ndarray, Z: Any, sigma_w: float, sigma_y: float) -> LinearOperator:
    """Return the paper's S, the covariance of vec(W) given the data, as an operator.

    S = L - L Z-bar^T C^-1 Z-bar L with L = K-bar + sigma_w^2 I. It takes one Cholesky factorisation
    of C (n, n), and then 4 n^2 d + 2 n^2 flops for each product.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    Z : array or sparse matrix of shape (n, d)
        The readable features of the training rows.
    sigma_w : float
        The standard deviation of the noise of the weights.
    sigma_y : float
        The standard deviation of the noise of the target.

    Returns
    -------
    LinearOperator of shape (n * d, n * d)
        The operator, which is symmetric.

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> Z = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> S = S_operator(K, Z, sigma_w=0.5, sigma_y=0.1).matmat(np.eye(4))
    >>> np.allclose(S, S.T)
    True
    """
    n, d = Z.shape
    L, Zb = K_bar_operator(K, d, shift=sigma_w**2), Z_bar_operator(Z)
    inner = (Z @ Z.T).toarray() if sp.issparse(Z) else Z @ Z.T
    C = cho_factor((K + sigma_w**2 * np.eye(n)) * inner + sigma_y**2 * np.eye(n), lower=True)

    def apply(v: np.ndarray) -> np.ndarray:
        Lv: np.ndarray = L.matvec(v)
        remaining: np.ndarray = Lv - L.matvec(Zb.rmatvec(cho_solve(C, Zb.matvec(Lv))))
        return remaining

    return LinearOperator((n * d, n * d), matvec=apply, rmatvec=apply, dtype=float)


def weights_posterior(
    K: np.ndarray, Z: Any, y: np.ndarray, sigma_w: float, sigma_y: float
) -> tuple[np.ndarray, LinearOperator]:
    """Return mean and covariance of the weights of the training rows, the paper's p(W | D).

    The mean is sigma_y^-2 S Z-bar^T y.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    Z : array or sparse matrix of shape (n, d)
        The readable features of the training rows.
    y : ndarray of shape (n,)
        The target.
    sigma_w : float
        The standard deviation of the noise of the weights.
    sigma_y : float
        The standard deviation of the noise of the target.

    Returns
    -------
    mean : ndarray of shape (n * d,)
        The mean of vec(W).
    covariance : LinearOperator of shape (n * d, n * d)
        The covariance S of vec(W).

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> Z = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> mean, S = weights_posterior(K, Z, np.array([1.0, 2.0]), sigma_w=0.5, sigma_y=0.1)
    >>> mean.shape, S.shape
    ((4,), (4, 4))
    """
    S = S_operator(K, Z, sigma_w, sigma_y)
    return S.matvec(Z_bar_operator(Z).rmatvec(y)) / sigma_y**2, S


def predictive_weights(
    K: np.ndarray,
    Z: Any,
    y: np.ndarray,
    k_star: np.ndarray,
    k_star_star: float,
    sigma_w: float,
    sigma_y: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the weights of a query, the paper's p(w* | D).

    The mean is sigma_y^-2 A S Z-bar^T y, the covariance is c** - A k-bar* + A S A^T, where c** is
    (k** + sigma_w^2) I_d. These are differences of large terms, which lose digits if the noise is
    small; the solvers compute them in another way.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel matrix of the training rows.
    Z : array or sparse matrix of shape (n, d)
        The readable features of the training rows.
    y : ndarray of shape (n,)
        The target.
    k_star : ndarray of shape (n,)
        The kernel between a query and the training rows.
    k_star_star : float
        The kernel between the query and itself.
    sigma_w : float
        The standard deviation of the noise of the weights.
    sigma_y : float
        The standard deviation of the noise of the target.

    Returns
    -------
    mean : ndarray of shape (d,)
        The mean of w*.
    covariance : ndarray of shape (d, d)
        The covariance of w*.

    Examples
    --------
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> Z = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> y, k_star = np.array([1.0, 2.0]), np.array([0.5, 0.25])
    >>> mean, covariance = predictive_weights(K, Z, y, k_star, 1.0, sigma_w=0.5, sigma_y=0.1)
    >>> mean.shape, covariance.shape
    ((2,), (2, 2))
    """
    d = Z.shape[1]
    A = A_matrix(K, k_star, d, sigma_w)
    mean, S = weights_posterior(K, Z, y, sigma_w, sigma_y)
    prior = (k_star_star + sigma_w**2) * np.eye(d)
    return A @ mean, prior - (A @ k_bar_star(k_star, d)).toarray() + A @ S.matmat(A.T.toarray())
