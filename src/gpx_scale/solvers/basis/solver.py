"""The solver with a basis of functions, for x in one to three dimensions.

    w_l(x) = sum_j s_j^1/2 v_jl phi_j(x) + noise      v ~ N(0, I)
    D = sigma_y^2 + (sigma_w^2 + remainder) |z|^2
    remainder = k(0) - sum_j s_j mean_i phi_j(x_i)^2

Sums over rows are computed once. After that an evaluation takes M^3 flops, M = q d, whatever n is.
The remainder is the part of k that the functions leave out. It counts as noise of the weights,
which makes the log marginal likelihood more accurate: for a Matern 1/2 with 300 rows and 770
functions, it is 18 nats off instead of 167. Every variance includes it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.inputs import Preprocessor, TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import MemoryLimitError, SolverUnavailable, UnresolvedKernelWarning
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum, at_bound
from ...optimize.search import Search
from ...runtime.memory import within
from ...runtime.session import Session
from ...runtime.state import are_finite, must, stored
from ..contract import Evidence, Plan, Problem, Solver, SolverSettings, SolverSetup
from ..low_dimensional import (
    SUBSET_ROWS,
    InputExtent,
    must_be_low,
    must_be_resolved,
    relative_signal_to_noise_of,
)
from ..posterior import Posterior
from ..rates import Rates
from .laplacian_basis import (
    AUTO_MAX_FUNCTIONS,
    FIXED_LENGTH_SCALE_FACTOR,
    LENGTH_SCALE_FACTOR,
    MAX_FUNCTIONS,
    LaplacianBasis,
    basis_bytes,
    counts_of,
    functions_in,
    left_out,
    must_have_density,
    reason_against_a_basis,
    term_basis_bytes,
)
from .marginal_likelihood import BasisLikelihood, NoiseRatio, Space
from .posterior import BasisPosterior
from .remainder import NEGLIGIBLE_SHARE, REACHES, Remainder, outer_box, statistics_task
from .sufficient_statistics import BlockBasisStatistics, Nodes
from .term_posterior import TermBasisPosterior
from .term_remainder import TermRemainder, further_functions
from .term_remainder import statistics_task as term_remainder_task
from .term_space import RowAverages, TermSpace
from .term_statistics import BlockTermStatistics, number_of_sums
from .weight_functions import WeightFunctions, longest_theta

# The remainder is measured on a subset of this many rows. It is an average, for which they suffice.
REMAINDER_ROWS = 1024
# Memory is planned for this many nodes of the interpolation, before their number is known.
USUAL_NODES = 14
# A search ends at this tolerance. It is tight, because evaluations are cheap and exact.
SEARCH_TOLERANCE_NATS_PER_ROW = 1e-6
# A search may build this many boxes, one after another, while length scales leave them. The limit
# only makes sure that a search ends, and was chosen by hand. As a box reaches a factor of 1.25 in
# length, this many boxes span a factor of 200.
MAX_BOXES = 24
# As long as the number of functions is not known, the expected time of a fit is that of a search
# plus that of the pass over the rows, in flops of matrix multiplication. They are rough: a fit of
# n = 20,000 rows took 3.1 s, and 2.3 s were expected.
SEARCH_FLOPS = 1e11
PASS_FLOPS_PER_ROW = 5e5
# Once the number is known, flops are counted for so many evaluations. Searches took 4 to 11 (1,785
# functions of two columns, and 4,212 of three).
EVALUATIONS = 8.0
# Weights with priors of their own take about so many times as long: they are searched again after
# terms were removed, and again with kernels of their own.
WEIGHT_TERMS_FACTOR = 2.5
# Which terms weights have is decided on so many rows, if there are more than twice as many. Each
# box of a search takes a pass over the rows, and decisions take several searches.
DECISION_ROWS = 10_000
# They have no more functions then, because the M^3 flops of an evaluation take a second otherwise.
DECISION_FUNCTIONS = 1_500
# An entry of a matrix that is looked up among sums of cosines takes as long as so many flops.
LOOKED_UP_FLOPS = 100.0
# A fit warns if further functions leave out more than this share of k, and less of it if the noise
# is small. With 5%, standard deviations of weights are down to 0.90 of the exact ones (Matern 1/2
# in two dimensions, 300 rows), with 0.06% and noise of 0.03 down to 0.96 (Matern 3/2).
UNRESOLVED_SHARE = 2e-3
# A search on another box ends if its optimum is lower than the one before by more than this.
WORSE_BOX_NATS = 0.1


# The name of the phase in which sums for further functions are computed.
REMAINDER_PHASE = "sums over the rows for what the functions leave out"


@stored
@dataclass(frozen=True)
class BasisSettings(SolverSettings):
    """The number of functions for each column of x, and the range of x once it is known.

    `count` None means that there are as many functions as the length scales require. `flops` are
    those of a fit, 0 as long as the number of functions is not known.
    """

    count: int | None = None
    extent: InputExtent | None = None
    flops: float = 0.0

    def must_fit(self, preprocessor: Preprocessor) -> None:
        must_be_resolved(self.count, self.extent, preprocessor)
        must(are_finite(self.flops) and self.flops >= 0, "its plan takes no number of flops")


class BasisSolver(Solver):
    """The solver that computes log marginal likelihood and posterior from functions on a box.

    The box is built when it is needed, and again if the length scales leave its range.
    """

    name = "basis"
    capabilities = BasisPosterior.capabilities
    posterior_class = BasisPosterior
    term_posterior_class = TermBasisPosterior
    has_sums = True
    settings_class = BasisSettings

    def __init__(
        self,
        plan: Plan,
        session: Session,
        settings: BasisSettings,
        space: Space | TermSpace | None = None,
        most: int | None = None,
    ) -> None:
        """Keep the plan; a box should have at most `most` functions for all weights."""
        self._plan, self._session = plan, session
        self._most, self._count, self._extent = (
            AUTO_MAX_FUNCTIONS if most is None else most,
            settings.count,
            settings.extent,
        )
        self._space = space

    @classmethod
    def refuse(cls, problem: Problem) -> None:
        must_be_low(problem.p, problem.resolution, problem.options.dtype, cls.name)
        assert problem.resolution is not None
        must_have_density(problem.resolution)
        if problem.own_curves:
            raise SolverUnavailable(
                "solver='basis' has no functions of single columns of X, which weights='additive' "
                "needs. Use solver='exact', or weights='semi'."
            )

    @classmethod
    def reason_against(cls, problem: Problem) -> str | None:
        if problem.own_curves:
            return "it has no functions of single columns of X"
        sizes = problem.p, problem.d
        return reason_against_a_basis(*sizes, problem.resolution, problem.options.n_basis)

    @classmethod
    def is_as_exact(cls, problem: Problem) -> bool:
        """Return whether the kernel is an RBF: functions on a box resolve it to rounding."""
        return problem.resolution is not None and bool(np.isinf(problem.resolution.smoothness))

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        n, p, d, found = problem.n, problem.p, problem.d, problem.resolution
        assert found is not None
        columns = "1 column" if p == 1 else f"{p} columns"
        how = f"X has {columns}, so functions on a box are used, with one pass over the rows."
        count, subset, reasons = problem.options.n_basis, min(n, SUBSET_ROWS), [how]
        searching = problem.exact_bytes(subset) + problem.held_bytes()
        counts, flops = np.full(p, count) if count is not None else None, 0.0
        if found.spans is not None and counts is None:
            counts = counts_of(found, AUTO_MAX_FUNCTIONS // d)
        if counts is None:
            needed = searching
            reasons.append(
                "There are as many functions as the length scales require. These are estimated "
                f"first, by the exact solver on {subset} rows."
            )
        else:
            needed = max(searching, bytes_of(problem, counts))
            q, flops = int(functions_in(counts)), fit_flops(problem, counts)
            spans = "" if found.spans is None else ", ".join(f"{2 * s:.1f}" for s in found.spans)
            lengths = f", for data that are {spans} length scales wide" if spans else ""
            reasons.append(
                f"There are about {q} functions for each weight "
                f"({' x '.join(map(str, counts))}){lengths}: {q * d} in all."
            )
        problem.require(searching, "The basis solver's search on a subset")
        if count is not None:
            what = f"A basis of {count} functions per column of X for each of {d} weights"
            problem.require(int(needed), what, "a smaller n_basis")
        return problem.planned(
            *(cls.name, np.float64, int(needed), reasons),
            subset=subset,
            stream=problem.stream,
            needs_length_scales=found.spans is None,
            settings=BasisSettings(count, found.extent, flops),
        )

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return False, so that a user learns that the memory is too small.

        A basis that is too large is one that the user asked for with `n_basis`, or not even the
        search on a subset fits into memory.
        """
        return False

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the predicted time of one pass over the rows and some factorisations."""
        wide = 0.5 + (plan.d + plan.p) / 40.0
        flops = plan.settings_of(BasisSettings).flops
        if not flops:
            searches = WEIGHT_TERMS_FACTOR if plan.weight_kernels else 1.0
            flops = searches * (SEARCH_FLOPS + PASS_FLOPS_PER_ROW * plan.n * wide)
        return rates.startup + flops / rates.flops64

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> BasisSolver:
        space = known.statistics if isinstance(known, BasisPosterior) else None
        return cls(plan, setup.session, plan.settings_of(BasisSettings), space)

    def search(self, search: Search) -> Optimum:
        """Return the optimum, from the sums of one pass over the rows.

        If a length scale ends at the edge of the range of the box, the search goes on with a box
        that is built around it.
        """
        limited, first = search.limited(), self._within_reach(search, search.start)
        if limited is not search:
            extent = self._find_extent(search.rows)
            plan = replace(self._plan, n=len(limited.rows))
            some = BasisSolver(plan, self._session, BasisSettings(self._count, extent))
            return some.search(limited)
        optimum, best = (
            Optimum(first, None, False, "the search was stopped on a subset of the rows", []),
            None,
        )
        for turn in range(MAX_BOXES):
            if search.session.journal.stopped:
                return optimum
            try:
                self._prepare(search.rows, first)
            except (SolverUnavailable, MemoryLimitError) as too_large:
                if turn == 0:
                    raise
                return replace(optimum, converged=False, message=str(too_large))
            # Evaluations do not depend on n, so the search goes on to the optimum.
            limits, reach = self._limits(first), self._longest(search, first)
            narrow = replace(
                search,
                prior=search.prior.within(limits[0], np.minimum(limits[1], reach)),
                search_rows="all",
            ).starting_at(first)
            is_shared = first.weight_prior.is_shared
            tol = SEARCH_TOLERANCE_NATS_PER_ROW if is_shared else 0.0
            optimum = narrow.without_restarts().maximise(self.evaluate, warm=True, tol=tol)
            found = optimum.hyperparameters
            if optimum.evidence is None:  # It was interrupted, or y is constant.
                return optimum
            height = optimum.evidence.value + search.prior.value_and_gradient(found.theta)[0]
            if best is not None and height < best[0] - WORSE_BOX_NATS:
                return replace(
                    best[1],
                    converged=False,
                    message="another box has a lower log marginal likelihood: raise n_basis",
                )
            optimum = replace(optimum, evidence=None, at_bound=at_bound(found, search.prior))
            best = height, optimum
            # Length scales that end at the longest possible ones stay there on any box.
            ended = replace(narrow.prior, high=np.where(reach <= limits[1], np.inf, limits[1]))
            if set(at_bound(found, ended)) <= set(optimum.at_bound):
                return optimum
            first = found
        return replace(
            optimum, converged=False, message=f"length scales left the box {MAX_BOXES} times"
        )

    def _limits(self, hyperparameters: Hyperparameters) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of `theta` for which a box around these hyperparameters is built.

        (t,), (t,);  theta has the logarithm of a squared length scale, hence the factor 2
        """
        theta, lengths = hyperparameters.theta, hyperparameters.is_length_scale
        low, high = np.full(theta.size, -np.inf), np.full(theta.size, np.inf)
        low[lengths], high[lengths] = (
            theta[lengths] + sign * 2.0 * np.log(LENGTH_SCALE_FACTOR) for sign in (-1, 1)
        )
        return low, high

    def for_decisions(self, rows: RowSource) -> tuple[Solver, RowSource]:
        if len(rows) <= 2 * DECISION_ROWS:
            return self, rows
        some = MemoryRows(rows.subset(DECISION_ROWS))
        settings = BasisSettings(self._count, self._find_extent(rows))
        plan = replace(self._plan, n=len(some), stream=False)
        return BasisSolver(plan, self._session, settings, most=DECISION_FUNCTIONS), some

    def _longest(self, search: Search, hyperparameters: Hyperparameters) -> np.ndarray:
        """Return the largest `theta` at which boxes have a common lattice that is not too fine.

        (t,);  it is infinite but for length scales of several kernels
        """
        if hyperparameters.weight_prior.is_shared:
            return np.full(hyperparameters.theta.size, np.inf)
        extent = self._find_extent(search.rows)
        return longest_theta(extent, hyperparameters, LENGTH_SCALE_FACTOR)

    def _within_reach(self, search: Search, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Return hyperparameters whose length scales are no longer than possible."""
        if hyperparameters.weight_prior.is_shared:
            return hyperparameters
        theta = np.minimum(hyperparameters.theta, self._longest(search, hyperparameters))
        return hyperparameters.with_theta(theta)

    def _find_extent(self, rows: RowSource) -> InputExtent:
        """Return the range of x, by a pass over the rows if the plan does not have it."""
        if self._extent is None:
            self._extent = rows.sum_over(InputExtent.of, self._session)
        return self._extent

    def _prepare(
        self, rows: RowSource, hyperparameters: Hyperparameters, around: bool = True
    ) -> Space | TermSpace:
        """Return functions and sums for these hyperparameters, by one pass over the rows.

        If `around` is true, they serve a range of length scales that a search may move in.
        """
        extent, some = self._find_extent(rows), rows.subset(REMAINDER_ROWS)
        reach = LENGTH_SCALE_FACTOR if around else FIXED_LENGTH_SCALE_FACTOR
        if not hyperparameters.weight_prior.is_shared:
            given = extent, hyperparameters, reach, self._most, self._count
            functions = WeightFunctions.around(*given)
            self._allow_functions(functions, 1)
            averages = RowAverages.of(functions, some)
            ratio = averages.ratio(functions, hyperparameters).value
            nodes = Nodes.around(ratio, extent.z_squared, len(rows))
            return self._add_up_terms(rows, functions, averages, nodes)
        x, d = some.x, some.Z.shape[1]
        box = LaplacianBasis.around(extent, hyperparameters, d, reach, self._most // d, self._count)
        self._allow(box, 1, d)
        mean_square = np.square(box.functions(box.angles(x))).mean(axis=0)
        nodes = Nodes.around(
            NoiseRatio.of(box, mean_square, hyperparameters).value, extent.z_squared, len(rows)
        )
        return self._add_up(rows, box, mean_square, nodes)

    def _add_up(
        self, rows: RowSource, box: LaplacianBasis, mean_square: np.ndarray, nodes: Nodes
    ) -> Space:
        """Keep and return the sums over rows for these functions and nodes."""
        self._allow(box, nodes.count, rows.subset(1).Z.shape[1])
        with self._session.journal.phase("sums over the rows"):
            sums = rows.sum_over(BlockBasisStatistics(box, nodes), self._session)
        self._space = space = Space(box, mean_square, nodes, sums)
        return space

    def _add_up_terms(
        self, rows: RowSource, functions: WeightFunctions, averages: RowAverages, nodes: Nodes
    ) -> TermSpace:
        """Keep and return the sums over rows for the functions of weights with their own priors."""
        self._allow_functions(functions, nodes.count)
        with self._session.journal.phase("sums over the rows"):
            sums = rows.sum_over(BlockTermStatistics(functions, nodes), self._session)
        self._space = space = TermSpace(functions, averages, nodes, sums)
        return space

    def _allow(self, box: LaplacianBasis, nodes: int, d: int) -> None:
        """Raise an error if a basis is too large, before it is built."""
        plan, size = self._plan, int(functions_in(box.counts)) * d
        what = f"A basis of {' x '.join(map(str, box.counts))} functions for each of {d} weights"
        needed = basis_bytes(plan.n, plan.p, d, box.counts, nodes, plan.n_jobs, plan.stream)
        self._allow_size(what, size, needed)

    def _allow_functions(self, functions: WeightFunctions, nodes: int) -> None:
        """Raise an error if the functions of weights with priors of their own are too many."""
        plan, size = self._plan, functions.about_size
        counts = [" x ".join(map(str, one.box.counts)) for one in functions.sets]
        what = f"A basis of {', '.join(counts)} functions for weights with priors of their own"
        most = max([pair.frequencies for _, _, pair in functions.pairs], default=1)
        needed = term_basis_bytes(
            *(plan.n, (plan.p, functions.d, nodes), size, nodes * number_of_sums(functions), most),
            *(plan.n_jobs, plan.stream),
        )
        self._allow_size(what, size, needed)

    def _allow_size(self, what: str, size: int, needed: int) -> None:
        """Raise an error if there are too many functions, or they need too much memory."""
        if size > MAX_FUNCTIONS:
            raise SolverUnavailable(
                f"{what} has {size} functions, and {MAX_FUNCTIONS} are possible. The length scales "
                "are short beside the range of x, which may have an outlier. Use solver='grid', or "
                "solver='inducing' for a stream."
            )
        within(needed, self._plan.memory_limit, what, "solver='grid', or a smaller n_basis")

    def _space_for(self, rows: RowSource, hyperparameters: Hyperparameters) -> Space | TermSpace:
        """Return functions and sums for these hyperparameters, the known ones if they will do.

        If the length scales are in the range of the known functions and the noise is not in that of
        the nodes, the functions stay, and the sums are computed for more nodes.
        """
        space = self._space
        if space is None or not space.covers_lengths(hyperparameters):
            return self._prepare(rows, hyperparameters, around=False)
        rho = space.ratio(hyperparameters).value
        if space.nodes.covers(rho):
            return space
        nodes = space.nodes.reaching(rho, len(rows))
        if isinstance(space, TermSpace):
            return self._add_up_terms(rows, space.functions, space.averages, nodes)
        return self._add_up(rows, space.box, space.mean_square, nodes)

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return the log marginal likelihood from the sums over rows;  M^3 flops, whatever n is."""
        space = self._space_for(rows, hyperparameters)
        found = BasisLikelihood(space, hyperparameters, self._session)
        if not gradient:
            return Evidence(found.value, None, space.rows)
        slope, metric = found.gradient_and_information()
        return Evidence(found.value, slope, space.rows, information=metric if information else None)

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> BasisPosterior:
        space, some = self._space_for(rows, hyperparameters), rows.subset(REMAINDER_ROWS)
        made: BasisPosterior
        if isinstance(space, TermSpace):
            made = self._term_posterior(rows, space, hyperparameters, some)
        else:
            made = self._shared_posterior(rows, space, hyperparameters, some)
        sizes = some.Z.shape[1], some.x.shape[1]
        growth = relative_signal_to_noise_of(hyperparameters, *sizes)
        if made.tail_share * growth > UNRESOLVED_SHARE:
            warnings.warn(
                f"The functions of the basis, and those that count what they leave out, miss "
                f"{made.tail_share:.1%} of the prior variance: the kernel is too rough for so few "
                "functions. Standard deviations may be several per cent below the exact ones. Use "
                "solver='neighbors' or 'exact', or a larger n_basis.",
                UnresolvedKernelWarning,
                stacklevel=2,
            )
        return made

    def _shared_posterior(
        self, rows: RowSource, space: Space, hyperparameters: Hyperparameters, some: TrainingRows
    ) -> BasisPosterior:
        """Return the posterior of weights that share their prior."""
        box, d, session, remainder = space.box, space.d, self._session, None
        relative = relative_signal_to_noise_of(hyperparameters, d, some.x.shape[1])
        sizes = relative, d, space.size, session.memory_limit
        outer = outer_box(box, hyperparameters.kernel, some.x, *sizes)
        if outer is not None:
            rho = space.ratio(hyperparameters).value
            with session.journal.phase(REMAINDER_PHASE):
                task = statistics_task(box, outer, rho, hyperparameters)
                remainder = Remainder(outer, rows.sum_over(task, session))
        return BasisPosterior.of(space, hyperparameters, some.x, remainder, session)

    def _term_posterior(
        self,
        rows: RowSource,
        space: TermSpace,
        hyperparameters: Hyperparameters,
        some: TrainingRows,
    ) -> TermBasisPosterior:
        """Return the posterior of weights that have priors of their own."""
        functions, session, remainder = space.functions, self._session, None
        outer = further_functions(functions, hyperparameters, some.x, session.memory_limit)
        if outer is not None:
            rho = space.ratio(hyperparameters).value
            with session.journal.phase(REMAINDER_PHASE):
                task = term_remainder_task(functions, outer, rho, hyperparameters)
                remainder = TermRemainder(outer, rows.sum_over(task, session))
        return TermBasisPosterior.of(space, hyperparameters, some.x, remainder, session)


def bytes_of(problem: Problem, counts: np.ndarray) -> int:
    """Return the memory of a fit with these counts of functions, in bytes."""
    n, p, d, rest = problem.n, problem.p, problem.d, (problem.n_jobs, problem.stream)
    if not problem.weight_terms:
        return basis_bytes(n, p, d, counts, USUAL_NODES, *rest)
    q, cosines = int(functions_in(counts)), int(np.prod(2.0 * counts + 1.0))
    sums = USUAL_NODES * (d * (d + 1) // 2 * cosines + d * (d + 1) * (q + 1))
    return term_basis_bytes(n, (p, d, USUAL_NODES), (q + 1) * d, sums, cosines, *rest)


def fit_flops(problem: Problem, counts: np.ndarray) -> float:
    """Return about how many flops a fit with these counts of functions takes.

    There are one pass over the rows, evaluations with M^3 flops and 2^p M^2 entries that are looked
    up, and the posterior. If the functions leave out more than a negligible share of k, this takes
    4 M^3 + 4 c M^2 flops more for c further functions, which reach further in each dimension.
    """
    n, p, d, found = problem.n, problem.p, problem.d, problem.resolution
    assert found is not None
    q, cosines = functions_in(counts), float(np.prod(2.0 * counts + 1.0))
    M = q * d
    passing = 2.0 * n * USUAL_NODES * (0.5 * d * (d + 1) * cosines + d * q)
    passing += LOOKED_UP_FLOPS * n * (cosines + q)
    evaluation = M**3 + LOOKED_UP_FLOPS * 2.0**p * M**2
    evaluations = EVALUATIONS * problem.options.searched + 1.0
    left = 0.0 if found.spans is None else left_out(found, AUTO_MAX_FUNCTIONS // d)
    further = 4.0 * REACHES[0] ** p * M**3 if left > NEGLIGIBLE_SHARE else 0.0
    searches = WEIGHT_TERMS_FACTOR if problem.weight_terms else 1.0
    return searches * (passing + evaluations * evaluation) + further
