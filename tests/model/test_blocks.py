"""The paper's block matrices: sparse matrices, operators and the oracle agree."""

import numpy as np
import scipy.sparse as sp
from hypothesis import assume, given
from numpy.testing import assert_allclose

import oracle
from gpx_scale import blocks
from problems import make_problem, problems


@given(problems(largest=12))
def test_predictive_weights_three_ways(problem):
    assume(problem.sigma_y >= 0.1)  # The block form loses digits if the noise is small.
    assume(problem.sigma_w > 0.0)  # It inverts K-bar + sigma_w^2 I.
    K, x = problem.k(problem.X, problem.X), problem.X_query[0]
    k_star = problem.k(x[None], problem.X)[0]
    found = blocks.predictive_weights(
        K, problem.Z, problem.y, k_star, problem.theta1, *problem.noise
    )
    by_blocks = oracle.weights_by_blocks(problem.k, *problem.data, x, *problem.noise)
    simple = oracle.weights(problem.k, *problem.data, x, *problem.noise)
    # K + sigma_w^2 I is inverted as well, and sigma_y^-2 multiplies a difference.
    tol = 1e4 * problem.tol
    for ours, paper, short in zip(found, by_blocks, simple, strict=True):
        assert_allclose(ours, paper, rtol=tol, atol=tol)
        assert_allclose(ours, short, rtol=tol, atol=tol)


def test_training_posterior_is_the_engine_s():
    problem = make_problem(n=15, d=3)
    mean, S = blocks.weights_posterior(
        problem.k(problem.X, problem.X), problem.Z, problem.y, *problem.noise
    )
    explanation = problem.fitted().training_explanation()
    assert_allclose(mean.reshape(3, 15).T, explanation.weights, rtol=1e-8, atol=1e-9)
    S = S.matmat(np.eye(45))
    assert_allclose(S, S.T, atol=1e-12)
    assert_allclose(S.diagonal().reshape(3, 15).T, explanation.weights_std**2, rtol=1e-8)


def test_operators_are_the_matrices():
    problem = make_problem(n=8, d=3)
    K = problem.k(problem.X, problem.X)
    pairs = [
        (blocks.K_bar_operator(K, 3, shift=0.5), blocks.K_bar(K, 3).toarray() + 0.5 * np.eye(24)),
        (blocks.Z_bar_operator(problem.Z), blocks.Z_bar(problem.Z).toarray()),
        (blocks.k_bar_star_operator(K[0], 3), blocks.k_bar_star(K[0], 3).toarray()),
    ]
    random = np.random.RandomState(0)
    for operator, matrix in pairs:
        assert operator.shape == matrix.shape
        u = random.randn(matrix.shape[0])
        assert_allclose(operator.rmatvec(u), matrix.T @ u)
        v = random.randn(matrix.shape[1])
        assert_allclose(operator.matvec(v), matrix @ v)


def test_covariance_is_the_block_product():
    problem = make_problem(n=8, d=3)
    Z, K = blocks.Z_bar(problem.Z), blocks.K_bar(problem.k(problem.X, problem.X), 3)
    C = (
        (Z @ K @ Z.T).toarray()
        + problem.sigma_w**2 * (Z @ Z.T).toarray()
        + problem.sigma_y**2 * np.eye(8)
    )
    assert_allclose(C, oracle.covariance(problem.k, problem.X, problem.Z, *problem.noise))


def test_sparse_z_gives_the_same_blocks():
    random = np.random.RandomState(0)
    Z = np.where(random.rand(6, 5) < 0.4, random.randn(6, 5), 0.0)
    K = np.exp(-np.square(random.randn(6)[:, None] - random.randn(6)))
    K, v = K + K.T + 6 * np.eye(6), random.randn(30)
    sparse = blocks.Z_bar(sp.csr_array(Z))
    assert isinstance(sparse, sp.csr_array)
    assert sparse.nnz == np.count_nonzero(Z)
    assert_allclose(sparse.toarray(), blocks.Z_bar(Z).toarray())
    assert_allclose(
        blocks.Z_bar_operator(sp.csr_matrix(Z)).matvec(v), blocks.Z_bar_operator(Z).matvec(v)
    )
    y, k_star = random.randn(6), random.rand(6)
    for one, other in zip(
        *(blocks.predictive_weights(K, A, y, k_star, 9.0, 0.3, 0.5) for A in (Z, sp.csr_array(Z))),
        strict=True,
    ):
        assert_allclose(one, other)
