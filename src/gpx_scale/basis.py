"""The basis solver: w_l(x) = sum_j s_j^1/2 v_jl phi_j(x), v ~ N(0, I), x in one to three dimensions.

Sums over rows are made once; an evaluation takes M^3 flops, M = q d, whatever n. What the functions leave of k counts as noise
of the weights, D = sigma_y^2 + (sigma_w^2 + left) |z|^2, left = k(0) - sum_j s_j mean phi_j^2 over the rows (Matern 1/2, 300
rows, 770 functions: 18 nats off instead of 167), and stays in every variance: the posterior starts from k itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from .box import CLOSE, REACH, Box, Extent
from .errors import InputError
from .factoring import Watch, worthwhile_threads
from .features import DenseFeatures, Features
from .params import Params
from .parts import Parts, Reductions, symmetric_part
from .progress import Journal
from .rows import Rows
from .runtime import Executor, slices
from .solution import Evidence
from .sums import AddUp, Nodes, Sums
from .whitened import Ratio, Space, Whitened, blocks

LOOKED_AT = 1024  # rows that the remainder is measured on


class BasisSolver:
    """Evidence and posterior from functions on a box, which is built when it is needed, and again where parameters leave it.

    `most`: functions, of all weights, that are enough for any kernel; `count`: functions a dimension, None for as many as the
    kernel asks for. `allow(box, nodes, d)` may refuse.
    """

    def __init__(
        self,
        most: int,
        count: int | None,
        executor: Executor,
        journal: Journal,
        allow: Callable[[Box, int, int], None] = lambda box, nodes, d: None,
        extent: Extent | None = None,
        space: Space | None = None,
    ) -> None:
        self.most, self.count, self._allow = most, count, allow
        self._executor, self._journal = executor, journal
        self.space, self._extent, self._watch = space, extent, Watch(executor.n_jobs)

    def extent(self, rows: Rows) -> Extent:
        if self._extent is None:
            self._extent = rows.add_up(Extent.of, self._executor, self._journal.passed)
        return self._extent

    def prepare(self, rows: Rows, params: Params, around: bool = True) -> Space:
        """The box for these parameters, and others around them if asked for, and one pass over the rows."""
        extent, some = self.extent(rows), rows.sample(LOOKED_AT)
        x, d = some.x, some.Z.shape[1]
        box = Box.around(extent, params, d, REACH if around else CLOSE, self.most // d, self.count)
        self._allow(box, 1, d)
        mean_square = np.square(box.functions(box.angles(x))).mean(axis=0)
        nodes = Nodes.around(Ratio.of(box, mean_square, params).value, extent.z_squared, len(rows))
        return self._add_up(rows, box, mean_square, nodes)

    def _add_up(self, rows: Rows, box: Box, mean_square: np.ndarray, nodes: Nodes) -> Space:
        self._allow(box, nodes.count, rows.sample(1).Z.shape[1])
        with self._journal.phase("sums over the rows"):
            sums = rows.add_up(AddUp(box, nodes), self._executor, self._journal.passed)
        self.space = Space(box, mean_square, nodes, sums)
        return self.space

    def _space(self, rows: Rows, params: Params) -> Space:
        """The one that is there, where it holds; for other noise, the same functions with more nodes."""
        space = self.space
        if space is None or not space.box.covers(params.kernel):
            return self.prepare(rows, params, around=False)
        rho = Ratio.of(space.box, space.mean_square, params).value
        if space.nodes.covers(rho):
            return space
        return self._add_up(rows, space.box, space.mean_square, space.nodes.reaching(rho, len(rows)))

    def limits(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Logs of the parameters between which the box that was prepared around these holds;  (t,), (t,)."""
        assert self.space is not None
        low, high = np.full(params.theta.size, -np.inf), np.full(params.theta.size, np.inf)
        lengths = np.array([label == "theta2" for label in params.labels])
        low[lengths], high[lengths] = (params.theta[lengths] + sign * 2.0 * np.log(REACH) for sign in (-1, 1))
        return low, high

    def evaluate(self, rows: Rows, params: Params, *, gradient: bool = True, information: bool = False) -> Evidence:
        space = self._space(rows, params)
        with self._watch.over(space.size, space.size**3 if gradient else 0):
            found = Whitened(space, params, self._executor)
            if not gradient:
                return Evidence(found.value, None, found.v, space.sums.rows)
            slope, metric = found.gradient_and_information()
        return Evidence(found.value, slope, found.v, space.sums.rows, information=metric if information else None)

    def condition(self, rows: Rows, params: Params) -> BasisParts:
        space = self._space(rows, params)
        with self._watch.over(space.size):
            return BasisParts.of(space, params, rows.sample(LOOKED_AT).x, self._executor)


