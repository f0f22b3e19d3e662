"""Variants of what the paper leaves open, to see why some of our numbers differ from its own:
docs/paper/experiments.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from authors_search import UNTOUCHED, searched
from protocol import Methods, Split, split_of
from scipy.optimize import minimize
from sklearn.preprocessing import StandardScaler

from gpx_scale import PAPER, GPXRegressor, compare, metrics
from gpx_scale.errors import InputError, NotConverged

HEADER = ("experiment", "set", "method", "variant", "measure", "mean", "sd")
TABULAR = ("Wine", "Abalone", "Digits", "Fish", "Boston", "Diabetes")
# The large sets are tried on one split, the others on three.
SPLITS = {"Wine": 1, "Abalone": 1, "Digits": 1}
# Variants of LIME and SHAP explain this many test rows of the large sets, and all of the others.
ROWS = {"Wine": 100, "Digits": 100, "Abalone": 200}
# These settings of LIME and SHAP are tried on the first split, for each place of theta2.
SETTINGS = {
    "at its best": (
        *("as in the tables", "500 samples", "slopes", "slopes, wide kernel"),
        *(
            "background of 0",
            "background of the median",
            "background of a row",
            "10 features selected",
        ),
    ),
    "halfway to the median": ("as in the tables", "background of 0"),
    "at the median": (
        "as in the tables",
        "500 samples",
        "slopes",
        "background of 0",
        "background of the median",
    ),
}
# Method, variant, measure, value.
Tried = Iterator[tuple[str, str, str, float]]


def fusion(split: Split, seed: int) -> Tried:
    """Try lassos on a graph with less and less fusion.

    The weights of a test row are the Weber point of its neighbours' weights, or those of the
    nearest row. Without any fusion, Network is also tried with the penalty of Localized.
    """
    for lambda1 in (1.0, 0.1, 0.01, 0.001, 0.0001, 0.0):
        for lambda2, names in (
            (0.0, ("Network",)),
            (0.01, ("Localized",) if lambda1 else ("Localized", "Network")),
        ):
            method = compare.LocalizedLasso(lambda1, lambda2)
            try:
                method.fit(split.X, split.y, split.Z)
            except NotConverged:
                continue
            for how, asked in (("Weber point", method), ("nearest row", _Nearest(method))):
                for scaled, measure, value in _measures(asked, split):
                    for name in names:
                        penalised = ", lambda2 = 0.01" if lambda2 and name == "Network" else ""
                        yield (
                            name,
                            f"lambda1 = {lambda1:g}{penalised}, {how}{scaled}",
                            measure,
                            value,
                        )


class _Nearest(compare.Method):
    """A lasso whose weights are those of the nearest training row, instead of the Weber point."""

    def __init__(self, lasso: compare.LocalizedLasso) -> None:
        self.lasso = lasso

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        return self.lasso.W_[self.lasso.neighbours(X)[:, 0]]

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        return np.einsum("md,md->m", self.weights(X), X if Z is None else Z.toarray())


def _measures(method: Any, split: Split) -> Iterator[tuple[str, str, float]]:
    """Yield the scaling, the measure and its value."""
    X, W = split.X_test, method.weights(split.X_test, split.Z_test)
    yield "", "mse", metrics.mean_squared_error(split.y_test, method.predict(X, split.Z_test))
    if split.Z is None:
        yield from _faithful(method, X[:400], (W * X)[:400])
        yield "", "stability", metrics.stability(None, X, weights=W).score
    else:
        yield from _of_words(W, split)


def _faithful(method: Any, X: np.ndarray, C: np.ndarray) -> Iterator[tuple[str, str, float]]:
    """Yield faithfulness by Pearson's correlation, as in table 2, and by the correlation of
    ranks.
    """
    for how, ranks in (("", False), (", by ranks", True)):
        yield how, "faithfulness", metrics.faithfulness(method, X, contributions=C, ranks=ranks)


def _of_words(W: np.ndarray, split: Split) -> Iterator[tuple[str, str, float]]:
    """Yield stability by the scales that texts leave open.

    A word is present in a text or not, so its scale and that of its weights can be chosen.
    """
    scales: dict[str, dict[str, Any]] = {
        "": {},
        ", weights as they are": {"scale_weights": None},
        ", z as it is": {"scale_z": None},
        ", z as it is, half the radius": {"scale_z": None, "epsilon": 0.025},
    }
    for how, options in scales.items():
        yield (
            how,
            "stability",
            metrics.stability(None, split.X_test, split.Z_test, weights=W, **options).score,
        )


def length_scale(split: Split, seed: int) -> Tried:
    """Try GPX, and LIME and SHAP of GPR, with other length scales.

    theta2 is at the maximum of the evidence, at the median squared distance, where the paper
    starts, or halfway between them in logarithms. Other hyperparameters are optimal for it.
    """
    X, rows, ones = split.X_test, split.X_test[: ROWS.get(split.name)], np.ones((len(split.y), 1))
    weighted = GPXRegressor(**PAPER, standardize=False, random_state=seed).fit(split.X, split.y)
    plain = GPXRegressor(**PAPER, standardize=False, sigma_w=0.0, random_state=seed)
    plain.fit(split.X, split.y, ones)
    for where, share in (
        ("at its best", 0.0),
        ("halfway to the median", 0.5),
        ("at the median", 1.0),
    ):
        gpx, gpr = (
            _held(split, None, weighted, share),
            compare.GPR.of(_held(split, ones, plain, share)),
        )
        variant = f"theta2 {where}"
        for _, how, measure, value in _of_gpx(gpx, split, seed):
            yield "GPX", variant + how, measure, value
        yield "GPR", variant, "mse", metrics.mean_squared_error(split.y_test, gpr.predict(X))
        for name, setting, method in _agnostic(gpr, seed, split):
            if seed or setting not in SETTINGS[where]:
                continue
            C = method.fit(split.X, split.y).contributions(rows)
            full = f"{variant}, {setting}"
            for how, measure, value in _faithful(method, rows, C):
                yield name, full + how, measure, value
            yield (
                name,
                full,
                "stability",
                metrics.stability(None, rows, weights=method.weights(rows)).score,
            )
            if name == "GPR+SHAP":
                slopes = C / np.where(np.abs(rows) < 1e-6, 1e-6, rows)
                yield (
                    name,
                    f"{full}, values over z",
                    "stability",
                    metrics.stability(None, rows, weights=slopes).score,
                )


def _agnostic(gpr: compare.GPR, seed: int, split: Split) -> Iterator[tuple[str, str, Any]]:
    """Yield LIME and SHAP with several settings."""
    yield "GPR+LIME", "as in the tables", compare.LIME(gpr, random_state=seed)
    yield "GPR+LIME", "500 samples", compare.LIME(gpr, num_samples=500, random_state=seed)
    yield "GPR+LIME", "slopes", compare.LIME(gpr, quartiles=False, random_state=seed)
    wide = 3.0 * np.sqrt(split.X.shape[1])
    yield (
        "GPR+LIME",
        "slopes, wide kernel",
        compare.LIME(gpr, quartiles=False, kernel_width=wide, random_state=seed),
    )
    yield "GPR+SHAP", "as in the tables", compare.SHAP(gpr, random_state=seed)
    yield (
        "GPR+SHAP",
        "background of 0",
        compare.SHAP(gpr, background=np.zeros((1, split.X.shape[1])), random_state=seed),
    )
    median = np.median(split.X, axis=0, keepdims=True)
    yield (
        "GPR+SHAP",
        "background of the median",
        compare.SHAP(gpr, background=median, random_state=seed),
    )
    yield (
        "GPR+SHAP",
        "background of a row",
        compare.SHAP(gpr, background=split.X[:1], random_state=seed),
    )
    if split.X.shape[1] > 10:
        selected = compare.SHAP(gpr, background=1, l1_reg="num_features(10)", random_state=seed)
        yield "GPR+SHAP", "10 features selected", selected


def _held(split: Split, Z: Any, best: GPXRegressor, share: float) -> GPXRegressor:
    """Return the model with the largest evidence for a given theta2.

    It lies at this share of the way from the best theta2 to the median squared distance, in
    logarithms.
    """
    if not share:
        return best
    held = {"standardize": False, "optimizer": None}
    model = GPXRegressor(**PAPER, **held, sigma_w=best.sigma_w).fit(split.X, split.y, Z)
    theta = best.theta_.copy()
    theta[1] = (1.0 - share) * best.theta_[1] + share * model.theta_[1]
    free = np.flatnonzero(np.isfinite(theta) & (np.arange(4) != 1))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the negative evidence per row and its gradient."""
        theta[free] = logs
        value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
        return -value / len(split.y), -slope[free] / len(split.y)

    # The noise of the best model may be too small for another theta2, so a second search starts
    # from more.
    noisy = np.where(free == 3, np.log(0.7), theta[free])
    bounds = [(-12.0, 6.0)] * free.size
    found = [
        minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds)
        for first in (theta[free].copy(), noisy)
    ]
    theta[free] = min(found, key=lambda one: one.fun).x
    given = dict(
        zip(("theta1", "theta2", "sigma_w", "sigma_y"), np.exp(theta).tolist(), strict=True)
    )
    return GPXRegressor(**PAPER, **held, **given).fit(split.X, split.y, Z)


