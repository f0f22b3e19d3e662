"""The choice of a solver, its precision and its memory, before anything is allocated.

Every solver plans for itself (`reason_to_prefer` and `plan` of `solvers.contract.Solver`). This
module asks the solvers in turn.
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

# A smooth kernel of vectors whose length scales are not known, such as an RBF before a fit.
SMOOTH = InputResolution()


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
    """Return the plan of a fit from the sizes of its data, without looking at any data.

    `GPXRegressor.plan` returns the same for given data. `print` shows the plan with its reasons.

    Parameters
    ----------
    n : int
        The number of rows.
    p : int
        The number of columns of X.
    d : int
        The number of columns of Z. For a sparse Z, it is the average number of entries per row.
    solver : str, default "auto"
        The solver: "exact", "cg", "inducing", "basis" or "grid". "auto" takes the first that
        suits the sizes and fits into memory.
    dtype : str or type, default "auto"
        The precision, "float64" or "float32".
    memory_limit : int, float or str, optional
        The memory that a fit may take, in bytes or as a text such as "8GiB". By default, it is 80%
        of the memory that is available.
    n_jobs : int, optional
        The number of threads. By default, every available core is used; -1 means the same.
    gram : bool, default False
        Whether the kernel is a Gram matrix, or a function whose matrix is kept.
    rank : int or "auto", default "auto"
        The rank of the preconditioner of `cg` and `grid`.
    density : float, optional
        The share of pairs of rows that have a feature in common, for a sparse Z.
    radial : bool, default True
        Whether the kernel depends on the distance between inputs only. Otherwise `density` is not
        used.
    n_inducing : int, default 1000
        The number of inducing points of `inducing`.
    stream : bool, default False
        Whether rows come in chunks and are not kept in memory.
    n_basis : int or "auto", default "auto"
        The number of functions of `basis`, or of points of `grid`, for each column of X.
    low : InputResolution, optional
        The smoothness of the kernel and, if they are known, the length scales, by which `basis` and
        `grid` are planned for X of up to three columns. By default, the kernel is an RBF with
        unknown length scales. None means that X or Z is sparse, or that the kernel is not one of
        vectors.

    Returns
    -------
    Plan
        The solver with its precision, its memory, its settings, and the reasons for them.

    Raises
    ------
    InputError
        If an argument cannot be used, or if the solver is not made for such sizes.
    SolverUnavailable
        If the solver cannot be used with such a kernel, or with sparse data.
    MemoryLimitError
        If a fit needs more memory than `memory_limit`.

    Examples
    --------
    Up to 10,000 rows, the exact solver is used:

    >>> from gpx_scale import make_plan
    >>> plan = make_plan(2000, 10, 10, memory_limit="1GiB", n_jobs=2)
    >>> plan.solver, plan.bytes_needed < plan.memory_limit
    ('exact', True)
    >>> print(plan)
    n = 2000, p = 10, d = 10: solver 'exact', float64, 2 threads, 67.9 MiB of 1.0 GiB
      n <= 10000: all results are exact, for n^3 flops per evaluation.
      ...

    More rows are fitted by conjugate gradients:

    >>> make_plan(50_000, 10, 10, memory_limit="16GiB").solver
    'cg'

    Rows that come in chunks are fitted with inducing points:

    >>> print(make_plan(1_000_000, 10, 10, memory_limit="4GiB", n_jobs=2, stream=True))
    n = 1000000, p = 10, d = 10: solver 'inducing', float64, 2 threads, 0.2 GiB of 4.0 GiB
      The rows come in chunks. The fit keeps sums over them and stores no row.
      m = 1000 inducing points: 4 n m^2 flops per evaluation, in two passes.
      The points are selected from, and moved on, a subset of 10000 rows.
      Hyperparameters start from the exact optimum of 2000 rows.
    """
    n, p, d = whole(n, "n", least=1), whole(p, "p", least=0), whole(d, "d", least=1)
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    gram, radial, stream = flag(gram, "gram"), flag(radial, "radial"), flag(stream, "stream")
    if density is not None and not 0.0 <= positive(density, "density", zero=True) <= 1.0:
        raise InputError(
            f"density={density!r} is not a share. Give a number between 0 and 1, or None."
        )
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
    """Return the options of solvers that a user gave, with None for "auto".

    An option that cannot be used raises an InputError that names it.
    """
    if not isinstance(solver, str) or (solver != "auto" and solver not in registry.NAMES):
        names = ", ".join(map(repr, registry.NAMES))
        raise InputError(f"solver={solver!r} is not a solver. Give one of 'auto', {names}.")
    return SolverOptions(
        solver,
        "auto" if _is_auto(dtype) else _dtype_name(dtype),
        None if _is_auto(rank) else whole(rank, "preconditioner_rank", least=1),
        whole(n_inducing, "n_inducing", least=1),
        None if _is_auto(n_basis) else whole(n_basis, "n_basis", least=2),
        inducing_points,
        optimize_inducing,
        searched,
    )


def plan_for(problem: Problem) -> Plan:
    """Return the plan of the solver that the user asked for.

    For "auto", return that of the first solver that prefers the problem and fits into memory.
    """
    if problem.asked:
        solver = registry.find(problem.options.solver)
        solver.refuse(problem)
        return solver.plan(problem, "The solver is the one that was asked for.")
    for solver in registry.SOLVERS:
        reason = solver.reason_to_prefer(problem)
        if reason is None:
            continue
        try:
            return solver.plan(problem, reason)
        except MemoryLimitError as too_much:
            if solver is registry.SOLVERS[-1] or not solver.gives_way(problem):
                raise
            # The next solver gives the first sentence of the message as its reason. The rest is
            # advice, which is not needed if another solver fits into memory.
            first_sentence = str(too_much).split(". ")[0]
            refusal = first_sentence[0].lower() + first_sentence[1:]
            problem = replace(problem, refusal=refusal)
    raise AssertionError("The last solver takes every problem.")


def streamed_from(solver: str) -> float:
    """Return the number of rows above which a memory map is read in chunks for this solver."""
    if solver == "auto":
        return CG_ROWS
    return 0 if registry.can(solver, Capability.STREAM) else float("inf")


def _is_auto(value: Any) -> bool:
    """Return whether an argument is the text "auto", and not an array that is compared with it."""
    return isinstance(value, str) and value == "auto"


def _dtype_name(dtype: Any) -> str:
    """Return "float64" or "float32"; any other type of numbers is an InputError."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = str(dtype)
    if name not in ("float64", "float32"):
        raise InputError(
            f'dtype={dtype!r} is not a precision. Give "auto", "float64" or "float32".'
        )
    return name
