"""Preconditioned conjugate gradients (CG) for many right-hand sides, and Lanczos quadrature.

Errors are measured in nats, the unit of the log marginal likelihood. For a right-hand side b and
an approximate x with the true residual r = b - C x,

    b.x - x.C x / 2  =  b.C^-1 b / 2  -  r.C^-1 r / 2,        0 <= r.C^-1 r <= r.P^-1 r

if P <= C. So r.P^-1 r / 2 is a bound of the error of the quadratic form, and CG computes it in
every iteration. A P that is not below C has another bound, which `P.error_bound_nats` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.linalg import eigh_tridiagonal

from ..errors import NotConverged
from .covariance import Covariance
from .preconditioner import Preconditioner, column_sums

# A solve that has not converged after this many iterations is given up. The value was chosen by
# hand.
MAX_ITERATIONS = 1000
# A solve starts at most this often, each time from the true residual of the solution so far. The
# value was chosen by hand; runs that make no progress end a solve earlier.
MAX_RESTARTS = 12
# A run makes progress if it reduces the error in nats at least by this factor. The value was chosen
# by hand.
LEAST_PROGRESS_FACTOR = 0.9
# A run of iterations ends when it has reduced the error in nats by this factor, and the next one
# starts from the true residual. On float32 tiles, the residual of the recurrence differs from the
# true one if a run goes further.
FLOAT32_GAIN = 1e-7

# A function that is called with the iteration, the error in nats, and the goal in nats.
Tell = Callable[[int, float, float], None]


def solve(
    C: Covariance,
    P: Preconditioner,
    B: np.ndarray,
    nats: np.ndarray,
    *,
    start: np.ndarray | None = None,
    precise: Covariance | None = None,
    tell: Tell | None = None,
) -> Solution:
    """Return C^-1 B, each column with an error of at most its own `nats`;  (n, c), (c,).

    NotConverged is raised if an error stays above.

    Iterations use products with C. After each run of iterations, the residual is recomputed with
    `precise` (C by default), and the next run starts from it. If products with C stop improving it,
    products with `precise` are used. `start` (n, c) has first approximations; a zero column means
    that there is none. `tell(iteration, nats, goal)` is called with the numbers of the column that
    is furthest from its goal.
    """
    size = np.abs(B).max(axis=0, initial=0.0)
    # float32 represents numbers of moderate size only, so other columns are rescaled. The squares
    # of numbers below 1e-140 are 0, and so is their solution.
    unit = np.where((size > 1e10) | ((size < 1e-10) & (size > 1e-140)), size, 1.0)
    if (unit != 1.0).any():
        start = None if start is None else start / unit
        found = solve(C, P, B / unit, nats / unit**2, start=start, precise=precise, tell=tell)
        scaled = {
            "X": found.X * unit,
            "nats": found.nats * unit**2,
            "quadratic": found.quadratic * unit**2,
        }
        return replace(found, **scaled)
    precise = C if precise is None else precise
    X, R = np.zeros_like(B), B.copy()
    cold = np.ones(B.shape[1], bool)
    if start is not None and (warm := start.any(axis=0)).any():
        X, cold = start.copy(), np.logical_not(warm)
        R[:, warm] -= precise.matmul(X[:, warm])
    iterations = matvecs = 0
    lanczos: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    before = np.full(B.shape[1], np.inf)
    for turn in range(MAX_RESTARTS):
        H = P.solve(R)
        now = P.error_bound_nats(R, H)
        todo = np.flatnonzero(~(now <= nats))  # A NaN is not done either.
        if not todo.size:
            quadratic = np.einsum("ij,ij->j", B + R, X)  # This is 2 b.x - x.C x.
            return Solution(X, now, _relative(R, B), iterations, matvecs, quadratic, lanczos)
        if iterations >= MAX_ITERATIONS:
            break
        if not (now[todo] < LEAST_PROGRESS_FACTOR * before[todo]).all():
            if C is precise:
                break
            C = precise  # Products in float32 bring no further progress.
        goal = np.maximum(0.5 * nats, FLOAT32_GAIN * now)[todo]
        step, rule = np.zeros((len(B), todo.size)), UntilNatsAreReached(P, goal, iterations, tell)
        most = MAX_ITERATIONS - iterations
        steps, ratios = iterate(C.matmul, P.solve, step, R[:, todo], H[:, todo], rule, most)
        if turn == 0:
            lanczos = {
                int(j): _tridiagonal(a, b)
                for j, a, b in zip(todo, steps, ratios, strict=True)
                if cold[j] and a
            }
        iterations += max(map(len, steps))
        matvecs += sum(map(len, steps))
        before = now
        X[:, todo] += step
        R[:, todo] = B[:, todo] - precise.matmul(X[:, todo])
    with np.errstate(over="ignore"):
        worst = int(np.argmax(np.where(np.isfinite(now), now / np.maximum(nats, 1e-300), np.inf)))
    raise NotConverged(
        f"Conjugate gradients stopped after {iterations} iterations with an error of "
        f"{now[worst]:.1e} nats, above {nats[worst]:.1e} (relative residual "
        f"{_relative(R, B)[worst]:.1e}). Raise preconditioner_rank (now {P.rank}) or sigma_y, drop "
        'duplicate rows, or use solver="exact".'
    )


def _relative(R: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return |r| / |b| of each column, |r| if b = 0;  (n, c), (n, c) -> (c,)."""
    scale = np.linalg.norm(B, axis=0)
    relative: np.ndarray = np.linalg.norm(R, axis=0) / np.where(scale > 0, scale, 1.0)
    return relative


