"""Coefficients that vary over the plane, beside GPBoost (Vecchia) and mgwr (GWR).

The error is measured at 1,000 new places, where the true coefficients are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import THREADS, RowSource, Task


def synth(n: int) -> Callable[[str], RowSource]:
    """Return `synth2` with n rows, and the true coefficients in the units of the rows' y."""

    def data(size: str) -> RowSource:
        from varying import data

        rows, query, true = data({"full": n, "tiny": 600, "small": 400}[size])
        # mgwr predicts at no more places than it has training rows.
        m = min(len(query.y), len(rows.y))
        return RowSource(rows.X, rows.y, query.X[:m], query.y[:m], rows.Z, query.Z[:m], true[:m])

    return data


def coefficient_error(rows: RowSource, weights: np.ndarray, entry: Any) -> dict[str, float]:
    """Return the RMSE of coefficients."""
    return {"error": float(np.sqrt(np.mean((weights - rows.true) ** 2)))}


class Ours:
    """Our solver `basis`."""

    def fit(self, rows: RowSource) -> None:
        from gpx_scale import GPXRegressor

        self.model = GPXRegressor(
            solver="basis",
            random_state=0,
            n_jobs=THREADS,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(rows.X, rows.y, rows.Z)

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.explain(rows.Xq, rows.Zq).weights


class GPBoost:
    """GPBoost's `gp_rand_coef_data` with Vecchia's approximation.

    Coefficients at new places are differences of predictions at unit vectors.
    """

    def fit(self, rows: RowSource) -> None:
        import gpboost

        self.model = gpboost.GPModel(
            gp_coords=rows.X,
            gp_rand_coef_data=rows.Z[:, 1:],
            cov_function="matern",
            cov_fct_shape=1.5,
            gp_approx="vecchia",
            likelihood="gaussian",
            num_parallel_threads=THREADS,
        )
        self.model.fit(y=rows.y)

    def answer(self, rows: RowSource) -> np.ndarray:
        m, d = len(rows.Xq), rows.Z.shape[1]
        found = []
        for k in range(d):
            unit = np.zeros((m, d - 1))
            if k:
                unit[:, k - 1] = 1.0
            at = {"gp_coords_pred": rows.Xq, "gp_rand_coef_data_pred": unit}
            found.append(self.model.predict(**at, predict_var=True, predict_response=False)["mu"])
        return np.column_stack([found[0], *(mean - found[0] for mean in found[1:])])


class Gwr:
    """mgwr's GWR with its golden-section search for the bandwidth."""

    def fit(self, rows: RowSource) -> None:
        from mgwr.gwr import GWR
        from mgwr.sel_bw import Sel_BW

        places, y, Z = list(map(tuple, rows.X)), rows.y[:, None], rows.Z[:, 1:]
        bandwidth = Sel_BW(places, y, Z, n_jobs=THREADS).search()
        self.model = GWR(places, y, Z, bandwidth, n_jobs=THREADS)
        self.fitted = self.model.fit()

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.predict(
            rows.Xq, rows.Zq[:, 1:], self.fitted.scale, self.fitted.resid_response
        ).params


TITLE = "synth2, n = {n}: fit, and {m} vectors of coefficients"
WIDE = Task(
    TITLE,
    synth(20_000),
    "RMSE of coefficients",
    coefficient_error,
    {"basis": Ours},
    {"GPBoost (Vecchia)": GPBoost},
)
NARROW = Task(
    TITLE,
    synth(5_000),
    "RMSE of coefficients",
    coefficient_error,
    {"basis": Ours},
    {"mgwr (GWR)": Gwr, "GPBoost (Vecchia)": GPBoost},
)
