"""Predictions of training rows by models that have not seen them, at the fitted hyperparameters.

A solver that can leave out single rows does so. For the others, the rows are cut into five folds,
and each fold is predicted from the others. That takes five posteriors and no search.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.inputs import Queries, TrainingRows
from ..data.row_keys import keys_with_targets, row_keys
from ..data.row_source import MemoryRows, RowSource, keys
from ..errors import GPXError
from ..fitting.options import solver_options
from ..fitting.procedure import problem_for
from ..plan import plan_for
from ..runtime.memory import counted
from ..runtime.session import Session
from ..solvers import registry
from ..solvers.contract import Capability, SolverSetup
from ..solvers.low_dimensional import InputExtent, InputResolution
from ..solvers.posterior import Posterior
from .fitted_model import FittedModel

FOLDS = 5
# Five folds use at most this many rows, so that they take seconds with every solver, and predict at
# most this many of them, so that a share is known to 1.5%.
MOST_FOLD_ROWS = 4_000
MOST_PREDICTED_ROWS = 1_000


@dataclass(frozen=True)
class LeftOut:
    """Predictions of r training rows by models that have not seen them, in the user's units.

    `keys` (r,) are the hashes of the rows with their targets, and `y` these targets. A residual is
    y minus the prediction, and `std` the standard deviation of the prediction, noise included.
    `how` says how the rows were left out.
    """

    keys: np.ndarray
    y: np.ndarray
    residuals: np.ndarray
    std: np.ndarray
    how: str

    def find(self, asked: np.ndarray) -> np.ndarray:
        """Return the position of each of these hashes, -1 for one that is not there;  (m,)."""
        order = np.argsort(self.keys, kind="stable")
        at = np.minimum(np.searchsorted(self.keys[order], asked), max(self.keys.size - 1, 0))
        if not self.keys.size:
            return np.full(asked.shape, -1)
        return np.where(self.keys[order][at] == asked, order[at], -1)


class TrainingRecord:
    """What is known of the rows that a model was fitted on, as long as the model exists.

    An explanation has one. It refers to the estimator weakly, so that an explanation does not keep
    a model in memory, and a copy of an explanation in another process has none.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = weakref.ref(estimator)
        self._report = estimator.fit_report_
        self._left_out: LeftOut | None = None

    def __reduce__(self) -> Any:
        return _forgotten, ()

    def _fitted(self) -> Any:
        """Return the estimator, None if it is gone or was fitted again."""
        estimator = self._estimator()
        is_same = estimator is not None and estimator.fit_report_ is self._report
        return estimator if is_same else None

    def targets(self, found: np.ndarray | None, y: np.ndarray) -> np.ndarray | None:
        """Return hashes of rows with their targets;  (m,), (m,) -> (m,).

        `found` are the hashes of rows that an explanation has. None if they cannot be compared.
        """
        estimator = self._fitted()
        if estimator is None or found is None:
            return None
        return keys_with_targets(found, estimator._preprocessor.scaled_target(y, len(y)))

    def seen(self, asked: np.ndarray) -> np.ndarray | None:
        """Return which rows the model was fitted on, by their hashes;  (m,) -> (m,) bool.

        It is None if the training rows are not in memory.
        """
        estimator = self._fitted()
        rows = None if estimator is None else _rows_of(estimator)
        if rows is None or not rows.in_memory:
            return None
        return np.isin(asked, _keys_of(rows.load(), estimator._model))

    def left_out(self) -> LeftOut | None:
        """Return predictions of training rows by models without them, None if they are not kept.

        They are computed once.
        """
        estimator = self._fitted()
        if self._left_out is None and estimator is not None:
            self._left_out = left_out(estimator)
        return self._left_out


def _forgotten() -> None:
    """Return what a copy of a record is: nothing."""


