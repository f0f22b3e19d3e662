"""Data sets whose coefficients vary over space or time."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np

from .csv_table import Table, column, numbers
from .sources import KING_COUNTY, load_table

# The mean radius of the Earth.
EARTH_RADIUS_KM = 6371.0


class Varying(NamedTuple):
    """Data whose weights vary with a place or a time.

    Attributes
    ----------
    X : ndarray of shape (n, p)
        The places or times.
    y : ndarray of shape (n,)
        The target.
    Z : ndarray of shape (n, d)
        The covariates, of which the first is the constant 1.
    feature_names : list of str
        The names of the columns of Z.
    weights : ndarray of shape (n, d), optional
        The true weights of synthetic data; otherwise None.

    Examples
    --------
    >>> from gpx_scale.datasets import synth2
    >>> data = synth2(100)
    >>> data.X.shape, data.Z.shape, data.feature_names
    ((100, 2), (100, 5), ['1', 'z1', 'z2', 'z3', 'z4'])
    """

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    feature_names: list[str]
    weights: np.ndarray | None = None


def load_georgia() -> Varying:
    """Return the percentage of residents with a bachelor's degree in the counties of Georgia.

    The covariates are the shares of the foreign-born, of black and of rural residents, as in mgwr's
    tutorials. The file gwr/georgia.csv is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    Varying
        X of shape (159, 2), metres to the east and to the north; Z of shape (159, 4).

    Examples
    --------
    >>> from gpx_scale.datasets import load_georgia
    >>> load_georgia().Z.shape  # doctest: +SKIP
    (159, 4)
    """
    table = load_table("gwr/georgia.csv")
    covariates = {name: numbers(table, name) for name in ("PctFB", "PctBlack", "PctRural")}
    return _varying(_places(table), numbers(table, "PctBach"), covariates)


def load_berlin() -> Varying:
    """Return the logarithm of the price per night (EUR) of flats in Prenzlauer Berg, Berlin.

    The covariates are the review score (up to 100) and the numbers of guests and bathrooms, as in
    mgwr's tutorials. The file gwr/berlin_airbnb_prenzlauer.csv is read from the folder that
    GPX_SCALE_DATA names.

    Returns
    -------
    Varying
        X of shape (2203, 2) in the Web Mercator projection, which has 1.64 metres per true metre at
        that latitude; Z of shape (2203, 4).

    Examples
    --------
    >>> from gpx_scale.datasets import load_berlin
    >>> load_berlin().Z.shape  # doctest: +SKIP
    (2203, 4)
    """
    table = load_table("gwr/berlin_airbnb_prenzlauer.csv")
    columns = {"review score": "review_sco", "guests": "accommodat", "bathrooms": "bathrooms"}
    covariates = {name: numbers(table, column) for name, column in columns.items()}
    return _varying(_places(table), np.log(numbers(table, "price")), covariates)


def load_king_county(progress: bool | None = None) -> Varying:
    """Return the logarithm of the price (USD) of houses sold in King County in 2014 and 2015.

    The covariates are size, quality and age of the houses.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    Varying
        X of shape (21613, 2), kilometres to the east and to the north of the mean place, by a
        cylindrical projection at its latitude; Z of shape (21613, 8).

    Examples
    --------
    >>> from gpx_scale.datasets import load_king_county
    >>> load_king_county().Z.shape  # doctest: +SKIP
    (21613, 8)
    """
    cells = load_table("kc_house_data.csv.gz", progress)
    table = {name: numbers(cells, name) for name in KING_COUNTY}
    lat, long = table["lat"], table["long"]
    degree_km = 2 * np.pi * EARTH_RADIUS_KM / 360
    X = degree_km * np.column_stack(
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
    """Return the logarithm of 1 + the hourly rentals of a bicycle scheme in Washington.

    The covariates are the weather, the working day and the hour. The target is a logarithm because
    weather and hours act by factors; 1 is added for hours with a single rental. The hour is three
    harmonics, and three more on working days, because leisure does not have their two peaks.
    Temperature (Celsius), humidity (%) and wind (km/h) are converted back from the scaling of the
    file. The file bike_hour.csv.gz is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    Varying
        X of shape (17379, 1), days since the start of 2011; Z of shape (17379, 18).

    Examples
    --------
    >>> from gpx_scale.datasets import load_bike
    >>> load_bike().Z.shape  # doctest: +SKIP
    (17379, 18)
    """
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
    """Return the data with a constant, for the intercept, before the covariates."""
    return Varying(
        X, y, np.column_stack([np.ones(len(y)), *covariates.values()]), ["1", *covariates]
    )


def _places(table: Table) -> np.ndarray:
    """Return the coordinates X and Y of a table;  (n, 2)."""
    return np.column_stack([numbers(table, "X"), numbers(table, "Y")])
