"""p(w(x*), y* | data): what every solver's posterior answers, and what is the same for all of them.

Everything is in standardised units. A solver answers for the surface g(x*): the covariance of g with the data, its mean, and
what the data take off its prior variance. The base class cuts queries into chunks, adds the noise, and checks memory.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..data.features import Features, SparseFeatures, full_pattern
from ..data.inputs import Preprocessor, Queries, TrainingRows
from ..errors import SolverUnavailable
from ..model.hyperparameters import Hyperparameters
from ..model.weight_prior import CrossCovariance
from ..runtime.parallel import slices
from ..runtime.session import Session
from .contract import Capability, Plan, capability_error
from .sparse_weights import Entries, EntryReduction, entry_moments

CHUNK_ROWS = 512  # right-hand sides of one chunk at least, if memory allows: enough for BLAS
CHUNK_BYTES_USUAL = 2**26  # The allocator reuses the same pages from chunk to chunk up to here.


@dataclass(frozen=True)
class MomentRequest:
    """What is asked of a posterior, beside the mean of every weight.

    `variance` of each weight and `covariance` (d, d) of all weights of a query; variances of sums
    `along` vectors, each (m, d). Of a sparse Z, moments are at the entries of the queries, unless
    `all_features` are asked for. `method` is how variances are computed: by default, as upper
    bounds for many queries ("bound"), or from posterior samples ("samples").
    """

    variance: bool = False
    covariance: bool = False
    all_features: bool = False
    along: Sequence[Features] = ()
    method: Literal["default", "bound", "samples"] = "default"
    mean: bool = True

    def __getitem__(self, queries: slice) -> MomentRequest:
        """Return the request for some of the queries."""
        return replace(self, along=[A[queries] for A in self.along])


@dataclass(frozen=True)
class Moments:
    """Moments of each query's weights: mean and variance (m, d), covariance (m, d, d), variances along vectors (m,) each.

    At the entries of sparse queries, mean and variance are (entries,). What was not asked for is None, or empty.
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
        """Return moments at every entry of a full pattern as (m, d)."""
        assert self.mean is not None
        variance = None if self.variance is None else self.variance.reshape(shape)
        return replace(self, mean=self.mean.reshape(shape), variance=variance)


@dataclass(frozen=True)
class Diagnostics:
    """What a posterior says of itself in the report of a fit.

    The log marginal likelihood in standardised units and its standard error; jitter, relative to the diagonal; a lower bound
    of the condition number (NaN where it is not known); how the system was solved and how variances are computed, in words.
    """

    log_evidence: float
    standard_error: float = 0.0
    jitter: float = 0.0
    condition_number: float = float("nan")
    solution: str = ""
    variances: str = "exact"


