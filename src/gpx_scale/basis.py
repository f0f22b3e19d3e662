"""The basis solver: w_l(x) = sum_j s_j^1/2 v_jl phi_j(x), v ~ N(0, I), x in one to three dimensions.

    B = I + sigma_y^-2 S^1/2 G S^1/2      c = sigma_y^-2 S^1/2 b      v = B^-1 c      S = diag(s_j) for each weight
    log p(y) = -1/2 (n log 2 pi + sum log D + log|B| + sum y^2/D - c.v)
    d/dlog s_j = 1/2 sum_l (v_jl^2 - 1 + (B^-1)_jl,jl)

G and b are sums over rows, made once; an evaluation takes M^3 flops, M = q d, whatever n. What the functions leave of k counts
as noise of the weights, D = sigma_y^2 + (sigma_w^2 + left) |z|^2, left = k(0) - sum_j s_j mean phi_j^2 over the rows (Matern
1/2, 300 rows, 770 functions: 18 nats off instead of 167), and stays in every variance: the posterior starts from k itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from .box import CLOSE, REACH, Box, Extent
from .errors import InputError, NotPositiveDefinite, SolverUnavailable
from .factoring import Watch, worthwhile_threads
from .features import DenseFeatures, Features
from .params import Params
from .parts import Reductions, RowParts, symmetric_part
from .progress import Journal
from .rows import Rows
from .runtime import Executor, slices
from .solution import Evidence
from .sums import AddUp, Nodes, Sums

LOOKED_AT = 1024  # rows that the remainder is measured on
NOTHING = 1e-9  # of k(0): a remainder that is rounding


@dataclass(frozen=True)
class Space:
    """Functions and sums for a range of parameters, and what they were made of."""

    box: Box
    mean_square: np.ndarray  # of each function over the rows, (q,)
    nodes: Nodes
    sums: Sums

    def covers(self, params: Params) -> bool:
        return self.box.covers(params.kernel) and self.nodes.covers(Ratio.of(self.box, self.mean_square, params).value)

    @property
    def size(self) -> int:
        """M."""
        return len(self.box) * self.sums.b.shape[1]


@dataclass(frozen=True)
class Ratio:
    """rho = (sigma_w^2 + left) / sigma_y^2, and the derivatives of its logarithm by theta."""

    value: float
    slopes: np.ndarray

    @classmethod
    def of(cls, box: Box, mean_square: np.ndarray, params: Params) -> Ratio:
        kernel, sigma_w_var = params.kernel, params.sigma_w**2
        origin = kernel.points(np.zeros((1, box.half.size)))
        s, slopes = kernel.density(box.omega)
        whole = float(kernel.diagonal(origin)[0])
        left = whole - float(mean_square @ s)
        if left < NOTHING * whole:
            left, along = 0.0, np.zeros(slopes.shape[1])
        else:
            along = kernel.diagonal_slopes(origin)[0] - mean_square @ slopes
        noise = sigma_w_var + left
        per = 1.0 / noise if noise else 0.0
        return cls(noise / params.sigma_y**2, np.concatenate([per * along, [2.0 * per * sigma_w_var, -2.0]]))


class Whitened:
    """The model at given parameters: B and its factor, v, and the value of the evidence;  M^3/3 flops."""

    def __init__(self, space: Space, params: Params, executor: Executor) -> None:
        self.space, self.params, self._executor = space, params, executor
        self._ratio = Ratio.of(space.box, space.mean_square, params)
        weights, self._slopes = space.nodes.at(self._ratio.value)
        found = space.sums.at(weights)
        s, self._density_slopes = params.kernel.density(space.box.omega)
        self.root_s = np.sqrt(s)
        self._s = s
        self._precision = params.sigma_y**-2
        d = found.b.shape[0]
        self.c = (self._precision * self.root_s * found.b).ravel()
        self.plain = found.plain
        self.B = np.zeros((self.c.size, self.c.size), order="F")
        scale = self._precision * np.outer(self.root_s, self.root_s)

        def fill(at: tuple[slice, slice, int]) -> None:
            rows, cols, pair = at
            self.B[cols, rows] = scale * gram(space.box, found.cosines[pair])

        executor.map(fill, blocks(d, len(s)))
        self.B[np.diag_indices(self.c.size)] += 1.0
        potrf, potrs = get_lapack_funcs(("potrf", "potrs"), (self.B,))
        self.B, info = potrf(self.B, lower=1, overwrite_a=1, clean=0)
        if info:
            raise NotPositiveDefinite(
                f"the basis has no Cholesky factor (sigma_y = {params.sigma_y:.1e}): the data are fitted beyond rounding; "
                "raise sigma_y"
            )
        self.v = potrs(self.B, self.c, lower=1)[0]
        diagonal = self.B.diagonal()
        self.condition = float((diagonal.max() / diagonal.min()) ** 2)
        n = space.sums.rows
        log_noise = n * np.log(params.sigma_y**2) + self.plain[0]
        fitted = self._precision * self.plain[1] - self.c @ self.v
        self.value = float(-0.5 * (n * np.log(2 * np.pi) + log_noise + 2.0 * np.log(diagonal).sum() + fitted))

    def inverted(self) -> np.ndarray:
        """B^-1's lower triangle, in B's place;  2 M^3/3 flops, once."""
        (potri,) = get_lapack_funcs(("potri",), (self.B,))
        self.B, _ = potri(self.B, lower=1, overwrite_c=1)
        return self.B

    def gradient_and_information(self) -> tuple[np.ndarray, np.ndarray]:
        """By the logs of the parameters. Of the information: by the kernel's, the average of observed and expected; by the
        noise's, what it would be without functions."""
        inverse, v, n = self.inverted(), self.v, self.space.sums.rows
        known = 1.0 - inverse.diagonal()
        along_s = 0.5 * (v**2 - known).reshape(-1, self.root_s.size).sum(axis=0)
        s = self._s[:, None]
        relative = np.divide(self._density_slopes, s, out=np.zeros_like(self._density_slopes), where=s > 0)  # d log s
        along_y = -0.5 * (n - known.sum() - self._precision * self.plain[1] + self.c @ v + v @ v)
        gradient = np.concatenate([along_s @ relative, [0.0, 2.0 * along_y]]) + self._along_ratio(inverse) * self._ratio.slopes
        moved = (v.reshape(-1, self.root_s.size, 1) * relative).reshape(v.size, -1)
        own, squares = self.plain[2:]
        noise = 2.0 * np.array([[n - 2.0 * own + squares, own - squares], [own - squares, squares]])
        t = moved.shape[1]
        information = np.zeros((t + 2, t + 2))
        information[:t, :t] = 0.5 * (moved.T @ moved - moved.T @ _symmetric_product(inverse, moved))
        information[t:, t:] = noise
        return gradient, information

    def _along_ratio(self, inverse: np.ndarray) -> float:
        """By log rho at a given sigma_y: -1/2 (sum (B^-1 + v v^T) o H' + ...), H' = sigma_y^-2 S^1/2 G' S^1/2."""
        if self._ratio.value == 0.0:
            return 0.0
        if self.space.nodes.count == 1:
            raise SolverUnavailable("the gradient of the evidence needs the rows, which this model does not have: fit again")
        moved = self.space.sums.at(self._slopes)
        q, scale = self.root_s.size, self._precision * np.outer(self.root_s, self.root_s)
        below = np.tri(q, k=-1) + np.tri(q)  # an entry below the diagonal stands for two

        def one(at: tuple[slice, slice, int]) -> float:
            rows, cols, pair = at
            weighed = inverse[cols, rows] + np.outer(self.v[cols], self.v[rows])
            weighed *= scale
            weighed *= below if rows == cols else 2.0
            return float(np.einsum("ij,ij->", weighed, gram(self.space.box, moved.cosines[pair])))

        traced = sum(self._executor.map(one, blocks(moved.b.shape[0], q)))
        along_c = self._precision * (self.root_s * moved.b).ravel() @ self.v
        return -0.5 * (moved.plain[0] + traced + self._precision * moved.plain[1] - 2.0 * along_c)


