"""What a solver must offer: how it plans, evaluates, searches and conditions.

`Problem` is what planning knows, `Plan` what it decides, `SolverSetup` what a solver is made with, `Evidence` what an
evaluation returns. A new solver is a package with a `Solver` and a `Posterior`, and one more entry in `registry.SOLVERS`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..data.inputs import InputRows, Preprocessor
from ..data.row_source import RowSource
from ..errors import InputError, SolverUnavailable
from ..kernels.kernel import Kernel
from ..model.hyperparameters import Hyperparameters
from ..optimize.objective import Optimum
from ..runtime.memory import counted, format_bytes, within
from ..runtime.parallel import TILE_ROWS
from ..runtime.session import Session
from ..runtime.state import must, stored
from .low_dimensional import InputResolution

if TYPE_CHECKING:
    from ..optimize.search import Search
    from .posterior import Posterior

EXACT_ROWS = 10_000  # up to which `auto` is exact: minutes, and variances that are exact too (docs/scaling.md)
CG_ROWS = 100_000  # up to which `auto` takes `cg` of a dense Z: beyond, n^2 kernel values a product are minutes


class Capability(enum.Enum):
    """What not every solver can do; the value completes "solvers that ..."."""

    TRAINING_WEIGHTS = "keep the training rows and know the weights of each of them"
    LEAVE_ONE_OUT = "compute leave-one-out residuals"
    UPPER_BOUND = "give standard deviations that are never below the exact ones"
    SAMPLED_VARIANCE = "estimate standard deviations from posterior samples"
    SPARSE_FEATURES = "take a sparse Z"
    ANY_KERNEL = "take Gram matrices and functions of objects"
    FLOAT32 = "compute in float32"
    STREAM = "fit rows that come in chunks"
    ADD_ROWS = "add rows to a fitted model"


def capability_error(kind: type, capability: Capability) -> SolverUnavailable:
    """Return the error of a class that lacks a capability.

    Users meet `registry.require` first, which knows the other solvers and names those that have the capability.
    """
    return SolverUnavailable(
        f"{kind.__name__} is not among the posteriors that {capability.value}."
    )


@dataclass(frozen=True)
class Evidence:
    """log p(y) of the full model without prior, its gradient by `theta`, and what came with it for free.

    `standard_error` is that of `value` where it is an estimate, 0 where it is exact. `information` (t, t) is asked for by
    searches; `alpha` and `inverse_diagonal`, diag(C^-1), are (n,), of the exact solver only.
    """

    value: float
    gradient: np.ndarray | None
    n_rows: int
    alpha: np.ndarray | None = None
    inverse_diagonal: np.ndarray | None = None
    information: np.ndarray | None = None
    standard_error: float = 0.0

    def leave_one_out(self) -> np.ndarray:
        """Return y_i minus its prediction from all other rows, alpha_i / (C^-1)_ii;  (n,)."""
        assert self.alpha is not None
        assert self.inverse_diagonal is not None
        return self.alpha / self.inverse_diagonal

    def leave_one_out_std(self) -> np.ndarray:
        """Return the deviation of that prediction, noise included, (C^-1)_ii^-1/2;  (n,)."""
        assert self.inverse_diagonal is not None
        return self.inverse_diagonal**-0.5


@dataclass(frozen=True)
class SolverOptions:
    """What a user asked of solvers, checked. None stands for "auto"; `dtype` is "auto", "float64" or "float32"."""

    solver: str = "auto"
    dtype: str = "auto"
    rank: int | None = None
    n_inducing: int = 1000
    n_basis: int | None = None
    inducing_points: Any = "rpcholesky"
    optimize_inducing: bool | str = "auto"
    searched: bool = True  # Whether hyperparameters are estimated at all.


class SolverSettings(abc.ABC):
    """What a solver plans for itself, such as a rank or a number of points: `Plan.settings`."""

    @abc.abstractmethod
    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless a fit with these inputs may have ended with such settings."""


@stored
@dataclass(frozen=True)
class Plan:
    """How a fit will run. `print(plan)` says why; `bytes_needed` is known before anything is allocated.

    `subset` rows are what the search for hyperparameters starts from. If the plan `needs_length_scales`, these are found on
    the subset, and the planner is asked again. `settings` are the solver's own (rank, points, functions).
    """

    n: int
    p: int
    d: int
    solver: str
    dtype: Any
    n_jobs: int
    bytes_needed: int
    memory_limit: int
    reasons: list[str] = field(default_factory=list)
    subset: int = 0
    stream: bool = False
    needs_length_scales: bool = False
    settings: Any = None
    d_is_per_row: bool = (
        False  # Whether d counts the entries of a row of a sparse Z, and not its columns.
    )

    def __str__(self) -> str:
        per_row = " a row" if self.d_is_per_row else ""
        head = (
            f"n = {self.n}, p = {self.p}, d = {self.d}{per_row}: solver {self.solver!r}, {np.dtype(self.dtype).name}, "
            f"{counted(self.n_jobs, 'thread')}, {format_bytes(self.bytes_needed)} of {format_bytes(self.memory_limit)}"
        )
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons)])


