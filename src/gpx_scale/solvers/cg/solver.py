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
from typing import Any

import numpy as np

from ...data.features import DenseFeatures
from ...data.inputs import TrainingRows
from ...errors import NotConverged
from ...linalg.conjugate_gradients import ITERATIONS, Solution, log_quadrature, solve
from ...linalg.covariance import COLUMNS, Covariance
from ...linalg.preconditioner import LowRankPreconditioner, choose_pivots
from ...linalg.sparse_covariance import Pairs, covariances
from ...model.hyperparameters import Hyperparameters
from ...runtime.journal import Journal
from ...runtime.parallel import Executor, slices
from ..contract import Evidence
from ..neighborhood import SHARED, LocalVariance
from ..posterior import symmetric_part
from .pathwise_sampling import PriorPath, prior_paths
from .posterior import PATH_SHARE, PATHS, CgParts, PathBank
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
TRIAL, WORTH = 1e-2, 25  # nats a row to which preconditioners are compared; iterations below which Jacobi's is good enough
LESS = 4  # share of the pivots that Jacobi's preconditioner is compared with; all of them where it fails
PAIR_NS, PIVOT_NS, BUILD_NS = 1.1, 3.5, 0.06  # of two cores: a pair times 16 columns, a pivot's row likewise, one of P's n r^2


