"""The contract of a solver: how it plans, evaluates, searches and conditions.

Planning starts from a `Problem` and ends with a `Plan`. A solver is created from a plan and a
`SolverSetup`. It returns an `Evidence` from an evaluation and an `Optimum` from a search. A new
solver is a package with a `Solver` and a `Posterior`, and one more entry in `registry.SOLVERS`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from ..data.inputs import InputRows, Preprocessor
from ..data.row_source import READ_IN_ORDER, RowSource
from ..errors import InputError, SolverUnavailable
from ..kernels.kernel import Kernel
from ..linalg.kernel_tiles import PARTIAL_SUMS
from ..linalg.lower_tiles import longest_buffer
from ..model.hyperparameters import Hyperparameters
from ..optimize.evidence import Evidence as Evidence  # It is part of this contract.
from ..optimize.objective import Optimum
from ..runtime.memory import counted, format_bytes, format_seconds, within
from ..runtime.parallel import TILE_ROWS
from ..runtime.session import Session
from ..runtime.state import must, stored
from .low_dimensional import InputResolution
from .rates import Rates

if TYPE_CHECKING:
    from ..optimize.search import Search
    from .posterior import Posterior

# "auto" takes the most exact solver whose fit is predicted to take at most this long: about as long
# as a person waits for an answer.
AUTO_PATIENCE_SECONDS = 600.0
# A memory map with more rows than this is read in chunks. With more rows, the n^2 kernel values of
# one product take minutes.
CG_ROWS = 100_000
# Whether weights are zero, constant or varying is tested on at most this many rows. An evaluation
# takes a second there on two cores.
WEIGHT_TEST_ROWS = 5_000

Settings = TypeVar("Settings", bound="SolverSettings")


class Capability(enum.Enum):
    """An ability that only some solvers have; its value completes "solvers that ..."."""

    TRAINING_WEIGHTS = "keep the training rows and know the weights of each of them"
    LEAVE_ONE_OUT = "compute leave-one-out residuals"
    UPPER_BOUND = "give standard deviations that are never below the exact ones"
    JOINT_COVARIANCE = "know the joint covariance of several queries"
    SAMPLED_VARIANCE = "estimate standard deviations from posterior samples"
    SPARSE_FEATURES = "take a sparse Z"
    ANY_KERNEL = "take Gram matrices and functions of objects"
    FLOAT32 = "compute in float32"
    STREAM = "fit rows that come in chunks"
    FILES = "fit rows of memory maps and files, which are not in memory"
    ADD_ROWS = "add rows to a fitted model"
    WEIGHT_TERMS = "take weights with priors of their own"
    SPARSE_WEIGHT_TERMS = "take weights with priors of their own for a sparse Z"
    LIKELIHOODS = "take classes, counts and outliers, whose noise is not Gaussian"


def capability_error(kind: type, capability: Capability) -> SolverUnavailable:
    """Return the error of a class that lacks a capability.

    Users meet `registry.require` first, which names the solvers that have the capability.
    """
    return SolverUnavailable(
        f"{kind.__name__} is not among the posteriors that {capability.value}."
    )


@dataclass(frozen=True)
class SolverOptions:
    """A user's checked options that concern solvers.

    `rank`, `n_basis`, `n_neighbors` and `n_shared` are None for "auto"; the other options keep the
    text "auto". `dtype` is "auto", "float64" or "float32". `search_rows` is "auto", "all" or a
    number of rows, or None if hyperparameters are not estimated at all. `inducing_points` is the
    name of a method or the user's own points.
    """

    solver: str = "auto"
    dtype: str = "auto"
    rank: int | None = None
    n_inducing: int = 1000
    n_basis: int | None = None
    inducing_points: Any = "rpcholesky"
    optimize_inducing: bool | str = "auto"
    search_rows: int | str | None = "auto"
    n_neighbors: int | None = None
    n_shared: int | None = None

    @property
    def searched(self) -> bool:
        """Return whether hyperparameters are estimated."""
        return self.search_rows is not None


class SolverSettings(abc.ABC):
    """The part of a plan that only one solver knows, such as a rank or a number of points."""

    @abc.abstractmethod
    def must_fit(self, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless a fit to such inputs can have had these settings."""


