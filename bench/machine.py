"""Measure the limits of this machine, and count the flops and bytes of a piece of work:
`python bench/machine.py`.

`limits` measures GFLOP/s of gemm and potrf in both precisions, and GB/s of a copy (bytes read
and written), with 1 and 2 threads.

`counted` returns the flops of the leading terms while a call runs. Formulas are attached to
operations of the package, so that iterations count as often as they happen.

`ideal_seconds` returns the least time that these flops and bytes can take: the larger of sum
flops / rate and bytes / bandwidth.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections import Counter
from contextlib import contextmanager

import numba
import numpy as np
import scipy
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from gpx_scale.data import features
from gpx_scale.kernels.stationary import Stationary
from gpx_scale.linalg import covariance, preconditioner
from gpx_scale.linalg import sparse_covariance as pairs
from gpx_scale.linalg.covariance_factor import CholeskyFactor
from gpx_scale.linalg.kernel_tiles import PRODUCT_COLUMNS, FormedTiles
from gpx_scale.linalg.lower_tiles import LowerTiles
from gpx_scale.linalg.preconditioner import LowRankPreconditioner
from gpx_scale.linalg.term_tiles import TermTiles
from gpx_scale.runtime import parallel as runtime
from gpx_scale.runtime.parallel import Executor, effective_jobs, slices, threads
from gpx_scale.solvers import local_variance as local
from gpx_scale.solvers.basis import marginal_likelihood as whitened
from gpx_scale.solvers.basis import posterior as basis
from gpx_scale.solvers.basis import sufficient_statistics as sums
from gpx_scale.solvers.exact import solver as exact
from gpx_scale.solvers.grid import interpolation as grid
from gpx_scale.solvers.inducing import collapsed_bound as bound
from gpx_scale.solvers.inducing import posterior as inducing
from measure import seconds

THREADS = (1, 2)
# If a limit differs by more than this share between the start and the end of a run, other
# processes disturbed the run.
MAX_DRIFT = 0.2
# Flops of the compiled exponential, exp(x) = 2^k exp(r): 3 for k, 4 for r, 26 or 14 for the
# polynomial, 1 to scale by 2^k.
EXP_FLOPS = {"d": 34, "s": 22}


def limits(gemm=1500, potrf=3000, copied=2**27, rounds=5):
    """Measure {threads: {"dgemm": GFLOP/s, "sgemm", "dpotrf", "spotrf", "copy": GB/s}}, as
    medians.

    It takes about 8 s with the default sizes.
    """
    return {str(n): _limits(n, gemm, potrf, copied, rounds) for n in usable_threads()}


def usable_threads():
    """Return the numbers of threads of THREADS that this machine has cores for."""
    return [n for n in THREADS if n <= effective_jobs(None)]


def _limits(n_jobs, gemm, potrf, copied, rounds):
    """Measure the rates with `n_jobs` threads: {name: GFLOP/s or GB/s}."""
    found = {}
    with threads(n_jobs), Executor(n_jobs) as executor:
        for letter, dtype in (("d", np.float64), ("s", np.float32)):
            A = np.asfortranarray(np.random.RandomState(0).rand(gemm, gemm), dtype)
            (multiply,) = get_blas_funcs(("gemm",), (A,))
            found[f"{letter}gemm"] = (
                2 * gemm**3 / _median(lambda f=multiply, A=A: f(1.0, A, A), rounds) / 1e9
            )
            C = np.asfortranarray(np.eye(potrf) + 1.0 / potrf, dtype)
            (factorise,) = get_lapack_funcs(("potrf",), (C,))
            found[f"{letter}potrf"] = (
                potrf**3 / 3 / _median(lambda f=factorise, C=C: f(C), rounds) / 1e9
            )
        source = np.ones(copied // 8)
        target = np.zeros_like(source)

        def copy():
            executor.map(
                lambda part: np.copyto(target[part], source[part]),
                slices(source.size, -(-source.size // n_jobs)),
            )

        found["copy"] = 2 * copied / _median(copy, rounds) / 1e9
    return found


def _median(function, rounds):
    """Return the median seconds of a function over `rounds` calls, after one that is not
    counted.
    """
    function()
    return statistics.median(seconds(function) for _ in range(rounds))


def apart(start, end):
    """Return the largest relative difference between two measurements of the limits."""
    ratios = [end[n][name] / start[n][name] for n in start for name in start[n]]
    return max(max(ratio, 1.0 / ratio) for ratio in ratios) - 1.0


def both(start, end):
    """Return the larger of two measurements of each limit, because a limit is what the machine
    can do.
    """
    return {n: {name: max(start[n][name], end[n][name]) for name in start[n]} for n in start}


def ideal_seconds(work, n_jobs, known):
    """Return the least time that `work` can take at the `known` limits, or None if nothing was
    counted.
    """
    rates = known.get(str(n_jobs)) or known[max(known)]
    computing = sum(flops / rates[name] for name, flops in work.items() if name != "bytes") / 1e9
    return max(computing, work.get("bytes", 0.0) / rates["copy"] / 1e9) or None


def used_by_others():
    """Return the seconds for which all other processes have kept cores busy so far.

    It is 0 where the system does not tell.
    """
    try:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, *more = map(int, next(lines).split()[1:])
    except OSError:
        return 0.0
    # What follows are interrupts, and the time that a host gave to other machines.
    busy = (user + nice + system + sum(more[:3])) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def description():
    """Return the processor, the number of cores, and the versions that results depend on."""
    versions = {module.__name__: module.__version__ for module in (np, scipy, numba)}
    return {
        "processor": _processor(),
        "cores": effective_jobs(None),
        "python": platform.python_version(),
        **versions,
    }


def _processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or os.uname().machine


def table(start, end=None):
    """Return the limits as lines of text, with both measurements if there are two."""
    names = list(start["1"])
    lines = ["threads  " + "  ".join(f"{name:>15}" for name in names) + "   (GFLOP/s; copy: GB/s)"]
    for n in start:
        cells = [
            f"{start[n][name]:.1f}" + (f" -> {end[n][name]:.1f}" if end else "") for name in names
        ]
        lines.append(f"{n:>7}  " + "  ".join(f"{cell:>15}" for cell in cells))
    return lines


def _letter(dtype):
    return "s" if np.dtype(dtype) == np.float32 else "d"


def _gemm(flops, dtype, moved=0.0):
    return {f"{_letter(dtype)}gemm": float(flops)} | ({"bytes": float(moved)} if moved else {})


def _potrf(flops, dtype=np.float64):
    return {f"{_letter(dtype)}potrf": float(flops)}


def epilogue(entries, dtype):
    """Count theta1 exp(e) times <z, z'> for a number of entries."""
    return _gemm(entries * (EXP_FLOPS[_letter(dtype)] + 2), dtype)


