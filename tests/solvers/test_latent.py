"""Newton's method for likelihoods that are not Gaussian, beside dense algebra and known values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from conftest import SHARED
from gpx_scale.data.features import DenseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.data.row_columns import RowColumns
from gpx_scale.data.row_source import MemoryRows
from gpx_scale.kernels import RBF
from gpx_scale.likelihoods import (
    BinomialLikelihood,
    GaussianLikelihood,
    LogitLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    ProbitLikelihood,
    StudentLikelihood,
)
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.model.weight_prior import WeightPrior
from gpx_scale.solvers import newton
from gpx_scale.solvers.exact.solver import ExactSolver
from problems import session_of

N = 60


class NewtonsGaussian(GaussianLikelihood):
    """Gaussian noise that Newton's method is to find."""

    is_gaussian = False
    noise_sd = 0.0
    inference = "vi"

    @property
    def is_variational(self):
        return self.inference == "vi"


class LaplaceGaussian(NewtonsGaussian):
    inference = "laplace"


def rows_for(likelihood, weighted=False):
    random = np.random.RandomState(0)
    X, Z = random.standard_normal((N, 2)), random.standard_normal((N, 2))
    Z[3] = 0.0  # A row without features has no prior variance.
    f = np.sin(X[:, 0]) * Z[:, 0] + 0.5 * Z[:, 1]
    trials = random.randint(1, 6, N).astype(float) if likelihood.name == "binomial" else None
    y = likelihood.draw(f, random, trials)
    weight = random.uniform(0.5, 2.0, N) if weighted else None
    columns = RowColumns(weight, None, 0.3 * random.standard_normal(N), trials)
    return MemoryRows(TrainingRows(X, DenseFeatures(Z), y, columns=columns))


def model_of(likelihood, theta1=1.3, sigma_w=0.2):
    return Hyperparameters(WeightPrior.of(RBF(theta1, 2.0), sigma_w), likelihood)


def solver_for(rows):
    return ExactSolver(len(rows), np.float64, session_of())


LIKELIHOODS = [
    *(LogitLikelihood(inference=kind) for kind in ("vi", "laplace")),
    *(ProbitLikelihood(inference=kind) for kind in ("vi", "laplace")),
    *(BinomialLikelihood(inference=kind) for kind in ("vi", "laplace")),
    *(PoissonLikelihood(inference=kind) for kind in ("vi", "laplace")),
    *(NegativeBinomialLikelihood(2.0, inference=kind) for kind in ("vi", "laplace")),
    StudentLikelihood(0.5, 4.0),
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "likelihood", LIKELIHOODS, ids=lambda one: f"{one.name}-{getattr(one, 'inference', '')}"
)
def test_gradients_are_those_of_finite_differences(likelihood, weighted, monkeypatch):
    monkeypatch.setattr(newton, "VARIANCE_TOLERANCE_NATS_PER_ROW", 1e-13)
    monkeypatch.setattr(newton, "LAST_STEP_NATS", 1e-12)
    rows, model = rows_for(likelihood, weighted), model_of(likelihood)
    solver, step = solver_for(rows), 1e-4

    def value(theta):
        return solver.evaluate(rows, model.with_theta(theta), gradient=False).value

    found = solver.evaluate(rows, model).gradient
    for k, unit in enumerate(np.eye(found.size)):
        difference = value(model.theta + step * unit) - value(model.theta - step * unit)
        # Expectations by Gauss-Hermite nodes are off by 4e-6 in the gradient of the bound.
        assert_allclose(found[k], difference / (2 * step), atol=1e-5)


@pytest.mark.parametrize("kind", [NewtonsGaussian, LaplaceGaussian])
def test_gaussian_noise_gives_the_closed_form(kind):
    rows, usual = rows_for(GaussianLikelihood(0.4)), model_of(GaussianLikelihood(0.4))
    rows = MemoryRows(TrainingRows(rows.data.x, rows.data.Z, rows.data.y))
    model = model_of(kind(0.4))
    expected = solver_for(rows).evaluate(rows, usual, information=True)
    found = solver_for(rows).evaluate(rows, model, information=True)
    assert_allclose(found.value, expected.value, rtol=1e-10)
    assert_allclose(found.gradient, expected.gradient, atol=1e-8)
    # An integral over 32 nodes is off by a part in a thousand where the noise is small.
    assert_allclose(found.leave_one_out_log_density(), expected.leave_one_out_log_density(), 2e-3)
    exact = solver_for(rows).condition(rows, usual)
    posterior = solver_for(rows).condition(rows, model)
    assert_allclose(posterior.coefficients, exact.coefficients, atol=1e-8)
    assert_allclose(posterior.log_evidence, exact.log_evidence, rtol=1e-10)