def blocks(d: int, q: int) -> list[tuple[slice, slice, int]]:
    """Where the weights l <= l' of each pair are, and the pair's number."""
    pairs = zip(*np.triu_indices(d), strict=True)
    return [(slice(l * q, l * q + q), slice(k * q, k * q + q), pair) for pair, (l, k) in enumerate(pairs)]


def gram(box: Box, cosines: np.ndarray) -> np.ndarray:
    """sum_i h_i z_il z_il' phi_i phi_i^T from sums of cosines;  (frequencies,) -> (q, q)."""
    total = np.zeros((len(box), len(box)))
    for sign, where in box.products:
        total += sign * cosines.take(where)
    return total


def _symmetric_product(lower: np.ndarray, A: np.ndarray) -> np.ndarray:
    """A symmetric matrix, of which the lower triangle is there, times A."""
    return np.tril(lower) @ A + np.tril(lower, -1).T @ A


# ------------------------------------------------------------------------------------------------------------ solver


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
            n, condition = space.sums.rows, found.condition
            if not gradient:
                return Evidence(found.value, None, found.v, n, condition=condition)
            slope, metric = found.gradient_and_information()
        return Evidence(found.value, slope, found.v, n, condition=condition, information=metric if information else None)

    def condition(self, rows: Rows, params: Params) -> BasisParts:
        space = self._space(rows, params)
        with self._watch.over(space.size):
            return BasisParts.of(space, params, rows.sample(LOOKED_AT).x, self._executor)


# ------------------------------------------------------------------------------------------------ posterior's parts


@dataclass(frozen=True)
class BasisParts(RowParts):
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

    def with_more(self, sums: Sums) -> BasisParts:
        """The same after more rows, of which these are the sums."""
        weights, _ = self.data.nodes.at(self._node.rho[0])
        now = self.data.sums.at(weights)
        total = Sums(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += sums
        with Executor() as executor, worthwhile_threads(len(self)):
            space = replace(self.data, nodes=self._node, sums=total)
            return replace(BasisParts.of(space, self.params, self.data.box.centre[None], executor), left=self.left)
