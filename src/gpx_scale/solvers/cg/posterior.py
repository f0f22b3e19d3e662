"""What the iterative solver hands to the posterior: means to its tolerance, variances from some rows, paths for samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...data.features import DenseFeatures, Features, SparseFeatures
from ...linalg.conjugate_gradients import solve
from ...linalg.covariance import COLUMNS, Covariance
from ...linalg.preconditioner import LowRankPreconditioner
from ...linalg.sparse_covariance import PAIR_BYTES, Pairs, covariances
from ...runtime.parallel import Executor, ForkSafeLock, slices
from ..neighborhood import LocalVariance
from ..posterior import Parts, Reductions, symmetric_part
from ..sparse_weights import WORD_ROWS, LocalWords, Reduce
from .pathwise_sampling import PriorPath, inflation, path_bytes, prior_paths
from .variance_calibration import PILOTS, Asked

PATH_SHARE = 1e-3  # of a path's energy n / 2 that its solve may miss: then its squared error is about 5e-4 D_i
NEVER_BELOW = "never below exact"  # what is said of variances that are bounds
PATHS = 16  # posterior paths solved along with y
SAMPLED_PATHS = 64  # that deviations from samples are made of


@dataclass
class PathBank:
    """Prior paths g_s and their u_s = C^-1 y_s, (n, S); grows when more are asked for."""

    paths: list[PriorPath]
    solved: np.ndarray
    lock: Any = field(default_factory=ForkSafeLock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "solved": self.solved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=ForkSafeLock())

    def __deepcopy__(self, memo: dict[int, Any]) -> PathBank:
        return PathBank(self.paths, self.solved)


@dataclass(frozen=True)
class CgParts(Parts):
    """What the posterior asks of the iterative solver: the mean to the solve's tolerance, variances never too small."""

    pivots: np.ndarray
    form: str
    dtype: Any
    evidence: float
    evidence_deviation: float
    solution: str
    near: LocalVariance
    excess: list[tuple[float, float]]
    pilots: Asked
    bank: PathBank
    seed: int
    pair_count: int

    jitter = 0.0
    condition = float("nan")
    sampled_paths = SAMPLED_PATHS

    @property
    def variances(self) -> str:
        kinds = zip(("y", "weights"), self.excess, strict=False)
        words = (
            f"; weights on up to {WORD_ROWS} rows with the feature or near it"
            if isinstance(self.data.Z, SparseFeatures)
            else ""
        )
        return (
            f"local: conditioned on {self.near.shared.size} rows for all and the {min(self.near.nearby, len(self))} most "
            f"correlated with each query{words}; {NEVER_BELOW}; at {PILOTS} training rows above it by "
            + ", ".join(f"{middle:.1%} (at most {most:.1%}) for {what}" for what, (middle, most) in kinds)
        )

    @property
    def bytes_per_row(self) -> int:
        return 8 * (4 * len(self) + 3 * self.near.shared.size)

    def solve_bytes(self, columns: int) -> int:
        """What solving for that many more right-hand sides takes: tiles if kept, preconditioner, vectors."""
        n, r = len(self), self.pivots.size
        tiles = 2 * n * n if self.form == "stored" else PAIR_BYTES * self.pair_count
        return tiles + 16 * n * r + 32 * r * r + 8 * n * (8 * min(columns, 64) + 3 * columns)

    def reductions(
        self, K: np.ndarray, executor: Executor, *, var: bool = False, cov: bool = False, along: Any = ()
    ) -> Reductions:
        return self.near.reductions(K, var, cov, list(along), executor)

    def word_reduce(self, entries: int, executor: Executor, memory_limit: int) -> Reduce:
        return LocalWords(Covariance(self.data, self.params, executor))

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a_i.B_i^T C^-1 B_j a_j for all pairs of queries;  (m, n), (m, d) -> (m, m);  by CG, never above the exact one."""
        B = (K * A.inner_products(self.data.Z)).T
        noise = self.params.noise(A.squared_norms())
        X, CX = self._solve(B, 1e-4 * noise, executor)
        return symmetric_part(X.T @ (2.0 * B - CX))

    def _solve(self, B: np.ndarray, nats: np.ndarray, executor: Executor) -> tuple[np.ndarray, np.ndarray]:
        """C^-1 B and C C^-1 B as it came out;  (n, c) -> (n, c) x 2."""
        C, precise = self._covariances(executor)
        P = LowRankPreconditioner.of(C, self.pivots, residual=self.form == "pairs")
        X = np.empty_like(B)
        for j in slices(B.shape[1], COLUMNS):
            X[:, j] = solve(C, P, B[:, j], nats[j], precise=precise).X
        return X, precise.matmul(X)

    def _covariances(self, executor: Executor) -> tuple[Covariance, Covariance]:
        pairs = Pairs.of(self.data, executor) if self.form == "pairs" else None
        return covariances(self.data, self.params, executor, self.form, self.dtype, pairs)

    def _paths(self, count: int, executor: Executor) -> tuple[list[PriorPath], np.ndarray]:
        """At least that many paths, solving for those that are not there yet; path s is always the same."""
        with self.bank.lock:
            have = len(self.bank.paths)
            if have < count:
                randoms = [np.random.RandomState([self.seed, s]) for s in range(have, count)]
                more, seen = prior_paths(self.data, self.params, randoms, executor)
                X, _ = self._solve(seen, np.full(count - have, 0.5 * PATH_SHARE * len(self)), executor)
                self.bank.solved = np.hstack([self.bank.solved, X])
                self.bank.paths = [*self.bank.paths, *more]
            return self.bank.paths, self.bank.solved

    def deviations(self, x: Any, which: np.ndarray, executor: Executor) -> np.ndarray:
        """g_s(x*) - E[g(x*) | y_s]: draws of g(x*) around its posterior mean;  -> (m, d, len(which))."""
        paths, solved = self._paths(int(which.max(initial=-1)) + 1, executor)
        return self._missed(x, [paths[s] for s in which], solved[:, which], executor)

    def _missed(self, x: Any, paths: Iterable[PriorPath], solved: np.ndarray, executor: Executor) -> np.ndarray:
        K, vectors = self.cross(x, executor), self.params.kernel.vectors(x)
        drawn = np.empty((len(K), self.data.Z.shape[1], solved.shape[1]))
        for s, path in enumerate(paths):
            drawn[:, :, s] = path(vectors, executor) - self.data.Z.scale_rows(solved[:, s]).left_multiply(K, executor)
        return drawn

    def _fresh_deviations(self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor) -> np.ndarray:
        """The same from new paths, one at a time, as those of thousands of words are too large to keep."""
        seeds = random.randint(2**31, size=n_samples)

        def drawn_by(seed: int) -> tuple[list[PriorPath], np.ndarray]:
            return prior_paths(self.data, self.params, [np.random.RandomState(seed)], executor)

        seen = np.empty((len(self), n_samples))
        for s, seed in enumerate(seeds):
            seen[:, s : s + 1] = drawn_by(seed)[1]
        solved, _ = self._solve(seen, np.full(n_samples, 0.5 * PATH_SHARE * len(self)), executor)
        return self._missed(x, (drawn_by(seed)[0][0] for seed in seeds), solved, executor)

    def sampled_variance(self, x: Any, along: Any, executor: Executor) -> tuple[np.ndarray, list[np.ndarray]]:
        """Var[g_l(x*)] (m, d), and along vectors (m,), from samples, inflated so as to be too small in 1% of cases only."""
        drawn = self.deviations(x, np.arange(SAMPLED_PATHS), executor)
        factor = inflation(SAMPLED_PATHS)
        each = ([A.row_dots(drawn[:, :, s]) for s in range(SAMPLED_PATHS)] for A in along)
        combined = [factor * np.square(draws).mean(axis=0) for draws in each]
        return factor * np.square(drawn).mean(axis=2), combined

    def sample(self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor) -> np.ndarray:
        """Joint draws of w at all queries;  -> (m, d, n_samples).

        They come from one pool of paths: the PATHS solved with y, in an order that `random` draws, then further ones. Of a
        sparse Z, from paths of their own.
        """
        mean = self.means(x, None, executor)
        if isinstance(self.data.Z, DenseFeatures):
            which = np.concatenate([random.permutation(PATHS), np.arange(PATHS, max(PATHS, n_samples))])[:n_samples]
            deviations = self.deviations(x, which, executor)
        else:
            deviations = self._fresh_deviations(x, n_samples, random, executor)
        draws = mean[:, :, None] + deviations
        return draws + self.params.sigma_w * random.standard_normal(draws.shape)

    def sample_bytes(self, m: int, n_samples: int) -> int:
        n, d = self.data.Z.shape
        more = n_samples - len(self.bank.paths)
        solving = self.solve_bytes(more) if more > 0 else 0
        kept = 1 if isinstance(self.data.Z, SparseFeatures) else max(0, more)
        return solving + 8 * (2 * m * n + 3 * m * d * n_samples + n * n_samples) + kept * path_bytes(d)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_row + 24 * m * m + self.solve_bytes(m)
