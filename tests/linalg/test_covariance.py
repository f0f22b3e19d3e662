"""Each operation of each form of C agrees with the dense matrix, to the digits of that form."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oracle
from gpx_scale import kernels
from gpx_scale.linalg.covariance import StoredCovariance, TiledCovariance
from gpx_scale.linalg.lower_tiles import MAX_TILE_ROWS
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.linalg.sparse_covariance import PairCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.parallel import Executor
from gpx_scale.runtime.session import Session
from problems import make_problem, session_of


def on_pairs(data, params, session, dtype):
    return PairCovariance(data, params, session, dtype, Pairs.of(data, params.kernel, session))


SPARSE = ("pairs float64", "pairs float32", "tiles of sparse rows")
FORMS = {
    "pairs float64": (on_pairs, np.float64),
    "pairs float32": (on_pairs, np.float32),
    "tiles of sparse rows": (TiledCovariance, np.float64),
    "recomputed float64": (TiledCovariance, np.float64),
    "recomputed float32": (TiledCovariance, np.float32),
    "stored": (StoredCovariance, np.float32),
    "stored, formed in float64": (StoredCovariance, np.float64),
}
SIZES = [1, 2, MAX_TILE_ROWS - 1, MAX_TILE_ROWS, 2 * MAX_TILE_ROWS + 17]


@pytest.fixture(scope="module")
def session():
    with Executor(2) as executor:
        yield Session.of(executor)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("form", FORMS)
class TestEveryForm:
    @pytest.fixture
    def case(self, form, n, session):
        problem = make_problem(n=n, theta2=(2.5, 1.0, 4.0))
        if form in SPARSE:  # Pairs have one distance, so there is one theta2.
            problem = make_problem(n=n, d=30, share=0.08)
        kind, dtype = FORMS[form]
        data = problem.sparse_inputs if form in SPARSE else problem.inputs
        covariance = kind(data, problem.params, session, dtype)
        dense = oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise)
        digits = (
            1e-12
            if form in ("recomputed float64", "pairs float64", "tiles of sparse rows")
            else 1e-5
        )
        return covariance, dense, digits * np.abs(dense).sum(axis=1).max(), problem

    def test_product_with_many_vectors(self, case):
        covariance, dense, tol, _ = case
        V = np.random.RandomState(1).randn(len(dense), 67)  # A product has more than one part.
        assert_allclose(covariance.matmul(V), dense @ V, rtol=0, atol=5 * tol)
        assert covariance.matmul(V[:, :0]).shape == (len(dense), 0)

    def test_diagonal_and_noise(self, case):
        covariance, dense, _, problem = case
        assert_allclose(covariance.diagonal, dense.diagonal(), rtol=1e-13)
        assert_allclose(
            covariance.noise,
            problem.sigma_y**2 + problem.sigma_w**2 * (problem.Z**2).sum(axis=1),
            rtol=1e-13,
        )

    def test_columns(self, case):
        covariance, dense, _tol, _problem = case
        index = np.random.RandomState(2).permutation(len(dense))[:7]
        S = dense - np.diag(covariance.noise)
        assert_allclose(covariance.columns(index), S[:, index], rtol=1e-12, atol=1e-13)

    def test_symmetry_and_positivity(self, case):
        covariance, dense, tol, _ = case
        V = np.random.RandomState(3).randn(len(dense), min(5, len(dense)))
        inner = V.T @ covariance.matmul(V)
        assert_allclose(inner, inner.T, rtol=0, atol=len(dense) * tol)
        assert np.linalg.eigvalsh(0.5 * (inner + inner.T)).min() > 0

    def test_derivatives_agree_with_differences(self, case, session):
        covariance, dense, _tol, problem = case
        random = np.random.RandomState(4)
        U, V = random.randn(len(dense), 2), random.randn(len(dense), 2)
        found = covariance.contract(U, V)
        tangents = covariance.tangents(V[:, 0])
        for t, h in enumerate(1e-4 * np.eye(problem.params.theta.size)):
            up, down = (
                oracle.covariance(
                    oracle.rbf(q.kernel.theta1, q.kernel.theta2),
                    problem.X,
                    problem.Z,
                    q.sigma_w,
                    q.sigma_y,
                )
                for q in (problem.params.with_theta(problem.params.theta + e) for e in (h, -h))
            )
            dC = (up - down) / 2e-4
            scale = np.abs(dense).sum() * 1e-5
            assert found[t] == pytest.approx(np.sum(U * (dC @ V)), rel=1e-4, abs=scale)
            assert_allclose(tangents[:, t], dC @ V[:, 0], rtol=1e-4, atol=scale)

    def test_workers_do_not_matter(self, case, form):
        covariance, dense, _, problem = case
        V = np.random.RandomState(5).randn(len(dense), 3)
        data = problem.sparse_inputs if form in SPARSE else problem.inputs
        other = FORMS[form][0](data, problem.params, session_of(1), FORMS[form][1])
        assert_allclose(other.matmul(V), covariance.matmul(V), rtol=0, atol=0)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Matern12(1.0, 2.0),
        kernels.RBF(1.0, 2.0) + kernels.Matern52(0.5, 1.0),
        kernels.RBF(1.0, 1e-4),
    ],
)
def test_kernels_that_need_float64_say_so(kernel, session):
    problem = make_problem(n=60)
    single = kernel.float32_is_safe(problem.X)
    assert single == (type(kernel) is not kernels.Matern12 and "0001" not in repr(kernel))
    params = Hyperparameters.of(kernel, 0.2, 0.3)
    V = np.random.RandomState(0).randn(60, 2)
    exact = TiledCovariance(problem.inputs, params, session).matmul(V)
    stored = StoredCovariance(
        problem.inputs, params, session, np.float32 if single else np.float64
    ).matmul(V)
    assert_allclose(stored, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