@stored
@dataclass(frozen=True)
class Candidate:
    """A solver that was considered for a fit, with what a fit would take, and the verdict.

    Attributes
    ----------
    solver : str
        The name of the solver.
    dtype : str
        Its precision, "float64" or "float32".
    seconds : float or None
        The predicted seconds of the fit. They are None if it cannot be planned, or if they are not
        known before the length scales are.
    bytes_needed : int or None
        The memory that the fit takes, None if it cannot be planned.
    verdict : str
        The reason why it was taken or not.
    """

    solver: str
    dtype: str
    seconds: float | None
    bytes_needed: int | None
    verdict: str

    def __str__(self) -> str:
        memory = "" if self.bytes_needed is None else f"{format_bytes(self.bytes_needed)}, "
        time = "" if self.seconds is None else f"{format_seconds(self.seconds)}, "
        return f"{self.solver} ({self.dtype}): {time}{memory}{self.verdict}"


@stored
@dataclass(frozen=True)
class Plan:
    """A plan of a fit: the solver, its precision, and the time and memory that it needs.

    It is made before anything is allocated, by `make_plan` or `GPXRegressor.plan`. Printing it
    shows the reasons for every choice.

    Attributes
    ----------
    n : int
        The number of rows.
    p : int
        The number of columns of X.
    d : int
        The number of columns of Z, or the entries per row of a sparse Z.
    solver : str
        The name of the solver.
    dtype : type
        The type of the largest arrays, `numpy.float64` or `numpy.float32`.
    n_jobs : int
        The number of threads.
    bytes_needed : int
        The memory that the fit takes.
    memory_limit : int
        The memory that the fit may take, in bytes.
    reasons : list of str
        The reasons for the choices, as sentences.
    subset : int
        The number of rows that the search for hyperparameters starts from.
    stream : bool
        Whether rows come in chunks and are not kept.
    needs_length_scales : bool
        Whether the plan is a first one: length scales are found on the subset, then the fit is
        planned again.
    settings : SolverSettings or None
        The solver's own settings, such as a rank or a number of points.
    d_is_per_row : bool
        Whether `d` counts the entries per row of a sparse Z and not its columns.
    seconds : float or None
        The predicted time of the fit, None if it is not known before the length scales are.
    candidates : tuple of Candidate
        The solvers that "auto" considered, and why each was taken or not.
    search_rows : int, str or None
        The rows on which hyperparameters are searched, as the user asked for; None if they are not
        searched.
    weight_kernels : int
        The number of kernels of weights that have priors of their own, 0 if they share their prior.
    latent_functions : int
        The number of latent functions that are found by Newton's method, one for each class if
        there are more than two. It is 0 for Gaussian noise.

    Examples
    --------
    >>> import gpx_scale
    >>> plan = gpx_scale.make_plan(40_000, 10, 10, memory_limit="3GiB", n_jobs=2)
    >>> plan.solver, plan.subset
    ('cg', 5000)
    >>> plan.bytes_needed < 3 * 2**30
    True
    """

    n: int
    p: int
    d: int
    solver: str
    dtype: type
    n_jobs: int
    bytes_needed: int
    memory_limit: int
    reasons: list[str] = field(default_factory=list)
    subset: int = 0
    stream: bool = False
    needs_length_scales: bool = False
    settings: SolverSettings | None = None
    d_is_per_row: bool = False
    seconds: float | None = None
    candidates: tuple[Candidate, ...] = ()
    search_rows: int | str | None = "auto"
    weight_kernels: int = 0
    latent_functions: int = 0

    def __str__(self) -> str:
        per_row = " per row" if self.d_is_per_row else ""
        sizes = f"n = {self.n}, p = {self.p}, d = {self.d}{per_row}"
        precision = np.dtype(self.dtype).name
        memory = f"{format_bytes(self.bytes_needed)} of {format_bytes(self.memory_limit)}"
        threads = counted(self.n_jobs, "thread")
        time = "" if self.seconds is None else f", {format_seconds(self.seconds)}"
        head = f"{sizes}: solver {self.solver!r}, {precision}, {threads}, {memory}{time}"
        considered = ["  Considered were:"] if self.candidates else []
        considered += [f"    {candidate}" for candidate in self.candidates]
        return "\n".join([head, *(f"  {reason}" for reason in self.reasons), *considered])

    def settings_of(self, kind: type[Settings]) -> Settings:
        """Return the solver's own settings, which are known to be of this class."""
        assert isinstance(self.settings, kind)
        return self.settings


