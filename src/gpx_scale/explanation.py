"""What a person looks at: for each sample the weights, their contributions to the prediction, and how sure they are."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import ndtr, ndtri

from .errors import InputError
from .runtime.arguments import probability, real_array, whole
from .runtime.files import atomic_write, import_optional
from .runtime.journal import FitReport


class Reason(NamedTuple):
    """One feature's part in one prediction."""

    feature: str
    value: float
    weight: float
    contribution: float
    contribution_std: float | None


class Interval(NamedTuple):
    """Where a quantity is with some probability; the arrays have its shape."""

    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanations of m samples by d features, in the user's units; `base_values + contributions.sum(1) == prediction`.

    weights (m, d) are per unit of z; contributions are weight times (z - baseline); base_values (m,) are the predictions
    at the baseline. Every `*_std` is a posterior standard deviation (None where not asked for): of weights with sigma_w,
    of predictions with sigma_y too. data (m, d) is z in the user's units. Of a sparse Z, all that is (m, d) is a `csr_array`
    with the entries of Z.

    >>> from gpx_scale import GPXRegressor, datasets
    >>> data = datasets.load_diabetes()
    >>> model = GPXRegressor(random_state=0).fit(data.X[:300], data.y[:300])
    >>> explanation = model.explain(data.X[300:], feature_names=data.feature_names)
    >>> reason = explanation.top(0, k=1)[0]
    >>> reason.feature, round(reason.contribution), round(reason.contribution_std)
    ('bmi', 42, 8)
    >>> lower, upper = explanation.interval(0.9)
    >>> lower.shape, bool((lower <= explanation.contributions).all())
    ((142, 10), True)
    >>> bool(explanation.probability_positive()[0, explanation.feature_names.index("bmi")] > 0.99)
    True
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
    target_name: str | None = None
    fit_report: FitReport | None = None

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, rows: Any) -> Explanation:
        """The explanations of some samples: an index (kept as a sample of its own), a slice, or an array of either."""
        if not isinstance(rows, slice):
            rows = [self._row(rows)] if np.ndim(rows) == 0 else np.arange(len(self))[rows]
            if np.ndim(rows) != 1:
                raise IndexError("samples are counted along one dimension")
        arrays = (
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name not in OF_THE_MODEL
        )
        return replace(self, **{name: value[rows] for name, value in arrays if value is not None})

    def _row(self, i: Any) -> int:
        if isinstance(i, bool | np.bool_):
            raise TypeError(f"{i!r} is not the number of a sample")
        row = operator.index(i)
        if not -len(self) <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)}")
        return row

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        std = "with" if self.weights_std is not None else "without"
        return (
            f"Explanation({len(self)} samples, {self.weights.shape[1]} features, {std} uncertainty)"
        )

    def top(self, i: int, k: int = 5) -> list[Reason]:
        """The k features with the largest absolute contributions to sample i, largest first; of a sparse Z, those it has."""
        entries = self[self._row(i)].entries()
        order = np.argsort(-np.abs(entries["contribution"]), kind="stable")[
            : whole(k, "k", least=0)
        ]
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

    # uncertainty

    def interval(self, level: float = 0.95) -> Interval:
        """Where each contribution is with probability `level`;  (m, d) each."""
        return between(self.contributions, self._known(self.contributions_std), level)

    def weights_interval(self, level: float = 0.95) -> Interval:
        """Where each weight is with probability `level`;  (m, d) each."""
        return between(self.weights, self._known(self.weights_std), level)

    def prediction_interval(self, level: float = 0.95) -> Interval:
        """Where a new y is with probability `level`, noise included;  (m,) each."""
        return between(self.prediction, self._known(self.prediction_std), level)

    def probability_positive(self) -> Any:
        """P(contribution > 0): near 1 it adds to the prediction, near 0 it does not;  (m, d), 0 where the feature is at its
        baseline."""
        return _entrywise(
            _probability_positive, self.contributions, self._known(self.contributions_std)
        )

    def coverage(self, y: Any, level: float = 0.95) -> float:
        """Share of the true y within the intervals of their predictions; `level` of a model that knows what it knows."""
        lower, upper = self.prediction_interval(level)
        y = real_array(y)
        if y.shape != lower.shape or not np.isfinite(y).all():
            raise InputError(
                f"y: give {len(self)} finite numbers, one for each prediction, got shape {y.shape}"
            )
        return float(np.mean((lower <= y) & (y <= upper)))

    def importance(self) -> np.ndarray:
        """Mean absolute contribution of each feature;  (d,)."""
        return np.asarray(abs(self.contributions).sum(axis=0), dtype=float).ravel() / max(
            len(self), 1
        )

    def _known(self, deviations: Any) -> Any:
        if deviations is None:
            raise InputError("these explanations have no deviations: explain(..., std=True)")
        return deviations

    # other forms

    def entries(self, level: float | None = None) -> dict[str, np.ndarray]:
        """Columns of a table with a row for every sample and feature, or every entry of a sparse Z; features as numbers."""
        parts = {
            "value": self.data,
            "weight": self.weights,
            "contribution": self.contributions,
            "weight_std": self.weights_std,
            "contribution_std": self.contributions_std,
        }
        if level is not None:
            parts["lower"], parts["upper"] = self.interval(level)
            parts["probability_positive"] = self.probability_positive()
        if sp.issparse(self.weights):
            pointers, features = self.weights.indptr, self.weights.indices
            columns = {
                "sample": np.repeat(np.arange(len(self)), np.diff(pointers)),
                "feature": features,
            }
            return columns | {name: part.data for name, part in parts.items() if part is not None}
        m, d = self.weights.shape
        columns = {"sample": np.repeat(np.arange(m), d), "feature": np.tile(np.arange(d), m)}
        return columns | {name: part.ravel() for name, part in parts.items() if part is not None}

    def to_frame(self, wide: bool = False, level: float | None = None) -> Any:
        """A pandas DataFrame: one row a sample and feature (of a sparse Z, an entry), or with `wide` one row a sample and its
        contributions (of a sparse Z, in sparse columns).

        level : bounds of that probability too: of every contribution, with the probability that it is positive; `wide`, of
        the predictions.

        Names of features are those of the data, and `to_csv` of the frame writes them as they are. A spreadsheet runs a name
        that begins with =, +, - or @ as a formula: check names that others have chosen before you pass such a file on.
        """
        pd = import_optional("pandas", "files")
        if wide:
            make = (
                pd.DataFrame.sparse.from_spmatrix
                if sp.issparse(self.contributions)
                else pd.DataFrame
            )
            frame = make(self.contributions, columns=self.feature_names)
            frame.insert(
                0, "base_value", self.base_values, allow_duplicates=True
            )  # a word may have such a name
            frame.insert(1, "prediction", self.prediction, allow_duplicates=True)
            if self.prediction_std is not None:
                frame.insert(2, "prediction_std", self.prediction_std, allow_duplicates=True)
            if level is not None:
                for at, (name, bound) in enumerate(
                    self.prediction_interval(level)._asdict().items()
                ):
                    frame.insert(3 + at, name, bound, allow_duplicates=True)
            return frame
        columns = self.entries(level)
        columns["feature"] = np.array(self.feature_names, dtype=object)[columns["feature"]]
        return pd.DataFrame(columns)

    def to_json(self, path: Any = None, level: float | None = 0.95) -> str:
        """All samples as JSON text, every number with all its digits; written to `path` where one is given.

        level : of the bounds; None leaves them out, as it must be where there are no deviations.
        """
        level = (
            None if level is None or self.contributions_std is None else probability(level, "level")
        )
        columns = self.entries(level)
        starts = np.searchsorted(columns.pop("sample"), np.arange(len(self) + 1))
        features = [self.feature_names[at] for at in columns.pop("feature")]
        lists = {name: column.tolist() for name, column in columns.items()}
        whole: dict[str, Any] = {"prediction": self.prediction, "base_value": self.base_values}
        if level is not None:
            whole["prediction_std"], whole["base_value_std"] = (
                self.prediction_std,
                self.base_values_std,
            )
            whole["prediction_lower"], whole["prediction_upper"] = self.prediction_interval(level)
        samples = [
            {name: float(values[i]) for name, values in whole.items()}
            | {
                "reasons": [
                    {"feature": features[e]} | {name: values[e] for name, values in lists.items()}
                    for e in range(starts[i], starts[i + 1])
                ]
            }
            for i in range(len(self))
        ]
        document = {
            "format": "gpx_scale explanation",
            "version": 1,
            "target": self.target_name,
            "level": level,
        }
        text = json.dumps(document | {"samples": samples}, allow_nan=False, indent=1)
        if path is not None:
            with atomic_write(path) as beside:
                beside.write_text(text, encoding="utf-8")
        return text

    def to_shap(self, level: float = 0.95, words: bool = False) -> Any:
        """The same as a `shap.Explanation`, for the plots of the package shap (extra [bench]): values are the contributions,
        with lower and upper bounds (its waterfall draws them as error bars). A sparse Z is made dense: slice it first.

        words : `data` are the words of each sample instead of numbers, as `shap.plots.text` takes them.
        """
        shap = import_optional("shap", "bench")
        bounds = {}
        if self.contributions_std is not None:
            names = ("lower_bounds", "upper_bounds")
            bounds = {
                name: dense(bound) for name, bound in zip(names, self.interval(level), strict=True)
            }
        data = dense(self.data)
        if words:
            data = np.where(
                data != 0, np.array([f"{name} " for name in self.feature_names], dtype=object), ""
            )
        return shap.Explanation(
            values=dense(self.contributions),
            base_values=self.base_values,
            data=data,
            feature_names=self.feature_names,
            output_names=self.target_name,
            **bounds,
        )

    def to_html(self, path: Any, y: Any = None, title: str | None = None, **options: Any) -> Any:
        """A report in one HTML file that needs no network: the model, what matters overall, every sample's reasons.

        y : the true values (m,), for the error and the coverage of the intervals. Options are those of
        `gpx_scale.report.Section`. Needs the extra [report]; returns the path.
        """
        from .report.page import Section, write_report

        title = title or (
            f"Predictions of {self.target_name}"
            if self.target_name
            else "Predictions and their reasons"
        )
        return write_report(path, [Section(title, self, y=y, **options)], title=title)

    # pictures: [plot]

    def plot(self, i: int = 0, ax: Any = None, k: int = 20, level: float | None = None) -> Any:
        """Bars of sample i's contributions with error bars (one deviation, or bounds of a level); returns the axes."""
        from .plots import plot_contributions

        return plot_contributions(self, i, ax=ax, k=k, level=level)

    def plot_summary(self, k: int = 12, ax: Any = None) -> Any:
        """The contributions of all samples by feature, the most important first; returns the axes."""
        from .plots import plot_summary

        return plot_summary(self, k=k, ax=ax)


