"""Preconditioned conjugate gradients for many right-hand sides at once, stopped in nats; Lanczos quadrature of the logarithm.

For a right-hand side b and an approximate x with the true residual r = b - C x,

    b.x - x.C x / 2  =  b.C^-1 b / 2  -  r.C^-1 r / 2,        0 <= r.C^-1 r <= r.P^-1 r        (P <= C)

so r.P^-1 r / 2 bounds what the quadratic form still misses, and CG has it in every iteration. A P that is not below C has
another bound to offer: `P.error_bound_nats`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.linalg import eigh_tridiagonal

from ..errors import NotConverged
from .covariance import Covariance
from .preconditioner import Preconditioner

ITERATIONS = 1000  # of one solve
RESTARTS = 12  # from a true residual
REACH = 1e-7  # of the nats left, what a run on float32 tiles gains before its residual is no longer the true one

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
    """C^-1 B, each column to its own nats;  (n, c), (c,) -> Solution.

    Iterates with the products of C, and restarts from the residual under `precise` (default: C) until that one is small
    enough; with the products of `precise` where those of C do not get there. `start` (n, c): columns of zeros start cold.
    `tell(iteration, nats, goal)` hears of the column furthest behind.
    """
    size = np.abs(B).max(axis=0, initial=0.0)
    # float32 products hold numbers of moderate size only; squares of what is below 1e-140 are 0, and so is its solution
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
    for turn in range(RESTARTS):
        H = P.solve(R)
        now = P.error_bound_nats(R, H)
        todo = np.flatnonzero(~(now <= nats))  # NaN too
        if not todo.size:
            quadratic = np.einsum("ij,ij->j", B + R, X)  # = 2 b.x - x.C x
            return Solution(X, now, _relative(R, B), iterations, matvecs, quadratic, lanczos)
        if iterations >= ITERATIONS:
            break
        if not (now[todo] < 0.9 * before[todo]).all():
            if C is precise:
                break
            C = precise  # float32 has no more to give
        goal = np.maximum(0.5 * nats, REACH * now)[todo]
        step, rule = np.zeros((len(B), todo.size)), UntilNatsAreReached(P, goal, iterations, tell)
        most = ITERATIONS - iterations
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
        f"conjugate gradients stopped after {iterations} iterations with {now[worst]:.1e} nats to go, needed "
        f"{nats[worst]:.1e} (residual {_relative(R, B)[worst]:.1e}): raise preconditioner_rank (now {P.rank}) or sigma_y, "
        'drop duplicate rows, or use solver="exact"'
    )


def _relative(R: np.ndarray, B: np.ndarray) -> np.ndarray:
    scale = np.linalg.norm(B, axis=0)
    return np.linalg.norm(R, axis=0) / np.where(scale > 0, scale, 1.0)


@dataclass(frozen=True)
class Progress:
    """Where the columns that still run are, after some iterations of `iterate`.

    `running` (c,) are their places among all columns. Of each, the residual r (n, c) by recurrence,
    P^-1 r (n, c), r.P^-1 r (c,), and whether the last step could be taken: where rounding makes C
    or P indefinite, there is no step.
    """

    iteration: int
    running: np.ndarray
    residual: np.ndarray
    preconditioned: np.ndarray
    energy: np.ndarray
    moved: np.ndarray


# Which of the running columns go on, (c,); it is asked before the first iteration, and after each.
StoppingRule = Callable[[Progress], np.ndarray]


def column_sums(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return a.b of each pair of columns;  (n, c), (n, c) -> (c,)."""
    return np.einsum("ij,ij->j", A, B)


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

    R = B - C X and H = P^-1 R at the start, (n, c) each; `multiply` is V -> C V, `precondition` is
    V -> P^-1 V, and `sums` the inner product of columns. Columns run side by side, each on its own;
    those that the stopping rule `goes_on` does not keep leave, so that later products are narrower.
    The steps and ratios of each column are those of the iterations in which it moved. Directions
    have this memory `order` (K: that of H), on which the rounding of sums depends.
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
    """The stopping rule of `solve`: a column leaves at its goal (c,), or where it gets no further.

    Columns are not looked at before the first iteration, since `solve` knows that none is at its
    goal. `done` iterations came before these, for `tell`.
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
        return at.moved & ~(left <= goal) & np.isfinite(at.energy)


def _tridiagonal(steps: list[float], ratios: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal and off-diagonal of Lanczos' T of P^-1/2 C P^-1/2, from the coefficients of CG."""
    a, b = np.array(steps), np.array(ratios[:-1])
    diagonal = 1.0 / a
    diagonal[1:] += b / a[:-1]
    return diagonal, np.sqrt(b) / a[:-1]


def log_quadrature(diagonal: np.ndarray, off: np.ndarray) -> float:
    """e_1^T log(T) e_1: Gauss quadrature of u.log(P^-1/2 C P^-1/2) u for the unit vector u that Lanczos started from."""
    values, vectors = eigh_tridiagonal(diagonal, off)
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, np.finfo(float).tiny)))


@dataclass(frozen=True)
class Solution:
    """C X = B by iteration, and how well: of each column, the bound in nats on what b.C^-1 b / 2 still misses, and the
    true relative residual |b - C x| / |b|. `lanczos` has T of each column that started from 0, in the order of the columns."""

    X: np.ndarray
    nats: np.ndarray
    residuals: np.ndarray
    iterations: int
    matvecs: int
    quadratic: np.ndarray
    lanczos: dict[int, tuple[np.ndarray, np.ndarray]]
