"""The default model beside its candidates, the paper's model and boosting on ten tables:
`make bench CASE=default` (45 minutes on two cores).

It needs the extra [peers] and the files of GPX_SCALE_DATA. Each split of a table has up to 3,000
training rows. Results are added to results/default.json as they are found, and a later run
continues from there; `--fresh` measures again. `python bench/default.py NAME ... --methods NAME
...` runs some tables or simulations and some methods, and leaves the results of the others.
Every table and split has a process per group of methods, which compiles before the clock runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from measure import RESULTS, Row

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
SPLITS = 3
# The numbers of rows that are fitted, tested and explained, at most.
TRAINING_ROWS, TEST_ROWS, EXPLAINED_ROWS = 3_000, 3_000, 1_000
# The share of a small table that is fitted.
TRAINING_SHARE = 0.8
# Standard deviations of half a 95% interval.
HALF_INTERVAL = 1.959964
# Candidates with this many times the error of the best one are measured on the first split only.
FAR_BEHIND = 1.1
KERNELS = ("rbf", "matern52", "matern32", "rq")
ALL_FITS = ("default", "rbf", "paper")
PEERS = ("LightGBM", "EBM")
# EBM takes most of the time of a run, so that it is only on the five smallest tables.
EBM_TABLES = ("diabetes", "boston", "fish", "abalone", "wine")


@dataclass(frozen=True)
class Candidate:
    """A kernel that the default compares, and whether each column has a length scale."""

    kernel: str
    ard: bool
    intercept: bool

    def __str__(self) -> str:
        """Return its name in the results, such as "matern32, ard, intercept"."""
        words = (self.kernel, "ard" * self.ard, "intercept" * self.intercept)
        return "candidate " + ", ".join(filter(None, words))

    @property
    def title(self) -> str:
        """Its name in tables, where the intercept is that of the default."""
        return self.kernel + ", ARD" * self.ard

    def model(self) -> Any:
        """Return the estimator."""
        from gpx_scale import GPXRegressor

        return GPXRegressor(
            kernel=self.kernel,
            ard=self.ard,
            fit_intercept=self.intercept,
            random_state=0,
            weights="shared",
        )


def candidates(intercept: bool) -> list[Candidate]:
    """Return the eight candidates, with an intercept or without."""
    return [Candidate(kernel, ard, intercept) for kernel in KERNELS for ard in (False, True)]


# tables


@dataclass(frozen=True)
class Split:
    """Training rows and test rows of a table, in its own units."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def _columns(file: str, target: str, left_out: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of a file as X, and the target."""
    from gpx_scale.datasets.csv_table import numbers
    from gpx_scale.datasets.sources import load_table

    table = load_table(file, None)
    names = [name for name in table if name not in (target, *left_out)]
    return np.column_stack([numbers(table, name) for name in names]), numbers(table, target)


def _king_county() -> tuple[np.ndarray, np.ndarray]:
    X, price = _columns("kc_house_data.csv.gz", "price", ("id", "date"))
    return X, np.log(price)


def _bike() -> tuple[np.ndarray, np.ndarray]:
    left_out = ("instant", "dteday", "casual", "registered")
    X, count = _columns("bike_hour.csv.gz", "cnt", left_out)
    return X, np.log(count)


def _of_datasets(name: str) -> tuple[np.ndarray, np.ndarray]:
    from gpx_scale import datasets

    data = getattr(datasets, f"load_{name}")()
    return data.X, data.y


TABLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    name: partial(_of_datasets, name) for name in (*EBM_TABLES, "california", "kin40k", "protein")
} | {"king_county": _king_county, "bike": _bike}


def split_of(name: str, number: int) -> Split:
    """Return a split of a table, by a random order of its rows."""
    X, y = TABLES[name]()
    order = np.random.RandomState(number).permutation(len(y))
    count = min(TRAINING_ROWS, round(TRAINING_SHARE * len(y)))
    rows, test = order[:count], order[count : count + TEST_ROWS]
    return Split(X[rows], y[rows], X[test], y[test])


