"""The data: sets that ship with scikit-learn, and those in a local folder named by GPX_SCALE_DATA."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes as _sklearn_diabetes
from sklearn.datasets import load_digits as _sklearn_digits

from .errors import InputError

__all__ = [
    "Dataset",
    "TextDataset",
    "Varying",
    "load_abalone",
    "load_boston",
    "load_diabetes",
    "load_digits",
    "load_fish",
    "load_imdb",
    "load_kin40k",
    "load_paper",
    "load_protein",
    "load_vader",
    "load_wine",
    "synth2",
    "synth10",
]


class Dataset(NamedTuple):
    """X (n, p), y (n,), and the names of X's columns."""

    X: np.ndarray
    y: np.ndarray
    feature_names: list[str]


class TextDataset(NamedTuple):
    """Documents and y (n,)."""

    texts: list[str]
    y: np.ndarray


def load_digits() -> Dataset:
    """Handwritten digits as the paper uses them: y = -1 for 0-4 and +1 for 5-9;  1797 x 64."""
    bunch = _sklearn_digits()
    names = [f"row {i}, column {j}" for i in range(8) for j in range(8)]
    return Dataset(bunch.data, np.where(bunch.target < 5, -1.0, 1.0), names)


def load_diabetes() -> Dataset:
    """Disease progression of 442 patients, in the measured units;  442 x 10."""
    bunch = _sklearn_diabetes(scaled=False)
    return Dataset(bunch.data, bunch.target, list(bunch.feature_names))


def load_abalone() -> Dataset:
    """Rings of abalones; sex one-hot encoded;  4177 x 10."""
    return _from_folder("abalone.csv", target="rings", categories=("sex",))


def load_boston() -> Dataset:
    """Median house values of Boston's tracts;  506 x 13."""
    return _from_folder("boston_housing.csv", target="MEDV")


def load_fish() -> Dataset:
    """Aquatic toxicity to fish (LC50);  908 x 6."""
    return _from_folder("qsar_fish_toxicity.csv", target="LC50")


def load_kin40k() -> Dataset:
    """Forward kinematics of a robot arm of eight joints;  40,000 x 8."""
    return _from_folder("kin40k.csv.gz", target="y")


def load_protein() -> Dataset:
    """Size of the residue of protein decoys (CASP);  45,730 x 9."""
    return _from_folder("protein_casp.csv.gz", target="RMSD")


def load_wine() -> Dataset:
    """Quality of wines, red and white together;  6497 x 11."""
    return _from_folder("wine_quality.csv", target="quality", drop=("color",))


def load_paper() -> TextDataset:
    """Reviews of papers, mainly Spanish, and their scores from -2 to 2; those with a text;  399."""
    return _texts("paper_reviews.csv", target="evaluation")


def load_vader() -> TextDataset:
    """Short texts (film and product reviews, editorials, tweets) and their mean ratings from -4 to 4;  23,703."""
    return _texts("vader_snippets_text.csv.gz", target="rating")


def load_imdb() -> TextDataset:
    """Film reviews and their ratings, 1 to 4 or 7 to 10;  50,000."""
    found = _texts("imdb_reviews.csv.gz", target="rating")
    return TextDataset([text.replace("<br />", " ") for text in found.texts], found.y)


def synth10(n: int, random_state: int = 0) -> Dataset:
    """Ten features with smoothly varying weights: w_l(x) = sin(x.a_l), y = sum_l w_l x_l + 0.1 e, all standardised."""
    random = np.random.RandomState(random_state)
    A = random.standard_normal((10, 10)) / np.sqrt(10.0)
    X = random.standard_normal((n, 10))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (np.sin(X @ A.T) * X).sum(axis=1) + 0.1 * random.standard_normal(n)
    return Dataset(X, (y - y.mean()) / y.std(), [f"x{k}" for k in range(10)])


class Varying(NamedTuple):
    """Where (or when) X (n, p), covariates Z (n, d) with their names, y (n,), and the true weights (n, d) where known."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    feature_names: list[str]
    weights: np.ndarray | None = None


def synth2(n: int, random_state: int = 0) -> Varying:
    """Five coefficients that vary over the unit square: z = (1, N(0, 1)^4), y = w(x).z + 0.3 e, scaled by its deviation."""
    random = np.random.RandomState(random_state)
    X = random.uniform(size=(n, 2))
    u, v = X.T
    pi = np.pi
    weights = np.column_stack(
        [
            np.sin(2 * pi * u) * np.cos(pi * v),
            np.cos(2 * pi * u + v),
            np.sin(pi * (u + v)),
            np.sin(2 * pi * v),
            (np.cos(2 * pi * u * v) + 1) / 2,
        ]
    )
    Z = np.column_stack([np.ones(n), random.standard_normal((n, 4))])
    y = (weights * Z).sum(axis=1) + 0.3 * random.standard_normal(n)
    return Varying(X, y / y.std(), Z, ["1", *(f"z{k}" for k in range(1, 5))], weights / y.std())


def _from_folder(name: str, target: str, drop: tuple[str, ...] = (), categories: tuple[str, ...] = ()) -> Dataset:
    table = _read(name)
    y = np.array(table.pop(target), dtype=float)
    columns: dict[str, np.ndarray] = {}
    for key, values in table.items():
        if key in categories:
            columns |= {f"{key}={level}": np.array([v == level for v in values], float) for level in sorted(set(values))}
        elif key not in drop:
            columns[key] = np.array(values, dtype=float)
    return Dataset(np.column_stack(list(columns.values())), y, list(columns))


def _texts(name: str, target: str) -> TextDataset:
    table = _read(name)
    rows = [(text, float(value)) for text, value in zip(table["text"], table[target], strict=True) if text.strip()]
    return TextDataset([text for text, _ in rows], np.array([value for _, value in rows]))


def _read(name: str) -> dict[str, tuple[str, ...]]:
    """Columns of a file in the folder that GPX_SCALE_DATA names."""
    folder = os.environ.get("GPX_SCALE_DATA")
    if not folder or not (path := Path(folder) / name).is_file():
        raise InputError(f"{name} is read from the folder that GPX_SCALE_DATA names; it is {folder or 'not set'!r}")
    with (
        gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, newline="", encoding="utf-8") as lines
    ):
        header, *rows = csv.reader(lines)
    return dict(zip(header, zip(*rows, strict=True), strict=True))
