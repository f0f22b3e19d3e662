"""Spectral densities s(omega) of kernels.

    k(x, x') = (2 pi)^-p integral of s(omega) cos(omega.(x - x')) over omega

With l_k^2 = theta2_k / 2 and R = sum_k (l_k omega_k)^2:

    RBF           theta1 (2 pi)^(p/2) prod l_k exp(-R / 2)
    Matern nu     theta1 (4 pi)^(p/2) Gamma(nu + p/2) / Gamma(nu) (2 nu)^nu prod l_k
                  (2 nu + R)^-(nu + p/2)
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln


def density(
    nu: float, theta1: float, lengths: np.ndarray, omega: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return s(omega) and its derivatives by log theta1 and by each log theta2_k.

    (p,), (q, p) -> (q,), (q, 1 + p). An infinite nu stands for the RBF.
    """
    p = lengths.size
    square = (lengths * omega) ** 2
    R = square.sum(axis=1)
    if np.isinf(nu):
        log_s = 0.5 * p * np.log(2.0 * np.pi) - 0.5 * R
        along = 0.5 - 0.5 * square
    else:
        power = nu + 0.5 * p
        log_s = 0.5 * p * np.log(4.0 * np.pi) + gammaln(power) - gammaln(nu) + nu * np.log(2.0 * nu)
        log_s = log_s - power * np.log(2.0 * nu + R)
        along = 0.5 - power * square / (2.0 * nu + R)[:, None]
    s = theta1 * np.exp(log_s + np.log(lengths).sum())
    return s, s[:, None] * np.column_stack([np.ones_like(s), along])
