"""The choice of a solver, its precision and its memory, before anything is allocated.

Every solver plans for itself and predicts its own time (`reason_against`, `plan` and `seconds` of
`solvers.contract.Solver`). This module asks all of them and chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import InputError, MemoryLimitError, SolverUnavailable
from .runtime.arguments import flag, positive, whole
from .runtime.memory import format_seconds, parse_memory
from .runtime.parallel import effective_jobs
from .solvers import registry
from .solvers.contract import (
    AUTO_PATIENCE_SECONDS,
    CG_ROWS,
    Candidate,
    Capability,
    Plan,
    Problem,
    Solver,
    SolverOptions,
)
from .solvers.low_dimensional import InputResolution
from .solvers.rates import RATES

__all__ = ["Plan", "make_plan"]

# "auto" takes a solver that is as exact as another if it is this many times faster.
MUCH_FASTER = 2.5
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
    n_neighbors: int | str = "auto",
    n_shared: int | str = "auto",
    files: bool = False,
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
        The solver: "exact", "cg", "neighbors", "inducing", "basis" or "grid". "auto" takes the
        most exact one that fits into memory and is predicted to take at most ten minutes.
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
    files : bool, default False
        Whether the rows of a stream are those of a memory map or of files, of which single rows
        can be read.
    n_basis : int or "auto", default "auto"
        The number of functions of `basis`, or of points of `grid`, for each column of X.
    low : InputResolution, optional
        The smoothness of the kernel and, if they are known, the length scales, by which `basis` and
        `grid` are planned for X of up to three columns. By default, the kernel is an RBF with
        unknown length scales. None means that X or Z is sparse, or that the kernel is not one of
        vectors.
    n_neighbors, n_shared : int or "auto", default "auto"
        The numbers of rows that "neighbors" conditions each query on: its nearest ones, and those
        that all queries share. With "auto", these are upper limits, and held-out rows decide.

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
    The exact solver is used as long as it is predicted to take at most ten minutes:

    >>> from gpx_scale import make_plan
    >>> plan = make_plan(5000, 10, 10, memory_limit="1GiB", n_jobs=2)
    >>> plan.solver, plan.bytes_needed < plan.memory_limit, plan.seconds < 600
    ('exact', True, True)
    >>> print(plan)
    n = 5000, p = 10, d = 10: solver 'exact', float64, 2 threads, 0.1 GiB of 1.0 GiB, about ...
      It is the most exact solver that takes at most 10 min.
      The Cholesky factor of C is computed, so all results are exact.
      Considered were:
        exact (float64): about ..., 0.1 GiB, taken
        exact (float32): about ..., 93.3 MiB, not taken: exact is at least as exact
        basis (float64): not taken: X has more than 3 columns
        ...

    More rows are fitted by conjugate gradients:

    >>> make_plan(60_000, 10, 10, memory_limit="16GiB", n_jobs=2).solver
    'cg'

    Rows that come in chunks are fitted with inducing points:

    >>> print(make_plan(1_000_000, 10, 10, memory_limit="4GiB", n_jobs=2, stream=True))
    n = 1000000, p = 10, d = 10: solver 'inducing', float64, 2 threads, 0.2 GiB of 4.0 GiB, ...
      It is the most exact solver that takes at most 10 min.
      The rows come in chunks. The fit keeps sums over them and stores no row.
      ...
    """
    n, p, d = whole(n, "n", least=1), whole(p, "p", least=0), whole(d, "d", least=1)
    limit, jobs = parse_memory(memory_limit), effective_jobs(n_jobs)
    gram, radial, stream = flag(gram, "gram"), flag(radial, "radial"), flag(stream, "stream")
    if density is not None and not 0.0 <= positive(density, "density", zero=True) <= 1.0:
        raise InputError(
            f"density={density!r} is not a share. Give a number between 0 and 1, or None."
        )
    options = checked_options(
        solver=solver,
        dtype=dtype,
        rank=rank,
        n_inducing=n_inducing,
        n_basis=n_basis,
        n_neighbors=n_neighbors,
        n_shared=n_shared,
    )
    density = density if radial else None
    files = flag(files, "files")
    stream = stream or files
    return plan_for(Problem(n, p, d, limit, jobs, options, stream, gram, density, low, files))


def checked_options(
    *,
    solver: Any = "auto",
    dtype: Any = "auto",
    rank: Any = "auto",
    n_inducing: Any = 1000,
    n_basis: Any = "auto",
    inducing_points: Any = "rpcholesky",
    optimize_inducing: bool | str = "auto",
    search_rows: int | str | None = "auto",
    n_neighbors: Any = "auto",
    n_shared: Any = "auto",
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
        search_rows,
        None if _is_auto(n_neighbors) else whole(n_neighbors, "n_neighbors", least=1),
        None if _is_auto(n_shared) else whole(n_shared, "n_shared", least=0),
    )


