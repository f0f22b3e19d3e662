"""The iterative solver: evidence's gradient from block CG and probes of the preconditioner.

    P = D + F F^T                   z = F e1 + D^1/2 e2 ~ N(0, P),  e1 and e2 fixed for a whole fit
    tr(C^-1 dC)  ~  mean[(C^-1 z).dC (P^-1 z)] + c {tr(P^-1 dP) - mean[(P^-1 z).dP (P^-1 z)]}     (P as control variate)
    log|C|       ~  log|P| + n mean[u.log(P^-1/2 C P^-1/2) u],  u = P^-1/2 z / |P^-1/2 z|   (Lanczos, from CG's coefficients)

y and the probes are solved together: each tile of C is used for all of them. Of a sparse Z, C is a list of pairs, P has the
whole of C's diagonal, e1 and e2 are signs, and c = 0. Otherwise c = 1 where P is as good as C; where it is not,
that would add noise instead of taking it away, so c is the regression coefficient <A, B> / |B|^2 of the two quadratic forms
A = P^1/2 C^-1 dC P^-1/2 and B = P^-1/2 dP P^-1/2, both of which one probe measures to a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...data.inputs import TrainingRows
from ...data.row_source import MemoryRows, RowSource
from ...errors import NotConverged
from ...linalg.conjugate_gradients import MAX_ITERATIONS, Solution, log_quadrature, solve
from ...linalg.covariance import PRODUCT_COLUMNS, Covariance
from ...linalg.preconditioner import LowRankPreconditioner, choose_pivots
from ...linalg.sparse_covariance import PAIR_BYTES, Pairs, covariances
from ...model.hyperparameters import Hyperparameters
from ...optimize.objective import Optimum
from ...optimize.search import Search
from ...runtime.memory import within
from ...runtime.parallel import slices
from ...runtime.session import Session
from ..contract import CG_ROWS, EXACT_ROWS, Evidence, Plan, Problem, Solver, SolverSetup
from ..exact.solver import SUBSET_TOLERANCE_NATS_PER_ROW, ExactSolver
from ..neighborhood import LocalVariance
from ..posterior import Posterior, symmetric_part
from .pathwise_sampling import PriorPath, prior_paths
from .planning import (
    DENSE,
    TRIAL_RANK_DIVISOR,
    CGSettings,
    expected_work,
    plan_conjugate_gradients,
    usual_rank,
)
from .posterior import PATH_SHARE, PATHS, CGPosterior, PathBank
from .variance_calibration import CalibrationRows

PROBES = 15  # and y: up to 16 columns, a product costs the same
# While searching, alpha may miss 1e-4 nats a row, a probe 1% of its energy: at n = 8,000, gradients at 10 nats and at 1e-4
# differ by far less than the probes' noise. That is so because CG from 0 leaves a residual orthogonal to all it has built; a
# solve that starts from the parameters before does not, and at the same tolerance its gradient is off by tens of nats. So
# searches start cold.
TRAINING, PROBE_SHARE = 1e-4, 1e-2
PREDICTION = 1e-6  # nats that the final alpha may miss, for a y of the model's own size
APART = 1e-8  # of the largest, the least mean of y^2 / C_ii over a quarter of the rows that a solve is held to
INFORMATION_SHARE = 1e-2
TRIAL, WORTH = (
    1e-2,
    25,
)  # nats a row to which preconditioners are compared; iterations below which Jacobi's is good enough
PIVOT_NS, BUILD_NS = (
    3.5,
    0.06,
)  # of two cores: a row of a pivot times 16 columns, one of the n r^2 flops that build P
MANY_ROWS = 25_000  # from which a search on sqrt(subset n) rows saves more of those on all rows than it costs


class CGSolver(Solver):
    """Evidence and posterior by products with C alone; keeps pivots, probes and the last alpha between calls."""

    name = "cg"
    keeps_rows = True
    uses_pairs = True
    capabilities = CGPosterior.capabilities
    posterior_class: ClassVar[type[Posterior]] = CGPosterior
    settings_class = CGSettings

    def __init__(self, plan: Plan, settings: CGSettings, session: Session) -> None:
        self._plan, self.settings, self._session = plan, settings, session
        self._try_jacobi = settings.try_jacobi
        self._pairs: Pairs | None = None
        self._pivots: np.ndarray | None = None
        self._draws: tuple[np.ndarray, np.ndarray] | None = None
        self._share: np.ndarray | None = (
            None  # of the control variate, kept so that the gradient is of one function
        )
        self._last: np.ndarray | None = None  # alpha at the parameters before

    # planning

    @classmethod
    def reason_to_prefer(cls, problem: Problem) -> str | None:
        dense = problem.pair_density is None or problem.pair_density >= DENSE
        if problem.stream or (problem.n > CG_ROWS and dense):
            return None
        if problem.n <= EXACT_ROWS:
            return f"n <= {EXACT_ROWS}, but {problem.refusal}"
        return f"n > {EXACT_ROWS}: conjugate gradients, a product at a time"

    @classmethod
    def plan(cls, problem: Problem, reason: str) -> Plan:
        return plan_conjugate_gradients(problem, reason)

    @classmethod
    def gives_way(cls, problem: Problem) -> bool:
        """Return whether the rank was left to the planner: one that was asked for is this solver's alone."""
        return problem.options.rank is None

    @classmethod
    def work(cls, plan: Plan) -> float | None:
        return expected_work(plan)

    @classmethod
    def create(cls, plan: Plan, setup: SolverSetup, known: Posterior | None = None) -> CGSolver:
        return cls(plan, plan.settings, setup.session)

    # search

    def search(self, search: Search) -> Optimum:
        """Return the optimum of all rows by Newton's method on gradients, from the exact optimum of a subset."""
        if search.warm:
            return search.gradient_newton(self.evaluate)
        optimum = self._subset_optimum(search)
        if self._plan.subset == self._plan.n or self._session.journal.stopped:
            return optimum
        return search.starting_at(optimum.hyperparameters).gradient_newton(self.evaluate)

    def _subset_optimum(self, search: Search) -> Optimum:
        """Return the exact optimum of a subset; of many rows, the iterative one of a larger subset after it.

        Its evidence, and with it the leave-one-out residuals, is of another solver or of other rows than the fit, and is left
        out.
        """
        plan, session = self._plan, self._session
        if plan.subset == plan.n:
            return replace(
                search.maximise(ExactSolver(plan.n, np.float64, session).evaluate), evidence=None
            )
        order, rows = session.random.permutation(plan.n), search.rows.load()
        some = search.on(MemoryRows(rows[np.sort(order[: plan.subset])]))
        exact = ExactSolver(plan.subset, np.float64, session)
        found = some.maximise(
            exact.evaluate, phase=f"{plan.subset} rows", tol=SUBSET_TOLERANCE_NATS_PER_ROW
        )
        if plan.n >= MANY_ROWS and not session.journal.stopped:
            m = int(np.sqrt(plan.subset * plan.n))
            larger = CGSolver(
                plan, replace(self.settings, rank=min(self.settings.rank, usual_rank(m))), session
            )
            on = search.on(MemoryRows(rows[np.sort(order[:m])])).starting_at(found.hyperparameters)
            found = on.gradient_newton(
                larger.evaluate, phase=f"{m} rows", tol=SUBSET_TOLERANCE_NATS_PER_ROW
            )
        return replace(found, evidence=None)

    def _allow(self, count: int) -> None:
        """More pairs than were predicted are refused before they are listed."""
        what = f"a sparse C of {count:,} pairs"
        within(count * PAIR_BYTES, self._plan.memory_limit, what, "rarer features (a lower max_df)")

    # evaluations

    def _covariances(
        self, data: TrainingRows, hyperparameters: Hyperparameters
    ) -> tuple[Covariance, Covariance]:
        """C for many products, and C in float64 for residuals."""
        if self.settings.form == "pairs" and self._pairs is None:
            with self._session.journal.phase("pairs"):
                self._pairs = Pairs.of(data, hyperparameters.kernel, self._session, self._allow)
        return covariances(
            data, hyperparameters, self._session, self.settings.form, self._plan.dtype, self._pairs
        )

    def _precondition(
        self, C: Covariance, precise: Covariance, y: np.ndarray
    ) -> LowRankPreconditioner:
        """P with the pivots of this fit, which the first call chooses."""
        bounds = self.settings.form != "pairs"
        if self._pivots is None:
            with self._session.journal.phase("preconditioner"):
                self._pivots = self._choose_pivots(C, precise, y)
            self._session.journal.say(
                f"preconditioner: {f'rank {self._pivots.size}' if self._pivots.size else 'Jacobi'}"
            )
        P = LowRankPreconditioner.of(C, self._pivots, bounds)
        if self._draws is None:
            draw = self._session.random.standard_normal if bounds else self._signs
            self._draws = draw((P.rank, PROBES)), draw((len(y), PROBES))
        return P

    def _choose_pivots(self, C: Covariance, precise: Covariance, y: np.ndarray) -> np.ndarray:
        """Of a sparse Z none, if solves cost less so: iterations that y takes, times ns of one. By counts, not by the clock,
        so that a fit is the same every time."""
        none, without = np.empty(0, int), MAX_ITERATIONS
        if self._try_jacobi and (without := iterations_for(C, precise, none, y)) < WORTH:
            return none
        rank = (
            self.settings.rank
            if without == MAX_ITERATIONS
            else -(-self.settings.rank // TRIAL_RANK_DIVISOR)
        )
        pivots = choose_pivots(C, rank, self._session.random, below_noise=0.5)
        if without == MAX_ITERATIONS:  # nothing to compare with
            return pivots
        n, r, product = len(y), pivots.size, C.product_cost
        each = (
            iterations_for(C, precise, pivots, y) * (product + n * r * PIVOT_NS)
            + n * r * r * BUILD_NS
        )
        return pivots if each < without * product else none

    def _signs(self, shape: tuple[int, int]) -> np.ndarray:
        return np.where(self._session.random.uniform(size=shape) < 0.5, -1.0, 1.0)

    def _with_fewer_pivots_if_that_will_do(self, work: Callable[[], Any]) -> Any:
        """With all of them, from now on, where it will not."""
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
        """Return log p(y) by Lanczos, with its standard error, its gradient, and the average information if asked for."""
        data = rows.load()
        return self._with_fewer_pivots_if_that_will_do(
            lambda: self._evaluate(data, hyperparameters, gradient, information)
        )

    def condition(self, rows: RowSource, hyperparameters: Hyperparameters) -> CGPosterior:
        """Return alpha to PREDICTION nats, the evidence, and paths of the posterior, from one solve."""
        data = rows.load()
        return self._with_fewer_pivots_if_that_will_do(
            lambda: self._condition(data, hyperparameters)
        )

    def _evaluate(
        self,
        data: TrainingRows,
        hyperparameters: Hyperparameters,
        gradient: bool,
        information: bool,
    ) -> Evidence:
        C, precise = self._covariances(data, hyperparameters)
        P = self._precondition(C, precise, data.y)
        assert self._draws is not None
        probes = P.draw(*self._draws)
        halves = P.solve(probes)
        energy = np.einsum("ij,ij->j", probes, halves)
        found = solve(
            C,
            P,
            np.column_stack([data.y, probes]),
            np.concatenate([[TRAINING * len(data)], 0.5 * PROBE_SHARE * energy]),
            precise=precise,
            tell=self._session.journal.iterated,
        )
        alpha = self._last = found.X[:, 0].copy()
        value, deviation = _evidence(found, P, range(1, 1 + PROBES))
        slope = metric = None
        if gradient:
            U = np.column_stack([alpha, -found.X[:, 1:] / PROBES])
            V = np.column_stack([alpha, halves])
            slope = 0.5 * C.contract(U, V)
            if P.bounds_from_below:
                if self._share is None:
                    self._share = _control_share(C, P, found.X[:, 1], halves[:, 0])
                slope += 0.5 * self._share * (P.contract(halves) / PROBES - P.trace_gradient())
        if information:
            try:
                metric = self._information(C, P, alpha)
            except NotConverged:  # float32 has no more to give
                metric = self._information(precise, P, alpha)
        return Evidence(
            value, slope, len(data), alpha, information=metric, standard_error=deviation
        )

    def _information(
        self, C: Covariance, P: LowRankPreconditioner, alpha: np.ndarray
    ) -> np.ndarray:
        """1/2 (dC_s alpha).C^-1 (dC_t alpha), the mean of observed and expected information;  (t, t).

        P^-1 will not do for C^-1 here: it over-states the information of theta1 four times on `synth10`.
        """
        U = C.tangents(alpha)
        moving = np.flatnonzero(U.any(axis=0))  # sigma_w = 0 has no tangent
        if not moving.size:
            return np.zeros((U.shape[1], U.shape[1]))
        right = U[:, moving]
        energy = 0.5 * np.einsum("ij,ij->j", right, P.solve(right))
        nats, tell = INFORMATION_SHARE * energy, self._session.journal.iterated
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
        C, precise = self._covariances(data, hyperparameters)
        P = self._precondition(C, precise, data.y)
        assert self._draws is not None
        probes = P.draw(*self._draws)
        seed = int(self._session.random.randint(2**31))
        paths: list[PriorPath] = []
        seen = np.empty((len(data), 0))
        if (
            hyperparameters.kernel.input_kind == "vectors" and not data.Z.is_sparse
        ):  # of a sparse Z, when asked for
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
                [PREDICTION * _relative_size(data.y, C, P)],
                PROBE_SHARE * energy,
                1e-4 * calibration.scale,
                np.full(len(paths), 0.5 * PATH_SHARE * len(data)),
            ]
        )
        start = np.zeros_like(B)
        if self._last is not None:
            start[:, 0] = self._last
        found = solve(
            C, P, B, nats, start=start, precise=precise, tell=self._session.journal.iterated
        )
        value, deviation = _evidence(found, P, range(1, 1 + PROBES))
        asked = slice(1 + PROBES, 1 + PROBES + len(calibration))
        rest = np.setdiff1d(
            np.arange(len(data)), P.pivots
        )  # drawn at random, rows do nearly as well as pivots for variances
        shared = np.concatenate([P.pivots, self._session.random.permutation(rest)])[
            : max(self.settings.shared, P.rank if P.bounds_from_below else 0)
        ]
        del B, C, precise, start
        count, self._pairs = 0 if self._pairs is None else len(self._pairs), None
        near = LocalVariance.of(data, hyperparameters, shared, self._session)
        return CGPosterior(
            hyperparameters,
            data,
            found.X[:, 0].copy(),
            pivots=P.pivots,
            form=self.settings.form,
            dtype=self._plan.dtype,
            log_evidence=value,
            standard_error=deviation,
            solution=_summary(found),
            local_variance=near,
            checked=calibration.asked,
            excess=calibration.excess(near, found.quadratic[asked], self._session),
            bank=PathBank(paths, found.X[:, asked.stop :].copy()),
            seed=seed,
            pair_count=count,
        )


