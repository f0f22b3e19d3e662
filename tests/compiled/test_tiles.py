"""Loops over tiles beside their slow twins in numpy, in both precisions and both layouts.

Every loop gives the same bits serially and in parallel, for any number of threads.
"""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpx_scale.compiled import tiles as loops
from gpx_scale.linalg.lower_tiles import (
    MAX_TILE_ROWS,
    LowerTiles,
    TileCuts,
    longest_buffer,
    packed_length,
    tile_size,
)
from gpx_scale.runtime.tile_loops import Threads

SIZE = 8
# One row, less than a tile, a tile, a tile and a row, several tiles with and without a rest.
ROWS = [1, 5, SIZE, SIZE + 1, 3 * SIZE, 61]
PRECISIONS = [np.float64, np.float32]
LAYOUTS = pytest.mark.parametrize("packed", [False, True], ids=["full", "packed"])
THREADS = pytest.mark.parametrize("n_jobs", [1, 2])


def positive_matrix(n, dtype):
    """A well-conditioned covariance."""
    random = np.random.RandomState(n)
    X = random.standard_normal((n, n + 3))
    return (X @ X.T / (n + 3) + np.eye(n)).astype(dtype)


def tiles_of(C, packed, n_jobs, size=SIZE):
    """Return the lower tiles of a matrix. All other entries are NaN, which no loop may read."""
    n = len(C)
    C = np.where(np.tri(n, dtype=bool), C, np.nan).astype(C.dtype)
    if not packed:
        return LowerTiles(n, size, C.reshape(-1), n_jobs)
    buffer = np.full(len(lower_pairs(n, size)) * size**2, np.nan, C.dtype)
    for number, (i, j) in enumerate(lower_pairs(n, size)):
        tile = buffer[number * size**2 : (number + 1) * size**2].reshape(size, size)
        block = C[i * size : (i + 1) * size, j * size : (j + 1) * size]
        tile[: block.shape[0], : block.shape[1]] = block
    return LowerTiles(n, size, buffer, n_jobs, packed=True)


def matrix_of(tiles):
    """The lower triangle that tiles hold, zero above it."""
    n, size = tiles.n, tiles.size
    if not tiles.packed:
        return np.tril(tiles.buffer.reshape(n, n))
    found = np.zeros((n + size, n + size), tiles.buffer.dtype)
    for number, (i, j) in enumerate(lower_pairs(n, size)):
        tile = tiles.buffer[number * size**2 : (number + 1) * size**2].reshape(size, size)
        found[i * size : (i + 1) * size, j * size : (j + 1) * size] = tile
    return np.tril(found[:n, :n])