def plan_for(problem: Problem) -> Plan:
    """Return the plan of the solver that the user asked for, or of the one that "auto" takes.

    "auto" takes the most exact solver that fits into memory and is predicted to take at most
    AUTO_PATIENCE_SECONDS. It takes one that is as exact if that is much faster, and the fastest one
    if none is fast enough.
    """
    if problem.weight_terms:
        needed = Capability.SPARSE_WEIGHT_TERMS if problem.sparse_terms else Capability.WEIGHT_TERMS
        registry.require(problem.options.solver, needed, "give weights='shared'")
    if problem.is_latent:
        registry.require(problem.options.solver, Capability.LIKELIHOODS)
    if problem.asked:
        solver = registry.find(problem.options.solver)
        solver.refuse(problem)
        plan = solver.plan(problem)
        reasons = ["The solver is the one that was asked for.", *plan.reasons]
        return replace(plan, reasons=reasons, seconds=_predicted(plan))
    found = _consider(problem)
    offers = [one for one in found if one.plan is not None]
    if not offers and problem.is_latent:
        raise SolverUnavailable(
            "No solver takes classes or counts whose rows come in chunks. Give rows in memory."
        )
    chosen, reason = _choose(offers)
    assert chosen.plan is not None
    candidates = tuple(one.candidate(chosen, reason) for one in found)
    reasons = [reason, *chosen.plan.reasons]
    return replace(chosen.plan, reasons=reasons, seconds=chosen.seconds, candidates=candidates)


@dataclass(frozen=True)
class _Considered:
    """A solver in one precision, and its plan, or the reason why there is none."""

    solver: type[Solver]
    problem: Problem
    plan: Plan | None = None
    refusal: str = ""

    @property
    def seconds(self) -> float | None:
        """Return the predicted time, None if it is not known."""
        return None if self.plan is None else _predicted(self.plan)

    @property
    def is_fast_enough(self) -> bool:
        """Return whether it takes at most AUTO_PATIENCE_SECONDS, as far as is known."""
        return self.seconds is None or self.seconds <= AUTO_PATIENCE_SECONDS

    def candidate(self, chosen: _Considered, reason: str) -> Candidate:
        """Return this solver for `Plan.candidates`, with the verdict."""
        if self.plan is None:
            dtype = self.problem.options.dtype
            dtype = "float64" if dtype == "auto" else dtype
            return Candidate(self.solver.name, dtype, None, None, f"not taken: {self.refusal}")
        if self is chosen:
            verdict = "taken"
        elif not self.is_fast_enough:
            verdict = f"not taken: more than {AUTO_PATIENCE_SECONDS:.0f} s"
        else:
            verdict = f"not taken: {chosen.solver.name} is at least as exact"
        dtype = np.dtype(self.plan.dtype).name
        bytes_needed = self.plan.bytes_needed
        return Candidate(self.solver.name, dtype, self.seconds, bytes_needed, verdict)


def _predicted(plan: Plan) -> float | None:
    """Return the predicted seconds of a plan, None if they are not known yet."""
    return registry.find(plan.solver).seconds(plan, RATES.on(plan.n_jobs))


def _consider(problem: Problem) -> list[_Considered]:
    """Return all solvers in their precisions, or raise the last error if memory allows none."""
    found: list[_Considered] = []
    error: MemoryLimitError | None = None
    for solver in registry.SOLVERS:
        for variant in solver.variants(problem):
            against = solver.reason_against(variant)
            if problem.weight_terms and Capability.WEIGHT_TERMS not in solver.capabilities:
                against = "it takes no weights with priors of their own"
            lacks_sparse = Capability.SPARSE_WEIGHT_TERMS not in solver.capabilities
            if problem.sparse_terms and lacks_sparse and against is None:
                against = "it takes no weights with priors of their own for a sparse Z"
            if problem.is_latent and Capability.LIKELIHOODS not in solver.capabilities:
                against = "it takes Gaussian noise alone"
            if against is not None:
                found.append(_Considered(solver, variant, refusal=against))
                continue
            try:
                found.append(_Considered(solver, variant, solver.plan(variant)))
            except MemoryLimitError as too_much:
                if not solver.gives_way(variant):
                    raise
                error = too_much
                # The rest of the message is advice for users who asked for this solver.
                first_sentence = str(too_much).split(". ")[0]
                found.append(_Considered(solver, variant, refusal=first_sentence))
    if error is not None and not any(one.plan is not None for one in found):
        raise error
    return found


def _choose(offers: list[_Considered]) -> tuple[_Considered, str]:
    """Return the solver that is taken, and the reason."""
    patience = format_seconds(AUTO_PATIENCE_SECONDS).removeprefix("about ")
    first = next((one for one in offers if one.is_fast_enough), None)
    if first is None:
        fastest = min(offers, key=lambda one: one.seconds or 0.0)
        time = format_seconds(fastest.seconds or 0.0)
        return fastest, f"No solver takes less than {patience}. This is the fastest, {time}."
    for other in offers[offers.index(first) + 1 :]:
        if first.seconds is None or other.seconds is None:
            continue
        is_much_faster = MUCH_FASTER * other.seconds <= first.seconds
        if is_much_faster and other.solver.is_as_exact(other.problem):
            times = f"{first.seconds / other.seconds:.0f} times faster"
            return other, f"It is as exact as {first.solver.name!r}, and {times}."
    return first, f"It is the most exact solver that takes at most {patience}."


def streamed_from(solver: str) -> float:
    """Return the number of rows above which a memory map is read in chunks for this solver."""
    if solver == "auto":
        return CG_ROWS
    return 0 if registry.can(solver, Capability.FILES) else float("inf")


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
