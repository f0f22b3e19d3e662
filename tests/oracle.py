"""Dense GPX from the paper's formulas and from their simplified form.

The code is slow and obvious, and imports nothing of gpx_scale. `k(a, b)` is any function that
returns the kernel matrix of two sets of rows.
"""

import numpy as np


def rbf(theta1, theta2):
    theta2 = np.asarray(theta2, dtype=float)

    def k(a, b):
        return theta1 * np.exp(-(((a[:, None, :] - b[None, :, :]) ** 2) / theta2).sum(axis=2))

    return k


def covariance(k, X, Z, sigma_w, sigma_y):
    n = len(X)
    return sigma_y**2 * np.eye(n) + (k(X, X) + sigma_w**2 * np.eye(n)) * (Z @ Z.T)


def log_density(y, C):
    sign, log_determinant = np.linalg.slogdet(C)
    assert sign > 0
    return (
        -0.5 * y @ np.linalg.solve(C, y) - 0.5 * log_determinant - 0.5 * len(y) * np.log(2 * np.pi)
    )


def log_evidence(k, X, y, Z, sigma_w, sigma_y):
    return log_density(y, covariance(k, X, Z, sigma_w, sigma_y))


def weights(k, X, y, Z, x, sigma_w, sigma_y):
    """Return mean (d,) and covariance (d, d) of w at one new x (p,), by the simplified form."""
    C = covariance(k, X, Z, sigma_w, sigma_y)
    B = k(x[None], X)[0][:, None] * Z
    prior = (k(x[None], x[None])[0, 0] + sigma_w**2) * np.eye(Z.shape[1])
    return B.T @ np.linalg.solve(C, y), prior - B.T @ np.linalg.solve(C, B)


def weights_by_blocks(k, X, y, Z, x, sigma_w, sigma_y):
    """Return mean and covariance of w at one new x by the paper's matrices of order n d.

    Digits are lost if the noise is small.
    """
    n, d = Z.shape
    K_bar = np.kron(np.eye(d), k(X, X))
    Z_bar = np.hstack([np.diag(Z[:, l]) for l in range(d)])
    k_bar = np.kron(np.eye(d), k(x[None], X).T)
    L = K_bar + sigma_w**2 * np.eye(n * d)
    C = sigma_y**2 * np.eye(n) + Z_bar @ L @ Z_bar.T
    A = np.linalg.solve(L, k_bar).T
    S = L - L @ Z_bar.T @ np.linalg.solve(C, Z_bar @ L)
    prior = (k(x[None], x[None])[0, 0] + sigma_w**2) * np.eye(d)
    return A @ S @ Z_bar.T @ y / sigma_y**2, prior - A @ k_bar + A @ S @ A.T


def predict(k, X, y, Z, Xq, Zq, sigma_w, sigma_y):
    """Return mean (m,) and joint covariance (m, m) of new y, noise included."""
    C = covariance(k, X, Z, sigma_w, sigma_y)
    c = k(Xq, X) * (Zq @ Z.T)
    own = k(Xq, Xq) * (Zq @ Zq.T) + np.diag(sigma_y**2 + sigma_w**2 * (Zq**2).sum(axis=1))
    return c @ np.linalg.solve(C, y), own - c @ np.linalg.solve(C, c.T)


def own_weights(k, X, y, Z, i, sigma_w, sigma_y):
    """Return posterior mean (d,) and covariance (d, d) of the weights w_i of training row i."""
    C = covariance(k, X, Z, sigma_w, sigma_y)
    cross = k(X, X)[i] + sigma_w**2 * (np.arange(len(X)) == i)
    B = cross[:, None] * Z
    return B.T @ np.linalg.solve(C, y), cross[i] * np.eye(Z.shape[1]) - B.T @ np.linalg.solve(C, B)


def bound(k, X, y, Z, Xu, Zu, sigma_w, sigma_y):
    """Return Titsias' bound on the log marginal likelihood with inducing points (Xu, Zu)."""
    D, S_nu = sigma_y**2 + sigma_w**2 * (Z**2).sum(axis=1), k(X, Xu) * (Z @ Zu.T)
    Q = S_nu @ np.linalg.solve(k(Xu, Xu) * (Zu @ Zu.T), S_nu.T)
    return log_density(y, Q + np.diag(D)) - 0.5 * (np.diag(k(X, X) * (Z @ Z.T) - Q) / D).sum()


