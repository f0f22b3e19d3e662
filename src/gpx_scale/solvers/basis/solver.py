"""The basis solver: w_l(x) = sum_j s_j^1/2 v_jl phi_j(x), v ~ N(0, I), x in one to three dimensions.

Sums over rows are made once; an evaluation takes M^3 flops, M = q d, whatever n. What the functions leave of k counts as noise
of the weights, D = sigma_y^2 + (sigma_w^2 + left) |z|^2, left = k(0) - sum_j s_j mean phi_j^2 over the rows (Matern 1/2, 300
rows, 770 functions: 18 nats off instead of 167), and stays in every variance: the posterior starts from k itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.inputs import Preprocessor
from ...data.row_source import RowSource
from ...errors import MemoryLimitError, SolverUnavailable
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum, at_bound
from ...optimize.search import Search
from ...runtime.memory import within
from ...runtime.parallel import FactorisationThreads
from ...runtime.session import Session
from ...runtime.state import stored
from ..contract import EXACT_ROWS, Evidence, Plan, Problem, Solver, SolverSettings, SolverSetup
from ..low_dimensional import SUBSET_ROWS, InputExtent, must_be_low, must_be_resolved
from ..posterior import Posterior
from .laplacian_basis import (
    BASIS_LARGEST,
    BASIS_MOST,
    CLOSE,
    REACH,
    LaplacianBasis,
    basis_bytes,
    counts_of,
    functions_in,
    must_have_density,
    suits_a_basis,
)
from .marginal_likelihood import BasisLikelihood, Ratio, Space
from .posterior import BasisPosterior
from .sufficient_statistics import AddUp, Nodes

LOOKED_AT = 1024  # rows that the remainder is measured on
USUAL_NODES = 14  # of the noise, by which memory is planned before their number is known
SEARCH_TOLERANCE_NATS_PER_ROW = 1e-6  # An evaluation is cheap and exact.
MOVES = 24  # boxes that a search may build


@stored
@dataclass(frozen=True)
class BasisSettings(SolverSettings):
    """Functions for each column of x (None: as many as the length scales ask for), and how far x extends, once known."""

    count: int | None = None
    extent: InputExtent | None = None

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must_be_resolved(self.count, self.extent, preprocessor)


class BasisSolver(Solver):
    """Evidence and posterior from functions on a box.

    The box is built when it is needed, and again where hyperparameters leave it.
    """

    name = "basis"
    capabilities = BasisPosterior.capabilities
    posterior_class = BasisPosterior
    settings_class = BasisSettings

    def __init__(
        self,
        plan: Plan,
        session: Session,
        settings: BasisSettings,
        space: Space | None = None,
        most: int | None = None,
    ) -> None:
        """`most`: functions, of all weights, that are enough for any kernel."""
        self._plan, self._session = plan, session
        self._most, self._count, self._extent = (
            BASIS_MOST if most is None else most,
            settings.count,
            settings.extent,
        )
        self._space, self._threads = space, FactorisationThreads(session.executor.n_jobs)

    # planning

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        must_be_low(problem.p, problem.resolution, problem.options.dtype, cls.name)
        assert problem.resolution is not None
        must_have_density(problem.resolution)

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        sizes = problem.n, problem.p, problem.d
        count = problem.options.n_basis
        if not suits_a_basis(*sizes, problem.resolution, problem.stream, count, EXACT_ROWS):
            return None
        columns = "1 column" if problem.p == 1 else f"{problem.p} columns"
        return f"X of {columns}: functions on a box, one pass over the rows"

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        n, p, d, found = problem.n, problem.p, problem.d, problem.resolution
        assert found is not None
        count, subset, reasons = problem.options.n_basis, min(n, SUBSET_ROWS), [reason]
        searching = problem.exact_bytes(subset) + problem.held_bytes()
        counts = np.full(p, count) if count is not None else None
        if found.spans is not None and counts is None:
            counts = counts_of(found, BASIS_MOST // d)
        if counts is None:
            needed = searching
            reasons.append(
                f"as many as the length scales ask for, which are found on {subset} rows, exactly"
            )
        else:
            needed = max(
                searching, basis_bytes(n, p, d, counts, USUAL_NODES, problem.n_jobs, problem.stream)
            )
            q = int(functions_in(counts))
            spans = "" if found.spans is None else ", ".join(f"{2 * s:.1f}" for s in found.spans)
            lengths = f", data of {spans} length scales" if spans else ""
            reasons.append(
                f"about {q} functions for each weight ({' x '.join(map(str, counts))}){lengths}: {q * d} in all"
            )
        problem.require(searching, "the basis solver's search on a subset")
        if count is not None:
            what = f"a basis of {count} functions a column of X for each of {d} weights"
            problem.require(int(needed), what, "a smaller n_basis")
        return problem.planned(
            *(cls.name, np.float64, int(needed), reasons),
            subset=subset,
            stream=problem.stream,
            needs_length_scales=found.spans is None,
            settings=BasisSettings(count, found.extent),
        )

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return False: a basis that is too large is one that the user asked for, or a search that has no memory at all."""
        return False

    @classmethod
    def work(cls, plan: Plan) -> float:
        """Return the flops of a product of matrices that would take as long: one pass over the rows, and some factors."""
        wide = (plan.d + plan.p) / 20.0
        return 1e11 + 5e5 * plan.n * (0.5 + 0.5 * wide)

    @classmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None) -> BasisSolver:
        space = known.statistics if isinstance(known, BasisPosterior) else None
        return cls(plan, setup.session, plan.settings_of(BasisSettings), space)

    # search

    def search(self, search: Search) -> Optimum:
        """Return the optimum on the sums of one pass, and again around where it ended while that is at the edge of their
        range."""
        first = search.start
        optimum, best = Optimum(first, None, False, "stopped on a subset", []), None
        for turn in range(MOVES):
            if search.session.journal.stopped:
                return optimum
            try:
                self._prepare(search.rows, first)
            except (SolverUnavailable, MemoryLimitError) as too_large:
                if turn == 0:
                    raise
                return replace(optimum, converged=False, message=str(too_large))
            narrow = replace(search, prior=search.prior.within(*self._limits(first))).starting_at(
                first
            )
            optimum = narrow.without_restarts().maximise(
                self.evaluate, warm=True, tol=SEARCH_TOLERANCE_NATS_PER_ROW
            )
            found = optimum.hyperparameters
            assert optimum.evidence is not None
            height = optimum.evidence.value + search.prior.value_and_gradient(found.theta)[0]
            if best is not None and height < best[0] - 0.1:
                return replace(
                    best[1],
                    converged=False,
                    message="another box has no better evidence: raise n_basis",
                )
            optimum = replace(optimum, evidence=None, at_bound=at_bound(found, search.prior))
            best = height, optimum
            if set(at_bound(found, narrow.prior)) <= set(optimum.at_bound):
                return optimum
            first = found
        return replace(
            optimum, converged=False, message=f"length scales left the box {MOVES} times"
        )

    def _limits(self, hyperparameters: Hyperparameters) -> tuple[np.ndarray, np.ndarray]:
        """Return logarithms of the parameters between which the box that was prepared around these holds;  (t,), (t,)."""
        theta, lengths = hyperparameters.theta, hyperparameters.is_length_scale
        low, high = np.full(theta.size, -np.inf), np.full(theta.size, np.inf)
        low[lengths], high[lengths] = (
            theta[lengths] + sign * 2.0 * np.log(REACH) for sign in (-1, 1)
        )
        return low, high

    # the box and its sums

    def _find_extent(self, rows: RowSource) -> InputExtent:
        if self._extent is None:
            self._extent = rows.sum_over(InputExtent.of, self._session)
        return self._extent

    def _prepare(
        self, rows: RowSource, hyperparameters: Hyperparameters, around: bool = True
    ) -> Space:
        """Build the box for these hyperparameters, and others around them if asked for, and pass over the rows once."""
        extent, some = self._find_extent(rows), rows.subset(LOOKED_AT)
        x, d = some.x, some.Z.shape[1]
        reach = REACH if around else CLOSE
        box = LaplacianBasis.around(extent, hyperparameters, d, reach, self._most // d, self._count)
        self._allow(box, 1, d)
        mean_square = np.square(box.functions(box.angles(x))).mean(axis=0)
        nodes = Nodes.around(
            Ratio.of(box, mean_square, hyperparameters).value, extent.z_squared, len(rows)
        )
        return self._add_up(rows, box, mean_square, nodes)

    def _add_up(
        self, rows: RowSource, box: LaplacianBasis, mean_square: np.ndarray, nodes: Nodes
    ) -> Space:
        self._allow(box, nodes.count, rows.subset(1).Z.shape[1])
        with self._session.journal.phase("sums over the rows"):
            sums = rows.sum_over(AddUp(box, nodes), self._session)
        self._space = Space(box, mean_square, nodes, sums)
        return self._space

    def _allow(self, box: LaplacianBasis, nodes: int, d: int) -> None:
        """Too large a basis is refused before it is built."""
        plan, size = self._plan, int(functions_in(box.counts)) * d
        what = f"a basis of {' x '.join(map(str, box.counts))} functions for each of {d} weights"
        if size > BASIS_LARGEST:
            raise SolverUnavailable(
                f"{what} makes {size}, more than {BASIS_LARGEST}: length scales are short beside the data (an outlier of x?); "
                "use solver='grid', or 'inducing' for a stream"
            )
        needed = basis_bytes(plan.n, plan.p, d, box.counts, nodes, plan.n_jobs, plan.stream)
        within(needed, plan.memory_limit, what, "solver='grid', or a smaller n_basis")

    def _space_for(self, rows: RowSource, hyperparameters: Hyperparameters) -> Space:
        """Return the space that is there, where it holds; for other noise, the same functions with more nodes."""
        space = self._space
        if space is None or not space.box.covers(hyperparameters.kernel):
            return self._prepare(rows, hyperparameters, around=False)
        rho = Ratio.of(space.box, space.mean_square, hyperparameters).value
        if space.nodes.covers(rho):
            return space
        return self._add_up(
            rows, space.box, space.mean_square, space.nodes.reaching(rho, len(rows))
        )

    # evaluations

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the log marginal likelihood from the sums of one pass;  M^3 flops, whatever n."""
        space = self._space_for(rows, hyperparameters)
        with self._threads.over(space.size, space.size**3 if gradient else 0):
            found = BasisLikelihood(space, hyperparameters, self._session)
            if not gradient:
                return Evidence(found.value, None, space.sums.rows)
            slope, metric = found.gradient_and_information()
        return Evidence(
            found.value, slope, space.sums.rows, information=metric if information else None
        )

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> BasisPosterior:
        space = self._space_for(rows, hyperparameters)
        with self._threads.over(space.size):
            return BasisPosterior.of(
                space, hyperparameters, rows.subset(LOOKED_AT).x, self._session
            )
