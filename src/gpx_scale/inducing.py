"""The inducing-point solver: the bound with its slopes over passes of the rows, and the posterior's parts from m points alone.

    E[w*] = k(x*, X_u) diag(v) Z_u       Cov[g*] = k** I - W^T E W,   W = L^-1 diag(k*) Z_u,   E = I - (I + Psi)^-1

The fitted parts hold no training row: the points, L and the statistics are all there is, and more rows can be added to these.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from .bound import Bound, Collect, Frame, Slopes, Statistics
from .errors import JitterWarning
from .factoring import worthwhile_threads
from .features import Features
from .inputs import Places
from .params import Params
from .parts import JointPrior, Parts, Reductions, symmetric_part
from .placing import Choice
from .preconditioner import right_solve
from .progress import Journal
from .rows import Rows
from .runtime import Executor, slices
from .solution import Evidence
from .words import Reduce, SolvedWords

DIGITS = 34  # binary ones, that a search sees


class InducingSolver:
    """Evidence (its bound) and posterior from m points, which the first parameters choose unless `place` has."""

    def __init__(self, choice: Choice, executor: Executor, journal: Journal) -> None:
        self.choice, self._executor, self._journal = choice, executor, journal
        self.places: Places | None = None
        self.metric: np.ndarray | None = None  # second derivatives a row, where the last search begins

    def place(self, rows: Rows, params: Params) -> Places:
        """Choose the points at these parameters, from now on."""
        with self._journal.phase("inducing points"), worthwhile_threads(self.choice.count):
            self.places = self.choice.of(rows, params, self._executor)
        return self.places

    def _frame(self, rows: Rows, params: Params) -> Frame:
        return Frame.of(self.places if self.places is not None else self.place(rows, params), params)

    def bound(self, rows: Rows, params: Params) -> Bound:
        """Return the bound of all rows.

        A few points are worked on by one BLAS thread: a search that moves them multiplies rounding a thousandfold, and the
        number of BLAS threads depends on what else the process does.
        """
        with worthwhile_threads(self.choice.count if self.places is None else len(self.places)):
            frame = self._frame(rows, params)
            return Bound.of(frame, rows.add_up(Collect(frame), self._executor, self._journal.passed))

    def slopes(self, rows: Rows, bound: Bound, by_points: bool = False) -> Slopes:
        """Return the derivatives of the bound, by a second pass."""
        with worthwhile_threads(len(bound.frame)):
            slopes = rows.add_up(bound.differentiate(by_points), self._executor, self._journal.passed)
            slopes += bound.own_slopes(by_points)
        return slopes

    def evaluate(self, rows: Rows, params: Params, *, gradient: bool = True, information: bool = False) -> Evidence:
        """The bound and its gradient by the logs of the parameters, at the points of this fit."""
        bound = self.bound(rows, params)
        slope = self.slopes(rows, bound).theta if gradient else None
        metric = self.metric * len(rows) if information and self.metric is not None else None
        return Evidence(bound.value, slope, bound.v, len(rows), information=metric)

    def steady(self, rows: Rows, params: Params, *, information: bool = False) -> Evidence:
        """`evaluate` to about 10 digits of its terms, so that a search does not depend on the order of sums."""
        found = self.evaluate(rows, params, information=information)
        assert found.gradient is not None
        size = np.abs(found.gradient).max() + abs(found.value) + len(rows)
        unit = np.ldexp(1.0, int(np.frexp(size)[1]) - DIGITS)
        value, gradient = np.round(found.value / unit) * unit, np.round(found.gradient / unit) * unit
        return replace(found, value=float(value), gradient=gradient)

    def condition(self, rows: Rows, params: Params) -> InducingParts:
        bound = self.bound(rows, params)
        if bound.frame.jitter > 1e-10:
            warnings.warn(
                f"inducing points are nearly dependent: jitter of {bound.frame.jitter:.0e} was added. Fewer would do as well",
                JitterWarning,
                stacklevel=3,
            )
        return InducingParts.of(bound)


# posterior's parts


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
    def frame(self) -> Frame:
        return Frame(self.data, self.params, self.params.kernel.points(self.data.x), self.L, self.jitter)

    @property
    def task(self) -> Collect:
        """What is asked of more rows."""
        return Collect(self.frame)

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
            V = right_solve(self.L, Z.spread(K).reshape(-1, len(self)), executor)
            known = executor.matmul(V, self.E).reshape(len(K), -1, len(self))
            V = V.reshape(known.shape)
            whole = executor.map(lambda i: V[i] @ known[i].swapaxes(1, 2), slices(len(K), 8))
            full = symmetric_part(np.concatenate(whole))
            each = np.einsum("ijj->ij", full) if var else None
        elif var:
            each = self._quadratic(Z.spread(K).reshape(-1, len(self)), executor).reshape(len(K), -1)
        return Reductions(each, full, [self._quadratic(K * A.inner(Z), executor) for A in along])

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        """a_i^T W_i^T E W_j a_j for all pairs of queries;  (q, m), (q, d) -> (q, q)."""
        V = right_solve(self.L, K * A.inner(self.data.Z), executor)
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
            missed[:, s] = self.data.Z.row_dot(W[:m])
            draws[:, :, s] = W[m:]
        drawn = solve_triangular(self._root, random.standard_normal((m, n_samples)), lower=True, trans="T")
        coefficients = self.alpha[:, None] + frame.down(drawn - solve_triangular(self.L, missed, lower=True))
        for s in range(n_samples):
            draws[:, :, s] += self.data.Z.scaled(coefficients[:, s]).combine(prior.K_query, executor)
        return draws + self.params.sigma_w * random.standard_normal(draws.shape)

    def joint_bytes(self, m: int) -> int:
        return m * self.bytes_per_row + 32 * m * m

    def sample_bytes(self, m: int, n_samples: int) -> int:
        u, d = self.data.Z.shape
        return 8 * (3 * (u + m) ** 2 + m * u + (2 * m * d + 4 * u) * n_samples + 3 * (u + m) * d)
