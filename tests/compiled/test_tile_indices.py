"""Tiles of matrices with more entries than 32 bits count: more than 46,340 rows, 65,535 if packed.

Only the tiles that a loop touches take memory, because the buffers are mapped files with holes.
"""

import mmap
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpx_scale.compiled import dense
from gpx_scale.compiled import tiles as loops
from gpx_scale.compiled.kernel_tiles import fill_rows
from gpx_scale.data.features import DenseFeatures
from gpx_scale.kernels.kernel import Profile
from gpx_scale.linalg.kernel_tiles import KernelTiles
from gpx_scale.linalg.lower_tiles import MAX_TILE_ROWS, LowerTiles, tile_size
from gpx_scale.runtime.memory import available_memory
from gpx_scale.runtime.tile_loops import tile_threads

SIZE = MAX_TILE_ROWS
# The entries of a row-major matrix, and those of packed tiles, need 33 bits from these on.
LARGE = pytest.mark.parametrize(("n", "packed"), [(50_000, False), (70_000, True)])
THREADS = pytest.mark.parametrize("n_jobs", [1, 2])
# A float32 factor of 47,000 rows takes 4.4 GB.
NEEDED_GIB = 8


def number_of(n, packed, row, column, size=SIZE):
    """Return the index of an entry in the buffer."""
    if not packed:
        return row * n + column
    (i, r), (j, c) = divmod(row, size), divmod(column, size)
    return (i * (i + 1) // 2 + j) * size * size + r * size + c


def packed_entries(n):
    """Return the number of entries of packed tiles of SIZE rows."""
    return sum(range(1, -(-n // SIZE) + 1)) * SIZE**2


@pytest.fixture
def mapped_tiles(tmp_path):
    """Return a function that makes float32 tiles whose pages take memory when they are written to.

    They are those of a file with holes, which has only what was written.
    """
    if sys.platform == "win32":
        pytest.skip("files have no holes on this system unless one asks for them")
    path = tmp_path / "tiles"

    def make(n, packed, n_jobs):
        length = packed_entries(n) if packed else n * n
        with path.open("w+b") as file:
            file.truncate(4 * length)
            pages = mmap.mmap(file.fileno(), 0)
        return LowerTiles(n, SIZE, np.frombuffer(pages, np.float32), n_jobs, packed)

    yield make
    path.unlink()


def block(tiles, i, j):
    """Return tile (i, j) as a matrix that shares the memory of the buffer."""
    ends = [min(tiles.n - k * SIZE, SIZE) for k in (i, j)]
    width = SIZE if tiles.packed else tiles.n
    start = number_of(tiles.n, tiles.packed, i * SIZE, j * SIZE)
    return np.lib.stride_tricks.as_strided(tiles.buffer[start:], ends, (4 * width, 4))


@LARGE
def test_tiles_begin_where_python_s_integers_say(n, packed):
    count = -(-n // SIZE)
    length = packed_entries(n) if packed else n * n
    assert length > 2**31
    nowhere = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (length,), (0,))
    for i in (0, 1, count // 2, count - 2, count - 1):
        for j in {0, i // 2, i}:
            start = number_of(n, packed, i * SIZE, j * SIZE)
            assert loops.tile_start(n, SIZE, packed, i, j) == start
            assert loops.tile_at(n, SIZE, packed, nowhere, i, j).size == length - start


def test_numbers_of_pairs_are_exact_beyond_32_bits():
    """A float64 has 53 bits, and the root of 8 x + 1 may be rounded to either side."""
    for i in (*range(50), 46_340, 46_341, 65_535, 65_536, 92_681, 94_906_265):
        first = i * (i + 1) // 2
        for number, pair in ((first, (i, 0)), (first + i, (i, i)), (first + i // 2, (i, i // 2))):
            assert loops.tile_pair(number) == pair


@THREADS
@LARGE
def test_the_last_tiles_are_factorised_where_they_are(n, packed, n_jobs, mapped_tiles):
    tiles = mapped_tiles(n, packed, n_jobs)
    last = -(-n // SIZE) - 1
    first, rows = (last - 1) * SIZE, n - (last - 1) * SIZE
    random = np.random.RandomState(0)
    X = random.standard_normal((rows, rows + 3))
    C = (X @ X.T / (rows + 3) + np.eye(rows)).astype(np.float32)
    places = {(last - 1, last - 1), (last, last - 1), (last, last)}
    for i, j in places:
        block(tiles, i, j)[:] = C[i * SIZE - first :, j * SIZE - first :][:SIZE, :SIZE]
    layout = n, SIZE, packed
    with tile_threads(n_jobs) as threads:
        first_tile = block(tiles, last - 1, last - 1)
        first_tile[:] = np.linalg.cholesky(first_tile)
        threads.run(loops.factor_column, *layout, last - 1, tiles.buffer)
        failed = np.ones(1, np.int64)
        arrays = tiles.buffer, failed
        threads.run(loops.update_rows, *layout, last - 1, last, last + 1, *arrays)
        assert failed[0] == 0
    L = np.linalg.cholesky(C.astype(float))
    for i, j in places:
        wanted = L[i * SIZE - first :, j * SIZE - first :][:SIZE, :SIZE]
        found = block(tiles, i, j)
        found = np.tril(found) if i == j else found
        assert_allclose(found, wanted, rtol=0, atol=1e-4)


@THREADS
@LARGE
def test_the_last_row_of_tiles_is_filled_where_it_is(n, packed, n_jobs, mapped_tiles):
    tiles = mapped_tiles(n, packed, n_jobs)
    u, profile = rank_one(n)
    last = -(-n // SIZE) - 1
    kernel = profile.family, profile.shape, profile.scale, profile.near
    points = profile.left, profile.right, profile.points
    arrays = kernel, points, u[:, None], np.full(n, 3.0), tiles.buffer
    with tile_threads(n_jobs) as threads:
        layout = n, SIZE, packed, last, last + 1
        threads.run(fill_rows, *layout, *arrays)
    for j in (0, 1, last // 2, last - 1):
        rows, cols = u[last * SIZE :], u[j * SIZE : (j + 1) * SIZE]
        assert_allclose(block(tiles, last, j), np.outer(rows, cols), rtol=1e-6)
    assert_allclose(block(tiles, last, last).diagonal(), 3.0)


def rank_one(n):
    """Return u (n,), and the profile of a constant kernel, with which C is u u^T, in float32."""
    u = np.random.RandomState(0).uniform(-1.0, 1.0, n).astype(np.float32) * np.sqrt(90.0 / n)
    nothing, one = np.zeros((n, 3), np.float32), np.float32(1)
    points = np.zeros((n, 1), np.float32)
    return u.astype(np.float32), Profile(
        dense.RBF, one, one, np.float32(0), False, nothing, nothing, points
    )


@pytest.mark.parametrize("n", [1500, pytest.param(47_000, marks=pytest.mark.slow)])
def test_a_large_float32_factor_is_that_of_a_diagonal_and_rank_one(n):
    """The factor of diag(d) + u u^T is known, entry by entry.

    With t_0 = 1, t_i+1 = t_i + u_i^2 / d_i and p_i = d_i + u_i^2 / t_i, it has the diagonal
    sqrt(p_i), and below it L_ji = u_j u_i / (t_i sqrt(p_i)).
    """
    if n > 10_000 and available_memory() < NEEDED_GIB * 2**30:
        pytest.skip(f"less than {NEEDED_GIB} GiB of memory are available")
    u32, profile = rank_one(n)
    u, d = u32.astype(float), np.random.RandomState(1).uniform(1.0, 2.0, n)
    tiles = LowerTiles.empty(n, np.float32, 2)
    KernelTiles(profile, DenseFeatures(u32[:, None]), 2).fill(tiles, d + u**2)
    tiles.factor()

    t = 1.0 + np.concatenate([[0.0], np.cumsum(u**2 / d)])[:-1]
    pivots = np.sqrt(d + u**2 / t)
    random = np.random.RandomState(2)
    rows = np.concatenate([random.randint(0, n, 3000), np.full(1000, n - 1), np.arange(n - 9, n)])
    columns = np.concatenate([(random.uniform(size=4000) * rows[:4000]).astype(int), rows[4000:]])
    at = [
        number_of(n, True, int(j), int(i), tile_size(n)) for j, i in zip(rows, columns, strict=True)
    ]
    wanted = np.where(rows == columns, pivots[rows], u[rows] * u[columns] / (t * pivots)[columns])
    # An entry is rounded to a relative 6e-8 about once for every tile that is subtracted from it.
    assert_allclose(tiles.buffer[at], wanted, rtol=1e-4, atol=1e-7)