def iterations_for(C: Covariance, precise: Covariance, pivots: np.ndarray, y: np.ndarray) -> int:
    """Of a solve for y alone, to TRIAL nats a row; the most there are, where it does not get there."""
    P = LowRankPreconditioner.of(C, pivots, bounds_from_below=False)
    try:
        return solve(C, P, y[:, None], np.array([TRIAL * len(y)]), precise=precise).iterations
    except NotConverged:
        return MAX_ITERATIONS


def _control_share(
    C: Covariance, P: LowRankPreconditioner, solved: np.ndarray, half: np.ndarray
) -> np.ndarray:
    """c = <A, B> / |B|^2 by every parameter, from one probe z: C^-1 z and P^-1 z;  (n,), (n,) -> (t,)."""
    along_P = P.tangents(half)
    weighed = P.solve(along_P)
    own = np.einsum("ij,ij->j", along_P, weighed)
    shared = np.einsum("ij,ij->j", C.tangents(solved), weighed)
    return np.clip(np.divide(shared, own, out=np.zeros_like(own), where=own > 0), 0.0, 1.0)


def _relative_size(y: np.ndarray, C: Covariance, P: LowRankPreconditioner) -> float:
    """1 for a y that the model could have drawn, less for a smaller one (and more for one that is absurdly large).

    Rows of very different |z| are told apart: those of the largest C_ii are the ones whose y is smallest beside it, and a
    row without z says nothing of the weights. A y that is 0 but for rounding in some of them asks for nothing.
    """
    order = np.argsort(C.diagonal, kind="stable")
    groups = np.array_split(order[(C.diagonal > C.noise)[order]], 4)
    ratios = [float(np.mean(y[some] ** 2 / C.diagonal[some])) for some in groups if some.size]
    smallest = max(min(ratios, default=0.0), APART * max(ratios, default=0.0)) or 1.0
    whole = float(y @ P.solve(y[:, None])[:, 0]) / len(y)
    return min(smallest, 1.0) * max(1.0, whole / 1e4)


def _evidence(found: Solution, P: LowRankPreconditioner, columns: range) -> tuple[float, float]:
    """log p(y), column 0 being alpha, and its standard error over the probes in `columns`."""
    n = len(found.X)
    logs = n * np.array([log_quadrature(*found.lanczos[j]) for j in columns if j in found.lanczos])
    if logs.size < 2:
        why = "rounding makes C indefinite, as the noise is too small beside the prior"
        raise NotConverged(
            f"probes of the evidence found no step: {why}; raise sigma_y, or use solver='exact'"
        )
    log_determinant = P.log_determinant() + logs.mean()
    value = -0.5 * (float(found.quadratic[0]) + log_determinant + n * np.log(2 * np.pi))
    return value, 0.5 * float(logs.std(ddof=1)) / np.sqrt(len(logs))


def _summary(found: Solution) -> str:
    return (
        f"{found.iterations} iterations, {found.matvecs} products; residual of y {found.residuals[0]:.1e}, "
        f"{found.nats[0]:.1e} nats to go at most"
    )