def joined(parts: Sequence[Explanation]) -> Explanation:
    """Explanations by the same features, one after the other; what is known of the model is that of the last."""
    if not parts:
        raise InputError("there are no explanations to join")
    first, *others = parts
    if any(part.feature_names != first.feature_names for part in others):
        raise InputError("explanations by different features cannot be joined")
    arrays: dict[str, Any] = {}
    for name in (field.name for field in fields(Explanation) if field.name not in OF_THE_MODEL):
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):  # what some do not have, all together do not
            arrays[name] = None
        else:
            arrays[name] = (
                sp.vstack(values, format="csr")
                if sp.issparse(values[0])
                else np.concatenate(values)
            )
    return replace(parts[-1], **arrays)


OF_THE_MODEL = ("feature_names", "target_name", "fit_report")


def _entrywise(function: Callable[..., np.ndarray], first: Any, *others: Any) -> Any:
    """Of arrays of one shape, or of csr_arrays at the entries of their one pattern."""
    if not sp.issparse(first):
        return function(first, *others)
    values = function(first.data, *(other.data for other in others))
    return sp.csr_array((values, first.indices, first.indptr), shape=first.shape)


def between(mean: Any, deviation: Any, level: float) -> Interval:
    reach = -float(
        ndtri(0.5 * (1.0 - probability(level, "level")))
    )  # finite for every level below 1
    lower = _entrywise(lambda centre, deviations: centre - reach * deviations, mean, deviation)
    upper = _entrywise(lambda centre, deviations: centre + reach * deviations, mean, deviation)
    return Interval(lower, upper)


def _probability_positive(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(deviation > 0, ndtr(mean / deviation), (mean > 0).astype(float))


def dense(A: Any) -> np.ndarray:
    """Of an array or a csr_array."""
    return A.toarray() if sp.issparse(A) else np.asarray(A)