def search(split: Split, seed: int) -> Tried:
    """Try the end of the authors' search, from theta2 at the median squared distance."""
    return _ends(split, seed, "from the median", None)


def short_start(split: Split, seed: int) -> Tried:
    """Try the end of the authors' search, from the length scales that their package has if
    nothing sets them.
    """
    return _ends(split, seed, "from length scales of 0.69", UNTOUCHED)


def _ends(split: Split, seed: int, start: str, length: float | None) -> Tried:
    """Yield the measures of GPX, of LIME and SHAP of GPR, of ARD and of KL at the end of a
    search.

    A model whose hyperparameters diverged is left out.
    """
    ones = np.ones((len(split.y), 1))
    for Z, sigma_w, ard, measured in (
        (None, 0.1, False, _of_gpx),
        (ones, 0.0, False, _of_gpr),
        (ones, 0.0, True, _of_ard),
    ):
        try:
            model = searched(split.X, split.y, Z, sigma_w, length, ard)
        except InputError:
            continue
        for method, variant, measure, value in measured(model, split, seed):
            yield method, start + variant, measure, value


def _of_gpx(model: GPXRegressor, split: Split, seed: int) -> Tried:
    """Yield the measures of GPX."""
    X = split.X_test
    explained = model.explain(X, std=False, dense=True)
    yield "GPX", "", "nats", model.log_marginal_likelihood_value_
    yield "GPX", "", "mse", metrics.mean_squared_error(split.y_test, model.predict(X))
    for how, measure, value in _faithful(model, X, explained.contributions):
        yield "GPX", how, measure, value
    for radius, epsilon in (("", 0.05), (", half the radius", 0.025)):
        yield (
            "GPX",
            radius,
            "stability",
            metrics.stability(None, X, weights=explained.weights, epsilon=epsilon).score,
        )


