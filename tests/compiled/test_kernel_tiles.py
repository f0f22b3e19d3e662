"""Loops that form tiles of S = K o ZZ^T beside their slow twins in numpy.

Tiles have 8 rows here, so that a few rows make several of them. Every loop gives the same bits
serially and in parallel, for any number of threads.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale import kernels
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.linalg import kernel_tiles, lower_tiles
from gpx_scale.linalg.kernel_tiles import KernelTiles, product_order, stored_product
from gpx_scale.linalg.lower_tiles import LowerTiles
from gpx_scale.runtime.tile_loops import Threads

KERNELS = {
    "rbf": lambda: kernels.RBF(1.3, 2.0),
    "matern12": lambda: kernels.Matern12(1.3, 2.0),
    "matern32, ard": lambda: kernels.Matern32(1.3, [2.0, 0.7, 3.0]),
    "matern52": lambda: kernels.Matern52(1.3, 2.0),
    "rq, ard": lambda: kernels.RationalQuadratic(1.3, [2.0, 0.7, 3.0], 1.7),
}
ROWS = [1, 5, 8, 9, 61]
FORMS = pytest.mark.parametrize("form", ["dense", "sparse"])


@pytest.fixture(autouse=True)
def tiles_of_eight_rows(monkeypatch):
    monkeypatch.setattr(lower_tiles, "MAX_TILE_ROWS", 8)


class Case:
    """Rows of a kernel, S in compiled tiles, and S by its definition with 0 on the diagonal."""

    def __init__(self, kernel, n, form="dense", dtype=np.float64, n_jobs=2):
        random = np.random.RandomState(n)
        X, Z = random.standard_normal((n, 3)), random.standard_normal((n, 4))
        Z *= random.uniform(size=Z.shape) < (0.4 if form == "sparse" else 1.0)
        features = SparseFeatures.of(sp.csr_array(Z)) if form == "sparse" else DenseFeatures(Z)
        self.kernel, self.X, self.Z, self.n = kernel, X, Z, n
        self.diagonal = random.uniform(3.0, 4.0, n)
        profile = kernel.profile(kernel.prepare(X, dtype))
        self.tiles = KernelTiles(profile, features.astype(dtype), n_jobs)
        self.S = self.covariance(kernel)
        self.C = self.S + np.diag(self.diagonal)

    def covariance(self, kernel):
        S = kernel(self.X, self.X) * (self.Z @ self.Z.T)
        np.fill_diagonal(S, 0.0)
        return S

    def derivatives(self):
        """Return dS/dtheta by central differences, with 0 on the diagonal;  (t, n, n)."""
        theta, step = self.kernel.theta, 1e-6

        def at(move):
            return self.covariance(self.kernel.with_theta(theta + move))

        return np.array([(at(e) - at(-e)) / (2 * step) for e in step * np.eye(theta.size)])

    def along_diagonal(self, weights):
        """Return sum_i weights_i dS_ii/dtheta, which is that of theta1 alone;  (n,) -> (t,)."""
        gradient = np.zeros(self.kernel.theta.size)
        gradient[0] = 1.3 * (weights * (self.Z**2).sum(axis=1)).sum()
        return gradient


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]()


@FORMS
@pytest.mark.parametrize("n", ROWS)
def test_tiles_are_filled_as_by_numpy(kernel, n, form):
    case = Case(kernel, n, form)
    tiles = LowerTiles.empty(n, np.float64, 2)
    case.tiles.fill(tiles, case.diagonal)
    assert_allclose(tiles.to_matrix(), np.tril(case.C), rtol=1e-13, atol=1e-13)


@FORMS
@pytest.mark.parametrize("n", ROWS)
def test_products_and_quadratic_forms_are_those_of_numpy(kernel, n, form):
    case = Case(kernel, n, form)
    V = np.random.RandomState(0).standard_normal((n, 70))
    wanted = case.C @ V
    close = {"rtol": 0, "atol": 1e-12 * n}
    assert_allclose(case.tiles.matmul(V, case.diagonal), wanted, **close)
    rows = np.ascontiguousarray(V.T)
    assert_allclose(case.tiles.matmul_rows(rows, case.diagonal), wanted.T, **close)
    energies = np.einsum("ij,ij->j", V, wanted)
    assert_allclose(case.tiles.quadratic(rows, case.diagonal), energies, **close)
    stored = LowerTiles.empty(n, np.float64, 2)
    case.tiles.fill(stored, np.zeros(n))
    assert_allclose(stored_product(stored, V, case.diagonal), wanted, **close)


@FORMS
@pytest.mark.parametrize("n", ROWS)
def test_the_inverse_is_contracted_with_the_derivatives(kernel, n, form):
    case = Case(kernel, n, form)
    A = np.random.RandomState(1).standard_normal((n, n + 3))
    L = np.linalg.cholesky(A @ A.T / n + np.eye(n))
    inverse, alpha = np.linalg.inv(L @ L.T), np.random.RandomState(2).standard_normal(n)
    factor = LowerTiles.of_triangle(L[np.tril_indices(n)], n, 2)
    factor.invert_factor()
    sums, diagonal = case.tiles.contract_inverse(factor, alpha)
    Q = np.outer(alpha, alpha) - inverse
    wanted = (case.derivatives() * Q).sum(axis=(1, 2)) + case.along_diagonal(Q.diagonal())
    scale = np.abs(Q).sum()
    assert_allclose(kernel.gradient_of_sums(sums), wanted, rtol=1e-6, atol=1e-7 * scale)
    assert_allclose(diagonal, inverse.diagonal(), rtol=1e-12)


@FORMS
@pytest.mark.parametrize("n", ROWS)
def test_products_of_vectors_are_contracted_with_the_derivatives(kernel, n, form):
    case = Case(kernel, n, form)
    U, V = np.random.RandomState(1).standard_normal((2, n, 5))
    sums = case.tiles.contract(U, V)
    Q = 0.5 * (U @ V.T + V @ U.T)
    wanted = (case.derivatives() * Q).sum(axis=(1, 2)) + case.along_diagonal(Q.diagonal())
    scale = np.abs(Q).sum()
    assert_allclose(kernel.gradient_of_sums(sums), wanted, rtol=1e-6, atol=1e-7 * scale)


def test_loops_get_vectors_by_rows_whatever_their_order(monkeypatch):
    """From vectors by columns, as conjugate gradients have them, a strip would copy all rows."""
    case, run, seen = Case(kernels.RBF(1.3, 2.0), 61), Threads.run, []

    def watched(threads, loop, *arguments):
        seen.extend(one for one in arguments if isinstance(one, np.ndarray) and one.ndim == 2)
        run(threads, loop, *arguments)

    monkeypatch.setattr(Threads, "run", watched)
    U, V = np.random.RandomState(1).standard_normal((2, 61, 5))
    by_columns = [np.asfortranarray(one) for one in (U, V)]
    assert_array_equal(case.tiles.contract(*by_columns), case.tiles.contract(U, V))
    by_rows = case.tiles.matmul(V, case.diagonal)
    assert_array_equal(case.tiles.matmul(by_columns[1], case.diagonal), by_rows)
    assert seen
    assert all(one.flags.c_contiguous for one in seen)


@FORMS
@pytest.mark.parametrize("n", ROWS)
def test_tangents_are_derivatives_of_products(kernel, n, form):
    case = Case(kernel, n, form)
    v = np.random.RandomState(1).standard_normal(n)
    found = kernel.gradient_of_sums(case.tiles.tangents(v).T).T
    wanted = (case.derivatives() @ v).T
    wanted[:, 0] += 1.3 * (case.Z**2).sum(axis=1) * v
    assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@FORMS
def test_float32_differs_from_float64_by_rounding(kernel, form):
    wide, narrow = (Case(kernel, 61, form, dtype) for dtype in (np.float64, np.float32))
    V = np.random.RandomState(0).standard_normal((61, 20))
    # Matern 1/2 has a square root at s = 0, which makes sqrt(eps) of eps.
    error = 2e-3 if kernel.theta.size == 2 and kernel.smoothness == 0.5 else 2e-5
    diagonal = wide.diagonal
    pairs = [
        (wide.tiles.matmul(V, diagonal), narrow.tiles.matmul(V, diagonal)),
        (wide.tiles.contract(V, V), narrow.tiles.contract(V, V)),
        (wide.tiles.tangents(V[:, 0]), narrow.tiles.tangents(V[:, 0])),
    ]
    for one, other in pairs:
        assert_allclose(other, one, rtol=0, atol=error * np.abs(one).max())


@FORMS
def test_one_two_and_sixteen_threads_give_the_same_bits(kernel, form):
    V = np.random.RandomState(0).standard_normal((61, 70))

    def everything(n_jobs):
        case = Case(kernel, 61, form, n_jobs=n_jobs)
        tiles = LowerTiles.empty(61, np.float64, n_jobs)
        case.tiles.fill(tiles, case.diagonal + 100.0)
        filled = tiles.to_matrix()
        tiles.factor()
        tiles.invert_factor()
        rows = np.ascontiguousarray(V.T)
        return (
            filled,
            *case.tiles.contract_inverse(tiles, V[:, 0].copy()),
            case.tiles.contract(V, V),
            case.tiles.tangents(V[:, 0]),
            case.tiles.matmul(V, case.diagonal),
            case.tiles.matmul_rows(rows, case.diagonal),
            case.tiles.quadratic(rows, case.diagonal),
        )

    alone = everything(1)
    for n_jobs in (2, 16):
        for one, other in zip(alone, everything(n_jobs), strict=True):
            assert_array_equal(one, other)


def test_calls_that_are_cut_short_for_ctrl_c_give_the_same_bits(monkeypatch):
    V = np.random.RandomState(0).standard_normal((61, 5))

    def everything():
        case = Case(kernels.RBF(1.3, 2.0), 61)
        rows = np.ascontiguousarray(V.T)
        return (
            case.tiles.matmul(V, case.diagonal),
            case.tiles.matmul_rows(rows, case.diagonal),
            case.tiles.quadratic(rows, case.diagonal),
            case.tiles.contract(V, V),
            case.tiles.tangents(V[:, 0]),
        )

    whole = everything()
    monkeypatch.setattr(kernel_tiles, "CALL_ENTRIES", 1.0)
    monkeypatch.setattr(kernel_tiles, "CALL_FLOPS", 1.0)
    for one, other in zip(whole, everything(), strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 98])
def test_groups_of_a_product_share_all_strips_evenly(count):
    order = product_order(count)
    assert sorted(order[order >= 0].tolist()) == list(range(count))
    tiles = np.where(order >= 0, order + 1, 0).sum(axis=0)
    assert tiles.max() - tiles.min() <= count
