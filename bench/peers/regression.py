"""Gaussian process regression on a table, and 20,000 rows with weights.

The first task has z = 1 and is compared with scikit-learn and GPyTorch, all exact. The second
is compared with GPyTorch's SGPR and its exact GP. Peers start from the median distance, as our
search does, and otherwise from their own defaults: from our noise of 0.1, scikit-learn ends
without any signal (700 rows: MSE 0.98 instead of 0.34).
"""

from __future__ import annotations

import numpy as np

from .case import THREADS, RowSource, Task, loaded, mse

# GPyTorch's L-BFGS has at most this many evaluations. It usually ends earlier, by its own
# tolerances.
MAX_EVALUATIONS = 100


def median_length(X: np.ndarray) -> float:
    """Return the length scale of the median squared distance of some rows, theta2 = 2
    length^2, where the paper starts.
    """
    from scipy.spatial.distance import pdist

    return float(np.sqrt(np.median(pdist(X[:1000], "sqeuclidean")) / 2))


class Ours:
    """Plain regression by this package: one feature that is 1, and no noise in its weight."""

    def fit(self, rows: RowSource) -> None:
        from gpx_scale import GPXRegressor

        model = GPXRegressor(
            sigma_w=0.0,
            solver="exact",
            random_state=0,
            n_jobs=THREADS,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        self.model = model.fit(rows.X, rows.y, np.ones((len(rows.X), 1)))

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.predict(rows.Xq, np.ones((len(rows.Xq), 1)), return_std=True)[0]


class ScikitLearn:
    """scikit-learn's GaussianProcessRegressor."""

    def fit(self, rows: RowSource) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        kernel = ConstantKernel() * RBF(median_length(rows.X)) + WhiteKernel()
        self.model = GaussianProcessRegressor(kernel).fit(rows.X, rows.y)

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.predict(rows.Xq, return_std=True)[0]


class GPyTorch:
    """GPyTorch's exact GP.

    With `weights`, its kernel is ours, RBF times inner product. It is solved by a Cholesky
    factor in float64 or, as GPyTorch does by default beyond 800 rows, by conjugate gradients
    in float32.
    """

    def __init__(self, weights: bool = False, cholesky: bool = True) -> None:
        self.weights, self.cholesky = weights, cholesky

    def fit(self, rows: RowSource) -> None:
        import gpytorch
        import torch

        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        self.dtype = torch.float64 if self.cholesky else torch.float32
        X, y = (torch.as_tensor(a, dtype=self.dtype) for a in (rows.X, rows.y))
        rbf, likelihood = gpytorch.kernels.RBFKernel(), gpytorch.likelihoods.GaussianLikelihood()
        rbf.lengthscale = median_length(rows.X)
        kernel = (
            rbf * gpytorch.kernels.LinearKernel()
            if self.weights
            else gpytorch.kernels.ScaleKernel(rbf)
        )

        class Exact(gpytorch.models.ExactGP):
            def __init__(self) -> None:
                super().__init__(X, y, likelihood)
                self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(
                    self.mean_module(x), self.covar_module(x)
                )

        self.model = Exact().to(self.dtype)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, self.model)
        self.model.train()

        def loss():
            self.model.zero_grad()
            value = -objective(self.model(X), y)
            value.backward()
            return value

        limits = {
            "max_iter": MAX_EVALUATIONS,
            "max_eval": MAX_EVALUATIONS,
            "line_search_fn": "strong_wolfe",
        }
        with self.settings():
            torch.optim.LBFGS(self.model.parameters(), lr=1.0, **limits).step(loss)

    def settings(self):
        """Return the scope that chooses between the Cholesky factor and conjugate gradients."""
        import gpytorch

        return gpytorch.settings.max_cholesky_size(10**6 if self.cholesky else 800)

    def answer(self, rows: RowSource) -> np.ndarray:
        import torch

        self.model.eval()
        self.model.likelihood.eval()
        with self.settings(), torch.no_grad():
            found = self.model.likelihood(self.model(torch.as_tensor(rows.Xq, dtype=self.dtype)))
            found.variance.sqrt()
            return found.mean.double().numpy()


def synth(size: str) -> RowSource:
    """Return rows of synth10."""
    from gpx_scale import datasets

    n, m = {"full": (20_000, 1000), "tiny": (1200, 50), "small": (1200, 50)}[size]
    data = datasets.synth10(n + m)
    return RowSource(data.X[:n], data.y[:n], data.X[n:], data.y[n:])


def points(rows: RowSource) -> int:
    """Return the number of inducing points of both sides: 500, and fewer for few rows."""
    return min(500, len(rows.y) // 10)


class OursWeights:
    """This package with one of its solvers."""

    def __init__(self, solver: str) -> None:
        self.solver = solver

    def fit(self, rows: RowSource) -> None:
        from gpx_scale import GPXRegressor

        model = GPXRegressor(
            solver=self.solver,
            n_inducing=points(rows),
            random_state=0,
            n_jobs=THREADS,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        )
        self.model = model.fit(rows.X, rows.y)

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.predict(rows.Xq, return_std=True)[0]


class Sparse:
    """GPyTorch's SGPR as in `make bench CASE=large`.

    Its points start at rows, and are optimised with the hyperparameters by so many
    evaluations.
    """

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations

    def fit(self, rows: RowSource) -> None:
        import torch

        from large import Sgpr

        self.model = Sgpr(rows.X, rows.y, points(rows))
        torch.set_num_threads(THREADS)  # Sgpr has set a number of its own.
        # There are fewer evaluations on few rows, where the entry only has to run.
        self.model.minimise(min(self.evaluations, len(rows.y) // 200))

    def answer(self, rows: RowSource) -> np.ndarray:
        return self.model.predict(rows.Xq)


ABALONE = Task(
    "Abalone, n = {n}, z = 1: fit, and {m} predictions with deviations",
    loaded("abalone", full=(835, None), tiny=(50, 200), small=(50, 300)),
    "MSE",
    mse,
    {"exact": Ours},
    {"scikit-learn GPR": ScikitLearn, "GPyTorch exact (Cholesky)": GPyTorch},
)
SYNTH10 = Task(
    "synth10, n = {n}: fit with weights, and {m} predictions",
    synth,
    "MSE",
    mse,
    {"cg": lambda: OursWeights("cg"), "inducing, 500 points": lambda: OursWeights("inducing")},
    {
        "GPyTorch SGPR, 500 points, 18 evaluations": lambda: Sparse(18),
        "GPyTorch SGPR, 500 points, 72 evaluations": lambda: Sparse(72),
        "GPyTorch exact (conjugate gradients)": lambda: GPyTorch(weights=True, cholesky=False),
    },
)
