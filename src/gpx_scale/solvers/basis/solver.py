"""The basis solver: w_l(x) = sum_j s_j^1/2 v_jl phi_j(x), v ~ N(0, I), x in one to three dimensions.

Sums over rows are made once; an evaluation takes M^3 flops, M = q d, whatever n. What the functions leave of k counts as noise
of the weights, D = sigma_y^2 + (sigma_w^2 + left) |z|^2, left = k(0) - sum_j s_j mean phi_j^2 over the rows (Matern 1/2, 300
rows, 770 functions: 18 nats off instead of 167), and stays in every variance: the posterior starts from k itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...data.row_source import RowSource
from ...model.hyperparameters import Hyperparameters
from ...runtime.journal import Journal
from ...runtime.parallel import Executor, FactorisationThreads
from ..contract import Evidence
from ..low_dimensional import InputExtent
from .laplacian_basis import CLOSE, REACH, LaplacianBasis
from .marginal_likelihood import BasisLikelihood, Ratio, Space
from .posterior import BasisParts
from .sufficient_statistics import AddUp, Nodes

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
        allow: Callable[[LaplacianBasis, int, int], None] = lambda box, nodes, d: None,
        extent: InputExtent | None = None,
        space: Space | None = None,
    ) -> None:
        self.most, self.count, self._allow = most, count, allow
        self._executor, self._journal = executor, journal
        self.space, self._extent, self._watch = space, extent, FactorisationThreads(executor.n_jobs)

    def extent(self, rows: RowSource) -> InputExtent:
        if self._extent is None:
            self._extent = rows.sum_over(InputExtent.of, self._executor, self._journal.passed)
        return self._extent

    def prepare(self, rows: RowSource, params: Hyperparameters, around: bool = True) -> Space:
        """The box for these parameters, and others around them if asked for, and one pass over the rows."""
        extent, some = self.extent(rows), rows.subset(LOOKED_AT)
        x, d = some.x, some.Z.shape[1]
        box = LaplacianBasis.around(extent, params, d, REACH if around else CLOSE, self.most // d, self.count)
        self._allow(box, 1, d)
        mean_square = np.square(box.functions(box.angles(x))).mean(axis=0)
        nodes = Nodes.around(Ratio.of(box, mean_square, params).value, extent.z_squared, len(rows))
        return self._add_up(rows, box, mean_square, nodes)

    def _add_up(self, rows: RowSource, box: LaplacianBasis, mean_square: np.ndarray, nodes: Nodes) -> Space:
        self._allow(box, nodes.count, rows.subset(1).Z.shape[1])
        with self._journal.phase("sums over the rows"):
            sums = rows.sum_over(AddUp(box, nodes), self._executor, self._journal.passed)
        self.space = Space(box, mean_square, nodes, sums)
        return self.space

    def _space(self, rows: RowSource, params: Hyperparameters) -> Space:
        """The one that is there, where it holds; for other noise, the same functions with more nodes."""
        space = self.space
        if space is None or not space.box.covers(params.kernel):
            return self.prepare(rows, params, around=False)
        rho = Ratio.of(space.box, space.mean_square, params).value
        if space.nodes.covers(rho):
            return space
        return self._add_up(rows, space.box, space.mean_square, space.nodes.reaching(rho, len(rows)))

    def limits(self, params: Hyperparameters) -> tuple[np.ndarray, np.ndarray]:
        """Logs of the parameters between which the box that was prepared around these holds;  (t,), (t,)."""
        assert self.space is not None
        low, high = np.full(params.theta.size, -np.inf), np.full(params.theta.size, np.inf)
        lengths = np.array([label == "theta2" for label in params.parameter_kinds])
        low[lengths], high[lengths] = (params.theta[lengths] + sign * 2.0 * np.log(REACH) for sign in (-1, 1))
        return low, high

    def evaluate(
        self, rows: RowSource, params: Hyperparameters, *, gradient: bool = True, information: bool = False
    ) -> Evidence:
        space = self._space(rows, params)
        with self._watch.over(space.size, space.size**3 if gradient else 0):
            found = BasisLikelihood(space, params, self._executor)
            if not gradient:
                return Evidence(found.value, None, found.v, space.sums.rows)
            slope, metric = found.gradient_and_information()
        return Evidence(found.value, slope, found.v, space.sums.rows, information=metric if information else None)

    def condition(self, rows: RowSource, params: Hyperparameters) -> BasisParts:
        space = self._space(rows, params)
        with self._watch.over(space.size):
            return BasisParts.of(space, params, rows.subset(LOOKED_AT).x, self._executor)