def _of_gpr(model: GPXRegressor, split: Split, seed: int) -> Tried:
    """Yield the measures of GPR, and of LIME and SHAP that explain it."""
    gpr, rows = compare.GPR.of(model), split.X_test[: ROWS.get(split.name)]
    yield "GPR", "", "mse", metrics.mean_squared_error(split.y_test, gpr.predict(split.X_test))
    for method in (
        (compare.LIME(gpr, random_state=seed), compare.SHAP(gpr, random_state=seed))
        if not seed
        else ()
    ):
        name, C = f"GPR+{type(method).__name__}", method.fit(split.X, split.y).contributions(rows)
        for how, measure, value in _faithful(method, rows, C):
            yield name, how, measure, value
        yield (
            name,
            "",
            "stability",
            metrics.stability(None, rows, weights=method.weights(rows)).score,
        )


def _of_ard(model: GPXRegressor, split: Split, seed: int) -> Tried:
    """Yield the measures of ARD and KL."""
    X, ard = split.X_test, compare.ARD.of(model)
    kl = compare.KL(ard).fit(split.X, split.y)
    R, D = ard.weights(X), kl.weights(X)
    yield "ARD", "", "mse", metrics.mean_squared_error(split.y_test, ard.predict(X))
    yield (
        "ARD",
        ", 1/length scale",
        "faithfulness",
        metrics.faithfulness(ard, X, contributions=np.sqrt(R)),
    )
    for name, method, C in (("ARD", ard, R), ("KL", kl, D)):
        for how, measure, value in _faithful(method, X, C):
            yield name, how, measure, value
    yield "KL", "", "stability", metrics.stability(None, X, weights=D).score


