"""The paper's model, as arguments of `GPXRegressor`.

>>> from gpx_scale import PAPER, GPXRegressor
>>> GPXRegressor(**PAPER, random_state=0)
GPXRegressor(random_state=0)
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, Any] = {
    "kernel": "rbf",  # k(x, x') = theta1 exp(-|x - x'|^2 / theta2)
    "ard": False,  # one theta2 for all columns of X
    "fit_intercept": False,
}