# one fit


def scores(split: Split, mean: np.ndarray, std: np.ndarray | None) -> dict[str, float]:
    """Return the error of predictions with y standardised on the training rows.

    With standard deviations, also the mean log density of the test rows, and the share of
    them in 95% intervals.
    """
    unit = split.y.std()
    error = (split.y_test - mean) / unit
    found = {"rmse": float(np.sqrt(np.mean(error**2)))}
    if std is not None:
        std = std / unit
        density = -0.5 * (np.log(2 * np.pi * std**2) + (error / std) ** 2)
        found["log_likelihood"] = float(density.mean())
        found["coverage"] = float(np.mean(np.abs(error) <= HALF_INTERVAL * std))
    return found


def ours(model: Any, split: Split) -> dict[str, Any]:
    """Return the scores of an estimator of this package, and its seconds."""
    start, processor_start = time.perf_counter(), time.process_time()
    model.fit(split.X, split.y)
    fitted, processor = time.perf_counter(), time.process_time() - processor_start
    mean, std = model.predict(split.X_test, return_std=True)
    predicted = time.perf_counter()
    model.explain(split.X_test[:EXPLAINED_ROWS])
    explained = time.perf_counter() - predicted
    report = model.fit_report_
    return {
        "fit": fitted - start,
        # On busy cores, the seconds of all threads vary less than those of the clock.
        "processor": processor,
        "explain": explained,
        "evidence": report.evidence,
        "evaluations": report.evaluations,
        "phases": report.seconds,
        **scores(split, mean, std),
    }


def chosen(model: Any) -> dict[str, Any]:
    """Return what the default has chosen, and the evidence of its candidates."""
    table = model.kernel_table_
    records = json.loads(table.to_json(orient="records"))
    winner = next(record for record in records if record["chosen"])
    return {key: winner[key] for key in ("kernel", "ard", "fit_intercept")} | {
        "kernel_table": records
    }


def light_gbm(split: Split) -> dict[str, float]:
    """Return the scores of LightGBM with 500 trees, and its seconds; it explains by TreeSHAP."""
    from joblib import cpu_count
    from lightgbm import LGBMRegressor

    def model(trees: int = 500) -> Any:
        return LGBMRegressor(
            n_estimators=trees,
            learning_rate=0.05,
            n_jobs=cpu_count(),
            random_state=0,
            verbosity=-1,
        )

    model(5).fit(split.X[:100], split.y[:100]).predict(split.X[:5], pred_contrib=True)
    return _boosted(model(), split, lambda model, X: model.predict(X, pred_contrib=True))


def ebm(split: Split) -> dict[str, float]:
    """Return the scores of an explainable boosting machine, and its seconds; its terms explain."""
    from interpret.glassbox import ExplainableBoostingRegressor
    from joblib import cpu_count

    model = ExplainableBoostingRegressor(n_jobs=cpu_count(), random_state=0)
    return _boosted(model, split, lambda model, X: model.eval_terms(X))


def _boosted(
    model: Any, split: Split, explain: Callable[[Any, np.ndarray], Any]
) -> dict[str, float]:
    """Return the scores of a model without standard deviations, and its seconds."""
    start = time.perf_counter()
    model.fit(split.X, split.y)
    fitted = time.perf_counter()
    mean = model.predict(split.X_test)
    predicted = time.perf_counter()
    explain(model, split.X_test[:EXPLAINED_ROWS])
    explained = time.perf_counter() - predicted
    return {"fit": fitted - start, "explain": explained, **scores(split, mean, None)}


