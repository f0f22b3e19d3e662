"""The posterior of conjugate gradients: means to a tolerance, variances from some rows, paths for samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor, TrainingRows
from ...linalg.conjugate_gradients import solve
from ...linalg.covariance import PRODUCT_COLUMNS, Covariance, TiledCovariance
from ...linalg.preconditioner import LowRankPreconditioner
from ...linalg.sparse_covariance import PAIR_BYTES, Pairs, covariances
from ...model.weight_prior import CrossCovariance
from ...runtime.parallel import ForkSafeLock, slices
from ...runtime.session import Session
from ...runtime.state import must, must_be_indices, must_be_numbers, stored
from ..contract import Capability, Plan
from ..neighborhood import LocalVariance
from ..posterior import Diagnostics, KernelPosterior, MomentRequest, Moments, symmetric_part
from ..sparse_weights import WORD_ROWS, EntryReduction, LocalWords
from .pathwise_sampling import PriorPath, inflation, path_bytes, prior_paths
from .variance_calibration import CALIBRATION_ROWS, Asked

PATH_SHARE = 1e-3  # of a path's energy n / 2 that its solve may miss: then its squared error is about 5e-4 D_i
NEVER_BELOW = "never below exact"  # what is said of variances that are bounds
PATHS = 16  # posterior paths solved along with y
SAMPLED_PATHS = 64  # that deviations from samples are made of
SEEDS_END = 2**32  # A RandomState takes seeds below.


@stored
@dataclass
class PathBank:
    """Prior paths g_s and their u_s = C^-1 y_s, (n, S); grows when more are asked for."""

    paths: list[PriorPath]
    solved: np.ndarray
    lock: Any = field(default_factory=ForkSafeLock, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "solved": self.solved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=ForkSafeLock())

    def __deepcopy__(self, memo: dict[int, Any]) -> PathBank:
        return PathBank(self.paths, self.solved)

    def must_fit(self, n: int, preprocessor: Preprocessor) -> None:
        """Raise a ValueError unless these are paths of a model of n rows, with their solutions."""
        shape = n, len(self.paths)
        must_be_numbers(self.solved, shape, "the solutions of the posterior paths")
        for path in self.paths:
            path.must_fit(preprocessor)


@stored
@dataclass(frozen=True)
class CGPosterior(KernelPosterior):
    """The posterior of conjugate gradients: the mean to the solve's tolerance, variances never too small."""

    pivots: np.ndarray
    form: str
    dtype: Any
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
            Capability.SAMPLED_VARIANCE,
            Capability.SPARSE_FEATURES,
            Capability.ANY_KERNEL,
            Capability.FLOAT32,
        }
    )
    sampled_paths = SAMPLED_PATHS
    forms: ClassVar[tuple[str, ...]] = ("stored", "recomputed", "pairs")  # How C may be held.

    @property
    def training_rows(self) -> TrainingRows:
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
        near = self.local_variance
        kinds = zip(("y", "weights"), self.excess, strict=False)
        words = (
            f"; weights on up to {WORD_ROWS} rows with the feature or near it"
            if self.support.Z.is_sparse
            else ""
        )
        return (
            f"local: conditioned on {near.shared.size} rows for all and the {min(near.nearby, len(self))} most "
            f"correlated with each query{words}; {NEVER_BELOW}; at {CALIBRATION_ROWS} training rows above it by "
            + ", ".join(
                f"{middle:.1%} (at most {most:.1%}) for {what}" for what, (middle, most) in kinds
            )
        )

    @property
    def bytes_per_query(self) -> int:
        return 8 * (4 * len(self) + 3 * self.local_variance.shared.size)

    def solve_bytes(self, columns: int) -> int:
        """What solving for that many more right-hand sides takes: tiles if kept, preconditioner, vectors."""
        n, r = len(self), self.pivots.size
        tiles = 2 * n * n if self.form == "stored" else PAIR_BYTES * self.pair_count
        return tiles + 16 * n * r + 32 * r * r + 8 * n * (8 * min(columns, 64) + 3 * columns)

    def reduction(
        self, cross: CrossCovariance, request: MomentRequest, session: Session
    ) -> Moments:
        return self.local_variance.reduction(cross, request, session)

    def entry_reduction(self, entries: int, session: Session) -> EntryReduction:
        return LocalWords(TiledCovariance(self.support, self.hyperparameters, session))

    def joint_reduction(self, cross: CrossCovariance, A: Features, session: Session) -> np.ndarray:
        """Return a_i.B_i^T C^-1 B_j a_j for all pairs of queries;  (m, m);  by CG, never above the exact one."""
        B = cross.along(A).T
        X, CX = self._solve(B, 1e-4 * self.hyperparameters.noise(A), session)
        return symmetric_part(X.T @ (2.0 * B - CX))

    def _solve(
        self, B: np.ndarray, nats: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """C^-1 B and C C^-1 B as it came out;  (n, c) -> (n, c) x 2."""
        C, precise = self._covariances(session)
        P = LowRankPreconditioner.of(C, self.pivots, bounds_from_below=self.form != "pairs")
        X = np.empty_like(B)
        for j in slices(B.shape[1], PRODUCT_COLUMNS):
            X[:, j] = solve(C, P, B[:, j], nats[j], precise=precise).X
        return X, precise.matmul(X)

    def _covariances(self, session: Session) -> tuple[Covariance, Covariance]:
        pairs = (
            Pairs.of(self.support, self.hyperparameters.kernel, session)
            if self.form == "pairs"
            else None
        )
        return covariances(
            self.support, self.hyperparameters, session, self.form, self.dtype, pairs
        )

    def _paths(self, count: int, session: Session) -> tuple[list[PriorPath], np.ndarray]:
        """At least that many paths, solving for those that are not there yet; path s is always the same."""
        with self.bank.lock:
            have = len(self.bank.paths)
            if have < count:
                randoms = [np.random.RandomState([self.seed, s]) for s in range(have, count)]
                more, seen = prior_paths(self.support, self.hyperparameters, randoms, session)
                X, _ = self._solve(
                    seen, np.full(count - have, 0.5 * PATH_SHARE * len(self)), session
                )
                self.bank.solved = np.hstack([self.bank.solved, X])
                self.bank.paths = [*self.bank.paths, *more]
            return self.bank.paths, self.bank.solved

    def deviations(self, x: Any, which: np.ndarray, session: Session) -> np.ndarray:
        """g_s(x*) - E[g(x*) | y_s]: draws of g(x*) around its posterior mean;  -> (m, d, len(which))."""
        paths, solved = self._paths(int(which.max(initial=-1)) + 1, session)
        return self._missed(x, [paths[s] for s in which], solved[:, which], session)

    def _missed(
        self, x: Any, paths: Iterable[PriorPath], solved: np.ndarray, session: Session
    ) -> np.ndarray:
        cross, vectors = self.cross(x, session), self.hyperparameters.kernel.vectors(x)
        drawn = np.empty((len(cross), self.d, solved.shape[1]))
        for s, path in enumerate(paths):
            drawn[:, :, s] = path(vectors, session) - cross.weights(solved[:, s], session)
        return drawn

    def _fresh_deviations(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """The same from new paths, one at a time, as those of thousands of words are too large to keep."""
        seeds = random.randint(2**31, size=count)

        def drawn_by(seed: int) -> tuple[list[PriorPath], np.ndarray]:
            return prior_paths(
                self.support, self.hyperparameters, [np.random.RandomState(seed)], session
            )

        seen = np.empty((len(self), count))
        for s, seed in enumerate(seeds):
            seen[:, s : s + 1] = drawn_by(seed)[1]
        solved, _ = self._solve(seen, np.full(count, 0.5 * PATH_SHARE * len(self)), session)
        return self._missed(x, (drawn_by(seed)[0][0] for seed in seeds), solved, session)

    def sampled_variance(
        self, x: Any, along: Sequence[Features], session: Session
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Var[g_l(x*)] (m, d), and along vectors (m,), from samples, inflated so as to be too small in 1% of cases only."""
        drawn = self.deviations(x, np.arange(SAMPLED_PATHS), session)
        factor = inflation(SAMPLED_PATHS)
        each = ([A.row_dots(drawn[:, :, s]) for s in range(SAMPLED_PATHS)] for A in along)
        combined = [factor * np.square(draws).mean(axis=0) for draws in each]
        return factor * np.square(drawn).mean(axis=2), combined

    def draw(
        self, x: Any, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint draws of w at all queries;  (m, d, count).

        They come from one pool of paths: the PATHS solved with y, in an order that `random` draws, then further ones. Of a
        sparse Z, from paths of their own.
        """
        mean = self.mean(x, None, session)
        if self.support.Z.is_sparse:
            deviations = self._fresh_deviations(x, count, random, session)
        else:
            which = np.concatenate(
                [random.permutation(PATHS), np.arange(PATHS, max(PATHS, count))]
            )[:count]
            deviations = self.deviations(x, which, session)
        draws = mean[:, :, None] + deviations
        return draws + self.hyperparameters.sigma_w * random.standard_normal(draws.shape)

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        n, kernel, settings = plan.n, self.hyperparameters.kernel, plan.settings
        must(isinstance(self.support, TrainingRows), "its rows have no y")
        self.support.must_fit(kernel, preprocessor, n)
        must_be_numbers(self.coefficients, (n,), "alpha")
        must_be_indices(self.pivots, n, "pivots")
        known = self.form == settings.form and self.form in self.forms
        typed = self.dtype in (np.float32, np.float64)
        must(known and typed, "the covariance has no known form")
        must(self.form != "pairs" or preprocessor.sparse_z, "another form")
        self.local_variance.must_fit(self.hyperparameters, n, preprocessor)
        shared = self.local_variance.shared.size
        most = min(n, max(settings.shared, self.pivots.size))
        must(min(n, settings.shared) <= shared <= most, "variances from another number of rows")
        counted = self.pair_count >= 0 and 0 <= self.seed < SEEDS_END
        must(counted, "a count is out of range")
        must_be_indices(np.unique(self.checked.rows), n, "checked rows")
        self.bank.must_fit(n, preprocessor)

    def draw_bytes(self, m: int, count: int) -> int:
        n, d = self.support.Z.shape
        more = count - len(self.bank.paths)
        solving = self.solve_bytes(more) if more > 0 else 0
        kept = 1 if self.support.Z.is_sparse else max(0, more)
        return solving + 8 * (2 * m * n + 3 * m * d * count + n * count) + kept * path_bytes(d)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_query + 24 * m * m + self.solve_bytes(m)
