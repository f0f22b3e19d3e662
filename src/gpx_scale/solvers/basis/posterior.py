"""The posterior of a basis of functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from ...data.features import DenseFeatures, Features
from ...errors import InputError
from ...model.hyperparameters import Hyperparameters
from ...runtime.parallel import Executor, slices, worthwhile_threads
from ..posterior import Parts, Reductions, symmetric_part
from .marginal_likelihood import BasisLikelihood, Ratio, Space, blocks
from .sufficient_statistics import AddUp, BasisStatistics, Nodes


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
    def of(cls, space: Space, params: Hyperparameters, x: np.ndarray, executor: Executor) -> BasisParts:
        found = BasisLikelihood(space, params, executor)
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
        return np.sqrt(self.params.kernel.spectral_density(self.data.box.omega)[0])

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
        return own * A.squared_norms() - np.einsum("ij,ij->i", executor.matmul(wide, self.inverse), wide)

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
            return BasisLikelihood(self.data, self.params, executor).B

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

    def answers_for(self, params: Hyperparameters) -> bool:
        return self.data.covers(params)

    @property
    def task(self) -> AddUp:
        """What is asked of more rows, at these very parameters."""
        return AddUp(self.data.box, self._node, within=True)

    @property
    def _node(self) -> Nodes:
        rho = Ratio.of(self.data.box, self.data.mean_square, self.params).value
        return Nodes.around(rho, self.data.nodes.largest, self.data.sums.rows, spread=0.0)

    def with_more(self, sums: BasisStatistics, executor: Executor) -> BasisParts:
        """The same after more rows, of which these are the sums."""
        weights, _ = self.data.nodes.at(self._node.rho[0])
        now = self.data.sums.at(weights)
        total = BasisStatistics(now.rows, now.cosines[None], now.b[None], now.plain[None])
        total += sums
        with worthwhile_threads(len(self)):
            space = replace(self.data, nodes=self._node, sums=total)
            return replace(BasisParts.of(space, self.params, self.data.box.centre[None], executor), left=self.left)
