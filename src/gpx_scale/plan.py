"""Which solver a fit takes, in which precision and with how much memory; printable.

Every solver plans for itself (`reason_to_prefer` and `plan` of `solvers.contract.Solver`). Here they are asked in turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .errors import InputError, MemoryLimitError
from .runtime.arguments import flag, positive, whole
from .runtime.memory import parse_memory
from .runtime.parallel import effective_jobs
from .solvers import registry
from .solvers.contract import CG_ROWS, Capability, Plan, Problem, SolverOptions
from .solvers.low_dimensional import InputResolution

__all__ = ["Plan", "make_plan"]

SMOOTH = InputResolution()  # A smooth kernel of vectors, of whose length scales nothing is known.


def make_plan(
    n: int,
    p: int,
    d: int,
    *,
    solver: str = "auto",
    dtype: Any = "auto",
    memory_limit: int | float | str | None = None,
    n_jobs: int | None = None,
    gram: bool = False,
    rank: int | str = "auto",
    density: float | None = None,
    radial: bool = True,
    n_inducing: int = 1000,
    stream: bool = False,
    n_basis: int | str = "auto",
    low: InputResolution | None = SMOOTH,
) -> Plan:
    """Choose solver, precision, form of C and rank for n rows, p columns of X, d of Z; `gram`: a kernel function's matrix is
    kept; `density` of ZZ^T for a sparse Z (d is then the entries a row); `radial`: k is a function of distance alone;
    `stream`: rows come in chunks, and are not kept; `low`: what is known of k and x in few dimensions, None where X or Z is
    sparse or k is not a kernel of vectors.

    >>> print(make_plan(2000, 10, 10, memory_limit="1GiB", n_jobs=2))
    n = 2000, p = 10, d = 10: solver 'exact', float64, 2 threads, 67.9 MiB of 1.0 GiB
      n <= 10000: everything exact, for n^3 flops an evaluation and one n^2 buffer
      float64: 67.9 MiB, within memory_limit
    >>> print(make_plan(50_000, 10, 10, memory_limit="16GiB", n_jobs=2))
    n = 50000, p = 10, d = 10: solver 'cg', float32, 2 threads, 9.0 GiB of 16.0 GiB
      n > 10000: conjugate gradients, a product at a time
      tiles stored in float32: 9.0 GiB, within memory_limit
      preconditioner of rank 3000 at most: 14 sqrt(n), no more than 3000
      hyperparameters start from 5000 rows, exactly
    >>> print(make_plan(20_000, 256, 9, memory_limit="4GiB", n_jobs=2, density=0.03))
    n = 20000, p = 256, d = 9 a row: solver 'cg', float32, 2 threads, 1.4 GiB of 4.0 GiB
      n > 10000: conjugate gradients, a product at a time
      pairs that share a feature: 3.0%, 0.1 GiB
      preconditioner: Jacobi, or rank 495 if that is faster; 1979 if it must be
      hyperparameters start from 2500 rows, exactly
    >>> print(make_plan(1_000_000, 10, 10, memory_limit="4GiB", n_jobs=2, stream=True))
    n = 1000000, p = 10, d = 10: solver 'inducing', float64, 2 threads, 0.2 GiB of 4.0 GiB
      rows come in chunks: sums over them are all that is kept
      1000 inducing points: 4 n m^2 flops an evaluation, over two passes
      chosen from, and moved on, a sample of 10000 rows; hyperparameters start from 2000 of them, exactly
    """
    n, p, d = whole(n, "n", least=1), whole(p, "p", least=0), whole(d, "d", least=1)
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    gram, radial, stream = flag(gram, "gram"), flag(radial, "radial"), flag(stream, "stream")
    if density is not None and not 0.0 <= positive(density, "density", zero=True) <= 1.0:
        raise InputError(f"density={density!r}: give a share between 0 and 1, or None")
    options = checked_options(
        solver=solver, dtype=dtype, rank=rank, n_inducing=n_inducing, n_basis=n_basis
    )
    density = density if radial else None
    return plan_for(Problem(n, p, d, limit, jobs, options, stream, gram, density, low))


def checked_options(
    *,
    solver: Any = "auto",
    dtype: Any = "auto",
    rank: Any = "auto",
    n_inducing: Any = 1000,
    n_basis: Any = "auto",
    inducing_points: Any = "rpcholesky",
    optimize_inducing: bool | str = "auto",
    searched: bool = True,
) -> SolverOptions:
    """Return what a user asked of solvers, or an InputError that names what is wrong with it."""
    if not isinstance(solver, str) or (solver != "auto" and solver not in registry.NAMES):
        raise InputError(f"solver={solver!r}: give one of auto, {', '.join(registry.NAMES)}")
    return SolverOptions(
        solver,
        "auto" if isinstance(dtype, str) and dtype == "auto" else _dtype_name(dtype),
        None
        if isinstance(rank, str) and rank == "auto"
        else whole(rank, "preconditioner_rank", least=1),
        whole(n_inducing, "n_inducing", least=1),
        None
        if isinstance(n_basis, str) and n_basis == "auto"
        else whole(n_basis, "n_basis", least=2),
        inducing_points,
        optimize_inducing,
        searched,
    )


def plan_for(problem: Problem) -> Plan:
    """Return the plan of the solver that was asked for, or of the first that gives a reason and has memory."""
    if problem.asked:
        solver = registry.find(problem.options.solver)
        solver.refuse(problem)
        return solver.plan(problem, "solver as asked")
    for solver in registry.SOLVERS:
        reason = solver.reason_to_prefer(problem)
        if reason is None:
            continue
        try:
            return solver.plan(problem, reason)
        except MemoryLimitError as too_much:
            if solver is registry.SOLVERS[-1] or not solver.gives_way(problem):
                raise
            first_sentence = str(too_much).split(". ")[0]
            refusal = first_sentence[0].lower() + first_sentence[1:]
            problem = replace(problem, refusal=refusal)
    raise AssertionError("the last solver takes every problem")


def streamed_from(solver: str) -> float:
    """Return the number of rows above which a memory map is streamed to this solver, and not loaded."""
    if solver == "auto":
        return CG_ROWS
    return 0 if registry.can(solver, Capability.STREAM) else float("inf")


def _dtype_name(dtype: Any) -> str:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in ("float64", "float32"):
        raise InputError(f'dtype={dtype!r}: give "auto", "float64" or "float32"')
    return name
