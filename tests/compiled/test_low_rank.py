"""Products with a tall factor beside their slow twins in numpy, in both precisions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale.compiled import low_rank as loops
from gpx_scale.runtime.tile_loops import tile_threads

# One row, less than a tile, several tiles and groups with a rest.
SHAPES = [(1, 1), (30, 7), (loops.GROUP_ROWS + loops.TILE_ROWS + 3, loops.TILE_COLUMNS + 5)]
PRECISIONS = [np.float64, np.float32]


@pytest.fixture(params=[1, 2])
def threads(request):
    with tile_threads(request.param) as threads:
        yield threads


def factor(shape, dtype):
    return np.random.RandomState(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_few_columns_are_those_of_numpy(shape, dtype, threads):
    n, r = shape
    G, random = factor(shape, dtype), np.random.RandomState(1)
    exact, eps = G.astype(float), np.finfo(dtype).eps
    V, W = (random.standard_normal((3, size)).astype(dtype) for size in (n, r))

    def rounding(terms):
        """Return the error of a sum: each of its partial sums, of about sqrt(terms), is rounded."""
        return eps * (10 + terms)

    parts = np.full((-(-n // loops.GROUP_ROWS), 3, r), np.nan)
    threads.run(loops.multiply_transposed, G, V, parts)
    assert_allclose(parts.sum(axis=0), V.astype(float) @ exact, rtol=0, atol=rounding(n))
    out = np.full((3, n), np.nan)
    threads.run(loops.multiply, G, W, out)
    assert_allclose(out, W.astype(float) @ exact.T, rtol=0, atol=rounding(r))


def test_sums_over_many_rows_keep_more_digits_than_float32():
    """A float32 has no digit for a half above 2^23, and the sums of tiles stay below."""
    n, value = 40_001, 1000.5
    parts = np.empty((-(-n // loops.GROUP_ROWS), 1, 1))
    V = np.full((1, n), value, np.float32)
    with tile_threads(1) as threads:
        threads.run(loops.multiply_transposed, np.ones((n, 1), np.float32), V, parts)
    assert np.cumsum(V)[-1] != n * value
    assert parts.sum() == n * value


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gram_tiles_are_summed_in_float64(shape, dtype, threads):
    _, r = shape
    G = factor(shape, dtype)
    rows = -(-r // loops.GRAM_TILE)
    count = rows * (rows + 1) // 2
    M = np.full((r, r), np.nan)
    for first, last in ((0, count // 2), (count // 2, count)):
        threads.run(loops.gram_tiles, first, last, G, M)
    wanted = np.eye(r) + G.T.astype(float) @ G.astype(float)
    assert_allclose(np.tril(M), np.tril(wanted), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_scaled_and_squared(shape, dtype, threads):
    n, _ = shape
    F = factor(shape, np.float64)
    squares, scaled, factors = np.empty(n), np.empty(shape, dtype), np.linspace(1.0, 2.0, n)
    threads.run(loops.square_rows, F, squares)
    threads.run(loops.scale_rows, F, factors, scaled)
    assert_allclose(squares, (F**2).sum(axis=1), rtol=1e-13)
    assert_allclose(scaled, F * factors[:, None], rtol=np.finfo(dtype).eps)
