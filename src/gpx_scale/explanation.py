"""What a person looks at: for each sample the weights, their contributions to the prediction, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .errors import InputError
from .features import SparseFeatures
from .params import Params
from .posterior import Moments
from .scaling import Scaling


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
    of predictions with sigma_y too. data (m, d) is z in the user's units. Of a sparse Z, all that is (m, d) is a `csr_array`
    with the entries of Z.
    """

    weights: Any
    weights_std: Any
    contributions: Any
    contributions_std: Any
    base_values: np.ndarray
    base_values_std: np.ndarray | None
    prediction: np.ndarray
    prediction_std: np.ndarray | None
    data: Any
    feature_names: list[str]
    weights_cov: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, rows: Any) -> Explanation:
        """The explanations of some samples: an index (kept as a sample of its own), a slice, or an array of either."""
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            rows = int(rows)
            if not -len(self) <= rows < len(self):
                raise IndexError(f"sample {rows} of {len(self)}")
            rows = [rows]
        arrays = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != "feature_names")
        return replace(self, **{name: value[rows] for name, value in arrays if value is not None})

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        std = "with" if self.weights_std is not None else "without"
        return f"Explanation({len(self)} samples, {self.weights.shape[1]} features, {std} uncertainty)"

    def top(self, i: int, k: int = 5) -> list[Reason]:
        """The k features with the largest absolute contributions to sample i, largest first; of a sparse Z, those it has."""
        entries = self[i]._entries()
        order = np.argsort(-np.abs(entries["contribution"]), kind="stable")[:k]
        deviations = entries.get("contribution_std")
        return [
            Reason(
                self.feature_names[entries["feature"][e]],
                float(entries["value"][e]),
                float(entries["weight"][e]),
                float(entries["contribution"][e]),
                None if deviations is None else float(deviations[e]),
            )
            for e in order
        ]

    def _entries(self) -> dict[str, np.ndarray]:
        """Columns of a table with a row for every sample and feature, or every entry of a sparse Z; features as numbers."""
        parts = {
            "value": self.data,
            "weight": self.weights,
            "contribution": self.contributions,
            "weight_std": self.weights_std,
            "contribution_std": self.contributions_std,
        }
        if sp.issparse(self.weights):
            pointers, features = self.weights.indptr, self.weights.indices
            columns = {"sample": np.repeat(np.arange(len(self)), np.diff(pointers)), "feature": features}
            return columns | {name: part.data for name, part in parts.items() if part is not None}
        m, d = self.weights.shape
        columns = {"sample": np.repeat(np.arange(m), d), "feature": np.tile(np.arange(d), m)}
        return columns | {name: part.ravel() for name, part in parts.items() if part is not None}

    def to_frame(self, wide: bool = False) -> Any:
        """A pandas DataFrame: one row a sample and feature (of a sparse Z, an entry), or with `wide` one row a sample and its
        contributions (of a sparse Z, in sparse columns)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("Explanation.to_frame needs pandas: pip install pandas") from error
        if wide:
            make = pd.DataFrame.sparse.from_spmatrix if sp.issparse(self.contributions) else pd.DataFrame
            frame = make(self.contributions, columns=self.feature_names)
            frame.insert(0, "base_value", self.base_values, allow_duplicates=True)  # a word may have such a name
            frame.insert(1, "prediction", self.prediction, allow_duplicates=True)
            if self.prediction_std is not None:
                frame.insert(2, "prediction_std", self.prediction_std, allow_duplicates=True)
            return frame
        columns = self._entries()
        columns["feature"] = np.array(self.feature_names, dtype=object)[columns["feature"]]
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
    weights = scaling.weights(moments.mean)
    shift = raw_z - baseline
    contributions = weights * shift
    base_values = scaling.prediction((moments.mean * scaling.z_row(baseline)).sum(axis=1))
    weights_std = contributions_std = weights_cov = None
    if moments.var is not None:
        weights_std = np.abs(scaling.weights(np.sqrt(moments.var)))
        contributions_std = weights_std * np.abs(shift)
    if moments.cov is not None:
        weights_cov = scaling.weights(np.swapaxes(scaling.weights(moments.cov), 1, 2))
    prediction = base_values + contributions.sum(axis=1)
    return Explanation(
        weights=weights,
        weights_std=weights_std,
        contributions=contributions,
        contributions_std=contributions_std,
        base_values=base_values,
        prediction=prediction,
        data=raw_z.copy(),
        feature_names=_names(names, raw_z.shape[1]),
        weights_cov=weights_cov,
        **_deviations(moments, scaling, params),
    )


def assemble_sparse(
    moments: Moments, z: SparseFeatures, scaling: Scaling, params: Params, names: Sequence[str]
) -> Explanation:
    """The same at the entries of a sparse Z, relative to z = 0: the last column of the engine's Z may be the intercept."""
    d, counted = scaling.z_scale.size, z.indices[z.span] < scaling.z_scale.size
    pointers = np.concatenate([[0], np.cumsum(np.bincount(z.entry_rows[counted], minlength=len(z)))])
    pattern = SparseFeatures(pointers, z.indices[z.span][counted], z.values[z.span][counted], d)
    weights = scaling.y_scale * moments.mean[counted]
    intercepts = np.bincount(z.entry_rows[~counted], moments.mean[~counted], minlength=len(z))
    base_values = scaling.prediction(intercepts)
    contributions = pattern.with_values(weights * pattern.values)
    weights_std = contributions_std = None
    if moments.var is not None:
        deviations = scaling.y_scale * np.sqrt(moments.var[counted])
        weights_std = pattern.with_values(deviations)
        contributions_std = pattern.with_values(deviations * np.abs(pattern.values))
    return Explanation(
        weights=pattern.with_values(weights),
        weights_std=weights_std,
        contributions=contributions,
        contributions_std=contributions_std,
        base_values=base_values,
        prediction=base_values + contributions.sum(axis=1),
        data=pattern.with_values(pattern.values.copy()),
        feature_names=_names(names, d),
        **_deviations(moments, scaling, params),
    )


def _names(names: Sequence[str], d: int) -> list[str]:
    if len(names) != d:
        raise InputError(f"{len(names)} feature names for {d} features")
    return list(names)


def _deviations(moments: Moments, scaling: Scaling, params: Params) -> dict[str, np.ndarray | None]:
    """Of predictions and base values, from the variances along z and along the baseline, where those were asked for."""
    if not moments.along:
        return {"prediction_std": None, "base_values_std": None}
    along_z, along_base = moments.along
    return {
        "prediction_std": scaling.y_scale * np.sqrt(along_z + params.sigma_y**2),
        "base_values_std": scaling.y_scale * np.sqrt(along_base),
    }