def _rows_of(estimator: Any) -> RowSource | None:
    """Return the training rows of a fitted estimator, None if they are not kept."""
    rows: RowSource | None = estimator.posterior_.row_source or estimator._rows
    return rows if estimator._preprocessor.transforms.input_kind == "vectors" else None


def _keys_of(rows: TrainingRows, model: FittedModel) -> np.ndarray:
    """Return the hashes of training rows with their targets;  (n,)."""
    return keys_with_targets(row_keys(rows, model.kernel.vectors_of(rows.x)), rows.y)


def left_out(estimator: Any) -> LeftOut | None:
    """Return predictions of training rows by models that have not seen them.

    They are None if the rows are not kept, or if a model of fewer rows cannot be made.
    """
    model, rows = estimator._model, _rows_of(estimator)
    if rows is None:
        return None
    with estimator._session() as session:
        if Capability.LEAVE_ONE_OUT in model.posterior.capabilities and rows.in_memory:
            residuals, std = model.leave_one_out(session)
            how = f"each of the {counted(len(rows), 'row')} is predicted from all others"
            known = rows.load()
            y = model.preprocessor.scaling.prediction(known.y)
            return LeftOut(_keys_of(known, model), y, residuals, std, how)
        try:
            with session.journal.bar("leaving folds out"):
                return _by_folds(estimator, model, rows, session)
        except GPXError:
            # The solver cannot take so few rows, or has no memory for them.
            return None


def _by_folds(estimator: Any, model: FittedModel, rows: RowSource, session: Session) -> LeftOut:
    """Return predictions of rows from those of other folds."""
    some = rows.subset(MOST_FOLD_ROWS)
    n, scaling = len(some), model.preprocessor.scaling
    order = np.argsort(keys(0, n, 0), kind="stable")
    checked: list[np.ndarray] = []
    missed: list[np.ndarray] = []
    std: list[np.ndarray] = []
    for fold in range(FOLDS):
        held = order[fold::FOLDS]
        kept = np.setdiff1d(order, held)
        held = held[: MOST_PREDICTED_ROWS // FOLDS]
        posterior = condition_on(estimator, model, MemoryRows(some[kept]), session)
        part = some[held]
        queries = Queries(model.kernel.query_input(part.x, len(kept)), part.Z, part.Z)
        fewer = replace(model, posterior=posterior)
        found = fewer.predict(queries, True, session)
        mean, deviations = found.mean, found.std
        assert deviations is not None
        checked.append(held)
        missed.append(scaling.prediction(part.y) - mean)
        std.append(deviations)
        session.journal.passed(fold + 1, FOLDS)
    of = f" of {len(rows):,}" if n < len(rows) else ""
    how = f"{FOLDS} folds of {n:,}{of} rows, each predicted from the others"
    part = some[np.concatenate(checked)]
    residuals = np.concatenate(missed), np.concatenate(std)
    return LeftOut(_keys_of(part, model), scaling.prediction(part.y), *residuals, how)


def condition_on(
    estimator: Any, model: FittedModel, rows: MemoryRows, session: Session
) -> Posterior[Any]:
    """Return the posterior of some rows by the model's solver, at its hyperparameters."""
    options = solver_options(estimator, model.plan.solver)
    prior, kernel = model.hyperparameters.weight_prior, model.kernel
    given = rows, model.preprocessor, kernel, options, session
    kernels = 0 if prior.is_shared else len(prior.terms)
    problem = problem_for(*given, not kernel.is_radial, kernels)
    if problem.resolution is not None:
        found = model.hyperparameters, rows.sum_over(InputExtent.of, session)
        problem = replace(problem, resolution=InputResolution.of(kernel, rows.subset(1), found))
    plan = plan_for(problem)
    setup = SolverSetup(session, kernel, options, model.preprocessor)
    prepared = rows.prepared(kernel, registry.find(plan.solver).keeps_rows, session)
    return registry.create(plan, setup).condition(prepared, model.hyperparameters)
