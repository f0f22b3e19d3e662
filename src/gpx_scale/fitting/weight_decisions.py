"""What a fit has found out about the weight of each feature: the table, and sentences about it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.features import Features, SparseFeatures
from ..data.inputs import Preprocessor, Queries, TrainingRows
from ..data.row_source import RowSource
from ..errors import GPXWarning
from ..model.hyperparameters import Hyperparameters
from ..model.term import CONSTANT, OWN, VARYING
from ..runtime.parallel import evenly_spaced
from ..runtime.session import Session
from ..runtime.weight_table import DecidedWeight
from ..solvers.posterior import MomentRequest, Posterior
from .pruning import Tested
from .weight_options import INTERCEPT, WeightNames

# Means and shares of weights are taken over at most this many training rows, which takes as long as
# predicting them.
TABLE_ROWS = 2_000
ZERO = "zero"
# How decisions are called, from the most to the least flexible one.
DECISIONS = {VARYING: "varying", OWN: "own curve", CONSTANT: "constant"}


def weight_table(
    posterior: Posterior[Any],
    tested: Tested,
    rows: RowSource,
    preprocessor: Preprocessor,
    features: WeightNames,
    session: Session,
) -> tuple[DecidedWeight, ...]:
    """Return a row for each feature or group of them, in the order of Z."""
    data = _spread(rows)
    queries = Queries(data.x, data.Z, preprocessor.scaling.raw_z(data.Z))
    weights = posterior.moments(queries, MomentRequest(), session).mean
    assert weights is not None
    seen = _SeenWeights.of(weights, data.Z, preprocessor)
    spread = np.array([seen.spread(columns) for columns in features.groups])
    total = spread.sum()
    found = []
    for columns, variance in zip(features.groups, spread, strict=True):
        decision, nats = _decision(posterior.hyperparameters, tested, int(columns[0]))
        alone = seen.in_units(int(columns[0])) if columns.size == 1 else np.full(1, np.nan)
        found.append(
            DecidedWeight(
                features.labels[columns[0]],
                decision,
                nats,
                float(variance / total) if total > 0 else 0.0,
                _length_scale(posterior.hyperparameters, int(columns[0]), preprocessor),
                float(alone.mean()),
                float(alone.std()),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class _SeenWeights:
    """The weights of some rows in the user's units, and their contributions;  (m, d) each.

    Those of a sparse Z are sparse, with the entries of Z.
    """

    weights: Any
    contributions: Any

    @classmethod
    def of(cls, weights: np.ndarray, Z: Features, preprocessor: Preprocessor) -> _SeenWeights:
        """Return the weights from their standardised means."""
        if Z.is_sparse:
            assert isinstance(Z, SparseFeatures)
            # Columns of a sparse Z keep their units.
            in_units = Z.with_values(preprocessor.scaling.y_scale * weights)
            return cls(in_units.tocsc(), Z.with_values(weights * Z.values[Z.span]).tocsc())
        return cls(_in_units(weights, preprocessor), weights * Z.to_dense())

    def spread(self, columns: np.ndarray) -> float:
        """Return the variance of the contributions of a feature or group."""
        return float(np.asarray(self.contributions[:, columns].sum(axis=1)).var())

    def in_units(self, column: int) -> np.ndarray:
        """Return the weights of a feature, for a sparse Z at the rows that have it."""
        found = self.weights[:, [column]]
        if sp.issparse(found):
            found = found.data if found.nnz else np.full(1, np.nan)
        return np.asarray(found).ravel()


def _spread(rows: RowSource) -> TrainingRows:
    """Return evenly spaced rows, or a random subset of rows that are read only in their order."""
    if rows.is_indexed:
        some: TrainingRows = rows.indexed()[evenly_spaced(TABLE_ROWS, len(rows))]
        return some
    return rows.subset(TABLE_ROWS)


def _decision(hyperparameters: Hyperparameters, tested: Tested, column: int) -> tuple[str, float]:
    """Return what a weight is, in a word of the table, and what it earns by that."""
    parts = [term.part for term in hyperparameters.weight_prior.terms if term.variances[column] > 0]
    decision = next((name for part, name in DECISIONS.items() if part in parts), ZERO)
    return decision, tested.nats.get(column, np.nan)


def _in_units(weights: np.ndarray, preprocessor: Preprocessor) -> np.ndarray:
    """Return weights in the user's units, that of the intercept in units of y;  (m, d)."""
    scaling = preprocessor.scaling
    found = scaling.weights(weights)
    if not scaling.intercept:
        return found
    return np.column_stack([found, scaling.y_scale * weights[:, -1]])