def measured(name: str, number: int, method: str) -> dict[str, Any]:
    """Return what a method does on a split of a table."""
    from gpx_scale import PAPER, GPXRegressor

    split = split_of(name, number)
    peers = {"LightGBM": light_gbm, "EBM": ebm}
    if method in peers:
        found = peers[method](split)
    else:
        known = {str(one): one.model for one in (*candidates(False), *candidates(True))}
        known |= {
            "default": lambda: GPXRegressor(random_state=0, weights="shared"),
            "rbf": lambda: GPXRegressor(kernel="rbf", ard=False, random_state=0, weights="shared"),
            "paper": lambda: GPXRegressor(**PAPER, random_state=0),
        }
        model = known[method]()
        found = ours(model, split)
        if method == "default":
            found |= chosen(model)
    return {"n": len(split.y), "p": split.X.shape[1], **found}


# simulations

DRAWS, DRAWN_ROWS, DRAWN_COLUMNS = 20, 200, 4
CORRELATION = 0.9
# Hyperparameters of the simulation: theta1, theta2, and the standard deviations of the noise of the
# weights and of y.
DRAWN_FROM = (1.0, 4.0, 0.1, 0.1)


def drawn(number: int, correlation: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y and the weights of a draw from the model with z = x."""
    random, d = np.random.RandomState(number), DRAWN_COLUMNS
    theta1, theta2, sigma_w, sigma_y = DRAWN_FROM
    columns = np.full((d, d), correlation) + (1.0 - correlation) * np.eye(d)
    X = random.standard_normal((DRAWN_ROWS, d)) @ np.linalg.cholesky(columns).T
    K = theta1 * np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2) / theta2)
    # The kernel matrix has no Cholesky factor to rounding; this much noise is nothing beside
    # sigma_w.
    factor = np.linalg.cholesky(K + 1e-9 * np.eye(DRAWN_ROWS))
    weights = factor @ random.standard_normal(X.shape) + sigma_w * random.standard_normal(X.shape)
    return X, (weights * X).sum(axis=1) + sigma_y * random.standard_normal(DRAWN_ROWS), weights


def weights_covered(correlation: float) -> dict[str, Any]:
    """Return the coverage of the weights' 95% intervals, and how often there is an intercept."""
    from gpx_scale import GPXRegressor

    shares, intercepts, kernels, pinned = [], [], [], []
    for number in range(DRAWS):
        X, y, weights = drawn(number, correlation)
        model = GPXRegressor(random_state=0, weights="shared").fit(X, y)
        found = chosen(model)
        shares.append(_share(model, X, weights))
        intercepts.append(bool(found["fit_intercept"]))
        kernels.append(found["kernel"] + ", ard" * bool(found["ard"]))
        without = GPXRegressor(
            kernel="rbf", ard=False, fit_intercept=False, random_state=0, weights="shared"
        )
        pinned.append(_share(without.fit(X, y), X, weights))
    counts = {kernel: kernels.count(kernel) for kernel in sorted(set(kernels))}
    return {
        "coverage": float(np.mean(shares)),
        "worst": min(shares),
        "pinned": float(np.mean(pinned)),
        "pinned_worst": min(pinned),
        "intercepts": sum(intercepts),
        "kernels": counts,
    }


def _share(model: Any, X: np.ndarray, weights: np.ndarray) -> float:
    """Return the share of true weights in their 95% intervals."""
    found = model.explain(X)
    within = np.abs(found.weights - weights) <= HALF_INTERVAL * found.weights_std
    return float(np.mean(within))


ARD_ROWS, ARD_COLUMNS = 13_500, 26
# With theta1, sigma_w and sigma_y, so many length scales are 30 parameters.
THIRTY_ROWS, THIRTY_COLUMNS = 3_000, 27


def ard_beside_isotropic() -> dict[str, Any]:
    """Return the seconds of an RBF with ARD and without, and the errors of both."""
    from gpx_scale import GPXRegressor
    from gpx_scale.datasets import synth_ard

    data = synth_ard(ARD_ROWS + EXPLAINED_ROWS, ARD_COLUMNS)
    split = Split(*(data.X[:ARD_ROWS], data.y[:ARD_ROWS]), *(data.X[ARD_ROWS:], data.y[ARD_ROWS:]))
    found = {}
    for ard in (False, True):
        model = GPXRegressor(
            kernel="rbf", ard=ard, fit_intercept=True, random_state=0, weights="shared"
        )
        start = time.perf_counter()
        model.fit(split.X, split.y)
        seconds, report = time.perf_counter() - start, model.fit_report_
        found["ard" if ard else "isotropic"] = {
            "fit": seconds,
            "solver": report.solver,
            "evidence": report.evidence,
            "evaluations": report.evaluations,
            "phases": report.seconds,
            **scores(split, *model.predict(split.X_test, return_std=True)),
        }
    return found


def thirty_parameters() -> dict[str, Any]:
    """Return how often the evidence of all rows is evaluated for 30 parameters."""
    from gpx_scale import GPXRegressor
    from gpx_scale.datasets import synth_ard

    data = synth_ard(THIRTY_ROWS, THIRTY_COLUMNS)
    model = GPXRegressor(
        kernel="rbf",
        ard=True,
        fit_intercept=True,
        search_rows="all",
        random_state=0,
        weights="shared",
    )
    report = model.fit(data.X, data.y).fit_report_
    return {
        "parameters": model.theta_.size,
        "evaluations": report.evaluations,
        "all_rows": sum(
            count for phase, count in report.evaluations.items() if phase.startswith("all rows")
        ),
        "converged": report.converged,
        "fit": report.seconds["total"],
    }


SIMULATIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "weights": partial(weights_covered, 0.0),
    "correlated weights": partial(weights_covered, CORRELATION),
    "ARD": ard_beside_isotropic,
    "30 parameters": thirty_parameters,
}