def _profile(kernel, a, b, out, *_):
    """Count the augmented product and the fused exponential of a tile.

    `SparsePoints` have no augmented product, so only the exponential counts.
    """
    width = a.left.shape[1] if hasattr(a, "left") else 0
    return _gemm(out.size * (2 * width + EXP_FLOPS[_letter(out.dtype)] + 2), out.dtype)


def _tiles_of_kernel(S):
    """Count <z, z'>, the augmented product and the fused exponential of all lower tiles."""
    ends = np.minimum(S.size * np.arange(1, S.count + 1), len(S))
    entries = float(ends @ np.diff(ends, prepend=0))
    terms = [(S.profile, S.Z)]
    if isinstance(S, TermTiles):
        terms = list(zip(S.rows.profiles, S.rows.features, strict=True))
    widths = sum(profile.left.shape[1] + Z.shape[1] for profile, Z in terms)
    per_entry = 2 * widths + len(terms) * (EXP_FLOPS[_letter(S.dtype)] + 2)
    return _gemm(entries * per_entry, S.dtype)


def _inverse_in_tiles(S, tiles, alpha, *_):
    """Count the product of L^-1 with its transpose, and the tiles of the kernel."""
    found = _potrf(tiles.n**3 / 3, tiles.dtype)
    for name, flops in _tiles_of_kernel(S).items():
        found[name] = found.get(name, 0.0) + flops
    return found