class CGSolver:
    """Evidence and posterior by products with C alone; keeps pivots, probes and the last alpha between calls."""

    def __init__(
        self,
        rank: int,
        form: str,
        dtype: Any,
        executor: Executor,
        random: np.random.RandomState,
        journal: Journal,
        shared: int = SHARED,
        try_jacobi: bool = False,
        allow: Any = lambda count: None,
    ) -> None:
        self.rank, self.form, self.dtype, self.shared = rank, form, dtype, shared
        self._executor, self._random, self._journal = executor, random, journal
        self._try_jacobi, self._allow = try_jacobi, allow
        self._pairs: Pairs | None = None
        self._pivots: np.ndarray | None = None
        self._draws: tuple[np.ndarray, np.ndarray] | None = None
        self._share: np.ndarray | None = None  # of the control variate, kept so that the gradient is of one function
        self._last: np.ndarray | None = None  # alpha at the parameters before

    def _covariance(self, data: TrainingRows, params: Hyperparameters) -> tuple[Covariance, Covariance]:
        """C for many products, and C in float64 for residuals."""
        if self.form == "pairs" and self._pairs is None:
            with self._journal.phase("pairs"):
                self._pairs = Pairs.of(data, self._executor, self._allow)
        return covariances(data, params, self._executor, self.form, self.dtype, self._pairs)

    def _precondition(self, C: Covariance, precise: Covariance, y: np.ndarray) -> LowRankPreconditioner:
        """P with the pivots of this fit, which the first call chooses."""
        residual = self.form == "pairs"
        if self._pivots is None:
            with self._journal.phase("preconditioner"):
                self._pivots = self._choose_pivots(C, precise, y)
            self._journal.say(f"preconditioner: {f'rank {self._pivots.size}' if self._pivots.size else 'Jacobi'}")
        P = LowRankPreconditioner.of(C, self._pivots, residual)
        if self._draws is None:
            draw = self._signs if residual else self._random.standard_normal
            self._draws = draw((P.rank, PROBES)), draw((len(y), PROBES))
        return P

    def _choose_pivots(self, C: Covariance, precise: Covariance, y: np.ndarray) -> np.ndarray:
        """Of a sparse Z none, if solves cost less so: iterations that y takes, times ns of one. By counts, not by the clock,
        so that a fit is the same every time."""
        none, without = np.empty(0, int), ITERATIONS
        if self._try_jacobi and (without := iterations_for(C, precise, none, y)) < WORTH:
            return none
        rank = self.rank if without == ITERATIONS else -(-self.rank // LESS)
        pivots = choose_pivots(C, rank, self._random, below_noise=0.5)
        if without == ITERATIONS:  # nothing to compare with
            return pivots
        n, r, product = len(y), pivots.size, len(C.pairs) * PAIR_NS  # type: ignore[attr-defined]
        each = iterations_for(C, precise, pivots, y) * (product + n * r * PIVOT_NS) + n * r * r * BUILD_NS
        return pivots if each < without * product else none

    def _signs(self, shape: tuple[int, int]) -> np.ndarray:
        return np.where(self._random.uniform(size=shape) < 0.5, -1.0, 1.0)

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
        self, data: TrainingRows, params: Hyperparameters, *, gradient: bool = True, information: bool = False
    ) -> Evidence:
        """log p(y) by Lanczos, with its standard error, its gradient, and the average information if asked for."""
        return self._with_fewer_pivots_if_that_will_do(lambda: self._evaluate(data, params, gradient, information))

    def condition(self, data: TrainingRows, params: Hyperparameters) -> CgParts:
        """alpha to PREDICTION nats, the evidence, and paths of the posterior, in one solve."""
        return self._with_fewer_pivots_if_that_will_do(lambda: self._condition(data, params))

    def _evaluate(self, data: TrainingRows, params: Hyperparameters, gradient: bool, information: bool) -> Evidence:
        C, precise = self._covariance(data, params)
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
            tell=self._journal.iterated,
        )
        alpha = self._last = found.X[:, 0].copy()
        value, deviation = _evidence(found, P, range(1, 1 + PROBES))
        slope = metric = None
        if gradient:
            U = np.column_stack([alpha, -found.X[:, 1:] / PROBES])
            V = np.column_stack([alpha, halves])
            slope = 0.5 * C.contract_pairs(U, V)
            if not P.residual:
                if self._share is None:
                    self._share = _control_share(C, P, found.X[:, 1], halves[:, 0])
                slope += 0.5 * self._share * (P.contract_pairs(halves) / PROBES - P.trace_of_derivative())
        if information:
            try:
                metric = self._information(C, P, alpha)
            except NotConverged:  # float32 has no more to give
                metric = self._information(precise, P, alpha)
        return Evidence(value, slope, alpha, len(data), information=metric, deviation=deviation)

    def _information(self, C: Covariance, P: LowRankPreconditioner, alpha: np.ndarray) -> np.ndarray:
        """1/2 (dC_s alpha).C^-1 (dC_t alpha), the mean of observed and expected information;  (t, t).

        P^-1 will not do for C^-1 here: it over-states the information of theta1 four times on `synth10`.
        """
        U = C.tangents(alpha)
        moving = np.flatnonzero(U.any(axis=0))  # sigma_w = 0 has no tangent
        if not moving.size:
            return np.zeros((U.shape[1], U.shape[1]))
        right = U[:, moving]
        energy = 0.5 * np.einsum("ij,ij->j", right, P.solve(right))
        nats, tell = INFORMATION_SHARE * energy, self._journal.iterated
        X = np.hstack([solve(C, P, right[:, j], nats[j], tell=tell).X for j in slices(moving.size, COLUMNS)])
        metric = np.zeros((U.shape[1], U.shape[1]))
        metric[np.ix_(moving, moving)] = 0.5 * symmetric_part(right.T @ X)
        return metric

    def _condition(self, data: TrainingRows, params: Hyperparameters) -> CgParts:
        C, precise = self._covariance(data, params)
        P = self._precondition(C, precise, data.y)
        assert self._draws is not None
        probes = P.draw(*self._draws)
        seed = int(self._random.randint(2**31))
        paths: list[PriorPath] = []
        seen = np.empty((len(data), 0))
        if params.kernel.input_kind == "vectors" and isinstance(data.Z, DenseFeatures):  # of a sparse Z, when asked for
            paths, seen = prior_paths(data, params, [np.random.RandomState([seed, s]) for s in range(PATHS)], self._executor)
        pilots = CalibrationRows.draw(data, params, self._random)
        B = np.column_stack([data.y, probes, pilots.right_hand_sides(C), seen])
        energy = 0.5 * np.einsum("ij,ij->j", probes, P.solve(probes))
        nats = np.concatenate(
            [
                [PREDICTION * _relative_size(data.y, C, P)],
                PROBE_SHARE * energy,
                1e-4 * pilots.scale,
                np.full(len(paths), 0.5 * PATH_SHARE * len(data)),
            ]
        )
        start = np.zeros_like(B)
        if self._last is not None:
            start[:, 0] = self._last
        found = solve(C, P, B, nats, start=start, precise=precise, tell=self._journal.iterated)
        value, deviation = _evidence(found, P, range(1, 1 + PROBES))
        asked = slice(1 + PROBES, 1 + PROBES + len(pilots))
        rest = np.setdiff1d(np.arange(len(data)), P.pivots)  # drawn at random, rows do nearly as well as pivots for variances
        shared = np.concatenate([P.pivots, self._random.permutation(rest)])[: max(self.shared, 0 if P.residual else P.rank)]
        del B, C, precise, start
        count, self._pairs = 0 if self._pairs is None else len(self._pairs), None
        near = LocalVariance.of(data, params, shared, self._executor)
        return CgParts(
            data,
            params,
            alpha=found.X[:, 0].copy(),
            pivots=P.pivots,
            form=self.form,
            dtype=self.dtype,
            evidence=value,
            evidence_deviation=deviation,
            solution=_summary(found),
            near=near,
            pilots=pilots.asked,
            excess=pilots.excess(near, found.quadratic[asked], self._executor),
            bank=PathBank(paths, found.X[:, asked.stop :].copy()),
            seed=seed,
            pair_count=count,
        )


def iterations_for(C: Covariance, precise: Covariance, pivots: np.ndarray, y: np.ndarray) -> int:
    """Of a solve for y alone, to TRIAL nats a row; the most there are, where it does not get there."""
    P = LowRankPreconditioner.of(C, pivots, residual=True)
    try:
        return solve(C, P, y[:, None], np.array([TRIAL * len(y)]), precise=precise).iterations
    except NotConverged:
        return ITERATIONS


def _control_share(C: Covariance, P: LowRankPreconditioner, solved: np.ndarray, half: np.ndarray) -> np.ndarray:
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
        raise NotConverged(f"probes of the evidence found no step: {why}; raise sigma_y, or use solver='exact'")
    log_determinant = P.log_determinant() + logs.mean()
    value = -0.5 * (float(found.quadratic[0]) + log_determinant + n * np.log(2 * np.pi))
    return value, 0.5 * float(logs.std(ddof=1)) / np.sqrt(len(logs))


def _summary(found: Solution) -> str:
    return (
        f"{found.iterations} iterations, {found.matvecs} products; residual of y {found.residuals[0]:.1e}, "
        f"{found.nats[0]:.1e} nats to go at most"
    )
