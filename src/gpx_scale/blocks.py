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

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator

__all__ = [
    "K_bar",
    "K_bar_operator",
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


def Z_bar(Z: np.ndarray) -> sp.csr_array:
    """(diag(Z_1), ..., diag(Z_d));  (n, d) -> (n, nd) with nd stored entries."""
    n, d = Z.shape
    columns = np.arange(n)[:, None] + n * np.arange(d)[None, :]
    return sp.csr_array((np.asarray(Z, float).ravel(), columns.ravel(), np.arange(0, n * d + 1, d)), shape=(n, n * d))


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


def Z_bar_operator(Z: np.ndarray) -> LinearOperator:
    """Z-bar without forming it: vec(W) -> (w_i . z_i)_i, and its transpose u -> vec(diag(u) Z);  2 n d flops."""
    n, d = Z.shape
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


def weights_posterior(
    K: np.ndarray, Z: np.ndarray, y: np.ndarray, sigma_w: float, sigma_y: float
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's p(W | D): mean sigma_y^-2 S Z-bar^T y (nd,), covariance S = L - L Z-bar^T C^-1 Z-bar L (nd, nd)."""
    n, d = Z.shape
    Zb = Z_bar(Z)
    L = K_bar(K, d) + sigma_w**2 * sp.eye_array(n * d)
    C = cho_factor(sigma_y**2 * np.eye(n) + (Zb @ L @ Zb.T).toarray(), lower=True)
    ZL = (Zb @ L).toarray()
    S = L.toarray() - ZL.T @ cho_solve(C, ZL)
    return S @ (Zb.T @ y) / sigma_y**2, S


def predictive_weights(
    K: np.ndarray,
    Z: np.ndarray,
    y: np.ndarray,
    k_star: np.ndarray,
    k_star_star: float,
    sigma_w: float,
    sigma_y: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's p(w* | D): mean sigma_y^-2 A S Z-bar^T y (d,), covariance c** - A k-bar* + A S A^T (d, d).

    A = k-bar*^T (K-bar + sigma_w^2 I)^-1, by one factorisation of the n x n block. Cancels for small noise: at
    sigma_y = 1e-6 the mean is wrong in the first digit, which is why the engine does not compute it this way.
    """
    n, d = Z.shape
    block = cho_solve(cho_factor(K + sigma_w**2 * np.eye(n), lower=True), k_star)
    A = k_bar_star(block, d).T
    mean, S = weights_posterior(K, Z, y, sigma_w, sigma_y)
    prior = (k_star_star + sigma_w**2) * np.eye(d)
    return A @ mean, prior - (A @ k_bar_star(k_star, d)).toarray() + A @ (A @ S.T).T
