"""The paper's experiments: `make paper` (about 100 minutes on two cores), or `--quick` for one
split of the small sets.

Scores are added to docs/paper/scores.csv as they are found, and a later run continues from
there. Delete rows or give --fresh to measure again. Tables, figures and pages are then written
from that file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from concurrent.futures import Executor, Future, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import experiments
import figures
from pages import page, write_tables
from protocol import DEFAULT, LOADERS, NAMES, SPLITS, Methods, measured, search, split_of, timed
from published import TIMES
from scores import FOLDER, Scores
from side_by_side import processes

from gpx_scale.errors import GPXError, InputError

QUICK = ("Diabetes", "Boston", "Fish")
SEARCHED = ("Localized", "Network")
TOGETHER = (
    ("GPX",),
    (DEFAULT,),
    ("GPR", "GPR+LIME", "GPR+SHAP"),
    ("ARD", "KL"),
    ("Lasso", "Ridge"),
    ("Localized",),
    ("Network",),
)
START = time.perf_counter()


def say(words: str) -> None:
    """Print a line with the minutes since the start."""
    print(f"[{(time.perf_counter() - START) / 60:5.1f} min] {words}", flush=True)


class Settings:
    """The choices of the grid searches, made once per set and stored in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chosen: dict[str, dict[str, Any]] = (
            json.loads(path.read_text()) if path.is_file() else {}
        )

    def of(self, name: str, method: str) -> dict[str, Any]:
        """Return the settings of a method on a set."""
        return self.chosen[f"{name}, {method}"] if method in SEARCHED else {}

    def has(self, name: str, method: str) -> bool:
        """Return whether the settings of a method are known, or not needed."""
        return method not in SEARCHED or f"{name}, {method}" in self.chosen

    def add(self, name: str, method: str, found: dict[str, Any]) -> None:
        """Store the settings of a method."""
        self.chosen[f"{name}, {method}"] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.chosen, indent=1, sort_keys=True) + "\n")

    def forget(self, names: list[str], methods: list[str]) -> None:
        """Forget settings, so that they are searched again."""
        for key in [
            key
            for key in self.chosen
            if key.split(", ")[0] in names and key.split(", ")[1] in methods
        ]:
            del self.chosen[key]


def searched(name: str, method: str) -> dict[str, Any]:
    """Return the settings that the grid search chooses on the first split."""
    return search(split_of(name, 0), method)


# Measures and their values.
Found = list[tuple[str, float]]


def scored(
    name: str, seed: int, methods: list[str], settings: dict[str, Any]
) -> list[tuple[str, Found | str]]:
    """Return the measures of methods on a split, or why a method failed.

    Methods that share a fit are passed together.
    """
    # lime and shap cause warnings about numpy.
    warnings.filterwarnings("ignore", category=FutureWarning)
    fitted, found = Methods(split_of(name, seed), lambda _: settings, seed), []
    for method in methods:
        try:
            found.append((method, list(measured(fitted, method))))
        except GPXError as error:
            found.append((method, str(error)))
    return found


def run(
    names: list[str],
    splits: int,
    methods: list[str],
    scores: Scores,
    settings: Settings,
    workers: Executor,
) -> None:
    """Measure what the scores lack, several splits at once.

    Methods that need settings wait for the search for these.
    """
    todo = [
        (name, seed, missing)
        for name in names
        for group in TOGETHER
        for seed in range(splits)
        if (
            missing := [
                method
                for method in group
                if method in methods and not scores.has(name, seed, method)
            ]
        )
    ]
    waiting: dict[Future[Any], tuple[Any, ...]] = {}

    def submit(cases: list[tuple[str, int, list[str]]]) -> None:
        """Start cases."""
        for name, seed, these in cases:
            waiting[workers.submit(scored, name, seed, these, settings.of(name, these[0]))] = (
                name,
                seed,
                these,
            )

    ready = [case for case in todo if settings.has(case[0], case[2][0])]
    later = [case for case in todo if case not in ready]
    for name, method in dict.fromkeys((name, these[0]) for name, _, these in later):
        waiting[workers.submit(searched, name, method)] = name, method
    submit(ready)
    done = 0
    while waiting:
        future = next(as_completed(waiting))
        case = waiting.pop(future)
        if len(case) == 2:
            settings.add(*case, future.result())
            say(f"{case[0]}, {case[1]}: searched, {settings.of(*case)}")
            submit([one for one in later if (one[0], one[2][0]) == case])
            continue
        name, seed, done = case[0], case[1], done + 1
        for method, found in future.result():
            where = f"{name}, split {seed + 1}, {method}"
            if isinstance(found, str):
                say(f"{where} failed: {found}")
                continue
            scores.add(name, seed, method, found)
            say(f"{where}: MSE {scores.values[name, seed, method, 'mse']:.3f} ({done}/{len(todo)})")


