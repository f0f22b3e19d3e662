"""The log marginal likelihood at one point, as a solver computes it and a search takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood log p(y) in nats, with its gradient by `theta`.

    The hyperparameters' priors are not part of it. There are t hyperparameters and n rows.

    Attributes
    ----------
    value : float
        log p(y), or a lower bound of it.
    gradient : ndarray of shape (t,), or None
        The derivatives of `value` by the logarithms of the hyperparameters, if they were asked for.
    n_rows : int
        The number of rows.
    alpha : ndarray of shape (n,), or None
        C^-1 y, from the solvers that compute it.
    inverse_diagonal : ndarray of shape (n,), or None
        diag(C^-1), from the exact solver, together with the gradient.
    information : ndarray of shape (t, t), or None
        The average information of the hyperparameters, if it was asked for.
    standard_error : float
        The standard error of `value` where it is an estimate, 0 where it is exact.
    probes : int
        The number s of random probes that the gradient is estimated from, 0 if it is exact. The
        covariance of its error is the information / s at most.
    left_out_log_density : float or None
        The sum of log p(y_i | all other rows), where the noise is not Gaussian.
    """

    value: float
    gradient: np.ndarray | None
    n_rows: int
    alpha: np.ndarray | None = None
    inverse_diagonal: np.ndarray | None = None
    information: np.ndarray | None = None
    standard_error: float = 0.0
    probes: int = 0
    left_out_log_density: float | None = None

    def leave_one_out(self) -> np.ndarray:
        """Return y_i minus its prediction from all other rows, alpha_i / (C^-1)_ii;  (n,)."""
        assert self.alpha is not None
        assert self.inverse_diagonal is not None
        residuals: np.ndarray = self.alpha / self.inverse_diagonal
        return residuals

    def leave_one_out_log_density(self) -> float:
        """Return the sum of log p(y_i | all other rows), each N(residual; 0, 1 / (C^-1)_ii);  O(n).

        It is a second opinion on a model: it depends on predictions alone, and not on how well the
        prior of the hyperparameters was chosen.
        """
        if self.left_out_log_density is not None:
            return self.left_out_log_density
        assert self.inverse_diagonal is not None
        scaled = self.leave_one_out() ** 2 * self.inverse_diagonal
        return -0.5 * float(np.sum(scaled - np.log(self.inverse_diagonal) + np.log(2 * np.pi)))