@dataclass(frozen=True)
class Problem:
    """The sizes and kinds of data and kernel from which a fit is planned.

    It has no value of X, y or Z.

    Attributes
    ----------
    n, p, d : int
        The numbers of rows, of columns of X, and of columns of Z (of a sparse Z, entries per row).
    memory_limit : int
        The memory that the fit may take, in bytes.
    n_jobs : int
        The number of threads.
    options : SolverOptions
        The user's options.
    stream : bool
        Whether rows come in chunks and are not kept.
    indexed : bool
        Whether the rows of a stream can be read by their numbers, as those of files.
    weight_kernels : int
        The number of kernels of x that weights with priors of their own have, 0 if all weights
        share their prior.
    sparse_terms : bool
        Whether weights of a sparse Z have priors of their own; then d counts all columns of Z.
    own_curves : bool
        Whether weights have kernels that read a single column of X, as those of additive models.
    latent_functions : int
        The number of latent functions that Newton's method finds, 0 for Gaussian noise.
    gram : bool
        Whether the kernel is a given matrix, or a function whose matrix is kept.
    pair_density : float or None
        The share of nonzero entries of ZZ^T, for a sparse Z whose kernel is a function of distance
        alone.
    resolution : InputResolution or None
        The smoothness of the kernel and the range of x. It is None where X or Z is sparse, or
        where the kernel does not take vectors.
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
    indexed: bool = False
    weight_kernels: int = 0
    own_curves: bool = False
    sparse_terms: bool = False
    latent_functions: int = 0

    @property
    def weight_terms(self) -> bool:
        """Return whether weights have priors of their own."""
        return self.weight_kernels > 0

    @property
    def is_latent(self) -> bool:
        """Return whether the noise is not Gaussian, so that Newton's method finds f."""
        return self.latent_functions > 0

    @property
    def asked(self) -> bool:
        """Return whether the user named a solver."""
        return self.options.solver != "auto"

    def exact_bytes(self, n: int, itemsize: int = 8, gram: bool = False) -> int:
        """Return the memory of the exact solver on n rows.

        It has the packed tiles, the Gram matrix if there is one, the rows, partial sums of products
        with C, the tiles that workers use while C is formed or inverted, and what priors of the
        weights' own take.
        """
        forming = self.n_jobs * 4 * 8 * min(n, TILE_ROWS) * min(n, 4 * TILE_ROWS)
        partial_sums = 8 * n * PARTIAL_SUMS * (itemsize == 4)
        # Newton's method keeps S, inverts a copy, and has a factor for each latent function.
        newton = 8 * longest_buffer(n) * (1 + self.latent_functions) * self.is_latent
        return (
            itemsize * longest_buffer(n)
            + self.weight_bytes(n)
            + newton
            + 8 * n * n * gram
            + 8 * n * (4 * (self.p + 2) + 3 * self.d + 10)
            + partial_sums
            + forming
        )

    def weight_bytes(self, n: int) -> int:
        """Return the memory that priors of the weights' own take on n rows, 0 without them.

        It has scaled features, the points of each kernel, and a factor of some rows for tests.
        """
        tests = 8 * longest_buffer(min(n, WEIGHT_TEST_ROWS)) * self.weight_terms
        points = 8 * n * (3 * self.p + 4) * self.weight_kernels
        return tests + points + 8 * n * 6 * self.d * self.weight_terms

    def held_bytes(self) -> int:
        """Return the memory of the rows, which is 0 where they come in chunks."""
        return 8 * (self.p + 2 * self.d + 4) * (0 if self.stream else self.n)

    def require(self, bytes_needed: int, what: str, instead: str = "fewer rows") -> None:
        """Raise a MemoryLimitError if more than the memory limit is needed.

        `what` names what needs the memory, and `instead` is what the error advises to try.
        """
        within(int(bytes_needed), self.memory_limit, what, instead)

    def planned(
        self,
        solver: str,
        dtype: type,
        bytes_needed: int,
        reasons: list[str],
        *,
        settings: SolverSettings | None = None,
        subset: int = 0,
        stream: bool = False,
        needs_length_scales: bool = False,
        d_is_per_row: bool = False,
    ) -> Plan:
        """Return the plan of a solver for this problem; the arguments are fields of `Plan`."""
        return Plan(
            n=self.n,
            p=self.p,
            d=self.d,
            solver=solver,
            dtype=dtype,
            n_jobs=self.n_jobs,
            bytes_needed=bytes_needed,
            memory_limit=self.memory_limit,
            reasons=reasons,
            subset=subset,
            stream=stream,
            needs_length_scales=needs_length_scales,
            settings=settings,
            d_is_per_row=d_is_per_row,
            search_rows=self.options.search_rows,
            weight_kernels=self.weight_kernels,
            latent_functions=self.latent_functions,
        )


