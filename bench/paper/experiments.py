"""Why some of our numbers are not the paper's: guesses are tried, and what they give is kept in docs/paper/experiments.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from protocol import Split, split_of
from scipy.optimize import minimize

from gpx_scale import GPXRegressor, compare, metrics

HEADER = ("experiment", "set", "variant", "measure", "mean", "sd")
SPLITS = 3
Row = tuple[str, str, str, str, float, float]


def length_scale(names: tuple[str, ...] = ("Digits", "Diabetes", "Boston", "Fish", "Abalone")) -> Iterator[Row]:
    """GPX with theta2 at the median squared distance, where the paper starts, and the other parameters at their best."""
    for name in names:
        found: dict[tuple[str, str], list[float]] = {}
        for seed in range(SPLITS):
            split = split_of(name, seed)
            best = GPXRegressor(standardize=False, random_state=seed).fit(split.X, split.y)
            for variant, model in (("theta2 at its best", best), ("theta2 at its start", _held(best, split))):
                gain = model.log_marginal_likelihood_value_ - best.log_marginal_likelihood_value_
                values = {
                    "faithfulness": metrics.faithfulness(model, split.X_test),
                    "mse": metrics.mean_squared_error(split.y_test, model.predict(split.X_test)),
                    "stability": metrics.stability(model, split.X_test).score,
                    "theta2": float(model.hyperparameters_["theta2"]),
                    "nats from the best": gain,
                }
                for measure, value in values.items():
                    found.setdefault((variant, measure), []).append(value)
        yield from _rows("length scale", name, found)


def _held(best: GPXRegressor, split: Split) -> GPXRegressor:
    """The evidence's maximum with theta2 held at the median squared distance."""
    start = GPXRegressor(standardize=False, optimizer=None).fit(split.X, split.y)
    theta = best.theta_.copy()
    theta[1] = start.theta_[1]
    free = [0, 2, 3]

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        theta[free] = logs
        value, slope = best.log_marginal_likelihood(theta, eval_gradient=True)
        return -value / len(split.y), -slope[free] / len(split.y)

    found = minimize(loss, theta[free], jac=True, method="L-BFGS-B", bounds=[(-12.0, 6.0)] * 3)
    theta[free] = found.x
    theta1, theta2, sigma_w, sigma_y = np.exp(theta)
    given = {"theta1": theta1, "theta2": theta2, "sigma_w": sigma_w, "sigma_y": sigma_y}
    return GPXRegressor(standardize=False, optimizer=None, **given).fit(split.X, split.y)


class _Nearest(compare.NetworkLasso):
    """Weights of the nearest training row in place of the Weber point."""

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        return self.W_[self.neighbours(X)[:, 0]]


def fusion(names: tuple[str, ...] = ("Diabetes", "Boston", "Fish")) -> Iterator[Row]:
    """Network lasso: at the least objective, smoothed more, with next to no fusion, with the weights of the nearest row."""
    variants = {
        "lambda1 = 1": compare.NetworkLasso(1.0),
        "lambda1 = 1, smoothing 0.01": compare.NetworkLasso(1.0, smoothing=1e-2),
        "lambda1 = 1, nearest row": _Nearest(1.0),
        "lambda1 = 0.001": compare.NetworkLasso(1e-3),
        "lambda1 = 0.001, nearest row": _Nearest(1e-3),
    }
    for name in names:
        found: dict[tuple[str, str], list[float]] = {}
        for seed in range(SPLITS):
            split = split_of(name, seed)
            for variant, method in variants.items():
                for measure, value in _measures(method.fit(split.X, split.y), split):
                    found.setdefault((variant, measure), []).append(value)
        yield from _rows("fusion", name, found)