# results

WANTED = (*ALL_FITS, *PEERS, "candidates")


class Results:
    """What was found, by table, split and method or by simulation, stored in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = (
            json.loads(path.read_text()) if path.is_file() else {}
        )

    def add(self, key: str, found: dict[str, Any]) -> None:
        """Add an entry, and write the file with one line per entry."""
        self.found[key] = found | {"date": time.strftime("%Y-%m-%d")}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside, entries = self.path.with_suffix(".new"), sorted(self.found.items())
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(one)}" for key, one in entries)
        beside.write_text(f"{{\n{lines}\n}}\n")
        beside.replace(self.path)

    def forget(self, names: Iterable[str], wanted: Iterable[str]) -> None:
        """Forget simulations, and methods on tables, so that they are measured again."""
        names, wanted = set(names), set(wanted)
        self.found = {
            key: found
            for key, found in self.found.items()
            if _name(key) not in names or (key not in SIMULATIONS and _kind(key) not in wanted)
        }

    def of(self, name: str, method: str, field: str) -> list[Any]:
        """Return a number of a method on each split of a table that has it."""
        keys = (key_of(name, number, method) for number in range(SPLITS))
        return [self.found[key][field] for key in keys if key in self.found]

    def candidate_errors(self, name: str, number: int) -> dict[Candidate, float]:
        """Return the error of each measured candidate on a split.

        They are those with the intercept that the default has chosen there. They are returned
        with an intercept, so that splits can be compared.
        """
        default = self.found.get(key_of(name, number, "default"))
        found = {}
        for one in candidates(default["fit_intercept"]) if default else ():
            known = self.found.get(key_of(name, number, str(one)))
            if known is not None:
                found[replace(one, intercept=True)] = known["rmse"]
        return found

    def promising(self, name: str) -> list[Candidate]:
        """Return the candidates whose error on the first split is not far from the best one."""
        errors = self.candidate_errors(name, 0)
        if len(errors) < len(candidates(True)):
            return candidates(True)
        return [one for one in errors if errors[one] <= FAR_BEHIND * min(errors.values())]

    def best_of_eight(self, name: str) -> tuple[Candidate, float] | None:
        """Return the candidate with the least mean error on a table, and that error.

        It is None until all candidates that are needed have been measured.
        """
        by_split = [self.candidate_errors(name, number) for number in range(SPLITS)]
        if len(by_split[0]) < len(candidates(True)):
            return None
        needed = self.promising(name)
        if not all(one in errors for errors in by_split for one in needed):
            return None
        means = {one: float(np.mean([errors[one] for errors in by_split])) for one in needed}
        best = min(means, key=means.__getitem__)
        return best, means[best]


def key_of(name: str, number: int, method: str) -> str:
    """Return the key of an entry of a table."""
    return f"{name}, split {number + 1}, {method}"


def _name(key: str) -> str:
    """Return the table or the simulation of an entry."""
    return key.partition(", ")[0]


def _kind(key: str) -> str:
    """Return which of WANTED the method of an entry is."""
    method = key.split(", ", 2)[2]
    return "candidates" if method.startswith("candidate ") else method


# running

# This key compiles everything that a run needs, and has no entry.
COMPILATION = "compilation"


def compile_first(kernels: Iterable[tuple[str, bool]]) -> None:
    """Fit few rows with some kernels, with ARD or without, before the clock runs."""
    from gpx_scale import GPXRegressor
    from gpx_scale.datasets import synth10

    data = synth10(2_100)
    for kernel, ard in kernels:
        # Small problems take loops that are not parallel.
        for rows in (600, 2_100):
            model = GPXRegressor(
                kernel, ard=ard, fit_intercept=False, max_iter=1, random_state=0, weights="shared"
            )
            model.fit(data.X[:rows], data.y[:rows])
            model.predict(data.X[:5], return_std=True)
            model.explain(data.X[:5])


def in_this_process(keys: list[str]) -> None:
    """Measure some entries, and print each as a line of JSON."""
    if keys == [COMPILATION]:
        compile_first((one.kernel, one.ard) for one in candidates(True))
        return
    if not all(key not in SIMULATIONS and _kind(key) in PEERS for key in keys):
        compile_first([("rbf", True)])
    for key in keys:
        if key in SIMULATIONS:
            found = SIMULATIONS[key]()
        else:
            name, split, method = key.split(", ", 2)
            found = measured(name, int(split.split()[1]) - 1, method)
        print(json.dumps([key, found]), flush=True)


def alone(keys: list[str], results: Results) -> None:
    """Measure entries in a process of their own, and keep each as it is found."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if DATA.is_dir():
        environment.setdefault("GPX_SCALE_DATA", str(DATA))
    command = [sys.executable, __file__, "--keys", *keys]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if not line.startswith('["'):
                continue  # Peers print their own remarks.
            key, found = json.loads(line)
            results.add(key, found)
            shown = {name: f"{found[name]:.3f}" for name in ("rmse", "fit") if name in found}
            print(time.strftime("%H:%M:%S"), key, shown or found, flush=True)
    if process.returncode:
        print(f"{', '.join(keys)}: exit status {process.returncode}", flush=True)


