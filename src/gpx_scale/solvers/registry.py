"""The list of all solvers. No other module compares the name of a solver."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, SolverUnavailable
from .basis.solver import BasisSolver
from .cg.solver import CGSolver
from .contract import Capability, Plan, Solver, SolverSetup
from .exact.solver import ExactSolver
from .grid.solver import GridSolver
from .inducing.solver import InducingSolver
from .neighbors.solver import NeighborsSolver
from .posterior import Posterior

# "auto" considers them in this order, the most exact one first (`plan.plan_for`).
SOLVERS: tuple[type[Solver], ...] = (
    ExactSolver,
    BasisSolver,
    GridSolver,
    CGSolver,
    NeighborsSolver,
    InducingSolver,
)
NAMES = tuple(name for solver in SOLVERS for name in (solver.name, *solver.aliases))


def find(name: str) -> type[Solver]:
    """Return the class of the solver with a name, or raise an InputError."""
    for solver in SOLVERS:
        if name in (solver.name, *solver.aliases):
            return solver
    raise InputError(f"solver={name!r} is not known. Give one of auto, {', '.join(NAMES)}.")


def create(plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None) -> Solver:
    """Return a solver for a plan; `known` is as in `Solver.create`."""
    return find(plan.solver).create(plan, setup, known)


def can(name: str, capability: Capability) -> bool:
    """Return whether the solver of that name has a capability; "auto" has it if any solver has."""
    asked = SOLVERS if name == "auto" else (find(name),)
    return any(capability in solver.capabilities for solver in asked)


def uses_pairs(name: str) -> bool:
    """Return whether planning for this solver, or for "auto", needs the density of ZZ^T."""
    return any(one.uses_pairs and name in ("auto", one.name, *one.aliases) for one in SOLVERS)


def that_adds_rows(name: str) -> str:
    """Return the solver of a model to which rows will be added.

    It is the one that was asked for, and the inducing solver for "auto".
    """
    return InducingSolver.name if name == "auto" else name


def require(name: str, capability: Capability, instead: str = "") -> None:
    """Raise an error that names the solvers that have a capability, unless this one has it.

    `instead` is what a user can do with the same solver. It completes "Fit the model with one of
    them, or ...".
    """
    if can(name, capability):
        return
    have = [repr(solver.name) for solver in SOLVERS if capability in solver.capabilities]
    remedy = "Fit the model with one of them" + (f", or {instead}." if instead else ".")
    raise SolverUnavailable(
        f"solver={name!r} is not among the solvers that {capability.value}. "
        f"These are {', '.join(have)}. {remedy}"
    )
