"""What each solver brings to the suite that all of them pass (tests/solvers/test_every_solver.py).

A new solver adds one `Case` to `CASES`: arguments that make it exact, or nearly so, on a small
problem, and how far it may be off, by what it states of itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import oracle
from gpx_scale import XZ
from gpx_scale.solvers.basis.laplacian_basis import MARGIN_LENGTH_SCALES
from gpx_scale.solvers.cg.posterior import PATH_ENERGY_SHARE
from gpx_scale.solvers.cg.solver import ALPHA_TOLERANCE_NATS
from gpx_scale.solvers.grid.interpolation import INTERPOLATION_ERROR
from gpx_scale.solvers.local_variance import LocalVariance
from gpx_scale.solvers.neighborhood import FLOAT32_ROUNDING_SHARE
from problems import session_of

EPS, EPS_SINGLE = np.finfo(np.float64).eps, np.finfo(np.float32).eps
# There are about 40 points per length scale.
GRID_POINTS = 600
# Nats over the noise of a query, to which conjugate gradients solve for its joint covariance.
JOINT_SHARE = 1e-4


@dataclass(frozen=True)
class Allowed:
    """The allowed errors of means and covariances of weights and of y, and of log p(y) in nats."""

    delta: float
    mean: float
    covariance: float
    y_mean: float
    y_covariance: float
    nats: float


def allowed(problem, kernel_error, eps=EPS, missed_nats=0.0, missed_share=0.0):
    """Return how far answers may be off if k is off by `kernel_error` of k(x, x), anywhere.

    The solver has C + E in the place of C, |E| <= kernel_error k(x, x) |ZZ^T|_F, and no eigenvalue
    of C is below the smallest noise, hence |C^-1/2 E C^-1/2| <= delta = |E| / noise. For
    b = Cov[w, y], b.C^-1 b <= Var[w]. So E moves the mean b.C^-1 y by delta sd(w) |y|_C at most,
    with |y|_C^2 = y.C^-1 y, the variance by delta Var[w], and log p(y) by delta (n + |y|_C^2) / 2.
    An error of the same size in b moves the mean as much again, and the variance twice as much.
    Sums of log p(y) are rounded by `eps`.

    A solve for alpha that misses some nats moves a mean by sqrt(2 nats) sd(w). One that misses a
    share of a query's noise, in nats, moves its joint covariance by twice that.
    """
    C = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
    smallest = problem.sigma_y**2 + problem.sigma_w**2 * np.square(problem.Z).sum(axis=1).min()
    growth = problem.theta1 * np.linalg.norm(problem.Z.T @ problem.Z) / smallest
    delta = kernel_error * growth
    size = np.sqrt(problem.y @ np.linalg.solve(C, problem.y))
    variance = problem.theta1 + problem.sigma_w**2
    # A y is z.w: its variance is |z|^2 times that of a weight.
    squared = np.square(np.vstack([problem.Z, problem.Z_query])).sum(axis=1).max()
    noise = problem.sigma_y**2 + problem.sigma_w**2 * squared
    mean = (2.0 * delta * size + np.sqrt(2.0 * missed_nats)) * np.sqrt(variance)
    covariance = 3.0 * delta * variance
    return Allowed(
        delta,
        mean,
        covariance,
        mean * np.sqrt(squared),
        covariance * squared + 2.0 * missed_share * noise,
        0.5 * (delta + eps * growth) * (len(problem.y) + size**2) + missed_nats,
    )


def to_rounding(problem):
    """Return how far answers may be apart if only the order of sums in float64 differs."""
    return allowed(problem, len(problem.y) * EPS)


@dataclass(frozen=True)
class Case:
    """The arguments that make a solver exact, or nearly so, on a small problem, and its errors.

    `arguments` are for a small problem, `large` for one of several blocks and tiles, and `fixed`
    (of a problem) for one whose rows come in pieces: nothing may depend on the first piece.
    `kernel_error` (of a fitted model) is the error of k that the solver has, as a share of
    k(x, x). `missed_nats` and `missed_share` are those of its solves. `eps` is the rounding of its
    sums, whose order depends on the number of threads. `path_share` is the variance of samples
    that may be missing. `raised` is the share of its own that variances of a sparse Z add to the
    diagonal of C. `bounds_evidence`: the evidence is a lower bound, tight with `arguments`.
    `has_gradient`: the gradient is that of the evidence, and no estimate. `rough` (of a problem)
    is a model with less exact deviations, where a solver promises that they are never too small.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    large: dict[str, Any] = field(default_factory=dict)
    fixed: Callable[[Any], dict[str, Any]] = lambda problem: {}
    kernel_error: Callable[[Any], float] = lambda model: len(model.posterior_) * EPS
    missed_nats: float = 0.0
    missed_share: float = 0.0
    eps: float = EPS
    path_share: float = 0.0
    raised: float = 0.0
    bounds_evidence: bool = False
    has_gradient: bool = True
    rough: Callable[[Any], Any] | None = None

    def allowed(self, problem, model):
        """Return how far answers of a fitted model may be from the oracle's."""
        missed = self.missed_nats, self.missed_share
        return allowed(problem, self.kernel_error(model), self.eps, *missed)

    def allowed_of_sparse(self, problem, model):
        """Return the allowed errors of a sparse Z: b.C^-1 b falls by `raised` C_ii / D_i."""
        known = self.allowed(problem, model)
        squared = np.square(problem.Z).sum(axis=1)
        noise = problem.sigma_y**2 + problem.sigma_w**2 * squared
        share = self.raised * (1.0 + problem.theta1 * squared / noise).max()
        more, query = share * problem.theta1, np.square(problem.Z_query).sum(axis=1).max()
        return replace(
            known,
            covariance=known.covariance + more,
            y_covariance=known.y_covariance + more * query,
            nats=2.0 * known.nats,
        )

    def rounding(self, problem):
        """Return how far two fits may be apart if only the order of sums differs."""
        return allowed(problem, max(self.eps, len(problem.y) * EPS), self.eps)