def groups(name: str, number: int, wanted: list[str], results: Results) -> Iterator[list[str]]:
    """Yield the methods of a split that share a process, in the order in which they can run.

    The candidates have the intercept that the default has chosen, and come after it. Those that
    are far behind on the first split are not measured on the others.
    """
    yield [method for method in ALL_FITS if method in wanted]
    peers = PEERS if name in EBM_TABLES else PEERS[:1]
    yield [method for method in peers if method in wanted]
    default = results.found.get(key_of(name, number, "default"))
    if default is not None and "candidates" in wanted:
        these = candidates(True) if number == 0 else results.promising(name)
        yield [str(replace(one, intercept=default["fit_intercept"])) for one in these]


def run(names: list[str], splits: int, wanted: list[str], results: Results) -> None:
    """Measure what the results lack."""
    has_compiled = False
    for name in names:
        for number in range(1 if name in SIMULATIONS else splits):
            # The candidates are known when the default has been measured.
            for methods in [[""]] if name in SIMULATIONS else groups(name, number, wanted, results):
                keys = [key_of(name, number, method) if method else name for method in methods]
                missing = [key for key in keys if key not in results.found]
                if missing and not has_compiled:
                    alone([COMPILATION], results)
                    has_compiled = True
                if missing:
                    alone(missing, results)


# what is shown

