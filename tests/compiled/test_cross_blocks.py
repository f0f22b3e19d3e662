"""Rectangular blocks of S beside their slow twins in numpy, in both precisions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale.compiled import cross_blocks as loops
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.kernels import RBF
from gpx_scale.model import cross_block
from gpx_scale.model.cross_block import CrossBlock
from kernel_cases import KERNELS, plain

# Kernels with a compiled form; sums and products have none.
COMPILED = [name for name in KERNELS if hasattr(KERNELS[name], "theta1")]
# Blocks of one entry, of less than a strip, and of several strips and chunks with a rest.
SHAPES = [(1, 1), (5, 3), (loops.STRIP_ROWS + 1, 7), (300, loops.STRIP_COLUMNS + 9)]
STEP = 1e-5


class Rows:
    """Rows a and b of a block, with the products of their features."""

    def __init__(self, shape, dtype=np.float64, d=2):
        random = np.random.RandomState(shape[0])
        self.X = [random.standard_normal((n, 3)) for n in shape]
        # A pair of equal points, for which Matern 1/2 has no derivative.
        self.X[1][0] = self.X[0][0]
        self.Z = [random.standard_normal((n, d)).astype(dtype) for n in shape]
        self.inner = self.Z[0].astype(float) @ self.Z[1].T
        self.W = random.standard_normal(shape).astype(dtype)
        self.dtype = dtype

    def block(self, kernel, n_jobs=2, with_z=True):
        a, b = (kernel.prepare(x, self.dtype) for x in self.X)
        Z = tuple(map(DenseFeatures, self.Z)) if with_z else None
        return CrossBlock.of(kernel, a, b, Z, n_jobs)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COMPILED)
def test_blocks_are_filled_as_by_numpy(name, shape, dtype, n_jobs):
    rows, kernel = Rows(shape, dtype), KERNELS[name]
    K = plain(kernel, *rows.X)
    error = 1e-13 if dtype == np.float64 else 2e-3 if "matern12" in name else 2e-5
    out = np.full(shape, np.nan, dtype)
    rows.block(kernel, n_jobs).fill(out)
    assert_allclose(out, K * rows.inner, rtol=0, atol=error * np.abs(rows.inner).max())
    rows.block(kernel, n_jobs, with_z=False).fill(out)
    assert_allclose(out, K, rtol=0, atol=error)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COMPILED)
def test_contractions_are_derivatives_of_what_is_filled(name, shape):
    rows, kernel = Rows(shape), KERNELS[name]
    along, sums = rows.block(kernel).contract(rows.W)

    def row_sums(theta):
        return (rows.W * rows.inner * plain(kernel.with_theta(theta), *rows.X)).sum(axis=1)

    assert_allclose(sums, row_sums(kernel.theta), rtol=0, atol=1e-11)
    steps = STEP * np.eye(kernel.theta.size)
    wanted = [(row_sums(kernel.theta + e) - row_sums(kernel.theta - e)) / (2 * STEP) for e in steps]
    assert_allclose(along, np.transpose(wanted), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("columns", [1, 17])
def test_weights_may_be_a_product(columns, dtype):
    rows, random = Rows(SHAPES[-1]), np.random.RandomState(0)
    U, V = (random.standard_normal((n, columns)).astype(dtype) for n in SHAPES[-1])
    block = rows.block(KERNELS["ard"])
    wanted = block.contract(U.astype(float) @ V.T.astype(float))
    for one, other in zip(block.contract_product(U, V), wanted, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-11)


def test_one_two_and_sixteen_threads_and_short_calls_give_the_same_bits(monkeypatch):
    rows = Rows((1100, 600))
    U, V = (np.random.RandomState(0).standard_normal((n, 3)) for n in (1100, 600))

    def everything(n_jobs):
        block, out = rows.block(KERNELS["ard"], n_jobs), np.empty((1100, 600))
        block.fill(out)
        products = (*block.contract_product(U, V), *block.contract_product(U.astype("f4"), V))
        return out, *block.contract(rows.W), *products

    alone = everything(1)
    for n_jobs in (2, 16):
        for one, other in zip(alone, everything(n_jobs), strict=True):
            assert_array_equal(one, other)
    monkeypatch.setattr(cross_block, "CALL_ENTRIES", 1.0)
    for one, other in zip(alone, everything(2), strict=True):
        assert_array_equal(one, other)


def test_points_far_from_the_centre_keep_their_digits():
    """The product of augmented rows rounds s by eps |x|^2, so near pairs are differences."""
    random = np.random.RandomState(0)
    a, b = (1e5 + random.standard_normal((n, 2)) for n in (6, 5))
    kernel, out = RBF(1.0, 1.0), np.empty((6, 5))
    CrossBlock.of(kernel, kernel.prepare(a), kernel.prepare(b), None, 1).fill(out)
    assert_allclose(out, plain(kernel, a, b), rtol=1e-8)


def test_blocks_without_a_compiled_form_are_left_to_others():
    X, Z = np.zeros((2, 3)), np.ones((2, 2))
    dense, kernel = DenseFeatures(Z), KERNELS["sum"]
    assert CrossBlock.of(kernel, kernel.prepare(X), kernel.prepare(X), None, 1) is None
    kernel = KERNELS["rbf"]
    points, sparse = kernel.prepare(X), SparseFeatures.of(Z)
    assert CrossBlock.of(kernel, points, points, (sparse, sparse), 1) is None
    assert CrossBlock.of(kernel, points, points, (dense, dense), 1) is not None
