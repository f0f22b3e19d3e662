"""The paper's experiments: `make paper` (two hours on two cores at most), `--quick` for one split of the small sets.

Scores go to docs/paper/scores.csv as they are found, and a run goes on from there; delete rows, or give --fresh, to measure
again. Then tables, figures and pages are written from that file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import experiments
import figures
from pages import page, write_tables
from protocol import LOADERS, NAMES, SPLITS, Methods, measured, search, split_of, timed
from published import TIMES
from scores import FOLDER, Scores

from gpx_scale.errors import GPXError, InputError

QUICK = ("Diabetes", "Boston", "Fish")


class Settings:
    """What the grid searches chose, once a set, kept in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chosen: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}

    def of(self, name: str, method: str) -> dict[str, Any]:
        if method not in ("Localized", "Network"):
            return {}
        key = f"{name}, {method}"
        if key not in self.chosen:
            start = time.perf_counter()
            self.chosen[key] = search(split_of(name, 0), method)
            say(f"{key}: searched in {time.perf_counter() - start:.0f} s: {self.chosen[key]}")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.chosen, indent=1, sort_keys=True) + "\n")
        return self.chosen[key]


START = time.perf_counter()


def say(words: str) -> None:
    print(f"[{(time.perf_counter() - START) / 60:5.1f} min] {words}", flush=True)


def run(names: list[str], splits: int, methods: list[str], scores: Scores, settings: Settings) -> None:
    cases = [(name, seed) for name in names for seed in range(splits)]
    left_out = set()
    for done, (name, seed) in enumerate(cases, 1):
        missing = [method for method in methods if not scores.has(name, seed, method)]
        if not missing or name in left_out:
            continue
        try:
            split = split_of(name, seed)
        except InputError as error:
            say(f"{name} is left out: {error}")
            left_out.add(name)
            continue
        fitted = Methods(split, lambda method, name=name: settings.of(name, method), seed)
        for method in missing:
            start = time.perf_counter()
            try:
                scores.add(name, seed, method, list(measured(fitted, method)))
            except GPXError as error:
                say(f"{name}, split {seed + 1} ({done}/{len(cases)}), {method} failed: {error}")
                continue
            error, took = scores.values[name, seed, method, "mse"], time.perf_counter() - start
            say(f"{name}, split {seed + 1} ({done}/{len(cases)}), {method}: MSE {error:.3f}, {took:.1f} s")


def run_times(path: Path, settings: Settings, fresh: bool) -> None:
    """Table 4: on Digits, one method after the other and nothing else beside them."""
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
        writer.writerows((method, f"{training:.4g}", f"{prediction:.4g}") for method, training, prediction in rows)


def write_pages(scores: Scores, settings: Settings, folder: Path, quick: bool) -> None:
    """Tables, figures and the page, from what is in the folder."""
    write_tables(scores, folder)
    figures.sufficiency(scores, folder / "sufficiency.png")
    if not quick:
        figures.digits(lambda method: settings.of("Digits", method), folder)
        figures.boston(folder / "boston.png")
    (folder / "index.md").write_text(page(scores, folder, experiments.read(folder / "experiments.csv")))
    say(f"wrote {folder / 'index.md'}")


def compile_first() -> None:
    """So that no seconds are of compilation, or of imports."""
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
    parser.add_argument("--quick", action="store_true", help=f"one split of {', '.join(QUICK)}")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--fresh", action="store_true", help="measure the sets and methods asked for again")
    what.add_argument("--pages", action="store_true", help="measure nothing: write the pages again")
    parser.add_argument("--out", type=Path, help="folder of scores, tables and figures")
    asked = parser.parse_args()
    names, splits = (list(QUICK), 1) if asked.quick else (asked.sets, asked.splits)
    folder = asked.out or (Path("paper_quick") if asked.quick else FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GPX_SCALE_DATA", str(FOLDER.parents[2] / "shared" / "data"))
    warnings.filterwarnings("ignore", category=FutureWarning)  # of lime and shap, about numpy
    scores, settings = Scores(folder / "scores.csv"), Settings(folder / "settings.json")
    if asked.fresh:
        scores.forget(names, asked.methods)
    if not asked.pages:
        compile_first()
        run(names, splits, asked.methods, scores, settings)
        if not asked.quick:
            run_times(folder / "times.csv", settings, asked.fresh)
            experiments.run(folder / "experiments.csv", say, asked.fresh)
    write_pages(scores, settings, folder, asked.quick)


if __name__ == "__main__":
    main()
