"""Measure the rates of one core beside the committed ones: `make bench CASE=rates`.

`make bench CASE=rates ARGS=--write` writes what was measured into src/gpx_scale/solvers/rates.py.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from gpx_scale import GPXRegressor, datasets, kernels
from gpx_scale.data.features import DenseFeatures, SparseFeatures
from gpx_scale.data.inputs import TrainingRows
from gpx_scale.linalg.covariance import StoredCovariance, TiledCovariance
from gpx_scale.linalg.pairs import Pairs
from gpx_scale.linalg.sparse_covariance import PairCovariance
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.runtime.session import Session
from gpx_scale.solvers import rates
from gpx_scale.solvers.rates import RATES, Rates

N, COLUMNS = 6000, 10
WORDS, DENSITY = 2000, 0.01


def least(function, rounds=3):
    """Return the least seconds of some calls, after one that is not counted."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def measured():
    """Return the rates of one core of this machine."""
    random = np.random.RandomState(0)
    X, y = random.standard_normal((N, COLUMNS)), random.standard_normal(N)
    params = Hyperparameters.of(kernels.RBF(1.0, 20.0), 0.1, 0.5)
    rows, V = TrainingRows(X, DenseFeatures(X), y), random.standard_normal((N, 16))
    words = sp.random(4 * N, WORDS, DENSITY, "csr", random_state=random)
    texts = TrainingRows(
        random.standard_normal((4 * N, COLUMNS)), SparseFeatures.of(words), np.ones(4 * N)
    )
    found = {}
    with Session.open(1) as session:
        for bits, dtype in (("64", np.float64), ("32", np.float32)):
            C = TiledCovariance(rows, params, session, dtype)
            tiles = C.empty_tiles(dtype)
            filling = least(lambda C=C, tiles=tiles: C.fill(tiles))
            both = least(lambda C=C, tiles=tiles: (C.fill(tiles), tiles.factor()))
            found[f"entries{bits}"] = 0.5 * N**2 / filling
            found[f"flops{bits}"] = N**3 / 3.0 / (both - filling)
        stored = StoredCovariance(rows, params, session, np.float32)
        found["products"] = 0.5 * N**2 / least(lambda: stored.matmul(V))
        pairs = Pairs.of(texts, params.kernel, session)
        C = PairCovariance(texts, params, session, np.float32, pairs)
        W = random.standard_normal((4 * N, 16))
        found["pairs"] = len(pairs) / least(lambda: C.matmul(W))
    small = datasets.load_diabetes()
    model = GPXRegressor(n_jobs=1, max_iter=10, kernel="rbf", fit_intercept=False, weights="shared")
    found["startup"] = least(lambda: model.fit(small.X, small.y))
    return Rates(**{name: float(f"{value:.2g}") for name, value in found.items()})


def main(arguments):
    now = measured()
    print(f"{'rate of one core':<18}{'committed':>12}{'measured':>12}")
    for field in fields(Rates):
        committed, value = getattr(RATES, field.name), getattr(now, field.name)
        print(f"{field.name:<18}{committed:>12.2g}{value:>12.2g}")
    if "--write" in arguments:
        path = Path(rates.__file__)
        text = path.read_text()
        for name, value in asdict(now).items():
            text = re.sub(rf"(    {name}=)[^,]+,", rf"\g<1>{value:.2g},", text)
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
