"""The solver by conjugate gradients, which estimates log p(y) and its gradient from random probes.

A probe z is a random vector whose covariance is the preconditioner P:

    P = D + F F^T,     z = F e1 + D^1/2 e2 ~ N(0, P),     e1 and e2 are the same in a whole fit
    tr(C^-1 dC)  ~  mean[(C^-1 z).dC (P^-1 z)] + c {tr(P^-1 dP) - mean[(P^-1 z).dP (P^-1 z)]}
    log|C|       ~  log|P| + n mean[u.log(P^-1/2 C P^-1/2) u],     u = P^-1/2 z / |P^-1/2 z|

The term with c makes P a control variate, which lowers the variance of the estimate. The logarithm
is computed by Lanczos quadrature, from the coefficients of the conjugate gradients. C^-1 y and
C^-1 z are solved for together, so that each tile of C is used for all of them.

For a sparse Z, C is a list of pairs, P has the whole diagonal of C, e1 and e2 are random signs, and
c = 0. Otherwise, c = 1 would be right if P were C. If P is far from C, that would add variance, so
c is the regression coefficient <A, B> / |B|^2 of the two quadratic forms A = P^1/2 C^-1 dC P^-1/2
and B = P^-1/2 dP P^-1/2. One probe measures both to a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import NotConverged
from ...linalg.conjugate_gradients import MAX_ITERATIONS, Solution, log_quadrature, solve
from ...linalg.covariance import Covariance
from ...linalg.covariance_forms import covariances
from ...linalg.kernel_tiles import PRODUCT_COLUMNS
from ...linalg.pairs import PAIR_BYTES, TERM_PAIR_BYTES, Pairs
from ...linalg.preconditioner import LowRankPreconditioner, choose_pivots
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import SUBSET_TOLERANCE_NATS_PER_ROW, Search
from ...runtime.memory import within
from ...runtime.parallel import slices
from ...runtime.session import Session
from ..constant_weights import ConstantWeights
from ..contract import Evidence, Plan, Problem, Solver, SolverSetup
from ..exact.solver import ExactSolver
from ..local_variance import LocalVariance
from ..posterior import Posterior, symmetric_part
from ..rates import Rates
from .pathwise_sampling import PriorPath, prior_paths
from .planning import (
    TRIAL_RANK_DIVISOR,
    CGSettings,
    expected_seconds,
    larger_subset,
    plan_conjugate_gradients,
    uses_pairs,
    usual_rank,
)
from .posterior import PATH_ENERGY_SHARE, PATHS, CGPosterior, PathBank
from .variance_calibration import CalibrationRows

# With y, these are 16 columns. Up to 16 columns, a product costs the same.
PROBES = 15
# The tolerances below limit the error of a solve in nats, as `linalg.conjugate_gradients` defines
# it. Some are shares of an energy: the energy of a right-hand side z is z.P^-1 z / 2.

# During a search, the error of alpha may be up to this many nats per row. At n = 8,000, gradients
# at 10 nats and at 1e-4 nats differ by far less than the noise of the probes. The reason is that
# conjugate gradients that start from 0 leave a residual that is orthogonal to all search
# directions. A start from the alpha of the previous hyperparameters does not, and at the same
# tolerance its gradient is off by tens of nats. So solves of a search start from 0.
SEARCH_TOLERANCE_NATS_PER_ROW = 1e-4
# The error of a probe's solution may be up to this share of the probe's energy.
PROBE_ENERGY_SHARE = 1e-2
# The error of the final alpha may be up to this many nats, if y is as large as the model expects.
ALPHA_TOLERANCE_NATS = 1e-6
# Rows are grouped into quarters by C_ii. The tolerance of alpha is proportional to the smallest
# mean of y^2 / C_ii of a quarter, but to at least this share of the largest mean.
LEAST_RATIO_OF_GROUPS = 1e-8
# The errors of the solutions for the average information may be up to this share of the energies.
INFORMATION_ENERGY_SHARE = 1e-2
# The errors of the solutions for constant weights may be up to this share of the energies. Then
# standard deviations are off by at most about 1e-4 of themselves.
CONSTANT_ENERGY_SHARE = 1e-8
# Preconditioners are compared by solves for y with an error of up to this many nats per row.
TRIAL_TOLERANCE_NATS_PER_ROW = 1e-2
# If Jacobi's preconditioner needs fewer iterations than this, it is taken without comparison.
JACOBI_ENOUGH_ITERATIONS = 25
# The variances at calibration rows are accurate to this share of their scale.
CALIBRATION_SHARE = 1e-4
# Pivots are drawn until they leave, on average, at most this many noise variances of S_ii. Then
# the noise is larger than the part of S that is left. The value was chosen by hand.
REMAINDER_PER_NOISE = 0.5
# The time of one row of a pivot times 16 columns, measured on two cores.
PIVOT_ROW_NS = 3.5
# The time of one of the n r^2 flops that build P, measured on two cores.
BUILD_FLOP_NS = 0.06
# Up to this many rows, "auto" takes the exact solver for a sparse Z, whose standard deviations are
# exact, even if conjugate gradients are much faster.
PAIRS_FROM_ROWS = 10_000
# If y.P^-1 y / n, twice the energy of y per row, exceeds this number, the tolerance of alpha grows
# with it. It is about 1 for a y of the model.
LARGEST_USUAL_ENERGY_PER_ROW = 1e4

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Evaluated:
    """The results of an evaluation that a later one may use; `deviation` is that of log|C|."""

    data: TrainingRows
    hyperparameters: Hyperparameters
    preconditioner: LowRankPreconditioner
    alpha: np.ndarray
    log_determinant: float
    deviation: float

    def at(self, data: TrainingRows, hyperparameters: Hyperparameters) -> _Evaluated | None:
        """Return this evaluation if it was of these rows at these hyperparameters, else None."""
        mine, other = self.hyperparameters, hyperparameters
        same = mine.names == other.names and np.array_equal(mine.theta, other.theta)
        return self if same and self.data is data else None


class CGSolver(Solver):
    """The solver by conjugate gradients, which needs only products with C.

    It keeps the pivots of the preconditioner, the probes and the last alpha from call to call.
    """

    name = "cg"
    keeps_rows = True
    uses_pairs = True
    capabilities = CGPosterior.capabilities
    posterior_class: ClassVar[type[Posterior[Any]]] = CGPosterior
    settings_class = CGSettings

    def __init__(self, plan: Plan, settings: CGSettings, session: Session) -> None:
        self._plan, self.settings, self._session = plan, settings, session
        self._try_jacobi = settings.try_jacobi
        self._pairs: Pairs | None = None
        self._pivots: np.ndarray | None = None
        self._draws: tuple[np.ndarray, np.ndarray] | None = None
        # The coefficient c of the control variate is kept, so that all gradients are those of one
        # function. It is computed anew when terms of the weights were removed.
        self._control: np.ndarray | None = None
        # The last evaluation, from which the final solve starts.
        self._last: _Evaluated | None = None

    # Planning.

    @classmethod
    def is_as_exact(cls, problem: Problem) -> bool:
        """Return whether C is a list of pairs of many rows.

        C is exact then, and standard deviations are upper bounds.
        """
        return uses_pairs(problem) and problem.n > PAIRS_FROM_ROWS

    @classmethod
    def plan(cls, problem: Problem) -> Plan:
        return plan_conjugate_gradients(problem)

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return whether "auto" may try the next solver: not if the user asked for a rank."""
        return problem.options.rank is None

    @classmethod
    def seconds(cls, plan: Plan, rates: Rates) -> float | None:
        return expected_seconds(plan, rates)

    @classmethod
    def create(
        cls, plan: Plan, setup: SolverSetup, known: Posterior[Any] | None = None
    ) -> CGSolver:
        return cls(plan, plan.settings_of(CGSettings), setup.session)

    # Search.

    def search(self, search: Search) -> Optimum:
        """Return the optimum of all rows, by Newton's method from the optimum of a subset."""
        limited = search.limited()
        if limited is not search:
            return replace(self._for_rows(len(limited.rows)).search(limited), evidence=None)
        if search.warm:
            return search.gradient_newton(self.evaluate)
        optimum = self._subset_optimum(search)
        if self._plan.subset == self._plan.n or self._session.journal.stopped:
            return optimum
        return search.starting_at(optimum.hyperparameters).gradient_newton(self.evaluate)

    def _for_rows(self, count: int) -> Self:
        """Return a solver for a search on fewer rows."""
        plan = replace(self._plan, n=count, subset=min(self._plan.subset, count))
        settings = replace(self.settings, rank=min(self.settings.rank, usual_rank(count)))
        return type(self)(plan, settings, self._session)

    def _subset_optimum(self, search: Search) -> Optimum:
        """Return the optimum of a subset by the exact solver, with estimated gradients.

        The evidence is left out, and with it the leave-one-out residuals, as it belongs to another
        solver or to other rows than those of the fit.
        """
        plan, session, tol = self._plan, self._session, SUBSET_TOLERANCE_NATS_PER_ROW
        if plan.subset == plan.n:
            exact = ExactSolver(plan.n, np.float64, session)
            return replace(search.maximise(exact.evaluate, estimates=True), evidence=None)
        larger = larger_subset(plan)
        m = larger or plan.subset
        order, rows = session.random.permutation(plan.n), search.rows.load()
        some = search.on(MemoryRows(rows[np.sort(order[:m])]))
        exact = ExactSolver(m, np.float32 if m == larger else np.float64, session)
        return replace(some.maximise(exact.evaluate, tol=tol, estimates=True), evidence=None)

    def _allow(self, count: int) -> None:
        """Raise a MemoryLimitError if so many pairs, which may be more than planned, do not fit."""
        what = f"a sparse C of {count:,} pairs"
        each = PAIR_BYTES + TERM_PAIR_BYTES * bool(self._plan.weight_kernels)
        within(count * each, self._plan.memory_limit, what, "rarer features (a lower max_df)")

    # Evaluations.

    def _covariances(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[Covariance, Covariance]:
        """Return C for many products, and C in float64 for residuals."""
        if self.settings.form == "pairs" and self._pairs is None:
            with self._session.journal.phase("pairs"):
                self._pairs = Pairs.of(data, hyperparameters.kernel, self._session, self._allow)
        return covariances(
            data, hyperparameters, self._session, self.settings.form, self._plan.dtype, self._pairs
        )

    def _precondition(
        self, C: Covariance, precise: Covariance, y: np.ndarray
    ) -> LowRankPreconditioner:
        """Return the preconditioner P; the first call chooses its pivots for the whole fit."""
        bounds = self.settings.form != "pairs"
        if self._pivots is None:
            with self._session.journal.phase("preconditioner"):
                self._pivots = self._choose_pivots(C, precise, y)
            rank = self._pivots.size
            kind = f"a preconditioner of rank {rank}" if rank else "Jacobi's preconditioner"
            self._session.journal.say(f"This fit takes {kind}.")
        P = LowRankPreconditioner.of(C, self._pivots, bounds)
        if self._draws is None:
            draw = self._session.random.standard_normal if bounds else self._signs
            self._draws = draw((P.rank, PROBES)), draw((len(y), PROBES))
        return P

    def _choose_pivots(self, C: Covariance, precise: Covariance, y: np.ndarray) -> np.ndarray:
        """Return the pivots, which are none if Jacobi's preconditioner is faster;  (r,).

        The time of a solve for y is the number of iterations times the predicted time of one. A
        clock is not used, so that a fit is the same every time.
        """
        none, without = np.empty(0, int), MAX_ITERATIONS
        if self._try_jacobi:
            without = iterations_for(C, precise, none, y)
            if without < JACOBI_ENOUGH_ITERATIONS:
                return none
        # All pivots are taken if Jacobi's preconditioner was not tried, or did not converge.
        converged = without != MAX_ITERATIONS
        rank = self.settings.rank
        rank = -(-rank // TRIAL_RANK_DIVISOR) if converged else rank
        random = self._session.random
        pivots = choose_pivots(C.varying, rank, random, below_noise=REMAINDER_PER_NOISE)
        if not converged:
            return pivots
        n, r, product = len(y), pivots.size, C.product_cost
        building = n * r * r * BUILD_FLOP_NS
        one = product + n * r * PIVOT_ROW_NS
        total = iterations_for(C, precise, pivots, y) * one + building
        return pivots if total < without * product else none

    def _probes(self, P: LowRankPreconditioner, count: int) -> np.ndarray:
        """Return the first `count` probes;  (n, count).

        P has fewer pivots than there are draws if the weights of some have lost their variances.
        """
        assert self._draws is not None
        first, second = self._draws
        return P.draw(first[: P.rank, :count], second[:, :count])

    def _signs(self, shape: tuple[int, int]) -> np.ndarray:
        """Return random signs, -1 or 1."""
        return np.where(self._session.random.uniform(size=shape) < 0.5, -1.0, 1.0)

    def _with_all_pivots_if_needed(self, work: Callable[[], Result]) -> Result:
        """Run `work`; if it does not converge, retry with all pivots, and keep them."""
        try:
            return work()
        except NotConverged:
            if not self._try_jacobi:
                raise
            self._try_jacobi, self._pivots, self._draws = False, None, None
            return work()

    def evaluate(
        self,
        rows: RowSource,
        hyperparameters: Hyperparameters,
        *,
        gradient: bool = True,
        information: bool = False,
    ) -> Evidence:
        """Return an estimate of log p(y) and its standard error.

        Its gradient and the average information come with it if they are asked for. The cost is one
        product with C per iteration, and 5 n r^2 flops for a preconditioner of rank r.
        """
        data = rows.load()
        return self._with_all_pivots_if_needed(
            lambda: self._evaluate(data, hyperparameters, gradient, information)
        )

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> CGPosterior:
        """Return the posterior, whose alpha, evidence and paths come from one solve."""
        data = rows.load()
        return self._with_all_pivots_if_needed(lambda: self._condition(data, hyperparameters))

    def _evaluate(
        self,
        data: TrainingRows,
        hyperparameters: Hyperparameters,
        gradient: bool,
        information: bool,
    ) -> Evidence:
        """Evaluate as `evaluate` says, with the present preconditioner."""
        self._last = None
        C, precise = self._covariances(data, hyperparameters)
        P = self._precondition(C, precise, data.y)
        probes = self._probes(P, PROBES)
        halves = P.solve(probes)
        energy = np.einsum("ij,ij->j", probes, halves)
        found = solve(
            C,
            P,
            np.column_stack([data.y, probes]),
            np.concatenate(
                [[SEARCH_TOLERANCE_NATS_PER_ROW * len(data)], 0.5 * PROBE_ENERGY_SHARE * energy]
            ),
            precise=precise,
            tell=self._session.journal.iterated,
        )
        alpha = found.X[:, 0].copy()
        log_determinant, deviation = _log_determinant(found, P, range(1, 1 + PROBES))
        self._last = _Evaluated(data, hyperparameters, P, alpha, log_determinant, deviation)
        slope = metric = None
        if gradient:
            U = np.column_stack([alpha, -found.X[:, 1:] / PROBES])
            V = np.column_stack([alpha, halves])
            slope = 0.5 * C.contract(U, V)
            if P.bounds_from_below:
                if self._control is None or self._control.size != slope.size:
                    self._control = _control_coefficient(C, P, found.X[:, 1], halves[:, 0])
                slope += 0.5 * self._control * (P.contract(halves) / PROBES - P.trace_gradient())
        if information:
            try:
                metric = self._information(C, P, alpha)
            except NotConverged:
                # Products in float32 were not accurate enough.
                metric = self._information(precise, P, alpha)
        return Evidence(
            _log_density(found, log_determinant),
            slope,
            len(data),
            alpha,
            information=metric,
            standard_error=0.5 * deviation,
            probes=PROBES,
        )

    def _information(
        self, C: Covariance, P: LowRankPreconditioner, alpha: np.ndarray
    ) -> np.ndarray:
        """Return the average information, 1/2 (dC_s alpha).C^-1 (dC_t alpha);  (t, t).

        It is the mean of observed and expected information. P^-1 cannot replace C^-1 here: it
        overestimates the information of theta1 four times on `synth10`.
        """
        U = C.tangents(alpha)
        # The tangent of sigma_w is 0 where sigma_w is 0.
        moving = np.flatnonzero(U.any(axis=0))
        if not moving.size:
            return np.zeros((U.shape[1], U.shape[1]))
        right = U[:, moving]
        energy = 0.5 * np.einsum("ij,ij->j", right, P.solve(right))
        nats, tell = INFORMATION_ENERGY_SHARE * energy, self._session.journal.iterated
        X = np.hstack(
            [
                solve(C, P, right[:, j], nats[j], tell=tell).X
                for j in slices(moving.size, PRODUCT_COLUMNS)
            ]
        )
        metric = np.zeros((U.shape[1], U.shape[1]))
        metric[np.ix_(moving, moving)] = 0.5 * symmetric_part(right.T @ X)
        return metric

    def _condition(self, data: TrainingRows, hyperparameters: Hyperparameters) -> CGPosterior:
        """Condition as `condition` says, with the present preconditioner.

        If the last evaluation was at the same hyperparameters, its log-determinant is used, and
        probes are not solved for again.
        """
        C, precise = self._covariances(data, hyperparameters)
        known, alpha = None, None
        if self._last is not None:
            known, alpha = self._last.at(data, hyperparameters), self._last.alpha
        P = self._precondition(C, precise, data.y) if known is None else known.preconditioner
        probes = self._probes(P, PROBES if known is None else 0)
        seed = int(self._session.random.randint(2**31))
        paths: list[PriorPath] = []
        seen = np.empty((len(data), 0))
        # Paths of a sparse Z are drawn when samples are asked for.
        if hyperparameters.kernel.input_kind == "vectors" and not data.Z.is_sparse:
            paths, seen = prior_paths(
                data,
                hyperparameters,
                [np.random.RandomState([seed, s]) for s in range(PATHS)],
                self._session,
            )
        calibration = CalibrationRows.draw(data, hyperparameters, self._session.random)
        B = np.column_stack([data.y, probes, calibration.right_hand_sides(C), seen])
        energy = 0.5 * np.einsum("ij,ij->j", probes, P.solve(probes))
        nats = np.concatenate(
            [
                [ALPHA_TOLERANCE_NATS * _relative_size(data.y, C, P)],
                PROBE_ENERGY_SHARE * energy,
                CALIBRATION_SHARE * calibration.scale,
                np.full(len(paths), 0.5 * PATH_ENERGY_SHARE * len(data)),
            ]
        )
        start = np.zeros_like(B)
        if alpha is not None:
            start[:, 0] = alpha
        found = solve(
            C, P, B, nats, start=start, precise=precise, tell=self._session.journal.iterated
        )
        after = 1 + probes.shape[1]
        log_determinant, deviation = (
            _log_determinant(found, P, range(1, after))
            if known is None
            else (known.log_determinant, known.deviation)
        )
        asked = slice(after, after + len(calibration))
        # For variances, rows that are drawn at random are nearly as good as pivots.
        rest = np.setdiff1d(np.arange(len(data)), P.pivots)
        order = np.concatenate([P.pivots, self._session.random.permutation(rest)])
        shared = order[: max(self.settings.shared, P.pivots.size * P.bounds_from_below)]
        constants = self._constant_weights(C, precise)
        self._last = known = None
        del B, C, precise, start
        count, self._pairs = 0 if self._pairs is None else len(self._pairs), None
        near = LocalVariance.of(data, hyperparameters, shared, self._session, constants=constants)
        return CGPosterior(
            hyperparameters,
            data,
            found.X[:, 0].copy(),
            pivots=P.pivots,
            form=self.settings.form,
            dtype=self._plan.dtype,
            log_evidence=_log_density(found, log_determinant),
            standard_error=0.5 * deviation,
            solution=_summary(found),
            local_variance=near,
            checked=calibration.asked,
            excess=calibration.excess(near, found.quadratic[asked], self._session),
            bank=PathBank(paths, found.X[:, asked.stop :].copy()),
            seed=seed,
            pair_count=count,
        )

    def _constant_weights(self, C: Covariance, precise: Covariance) -> ConstantWeights | None:
        """Return the posterior of the constant parts of weights, None if there are none."""
        B, V = C.constant_columns, C.varying
        if not B.size or self._pivots is None:
            return None
        P = LowRankPreconditioner.of(V, self._pivots)
        nats = CONSTANT_ENERGY_SHARE * 0.5 * np.einsum("ij,ij->j", B, P.solve(B))
        tell = self._session.journal.iterated
        M = np.hstack(
            [
                solve(V, P, B[:, j], nats[j], precise=precise.varying, tell=tell).X
                for j in slices(B.shape[1], PRODUCT_COLUMNS)
            ]
        )
        scales = C.weight_prior.constant_scales()
        return ConstantWeights.of(scales, B, M, precise.varying.matmul(M))


def iterations_for(C: Covariance, precise: Covariance, pivots: np.ndarray, y: np.ndarray) -> int:
    """Return the iterations of a solve for y, MAX_ITERATIONS if it does not converge."""
    P = LowRankPreconditioner.of(C, pivots, bounds_from_below=False)
    nats = np.array([TRIAL_TOLERANCE_NATS_PER_ROW * len(y)])
    try:
        return solve(C, P, y[:, None], nats, precise=precise).iterations
    except NotConverged:
        return MAX_ITERATIONS


def _control_coefficient(
    C: Covariance, P: LowRankPreconditioner, solved: np.ndarray, half: np.ndarray
) -> np.ndarray:
    """Return c = <A, B> / |B|^2 of the control variate for every hyperparameter;  (t,).

    It is estimated from one probe z, with `solved` = C^-1 z (n,) and `half` = P^-1 z (n,).
    """
    along_P = P.tangents(half)
    weighed = P.solve(along_P)
    own = np.einsum("ij,ij->j", along_P, weighed)
    shared = np.einsum("ij,ij->j", C.tangents(solved), weighed)
    ratio = np.divide(shared, own, out=np.zeros_like(own), where=own > 0)
    return np.asarray(np.clip(ratio, 0.0, 1.0))


def _relative_size(y: np.ndarray, C: Covariance, P: LowRankPreconditioner) -> float:
    """Return the size of y relative to what the model expects.

    The tolerance of alpha is proportional to it. It is 1 for a y that the model could have drawn,
    less for a smaller y, and more for an absurdly large one. As |z| may differ much between rows,
    rows are grouped by C_ii into quarters, and the quarter with the smallest y counts. Rows with
    z = 0 say nothing about the weights, and are left out. A quarter whose y is 0 up to rounding
    counts as LEAST_RATIO_OF_GROUPS of the largest.
    """
    order = np.argsort(C.diagonal, kind="stable")
    groups = np.array_split(order[(C.diagonal > C.noise)[order]], 4)
    ratios = [float(np.mean(y[some] ** 2 / C.diagonal[some])) for some in groups if some.size]
    least = LEAST_RATIO_OF_GROUPS * max(ratios, default=0.0)
    smallest = max(min(ratios, default=0.0), least) or 1.0
    whole = float(y @ P.solve(y[:, None])[:, 0]) / len(y)
    return min(smallest, 1.0) * max(1.0, whole / LARGEST_USUAL_ENERGY_PER_ROW)


def _log_determinant(
    found: Solution, P: LowRankPreconditioner, columns: range
) -> tuple[float, float]:
    """Return log|C| and its standard error, from the probes in some columns of a solve."""
    n = len(found.X)
    logs = n * np.array([log_quadrature(*found.lanczos[j]) for j in columns if j in found.lanczos])
    if logs.size < 2:
        raise NotConverged(
            "The log marginal likelihood cannot be estimated: rounding makes the covariance matrix "
            "indefinite, as the noise is too small beside the prior variance. Raise sigma_y, or "
            "use solver='exact'."
        )
    return P.log_determinant() + float(logs.mean()), float(logs.std(ddof=1)) / len(logs) ** 0.5


def _log_density(found: Solution, log_determinant: float) -> float:
    """Return log p(y), from the solution for y (column 0) and log|C|."""
    n = len(found.X)
    return -0.5 * (float(found.quadratic[0]) + log_determinant + n * float(np.log(2 * np.pi)))


def _summary(found: Solution) -> str:
    """Return a description of a solve for the report of a fit."""
    return (
        f"{found.iterations} iterations, {found.matvecs} products; residual of y "
        f"{found.residuals[0]:.1e}, at most {found.nats[0]:.1e} nats from the solution"
    )