@dataclass(frozen=True)
class Problem:
    """What planning knows of the data and the kernel, without looking at a number of them.

    n rows, p columns of X, d of Z (of a sparse Z, the entries of a row). `stream`: rows come in chunks, and are not kept.
    `gram`: the kernel is a matrix, or a function whose matrix is kept. `pair_density` of ZZ^T, for a sparse Z whose kernel is
    a function of distance alone. `resolution`: what is known of x in few dimensions, None where X or Z is sparse or the kernel
    is not one of vectors. `refusal` says why the solver before had no memory, for the reasons of the next.
    """

    n: int
    p: int
    d: int
    memory_limit: int
    n_jobs: int
    options: SolverOptions = SolverOptions()
    stream: bool = False
    gram: bool = False
    pair_density: float | None = None
    resolution: InputResolution | None = None
    refusal: str = ""

    @property
    def asked(self) -> bool:
        """Return whether the user named a solver."""
        return self.options.solver != "auto"

    def exact_bytes(self, n: int, itemsize: int = 8, gram: bool = False) -> int:
        """Return the memory of the exact solver on n rows: buffer, Gram matrix, rows, tiles in work."""
        return (
            itemsize * n * n
            + 8 * n * n * gram
            + 8 * n * (4 * (self.p + 2) + 3 * self.d + 10)
            + self.n_jobs * 4 * 8 * min(n, TILE_ROWS) * min(n, 4 * TILE_ROWS)
        )

    def held_bytes(self) -> int:
        """Return the memory of the rows themselves, none where they stream."""
        return 8 * (self.p + 2 * self.d + 4) * (0 if self.stream else self.n)

    def require(self, bytes_needed: int, what: str, instead: str = "fewer rows") -> None:
        """Raise a MemoryLimitError if the limit is lower."""
        within(int(bytes_needed), self.memory_limit, what, instead)

    def planned(
        self, solver: str, dtype: Any, bytes_needed: int, reasons: list[str], **more: Any
    ) -> Plan:
        """Return the plan of a solver for this problem; `more` are further fields of `Plan`."""
        sizes = self.n, self.p, self.d
        return Plan(
            *sizes, solver, dtype, self.n_jobs, bytes_needed, self.memory_limit, reasons, **more
        )


@dataclass(frozen=True)
class SolverSetup:
    """What a solver is made with, beside its plan."""

    session: Session
    kernel: Kernel
    options: SolverOptions = SolverOptions()
    preprocessor: Preprocessor | None = None
    check_columns: Callable[[Any], None] = lambda X: (
        None
    )  # Raises a ValueError if names or number of columns differ.


class Solver(abc.ABC):
    """Rows and hyperparameters to a log marginal likelihood and a posterior. Planning costs O(1)."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    capabilities: ClassVar[frozenset[Capability]]
    posterior_class: ClassVar[type[Posterior]]  # What `condition` returns.
    settings_class: ClassVar[type] = NoneType  # Its `SolverSettings`, if its plans have any.
    keeps_rows: ClassVar[bool] = (
        False  # Whether its posterior has the training rows, or points or functions instead.
    )
    uses_pairs: ClassVar[bool] = (
        False  # Whether planning asks how many pairs of rows share a feature of a sparse Z.
    )

    # planning

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        """Raise an error if a user who asks for this solver cannot have it for this problem, whatever the memory."""
        if problem.stream and Capability.STREAM not in cls.capabilities:
            raise InputError(
                f"solver={cls.name!r} needs all rows in memory: fit a stream with solver='inducing', or 'basis' if X has "
                "few columns"
            )

    @classmethod
    @abc.abstractmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        """Return why `auto` takes this solver, None if it does not."""

    @classmethod
    @abc.abstractmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        """Return the plan, or raise a MemoryLimitError."""

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return whether `auto` goes on to the next solver where this one has no memory."""
        return True

    @classmethod
    @abc.abstractmethod
    def work(cls, plan: Plan) -> float | None:
        """Return the equivalent flops of a whole fit, None while length scales are not known."""

    @classmethod
    def must_have_planned(cls, plan: Plan, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless a fit by this solver may have ended with such a plan."""
        counts = plan.p, plan.subset, plan.bytes_needed
        sizes = plan.n, plan.d, plan.n_jobs, plan.memory_limit
        must(min(counts) >= 0 and min(sizes) >= 1, "a count of its plan is negative")
        must(plan.dtype in (np.float32, np.float64), "its plan has another type of numbers")
        must(not plan.needs_length_scales, "its plan is not at its end")
        own = type(plan.settings) is cls.settings_class
        must(own, "its plan has settings of another solver")
        if isinstance(plan.settings, SolverSettings):
            plan.settings.must_fit(preprocessor)

    # fitting

    @classmethod
    @abc.abstractmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior | None = None) -> Self:
        """Return a solver for a plan; of a `known` posterior, its points, functions or grid are used again."""

    @abc.abstractmethod
    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the log marginal likelihood, or a bound of it, with what is asked for."""

    @abc.abstractmethod
    def search(self, search: Search) -> Optimum:
        """Return the hyperparameters of the largest evidence times prior."""

    @abc.abstractmethod
    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> Posterior:
        """Return the posterior; of some solvers, this is the last call."""

    def carry(self, points: InputRows | None) -> bool:
        """Take inducing points that are known; return whether the solver has all that it carries."""
        return True

    @property
    def carried(self) -> InputRows | None:
        """Return the inducing points, which checkpoints and warm starts carry along; None for solvers without."""
        return None

    @classmethod
    def fingerprint(cls, plan: Plan, setup: SolverSetup) -> Mapping[str, Any]:
        """Return what tells searches of this solver apart, for checkpoints: by name, a text or bytes."""
        return {}
