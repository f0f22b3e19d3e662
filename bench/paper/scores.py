"""Scores in a CSV file that a run adds to and a later run goes on from: one row a number."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "paper"
HEADER = ("set", "split", "method", "measure", "value")


class Scores:
    """(set, split, method, measure) -> value, as in the file; a method's numbers on a split are written together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[tuple[str, int, str, str], float] = {}
        if path.is_file():
            with path.open(newline="") as lines:
                for row in csv.DictReader(lines):
                    self.values[row["set"], int(row["split"]), row["method"], row["measure"]] = float(row["value"])

    def has(self, name: str, split: int, method: str) -> bool:
        return (name, split, method, "fit_seconds") in self.values

    def add(self, name: str, split: int, method: str, found: Iterable[tuple[str, float]]) -> None:
        self.values |= {(name, split, method, measure): float(value) for measure, value in found}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        with beside.open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows([*key, f"{value:.6g}"] for key, value in sorted(self.values.items()))
        beside.replace(self.path)

    def of(self, name: str, method: str, measure: str) -> np.ndarray:
        """Over the splits that have it, in their order;  (splits,)."""
        keys = sorted(key for key in self.values if key[0] == name and key[2] == method and key[3] == measure)
        return np.array([self.values[key] for key in keys])


def number(mean: float, sd: float | None = None) -> str:
    """A mean and its deviation as pages write them."""
    if np.isinf(mean):
        return "∞"
    text = f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"
    return text.replace("-", "−")


def summary(values: np.ndarray) -> str:
    """Mean and deviation over splits; a dash where there are none."""
    if not values.size:
        return "–"
    return number(np.inf) if np.isinf(values).any() else number(values.mean(), values.std())