@dataclass(frozen=True)
class Progress:
    """The state of the columns that still run, after some iterations of `iterate`.

    `running` (c,) are their places among all columns. `residual` (n, c) is r as the recurrence has
    it, `preconditioned` (n, c) is P^-1 r, and `energy` (c,) is r.P^-1 r. `moved` (c,) says whether
    the last step could be taken: if rounding makes C or P indefinite, there is no step.
    """

    iteration: int
    running: np.ndarray
    residual: np.ndarray
    preconditioned: np.ndarray
    energy: np.ndarray
    moved: np.ndarray


# A function that returns which of the running columns go on, (c,). It is called before the first
# iteration and after each iteration.
StoppingRule = Callable[[Progress], np.ndarray]


def iterate(
    multiply: Callable[[np.ndarray], np.ndarray],
    precondition: Callable[[np.ndarray], np.ndarray],
    X: np.ndarray,
    R: np.ndarray,
    H: np.ndarray,
    goes_on: StoppingRule,
    max_iterations: int,
    sums: Callable[[np.ndarray, np.ndarray], np.ndarray] = column_sums,
    order: Literal["C", "K"] = "C",
) -> tuple[list[list[float]], list[list[float]]]:
    """Improve X by preconditioned conjugate gradients in place, and return CG's coefficients.

    At the start, R = B - C X and H = P^-1 R, (n, c) each. `multiply` maps V to C V, `precondition`
    maps V to P^-1 V, and `sums` is the inner product of columns. The columns are solved side by
    side, independently of each other. Those that the stopping rule `goes_on` does not keep are
    left out, so that later products have fewer columns. Two lists are returned for each column:
    its steps and its ratios, in the iterations in which it moved. The search directions have the
    memory `order` ("K" for that of H), on which the rounding of sums depends.
    """
    D, rho = H.copy(order), sums(R, H)
    running, moved = np.arange(R.shape[1]), np.ones(R.shape[1], bool)
    steps: list[list[float]] = [[] for _ in running]
    ratios: list[list[float]] = [[] for _ in running]
    for iteration in range(max_iterations + 1):
        going = goes_on(Progress(iteration, running, R, H, rho, moved))
        if not going.all():
            running, rho, R, D = running[going], rho[going], R[:, going], D[:, going]
        if iteration == max_iterations or not running.size:
            break
        W = multiply(D)
        curvature = sums(D, W)
        moved = (curvature > 0) & (rho > 0)
        step = np.divide(rho, curvature, out=np.zeros_like(rho), where=moved)
        X[:, running] += step * D
        W *= step
        R = R - W
        H = precondition(R)
        before, rho = rho, sums(R, H)
        ratio = np.divide(rho, before, out=np.zeros_like(rho), where=moved)
        for j in np.flatnonzero(moved):
            steps[running[j]].append(float(step[j]))
            ratios[running[j]].append(float(ratio[j]))
        D *= ratio
        D += H
    return steps, ratios


@dataclass(frozen=True)
class UntilNatsAreReached:
    """The stopping rule of `solve`: a column ends at its goal (c,), or if it makes no progress.

    Columns are not tested before the first iteration, since `solve` knows that none is at its goal.
    `done` is the number of earlier iterations, which `tell` is told.
    """

    P: Preconditioner
    goal: np.ndarray
    done: int = 0
    tell: Tell | None = None

    def __call__(self, at: Progress) -> np.ndarray:
        if at.iteration == 0:
            return at.moved
        goal = self.goal[at.running]
        left = self.P.error_bound_nats(at.residual, at.preconditioned)
        if self.tell is not None:
            with np.errstate(over="ignore"):
                worst = int(np.argmax(left / np.maximum(goal, 1e-300)))
            self.tell(self.done + at.iteration, float(left[worst]), float(goal[worst]))
        going: np.ndarray = at.moved & ~(left <= goal) & np.isfinite(at.energy)
        return going


def _tridiagonal(steps: list[float], ratios: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return diagonal and off-diagonal of Lanczos' matrix T, from the coefficients of CG.

    T is the tridiagonal matrix of P^-1/2 C P^-1/2;  k steps -> (k,), (k - 1,).
    """
    a, b = np.array(steps), np.array(ratios[:-1])
    diagonal = 1.0 / a
    diagonal[1:] += b / a[:-1]
    return diagonal, np.sqrt(b) / a[:-1]


def log_quadrature(diagonal: np.ndarray, off: np.ndarray) -> float:
    """Return e_1^T log(T) e_1 for a tridiagonal matrix T;  (k,), (k - 1,).

    It is the Gauss quadrature of u.log(P^-1/2 C P^-1/2) u, where u is the unit vector that Lanczos
    started from.
    """
    values, vectors = eigh_tridiagonal(diagonal, off)
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, np.finfo(float).tiny)))


@dataclass(frozen=True)
class Solution:
    """An approximate solution X (n, c) of C X = B, and how good it is.

    For each column, `nats` bounds the error of b.C^-1 b / 2, `residuals` are the true relative
    residuals |b - C x| / |b|, and `quadratic` is 2 b.x - x.C x, which approximates b.C^-1 b;  (c,)
    each. `iterations` counts the iterations, `matvecs` the products with a single column. `lanczos`
    has Lanczos' matrix T (diagonal and off-diagonal) for each column that started from 0.
    """

    X: np.ndarray
    nats: np.ndarray
    residuals: np.ndarray
    iterations: int
    matvecs: int
    quadratic: np.ndarray
    lanczos: dict[int, tuple[np.ndarray, np.ndarray]]