def dense_laplace(y, S, offset):
    """Return the mode of f and Laplace's evidence of a logit likelihood, the slow way."""
    f, inverse = offset.copy(), np.linalg.inv(S)
    for _ in range(100):
        p = 1 / (1 + np.exp(-f))
        H = inverse + np.diag(p * (1 - p))
        f = f + np.linalg.solve(H, y - p - inverse @ (f - offset))
    value = -np.logaddexp(0, (1 - 2 * y) * f).sum() - 0.5 * (f - offset) @ inverse @ (f - offset)
    return f, value - 0.5 * np.linalg.slogdet(np.eye(len(y)) + S @ np.diag(p * (1 - p)))[1]


def test_laplace_s_evidence_is_that_of_dense_algebra():
    likelihood = LogitLikelihood(inference="laplace")
    rows, model = rows_for(likelihood), model_of(likelihood)
    some = np.delete(np.arange(N), 3)  # S~ of the row without features is singular.
    data = rows.data[some]
    x, Z = data.x, data.Z.to_dense()
    K = 1.3 * np.exp(-np.square(x[:, None] - x).sum(axis=2) / 2.0)
    S = (K + 0.04 * np.eye(len(x))) * (Z @ Z.T)
    _, expected = dense_laplace(data.y, S, data.columns.offset)
    rows = MemoryRows(data)
    assert_allclose(solver_for(rows).evaluate(rows, model).value, expected, rtol=1e-9)


def test_the_bound_is_below_the_evidence_and_close_to_it():
    # With one row, the evidence is an integral over one number.
    likelihood = LogitLikelihood()
    rows = MemoryRows(TrainingRows(np.zeros((1, 1)), DenseFeatures(np.ones((1, 1))), np.ones(1)))
    found = solver_for(rows).evaluate(rows, model_of(likelihood, theta1=4.0, sigma_w=0.0)).value
    exact = quad(lambda f: np.exp(-f * f / 8) / (1 + np.exp(-f)), -40, 40)[0] / np.sqrt(8 * np.pi)
    assert np.log(exact) - 0.05 < found < np.log(exact)


@pytest.mark.parametrize("inference", ["vi", "laplace"])
def test_saturated_latent_values_converge(inference):
    random = np.random.RandomState(1)
    X = random.standard_normal((80, 2))
    y = (X[:, 0] > 0).astype(float)
    y[::7] = 1.0 - y[::7]
    rows = MemoryRows(TrainingRows(X, DenseFeatures(np.ones((80, 1))), y))
    model = model_of(LogitLikelihood(inference=inference), theta1=1e4)
    solver = solver_for(rows)
    found = solver.evaluate(rows, model)
    assert np.isfinite(found.value)
    assert np.isfinite(found.gradient).all()
    if inference == "laplace":
        assert solver._latent._last[0].steps <= 35


def test_classes_share_the_evidence():
    random = np.random.RandomState(2)
    X = random.standard_normal((50, 2))
    codes = random.randint(0, 3, 50).astype(float)
    rows = [TrainingRows(X, DenseFeatures(X), y) for y in (codes, *(codes == k for k in range(3)))]
    rows = [MemoryRows(TrainingRows(one.x, one.Z, one.y.astype(float))) for one in rows]
    together = solver_for(rows[0]).evaluate(rows[0], model_of(LogitLikelihood(3)))
    alone = [solver_for(one).evaluate(one, model_of(LogitLikelihood())) for one in rows[1:]]
    assert_allclose(together.value, sum(one.value for one in alone), rtol=1e-9)
    assert_allclose(together.gradient, sum(one.gradient for one in alone), atol=1e-6)
    posteriors = solver_for(rows[0]).condition_each(rows[0], model_of(LogitLikelihood(3)))
    assert len(posteriors) == 3
    assert len({one.log_evidence for one in posteriors}) == 1


@pytest.mark.parametrize("name", ["logit", "probit", "poisson"])
def test_known_values_of_pima(name):
    path = SHARED / "golden" / "laplace_pima.npz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    golden = np.load(path)
    kind = {"logit": LogitLikelihood, "probit": ProbitLikelihood, "poisson": PoissonLikelihood}
    y = golden["counts"] if name == "poisson" else golden["y"]
    rows = MemoryRows(TrainingRows(golden["X"], DenseFeatures(np.ones((len(y), 1))), y))
    theta1, theta2, sigma_w = golden["theta"].tolist()
    prior = WeightPrior.of(RBF(theta1, theta2), sigma_w)
    model = Hyperparameters(prior, kind[name](inference="laplace"))
    found = solver_for(rows).evaluate(rows, model)
    assert_allclose(found.value, golden[f"{name}_laplace"], rtol=1e-9)
    assert_allclose(found.gradient[:2], golden[f"{name}_gradient_log_theta"], rtol=1e-6)
