"""Moving the inducing points, by L-BFGS over their x and z together with the hyperparameters.

The points move on a subset of the rows, whose cost does not depend on n. Afterwards the
hyperparameters are searched once more on all rows. With points that have moved, far fewer are
needed: on `synth10` (n = 50,000, m = 500) the mean squared error falls from 0.20 to 0.025.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

# The search first holds the kernel for this many evaluations. If the kernel is freed too early, it
# takes a length scale at which a few points explain everything: with the kernel held for 12
# evaluations and free for 56, the search ended 440 nats lower than with 40 and 40 (n = 8,000,
# m = 1,000). 30 instead of 40 saves evaluations; it was chosen by hand.
KERNEL_HELD_EVALUATIONS = 30
# Then everything is free for this many evaluations.
ALL_FREE_EVALUATIONS = 40
# Curvatures below this share of the largest one are raised to it, because differences of
# gradients do not determine them. The sign of a negative curvature is dropped.
LEAST_CURVATURE_SHARE = 1e-3
# Second derivatives are differences of gradients over this step in the logarithm of a parameter.
CURVATURE_STEP_LOG = 0.05
# sigma_y starts at no less than this share of the size of y. With less noise, the bound would be
# governed by the variance that the points leave unexplained.
LEAST_START_NOISE_SHARE = 0.15
# A search on the subset ends at this relative change of the bound, because one on all rows follows.
SUBSET_TOLERANCE = 1e-6
# A gradient up to this size counts as 0 there; it is SciPy's default.
POINTS_GRADIENT_TOLERANCE = 1e-5
# L-BFGS keeps twice as many corrections as by SciPy's default, since it has thousands of variables.
POINTS_MEMORY = 20


class BoundOfPoints(Protocol):
    """A solver whose bound is a function of its inducing points."""

    points: InputRows | None

    def bound(self, rows: RowSource, hyperparameters: Hyperparameters) -> Bound:
        """Return the bound of all rows at the solver's points."""

    def gradient(self, rows: RowSource, bound: Bound, by_points: bool = False) -> BoundGradient:
        """Return the derivatives of a bound, also by the points if that is asked for."""

    def evaluate(self, rows: RowSource, hyperparameters: Hyperparameters) -> Evidence:
        """Return the bound and its gradient by the logarithms of the hyperparameters."""


@dataclass(frozen=True)
class PointEvidence(Evidence):
    """A bound with its derivatives by the hyperparameters and by the coordinates of the points.

    `numbers` (m p + m d,) are the derivatives by the coordinates, empty if the points do not move.
    """

    numbers: np.ndarray = field(default_factory=lambda: np.empty(0))


class PointNumbers:
    """The coordinates of a solver's inducing points as one vector: all of x, then all of z."""

    def __init__(self, solver: BoundOfPoints, kernel: Kernel) -> None:
        assert solver.points is not None
        self._solver, self._kernel, self._count = solver, kernel, len(solver.points)
        x, z = kernel.vectors(solver.points.x), solver.points.Z.to_dense()
        self._of_x = x.size
        self.start = np.concatenate([x.ravel(), z.ravel()])

    def place(self, numbers: np.ndarray) -> None:
        """Move the solver's points to these coordinates;  (m p + m d,)."""
        x, z = (part.reshape(self._count, -1).copy() for part in np.split(numbers, [self._of_x]))
        self._solver.points = InputRows(self._kernel.sliceable(x), DenseFeatures(z))

    def gradient(self, evidence: PointEvidence) -> np.ndarray:
        """Return the derivatives of the bound by the coordinates;  (m p + m d,)."""
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
    """Return hyperparameters that maximise the bound of these rows at the solver's points.

    If `move` is true, the points move with them, and the solver has the new points afterwards.
    """
    journal = session.journal
    least = LEAST_START_NOISE_SHARE * float(np.sqrt(np.mean(rows.data.y**2)))
    start = start.with_sigma_y(max(start.sigma_y, least))
    assert solver.points is not None
    hyperparameters, points = start, solver.points

    def evaluate(hyperparameters: Hyperparameters, information: bool = False) -> PointEvidence:
        bound = solver.bound(rows, hyperparameters)
        gradient = solver.gradient(rows, bound, by_points=move)
        parts = [part.ravel() for part in (gradient.x, gradient.z) if part is not None]
        numbers = np.concatenate([np.empty(0), *parts])
        return PointEvidence(bound.value, gradient.theta, len(rows), numbers=numbers)

    def keep(loss: float, better: Hyperparameters) -> None:
        nonlocal hyperparameters, points
        assert solver.points is not None
        hyperparameters, points = better, solver.points

    kernel = np.arange(start.theta.size) < start.theta.size - 2
    with journal.phase("moving the inducing points" if move else "hyperparameters, a sample"):
        try:
            for free, most in (
                (prior.free & ~kernel, KERNEL_HELD_EVALUATIONS),
                (prior.free, ALL_FREE_EVALUATIONS),
            ):
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
                    SUBSET_TOLERANCE,
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
    """Return minus the second derivatives of the bound of these rows, made positive definite.

    They are by the logarithms of the free hyperparameters, at the solver's points, in nats per
    row;  (t, t), with the identity for those that are not free. Every free hyperparameter takes
    one evaluation.
    """
    here, slope = hyperparameters.theta, solver.evaluate(rows, hyperparameters).gradient
    H = np.eye(here.size)
    for k in np.flatnonzero(free):
        there = here.copy()
        there[k] += CURVATURE_STEP_LOG
        try:
            moved = solver.evaluate(rows, hyperparameters.with_theta(there)).gradient
        except NotPositiveDefinite:
            continue
        assert slope is not None
        assert moved is not None
        H[k, free] = (slope - moved)[free] / (CURVATURE_STEP_LOG * len(rows))
    values, vectors = np.linalg.eigh(0.5 * (H + H.T)[np.ix_(free, free)])
    sizes = np.abs(values)
    H[np.ix_(free, free)] = (
        vectors * np.maximum(sizes, LEAST_CURVATURE_SHARE * sizes.max())
    ) @ vectors.T
    return H
