"""Rows of numbers and one target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.datasets import fetch_california_housing
from sklearn.datasets import load_diabetes as _sklearn_diabetes
from sklearn.datasets import load_digits as _sklearn_digits

from ..errors import InputError
from .csv_table import numbers
from .download import reason
from .sources import in_folder, load_table, unavailable

CALIFORNIA = "california_housing.csv.gz"


class Dataset(NamedTuple):
    """X (n, p), y (n,), and the names of X's columns."""

    X: np.ndarray
    y: np.ndarray
    feature_names: list[str]


def load_digits() -> Dataset:
    """Handwritten digits as the paper uses them: y = -1 for 0-4 and +1 for 5-9;  1797 x 64."""
    bunch = _sklearn_digits()
    names = [f"row {i}, column {j}" for i in range(8) for j in range(8)]
    return Dataset(bunch.data, np.where(bunch.target < 5, -1.0, 1.0), names)


def digit_classes() -> np.ndarray:
    """Which digit each image of `load_digits` is;  (1797,)."""
    return _sklearn_digits().target


def load_diabetes() -> Dataset:
    """Disease progression of 442 patients, in the measured units;  442 x 10."""
    bunch = _sklearn_diabetes(scaled=False)
    return Dataset(bunch.data, bunch.target, list(bunch.feature_names))


def load_abalone(progress: bool | None = None) -> Dataset:
    """Rings of abalones; sex one-hot encoded;  4177 x 10."""
    return _dataset("abalone.csv", target="rings", categories=("sex",), progress=progress)


def load_boston(progress: bool | None = None) -> Dataset:
    """Median house values of Boston's tracts;  506 x 13."""
    return _dataset("boston_housing.csv", target="MEDV", progress=progress)


def load_california() -> Dataset:
    """Median house values of Californian block groups, in 100,000 USD; latitude and longitude are among the features. From the
    folder of GPX_SCALE_DATA, else by scikit-learn, which downloads and keeps it in its own folder;  20,640 x 8."""
    if in_folder(CALIFORNIA):
        return _dataset(CALIFORNIA, target="MedHouseVal")
    try:
        bunch = fetch_california_housing()
    except OSError as error:
        files = (f"{CALIFORNIA} (its features by scikit-learn's names, and MedHouseVal)",)
        raise unavailable(
            "California", files, "where scikit-learn has it", reason(error)
        ) from error
    return Dataset(bunch.data, bunch.target, list(bunch.feature_names))


def load_fish(progress: bool | None = None) -> Dataset:
    """Aquatic toxicity to fish (LC50);  908 x 6."""
    return _dataset("qsar_fish_toxicity.csv", target="LC50", progress=progress)


def load_kin40k() -> Dataset:
    """Forward kinematics of a robot arm of eight joints, from the folder of GPX_SCALE_DATA;  40,000 x 8."""
    return _dataset("kin40k.csv.gz", target="y")


def load_protein() -> Dataset:
    """Size of the residue of protein decoys (CASP), from the folder of GPX_SCALE_DATA;  45,730 x 9."""
    return _dataset("protein_casp.csv.gz", target="RMSD")


def load_wine(progress: bool | None = None) -> Dataset:
    """Quality of wines, red and white together;  6497 x 11."""
    return _dataset("wine_quality.csv", target="quality", drop=("color",), progress=progress)


def _dataset(
    file: str,
    target: str,
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    progress: bool | None = None,
) -> Dataset:
    table = load_table(file, progress)
    y = numbers(table, target)
    columns: dict[str, np.ndarray] = {}
    for key, cells in table.items():
        if key in categories:
            columns |= {
                f"{key}={level}": np.array([c == level for c in cells], float)
                for level in sorted(set(cells))
            }
        elif key != target and key not in drop:
            columns[key] = numbers(table, key)
    if not columns:
        raise InputError(f"{file} has no column but {target!r}: there is nothing to predict it by")
    return Dataset(np.column_stack(list(columns.values())), y, list(columns))