# The targets: largest ratios of errors, coverage in percent, ratios and seconds of fits.
MEAN_TO_BEST, WORST_TO_BEST = 1.01, 1.03
WORST_TO_PEER, TABLES_TO_PEER = 1.03, 9
WORST_TO_PAPER = 1.01
COVERED, WEIGHTS_COVERED = (0.92, 0.98), (0.93, 0.97)
TIMES_LARGE, TIMES_SMALL, SECONDS_SMALL = 3.0, 6.0, 2.0
TIMES_ARD, EVALUATIONS = 3.0, 25


def ratios(results: Results, other: Callable[[str], float | None]) -> dict[str, float]:
    """Return the default's mean error over another one, for the tables that have both."""
    found = {}
    for name in TABLES:
        errors, error = results.of(name, "default", "rmse"), other(name)
        if len(errors) == SPLITS and error is not None:
            found[name] = float(np.mean(errors)) / error
    return found


def mean_of(results: Results, method: str, field: str, name: str) -> float | None:
    """Return the mean of a number over the splits of a table, if all have been measured."""
    values = results.of(name, method, field)
    return float(np.mean(values)) if len(values) == SPLITS else None


def _best_error(results: Results, name: str) -> float | None:
    best = results.best_of_eight(name)
    return None if best is None else best[1]


def _worst(values: dict[str, float]) -> str:
    """Return the largest of some ratios, with its table, as text."""
    name = max(values, key=values.__getitem__)
    return f"{values[name]:.3f} ({name})"


def targets(results: Results) -> list[Row]:
    """Return the rows of the table of targets, as far as they have been measured."""
    rows = [*_of_errors(results), *_of_seconds(results)]
    for name, words in (
        ("weights", "independent columns"),
        ("correlated weights", "columns correlated at 0.9"),
    ):
        if name in results.found:
            rows.append(_of_weights(results.found[name], words))
    return rows


def _of_errors(results: Results) -> Iterator[Row]:
    """Yield the rows about errors and coverage."""
    to_best = ratios(results, partial(_best_error, results))
    if to_best:
        mean, worst = float(np.exp(np.mean(np.log(list(to_best.values()))))), max(to_best.values())
        what = f"RMSE of the default / best of eight candidates, {len(to_best)} tables"
        yield Row(
            f"{what}: geometric mean",
            f"{mean:.3f}",
            f"at most {MEAN_TO_BEST}",
            mean <= MEAN_TO_BEST,
        )
        yield Row(
            f"{what}: largest", _worst(to_best), f"at most {WORST_TO_BEST}", worst <= WORST_TO_BEST
        )
    to_paper = ratios(results, partial(mean_of, results, "paper", "rmse"))
    if to_paper:
        worst = max(to_paper.values())
        what = f"RMSE of the default / paper's model, {len(to_paper)} tables: largest"
        yield Row(what, _worst(to_paper), f"at most {WORST_TO_PAPER}", worst <= WORST_TO_PAPER)
    to_peer = ratios(results, partial(mean_of, results, "LightGBM", "rmse"))
    if to_peer:
        fine, worst = sum(ratio <= 1.0 for ratio in to_peer.values()), max(to_peer.values())
        least = TABLES_TO_PEER - len(TABLES) + len(to_peer)
        what = f"RMSE of the default / LightGBM, {len(to_peer)} tables"
        yield Row(f"{what}: no larger", f"on {fine}", f"at least {least}", fine >= least)
        yield Row(
            f"{what}: largest", _worst(to_peer), f"at most {WORST_TO_PEER}", worst <= WORST_TO_PEER
        )
    covered = {name: mean_of(results, "default", "coverage", name) for name in TABLES}
    shares = {name: share for name, share in covered.items() if share is not None}
    if shares:
        low, high = (pick(shares, key=shares.__getitem__) for pick in (min, max))
        words = f"{shares[low]:.1%} ({low}) to {shares[high]:.1%} ({high})"
        fine = COVERED[0] <= shares[low] and shares[high] <= COVERED[1]
        yield Row("95% intervals of the default: share of test rows", words, "92% to 98%", fine)


