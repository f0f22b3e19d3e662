"""Scores in a CSV file with one number per row. A run adds to it, and a later run continues
from it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "paper"
HEADER = ("set", "split", "method", "measure", "value")


class Scores:
    """A mapping (set, split, method, measure) -> value, stored in a file.

    The numbers of a method on a split are written together.
    """

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
        """Return whether a method was measured on a split."""
        return (name, split, method, "mse") in self.values

    def add(self, name: str, split: int, method: str, found: Iterable[tuple[str, float]]) -> None:
        # Values are rounded as in the file.
        """Add the numbers of a method on a split, and write the file."""
        self.values |= {
            (name, split, method, measure): float(f"{value:.6g}") for measure, value in found
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        with beside.open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows([*key, f"{value:.6g}"] for key, value in sorted(self.values.items()))
        beside.replace(self.path)

    def by_split(self, name: str, method: str, measure: str) -> dict[int, float]:
        """Return {split: value} for the splits that have it, in order."""
        found = {
            key[1]: value
            for key, value in self.values.items()
            if (key[0], *key[2:]) == (name, method, measure)
        }
        return dict(sorted(found.items()))

    def of(self, name: str, method: str, measure: str) -> np.ndarray:
        """Return the values of all splits as an array; (splits,)."""
        return np.array(list(self.by_split(name, method, measure).values()))

    def forget(self, names: Iterable[str], methods: Iterable[str]) -> None:
        """Forget scores, so that they are measured again."""
        names, methods = set(names), set(methods)
        self.values = {
            key: value
            for key, value in self.values.items()
            if not (key[0] in names and key[2] in methods)
        }


def number(mean: float, sd: float | None = None) -> str:
    """Return a mean and its standard deviation as the pages write them."""
    if not np.isfinite(mean):
        return "∞" if np.isinf(mean) else "–"
    text = f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"
    return text.replace("-", "−")


def summary(values: np.ndarray) -> str:
    """Return mean and standard deviation over splits as text, or a dash if there are none."""
    if not values.size:
        return "–"
    return number(np.inf) if np.isinf(values).any() else number(values.mean(), values.std())