def inducing_weights(k, X, y, Z, Xu, Zu, x, sigma_w, sigma_y):
    """Return mean (d,) and covariance (d, d) of w at one new x (p,), by inducing points."""
    D, S_nu, S_uu = (
        sigma_y**2 + sigma_w**2 * (Z**2).sum(axis=1),
        k(X, Xu) * (Z @ Zu.T),
        k(Xu, Xu) * (Zu @ Zu.T),
    )
    A = S_uu + S_nu.T @ (S_nu / D[:, None])
    B = k(x[None], Xu)[0][:, None] * Zu
    prior = (k(x[None], x[None])[0, 0] + sigma_w**2) * np.eye(Z.shape[1])
    return B.T @ np.linalg.solve(A, S_nu.T @ (y / D)), prior - B.T @ (
        np.linalg.solve(S_uu, B) - np.linalg.solve(A, B)
    )


def leave_one_out(k, X, y, Z, sigma_w, sigma_y):
    """Return y_i minus its prediction from all other rows, and the standard deviation of that."""
    residuals, deviations = np.empty(len(y)), np.empty(len(y))
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        mean, cov = predict(k, X[rest], y[rest], Z[rest], X[[i]], Z[[i]], sigma_w, sigma_y)
        residuals[i], deviations[i] = y[i] - mean[0], np.sqrt(cov[0, 0])
    return residuals, deviations


def tolerance(k, X, Z, sigma_w, sigma_y):
    """Return the relative error that rounding allows: the condition number times n eps."""
    return max(
        1e-12,
        10 * np.linalg.cond(covariance(k, X, Z, sigma_w, sigma_y)) * len(X) * np.finfo(float).eps,
    )


# Weights with priors of their own. `terms` are pairs of a kernel k and the variances of the weights
# (d,): w_l(x) = sum_t g_tl(x) + e_l with g_tl ~ GP(0, variance_tl k_t).


def covariance_of_terms(terms, X, Z, sigma_w, sigma_y):
    n, d = Z.shape
    C = sigma_y**2 * np.eye(n)
    for l in range(d):
        C += np.outer(Z[:, l], Z[:, l]) * sigma_w**2 * np.eye(n)
        for k, variances in terms:
            C += variances[l] * k(X, X) * np.outer(Z[:, l], Z[:, l])
    return C


def weights_of_terms(terms, X, y, Z, x, sigma_w, sigma_y, own=None, part=None):
    """Return mean (d,) and covariance (d, d) of w at one x (p,), or of a training row's own w.

    `own` is the number of the training row. `part` lists the terms whose sum is asked for, without
    the noise; None stands for the weights themselves.
    """
    C = covariance_of_terms(terms, X, Z, sigma_w, sigma_y)
    B, prior = prior_of_terms(terms, X, Z, x, sigma_w, own, part)
    return B.T @ np.linalg.solve(C, y), prior - B.T @ np.linalg.solve(C, B)


def prior_of_terms(terms, X, Z, x, sigma_w, own=None, part=None):
    """Return Cov[y, w] (n, d) and Cov[w] (d, d) before y is seen, as in `weights_of_terms`."""
    n, d = Z.shape
    B, prior = np.zeros((n, d)), np.zeros((d, d))
    for l in range(d):
        for t, (k, variances) in enumerate(terms):
            if part is None or t in part:
                B[:, l] += variances[l] * k(x[None], X)[0] * Z[:, l]
                prior[l, l] += variances[l] * k(x[None], x[None])[0, 0]
        if part is None:
            prior[l, l] += sigma_w**2
            if own is not None:
                B[own, l] += sigma_w**2 * Z[own, l]
    return B, prior


def predict_of_terms(terms, X, y, Z, Xq, Zq, sigma_w, sigma_y):
    """Return mean (m,) and joint covariance (m, m) of new y, noise included."""
    n = len(X)
    everything = covariance_of_terms(
        terms, np.vstack([X, Xq]), np.vstack([Z, Zq]), sigma_w, sigma_y
    )
    C, c, own = everything[:n, :n], everything[n:, :n], everything[n:, n:]
    return c @ np.linalg.solve(C, y), own - c @ np.linalg.solve(C, c.T)


def leave_one_out_of_terms(terms, X, y, Z, sigma_w, sigma_y):
    """Return y_i minus its prediction from all other rows, and the standard deviation of that."""
    residuals, deviations = np.empty(len(y)), np.empty(len(y))
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        mean, cov = predict_of_terms(
            terms, X[rest], y[rest], Z[rest], X[[i]], Z[[i]], sigma_w, sigma_y
        )
        residuals[i], deviations[i] = y[i] - mean[0], np.sqrt(cov[0, 0])
    return residuals, deviations