@dataclass(frozen=True)
class Posterior(abc.ABC):
    """p(w(x*), y* | data) of a fitted model, from what a solver has conditioned on the data."""

    hyperparameters: Hyperparameters

    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    # what a solver implements

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
        """Return what the report of a fit says of this posterior."""

    @property
    @abc.abstractmethod
    def bytes_per_query(self) -> int:
        """Return the working memory of one right-hand side of one query."""

    @abc.abstractmethod
    def joint_bytes(self, m: int) -> int:
        """Return the memory that the joint covariance of m queries takes."""

    @abc.abstractmethod
    def draw_bytes(self, m: int, count: int) -> int:
        """Return the memory that joint draws at m queries take."""

    @abc.abstractmethod
    def cross(self, x: Any, session: Session, own: slice | None = None) -> Any:
        """Return the covariance of g(x*) with what is known of the data; slices by queries."""

    @abc.abstractmethod
    def mean(self, x: Any, cross: Any, session: Session, own: slice | None = None) -> np.ndarray:
        """Return E[w*], from `cross` where that is there already;  (m, d)."""

    @abc.abstractmethod
    def reduction(self, cross: Any, request: MomentRequest, session: Session) -> Moments:
        """Return what the data take off the prior variances and covariances of g, as asked."""

    @abc.abstractmethod
    def joint_reduction(self, cross: Any, A: Features, session: Session) -> np.ndarray:
        """Return what they take off the covariance of a_i . g(x_i*) between all queries;  (m, d) -> (m, m)."""

    @abc.abstractmethod
    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count)."""

    @abc.abstractmethod
    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        """Raise a ValueError that says what does not fit, unless a fit by this plan may end so.

        It is asked of a posterior that was read from a file, whose hyperparameters and plan are
        right already. Afterwards the sizes of all arrays are facts, and compiled loops go by them.
        """

    # what only some can

    @property
    def training_rows(self) -> TrainingRows | None:
        """Return the training rows, None where points or functions stand for them."""
        return None

    def can_evaluate(self, hyperparameters: Hyperparameters) -> bool:
        """Return whether the evidence at other hyperparameters follows from the posterior alone, without further rows."""
        return self.training_rows is not None

    def entry_mean_and_reduction(
        self, entries: Entries, reduction: EntryReduction | None, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return E[w_l(x*)], and what the data take off its variance, at entries of a sparse Z;  (entries,) each."""
        raise capability_error(type(self), Capability.SPARSE_FEATURES)

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        """Return what is known of (C^-1)_RR, for that many entries of a sparse Z."""
        raise capability_error(type(self), Capability.SPARSE_FEATURES)

    def upper_bound_variance(self, x: Any, session: Session) -> np.ndarray | None:
        """Return upper bounds of Var[g_l(x*)], (m, d), faster for many queries; None where ordinary variances are bounds."""
        return None

    def sampled_variance(
        self, x: Any, along: Sequence[Features], session: Session
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return Var[g_l(x*)] (m, d), and along vectors (m,), from samples, inflated so as not to be too small."""
        raise capability_error(type(self), Capability.SAMPLED_VARIANCE)

    def statistics_task(self) -> Any:
        """Return the task whose sum over further rows `with_statistics` takes."""
        raise capability_error(type(self), Capability.ADD_ROWS)

    def with_statistics(self, more: Any, session: Session) -> Posterior:
        """Return the posterior after further rows, of which these are the sums."""
        raise capability_error(type(self), Capability.ADD_ROWS)

    # the same for all

    def moments(self, queries: Queries, request: MomentRequest, session: Session) -> Moments:
        """Return moments of the weights of each query, sigma_w included; what is not asked for is not computed."""
        sparse = queries.Z.is_sparse
        if request.method == "bound" and Capability.UPPER_BOUND not in self.capabilities:
            raise capability_error(type(self), Capability.UPPER_BOUND)
        if request.method == "samples":
            if sparse:
                raise SolverUnavailable(
                    "Standard deviations from samples need a dense Z. Give std=True for a sparse one."
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
        sides = (self.d if request.variance or request.covariance else 0) + len(request.along)
        pieces = [
            self._chunk(x[i], request[i], session, i if own else None)
            for i in self._chunks(len(x), sides, session)
        ]
        return Moments.joined(pieces)

    def _entry_moments(self, entries: Entries, request: MomentRequest, session: Session) -> Moments:
        """Return moments at the entries of a sparse pattern, feature by feature."""
        x, own = entries.x, entries.own
        count = entries.pattern.entry_rows.size
        reduction = self.entry_reduction(count, session) if request.variance else None
        mean, reduced = self.entry_mean_and_reduction(entries, reduction, session)
        variance = None
        if request.variance:
            prior, floor = self._prior(x, own)
            variance = np.maximum(prior[entries.pattern.entry_rows] - reduced, 0.0) + floor
        if not request.along:
            return Moments(mean, variance)
        sums = self._dense_moments(x, MomentRequest(along=request.along, mean=False), session, own)
        return replace(sums, mean=mean, variance=variance)

    def _chunks(self, m: int, sides: int, session: Session) -> list[slice]:
        """Return slices of queries with that many right-hand sides each."""
        each = self.bytes_per_query
        at_once = min(session.chunk_bytes // each, max(CHUNK_ROWS, CHUNK_BYTES_USUAL // each))
        return slices(m, max(1, at_once // max(1, sides)))

    def _prior(self, x: Any, own: bool) -> tuple[np.ndarray, float]:
        """Return the prior variance that the data speak of, and what is added after; a row's own noise is in the former."""
        prior = self.hyperparameters.weight_prior
        own_variance = prior.sigma_w**2
        return prior.variance(x) + own * own_variance, (not own) * own_variance

    def _bounded_moments(
        self, queries: Queries, request: MomentRequest, session: Session
    ) -> Moments:
        """Return upper bounds of the weights' variances; sums along vectors stay exact."""
        bound = self.upper_bound_variance(queries.x, session)
        if bound is None:  # ordinary variances are bounds already
            return self._dense_moments(queries.x, request, session)
        exact = self._dense_moments(queries.x, replace(request, variance=False), session)
        return replace(exact, variance=bound + self.hyperparameters.sigma_w**2)

    def _chunk(
        self, x: Any, request: MomentRequest, session: Session, own: slice | None
    ) -> Moments:
        asked = request.variance or request.covariance or bool(request.along)
        cross = self.cross(x, session, own) if asked else None
        mean = self.mean(x, cross, session, own) if request.mean else np.empty((len(x), 0))
        if cross is None:
            return Moments(mean)
        prior, floor = self._prior(x, own is not None)
        moving = [A for A in request.along if A.squared_norms().any()]  # the usual baseline is 0
        reduced = self.reduction(cross, replace(request, along=moving), session)
        variance = covariance = None
        if request.covariance:
            assert reduced.covariance is not None
            covariance = prior[:, None, None] * np.eye(mean.shape[1]) - reduced.covariance
            diagonal = np.einsum("ijj->ij", covariance)
            diagonal[...] = np.maximum(diagonal, 0.0) + floor
        if request.variance:
            assert reduced.variance is not None
            variance = np.maximum(prior[:, None] - reduced.variance, 0.0) + floor
        less, sums = iter(reduced.along), []
        for A in request.along:
            size = A.squared_norms()
            sums.append(
                np.maximum(prior * size - next(less), 0.0) + floor * size
                if size.any()
                else np.zeros_like(size)
            )
        return Moments(mean, variance, covariance, sums)

    def _sampled_moments(
        self, queries: Queries, request: MomentRequest, session: Session
    ) -> Moments:
        """Return variances from paths of the posterior, inflated so that they do not under-report."""
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

    sampled_paths: ClassVar[int] = 0  # Paths that `sampled_variance` takes.

    def joint_covariance(self, queries: Queries, session: Session) -> np.ndarray:
        """Return the covariance of new y, noise included, between all queries;  (m, m)."""
        m, A = len(queries), queries.Z
        session.require(self.joint_bytes(m), f"the joint covariance of {m} queries")
        cross = self.cross(queries.x, session)
        prior = self.hyperparameters.weight_prior.joint(queries.x, A, session)
        joint = prior - self.joint_reduction(cross, A, session)
        at = np.diag_indices(m)
        joint[at] = np.maximum(joint[at], 0.0) + self.hyperparameters.noise(A)
        return joint

    def sample_weights(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count)."""
        session.require(self.draw_bytes(len(x), count), f"sampling {len(x)} queries jointly")
        return self.draw(x, count, random, session)

    def sample_y(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of new y;  (m, count).

        They are those of `sample_weights` with the same random state, times Z, plus noise.
        """
        W = self.sample_weights(queries.x, count, random, session)
        f = np.empty((len(queries), count))
        for s in range(count):
            f[:, s] = queries.Z.row_dots(W[:, :, s])
        return self.hyperparameters.likelihood.draw(f, random)


@dataclass(frozen=True)
class KernelPosterior(Posterior):
    """A posterior whose mean is a sum of kernels: E[w*] = k(x*, X) diag(coefficients) Z over the rows of its `support`.

    The support are the training rows, and the coefficients alpha = C^-1 y; or inducing points, with coefficients of their own.
    """

    support: Any
    coefficients: np.ndarray

    def __len__(self) -> int:
        return len(self.support)

    @property
    def d(self) -> int:
        return self.support.Z.shape[1]

    @property
    def n_rows(self) -> int:
        return len(self.support)

    def cross(self, x: Any, session: Session, own: slice | None = None) -> CrossCovariance:
        return self.hyperparameters.weight_prior.cross(x, self.support, session, own)

    def mean(
        self, x: Any, cross: CrossCovariance | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        return (self.cross(x, session, own) if cross is None else cross).weights(
            self.coefficients, session
        )

    def entry_mean_and_reduction(
        self, entries: Entries, reduction: EntryReduction | None, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        return entry_moments(
            self.hyperparameters.weight_prior,
            self.support,
            self.coefficients,
            entries,
            reduction,
            session,
        )


def symmetric_part(A: np.ndarray) -> np.ndarray:
    """Return (A + A^T) / 2 of the last two axes."""
    return 0.5 * (A + np.swapaxes(A, -1, -2))
