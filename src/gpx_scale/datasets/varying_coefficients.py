"""Data whose coefficients vary over a place or in time."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np

from .csv_table import Table, column, numbers
from .sources import KING_COUNTY, load_table


class Varying(NamedTuple):
    """Where (or when) X (n, p), covariates Z (n, d) with their names, y (n,), and the true weights (n, d) where known."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    feature_names: list[str]
    weights: np.ndarray | None = None


def load_georgia() -> Varying:
    """Share of residents with a bachelor's degree in the counties of Georgia, in per cent, on the shares of the foreign-born,
    of black and of rural residents, as mgwr's tutorials have it; X: east and north in metres;  159, Z of 4."""
    table = load_table("gwr/georgia.csv")
    covariates = {name: numbers(table, name) for name in ("PctFB", "PctBlack", "PctRural")}
    return _varying(_places(table), numbers(table, "PctBach"), covariates)


def load_berlin() -> Varying:
    """Log of the price of a night (EUR) in flats of Prenzlauer Berg on the review score (to 100), guests and bathrooms, as
    mgwr's tutorials have it; X: Web Mercator, whose metres are 1.64 to a true one at that latitude;  2203, Z of 4."""
    table = load_table("gwr/berlin_airbnb_prenzlauer.csv")
    columns = {"review score": "review_sco", "guests": "accommodat", "bathrooms": "bathrooms"}
    covariates = {name: numbers(table, column) for name, column in columns.items()}
    return _varying(_places(table), np.log(numbers(table, "price")), covariates)


def load_king_county(progress: bool | None = None) -> Varying:
    """Log of the price (USD) of houses sold in King County in 2014-15, on their size, quality and age; X: kilometres east and
    north of the county's mean place, by a cylinder at its latitude;  21,613, Z of 8."""
    cells = load_table("kc_house_data.csv.gz", progress)
    table = {name: numbers(cells, name) for name in KING_COUNTY}
    lat, long = table["lat"], table["long"]
    degree = 2 * np.pi * 6371.0 / 360  # km of latitude
    X = degree * np.column_stack(
        [(long - long.mean()) * np.cos(np.radians(lat.mean())), lat - lat.mean()]
    )
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
    table = load_table("bike_hour.csv.gz")
    number = {
        key: numbers(table, key)
        for key in ("hr", "workingday", "weathersit", "temp", "hum", "windspeed", "cnt")
    }
    start = date(2011, 1, 1)
    days = np.array(
        [(date.fromisoformat(day) - start).days for day in column(table, "dteday")], float
    )
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
    covariates |= harmonics | {
        f"{name}, working day": wave * working for name, wave in harmonics.items()
    }
    return _varying((days + hour / 24)[:, None], np.log1p(number["cnt"]), covariates)


def _varying(X: np.ndarray, y: np.ndarray, covariates: dict[str, np.ndarray]) -> Varying:
    """With a constant first: the intercept."""
    return Varying(
        X, y, np.column_stack([np.ones(len(y)), *covariates.values()]), ["1", *covariates]
    )


def _places(table: Table) -> np.ndarray:
    return np.column_stack([numbers(table, "X"), numbers(table, "Y")])
