"""The posterior of inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from ...data.features import Features
from ...linalg.preconditioner import right_solve
from ...runtime.parallel import Executor, slices
from ..posterior import JointPrior, Parts, Reductions, symmetric_part
from ..sparse_weights import Reduce, SolvedWords
from .collapsed_bound import BlockStatistics, Bound, InducingVariables, Statistics


@dataclass(frozen=True)
class InducingParts(Parts):
    """What the posterior asks; `data` are the inducing points, and alpha is v."""

    L: np.ndarray
    statistics: Statistics
    E: np.ndarray
    evidence: float
    jitter: float

    keeps_rows = False
    never_below = False  # not a bound: 4% below the exact deviations was seen (docs/streams.md)
    evidence_deviation = 0.0
    condition = float("nan")
    solution = "collapsed bound"

    @classmethod
    def of(cls, bound: Bound) -> InducingParts:
        frame = bound.frame
        return cls(
            frame.places,
            frame.params,
            bound.v,
            frame.L,
            bound.statistics,
            bound.E,
            bound.value,
            frame.jitter,
        )

    @property
    def frame(self) -> InducingVariables:
        return InducingVariables(self.data, self.params, self.params.kernel.prepare(self.data.x), self.L, self.jitter)

    @property
    def task(self) -> BlockStatistics:
        """What is asked of more rows."""
        return BlockStatistics(self.frame)

    @property
    def rows(self) -> int:
        return self.statistics.rows

    def with_more(self, statistics: Statistics, executor: Executor) -> InducingParts:
        """The same after more rows, of which these are the sums."""
        total = self.statistics.copy()
        total += statistics
        return InducingParts.of(Bound.of(self.frame, total))

    @property
    def unexplained(self) -> float:
        """Share of the prior variance of the rows, each weighed by 1/D, that the inducing variables leave."""
        return max(0.0, 1.0 - float(np.trace(self.statistics.psi)) / self.statistics.prior) if self.statistics.prior else 0.0

    @property
    def variances(self) -> str:
        return f"variational, of {len(self)} inducing points, which leave {self.unexplained:.1%} of the rows' prior variance"

    @property
    def bytes_per_row(self) -> int:
        return 4 * 8 * len(self)

    def _quadratic(self, B: np.ndarray, executor: Executor) -> np.ndarray:
        """b.L^-T E L^-1 b of rows B, which are overwritten;  (c, m) -> (c,);  3 m^2 flops a row."""
        V = right_solve(self.L, B, executor)
        return np.maximum(np.einsum("ij,ij->i", V, executor.matmul(V, self.E)), 0.0)

    def reductions(
        self, K: np.ndarray, executor: Executor, *, var: bool = False, cov: bool = False, along: Any = ()
    ) -> Reductions:
        """diag(W^T E W), W^T E W, and a^T W^T E W a of each query;  (q, m) -> (q, d), (q, d, d), (q,) each."""
        Z, each, full = self.data.Z, None, None
        if cov:
            V = right_solve(self.L, Z.columns_times(K).reshape(-1, len(self)), executor)
            known = executor.matmul(V, self.E).reshape(len(K), -1, len(self))
            V = V.reshape(known.shape)
            whole = executor.map(lambda i: V[i] @ known[i].swapaxes(1, 2), slices(len(K), 8))
            full = symmetric_part(np.concatenate(whole))
            each = np.einsum("ijj->ij", full) if var else None
        elif var:
            each = self._quadratic(Z.columns_times(K).reshape(-1, len(self)), executor).reshape(len(K), -1)
        return Reductions(each, full, [self._quadratic(K * A.inner_products(Z), executor) for A in along])

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a_i^T W_i^T E W_j a_j for all pairs of queries;  (q, m), (q, d) -> (q, q)."""
        V = right_solve(self.L, K * A.inner_products(self.data.Z), executor)
        return symmetric_part(executor.matmul(executor.matmul(V, self.E), V.T))

    def word_reduce(self, entries: int, executor: Executor, memory_limit: int) -> Reduce:
        return SolvedWords(len(self), partial(self._quadratic, executor=executor))

    @cached_property
    def _root(self) -> np.ndarray:
        return Bound.of(self.frame, self.statistics).root

    def sample(self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor) -> np.ndarray:
        """Joint draws of w at all queries;  -> (q, d, n_samples).

        Matheron's rule: a prior draw of g at points and queries together, moved by what its u misses of a draw of ours,
        S_uu^-1 u = v + L^-T R^-T e, B = R R^T.
        """
        m, d, frame = len(self), self.data.Z.shape[1], self.frame
        prior = JointPrior.of(self.params.kernel, self.data.x, x, 0.0, executor)
        draws, missed = np.empty((len(x), d, n_samples)), np.empty((m, n_samples))
        for s in range(n_samples):
            W = prior.draw(d, random)
            missed[:, s] = self.data.Z.row_dots(W[:m])
            draws[:, :, s] = W[m:]
        drawn = solve_triangular(self._root, random.standard_normal((m, n_samples)), lower=True, trans="T")
        coefficients = self.alpha[:, None] + frame.down(drawn - solve_triangular(self.L, missed, lower=True))
        for s in range(n_samples):
            draws[:, :, s] += self.data.Z.scale_rows(coefficients[:, s]).left_multiply(prior.K_query, executor)
        return draws + self.params.sigma_w * random.standard_normal(draws.shape)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_row + 32 * m * m

    def sample_bytes(self, m: int, n_samples: int) -> int:
        u, d = self.data.Z.shape
        return 8 * (3 * (u + m) ** 2 + m * u + (2 * m * d + 4 * u) * n_samples + 3 * (u + m) * d)
