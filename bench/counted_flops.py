"""Count the flops of BLAS in every iteration of loops over tiles, beside bench/loop_work.py.

It runs in a process with NUMBA_DISABLE_JIT=1, in which loops are Python, and prints the names of
the loops that it has compared, as JSON.
"""

import json

import numpy as np

import loop_work
from gpx_scale.compiled import cross_blocks, kernel_tiles, low_rank, tiles
from gpx_scale.linalg.kernel_tiles import stored_product
from gpx_scale.linalg.lower_tiles import LowerTiles
from gpx_scale.runtime.tile_loops import Threads

N_JOBS = 3
SIZE = 8
regions = []


def counting_prange(count):
    regions.append([])
    for t in range(count):
        regions[-1].append(0.0)
        yield t


def counting(flops):
    """Return a routine that does nothing but count its flops; it has found no bad pivot."""

    def routine(*arguments):
        if regions and regions[-1]:
            regions[-1][-1] += flops(*arguments)
        return 0

    return routine


def nothing(*arguments):
    pass


ROUTINES = {
    "gemm": counting(lambda at, bt, m, n, k, *_: 2 * m * n * k),
    "syrk_lower": counting(lambda at, n, k, *_: n * n * k),
    "trsm_lower": counting(lambda left, t, m, n, *_: (m if left else n) * m * n),
    "trmm_lower": counting(lambda left, t, m, n, *_: (m if left else n) * m * n),
    "potrf_lower": counting(lambda n, *_: n**3 / 3),
    "trtri_lower": counting(lambda n, *_: n**3 / 3),
    "lauum_lower": counting(lambda n, *_: n**3 / 3),
    "prange": counting_prange,
    # What forms or uses an entry is not counted in flops.
    "_contract_inverse_tile": nothing,
    "_contract_strip": nothing,
    "_add_rows": nothing,
}
# How the columns of loop_work add up to flops of BLAS.
FLOPS = {
    "update_rows": [1, 1],
    "solve_rows": [1, 0],
    "contract_inverse": [1, 0],
    "multiply_stored": [0, 2],
    "add_partial_sums": [0],
    "multiply_transposed": [0, 2],
    "multiply": [0, 2],
    "gram_tiles": [1, 0],
    "contract_product": [0, 2],
}


def compare(threads, loop, *arguments):
    """Run a loop, and compare what its iterations count with loop_work."""
    name = loop.serial.__name__.removesuffix("_serial")
    regions.clear()
    loop.serial(*arguments)
    work = getattr(loop_work, name)(*arguments)
    assert len(regions) == 1, name
    np.testing.assert_allclose(work[:, :-1] @ FLOPS.get(name, [1]), regions[0], err_msg=name)
    assert (work >= 0).all(), name
    compared.add(name)


compared = set()
for module in (tiles, kernel_tiles, low_rank, cross_blocks):
    for name, routine in ROUTINES.items():
        if hasattr(module, name):
            setattr(module, name, routine)
tiles.STRIP = kernel_tiles.STRIP = 3
low_rank.TILE_ROWS, low_rank.TILE_COLUMNS, low_rank.GROUP_ROWS, low_rank.GRAM_TILE = 4, 5, 8, 4
cross_blocks.CHUNK_ROWS = 4
Threads.run = compare

for n in (17, 61):
    packed = np.zeros(sum(range(1, -(-n // SIZE) + 1)) * SIZE**2)
    lower = LowerTiles(n, SIZE, packed, N_JOBS, packed=True)
    lower.factor()
    lower.solve(np.zeros((200, n)))
    lower.invert()
    stored_product(lower, np.zeros((n, 5)), np.zeros(n))

with_threads = Threads(None)
x = np.zeros((n, 2))
sums, diagonal = np.zeros((36, 3)), np.zeros(n)
kernel = (0, 1.0, 1.0, 0.0), False, (x, x, x), x
for rows in ((0, 5), (5, 8)):
    arrays = *kernel, diagonal, packed, diagonal, sums
    with_threads.run(kernel_tiles.contract_inverse, n, SIZE, True, *rows, *arrays)
G = np.zeros((27, 13))
with_threads.run(low_rank.multiply_transposed, G, np.zeros((3, 27)), np.zeros((4, 3, 13)))
with_threads.run(low_rank.multiply, G, np.zeros((3, 13)), np.zeros((3, 27)))
with_threads.run(low_rank.gram_tiles, 2, 9, G, np.zeros((13, 13)))
# The arguments between the kernel and the rows are not used here.
block = 0, 1.0, 0.0, False, x, x, x, x, x, x
arrays = *block, 3, 24, np.zeros((27, 6)), np.zeros((9, 6)), np.zeros((27, 3))
with_threads.run(cross_blocks.contract_product, *arrays)
print(json.dumps(sorted(compared)))
