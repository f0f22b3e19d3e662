"""The inducing-point solver: the bound with its slopes over passes of the rows, and the posterior's parts from m points alone.

    E[w*] = k(x*, X_u) diag(v) Z_u       Cov[g*] = k** I - W^T E W,   W = L^-1 diag(k*) Z_u,   E = I - (I + Psi)^-1

The fitted parts hold no training row: the points, L and the statistics are all there is, and more rows can be added to these.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from ...data.inputs import InputRows
from ...data.row_source import RowSource
from ...errors import JitterWarning
from ...model.hyperparameters import Hyperparameters
from ...runtime.journal import Journal
from ...runtime.parallel import Executor, worthwhile_threads
from ..contract import Evidence
from .collapsed_bound import BlockStatistics, Bound, BoundGradient, InducingVariables
from .point_selection import PointSelection
from .posterior import InducingParts

DIGITS = 34  # binary ones, that a search sees


class InducingSolver:
    """Evidence (its bound) and posterior from m points, which the first parameters choose unless `place` has."""

    def __init__(self, choice: PointSelection, executor: Executor, journal: Journal) -> None:
        self.choice, self._executor, self._journal = choice, executor, journal
        self.places: InputRows | None = None
        self.metric: np.ndarray | None = None  # second derivatives a row, where the last search begins

    def place(self, rows: RowSource, params: Hyperparameters) -> InputRows:
        """Choose the points at these parameters, from now on."""
        with self._journal.phase("inducing points"), worthwhile_threads(self.choice.count):
            self.places = self.choice.of(rows, params, self._executor)
        return self.places

    def _frame(self, rows: RowSource, params: Hyperparameters) -> InducingVariables:
        return InducingVariables.of(self.places if self.places is not None else self.place(rows, params), params)

    def bound(self, rows: RowSource, params: Hyperparameters) -> Bound:
        """Return the bound of all rows.

        A few points are worked on by one BLAS thread: a search that moves them multiplies rounding a thousandfold, and the
        number of BLAS threads depends on what else the process does.
        """
        with worthwhile_threads(self.choice.count if self.places is None else len(self.places)):
            frame = self._frame(rows, params)
            return Bound.of(frame, rows.sum_over(BlockStatistics(frame), self._executor, self._journal.passed))

    def slopes(self, rows: RowSource, bound: Bound, by_points: bool = False) -> BoundGradient:
        """Return the derivatives of the bound, by a second pass."""
        with worthwhile_threads(len(bound.frame)):
            slopes = rows.sum_over(bound.differentiate(by_points), self._executor, self._journal.passed)
            slopes += bound.own_slopes(by_points)
        return slopes

    def evaluate(
        self, rows: RowSource, params: Hyperparameters, *, gradient: bool = True, information: bool = False
    ) -> Evidence:
        """The bound and its gradient by the logs of the parameters, at the points of this fit."""
        bound = self.bound(rows, params)
        slope = self.slopes(rows, bound).theta if gradient else None
        metric = self.metric * len(rows) if information and self.metric is not None else None
        return Evidence(bound.value, slope, bound.v, len(rows), information=metric)

    def steady(self, rows: RowSource, params: Hyperparameters, *, information: bool = False) -> Evidence:
        """`evaluate` to about 10 digits of its terms, so that a search does not depend on the order of sums."""
        found = self.evaluate(rows, params, information=information)
        assert found.gradient is not None
        size = np.abs(found.gradient).max() + abs(found.value) + len(rows)
        unit = np.ldexp(1.0, int(np.frexp(size)[1]) - DIGITS)
        value, gradient = np.round(found.value / unit) * unit, np.round(found.gradient / unit) * unit
        return replace(found, value=float(value), gradient=gradient)

    def condition(self, rows: RowSource, params: Hyperparameters) -> InducingParts:
        bound = self.bound(rows, params)
        if bound.frame.jitter > 1e-10:
            warnings.warn(
                f"inducing points are nearly dependent: jitter of {bound.frame.jitter:.0e} was added. Fewer would do as well",
                JitterWarning,
                stacklevel=3,
            )
        return InducingParts.of(bound)