def inducing_error(model):
    """Return the error of S_nu L^-T: m eps cond(L), and what jitter adds to S_uu = L L^T."""
    posterior = model.posterior_
    return len(posterior) * EPS * np.linalg.cond(posterior.L) + posterior.jitter


def basis_error(model):
    """Return the part of k that the functions miss: at the rows, and by the edge of the box."""
    posterior = model.posterior_
    longest = posterior.statistics.box.longest
    length = posterior.hyperparameters.kernel.length_scale_range(longest.size)[0]
    image = np.exp(-0.5 * (2.0 * MARGIN_LENGTH_SCALES[np.inf] * longest / length) ** 2).max()
    return float(image) + posterior.remainder_shares[1]


def grid_error(model):
    """Return the part of k that cubic interpolation misses, by the points per length scale."""
    grid, kernel = model.posterior_.interpolated.grid, model.posterior_.hyperparameters.kernel
    factor, order = INTERPOLATION_ERROR[np.inf]
    shortest = kernel.length_scale_range(grid.step.size)[0]
    # The factor is a mean over the places between points; the largest is less than twice that.
    return float((2.0 * factor * (grid.step / shortest) ** order).sum())


def on_few_rows(problem):
    """Return conjugate gradients whose variances use only ten rows per query."""
    model = problem.fitted(solver="cg", random_state=0)
    posterior = model.posterior_
    known = posterior.support, posterior.hyperparameters
    few = LocalVariance.of(*known, np.arange(5), session_of(), nearby=5)
    model.posterior_ = replace(posterior, local_variance=few)
    return model


def given_points(problem):
    """Return inducing points: a third of the rows, moved a little."""
    some = slice(0, min(60, len(problem.y) // 3))
    return {"inducing_points": XZ(problem.X[some] + 0.1, problem.Z[some])}


ITERATIVE = {
    "missed_nats": ALPHA_TOLERANCE_NATS,
    "missed_share": JOINT_SHARE,
    "eps": EPS_SINGLE,  # Tiles and interpolated products; residuals are in float64.
    "path_share": PATH_ENERGY_SHARE,
    "has_gradient": False,  # an estimate by probes, which test_cg.py compares with its error
}

CASES = {
    "exact": Case(rough=lambda problem: problem.fitted(solver="exact", dtype="float32")),
    "cg": Case(
        {"preconditioner_rank": 10},  # so that it iterates
        {"preconditioner_rank": 20},
        raised=FLOAT32_ROUNDING_SHARE,
        rough=on_few_rows,
        **ITERATIVE,
    ),
    "inducing": Case(
        {"n_inducing": 1000},  # all rows
        {"n_inducing": 60},
        fixed=given_points,
        kernel_error=inducing_error,
        bounds_evidence=True,
    ),
    "basis": Case(kernel_error=basis_error),
    "neighbors": Case(
        {"n_neighbors": 60, "n_shared": 20},  # all rows
        {"n_neighbors": 40, "n_shared": 60},
        lambda problem: {"n_neighbors": len(problem.y), "n_shared": 20},
        rough=lambda problem: problem.fitted(solver="neighbors", n_neighbors=8, n_shared=5),
    ),
    "grid": Case({"n_basis": GRID_POINTS}, {"n_basis": 40}, kernel_error=grid_error, **ITERATIVE),
}
