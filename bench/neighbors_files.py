"""Neighbours among ten million rows of a memory map: `make bench CASE=neighbors_files`.

A file of 10,000,000 rows of 8 columns is made in a temporary folder (0.7 GB, or in the folder that
GPX_SCALE_BENCH_FILES names, where it is kept). A complete fit with `memory_limit="4GiB"` finds its
hyperparameters on a sample; then 1,000 rows are explained, which takes one pass over the file. Each
time is compared with that of copying the bytes of the file through memory once, by blocks of
65,536 rows. `python bench/neighbors_files.py NAME ...` runs some cases.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from measure import run_cases

ROWS = 10_000_000
COLUMNS = 8
QUERIES = 1_000
BLOCK_ROWS = 65_536
THREADS = 2
NOISE = 0.1
# The fit on a sample, and the explanations, are repeated with these numbers of rows. The first pair
# is the cheap end of what held-out rows choose between, and "auto" lets them choose.
SIZES = {"64, 0": (64, 0), "256, 0": (256, 0), "auto": ("auto", "auto")}


def weights_of(X):
    """Return smooth weights of each row, which make y = w(x).x + noise;  (n, 8) -> (n, 8)."""
    return np.sin(X @ np.linspace(0.2, 0.8, COLUMNS)[:, None] + np.arange(COLUMNS))


@contextmanager
def files():
    """Yield the paths of X and y, which are made block by block."""
    kept = os.environ.get("GPX_SCALE_BENCH_FILES")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(kept or temporary)
        paths = folder / f"X_{ROWS}.npy", folder / f"y_{ROWS}.npy"
        if not all(path.is_file() for path in paths):
            random = np.random.RandomState(0)
            X = np.lib.format.open_memmap(paths[0], "w+", np.float64, (ROWS, COLUMNS))
            y = np.lib.format.open_memmap(paths[1], "w+", np.float64, (ROWS,))
            for start in range(0, ROWS, BLOCK_ROWS):
                rows = slice(start, min(ROWS, start + BLOCK_ROWS))
                X[rows] = random.standard_normal((rows.stop - start, COLUMNS))
                noise = NOISE * random.standard_normal(rows.stop - start)
                y[rows] = (weights_of(X[rows]) * X[rows]).sum(axis=1) + noise
            X.flush()
            y.flush()
        yield paths


def copying(*maps):
    """Return the seconds that copying the bytes of memory maps through memory takes, of three."""
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        for A in maps:
            for first in range(0, len(A), BLOCK_ROWS):
                np.array(A[first : first + BLOCK_ROWS])
        best = min(best, time.perf_counter() - start)
    return best


def explained(neighbors, shared):
    """Return times and errors of a complete fit and of the explanations of QUERIES new rows."""
    from gpx_scale import GPXRegressor

    random = np.random.RandomState(1)
    queries = random.standard_normal((QUERIES, COLUMNS))
    given = {"memory_limit": "4GiB", "n_jobs": THREADS, "random_state": 0}
    given |= {"solver": "neighbors", "kernel": "rbf", "fit_intercept": False, "weights": "shared"}
    with files() as (path, target), tempfile.TemporaryDirectory() as folder:
        # Loops are compiled before the clock runs.
        small = Path(folder, "small.npy")
        np.save(small, random.standard_normal((3_000, COLUMNS)))
        X = np.load(small, mmap_mode="r")
        few = {"n_neighbors": 20, "n_shared": 0 if shared == 0 else 20}
        GPXRegressor(**given, **few).fit(X, X[:, 0] ** 2).explain(queries[:20])
        X, y = (np.load(name, mmap_mode="r") for name in (path, target))
        copied = copying(X, y)
        start = time.perf_counter()
        model = GPXRegressor(n_neighbors=neighbors, n_shared=shared, **given).fit(X, y)
        fitted = time.perf_counter() - start
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            found = model.explain(queries)
            seconds.append(time.perf_counter() - start)
        copied = min(copied, copying(X, y))
    wanted = weights_of(queries)
    return {
        "copy": copied,
        "fit": fitted,
        "explain": min(seconds),
        "predicted": model._plan.seconds,
        "neighbors": model.posterior_.neighbors,
        "shared": int(model.posterior_.shared.size),
        "error": float(np.sqrt(np.mean((found.weights - wanted) ** 2))),
        "coverage": float(np.mean(np.abs(found.weights - wanted) <= 1.96 * found.weights_std)),
    }


CASES = {name: (lambda sizes=sizes: explained(*sizes)) for name, sizes in SIZES.items()}


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []
    for name, one in found.items():
        ratio = one["explain"] / one["copy"]
        words = f"{ratio:.1f} ({one['explain']:.2f} s / {one['copy']:.3f} s; "
        words += f"{one['neighbors']} neighbours, {one['shared']} shared rows)"
        what = f"{QUERIES:,} explanations / copying the file, sizes {name}"
        rows.append((what, words, "at most 10", ratio <= 10.0))
        peak, fit = one["memory"] / 2**30, one["fit"]
        rows.append((f"peak memory, sizes {name}", f"{peak:.1f} GiB", "at most 4", peak <= 4.0))
        words = f"{fit:.0f} s; error of weights {one['error']:.4f}, coverage {one['coverage']:.1%}"
        rows.append((f"complete fit, sizes {name}", words, "", None))
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "neighbors_files")