def relevance(split: Split, seed: int) -> Tried:
    """Try the relevances of ARD and KL, which have no signs.

    They are taken as they are or times x, and compared with signed or absolute differences.
    Searches of few steps are tried too.
    """
    for steps in (1, 5, 100):
        how = {"sigma_w": 0.0, "standardize": False, "max_iter": steps, "random_state": seed}
        model = GPXRegressor(**PAPER | {"ard": True}, **how)
        ard = compare.ARD.of(model.fit(split.X, split.y, np.ones((len(split.y), 1))))
        X, kl = split.X_test, compare.KL(ard).fit(split.X, split.y)
        searched = "" if steps == 100 else f", search of {steps} step{'s' * (steps > 1)}"
        yield (
            "ARD",
            f"relevance{searched}",
            "mse",
            metrics.mean_squared_error(split.y_test, ard.predict(X)),
        )
        for name, method in (("ARD", ard), ("KL", kl)):
            R = method.weights(X)
            if name == "KL":
                yield (
                    name,
                    f"relevance{searched}",
                    "stability",
                    metrics.stability(None, X, weights=R).score,
                )
            for what, C in (
                ("relevance", R),
                ("relevance |x|", R * np.abs(X)),
                ("relevance x", R * X),
            ):
                for signed in (True, False) if what != "relevance x" else (True,):
                    variant = f"{what}, {'signed' if signed else 'absolute'} differences{searched}"
                    yield (
                        name,
                        variant,
                        "faithfulness",
                        metrics.faithfulness(method, X, contributions=C, signed=signed),
                    )


def scales(split: Split, seed: int) -> Tried:
    """Try stability with other scales of x and of the weights."""
    variants: dict[str, dict[str, Any]] = {
        "as in table 3": {},
        "half the radius": {"epsilon": 0.025},
        "x standardised": {"scale_x": "standard"},
        "weights in [0, 1]": {"scale_weights": "unit"},
        "weights as they are": {"scale_weights": None},
        "z in [0, 1]": {"scale_z": "unit"},
    }
    methods = Methods(split, lambda _: {}, seed)
    for name in ("GPX", "KL", "Localized", "Network"):
        W = methods.fitted(name)[0].weights(split.X_test)
        for variant, options in variants.items():
            yield (
                name,
                variant,
                "stability",
                metrics.stability(None, split.X_test, weights=W, **options).score,
            )


