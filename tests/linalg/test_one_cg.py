"""The loop of conjugate gradients beside direct solves, with columns that leave or stay."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale.linalg.conjugate_gradients import UntilNatsAreReached, iterate
from gpx_scale.linalg.covariance_factor import REFINED_RESIDUAL, CholeskyFactor
from gpx_scale.linalg.lower_tiles import LowerTiles
from problems import session_of

N = 40


@pytest.fixture(name="system")
def make_system():
    """Return C with three large eigenvalues, and B whose columns take 1, 2 and many iterations."""
    random = np.random.RandomState(0)
    Q = np.linalg.qr(random.randn(N, N))[0]
    values = np.concatenate([[50.0, 20.0, 10.0], np.linspace(1.0, 3.0, N - 3)])
    C = (Q * values) @ Q.T
    B = np.column_stack([Q[:, 0], Q[:, 1] + Q[:, 2], random.randn(N)])
    return SimpleNamespace(C=C, B=B, X=np.linalg.solve(C, B), condition=values.max() / values.min())


class Widths:
    """V -> C V, which remembers how many columns each product had."""

    def __init__(self, C):
        self.C, self.seen = C, []

    def __call__(self, V):
        self.seen.append(V.shape[1])
        return self.C @ V


def identity(R):
    return R.copy()


def small(R, B):
    """Return which residuals (n, c) are 1e-12 of their right-hand sides."""
    return np.linalg.norm(R, axis=0) <= 1e-12 * np.linalg.norm(B, axis=0)


def started(system, start=None):
    X = np.zeros_like(system.B) if start is None else start.copy()
    R = system.B - system.C @ X
    return X, R


def test_columns_leave_as_they_converge(system):
    X, R = started(system)
    product = Widths(system.C)

    def goes_on(at):
        return ~small(at.residual, system.B[:, at.running])

    steps, ratios = iterate(product, identity, X, R, identity(R), goes_on, 100)
    assert_allclose(X, system.X, atol=system.condition * 1e-12)
    lengths = [len(column) for column in steps]
    assert lengths[:2] == [1, 2]  # as many as a column has eigenvectors
    assert 10 < lengths[2] <= N
    assert [len(column) for column in ratios] == lengths
    assert product.seen == [3, 2] + [1] * (lengths[2] - 2)


def test_columns_stay_until_all_have_converged(system):
    X, R = started(system)
    product = Widths(system.C)

    def goes_on(at):
        return np.full(at.running.size, not small(at.residual, system.B).all())

    iterate(product, identity, X, R, identity(R), goes_on, 100)
    assert_allclose(X, system.X, atol=system.condition * 1e-12)
    assert set(product.seen) == {3}
    assert 10 < len(product.seen) <= N


def test_a_preconditioner_and_a_start(system):
    """With the inverse itself as the preconditioner, one iteration is enough from anywhere."""
    X, R = started(system, np.random.RandomState(1).randn(*system.B.shape))
    inverse = np.linalg.inv(system.C)
    product = Widths(system.C)

    def goes_on(at):
        return ~small(at.residual, system.B[:, at.running])

    iterate(product, lambda V: inverse @ V, X, R, inverse @ R, goes_on, 100)
    assert_allclose(X, system.X, atol=system.condition * 1e-11)
    assert len(product.seen) <= 2  # the second one for the rounding of the first


def test_columns_that_are_done_are_not_touched(system):
    X, R = started(system, system.X)
    product = Widths(system.C)

    def goes_on(at):
        return np.zeros(at.running.size, bool)

    steps, _ = iterate(product, identity, X, R, identity(R), goes_on, 100)
    assert not product.seen
    assert steps == [[], [], []]
    assert np.array_equal(X, system.X)


def test_the_number_of_iterations_is_limited(system):
    X, R = started(system)
    asked = []

    def goes_on(at):
        asked.append(at.iteration)
        return np.ones(at.running.size, bool)

    product = Widths(system.C)
    iterate(product, identity, X, R, identity(R), goes_on, 3)
    assert len(product.seen) == 3
    assert asked == [0, 1, 2, 3]  # before the first iteration, and after each


def test_an_indefinite_matrix_has_no_step():
    C = np.diag([-1.0, 2.0])
    B = np.array([[1.0, 0.0], [0.0, 1.0]])
    X = np.zeros((2, 2))
    steps, _ = iterate(lambda V: C @ V, identity, X, B.copy(), B.copy(), lambda at: at.moved, 5)
    assert not steps[0]
    assert_allclose(X, [[0.0, 0.0], [0.0, 0.5]])


def test_all_columns_as_one_vector(system):
    """If inner products are sums over all columns, they are one block-diagonal system."""
    shape = system.B.shape

    def product(v):
        return (system.C @ v.reshape(shape)).reshape(-1, 1)

    def total(a, b):
        return np.array([(a * b).sum()])

    b = system.B.reshape(-1, 1)
    x = np.zeros_like(b)

    def goes_on(at):
        return at.moved & ~small(at.residual, b)

    steps, _ = iterate(product, identity, x, b.copy(), b.copy(), goes_on, 200, total)
    assert_allclose(x.reshape(shape), system.X, atol=system.condition * 1e-11)
    assert len(steps) == 1


def test_coefficients_are_those_of_lanczos(system):
    """T is V^T C V, where Gram-Schmidt, applied twice, makes the basis V of the Krylov space."""
    b, count = system.B[:, 2], 8
    x = np.zeros((N, 1))
    R = b[:, None].copy()
    product = Widths(system.C)
    steps, ratios = iterate(product, identity, x, R, R.copy(), lambda at: at.moved, count)
    a, r = np.array(steps[0]), np.array(ratios[0][:-1])
    off = np.sqrt(r) / a[:-1]
    T = np.diag(1.0 / a + np.append(0.0, r / a[:-1])) + np.diag(off, 1) + np.diag(off, -1)
    basis = np.empty((N, 0))
    v = b
    for _ in range(count):
        for _ in range(2):
            v = v - basis @ (basis.T @ v)
        basis = np.column_stack([basis, v / np.linalg.norm(v)])
        v = system.C @ basis[:, -1]
    assert_allclose(np.abs(T), np.abs(basis.T @ system.C @ basis), atol=1e-9)


def test_nats_bound_what_is_missed(system):
    """Each column stops at its own goal, and `tell` counts on from the 7 earlier iterations."""

    def bound(R, H):
        return 0.5 * np.einsum("ij,ij->j", R, H)

    P = SimpleNamespace(solve=identity, error_bound_nats=bound)  # I <= C
    goal, told = np.array([1e-3, 1e-6, 1e-9]), []
    X, R = started(system)
    rule = UntilNatsAreReached(P, goal, 7, lambda *seen: told.append(seen))
    steps, _ = iterate(lambda V: system.C @ V, P.solve, X, R, P.solve(R), rule, 100)
    missed = X - system.X
    assert (0.5 * np.einsum("ij,ij->j", missed, system.C @ missed) <= goal).all()
    longest = max(map(len, steps))
    assert [iteration for iteration, _, _ in told] == list(range(8, 8 + longest))
    assert told[-1][1] <= told[-1][2] == 1e-9


def test_a_float32_factor_is_refined(system):
    """The right-hand sides have very different sizes, and one is zero."""
    covariance = SimpleNamespace(
        matmul=lambda V: system.C @ V, diagonal=system.C.diagonal(), session=session_of(1)
    )
    L = np.linalg.cholesky(system.C).astype(np.float32)
    B = np.column_stack([system.B * [1.0, 1e-90, 1e90], np.zeros(N)])
    tiles = LowerTiles.of_triangle(L[np.tril_indices(N)], N, 1)
    found = CholeskyFactor(covariance, tiles, 0.0).solve(B)
    assert_allclose(
        found[:, :3] / [1.0, 1e-90, 1e90], system.X, atol=system.condition * REFINED_RESIDUAL
    )
    assert not found[:, 3].any()
