"""The posterior of conjugate gradients.

Means are computed to a tolerance. Variances come from a part of the rows (`LocalVariance`), and
samples from paths, which are draws of whole functions (`PriorPath`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor, Queries, TrainingRows
from ...linalg.conjugate_gradients import solve
from ...linalg.covariance import Covariance, TiledCovariance
from ...linalg.covariance_forms import covariances
from ...linalg.kernel_tiles import PRODUCT_COLUMNS
from ...linalg.pairs import PAIR_BYTES, TERM_PAIR_BYTES, Pairs
from ...linalg.preconditioner import LowRankPreconditioner
from ...model.weight_prior import CrossCovariance, WeightPrior
from ...runtime.parallel import ForkSafeLock, slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_indices, must_be_numbers, stored
from ..contract import Capability, Plan
from ..local_variance import LocalVariance
from ..posterior import Diagnostics, KernelPosterior, MomentRequest, Moments, symmetric_part
from ..sparse_weights import MAX_ROWS_OF_A_FEATURE, EntryReduction, LocalEntryReduction
from .pathwise_sampling import PriorPath, inflation, path_bytes, prior_paths
from .planning import CGSettings
from .variance_calibration import CALIBRATION_ROWS, Asked

# The error of a path's solution may be up to this share of n / 2 nats, which is the energy of a
# path. Then the squared error of the path is about 5e-4 D_i.
PATH_ENERGY_SHARE = 1e-3
# A report says this about variances that are upper bounds.
NEVER_BELOW = "never below exact"
# This many posterior paths are solved together with y.
PATHS = 16
# Standard deviations from samples take this many paths.
SAMPLED_PATHS = 64
# The seeds of a RandomState are below this number.
SEEDS_END = 2**32
# The error of the joint covariance may be up to this share of the noise variance of y.
JOINT_NOISE_SHARE = 1e-4


@stored
@dataclass
class PathBank:
    """A growing store of prior paths g_s and their solutions C^-1 y_s (n, S).

    The lock protects it while paths are added, and is neither copied nor saved.
    """

    paths: list[PriorPath]
    solved: np.ndarray
    lock: ForkSafeLock = field(default_factory=ForkSafeLock, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "solved": self.solved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=ForkSafeLock())

    def __deepcopy__(self, memo: dict[int, Any]) -> PathBank:
        return PathBank(self.paths, self.solved)

    def must_fit(self, n: int, prior: WeightPrior, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless these are paths of a model of n rows, with their solutions."""
        shape = n, len(self.paths)
        must_be_numbers(self.solved, shape, "the solutions of the posterior paths")
        for path in self.paths:
            path.must_fit(prior, preprocessor)