def here(names: list[str]) -> list[str]:
    """Return the sets whose files exist."""
    found = []
    for name in names:
        try:
            LOADERS[name]()
            found.append(name)
        except InputError as error:
            say(f"{name} is left out: {error}")
    return found


def run_times(path: Path, settings: Settings, fresh: bool) -> None:
    """Measure table 4 on Digits, one method after the other and nothing beside them."""
    if path.is_file() and not fresh:
        return
    methods = Methods(split_of("Digits", 0), lambda method: settings.of("Digits", method), 0)
    rows = []
    for method in TIMES:
        rows.append((method, *timed(methods, method)))
        say(f"Digits, {method}: {rows[-1][1]:.2f} s of training, {rows[-1][2]:.2f} s of prediction")
    with path.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("method", "training", "prediction"))
        writer.writerows(
            (method, f"{training:.4g}", f"{prediction:.4g}")
            for method, training, prediction in rows
        )


def write_pages(scores: Scores, settings: Settings, folder: Path, quick: bool) -> None:
    """Write tables, figures and the page from the files of the folder."""
    write_tables(scores, folder)
    figures.sufficiency(scores, folder / "sufficiency.png")
    if not quick:
        figures.digits(lambda method: settings.of("Digits", method), folder)
        figures.boston(folder / "boston.png")
    (folder / "index.md").write_text(
        page(scores, folder, experiments.read(folder / "experiments.csv"))
    )
    say(f"wrote {folder / 'index.md'}")


def compile_first() -> None:
    """Run every method once, so that no time includes compilation or imports."""
    split = split_of("Diabetes", 0)
    small = replace(split, X_test=split.X_test[:3], y_test=split.y_test[:3])
    methods = Methods(small, lambda _: {}, 0)
    for method in NAMES:
        list(measured(methods, method))
        if method in TIMES:
            timed(methods, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--methods", nargs="*", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument(
        "--quick", action="store_true", help=f"measure one split of {', '.join(QUICK)}"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--fresh", action="store_true", help="measure the sets and methods asked for again"
    )
    what.add_argument("--pages", action="store_true", help="only write the pages again")
    parser.add_argument("--out", type=Path, help="folder of scores, tables and figures")
    asked = parser.parse_args()
    names, splits = (list(QUICK), 1) if asked.quick else (asked.sets, asked.splits)
    folder = asked.out or (Path("paper_quick") if asked.quick else FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GPX_SCALE_DATA", str(FOLDER.parents[2] / "shared" / "data"))
    warnings.filterwarnings("ignore", category=FutureWarning)
    scores, settings = Scores(folder / "scores.csv"), Settings(folder / "settings.json")
    if asked.fresh:
        scores.forget(names, asked.methods)
        settings.forget(names, asked.methods)
    if not asked.pages:
        with processes() as workers:
            run(here(names), splits, asked.methods, scores, settings, workers)
            if not asked.quick:
                experiments.run(folder / "experiments.csv", say, asked.fresh, workers)
        if not asked.quick:
            compile_first()
            run_times(folder / "times.csv", settings, asked.fresh)
    write_pages(scores, settings, folder, asked.quick)


if __name__ == "__main__":
    main()