def _of_seconds(results: Results) -> Iterator[Row]:
    """Yield the rows about the time of fits."""
    times: dict[bool, dict[str, tuple[float, float]]] = {False: {}, True: {}}
    for name in TABLES:
        pairs = [results.of(name, method, "fit") for method in ("default", "rbf")]
        if len(pairs[0]) == len(pairs[1]) == SPLITS:
            is_large = results.of(name, "default", "n")[0] >= TRAINING_ROWS
            extra = (default - rbf for default, rbf in zip(*pairs, strict=True))
            ratio = (default / rbf for default, rbf in zip(*pairs, strict=True))
            times[is_large][name] = float(np.median(list(ratio))), float(np.median(list(extra)))
    what = 'seconds of the default / kernel="rbf", ard=False'
    if large := {name: ratio for name, (ratio, _) in times[True].items()}:
        met = max(large.values()) <= TIMES_LARGE
        yield Row(f"{what}, 3,000 rows: largest", _worst(large), f"at most {TIMES_LARGE:g}", met)
    if times[False]:
        words = "; ".join(
            f"{ratio:.1f} times, {extra:+.1f} s ({name})"
            for name, (ratio, extra) in times[False].items()
        )
        met = all(
            ratio <= TIMES_SMALL or extra <= SECONDS_SMALL for ratio, extra in times[False].values()
        )
        target = f"at most {TIMES_SMALL:g} times or {SECONDS_SMALL:g} s more"
        yield Row(f"{what}, fewer rows", words, target, met)
    if "ARD" in results.found:
        ard, other = (results.found["ARD"][key] for key in ("ard", "isotropic"))
        ratio = ard["fit"] / other["fit"]
        words = f"{ratio:.2f} times ({ard['fit']:.0f} s / {other['fit']:.0f} s; "
        words += f"RMSE {ard['rmse']:.3f} / {other['rmse']:.3f})"
        what = f"synth_ard, n = {ARD_ROWS:,}, p = {ARD_COLUMNS}: seconds with ARD / isotropic"
        yield Row(what, words, f"at most {TIMES_ARD:g}", ratio <= TIMES_ARD, ratio)
    if "30 parameters" in results.found:
        found = results.found["30 parameters"]
        words = f"{found['all_rows']} ({found['parameters']} parameters)"
        what = f"synth_ard, n = {THIRTY_ROWS:,}, p = {THIRTY_COLUMNS}: evaluations of all rows"
        yield Row(what, words, f"at most {EVALUATIONS}", found["all_rows"] <= EVALUATIONS)


def _of_weights(found: dict[str, Any], words: str) -> Row:
    """Return the row about the weights of data that are drawn from the model."""
    what = f"weights of {DRAWS} draws from the model, {words}: share in 95% intervals"
    measured = (
        f"{found['coverage']:.1%}, {found['worst']:.1%} in the worst draw (an intercept in "
        f"{found['intercepts']}); RBF without an intercept {found['pinned']:.1%}, "
        f"{found['pinned_worst']:.1%} in the worst"
    )
    met = WEIGHTS_COVERED[0] <= found["coverage"] <= WEIGHTS_COVERED[1]
    return Row(what, measured, "93% to 97%", met)


def markdown(results: Results) -> str:
    """Return the tables of errors, of densities and coverage, and of seconds."""
    if not _measured_tables(results):
        return "Not measured yet: `make bench CASE=default`."
    parts = _errors(results), _candidates(results), _densities(results), _seconds(results)
    return "\n\n".join(parts)