def _length_scale(
    hyperparameters: Hyperparameters, column: int, preprocessor: Preprocessor
) -> float:
    """Return the geometric mean of a weight's length scales in the units of the columns of X.

    It is NaN if the kernel does not take vectors, or the weight does not vary.
    """
    prior, p = hyperparameters.weight_prior, preprocessor.n_x
    varying = [
        term
        for part in (VARYING, OWN)
        for term in prior.terms
        if term.part == part and term.variances[column] > 0
    ]
    if prior.kernel.input_kind != "vectors" or not p or not varying:
        return np.nan
    scales, _ = varying[0].kernel.length_scale_range(p)
    in_units = (scales * preprocessor.scaling.x_scale)[np.isfinite(scales)]
    return float(np.exp(np.log(in_units).mean())) if in_units.size else np.nan


def notes_on_weights(
    hyperparameters: Hyperparameters,
    rows: RowSource,
    features: WeightNames,
    table: tuple[DecidedWeight, ...],
    session: Session,
) -> list[str]:
    """Return what a user should know about the weights, as sentences.

    If no weight is left, a warning says so.
    """
    notes = []
    counts = {
        decision: sum(row.decision == decision for row in table)
        for decision in (*DECISIONS.values(), ZERO)
    }
    shown = ", ".join(f"{count} {decision}" for decision, count in counts.items() if count)
    notes.append(f"Of {len(table)} weights, these are: {shown}.")
    constant = _constant_columns(rows, session)
    for column, name in enumerate(features.labels):
        if name != INTERCEPT and constant[column]:
            notes.append(
                f"The feature {name!r} is constant, so its weight and an intercept cannot be told "
                "apart."
            )
    if not any(term.is_active for term in hyperparameters.weight_prior.terms):
        message = "No feature earns its weight, so the model predicts the mean of y everywhere."
        warnings.warn(message, GPXWarning, stacklevel=2)
        notes.append(message)
    return notes


@dataclass
class _ColumnRanges:
    """The least and the largest number of each column of Z;  (d,) each."""

    least: np.ndarray
    most: np.ndarray

    @classmethod
    def of(cls, block: TrainingRows) -> _ColumnRanges:
        """Return those of a block of rows."""
        if block.Z.is_sparse:
            assert isinstance(block.Z, SparseFeatures)
            Z = block.Z.matrix
            return cls(Z.min(axis=0).toarray().ravel(), Z.max(axis=0).toarray().ravel())
        dense = block.Z.to_dense()
        return cls(dense.min(axis=0), dense.max(axis=0))

    def __iadd__(self, other: _ColumnRanges) -> _ColumnRanges:
        self.least = np.minimum(self.least, other.least)
        self.most = np.maximum(self.most, other.most)
        return self


def _constant_columns(rows: RowSource, session: Session) -> np.ndarray:
    """Return which columns of Z have one number in all rows;  (d,).

    Rows that are not in memory are read only if a column is constant on some of them.
    """
    seen = _ColumnRanges.of(rows.load() if rows.in_memory else _spread(rows))
    if not rows.in_memory and (seen.least == seen.most).any():
        seen = rows.sum_over(_ColumnRanges.of, session)
    constant: np.ndarray = seen.least == seen.most
    return constant