def relevance(names: tuple[str, ...] = ("Digits", "Diabetes", "Boston", "Fish", "Abalone")) -> Iterator[Row]:
    """ARD and KL have no signs: faithfulness by signed and by absolute differences."""
    for name in names:
        found: dict[tuple[str, str], list[float]] = {}
        for seed in range(SPLITS):
            split = split_of(name, seed)
            ard = compare.ARD(random_state=seed).fit(split.X, split.y)
            for method in (ard, compare.KL(ard).fit(split.X, split.y)):
                C = method.weights(split.X_test)
                for signed, words in ((True, "signed differences"), (False, "absolute differences")):
                    score = metrics.faithfulness(method, split.X_test, contributions=C, signed=signed)
                    found.setdefault((f"{type(method).__name__}, {words}", "faithfulness"), []).append(score)
        yield from _rows("relevance", name, found)


def agnostic(names: tuple[str, ...] = ("Diabetes", "Boston", "Digits"), rows: int = 40) -> Iterator[Row]:
    """Settings of LIME and SHAP that the paper does not give, on some test rows of one split."""
    for name in names:
        split = split_of(name, 0)
        gpr = compare.GPR(random_state=0).fit(split.X, split.y)
        X = split.X_test[:rows]
        variants = {
            "SHAP, 10 centres": compare.SHAP(gpr, random_state=0),
            "SHAP, 1 centre": compare.SHAP(gpr, background=1, random_state=0),
            "SHAP, 10 centres, 10 features": compare.SHAP(gpr, l1_reg="num_features(10)", random_state=0),
            "LIME, 5000 samples": compare.LIME(gpr, random_state=0),
            "LIME, 500 samples": compare.LIME(gpr, num_samples=500, random_state=0),
        }
        for variant, method in variants.items():
            C = method.fit(split.X, split.y).weights(X)
            score = metrics.faithfulness(method, X, contributions=C)
            yield from _rows("agnostic", name, {(variant, "faithfulness"): [score]})


def scales(names: tuple[str, ...] = ("Digits", "Diabetes", "Boston", "Fish", "Abalone")) -> Iterator[Row]:
    """GPX's stability by other scales of x and weights."""
    variants: dict[str, dict[str, Any]] = {
        "as in table 3": {},
        "half the radius": {"epsilon": 0.025},
        "x standardised": {"scale_x": "standard"},
        "weights as they are": {"scale_weights": None},
    }
    for name in names:
        found: dict[tuple[str, str], list[float]] = {}
        for seed in range(SPLITS):
            split = split_of(name, seed)
            W = compare.GPX(random_state=seed).fit(split.X, split.y).weights(split.X_test)
            for variant, options in variants.items():
                score = metrics.stability(None, split.X_test, weights=W, **options).score
                found.setdefault((variant, "stability"), []).append(score)
        yield from _rows("scales", name, found)


def _measures(method: Any, split: Split) -> Iterator[tuple[str, float]]:
    W = method.weights(split.X_test)
    yield "mse", metrics.mean_squared_error(split.y_test, method.predict(split.X_test))
    yield "faithfulness", metrics.faithfulness(method, split.X_test, contributions=W * split.X_test)
    yield "stability", metrics.stability(None, split.X_test, weights=W).score


def _rows(experiment: str, name: str, found: dict[tuple[str, str], list[float]]) -> Iterator[Row]:
    for (variant, measure), values in found.items():
        yield experiment, name, variant, measure, float(np.mean(values)), float(np.std(values))


EXPERIMENTS = {"length scale": length_scale, "fusion": fusion, "relevance": relevance, "agnostic": agnostic, "scales": scales}


def read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def run(path: Path, say: Any, fresh: bool) -> None:
    """Those that the file does not have yet, or all."""
    kept = [] if fresh else read(path)
    for experiment, function in EXPERIMENTS.items():
        if any(row["experiment"] == experiment for row in kept):
            continue
        for row in function():
            say(" ".join(map(str, row)))
            kept.append(dict(zip(HEADER, (*row[:4], f"{row[4]:.4g}", f"{row[5]:.4g}"), strict=True)))
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, HEADER, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