def texts(split: Split, seed: int) -> Tried:
    """Try the Paper set with other inputs.

    x is the LSA without scaling, or has more dimensions. Z is standardised, has the words of
    all texts, or counts words. Linear models are tried on x instead of words. The authors'
    search is tried too.
    """
    scaler = StandardScaler().fit(split.Z.toarray())
    standardised = replace(
        split,
        Z=scaler.transform(split.Z.toarray()),
        Z_test=scaler.transform(split.Z_test.toarray()),
    )
    variants = {
        "as in the tables": split,
        "x as LSA has it": split_of(split.name, seed, scale_x=False),
        "300 dimensions": split_of(split.name, seed, n_components=300),
        "Z standardised": standardised,
        "words of all texts": split_of(split.name, seed, all_words=True),
        "x in place of words": replace(split, Z=None, Z_test=None),
        "counts of words": split_of(split.name, seed, counts=True),
    }
    for variant, case in variants.items():
        methods = Methods(case, lambda _: {}, seed)
        by_words = (
            ("GPR+LIME", "GPR+SHAP")
            if variant in ("as in the tables", "x as LSA has it") and not seed
            else ()
        )
        names = ("GPX", "GPR", "ARD", "Lasso", "Ridge", "KL", "Localized", "Network", *by_words)
        for name in ("Lasso", "Ridge") if variant.endswith("of words") else names:
            yield from _of_texts(name, variant, methods.fitted(name)[0], case)
    ones = np.ones((len(split.y), 1))
    ard = compare.ARD.of(searched(split.X, split.y, ones, sigma_w=0.0, ard=True))
    gpx, gpr = compare.GPX(), compare.GPR.of(searched(split.X, split.y, ones, sigma_w=0.0))
    gpx.model_ = searched(split.X, split.y, split.Z, sigma_w=0.1)
    for name, method in (
        ("GPX", gpx),
        ("GPR", gpr),
        ("ARD", ard),
        ("KL", compare.KL(ard).fit(split.X, split.y)),
    ):
        yield from _of_texts(name, "the package's search", method, split)


def _of_texts(name: str, variant: str, method: Any, split: Split) -> Tried:
    """Yield the measures of a method on texts."""
    if name not in ("KL", "GPR+LIME", "GPR+SHAP"):
        error = metrics.mean_squared_error(split.y_test, method.predict(split.X_test, split.Z_test))
        yield name, variant, "mse", error
    if name not in ("GPR", "ARD", "Lasso", "Ridge"):
        for scaled, measure, value in _of_words(method.weights(split.X_test, split.Z_test), split):
            yield name, f"{variant}{scaled}", measure, value


EXPERIMENTS: dict[str, tuple[Callable[[Split, int], Tried], tuple[str, ...]]] = {
    "length scale": (length_scale, TABULAR),
    "search": (search, TABULAR),
    "short start": (short_start, TABULAR),
    "relevance": (relevance, TABULAR),
    "texts": (texts, ("Paper",)),
    "scales": (scales, TABULAR),
    "fusion": (fusion, (*TABULAR, "Paper")),
}


def tried(experiment: str, name: str) -> list[dict[str, str]]:
    """Return the rows of the file for an experiment on a data set."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for seed in range(SPLITS.get(name, 3)):
        for method, variant, measure, value in EXPERIMENTS[experiment][0](
            split_of(name, seed), seed
        ):
            found.setdefault((method, variant, measure), []).append(value)
    rows = []
    for key, values in found.items():
        sd = f"{np.std(values):.4g}" if len(values) > 1 and np.isfinite(values).all() else ""
        rows.append(
            dict(zip(HEADER, (experiment, name, *key, f"{np.mean(values):.4g}", sd), strict=True))
        )
    return rows


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of the file, or none if it does not exist."""
    if not path.is_file():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def run(path: Path, say: Callable[[str], None], fresh: bool, workers: Executor) -> None:
    """Run the experiments that the file lacks, or all, in parallel."""
    kept = [] if fresh else read(path)
    known = {(row["experiment"], row["set"]) for row in kept}
    missing = [
        (one, name)
        for one, (_, names) in EXPERIMENTS.items()
        for name in names
        if (one, name) not in known
    ]
    futures = {workers.submit(tried, *case): case for case in missing}
    for future in as_completed(futures):
        kept += future.result()
        say("tried {}, {}".format(*futures[future]))
        order = list(EXPERIMENTS)
        kept.sort(key=lambda row: (order.index(row["experiment"]), row["set"]))
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, HEADER, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
