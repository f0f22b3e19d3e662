"""The data: sets that ship with scikit-learn, and those in a local folder named by GPX_SCALE_DATA."""

from __future__ import annotations

import csv
import gzip
import os
from datetime import date
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
    "digit_classes",
    "load_abalone",
    "load_berlin",
    "load_bike",
    "load_boston",
    "load_diabetes",
    "load_digits",
    "load_fish",
    "load_georgia",
    "load_imdb",
    "load_kin40k",
    "load_king_county",
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


def digit_classes() -> np.ndarray:
    """Which digit each image of `load_digits` is;  (1797,)."""
    return _sklearn_digits().target


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


def load_georgia() -> Varying:
    """Share of residents with a bachelor's degree in the counties of Georgia, in per cent, on the shares of the foreign-born,
    of black and of rural residents, as mgwr's tutorials have it; X: east and north in metres;  159, Z of 4."""
    table = _numbers("gwr/georgia.csv")
    names = ["PctFB", "PctBlack", "PctRural"]
    return _varying(_beside(table, "X", "Y"), table["PctBach"], {name: table[name] for name in names})


def load_berlin() -> Varying:
    """Log of the price of a night (EUR) in flats of Prenzlauer Berg on the review score (to 100), guests and bathrooms, as
    mgwr's tutorials have it; X: Web Mercator, whose metres are 1.64 to a true one at that latitude;  2203, Z of 4."""
    table = _numbers("gwr/berlin_airbnb_prenzlauer.csv")
    columns = {"review score": "review_sco", "guests": "accommodat", "bathrooms": "bathrooms"}
    covariates = {name: table[column] for name, column in columns.items()}
    return _varying(_beside(table, "X", "Y"), np.log(table["price"]), covariates)


def load_king_county() -> Varying:
    """Log of the price (USD) of houses sold in King County in 2014-15, on their size, quality and age; X: kilometres east and
    north of the county's mean place, by a cylinder at its latitude;  21,613, Z of 8."""
    table = _numbers("kc_house_data.csv.gz", drop=("id", "date", "zipcode"))
    lat, long = table["lat"], table["long"]
    degree = 2 * np.pi * 6371.0 / 360  # km of latitude
    X = degree * np.column_stack([(long - long.mean()) * np.cos(np.radians(lat.mean())), lat - lat.mean()])
    covariates = {
        "log living area": np.log(table["sqft_living"]),
        "log lot": np.log(table["sqft_lot"]),
        "grade": table["grade"],
        "condition": table["condition"],
        "view": table["view"],
        "waterfront": table["waterfront"],
        "age": 2015.0 - table["yr_built"],
    }
    return _varying(X, np.log(table["price"]), covariates)


def load_bike() -> Varying:
    """Log of 1 + hourly rentals of a bicycle scheme in Washington, on weather, working day and hour; X: days from the start of
    2011. A logarithm, since weather and hours act by factors; one is added for hours of a single rental. The hour is three
    harmonics, and three more on working days, whose two peaks leisure has not. Temperature (Celsius), humidity (%) and wind
    (km/h) are undone from the file's scaling;  17,379, Z of 18."""
    table = _read("bike_hour.csv.gz")
    number = {
        key: np.array(table[key], float) for key in ("hr", "workingday", "weathersit", "temp", "hum", "windspeed", "cnt")
    }
    start = date(2011, 1, 1)
    days = np.array([(date.fromisoformat(day) - start).days for day in table["dteday"]], float)
    hour, working = number["hr"], number["workingday"]
    covariates = {
        "temperature": 47.0 * number["temp"] - 8.0,
        "humidity": 100.0 * number["hum"],
        "wind": 67.0 * number["windspeed"],
        "rain or snow": (number["weathersit"] >= 3).astype(float),
        "working day": working,
    }
    harmonics = {
        f"{name} {period} h": wave(2 * np.pi * hour / period)
        for period in (24, 12, 8)
        for name, wave in (("sin", np.sin), ("cos", np.cos))
    }
    covariates |= harmonics | {f"{name}, working day": wave * working for name, wave in harmonics.items()}
    return _varying((days + hour / 24)[:, None], np.log1p(number["cnt"]), covariates)


def _varying(X: np.ndarray, y: np.ndarray, covariates: dict[str, np.ndarray]) -> Varying:
    """With a constant first: the intercept."""
    return Varying(X, y, np.column_stack([np.ones(len(y)), *covariates.values()]), ["1", *covariates])


def _numbers(name: str, drop: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    return {key: np.array(values, float) for key, values in _read(name).items() if key not in drop}


def _beside(table: dict[str, np.ndarray], *names: str) -> np.ndarray:
    return np.column_stack([table[name] for name in names])


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
