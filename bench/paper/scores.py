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
                    self.values[row["set"], int(row["split"]), row["method"], row["measure"]] = (
                        float(row["value"])
                    )

    def has(self, name: str, split: int, method: str) -> bool:
        return (name, split, method, "mse") in self.values

    def add(self, name: str, split: int, method: str, found: Iterable[tuple[str, float]]) -> None:
        self.values |= {
            (name, split, method, measure): float(f"{value:.6g}") for measure, value in found
        }  # as the file has it
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        with beside.open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows([*key, f"{value:.6g}"] for key, value in sorted(self.values.items()))
        beside.replace(self.path)

    def by_split(self, name: str, method: str, measure: str) -> dict[int, float]:
        """Of the splits that have it, in their order."""
        found = {
            key[1]: value
            for key, value in self.values.items()
            if (key[0], *key[2:]) == (name, method, measure)
        }
        return dict(sorted(found.items()))

    def of(self, name: str, method: str, measure: str) -> np.ndarray:
        """The same as an array;  (splits,)."""
        return np.array(list(self.by_split(name, method, measure).values()))

    def forget(self, names: Iterable[str], methods: Iterable[str]) -> None:
        """So that they are measured again."""
        names, methods = set(names), set(methods)
        self.values = {
            key: value
            for key, value in self.values.items()
            if not (key[0] in names and key[2] in methods)
        }


def number(mean: float, sd: float | None = None) -> str:
    """A mean and its deviation as pages write them."""
    if not np.isfinite(mean):
        return "∞" if np.isinf(mean) else "–"
    text = f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"
    return text.replace("-", "−")


def summary(values: np.ndarray) -> str:
    """Mean and deviation over splits; a dash where there are none."""
    if not values.size:
        return "–"
    return number(np.inf) if np.isinf(values).any() else number(values.mean(), values.std())