def accept_columns(X: Any) -> None:
    """Accept an X with any columns: nothing is known about the columns of the training rows."""


@dataclass(frozen=True)
class SolverSetup:
    """The arguments from which a solver is created, apart from its plan.

    `check_columns` raises a ValueError if the names or the number of columns of a user's X differ
    from those of the training rows.
    """

    session: Session
    kernel: Kernel
    options: SolverOptions = SolverOptions()
    preprocessor: Preprocessor | None = None
    check_columns: Callable[[Any], None] = accept_columns


class Solver(abc.ABC):
    """A method that turns rows and hyperparameters into a log marginal likelihood and a posterior.

    Class methods plan a fit in O(1), before anything is allocated. An instance runs one fit.

    Attributes
    ----------
    name, aliases : str, tuple of str
        The names by which a user asks for the solver.
    capabilities : frozenset of Capability
        The abilities that not every solver has.
    posterior_class : type
        The class of the posterior that `condition` returns.
    term_posterior_class : type or None
        The class of the posterior of weights with priors of their own, where it is another one.
    settings_class : type
        The class of `Plan.settings`, `NoneType` for a solver without settings.
    keeps_rows : bool
        Whether the posterior keeps the training rows, and not inducing points or functions.
    has_sums : bool
        Whether an evaluation takes sums over rows that are known, whatever the number of rows is.
    uses_pairs : bool
        Whether planning needs the share of pairs of rows that share a feature of a sparse Z.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    capabilities: ClassVar[frozenset[Capability]]
    posterior_class: ClassVar[type[Posterior[Any]]]
    term_posterior_class: ClassVar[type[Posterior[Any]] | None] = None
    settings_class: ClassVar[type[SolverSettings] | type[None]] = NoneType
    keeps_rows: ClassVar[bool] = False
    has_sums: ClassVar[bool] = False
    uses_pairs: ClassVar[bool] = False

    # Planning.

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        """Raise an error if this solver cannot solve the problem, whatever the memory.

        It is called only if the user asked for this solver.
        """
        if not cls.can_read(problem) and Capability.FILES in cls.capabilities:
            raise InputError(READ_IN_ORDER)
        if not cls.can_read(problem):
            instead = "neighbors" if problem.indexed else "inducing"
            raise InputError(
                f"solver={cls.name!r} needs all rows in memory, and these rows come in chunks. "
                f"Use solver={instead!r}, or solver='basis' if X has few columns."
            )

    @classmethod
    def reason_against(cls, problem: Problem) -> str | None:
        """Return the reason why "auto" does not consider this solver, None if it does.

        It completes "This solver is not considered: ...".
        """
        if cls.can_read(problem):
            return None
        reads_files = Capability.FILES in cls.capabilities
        return "it reads single rows at random" if reads_files else "it needs all rows in memory"

    @classmethod
    def can_read(cls, problem: Problem) -> bool:
        """Return whether the rows are where this solver can read them."""
        can_index = problem.indexed and Capability.FILES in cls.capabilities
        return not problem.stream or can_index or Capability.STREAM in cls.capabilities

    @classmethod
    def variants(cls, problem: Problem) -> list[Problem]:
        """Return the problem with each precision that "auto" considers, the best one first."""
        return [problem]

    @classmethod
    def is_as_exact(cls, problem: Problem) -> bool:
        """Return whether results are as exact as those of the exact solver, for this problem.

        "auto" then takes this solver if it is much faster, even if the exact one is fast enough.
        """
        return False

    @classmethod
    @abc.abstractmethod
    def plan(cls, problem: Problem) -> Plan:
        """Return the plan for a problem, or raise a MemoryLimitError."""

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return whether "auto" tries the next solver if this one needs too much memory."""
        return True

    @classmethod
    @abc.abstractmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float | None:
        """Return the predicted time of a fit at the rates of all of its threads.

        It is None if the time depends on length scales that are not known yet.
        """

    @classmethod
    def must_have_planned(cls, plan: Plan, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless a fit by this solver can have ended with this plan."""
        counts = plan.p, plan.subset, plan.bytes_needed, plan.weight_kernels, plan.latent_functions
        sizes = plan.n, plan.d, plan.n_jobs, plan.memory_limit
        must(min(counts) >= 0 and min(sizes) >= 1, "a count of its plan is out of range")
        must(plan.dtype in (np.float32, np.float64), "its plan is neither in float32 nor float64")
        must(not plan.needs_length_scales, "its plan is not complete")
        own = type(plan.settings) is cls.settings_class
        must(own, "its plan has settings of another solver")
        if isinstance(plan.settings, SolverSettings):
            plan.settings.must_fit(preprocessor)

    # Fitting.

    @classmethod
    @abc.abstractmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None) -> Self:
        """Return a solver for a plan.

        If a `known` posterior of this solver is given, its inducing points, functions or grid are
        used again.
        """

    @abc.abstractmethod
    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the log marginal likelihood, or a lower bound of it.

        The gradient and the average information come with it if they are asked for.
        """

    @abc.abstractmethod
    def search(self, search: Search) -> Optimum:
        """Return the hyperparameters that maximise the marginal likelihood times their prior."""

    def condition_each(
        self, rows: RowSource, hyperparameters: Hyperparameters
    ) -> Sequence[Posterior[Any]]:
        """Return the posteriors of all latent functions: one, unless there are several classes."""
        return [self.condition(rows, hyperparameters)]

    @abc.abstractmethod
    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> Posterior[Any]:
        """Return the posterior of the weights given all rows, at these hyperparameters.

        It is in standardised units. It may take over the solver's memory, so the solver must not be
        used afterwards.
        """

    def carry(self, points: InputRows | None) -> bool:
        """Keep these inducing points; return whether `condition` can be called without a search.

        Solvers without inducing points ignore them and return True.
        """
        return True

    @property
    def carried(self) -> InputRows | None:
        """Return the inducing points for checkpoints and warm starts, None if there are none."""
        return None

    def for_decisions(self, rows: RowSource) -> tuple[Solver, RowSource]:
        """Return a solver and rows with which it is decided which terms weights have.

        They are this solver and all rows, unless several searches would take too many passes.
        """
        return self, rows

    @classmethod
    def fingerprint(cls, plan: Plan, setup: SolverSetup) -> Mapping[str, str | bytes]:
        """Return, by name, the settings that tell searches of this solver apart.

        A checkpoint is used again only if they are the same.
        """
        return {}