def lower_pairs(n, size):
    count = -(-n // size)
    return [(i, j) for i in range(count) for j in range(i + 1)]


def rounding(dtype, n):
    """A bound on rounding errors of well-conditioned problems of this size."""
    return 50 * (n + 10) * np.finfo(dtype).eps


@THREADS
@LAYOUTS
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("n", ROWS)
def test_factor_solves_and_inverse_are_those_of_numpy(n, dtype, packed, n_jobs):
    C = positive_matrix(n, dtype)
    exact, error = C.astype(float), rounding(dtype, n)
    tiles = tiles_of(C, packed, n_jobs)
    tiles.factor()
    L = np.linalg.cholesky(exact)
    assert_allclose(matrix_of(tiles), L, rtol=0, atol=error)

    B = np.random.RandomState(0).standard_normal((70, n)).astype(dtype)
    half, whole = B.copy(), B.copy()
    tiles.half_solve(half)
    tiles.solve(whole)
    assert_allclose(half, np.linalg.solve(L, B.T.astype(float)).T, rtol=0, atol=error)
    assert_allclose(whole, np.linalg.solve(exact, B.T.astype(float)).T, rtol=0, atol=error)

    inverse = tiles.copy()
    inverse.invert_factor()
    assert_allclose(matrix_of(inverse), np.linalg.inv(L), rtol=0, atol=error)
    tiles.invert()
    assert_allclose(matrix_of(tiles), np.tril(np.linalg.inv(exact)), rtol=0, atol=error)


@pytest.mark.parametrize("count", range(2, 14))
def test_an_inversion_with_any_number_of_tiles_has_no_idle_iterations(count, monkeypatch):
    """Threads have contiguous shares of the iterations, so idle ones would leave threads idle."""
    C, run, rows = positive_matrix(count * SIZE - 3, float), Threads.run, []

    def watched(threads, loop, *arguments):
        if loop is loops.multiply_block_rows:
            *_, width, first, last, _ = arguments
            # Tiles of SIZE rows have one strip.
            lower = [n // width * 2 * width + width + n % width for n in range(first, last)]
            rows.append((width, lower))
        run(threads, loop, *arguments)

    monkeypatch.setattr(Threads, "run", watched)
    tiles = tiles_of(np.linalg.cholesky(C), True, 1)
    tiles.invert_factor()
    wanted = np.linalg.inv(np.linalg.cholesky(C))
    assert_allclose(matrix_of(tiles), wanted, rtol=0, atol=rounding(float, len(C)))
    for width, lower in rows:
        assert lower == [i for i in range(count) if i // width % 2 == 1]


def test_contiguous_shares_of_an_order_from_both_ends_are_even():
    order = [loops.from_both_ends(16, k) for k in range(16)]
    assert sorted(order) == list(range(16))
    for threads in (2, 4, 8):
        shares = np.array_split(np.array(order), threads)
        assert {int(share.sum()) for share in shares} == {120 // threads}
    assert [loops.from_both_ends(5, k) for k in range(5)] == [0, 4, 1, 3, 2]


@LAYOUTS
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_one_two_and_sixteen_threads_give_the_same_bits(dtype, packed):
    def everything(n_jobs):
        tiles = tiles_of(positive_matrix(61, dtype), packed, n_jobs)
        tiles.factor()
        L = matrix_of(tiles)
        B = np.random.RandomState(0).standard_normal((150, 61)).astype(dtype)
        tiles.solve(B)
        tiles.invert()
        return L, B, matrix_of(tiles)

    alone = everything(1)
    for n_jobs in (2, 16):
        for one, other in zip(alone, everything(n_jobs), strict=True):
            assert_array_equal(one, other)


@LAYOUTS
def test_calls_that_are_cut_short_for_ctrl_c_give_the_same_bits(packed, monkeypatch):
    whole = tiles_of(positive_matrix(61, float), packed, 2)
    whole.factor()
    monkeypatch.setattr("gpx_scale.linalg.lower_tiles.CALL_FLOPS", 1.0)
    cut = tiles_of(positive_matrix(61, float), packed, 2)
    cut.factor()
    assert_array_equal(matrix_of(whole), matrix_of(cut))


@LAYOUTS
@pytest.mark.parametrize("n", ROWS)
def test_tiles_keep_every_entry_of_a_triangle(n, packed):
    C = positive_matrix(n, float)
    tiles = tiles_of(C, packed, 1)
    assert_array_equal(tiles.to_matrix(), np.tril(C))
    assert_array_equal(tiles.to_triangle(), C[np.tril_indices(n)])
    assert_array_equal(tiles.diagonal(), C.diagonal())
    again = LowerTiles.of_triangle(tiles.to_triangle(), n, 1)
    assert_array_equal(again.to_matrix(), np.tril(C))


def test_cuts_cover_the_lower_triangle_once():
    cuts, seen = TileCuts(10, 3), np.zeros((10, 10), int)
    for i, j in cuts.pairs():
        seen[cuts.span(i), cuts.span(j)] += 1
    assert_array_equal(np.tril(seen), np.tri(10))


@pytest.mark.parametrize("n", [1, 511, 512, 513, 1025, 5_000, 20_000, 46_342, 50_000])
def test_packed_tiles_waste_little(n):
    size = tile_size(n)
    assert size <= MAX_TILE_ROWS
    count = -(-n // size)
    assert packed_length(n) == count * (count + 1) // 2 * size**2
    # Half of the matrix, half of a row of diagonal tiles, and the empty part of the last tiles.
    assert packed_length(n) <= 0.5 * (n + 8 * count) * (n + 8 * count + size)
    assert max(map(packed_length, range(max(1, n - 600), n + 1))) <= longest_buffer(n)


@LAYOUTS
@pytest.mark.parametrize("at", [0, 5, SIZE, 60])
def test_a_matrix_that_is_not_positive_is_refused(at, packed):
    C = positive_matrix(61, float)
    C[at, at] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        tiles_of(C, packed, 2).factor()


def run_alone(code, **environment):
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FACTOR = """
    import hashlib, os, sys, threading
    import numpy as np
    from gpx_scale.linalg.lower_tiles import LowerTiles

    def bits(n_jobs):
        X = np.random.RandomState(0).standard_normal((90, 93))
        A = X @ X.T / 93 + np.eye(90)
        tiles = LowerTiles(90, 16, A.reshape(-1), n_jobs)
        tiles.factor()
        B = X.T.copy()
        tiles.solve(B)
        tiles.invert()
        return hashlib.sha256(np.tril(A).tobytes() + B.tobytes()).hexdigest()
"""


def test_sixteen_real_threads_give_the_same_bits():
    code = FACTOR + "\n    print(len({bits(1), bits(2), bits(16)}))"
    assert run_alone(code, NUMBA_NUM_THREADS="16").strip() == "1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_a_forked_child_computes_what_its_parent_does(layer):
    """numba ends a forked child that enters a parallel loop of OpenMP; ours runs serially there."""
    code = (
        FACTOR
        + """
    before = bits(2)
    child = os.fork()
    if child == 0:
        os._exit(0 if bits(2) == before else 3)
    print(os.waitpid(child, 0)[1])
    """
    )
    assert run_alone(code, NUMBA_THREADING_LAYER=layer).strip() == "0"


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_eight_python_threads_may_factorise_at_once(layer):
    """numba's workqueue layer would end the process if two of them entered it at the same time."""
    code = (
        FACTOR
        + """
    found = []
    workers = [threading.Thread(target=lambda: found.append(bits(2))) for _ in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    print(len(found), len(set(found)))
    """
    )
    assert run_alone(code, NUMBA_THREADING_LAYER=layer).split() == ["8", "1"]


def test_without_a_threading_layer_loops_run_serially():
    code = FACTOR + "\n    print(len({bits(1), bits(2)}))"
    assert run_alone(code, NUMBA_THREADING_LAYER="tbb").strip() == "1"