def _matmul(C, V):
    n, c = V.shape
    chunks = -(-c // PRODUCT_COLUMNS)
    kept = isinstance(C, covariance.StoredCovariance)
    return _gemm(
        2.0 * n * n * c, np.float32 if kept else C.dtype, 2.0 * n * n * chunks if kept else 0.0
    )


def _contract(C, U, V):
    return _gemm(2.0 * len(C) ** 2 * U.shape[1], C.dtype)


def _pair_matmul(C, V):
    count, panels = len(C.pairs), -(-V.shape[1] // pairs.PANEL_COLUMNS)
    return _gemm(4.0 * count * V.shape[1], C.dtype, C.pairs.product_bytes * panels)


def _pair_contract(C, U, V):
    return _gemm(4.0 * len(C.pairs) * U.shape[1], C.dtype)


def _grid_matmul(C, V):
    """Count W^T, a Fourier transform and its inverse, and W, each for c d columns.

    A transform of g real numbers takes 2.5 g log2 g flops.
    """
    on, (n, c) = C._used, V.shape
    columns, padded = c * C.rows.Z.shape[1], float(np.prod(on.grid.padded))
    flops = columns * (4.0 * on.W.nnz + 5.0 * padded * np.log2(padded))
    size, chunks = np.dtype(C.dtype).itemsize, -(-c // 8)
    entry = size + on.W.indices.itemsize
    return _gemm(
        flops, C.dtype, 2.0 * chunks * on.W.nnz * entry + 4.0 * size * columns * (n + padded)
    )


def _near(near, cross, request, session):
    """Count |R|^2 |I| + |R|^3/3 flops per query, and those of its right-hand sides.

    The triangular solve with the shared rows I is counted where it happens.
    """
    I, R = near.shared.size, min(near.nearby, len(near.rows) - near.shared.size)
    weights = near.rows.Z.shape[1] if request.variance or request.covariance else 0
    sides, dtype = weights + len(request.along), near.shared_rows(session).V.dtype
    return _gemm(len(cross) * (R * R * I + R**3 / 3 + sides * (2.0 * R * I + R * R)), dtype)


def _basis_pass(task, block):
    d, r = block.Z.shape[1], task.nodes.count
    moved = 8.0 * (block.x.size + len(block) * (d + 1))
    return _gemm(
        len(block) * r * (d * (d + 1.0) * task.box.frequencies + 2.0 * d * len(task.box)),
        np.float64,
        moved,
    )


def _apply_inverse(factor, B):
    return _gemm(2.0 * factor.tiles.n**2 * len(B), factor.tiles.dtype)


def _low_rank_solve(P, R):
    return _gemm(4.0 * R.size * P.rank, P.G.dtype, 2.0 * P.G.nbytes)


def _log_determinant(P):
    """Count the formation of the matrix M, once per preconditioner."""
    return _gemm(1.0 * len(P.G) * P.rank**2, np.float64)


def _right_solve(L, B, session):
    return _gemm(1.0 * len(B) * len(L) ** 2, np.float64)


def _halves(factor, B, prior):
    return {} if factor.refined else _gemm(1.0 * factor.tiles.n**2 * len(B), np.float64)


# A formula maps the arguments of a call of (owner, name) to {"dgemm": flops, ..., "bytes":
# moved}. It has the leading terms only, and none counts what another formula counts.
FORMULAS = {
    (runtime.Executor, "matmul"): lambda self, A, B: _gemm(
        2.0 * A.shape[0] * A.shape[1] * B.shape[1], A.dtype
    ),
    (features.DenseFeatures, "inner_products"): lambda a, b: _gemm(
        2.0 * len(a) * len(b) * a.shape[1], a.array.dtype
    ),
    (Stationary, "multiply"): _profile,
    (Stationary, "contract_gradient"): _profile,
    (Stationary, "multiply_at"): lambda self, squared, out: epilogue(out.size, out.dtype),
    (Stationary, "gradient_at"): lambda self, squared, G: epilogue(2 * G.size, G.dtype),
    (covariance.TiledCovariance, "matmul"): _matmul,
    (covariance.StoredCovariance, "matmul"): _matmul,
    (covariance.TiledCovariance, "contract"): _contract,
    (pairs.PairCovariance, "matmul"): _pair_matmul,
    (pairs.PairCovariance, "contract"): _pair_contract,
    (grid.GridCovariance, "matmul"): _grid_matmul,
    (exact.ExactSolver, "_solve"): lambda self, data, params, draft=False: _potrf(
        len(data) ** 3 / 3, self._buffer.dtype
    ),
    (FormedTiles, "fill"): lambda S, tiles, diagonal: _tiles_of_kernel(S),
    (FormedTiles, "matmul"): lambda S, V, diagonal: _tiles_of_kernel(S),
    (FormedTiles, "contract_inverse"): _inverse_in_tiles,
    (LowerTiles, "invert_factor"): lambda tiles, *_: _potrf(tiles.n**3 / 3, tiles.dtype),
    (CholeskyFactor, "_apply_inverse"): _apply_inverse,
    (CholeskyFactor, "halves"): _halves,
    (CholeskyFactor, "quadratic"): _halves,
    (preconditioner, "right_solve"): _right_solve,
    (LowRankPreconditioner, "log_determinant"): _log_determinant,
    (LowRankPreconditioner, "solve"): _low_rank_solve,
    (LowRankPreconditioner, "trace_gradient"): lambda P: _gemm(4.0 * P.rank**3, np.float64),
    (local.LocalVariance, "reduction"): _near,
    (bound.BlockStatistics, "__call__"): lambda task, block: _gemm(
        1.0 * len(block) * len(task.variables) ** 2, np.float64
    ),
    (bound.BlockGradient, "__call__"): lambda task, block: _gemm(
        2.0 * len(block) * len(task.variables) ** 2, np.float64
    ),
    (sums.BlockBasisStatistics, "__call__"): _basis_pass,
    (whitened.BasisLikelihood, "__init__"): lambda self, space, *_: _potrf(space.size**3 / 3),
    (whitened.BasisLikelihood, "inverted"): lambda self: _potrf(2 * len(self.B) ** 3 / 3),
    (basis.BasisPosterior, "reduction"): lambda posterior, cross, request, session: _gemm(
        2.0 * posterior.d * cross.size * cross.shape[1] * request.variance, float
    ),
}


@contextmanager
def counting():
    """Count while the block runs: `with counting() as work:`.

    work["dgemm"], work["spotrf"], ... and work["bytes"] grow with every operation that is
    called.
    """
    work, lock = Counter(), threading.Lock()
    before = []

    def watched(function, formula):
        def call(*args, **more):
            found = formula(*args, **more)
            with lock:
                work.update(found)
            return function(*args, **more)

        return call

    try:
        for (owner, name), formula in FORMULAS.items():
            original = vars(owner)[name]
            holders = (
                [owner]
                if isinstance(owner, type)
                else [m for m in (owner, bound, inducing, local) if name in vars(m)]
            )
            for holder in holders:
                before.append((holder, name, original))
                setattr(holder, name, watched(original, formula))
        yield work
    finally:
        for holder, name, original in before:
            setattr(holder, name, original)


def counted(function):
    """Return {"dgemm": flops, ..., "bytes": ...} of one call; it is empty if no formula
    applies.
    """
    with counting() as work:
        function()
    return dict(work)


if __name__ == "__main__":
    print("\n".join([str(description()), *table(limits())]))
