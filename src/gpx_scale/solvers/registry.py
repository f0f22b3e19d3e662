"""The solvers that there are, by name. No other module compares the name of a solver."""

from __future__ import annotations

from ..errors import InputError, SolverUnavailable
from .basis.solver import BasisSolver
from .cg.solver import CGSolver
from .contract import Capability, Plan, Solver, SolverSetup
from .exact.solver import ExactSolver
from .grid.solver import GridSolver
from .inducing.solver import InducingSolver
from .posterior import Posterior

# `auto` takes the first that gives a reason, and has memory.
SOLVERS: tuple[type[Solver], ...] = (BasisSolver, GridSolver, ExactSolver, CGSolver, InducingSolver)
NAMES = tuple(name for solver in SOLVERS for name in (solver.name, *solver.aliases))


def find(name: str) -> type[Solver]:
    """Return the solver of a name."""
    for solver in SOLVERS:
        if name in (solver.name, *solver.aliases):
            return solver
    raise InputError(f"solver={name!r}: give one of auto, {', '.join(NAMES)}")


def create(plan: Plan, setup: SolverSetup, known: Posterior | None = None) -> Solver:
    """Return a solver for a plan."""
    return find(plan.solver).create(plan, setup, known)


def can(name: str, capability: Capability) -> bool:
    """Return whether the solver of that name has a capability; "auto" has it if some solver has."""
    asked = SOLVERS if name == "auto" else (find(name),)
    return any(capability in solver.capabilities for solver in asked)


def uses_pairs(name: str) -> bool:
    """Return whether planning for this solver, or for "auto", asks for the density of ZZ^T."""
    return any(one.uses_pairs and name in ("auto", one.name, *one.aliases) for one in SOLVERS)


def that_adds_rows(name: str) -> str:
    """Return the solver that a model takes to which rows will be added: the one that was asked for, or inducing points."""
    return InducingSolver.name if name == "auto" else name


def require(name: str, capability: Capability, instead: str = "") -> None:
    """Raise an error that names the solvers which have a capability, unless this one has it.

    `instead` is what a user may do without another solver; it completes "Fit the model with one of them, or ...".
    """
    if can(name, capability):
        return
    have = [repr(solver.name) for solver in SOLVERS if capability in solver.capabilities]
    remedy = "Fit the model with one of them" + (f", or {instead}." if instead else ".")
    raise SolverUnavailable(
        f"solver={name!r} is not among the solvers that {capability.value}. These are {', '.join(have)}. {remedy}"
    )
