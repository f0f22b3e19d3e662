"""What a person looks at: for each sample the weights, their contributions to the prediction, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from .errors import InputError
from .inputs import Scaling
from .params import Params
from .posterior import Moments


class Reason(NamedTuple):
    """One feature's part in one prediction."""

    feature: str
    value: float
    weight: float
    contribution: float
    contribution_std: float | None


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanations of m samples by d features, in the user's units; `base_values + contributions.sum(1) == prediction`.

    weights (m, d) are per unit of z; contributions are weight times (z - baseline); base_values (m,) are the predictions
    at the baseline. Every `*_std` is a posterior standard deviation (None where not asked for): of weights with sigma_w,
    of predictions with sigma_y too. data (m, d) is z in the user's units.
    """

    weights: np.ndarray
    weights_std: np.ndarray | None
    contributions: np.ndarray
    contributions_std: np.ndarray | None
    base_values: np.ndarray
    base_values_std: np.ndarray | None
    prediction: np.ndarray
    prediction_std: np.ndarray | None
    data: np.ndarray
    feature_names: list[str]
    weights_cov: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Any) -> Explanation:
        """The explanations of some samples: an index (kept as a sample of its own), a slice, or an array of either."""
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"sample {rows} of {len(self)}")
            rows = [rows]
        picked = {
            field.name: value[rows] for field in fields(self) if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **picked)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        std = "with" if self.weights_std is not None else "without"
        return f"Explanation({len(self)} samples, {self.weights.shape[1]} features, {std} uncertainty)"

    def top(self, i: int, k: int = 5) -> list[Reason]:
        """The k features with the largest absolute contributions to sample i, largest first."""
        order = np.argsort(-np.abs(self.contributions[i]), kind="stable")[:k]
        return [
            Reason(
                self.feature_names[l],
                float(self.data[i, l]),
                float(self.weights[i, l]),
                float(self.contributions[i, l]),
                None if self.contributions_std is None else float(self.contributions_std[i, l]),
            )
            for l in order
        ]

    def to_frame(self, wide: bool = False) -> Any:
        """A pandas DataFrame: one row a sample and feature, or with `wide` one row a sample and its contributions."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("Explanation.to_frame needs pandas: pip install pandas") from error
        m, d = self.weights.shape
        if wide:
            frame = pd.DataFrame(self.contributions, columns=self.feature_names)
            frame.insert(0, "base_value", self.base_values)
            frame.insert(1, "prediction", self.prediction)
            if self.prediction_std is not None:
                frame.insert(2, "prediction_std", self.prediction_std)
            return frame
        columns = {
            "sample": np.repeat(np.arange(m), d),
            "feature": np.tile(np.array(self.feature_names, dtype=object), m),
            "value": self.data.ravel(),
            "weight": self.weights.ravel(),
            "contribution": self.contributions.ravel(),
        }
        if self.weights_std is not None and self.contributions_std is not None:
            columns["weight_std"] = self.weights_std.ravel()
            columns["contribution_std"] = self.contributions_std.ravel()
        return pd.DataFrame(columns)

    def plot(self, i: int = 0, ax: Any = None, k: int = 20) -> Any:
        """Bars of sample i's contributions with error bars; returns the matplotlib axes. Needs the extra [plot]."""
        from .plots import plot_contributions

        return plot_contributions(self, i, ax=ax, k=k)


def baseline_vector(baseline: Any, scaling: Scaling) -> np.ndarray:
    """The z to which contributions are relative, in the user's units: "mean", "zero" or an array;  (d,)."""
    d = scaling.z_scale.size
    if isinstance(baseline, str) and baseline == "mean":
        return scaling.z_baseline
    if isinstance(baseline, str) and baseline == "zero":
        return np.zeros(d)
    try:
        vector = np.asarray(baseline, dtype=float)
    except (TypeError, ValueError):
        vector = np.empty(0)
    if vector.shape != (d,) or not np.isfinite(vector).all():
        raise InputError(f'baseline={baseline!r}: give "mean", "zero" or {d} finite numbers')
    return vector


def assemble(
    moments: Moments,
    raw_z: np.ndarray,
    baseline: np.ndarray,
    scaling: Scaling,
    params: Params,
    names: Sequence[str],
) -> Explanation:
    """From the engine's moments to the user's explanation. `moments.along`: variances along z and along the baseline."""
    if len(names) != raw_z.shape[1]:
        raise InputError(f"{len(names)} feature names for {raw_z.shape[1]} features")
    base_z = scaling.z(baseline[None, :])
    weights = scaling.weights(moments.mean)
    shift = raw_z - baseline
    contributions = weights * shift
    base_values = scaling.prediction((moments.mean * base_z).sum(axis=1))
    weights_std = contributions_std = base_values_std = prediction_std = weights_cov = None
    if moments.var is not None:
        weights_std = np.abs(scaling.weights(np.sqrt(moments.var)))
        contributions_std = weights_std * np.abs(shift)
    if moments.along:
        along_z, along_base = moments.along
        prediction_std = scaling.y_scale * np.sqrt(along_z + params.sigma_y**2)
        base_values_std = scaling.y_scale * np.sqrt(along_base)
    if moments.cov is not None:
        weights_cov = scaling.weights(np.swapaxes(scaling.weights(moments.cov), 1, 2))
    return Explanation(
        weights,
        weights_std,
        contributions,
        contributions_std,
        base_values,
        base_values_std,
        base_values + contributions.sum(axis=1),
        prediction_std,
        raw_z.copy(),
        list(names),
        weights_cov,
    )
