"""The list of pairs of a sparse Z, and every loop over it, beside slow twins in numpy."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale import kernels
from gpx_scale.compiled import pair_kernels, pair_tiles
from gpx_scale.compiled.pair_tiles import PANEL_COLUMNS
from gpx_scale.data.features import SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.linalg import pairs as pairs_module
from gpx_scale.linalg import sparse_covariance
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.linalg.sparse_covariance import PairCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.memory import aligned
from gpx_scale.runtime.tile_loops import tile_threads
from problems import session_of

PRECISIONS = pytest.mark.parametrize("dtype", [np.float64, np.float32])
THREADS = pytest.mark.parametrize("n_jobs", [1, 2])
KERNELS = [
    kernels.RBF(1.3, 2.0),
    kernels.Matern12(1.3, 2.0),
    kernels.Matern32(1.3, 2.0),
    kernels.Matern52(1.3, 2.0),
    kernels.RationalQuadratic(1.3, 2.0, 1.7),
]


def features(n, d=60, share=0.06, seed=0):
    """Return a sparse Z of whole numbers, with rows and features that have no entries."""
    random = np.random.RandomState(seed)
    Z = random.randint(-3, 4, (n, d)) * (random.uniform(size=(n, d)) < share)
    Z[::17] = 0
    Z[:, 3] = 0
    return Z.astype(float)


def rows_of(Z, x=None):
    """Return training rows whose sparse Z is a slice, so that pointers do not begin at 0."""
    x = np.random.RandomState(1).standard_normal((len(Z), 3)) if x is None else x
    whole = SparseFeatures.of(sp.csr_array(np.vstack([np.ones((2, Z.shape[1])), Z])))
    return TrainingRows(x, whole[2:], np.zeros(len(Z)))


@pytest.fixture(params=["usual", "small"])
def layout(request, monkeypatch):
    """Cut few rows into one tile, as is usual, or into many tiles and strips."""
    if request.param == "small":
        monkeypatch.setattr(pairs_module, "MIN_TILE_PAIRS", 50)
        monkeypatch.setattr(pairs_module, "STRIP_ROWS_BY_DENSITY", ((0.0, 64),))


@pytest.fixture
def many_tiles(monkeypatch):
    monkeypatch.setattr(pairs_module, "MIN_TILE_PAIRS", 50)
    monkeypatch.setattr(pairs_module, "STRIP_ROWS_BY_DENSITY", ((0.0, 64),))


def rows_and_columns(listed):
    """Return the rows i and j of all pairs, from the description of the layout."""
    blocks, runs = listed.blocks, listed.runs
    rows, cols = np.empty((2, len(listed)), int)
    for t, (a, b) in enumerate(blocks.tiles):
        for number, g in enumerate(range(blocks.strips[t], blocks.strips[t + 1])):
            start = runs.pairs_at[g]
            for run in range(runs.runs_at[g], runs.runs_at[g + 1]):
                stop = start + runs.sizes[run]
                rows[start:stop] = blocks.edges[a] + runs.rows[run]
                first = blocks.edges[b] + number * blocks.strip
                cols[start:stop] = first + listed.columns[start:stop]
                start = stop
            assert start == runs.pairs_at[g + 1]
    return rows, cols


# the list


@pytest.mark.parametrize("n", [1, 2, 64, 65, 300, 1500])
def test_the_pairs_are_those_that_share_a_feature(n, layout):
    Z = features(n)
    data = rows_of(Z)
    listed = Pairs.of(data, kernels.RBF(), session_of(2))
    i, j = np.nonzero(np.tril(np.abs(Z) @ np.abs(Z).T, -1))
    rows, cols = rows_and_columns(listed)
    order = np.lexsort((cols, rows))
    assert_array_equal(rows[order], i)
    assert_array_equal(cols[order], j)
    # Inner products that cancel to 0 are listed, and those of whole numbers are exact in float32.
    assert_array_equal(listed.inner, (Z @ Z.T)[rows, cols])
    assert listed.inner.dtype == np.float32
    wanted = np.square(data.x[rows] - data.x[cols]).sum(axis=1)
    assert_allclose(listed.squared, wanted, rtol=1e-12)


def test_long_runs_come_first_and_columns_ascend(many_tiles):
    listed = Pairs.of(rows_of(features(700)), kernels.RBF(), session_of(2))
    runs = listed.runs
    for first, last in zip(runs.runs_at[:-1], runs.runs_at[1:], strict=True):
        assert (np.diff(runs.sizes[first:last].astype(int)) <= 0).all()
    start = 0
    for size in runs.sizes.astype(int):
        assert (np.diff(listed.columns[start : start + size].astype(int)) > 0).all()
        start += size


@pytest.mark.parametrize("value", [0.1, 2.0**13])
def test_inner_products_that_float32_rounds_are_float64(value):
    Z = value * np.abs(features(200))
    listed = Pairs.of(rows_of(Z), kernels.RBF(), session_of())
    assert listed.inner.dtype == np.float64
    assert_allclose(listed.inner, (Z @ Z.T)[rows_and_columns(listed)], rtol=1e-14)


def test_distances_of_sparse_rows(many_tiles):
    x = features(300, d=20, share=0.3, seed=5)
    data = rows_of(features(300), SparseFeatures.of(sp.csr_array(x)))
    listed = Pairs.of(data, kernels.RBF(), session_of(2))
    rows, cols = rows_and_columns(listed)
    assert_allclose(listed.squared, np.square(x[rows] - x[cols]).sum(axis=1), rtol=1e-13)


def test_the_count_is_told_before_pairs_are_listed():
    told = []

    def refuse(count):
        told.append(count)
        raise MemoryError

    Z = features(300)
    with pytest.raises(MemoryError):
        Pairs.of(rows_of(Z), kernels.RBF(), session_of(), refuse)
    assert told == [np.count_nonzero(np.tril(np.abs(Z) @ np.abs(Z).T, -1))]


@pytest.mark.parametrize("count", [2, 4, 16])
def test_a_tournament_plays_every_match_once_and_no_block_twice_a_round(count):
    rounds = pairs_module._tournament(count)
    assert all(
        len({*sum(matches, ())}) >= 2 * len(matches) - count * (matches[0][0] == matches[0][1])
        for matches in rounds
    )
    matches = [match for one in rounds for match in one]
    assert sorted(matches) == [(i, j) for i in range(count) for j in range(i + 1)]


# loops over the list


def dense_of(listed, values, n):
    """Return the symmetric matrix that has these values at the pairs;  (n, n)."""
    found, (rows, cols) = np.zeros((n, n)), rows_and_columns(listed)
    found[rows, cols] = found[cols, rows] = values
    return found


def panel(n, dtype):
    out = aligned((n, PANEL_COLUMNS), dtype)
    out[...] = np.random.RandomState(2).standard_normal(out.shape)
    return out


@THREADS
@PRECISIONS
def test_loops_over_pairs_are_those_of_numpy(layout, dtype, n_jobs):
    n = 700
    listed = Pairs.of(rows_of(features(n)), kernels.RBF(), session_of(n_jobs))
    random = np.random.RandomState(3)
    values = random.standard_normal(len(listed)).astype(dtype)
    slopes = random.standard_normal((3, len(listed))).astype(dtype)
    T, error = dense_of(listed, values, n), 500 * np.finfo(dtype).eps
    right, total, v = panel(n, dtype), aligned((n, PANEL_COLUMNS), dtype), random.standard_normal(n)
    tangents = np.zeros((n, 3))
    with tile_threads(n_jobs) as threads:
        for rounds, span in listed.parts(len(listed) / 3):
            where = listed.listed(span)
            arguments = *where, values[span], right, total
            threads.run(pair_tiles.multiply_pairs, *rounds, *arguments)
            arguments = *where, np.ascontiguousarray(slopes[:, span]), v, tangents
            threads.run(pair_tiles.add_tangents, *rounds, *arguments)
    assert_allclose(total, T @ right, rtol=0, atol=error)
    wanted = np.column_stack([dense_of(listed, slope, n) @ v for slope in slopes])
    assert_allclose(tangents, wanted, rtol=0, atol=1e-12)


@THREADS
@PRECISIONS
@pytest.mark.parametrize("column", [0, 16])
def test_panels_are_loaded_and_stored(dtype, n_jobs, column):
    n, c = 2 * pair_tiles.PANEL_ROWS + 5, 21
    random = np.random.RandomState(0)
    V, diagonal = random.standard_normal((n, c)), random.uniform(1.0, 2.0, n)
    right, total, out = panel(n, dtype), panel(n, dtype), np.full((n, c), np.nan)
    some = slice(column, column + PANEL_COLUMNS)
    width = min(c, some.stop) - column
    with tile_threads(n_jobs) as threads:
        threads.run(pair_tiles.store_panel, V, diagonal, column, total, out)
        wanted = diagonal[:, None] * V[:, some] + total[:, :width]
        threads.run(pair_tiles.load_panel, V, column, right, total)
    assert_allclose(out[:, some], wanted, rtol=1e-15, atol=1e-15)
    assert np.isnan(out).sum() == n * (c - width)
    assert_array_equal(right[:, :width], V[:, some].astype(dtype))
    assert_array_equal(right[:, width:], 0.0)
    assert_array_equal(total, 0.0)


@THREADS
@PRECISIONS
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("size", [0, 1, 3 * pair_kernels.CHUNK_PAIRS + 77])
def test_kernels_of_pairs_are_those_of_numpy(kernel, dtype, n_jobs, size):
    random = np.random.RandomState(0)
    squared, inner = random.uniform(0.0, 20.0, size), random.randint(1, 5, size).astype(np.float32)
    squared[: size // 9] = 0.0
    profile = kernel.radial_profile(dtype)
    values, slopes = np.empty(size, dtype), np.empty((kernel.theta.size, size), dtype)
    with tile_threads(n_jobs) as threads:
        threads.run(pair_kernels.pair_values, *profile, squared, inner, values)
        threads.run(pair_kernels.pair_slopes, *profile, squared, inner, slopes)
    digits = {"rtol": 30 * np.finfo(dtype).eps, "atol": 30 * np.finfo(dtype).eps}
    wanted = inner.astype(float)
    kernel.multiply_at(squared, wanted)
    assert_allclose(values, wanted, **digits)
    assert_allclose(slopes, kernel.gradient_at(squared, inner.astype(float)), **digits)


class OwnKernel(kernels.RBF):
    """A subclass that computes its values in its own way."""

    def multiply_at(self, squared, out):
        out *= 2.0 * np.exp(-squared / 2.0)


def test_a_kernel_with_values_of_its_own_has_no_compiled_form():
    assert OwnKernel(1.0, 2.0).radial_profile(float) is None
    assert kernels.RBF(1.0, (2.0, 3.0)).radial_profile(float) is None
    assert (kernels.RBF(1.0, 2.0) + kernels.RBF(1.0, 3.0)).radial_profile(float) is None


# the covariance


@PRECISIONS
@pytest.mark.parametrize("kernel", [KERNELS[-1], KERNELS[0] + KERNELS[2] * KERNELS[4]])
def test_a_kernel_with_and_without_a_compiled_form(many_tiles, kernel, dtype):
    """A sum of kernels is computed by the kernels themselves, to the same result as a dense C."""
    Z, n = features(400), 400
    data = rows_of(Z)
    params = Hyperparameters.of(kernel, 0.2, 0.3)
    C = covariance(data, params, dtype, 2)
    S = kernel(data.x) * (Z @ Z.T)
    random = np.random.RandomState(5)
    U, V = random.standard_normal((2, n, 5))
    tolerance = 2e-5 if dtype == np.float32 else 1e-11
    assert_allclose(C.matmul(V), S @ V + C.noise[:, None] * V, rtol=0, atol=100 * tolerance)
    for t, h in enumerate(1e-5 * np.eye(kernel.theta.size)):
        up, down = (kernel.with_theta(kernel.theta + e)(data.x) for e in (h, -h))
        dS = (up - down) / 2e-5 * (Z @ Z.T)
        assert C.contract(U, V)[t] == pytest.approx(np.sum(U * (dS @ V)), rel=1e-5, abs=1e-2)
        assert_allclose(C.tangents(V[:, 0])[:, t], dS @ V[:, 0], rtol=1e-4, atol=1e-4)


def covariance(data, params, dtype, n_jobs):
    session = session_of(n_jobs)
    return PairCovariance(data, params, session, dtype, Pairs.of(data, params.kernel, session))


def everything(dtype, n_jobs):
    """Return all that a covariance on pairs computes."""
    data, params = rows_of(features(900)), Hyperparameters.of(kernels.Matern32(1.3, 2.0), 0.2, 0.3)
    C = covariance(data, params, dtype, n_jobs)
    U, V = np.random.RandomState(5).standard_normal((2, 900, 21))
    listed = C.pairs.columns, C.pairs.inner, C.pairs.squared, *C.pairs.runs
    return [*listed, C.matmul(V), C.contract(U, V), C.tangents(V[:, 0])]


@PRECISIONS
def test_one_two_and_sixteen_threads_give_the_same_bits(many_tiles, dtype):
    alone = everything(dtype, 1)
    for n_jobs in (2, 16):
        for one, other in zip(alone, everything(dtype, n_jobs), strict=True):
            assert_array_equal(one, other)


def test_sixteen_real_threads_give_the_same_bits():
    code = """
        import sys
        import numpy as np
        from gpx_scale.linalg import pairs
        pairs.MIN_TILE_PAIRS = 50
        from compiled.test_pairs import everything
        found = [everything(np.float32, k) for k in (1, 16)]
        print(all(np.array_equal(*both) for both in zip(*found)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "NUMBA_NUM_THREADS": "16", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == "True", done.stderr


@PRECISIONS
def test_calls_that_are_cut_short_for_ctrl_c_give_the_same_digits(many_tiles, monkeypatch, dtype):
    whole = everything(dtype, 2)
    monkeypatch.setattr(sparse_covariance, "CALL_PAIRS", 1)
    monkeypatch.setattr(sparse_covariance, "PART_PAIRS", 1)
    monkeypatch.setattr(pairs_module, "CALL_ADDITIONS", 1000)
    monkeypatch.setattr(pairs_module, "CALL_DIFFERENCES", 1)
    for one, other in zip(whole, everything(dtype, 2), strict=True):
        assert_allclose(one, other, rtol=1e-5 if dtype == np.float32 else 1e-12)
