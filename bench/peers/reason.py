"""Explanations of predictions: GPX's own weights, beside shap's KernelExplainer and lime.

Both explain a GPR of this package (`gpx_scale.compare`, the paper's protocol). It predicts
fast, so most of the time is their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import THREADS, RowSource, Task, loaded, mse


class Explained:
    """A method of `gpx_scale.compare`. Only GPX explains with standard deviations."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fit(self, rows: RowSource) -> None:
        from gpx_scale import compare

        self.method = getattr(compare, self.name)(n_jobs=THREADS, random_state=0).fit(
            rows.X, rows.y
        )

    def answer(self, rows: RowSource) -> np.ndarray:
        if self.name == "GPX":
            return self.method.model_.explain(rows.Xq).weights * rows.Xq
        return self.method.contributions(rows.Xq)


def unfaithful(rows: RowSource, contributions: np.ndarray, entry: Explained) -> dict[str, Any]:
    """Return 1 - faithfulness, and the error of the predictions that are explained."""
    from gpx_scale import metrics

    found = metrics.faithfulness(entry.method, rows.Xq, contributions=contributions)
    return {"error": 1.0 - found, "mse": mse(rows, entry.method.predict(rows.Xq), entry)["error"]}


def task(title: str, data: Any) -> Task:
    """Return the task of explaining predictions of some data."""
    peers = {
        "GPR + shap KernelExplainer": lambda: Explained("SHAP"),
        "GPR + lime": lambda: Explained("LIME"),
    }
    return Task(
        title, data, "1 - faithfulness", unfaithful, {"GPX": lambda: Explained("GPX")}, peers
    )


BOSTON = task(
    "Boston, n = {n}: fit, and {m} predictions explained",
    loaded("boston", full=(102, None), tiny=(3, 60), small=(3, 100)),
)
DIGITS = task(
    "Digits, n = {n}: fit, and {m} predictions explained",
    loaded("digits", full=(360, None), tiny=(3, 100), small=(3, 100)),
)