def _lines(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, or a dash if it is not known."""
    return "-" if value is None else f"{value:{form}}".replace("-", "−")


def _choices(results: Results, name: str) -> str:
    """Return what the default has chosen on the splits of a table, in words."""
    words = [
        Candidate(kernel, ard, intercept).title + (", intercept" if intercept else "")
        for kernel, ard, intercept in zip(
            *(results.of(name, "default", field) for field in ("kernel", "ard", "fit_intercept")),
            strict=True,
        )
    ]
    counts = {one: words.count(one) for one in dict.fromkeys(words)}
    return "; ".join(
        one if count == len(words) else f"{one} ({count})" for one, count in counts.items()
    )


def _measured_tables(results: Results) -> list[str]:
    return [name for name in TABLES if len(results.of(name, "default", "rmse")) == SPLITS]


def _errors(results: Results) -> str:
    """Return the table of errors."""
    rows = []
    for name in _measured_tables(results):
        sizes = [f"{results.of(name, 'default', field)[0]:,}" for field in ("n", "p")]
        best = results.best_of_eight(name)
        cells = [
            _number(mean_of(results, method, "rmse", name))
            for method in ("default", "rbf", "paper", *PEERS)
        ]
        cells.insert(1, "-" if best is None else f"{best[1]:.3f} ({best[0].title})")
        rows.append((name, *sizes, _choices(results, name), *cells))
    head = (
        "table",
        "rows",
        "columns",
        "the default chooses",
        "default",
        "best of eight",
        'kernel="rbf"',
        "paper",
        *PEERS,
    )
    return _lines(head, rows)


def _candidates(results: Results) -> str:
    """Return the table of the errors of all candidates."""
    rows = []
    for name in _measured_tables(results):
        by_split = [results.candidate_errors(name, number) for number in range(SPLITS)]
        cells = []
        for one in candidates(True):
            found = [errors.get(one) for errors in by_split]
            text = _number(None if None in found else float(np.mean(found)))
            is_first_only = found[0] is not None and found[1:] == [None] * (SPLITS - 1)
            cells.append(f"({found[0]:.3f})" if is_first_only else text)
        rows.append((name, *cells))
    return _lines(("table", *(one.title for one in candidates(True))), rows)


def _densities(results: Results) -> str:
    """Return the table of log-likelihoods and coverage."""
    methods = ("default", "rbf", "paper")
    rows = []
    for name in _measured_tables(results):
        cells = [_number(mean_of(results, method, "log_likelihood", name)) for method in methods]
        cells += [_number(mean_of(results, method, "coverage", name), ".1%") for method in methods]
        rows.append((name, *cells))
    names = ("default", 'kernel="rbf"', "paper")
    head = (
        "table",
        *(f"log-likelihood: {one}" for one in names),
        *(f"coverage: {one}" for one in names),
    )
    return _lines(head, rows)


def _seconds(results: Results) -> str:
    """Return the table of seconds."""
    methods = ("default", "rbf", "paper", *PEERS)
    rows = []
    for name in _measured_tables(results):
        cells = []
        for method in methods:
            both = [mean_of(results, method, field, name) for field in ("fit", "explain")]
            cells.append(
                " / ".join(
                    _number(value, ".2g" if value is not None and value < 10 else ".0f")
                    for value in both
                )
            )
        rows.append((name, *cells))
    return _lines(("table", "default", 'kernel="rbf"', "paper", *PEERS), rows)


def show(results: Results) -> None:
    """Print the targets and the tables."""
    for row in targets(results):
        state = {None: "", True: "met", False: "NOT MET"}[row.met]
        print(f"{row.what:<90}  {row.measured}  ({row.target})  {state}")
    print(f"\n{markdown(results)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    every = [*TABLES, *SIMULATIONS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(every)}")
    parser.add_argument("--methods", nargs="*", default=list(WANTED), choices=WANTED)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--fresh", action="store_true", help="measure again")
    parser.add_argument("--keys", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.keys:
        in_this_process(asked.keys)
        return
    names = asked.names or every
    if unknown := set(names) - set(every):
        parser.error(f"There is no {', '.join(sorted(unknown))}. There are {', '.join(every)}.")
    results = Results(RESULTS / "default.json")
    if asked.fresh:
        results.forget(names, asked.methods)
    run(names, asked.splits, asked.methods, results)
    show(results)


if __name__ == "__main__":
    main()