@stored
@dataclass(frozen=True)
class CGPosterior(KernelPosterior):
    """The posterior of conjugate gradients, with variances that are never too small.

    Attributes
    ----------
    pivots : ndarray of shape (r,)
        The rows from which the preconditioner is built.
    form : str
        The form of C, as in `CGSettings`.
    dtype : type
        The type of the products with C.
    log_evidence, standard_error : float
        log p(y) in nats, and its standard error.
    solution : str
        A description of the solve for alpha.
    local_variance : LocalVariance
        The variances from a part of the rows.
    excess : list of (float, float)
        The median and the largest share by which standard deviations of y, and then of weights of a
        sparse Z, exceed the exact ones at a few rows.
    checked : Asked
        The weights of a sparse Z for which this was measured.
    bank : PathBank
        The posterior paths that are solved already.
    seed : int
        The seed of all paths.
    pair_count : int
        The number of pairs of rows in C, 0 for tiles.
    """

    pivots: np.ndarray
    form: str
    dtype: type
    log_evidence: float
    standard_error: float
    solution: str
    local_variance: LocalVariance
    excess: list[tuple[float, float]]
    checked: Asked
    bank: PathBank
    seed: int
    pair_count: int

    capabilities = frozenset(
        {
            Capability.TRAINING_WEIGHTS,
            Capability.UPPER_BOUND,
            Capability.JOINT_COVARIANCE,
            Capability.SAMPLED_VARIANCE,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.FLOAT32,
            Capability.WEIGHT_TERMS,
            Capability.SPARSE_WEIGHT_TERMS,
        }
    )
    sampled_paths = SAMPLED_PATHS
    # The forms of C that this class can have.
    forms: ClassVar[tuple[str, ...]] = ("stored", "recomputed", "pairs")

    @property
    def training_rows(self) -> TrainingRows:
        assert isinstance(self.support, TrainingRows)
        return self.support

    @property
    def diagnostics(self) -> Diagnostics:
        return Diagnostics(
            self.log_evidence,
            self.standard_error,
            solution=self.solution,
            variances=self._variances_in_words(),
        )

    def _variances_in_words(self) -> str:
        """Describe how variances are computed, and by how much they are too large."""
        near = self.local_variance
        kinds = zip(("y", "weights"), self.excess, strict=False)
        of_weights = (
            f"; weights on up to {MAX_ROWS_OF_A_FEATURE} rows with the feature or near it"
            if self.support.Z.is_sparse
            else ""
        )
        all_rows = "" if near.constants is None else "constant weights from all rows; others "
        excess = ", ".join(
            f"{middle:.1%} (at most {most:.1%}) for {what}" for what, (middle, most) in kinds
        )
        return (
            f"local: {all_rows}conditioned on {near.shared.size} rows for all queries and on the "
            f"{min(near.nearby, len(self))} rows most correlated with each query{of_weights}; "
            f"{NEVER_BELOW}; at {CALIBRATION_ROWS} training rows above it by {excess}"
        )

    @property
    def bytes_per_query(self) -> int:
        return 8 * ((3 + self._terms) * len(self) + 3 * self.local_variance.shared.size)

    @property
    def _terms(self) -> int:
        """Return the number of terms of the prior."""
        return len(self.hyperparameters.weight_prior.active)

    def solve_bytes(self, columns: int) -> int:
        """Return the memory of a solve for this many more right-hand sides.

        It has the stored tiles or pairs, the preconditioner, and vectors.
        """
        n, r = len(self), self.pivots.size
        has_terms = not self.hyperparameters.weight_prior.is_shared
        each = PAIR_BYTES + TERM_PAIR_BYTES * has_terms
        tiles = 2 * n * n if self.form == "stored" else each * self.pair_count
        return tiles + 16 * n * r + 32 * r * r + 8 * n * (8 * min(columns, 64) + 3 * columns)

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        return self.local_variance.reduction(cross, request, session)

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        covariance = TiledCovariance(self.training_rows, self.hyperparameters, session)
        return LocalEntryReduction(covariance)

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i.B_i^T C^-1 B_j a_j for all pairs of queries, B = diag(k*) Z;  (m, m).

        It is solved by conjugate gradients, and its diagonal is never above the exact one.
        """
        B = cross.along(A).T
        X, CX = self._solve(B, JOINT_NOISE_SHARE * self.hyperparameters.noise_of_new(A), session)
        return symmetric_part(X.T @ (2.0 * B - CX))

    def row_weights(
        self, query: Queries, session: Session
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        session.require(self.solve_bytes(1), "the weights of the training rows")
        nats = JOINT_NOISE_SHARE * self.hyperparameters.noise_of_new(query.Z)
        B = self.cross(query.x, session).along(query.Z).T
        return np.arange(len(self)), self._solve(B, nats, session)[0][:, 0], self.training_rows.y

    def _solve(
        self, B: np.ndarray, nats: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return X = C^-1 B to the given nats, and C X in float64;  (n, c), (c,) -> (n, c) each."""
        C, precise = self._covariances(session)
        P = LowRankPreconditioner.of(C, self.pivots, bounds_from_below=self.form != "pairs")
        X = np.empty_like(B)
        for j in slices(B.shape[1], PRODUCT_COLUMNS):
            X[:, j] = solve(
                C, P, B[:, j], nats[j], precise=precise, tell=session.journal.iterated
            ).X
        return X, precise.matmul(X)

    def _covariances(self, session: Session) -> tuple[Covariance, Covariance]:
        """Return C for many products, and C in float64 for residuals."""
        rows, kernel = self.training_rows, self.hyperparameters.kernel
        pairs = Pairs.of(rows, kernel, session) if self.form == "pairs" else None
        return covariances(rows, self.hyperparameters, session, self.form, self.dtype, pairs)

    def _paths(self, count: int, session: Session) -> tuple[list[PriorPath], np.ndarray]:
        """Return at least `count` paths and their solutions (n, S).

        Paths that the bank does not have are drawn and solved for. Path s is always the same.
        """
        with self.bank.lock:
            have = len(self.bank.paths)
            if have < count:
                randoms = [np.random.RandomState([self.seed, s]) for s in range(have, count)]
                more, seen = prior_paths(self.training_rows, self.hyperparameters, randoms, session)
                X, _ = self._solve(seen, np.full(count - have, self._path_nats), session)
                self.bank.solved = np.hstack([self.bank.solved, X])
                self.bank.paths = [*self.bank.paths, *more]
            return self.bank.paths, self.bank.solved

    @property
    def _path_nats(self) -> float:
        """Return the tolerance of a path's solution, in nats."""
        return 0.5 * PATH_ENERGY_SHARE * len(self)

    def centred_draws(self, x: Any, which: np.ndarray, session: Session) -> np.ndarray:
        """Return the paths `which`, minus their means: draws of g(x*) around its posterior mean.

        These are g_s(x*) - E[g(x*) | y_s];  (m, d, len(which)).
        """
        paths, solved = self._paths(int(which.max(initial=-1)) + 1, session)
        return self._around_their_means(x, [paths[s] for s in which], solved[:, which], session)

    def _around_their_means(
        self, x: Any, paths: Iterable[PriorPath], solved: np.ndarray, session: Session
    ) -> np.ndarray:
        """Return g_s(x*) - E[g(x*) | y_s] of paths with solutions (n, S);  (m, d, S)."""
        cross, vectors = self.cross(x, session), self.hyperparameters.kernel.vectors(x)
        drawn = np.empty((len(cross), self.d, solved.shape[1]))
        for s, path in enumerate(paths):
            drawn[:, :, s] = path(vectors, self.d, session) - cross.weights(solved[:, s], session)
        return drawn

    def _fresh_centred_draws(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return draws as `centred_draws` does, but from new paths;  (m, d, count).

        Paths of thousands of features are too large to keep. Each is drawn twice from its seed:
        once for its y at the training rows, and once more for its values at the queries.
        """
        seeds = random.randint(2**31, size=count)

        def drawn_by(seed: int) -> tuple[list[PriorPath], np.ndarray]:
            randoms = [np.random.RandomState(seed)]
            return prior_paths(self.training_rows, self.hyperparameters, randoms, session)

        seen = np.empty((len(self), count))
        for s, seed in enumerate(seeds):
            seen[:, s : s + 1] = drawn_by(seed)[1]
        solved, _ = self._solve(seen, np.full(count, self._path_nats), session)
        paths = (drawn_by(seed)[0][0] for seed in seeds)
        return self._around_their_means(x, paths, solved, session)

    def sampled_variance(
        self, x: Any, along: Sequence[Features], session: Session
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return Var[g_l(x*)] (m, d) and Var[a . g(x*)] (m,) for each `along`, from samples.

        They are inflated, so that only 1% of them are below the exact variances.
        """
        drawn = self.centred_draws(x, np.arange(SAMPLED_PATHS), session)
        factor = inflation(SAMPLED_PATHS)
        each = ([A.row_dots(drawn[:, :, s]) for s in range(SAMPLED_PATHS)] for A in along)
        combined = [factor * np.square(draws).mean(axis=0) for draws in each]
        return factor * np.square(drawn).mean(axis=2), combined

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count).

        The first draws are from the PATHS paths that were solved with y, in a random order, and
        further draws are from further paths. For a sparse Z, all paths are new.
        """
        mean = self.mean(x, None, session)
        if self.support.Z.is_sparse:
            centred = self._fresh_centred_draws(x, count, random, session)
        else:
            which = np.concatenate(
                [random.permutation(PATHS), np.arange(PATHS, max(PATHS, count))]
            )[:count]
            centred = self.centred_draws(x, which, session)
        draws: np.ndarray = mean[:, :, None] + centred
        draws += self.hyperparameters.sigma_w * random.standard_normal(draws.shape)
        return draws

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        n, kernel, settings = plan.n, self.hyperparameters.kernel, plan.settings_of(CGSettings)
        must(isinstance(self.support, TrainingRows), "its rows have no y")
        self.support.must_fit(kernel, preprocessor, n)
        must_be_numbers(self.coefficients, (n,), "alpha")
        must_be_indices(self.pivots, n, "pivots")
        known = self.form == settings.form and self.form in self.forms
        typed = self.dtype in (np.float32, np.float64)
        must(known and typed, "the covariance has no known form")
        must(self.form != "pairs" or preprocessor.sparse_z, "its pairs are those of a dense Z")
        self.local_variance.must_fit(self.hyperparameters, n, preprocessor)
        shared = self.local_variance.shared.size
        most = min(n, max(settings.shared, self.pivots.size))
        must(min(n, settings.shared) <= shared <= most, "variances from another number of rows")
        counted = self.pair_count >= 0 and 0 <= self.seed < SEEDS_END
        must(counted, "a count is out of range")
        must_be_indices(np.unique(self.checked.rows), n, "checked rows")
        self.bank.must_fit(n, self.hyperparameters.weight_prior, preprocessor)

    def draw_bytes(self, m: int, count: int) -> int:
        n, d = len(self), self.d
        more = count - len(self.bank.paths)
        solving = self.solve_bytes(more) if more > 0 else 0
        kept = 1 if self.support.Z.is_sparse else max(0, more)
        cross = (1 + self._terms) * m * n
        paths = kept * path_bytes(self.hyperparameters.weight_prior, d)
        return solving + 8 * (cross + 3 * m * d * count + n * count) + paths

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m + self.solve_bytes(m)
