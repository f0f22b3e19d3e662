"""The paper's block matrices, for its readers and for the tests: every n d-sized object, as scipy.sparse and as operators.

vec(W) stacks the columns of W (n, d): entry l n + i is the weight of feature l for sample i. In that order

    K-bar  = I_d (x) K                       (nd, nd)       block diagonal
    Z-bar  = (diag(Z_1), ..., diag(Z_d))     (n, nd)        y = Z-bar vec(W) + noise
    k-bar* = I_d (x) k*                      (nd, d)

The engine never forms them: Z-bar (K-bar + sigma_w^2 I) Z-bar^T = (K + sigma_w^2 I) o ZZ^T, and so on (docs/notation.md).

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
    """I_d (x) K;  (n, n) -> (nd, nd) with n^2 d stored entries."""
    return sp.csr_array(sp.kron(sp.eye_array(d), sp.csr_array(K)))


def Z_bar(Z: Any) -> sp.csr_array:
    """(diag(Z_1), ..., diag(Z_d));  (n, d) -> (n, nd) with nd stored entries, or those of a sparse Z."""
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
    """I_d (x) k*;  (n,) -> (nd, d) with nd stored entries."""
    return sp.csr_array(sp.kron(sp.eye_array(d), sp.csr_array(k_star[:, None])))


def K_bar_operator(K: np.ndarray, d: int, shift: float = 0.0) -> LinearOperator:
    """K-bar + shift I without forming it: vec(W) -> vec(K W + shift W);  2 n^2 d flops."""
    n = len(K)

    def apply(v: np.ndarray) -> np.ndarray:
        W = v.reshape(d, n)
        return (W @ K + shift * W).ravel()

    return LinearOperator((n * d, n * d), matvec=apply, rmatvec=apply, dtype=float)


def Z_bar_operator(Z: Any) -> LinearOperator:
    """Z-bar without forming it: vec(W) -> (w_i . z_i)_i, and its transpose u -> vec(diag(u) Z);  2 n d flops."""
    n, d = Z.shape
    if sp.issparse(Z):  # as few entries as Z has
        return aslinearoperator(Z_bar(Z))
    return LinearOperator(
        (n, n * d),
        matvec=lambda v: np.einsum("ln,nl->n", v.reshape(d, n), Z),
        rmatvec=lambda u: (Z.T * u.ravel()).ravel(),
        dtype=float,
    )


def k_bar_star_operator(k_star: np.ndarray, d: int) -> LinearOperator:
    """k-bar* without forming it: w -> vec(k* w^T), and its transpose vec(W) -> W^T k*;  2 n d flops."""
    n = len(k_star)
    return LinearOperator(
        (n * d, d),
        matvec=lambda w: np.outer(w, k_star).ravel(),
        rmatvec=lambda v: v.reshape(d, n) @ k_star,
        dtype=float,
    )


def A_matrix(K: np.ndarray, k_star: np.ndarray, d: int, sigma_w: float) -> sp.csr_array:
    """The paper's A = k-bar*^T (K-bar + sigma_w^2 I)^-1, by one factorisation of the n x n block;  (d, nd)."""
    shifted = cho_factor(K + sigma_w**2 * np.eye(len(K)), lower=True)
    return sp.csr_array(k_bar_star(cho_solve(shifted, k_star), d).T)


def S_operator(K: np.ndarray, Z: Any, sigma_w: float, sigma_y: float) -> LinearOperator:
    """The paper's S = L - L Z-bar^T C^-1 Z-bar L, L = K-bar + sigma_w^2 I, without forming it: the covariance of p(W | D).

    One Cholesky factorisation of C (n, n), then 4 n^2 d + 2 n^2 flops a product;  (nd, nd).
    """
    n, d = Z.shape
    L, Zb = K_bar_operator(K, d, shift=sigma_w**2), Z_bar_operator(Z)
    inner = (Z @ Z.T).toarray() if sp.issparse(Z) else Z @ Z.T
    C = cho_factor((K + sigma_w**2 * np.eye(n)) * inner + sigma_y**2 * np.eye(n), lower=True)

    def apply(v: np.ndarray) -> np.ndarray:
        Lv = L.matvec(v)
        return Lv - L.matvec(Zb.rmatvec(cho_solve(C, Zb.matvec(Lv))))

    return LinearOperator((n * d, n * d), matvec=apply, rmatvec=apply, dtype=float)


def weights_posterior(
    K: np.ndarray, Z: Any, y: np.ndarray, sigma_w: float, sigma_y: float
) -> tuple[np.ndarray, LinearOperator]:
    """The paper's p(W | D): mean sigma_y^-2 S Z-bar^T y as vec(W) (nd,), and its covariance S as an operator (nd, nd)."""
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
    """The paper's p(w* | D): mean sigma_y^-2 A S Z-bar^T y (d,), covariance c** - A k-bar* + A S A^T (d, d).

    Differences of large terms: digits are lost for small noise, which is why the engine does not compute it this way.
    """
    d = Z.shape[1]
    A = A_matrix(K, k_star, d, sigma_w)
    mean, S = weights_posterior(K, Z, y, sigma_w, sigma_y)
    prior = (k_star_star + sigma_w**2) * np.eye(d)
    return A @ mean, prior - (A @ k_bar_star(k_star, d)).toarray() + A @ S.matmat(A.T.toarray())