# posterior's parts


@dataclass(frozen=True)
class BasisParts(Parts):
    """What the posterior asks; alpha is v (M,), and `data` the space."""

    inverse: np.ndarray
    evidence: float
    condition: float
    left: tuple[float, float]

    keeps_rows = False
    never_below = False
    evidence_deviation = 0.0
    jitter = 0.0

    @classmethod
    def of(cls, space: Space, params: Params, x: np.ndarray, executor: Executor) -> BasisParts:
        found = Whitened(space, params, executor)
        inverse = found.inverted()
        for rows in slices(len(inverse), 512):
            inverse[rows, rows] = np.tril(inverse[rows, rows]) + np.tril(inverse[rows, rows], -1).T
            inverse[rows, rows.stop :] = inverse[rows.stop :, rows].T
        parts = cls(space, params, found.v, inverse.T, found.value, found.condition, (0.0, 0.0))
        left = parts.remainder(x) / parts.prior(x)
        return replace(parts, left=(float(left.mean()), float(left.max())))

    @property
    def d(self) -> int:
        return self.data.sums.b.shape[1]

    def __len__(self) -> int:
        return self.data.size

    @property
    def solution(self) -> str:
        box = self.data.box
        lengths = ", ".join(f"{half / length:.1f}" for half, length in zip(box.half, box.longest, strict=True))
        return f"{len(box)} functions for each of {self.d} weights, on a box of half-width {lengths} length scales"

    @property
    def variances(self) -> str:
        mean, most = self.left
        return (
            f"of the basis, and {mean:.1e} of the prior variance that it leaves at the rows (at most {most:.1e}); not bounds"
        )

    @cached_property
    def root_s(self) -> np.ndarray:
        return np.sqrt(self.params.kernel.density(self.data.box.omega)[0])

    def cross(self, x: Any, executor: Executor, own: slice | None = None) -> np.ndarray:
        """s^1/2 phi(x*);  (m, q)."""
        box, x = self.data.box, self.params.kernel.vectors(x)
        parts = executor.map(lambda rows: box.functions(box.angles(x[rows])), slices(len(x), 512))
        return np.concatenate(parts) * self.root_s if parts else np.empty((0, len(box)))

    def remainder(self, x: Any) -> np.ndarray:
        """k(x*, x*) less what the functions have of it;  (m,)."""
        box = self.data.box
        known = np.square(box.functions(box.angles(self.params.kernel.vectors(x))) * self.root_s).sum(axis=1)
        return np.maximum(self.prior(x) - known, 0.0)

    def mean(self, K: np.ndarray, executor: Executor) -> np.ndarray:
        return executor.matmul(K, np.ascontiguousarray(self.alpha.reshape(self.d, -1).T))

    @property
    def bytes_per_row(self) -> int:
        return 2 * 8 * len(self)

    def _spread(self, K: np.ndarray, A: Features) -> np.ndarray:
        """phi* x a of each query;  (m, q), (m, d) -> (m, M)."""
        a = A.array if isinstance(A, DenseFeatures) else A.matrix.toarray()  # type: ignore[attr-defined]
        return (a[:, :, None] * K[:, None, :]).reshape(len(K), -1)

    def reductions(
        self, K: np.ndarray, executor: Executor, *, var: bool = False, cov: bool = False, along: Any = ()
    ) -> Reductions:
        """phi.phi I - (phi x I)^T B^-1 (phi x I), its diagonal, and along vectors;  (m, q) -> (m, d, d), (m, d), (m,) each."""
        q, d = K.shape[1], self.d
        own, each, full = np.square(K).sum(axis=1), None, None
        if cov:
            full = np.empty((len(K), d, d))

            def pair(at: tuple[slice, slice, int]) -> None:
                rows, cols, _ = at
                taken = np.einsum("ij,ij->i", K @ self.inverse[rows, cols], K)
                full[:, rows.start // q, cols.start // q] = full[:, cols.start // q, rows.start // q] = -taken

            executor.map(pair, blocks(d, q))
            full += own[:, None, None] * np.eye(d)
            each = np.einsum("ijj->ij", full) if var else None
        elif var:

            def one(l: int) -> np.ndarray:
                rows = slice(l * q, l * q + q)
                return own - np.einsum("ij,ij->i", K @ self.inverse[rows, rows], K)

            each = np.column_stack(executor.map(one, range(d)))
        return Reductions(each, full, [self._along(K, A, own, executor) for A in along])

    def _along(self, K: np.ndarray, A: Features, own: np.ndarray, executor: Executor) -> np.ndarray:
        wide = self._spread(K, A)
        return own * A.squared() - np.einsum("ij,ij->i", executor.matmul(wide, self.inverse), wide)

    def reduction_joint(self, K: np.ndarray, A: Features, executor: Executor) -> np.ndarray:
        wide = self._spread(K, A)
        known = wide - executor.matmul(wide, self.inverse)
        return symmetric_part(executor.matmul(known, wide.T))

    def moments_at(self, *args: Any) -> Any:
        raise InputError("a model of basis functions has a dense Z: give Z as an array")

    def sample(self, x: Any, n_samples: int, random: np.random.RandomState, executor: Executor) -> np.ndarray:
        """Joint draws of w at all queries, what the functions leave of k drawn for each by itself;  -> (m, d, n_samples)."""
        K, q = self.cross(x, executor), len(self.data.box)
        (trtrs,) = get_lapack_funcs(("trtrs",), (self.inverse,))
        e = random.standard_normal((len(self), n_samples))
        drawn = self.alpha[:, None] + trtrs(self._root, e, lower=1, trans=1)[0]
        draws = np.empty((len(K), self.d, n_samples))
        for l in range(self.d):
            draws[:, l] = executor.matmul(K, drawn[l * q : l * q + q])
        left = np.sqrt(self.remainder(x) + self.params.sigma_w**2)
        return draws + left[:, None, None] * random.standard_normal(draws.shape)

    @cached_property
    def _root(self) -> np.ndarray:
        with Executor(1) as executor, worthwhile_threads(len(self)):
            return Whitened(self.data, self.params, executor).B

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_root"}  # M^2 numbers to be had again

    def joint_bytes(self, m: int) -> int:
        return 8 * (4 * m * len(self) + 4 * m * m)

    def sample_bytes(self, m: int, n_samples: int) -> int:
        return 8 * (2 * len(self) ** 2 + m * len(self.data.box) + (3 * m * self.d + 2 * len(self)) * n_samples)

    # more rows

    @property
    def rows(self) -> int:
        return self.data.sums.rows

    def answers_for(self, params: Params) -> bool:
        return self.data.covers(params)

    @property
    def task(self) -> AddUp:
        """What is asked of more rows, at these very parameters."""
        return AddUp(self.data.box, self._node, within=True)

    @property
    def _node(self) -> Nodes:
        rho = Ratio.of(self.data.box, self.data.mean_square, self.params).value
        return Nodes.around(rho, self.data.nodes.largest, self.data.sums.rows, spread=0.0)

    def with_more(self, sums: Sums, executor: Executor) -> BasisParts:
        """The same after more rows, of which these are the sums."""
        weights, _ = self.data.nodes.at(self._node.rho[0])
        now = self.data.sums.at(weights)
        total = Sums(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += sums
        with worthwhile_threads(len(self)):
            space = replace(self.data, nodes=self._node, sums=total)
            return replace(BasisParts.of(space, self.params, self.data.box.centre[None], executor), left=self.left)
