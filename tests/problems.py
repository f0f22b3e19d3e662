"""One seeded generator of test problems, and the strategies that hypothesis draws them from."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

import oracle
from gpx_scale import GPXRegressor, kernels
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from gpx_scale.solvers.basis.solver import BasisSettings, BasisSolver
from gpx_scale.solvers.cg.planning import CGSettings
from gpx_scale.solvers.cg.solver import CGSolver
from gpx_scale.solvers.contract import Plan
from gpx_scale.solvers.neighborhood import MAX_SHARED_ROWS


@dataclass(frozen=True)
class Problem:
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    X_query: np.ndarray
    Z_query: np.ndarray
    theta1: float
    theta2: float | tuple
    sigma_w: float
    sigma_y: float

    @property
    def k(self):
        return oracle.rbf(self.theta1, self.theta2)

    @property
    def noise(self):
        return self.sigma_w, self.sigma_y

    @property
    def data(self):
        return self.X, self.y, self.Z

    @property
    def tol(self):
        return oracle.tolerance(self.k, self.X, self.Z, *self.noise)

    @property
    def inputs(self):
        return TrainingRows(self.X, DenseFeatures(self.Z), self.y)

    @property
    def sparse_inputs(self):
        return TrainingRows(self.X, SparseFeatures.of(sp.csr_array(self.Z)), self.y)

    @property
    def params(self):
        return Hyperparameters.of(kernels.RBF(self.theta1, self.theta2), self.sigma_w, self.sigma_y)

    def model(self, **arguments):
        """Return a GPXRegressor fitted at these hyperparameters, in these units."""
        given = {
            "theta1": self.theta1,
            "theta2": self.theta2,
            "sigma_w": self.sigma_w,
            "sigma_y": self.sigma_y,
        }
        return GPXRegressor(**{"optimizer": None, "standardize": False, **given, **arguments})

    def fitted(self, **arguments):
        return self.model(**arguments).fit(self.X, self.y, self.Z)


def make_problem(
    n=40,
    p=3,
    d=4,
    m=6,
    seed=0,
    theta1=1.3,
    theta2=2.5,
    sigma_w=0.2,
    sigma_y=0.3,
    tied=False,
    share=1.0,
):
    """Return a problem drawn from a seed.

    A `share` of the entries of Z are not 0. If it is below 1, some rows of Z may be empty.
    """
    random = np.random.RandomState(seed)
    X, X_query = random.randn(n, p), random.randn(m, p)
    Z, Z_query = (X, X_query) if tied else (random.randn(n, d), random.randn(m, d))
    if share < 1.0:
        Z, Z_query = (np.where(random.rand(*A.shape) < share, A, 0.0) for A in (Z, Z_query))
    y = np.sin(X[:, 0]) * Z[:, 0] + 0.1 * random.randn(n)
    return Problem(X, y, Z, X_query, Z_query, theta1, theta2, sigma_w, sigma_y)


@st.composite
def problems(draw, largest=25, widest=5, shares=(1.0,)):
    p = draw(st.integers(1, 4))
    scale = st.floats(0.05, 5.0)
    return make_problem(
        n=draw(st.integers(1, largest)),
        p=p,
        d=draw(st.integers(1, widest)),
        share=draw(st.sampled_from(shares)),
        m=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**20)),
        theta1=draw(scale),
        theta2=tuple(draw(scale) for _ in range(p)) if draw(st.booleans()) else draw(scale),
        sigma_w=draw(st.sampled_from([0.0, 0.05, 0.5])),
        sigma_y=draw(st.floats(0.05, 1.0)),
    )


def session_of(n_jobs=1, random_state=None, **more):
    """Return a session of that many workers for calls below the estimator."""
    return Session.of(Executor(n_jobs), random_state=random_state, **more)


def cg_solver(
    data, session, seed, *, form, rank, dtype=np.float32, try_jacobi=False, shared=MAX_SHARED_ROWS
):
    """Return the solver of conjugate gradients for rows in memory, made from these settings."""
    sizes = (*data.Z.shape, data.Z.shape[1])
    plan = Plan(*sizes, "cg", dtype, session.executor.n_jobs, 0, session.memory_limit)
    settings = CGSettings(form, rank, try_jacobi, shared)
    return CGSolver(plan, settings, replace(session, random=np.random.RandomState(seed)))


def basis_solver(rows, count=None):
    """Return the basis solver for rows in memory, with that many functions per column of x."""
    session, data = session_of(), rows.data
    sizes = len(rows), data.x.shape[1], data.Z.shape[1]
    plan = Plan(*sizes, "basis", np.float64, 1, 0, session.memory_limit)
    return BasisSolver(plan, session, BasisSettings(count))
