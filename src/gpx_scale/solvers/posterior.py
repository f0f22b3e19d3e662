"""The contract of a posterior p(w(x*), y* | data), and what is the same for every solver.

Everything is in standardised units. A solver provides moments of the latent function g(x*): its
covariance with the data, its mean, and the reduction, by which the data lower its prior variance.
The base class cuts queries into chunks, adds the noise, and checks memory.

Shapes use m for the number of queries, d for the number of weights, and n for training rows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from ..data.features import Features, SparseFeatures, full_pattern
from ..data.inputs import InputRows, Preprocessor, Queries, TrainingRows
from ..data.row_source import MemoryRows, RowSource
from ..errors import SolverUnavailable
from ..model.hyperparameters import Hyperparameters
from ..model.term import VARYING
from ..model.weight_prior import CrossCovariance
from ..runtime.parallel import slices
from ..runtime.session import Session
from .contract import Capability, Plan, capability_error
from .sparse_weights import Entries, EntryReduction, entry_moments

# A chunk has at least this many right-hand sides if memory allows: BLAS needs no more to be fast.
CHUNK_RIGHT_HAND_SIDES = 512
# Up to this size, the allocator reuses the same pages from chunk to chunk.
CHUNK_BYTES = 2**26
# Without sigma_w, no variance is below this share of k(x*, x*). It is the difference of two numbers
# of about this size, which rounding makes uncertain by about n eps of them: 1e-12 for n = 5,000.
LEAST_SURFACE_SHARE = 1e-12

# The covariance between g(x*) and the data, in the form that a solver works with.
Cross = TypeVar("Cross")


class RowStatistics(Protocol):
    """Sums over rows, to which the sums over other rows are added in place by `+=`."""

    def __iadd__(self, other: Self, /) -> Self:
        """Add the sums over other rows in place."""


@dataclass(frozen=True)
class MomentRequest:
    """The moments that are asked of a posterior; what is not asked for is not computed.

    Attributes
    ----------
    variance : bool
        Whether to compute the variance of each weight.
    covariance : bool
        Whether to compute the covariance (d, d) of all weights of a query.
    all_features : bool
        Whether moments of a sparse Z are at all features, and not at the entries of the queries.
    along : sequence of Features of shape (m, d)
        Vectors a; the variances of a . w(x*) are computed for each of them.
    method : {"default", "bound", "samples"}
        The method for variances: the solver's own, upper bounds that are fast for many queries, or
        posterior samples.
    mean : bool
        Whether to compute the mean of each weight.
    surface : bool
        Whether variances and covariances are those of g(x*), without the noise sigma_w^2 of the
        weights w(x*) around it.
    part : {"constant", "own", "varying"} or None
        The part of the weights whose moments are computed; None means the weights themselves.
    """

    variance: bool = False
    covariance: bool = False
    all_features: bool = False
    along: Sequence[Features] = ()
    method: Literal["default", "bound", "samples"] = "default"
    mean: bool = True
    surface: bool = False
    part: str | None = None

    def __getitem__(self, queries: slice) -> MomentRequest:
        """Return the request for some of the queries."""
        return replace(self, along=[A[queries] for A in self.along])


@dataclass(frozen=True)
class Moments:
    """The moments of each query's weights; what was not asked for is None, or empty.

    Attributes
    ----------
    mean, variance : ndarray of shape (m, d), or None
        At the entries of sparse queries, the shape is (entries,).
    covariance : ndarray of shape (m, d, d), or None
        The covariance of the weights of each query.
    along : list of ndarray of shape (m,)
        The variances of a . w(x*), one array for each vector field of the request.
    """

    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    covariance: np.ndarray | None = None
    along: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def joined(cls, pieces: Sequence[Moments]) -> Moments:
        """Return the moments of all queries from those of consecutive chunks."""

        def together(name: str) -> np.ndarray | None:
            parts = [getattr(piece, name) for piece in pieces]
            return None if parts[0] is None else np.concatenate(parts)

        along = [
            np.concatenate(column)
            for column in zip(*(piece.along for piece in pieces), strict=True)
        ]
        return cls(together("mean"), together("variance"), together("covariance"), along)

    def reshaped(self, shape: tuple[int, int]) -> Moments:
        """Return the moments at every entry of a full pattern in the shape (m, d)."""
        assert self.mean is not None
        variance = None if self.variance is None else self.variance.reshape(shape)
        return replace(self, mean=self.mean.reshape(shape), variance=variance)


@dataclass(frozen=True)
class PriorVariance:
    """The prior variance of the weights of m queries, of which the data reduce one part.

    Data say something about the noise sigma_w^2 of a training row's own weights, so it belongs to
    the part that they reduce; they say nothing about that of other rows, so it is added afterwards.

    Attributes
    ----------
    reducible : ndarray of shape (m,) or (m, d)
        The variance that the data reduce. It has columns where each weight has its own prior.
    added : float
        The variance that is added afterwards.
    least : ndarray of shape (m,) or (m, d)
        The least variance that the data can leave.
    """

    reducible: np.ndarray
    added: float
    least: np.ndarray

    @classmethod
    def of(
        cls,
        hyperparameters: Hyperparameters,
        x: Any,
        own: bool,
        surface: bool,
        part: str | None = None,
    ) -> PriorVariance:
        """Return the prior variance of new rows, or of training rows' own weights;  O(m).

        Of the `surface` g(x*), nothing is added. With a `part`, it is that of one part of the
        weights; the noise belongs to the varying part.
        """
        prior = hyperparameters.weight_prior
        variance = prior.variance(x) if part is None else prior.variance_of_part(part, x)
        return cls._with_noise(variance, prior.sigma_w, own, surface, part)

    @classmethod
    def at_entries(
        cls,
        hyperparameters: Hyperparameters,
        x: Any,
        own: bool,
        surface: bool,
        part: str | None,
        pattern: SparseFeatures,
    ) -> PriorVariance:
        """Return that of the weights at the entries of a sparse pattern;  O(entries)."""
        prior = hyperparameters.weight_prior
        variance = prior.variance_at(x, pattern, part)
        return cls._with_noise(variance, prior.sigma_w, own, surface, part)

    @classmethod
    def _with_noise(
        cls, variance: np.ndarray, sigma_w: float, own: bool, surface: bool, part: str | None
    ) -> PriorVariance:
        """Return the prior variance from that of the surface."""
        share = LEAST_SURFACE_SHARE if surface else 0.0
        noise = sigma_w**2 if part in (None, VARYING) else 0.0
        added = 0.0 if own or surface else noise
        return cls(variance + noise if own else variance, added, share * variance)

    def minus(self, reduced: np.ndarray) -> np.ndarray:
        """Return variances of weights from their reductions;  (m, d) -> (m, d)."""
        left = np.maximum(_by_weight(self.reducible) - reduced, _by_weight(self.least))
        return np.asarray(left + self.added)

    def along(self, A: Features, reduced: np.ndarray) -> np.ndarray:
        """Return variances along vectors a from their reductions;  (m, d), (m,) -> (m,)."""
        size = A.squared_norms()
        if self.reducible.ndim == 1:
            known, least = self.reducible * size, self.least * size
        else:
            squares = np.square(A.to_dense())
            known, least = (
                (squares * self.reducible).sum(axis=1),
                (squares * self.least).sum(axis=1),
            )
        left = np.maximum(known - reduced, least)
        return np.asarray(left + self.added * size)


def _by_weight(variance: np.ndarray) -> np.ndarray:
    """Return variances with a column for each weight, or one for all;  (m, d) or (m, 1)."""
    return variance[:, None] if variance.ndim == 1 else variance


@dataclass(frozen=True)
class Diagnostics:
    """The figures that a posterior gives to the report of a fit.

    Attributes
    ----------
    log_evidence : float
        The log marginal likelihood in nats, in standardised units.
    standard_error : float
        Its standard error, 0 where it is exact.
    jitter : float
        The jitter that was added, relative to the diagonal.
    condition_number : float
        A lower bound of the condition number, NaN where it is not known.
    solution : str
        A description of how the linear system was solved.
    variances : str
        A description of how variances are computed.
    dtype : type or None
        The precision of the Cholesky factor, where it may differ from that of the plan.
    """

    log_evidence: float
    standard_error: float = 0.0
    jitter: float = 0.0
    condition_number: float = float("nan")
    solution: str = ""
    variances: str = "exact"
    dtype: type | None = None


@dataclass(frozen=True)
class Posterior(abc.ABC, Generic[Cross]):
    """The posterior p(w(x*), y* | data) of a fitted model.

    `Cross` is the type of the covariance between g(x*) and the data: a `CrossCovariance`, or the
    functions of a basis at the queries. `x` is always the queries' input as the kernel takes it.
    """

    hyperparameters: Hyperparameters

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    # The number of posterior samples from which `sampled_variance` estimates variances.
    sampled_paths: ClassVar[int] = 0

    # Every solver implements these.

    @property
    @abc.abstractmethod
    def d(self) -> int:
        """Return the number of weights."""

    @property
    @abc.abstractmethod
    def n_rows(self) -> int:
        """Return the number of training rows."""

    @property
    @abc.abstractmethod
    def diagnostics(self) -> Diagnostics:
        """Return what the report of a fit says about this posterior."""

    @property
    @abc.abstractmethod
    def bytes_per_query(self) -> int:
        """Return the working memory of one right-hand side of one query."""

    @abc.abstractmethod
    def joint_bytes(self, m: int) -> int:
        """Return the memory that the joint covariance of m queries takes."""

    @abc.abstractmethod
    def draw_bytes(self, m: int, count: int) -> int:
        """Return the memory that `count` joint draws at m queries take."""

    @abc.abstractmethod
    def cross(self, x: Any, session: Session, own: slice | None = None) -> Cross:
        """Return the covariance between g(x*) and the data.

        If the queries are training rows that ask for their own weights, `own` says which rows they
        are, and the noise sigma_w^2 of these weights is part of the covariance.
        """

    @abc.abstractmethod
    def mean(
        self, x: Any, cross: Cross | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        """Return E[w(x*)];  (m, d).  `cross` is that of these queries if it is known already."""

    @abc.abstractmethod
    def reduction(self, cross: Cross, request: MomentRequest, session: Session) -> Moments:
        """Return prior minus posterior variances and covariances of g(x*), as asked for.

        Variances are (m, d), covariances (m, d, d), and variances along vectors (m,) each.
        """

    @abc.abstractmethod
    def joint_reduction(self, cross: Cross, A: Features, session: Session) -> np.ndarray:
        """Return prior minus posterior covariance of a_i . g(x_i*) between all queries.

        A has the vectors a_i;  (m, d) -> (m, m).
        """

    @abc.abstractmethod
    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count)."""

    @abc.abstractmethod
    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        """Raise a ValueError that says what does not fit, unless a fit by this plan can end so.

        It is called on a posterior that was read from a file, whose hyperparameters and plan were
        checked before. Compiled loops rely on the sizes of arrays that are checked here.
        """

    # Only some solvers implement these; `capabilities` says which.

    @property
    def training_rows(self) -> TrainingRows | None:
        """Return the training rows, or None where inducing points or functions replace them."""
        return None

    @property
    def row_source(self) -> RowSource | None:
        """Return the training rows, wherever they are, or None if they are not kept."""
        rows = self.training_rows
        return None if rows is None else MemoryRows(rows)

    def local(self) -> Self:
        """Return a posterior that needs no cluster: this one, or one with the rows in memory."""
        return self

    def can_evaluate(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether log p(y) at other hyperparameters follows from this posterior alone.

        Otherwise the training rows are needed again.
        """
        return self.row_source is not None

    def leave_one_out(self, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return y_i minus its prediction from all other rows, and its deviations;  (n,), (n,)."""
        raise capability_error(type(self), Capability.LEAVE_ONE_OUT)

    def entry_mean_and_reduction(
        self,
        entries: Entries,
        reduction: EntryReduction | None,
        session: Session,
        part: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return E[w_l(x*)] and the reduction of its variance at entries of a sparse Z.

        Both are (entries,), and those of a `part` of the weights if it is given. Without
        `reduction`, the second one is 0.
        """
        raise capability_error(type(self), Capability.SPARSE_FEATURES)

    def cross_of_part(self, cross: Cross | None, part: str) -> Cross:
        """Return the covariance of one part of the weights with the data.

        `cross` is that of the weights.
        """
        raise capability_error(type(self), Capability.WEIGHT_TERMS)

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        """Return the method that reduces variances at `entries` entries of a sparse Z."""
        raise capability_error(type(self), Capability.SPARSE_FEATURES)

    def upper_bound_variance(self, x: Any, session: Session) -> np.ndarray | None:
        """Return upper bounds of Var[g_l(x*)], which are fast for many queries;  (m, d).

        It is None where the ordinary variances are upper bounds already.
        """
        return None

    def sampled_variance(
        self, x: Any, along: Sequence[Features], session: Session
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return Var[g_l(x*)] (m, d) and Var[a . g(x*)] (m,) for each `along`, from samples.

        They are inflated so that few of them are below the exact variances.
        """
        raise capability_error(type(self), Capability.SAMPLED_VARIANCE)

    def row_weights(
        self, query: Queries, session: Session
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of the rows that E[y*] of one query rests on, their weights, and y.

        E[y*] is the sum of the weights C^-1 b times y;  (r,), (r,), (r,).
        """
        raise capability_error(type(self), Capability.TRAINING_WEIGHTS)

    def statistics_task(self) -> Callable[[TrainingRows], RowStatistics]:
        """Return a function that maps a block of new rows to its statistics.

        The sum of its results over all blocks is the argument of `with_statistics`.
        """
        raise capability_error(type(self), Capability.ADD_ROWS)

    def with_statistics(self, more: RowStatistics, session: Session) -> Posterior[Cross]:
        """Return the posterior with new rows added, from the sum of their statistics."""
        raise capability_error(type(self), Capability.ADD_ROWS)

    # All solvers share these.

    def moments(self, queries: Queries, request: MomentRequest, session: Session) -> Moments:
        """Return the moments of the weights of each query.

        Variances contain the noise sigma_w^2, unless those of the surface are asked for.
        """
        sparse = queries.Z.is_sparse
        if request.method == "bound" and Capability.UPPER_BOUND not in self.capabilities:
            raise capability_error(type(self), Capability.UPPER_BOUND)
        if request.method == "samples":
            if sparse:
                raise SolverUnavailable(
                    "Standard deviations from samples need a dense Z. "
                    "Give std=True for a sparse one."
                )
            return self._sampled_moments(queries, request, session)
        if sparse and not request.covariance:
            pattern = full_pattern(queries.Z.shape) if request.all_features else queries.Z
            assert isinstance(pattern, SparseFeatures)
            found = self._entry_moments(Entries(queries.x, pattern, queries.own), request, session)
            return found.reshaped(queries.Z.shape) if request.all_features else found
        if request.method == "bound" and request.variance:
            return self._bounded_moments(queries, request, session)
        return self._dense_moments(queries.x, request, session, queries.own)

    def _dense_moments(
        self, x: Any, request: MomentRequest, session: Session, own: bool = False
    ) -> Moments:
        """Return moments of all weights of each query, chunk by chunk."""
        sides = (self.d if request.variance or request.covariance else 0) + len(request.along)
        pieces = []
        session.journal.passed(0, len(x))
        for i in self._chunks(len(x), sides, session):
            pieces.append(self._chunk(x[i], request[i], session, i if own else None))
            session.journal.passed(i.stop, len(x))
        return Moments.joined(pieces)

    def _entry_moments(self, entries: Entries, request: MomentRequest, session: Session) -> Moments:
        """Return moments at the entries of a sparse pattern, feature by feature;  (entries,)."""
        x, own = entries.x, entries.own
        count = entries.pattern.entry_rows.size
        reduction = self.entry_reduction(count, session) if request.variance else None
        part = request.part
        mean, reduced = self.entry_mean_and_reduction(entries, reduction, session, part)
        variance = None
        if request.variance:
            given = self.hyperparameters, x, own, request.surface, part
            variance = PriorVariance.at_entries(*given, entries.pattern).minus(reduced[:, None])
            variance = variance[:, 0]
        if not request.along:
            return Moments(mean, variance)
        along = MomentRequest(along=request.along, mean=False, surface=request.surface)
        sums = self._dense_moments(x, along, session, own)
        return replace(sums, mean=mean, variance=variance)

    def _chunks(self, m: int, sides: int, session: Session) -> list[slice]:
        """Return slices that cut m queries with `sides` right-hand sides each into chunks."""
        each = self.bytes_per_query
        usual = max(CHUNK_RIGHT_HAND_SIDES, CHUNK_BYTES // each)
        at_once = min(session.chunk_bytes // each, usual)
        return slices(m, max(1, at_once // max(1, sides)))

    def _bounded_moments(
        self, queries: Queries, request: MomentRequest, session: Session
    ) -> Moments:
        """Return upper bounds of the weights' variances; variances along vectors stay exact."""
        bound = self.upper_bound_variance(queries.x, session)
        if bound is None:
            return self._dense_moments(queries.x, request, session)
        exact = self._dense_moments(queries.x, replace(request, variance=False), session)
        return replace(exact, variance=bound + self.hyperparameters.sigma_w**2)

    def _chunk(
        self, x: Any, request: MomentRequest, session: Session, own: slice | None
    ) -> Moments:
        """Return moments of one chunk of queries; `own` is as in `cross`."""
        asked = request.variance or request.covariance or bool(request.along)
        cross = self.cross(x, session, own) if asked or request.part else None
        if request.part is not None:
            cross = self.cross_of_part(cross, request.part)
        mean = self.mean(x, cross, session, own) if request.mean else np.empty((len(x), 0))
        if not asked or cross is None:
            return Moments(mean)
        is_own, hyperparameters = own is not None, self.hyperparameters
        prior = PriorVariance.of(hyperparameters, x, is_own, request.surface, request.part)
        # Vectors of zeros are common, as the usual baseline is 0. They need no solve.
        moving = [A for A in request.along if A.squared_norms().any()]
        reduced = self.reduction(cross, replace(request, along=moving), session)
        return self.moments_of(mean, reduced, request, prior)

    def moments_of(
        self,
        mean: np.ndarray,
        reduced: Moments,
        request: MomentRequest,
        prior: PriorVariance,
    ) -> Moments:
        """Return moments from the mean, the reductions and the prior variances.

        The reductions along vectors leave out vector fields that are 0 everywhere.
        """
        variance = covariance = None
        if request.covariance:
            assert reduced.covariance is not None
            d = reduced.covariance.shape[1]
            covariance = _by_weight(prior.reducible)[:, :, None] * np.eye(d) - reduced.covariance
            diagonal = np.einsum("ijj->ij", covariance)
            diagonal[...] = np.maximum(diagonal, _by_weight(prior.least)) + prior.added
        if request.variance:
            assert reduced.variance is not None
            variance = prior.minus(reduced.variance)
        less, sums = iter(reduced.along), []
        for A in request.along:
            size = A.squared_norms()
            sums.append(prior.along(A, next(less)) if size.any() else np.zeros_like(size))
        return Moments(mean, variance, covariance, sums)

    def _sampled_moments(
        self, queries: Queries, request: MomentRequest, session: Session
    ) -> Moments:
        """Return variances from posterior samples, inflated so that few are too small."""
        paths = self.sampled_paths
        session.require(self.draw_bytes(1, paths), "solving for posterior samples")
        x = queries.x
        exact = self._dense_moments(x, MomentRequest(), session)
        row = 2 * self.bytes_per_query + 24 * paths * self.d
        cuts = slices(len(x), max(1, session.chunk_bytes // row))
        pieces = [self.sampled_variance(x[i], [A[i] for A in request.along], session) for i in cuts]
        own_variance = self.hyperparameters.sigma_w**2
        sums = [
            np.concatenate(column) for column in zip(*(piece[1] for piece in pieces), strict=True)
        ]
        return replace(
            exact,
            variance=np.concatenate([piece[0] for piece in pieces]) + own_variance
            if request.variance
            else None,
            along=[
                s + own_variance * A.squared_norms()
                for s, A in zip(sums, request.along, strict=True)
            ],
        )

    def jointly(self, queries: Queries, session: Session) -> Posterior[Any]:
        """Return a posterior in which a few queries have a joint distribution.

        It is this one. Where each query is conditioned on rows of its own, it is the posterior
        given the union of these rows.
        """
        return self

    def joint_covariance(self, queries: Queries, session: Session) -> np.ndarray:
        """Return the covariance of new y between all queries, with noise;  (m, m)."""
        joint = self.joint_surface(queries, session)
        joint[np.diag_indices(len(joint))] += self.hyperparameters.noise_of_new(queries.Z)
        return joint

    def joint_surface(self, queries: Queries, session: Session) -> np.ndarray:
        """Return the covariance of z*.g(x*) between all queries, without noise;  (m, m)."""
        m, A = len(queries), queries.Z
        session.require(self.joint_bytes(m), f"the joint covariance of {m} queries")
        cross = self.cross(queries.x, session)
        prior = self.hyperparameters.weight_prior.joint(queries.x, A, session)
        joint: np.ndarray = prior - self.joint_reduction(cross, A, session)
        at = np.diag_indices(m)
        joint[at] = np.maximum(joint[at], 0.0)
        return joint

    def sample_weights(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count)."""
        m = len(queries)
        session.require(self.draw_bytes(m, count), f"sampling {m} queries jointly")
        return self.draw(queries.x, count, random, session)

    def sample_y(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of new y;  (m, count).

        They are the draws of `sample_weights` with the same random state, times Z, plus noise.
        """
        W = self.sample_weights(queries, count, random, session)
        f = np.empty((len(queries), count))
        for s in range(count):
            f[:, s] = queries.Z.row_dots(W[:, :, s])
        return self.hyperparameters.likelihood.draw(f, random)


@dataclass(frozen=True)
class KernelPosterior(Posterior[CrossCovariance]):
    """A posterior whose mean is a sum of kernels, E[w*] = k(x*, X) diag(coefficients) Z.

    X and Z are those of the `support`. It is either the training rows, with coefficients
    alpha = C^-1 y, or the inducing points, with coefficients of their own.
    """

    support: InputRows
    coefficients: np.ndarray

    def __len__(self) -> int:
        return len(self.support)

    @property
    def d(self) -> int:
        count: int = self.support.Z.shape[1]
        return count

    @property
    def n_rows(self) -> int:
        return len(self.support)

    def cross(self, x: Any, session: Session, own: slice | None = None) -> CrossCovariance:
        return self.hyperparameters.weight_prior.cross(x, self.support, session, own)

    def cross_of_part(self, cross: CrossCovariance | None, part: str) -> CrossCovariance:
        assert cross is not None
        return cross.of_part(part)

    def mean(
        self, x: Any, cross: CrossCovariance | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        return (self.cross(x, session, own) if cross is None else cross).weights(
            self.coefficients, session
        )

    def entry_mean_and_reduction(
        self,
        entries: Entries,
        reduction: EntryReduction | None,
        session: Session,
        part: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        return entry_moments(
            self.hyperparameters.weight_prior,
            self.support,
            self.coefficients,
            entries,
            reduction,
            session,
            part,
        )


def symmetric_part(A: np.ndarray) -> np.ndarray:
    """Return (A + A^T) / 2, over the last two axes;  (..., m, m) -> (..., m, m)."""
    symmetric: np.ndarray = 0.5 * (A + np.swapaxes(A, -1, -2))
    return symmetric
