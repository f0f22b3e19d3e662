"""The model of the paper, as arguments of `GPXRegressor`: an RBF kernel, no ARD, no intercept.

>>> from gpx_scale import PAPER, GPXRegressor
>>> GPXRegressor(**PAPER, random_state=0)
GPXRegressor(ard=False, fit_intercept=False, kernel='rbf', random_state=0,
             search_rows='all', weights='shared')
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, Any] = {
    # The paper's kernel is k(x, x') = theta1 exp(-|x - x'|^2 / theta2).
    "kernel": "rbf",
    # The paper has one theta2 for all columns of X.
    "ard": False,
    "fit_intercept": False,
    # The weights of the paper share their kernel and its variance.
    "weights": "shared",
    # The paper's hyperparameters are the optimum of all rows.
    "search_rows": "all",
}
