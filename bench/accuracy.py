"""The paper's accuracy on six data sets, five 80/20 splits each: `make accuracy`. Reads GPX_SCALE_DATA or ../shared/data.

X and y are standardised on the training rows; the error is the mean squared error in units of the training y's variance.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from gpx_scale import GPXRegressor, datasets
from measure import report

os.environ.setdefault("GPX_SCALE_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))

# name: loader, the paper's mean, what we hold ourselves to
SETS = {
    "Digits": (datasets.load_digits, 0.078, 0.093),
    "Diabetes": (datasets.load_diabetes, 0.493, 0.53),
    "Boston": (datasets.load_boston, 0.116, 0.13),
    "Fish": (datasets.load_fish, 0.370, 0.38),
    "Abalone": (datasets.load_abalone, 0.428, 0.45),
    "Wine": (datasets.load_wine, 0.579, 0.60),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for name in options.sets:
        load, paper, most = SETS[name]
        data = load()
        errors, start = [], time.perf_counter()
        for seed in range(options.splits):
            X, Xq, y, yq = train_test_split(data.X, data.y, test_size=0.2, random_state=seed)
            model = GPXRegressor(random_state=seed).fit(X, y)
            errors.append(np.mean((model.predict(Xq) - yq) ** 2) / np.var(y))
        took = (time.perf_counter() - start) / options.splits
        words = f"MSE {np.mean(errors):.3f} +- {np.std(errors):.3f}, {took:.1f} s a split"
        rows.append((name, words, f"at most {most} (paper {paper})", bool(np.mean(errors) <= most)))
        print(f"{name}: {words}", flush=True)
    report(rows, "accuracy")


if __name__ == "__main__":
    main()
