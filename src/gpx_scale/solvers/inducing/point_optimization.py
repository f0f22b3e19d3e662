"""Moving the inducing points: L-BFGS over their x and z together with the parameters, on a sample of the rows.

Far fewer points carry as much then: on `synth10` (n = 50,000, m = 500) the mean squared error falls from 0.20 to 0.025. What
the sample costs does not depend on n; the parameters are searched once more on all rows after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...data.features import DenseFeatures
from ...data.inputs import InputRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import NotPositiveDefinite
from ...kernels.kernel import Kernel
from ...model.hyperparameters import HyperparameterPrior, Hyperparameters
from ...optimize.lbfgs import lbfgs
from ...optimize.objective import Objective
from ...runtime.journal import Stopped
from ...runtime.session import Session
from ..contract import Evidence
from .collapsed_bound import Bound, BoundGradient

# Evaluations with the kernel held, then with everything free. Freed too early, the kernel takes a length scale at which a few
# points explain everything: at n = 8,000, m = 1,000 (12, 56) ends 440 nats lower than (40, 40).
HELD, TOGETHER = 30, 40
FLATTEST = (
    1e-3  # of the largest, the least curvature that is believed; a negative one counts by its size
)
STEP = 0.05  # in the logs, of differences between slopes
FIRST_NOISE = 0.15  # of y's size, sigma_y to begin with, at least: a smaller one sees only what the points leave out
# The relative change of the bound that ends a search on the sample: one on all rows follows.
SAMPLE_TOLERANCE = 1e-6
# The largest slope that counts as 0 there, SciPy's own.
POINTS_GRADIENT_TOLERANCE = 1e-5
# Corrections that approximate the Hessian, twice SciPy's number: there are thousands of numbers.
POINTS_MEMORY = 20


class BoundOfPoints(Protocol):
    """A solver whose bound is a function of inducing points that it holds."""

    points: InputRows | None

    def bound(self, rows: RowSource, hyperparameters: Hyperparameters) -> Bound:
        """Return the bound of all rows at its points."""

    def gradient(self, rows: RowSource, bound: Bound, by_points: bool = False) -> BoundGradient:
        """Return the derivatives of a bound, also by the points if that is asked for."""

    def evaluate(self, rows: RowSource, hyperparameters: Hyperparameters) -> Evidence:
        """Return the bound and its gradient by the logarithms of the hyperparameters."""


@dataclass(frozen=True)
class PointEvidence:
    """A bound, and its gradients by the logarithms (t,) and by the numbers of the points (q,)."""

    value: float
    gradient: np.ndarray
    n_rows: int
    numbers: np.ndarray
    information: None = None


class PointNumbers:
    """The numbers of a solver's inducing points, all of x after each other and then all of z."""

    def __init__(self, solver: BoundOfPoints, kernel: Kernel) -> None:
        assert solver.points is not None
        self._solver, self._kernel, self._count = solver, kernel, len(solver.points)
        x, z = kernel.vectors(solver.points.x), solver.points.Z.to_dense()
        self._of_x = x.size
        self.start = np.concatenate([x.ravel(), z.ravel()])

    def place(self, numbers: np.ndarray) -> None:
        """Give the solver points of these numbers;  (m p + m d,)."""
        x, z = (part.reshape(self._count, -1).copy() for part in np.split(numbers, [self._of_x]))
        self._solver.points = InputRows(self._kernel.sliceable(x), DenseFeatures(z))

    def gradient(self, evidence: PointEvidence) -> np.ndarray:
        """Return the derivatives of the bound by the numbers;  (m p + m d,)."""
        return evidence.numbers


def optimize_points(
    solver: BoundOfPoints,
    rows: MemoryRows,
    start: Hyperparameters,
    prior: HyperparameterPrior,
    max_iter: int,
    session: Session,
    move: bool,
) -> Hyperparameters:
    """Find hyperparameters for the solver's points on these rows, and move the points with them if asked to."""
    journal = session.journal
    least = FIRST_NOISE * float(np.sqrt(np.mean(rows.data.y**2)))
    start = start.with_sigma_y(max(start.sigma_y, least))
    assert solver.points is not None
    hyperparameters, points = start, solver.points

    def evaluate(hyperparameters: Hyperparameters, information: bool = False) -> PointEvidence:
        bound = solver.bound(rows, hyperparameters)
        gradient = solver.gradient(rows, bound, by_points=move)
        parts = [part.ravel() for part in (gradient.x, gradient.z) if part is not None]
        numbers = np.concatenate([np.empty(0), *parts])
        return PointEvidence(bound.value, gradient.theta, len(rows), numbers)

    def keep(loss: float, better: Hyperparameters) -> None:
        nonlocal hyperparameters, points
        assert solver.points is not None
        hyperparameters, points = better, solver.points

    kernel = np.arange(start.theta.size) < start.theta.size - 2
    with journal.phase("moving the inducing points" if move else "hyperparameters, a sample"):
        try:
            for free, most in ((prior.free & ~kernel, HELD), (prior.free, TOGETHER)):
                solver.points = points
                numbers = PointNumbers(solver, hyperparameters.kernel) if move else None
                evaluations = min(most, max_iter)
                lbfgs(
                    Objective(
                        evaluate,
                        hyperparameters,
                        prior,
                        journal,
                        phase="a sample",
                        keep=keep,
                        free=free,
                        numbers=numbers,
                    ),
                    evaluations,
                    SAMPLE_TOLERANCE,
                    gradient_tol=POINTS_GRADIENT_TOLERANCE,
                    max_evaluations=evaluations,
                    memory=POINTS_MEMORY,
                )
        except KeyboardInterrupt:
            journal.interrupted()
        except Stopped:
            pass
    solver.points = points
    return hyperparameters


def curvature(
    solver: BoundOfPoints,
    rows: RowSource,
    hyperparameters: Hyperparameters,
    free: np.ndarray,
) -> np.ndarray:
    """Second derivatives of the bound of these rows at the solver's points, by the free logs, in nats a row and made positive;
    (t, t), 1 where not free. One evaluation for each parameter."""
    here, slope = hyperparameters.theta, solver.evaluate(rows, hyperparameters).gradient
    H = np.eye(here.size)
    for k in np.flatnonzero(free):
        there = here.copy()
        there[k] += STEP
        try:
            moved = solver.evaluate(rows, hyperparameters.with_theta(there)).gradient
        except NotPositiveDefinite:
            continue
        assert slope is not None
        assert moved is not None
        H[k, free] = (slope - moved)[free] / (STEP * len(rows))
    values, vectors = np.linalg.eigh(0.5 * (H + H.T)[np.ix_(free, free)])
    H[np.ix_(free, free)] = (
        vectors * np.maximum(np.abs(values), FLATTEST * np.abs(values).max())
    ) @ vectors.T
    return H
