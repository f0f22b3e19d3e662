"""Data sets that are a table of numbers and one target."""

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
    """A table of numbers and its target.

    Attributes
    ----------
    X : ndarray of shape (n, p)
        The features.
    y : ndarray of shape (n,)
        The target.
    feature_names : list of str
        The names of the columns of X.

    Examples
    --------
    >>> from gpx_scale.datasets import load_diabetes
    >>> X, y, names = load_diabetes()
    >>> X.shape, y.shape, len(names)
    ((442, 10), (442,), 10)
    """

    X: np.ndarray
    y: np.ndarray
    feature_names: list[str]


def load_digits() -> Dataset:
    """Return handwritten digits with the target of the paper: -1 for 0 to 4, +1 for 5 to 9.

    The images of 8 x 8 pixels come with scikit-learn.

    Returns
    -------
    Dataset
        X of shape (1797, 64), the pixels from 0 (paper) to 16 (ink).

    Examples
    --------
    >>> from gpx_scale.datasets import load_digits
    >>> data = load_digits()
    >>> data.X.shape, sorted(set(data.y.tolist()))
    ((1797, 64), [-1.0, 1.0])
    """
    bunch = _sklearn_digits()
    names = [f"row {i}, column {j}" for i in range(8) for j in range(8)]
    return Dataset(bunch.data, np.where(bunch.target < 5, -1.0, 1.0), names)


def digit_classes() -> np.ndarray:
    """Return which digit each image of `load_digits` shows.

    Returns
    -------
    ndarray of shape (1797,)
        A digit from 0 to 9 for each image.

    Examples
    --------
    >>> from gpx_scale.datasets import digit_classes
    >>> digit_classes()[:3].tolist()
    [0, 1, 2]
    """
    classes: np.ndarray = _sklearn_digits().target
    return classes


def load_diabetes() -> Dataset:
    """Return the progression of diabetes in 442 patients, a year after ten measurements.

    The data come with scikit-learn, and are in the units of the measurements.

    Returns
    -------
    Dataset
        X of shape (442, 10).

    Examples
    --------
    >>> from gpx_scale.datasets import load_diabetes
    >>> data = load_diabetes()
    >>> data.X.shape, data.feature_names[:3]
    ((442, 10), ['age', 'sex', 'bmi'])
    """
    bunch = _sklearn_diabetes(scaled=False)
    return Dataset(bunch.data, bunch.target, list(bunch.feature_names))


def load_abalone(progress: bool | None = None) -> Dataset:
    """Return the numbers of rings, which give the age, of abalones.

    The sex is encoded by three columns of 0 and 1.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    Dataset
        X of shape (4177, 10).

    Examples
    --------
    >>> from gpx_scale.datasets import load_abalone
    >>> load_abalone().X.shape  # doctest: +SKIP
    (4177, 10)
    """
    return _dataset("abalone.csv", target="rings", categories=("sex",), progress=progress)


def load_boston(progress: bool | None = None) -> Dataset:
    """Return the median house values of the census tracts of Boston.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    Dataset
        X of shape (506, 13).

    Examples
    --------
    >>> from gpx_scale.datasets import load_boston
    >>> load_boston().X.shape  # doctest: +SKIP
    (506, 13)
    """
    return _dataset("boston_housing.csv", target="MEDV", progress=progress)


def load_california() -> Dataset:
    """Return the median house values of Californian block groups, in 100,000 USD.

    Latitude and longitude are among the features. The file is read from the folder that
    GPX_SCALE_DATA names. If it is not there, scikit-learn downloads it and keeps it in its own
    folder.

    Returns
    -------
    Dataset
        X of shape (20640, 8).

    Raises
    ------
    DataUnavailable
        If the data are not in the folder and cannot be downloaded.

    Examples
    --------
    >>> from gpx_scale.datasets import load_california
    >>> load_california().X.shape  # doctest: +SKIP
    (20640, 8)
    """
    if in_folder(CALIFORNIA):
        return _dataset(CALIFORNIA, target="MedHouseVal")
    try:
        bunch = fetch_california_housing()
    except OSError as error:
        files = (f"{CALIFORNIA} (its features by scikit-learn's names, and MedHouseVal)",)
        raise unavailable(
            "California", files, "the address that scikit-learn has", reason(error)
        ) from error
    return Dataset(bunch.data, bunch.target, list(bunch.feature_names))


def load_fish(progress: bool | None = None) -> Dataset:
    """Return the toxicity of chemicals to fish (LC50), by six molecular descriptors.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    Dataset
        X of shape (908, 6).

    Examples
    --------
    >>> from gpx_scale.datasets import load_fish
    >>> load_fish().X.shape  # doctest: +SKIP
    (908, 6)
    """
    return _dataset("qsar_fish_toxicity.csv", target="LC50", progress=progress)


def load_kin40k() -> Dataset:
    """Return the forward kinematics of a robot arm with eight joints.

    The file kin40k.csv.gz is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    Dataset
        X of shape (40000, 8).

    Examples
    --------
    >>> from gpx_scale.datasets import load_kin40k
    >>> load_kin40k().X.shape  # doctest: +SKIP
    (40000, 8)
    """
    return _dataset("kin40k.csv.gz", target="y")


def load_protein() -> Dataset:
    """Return the size of the residue (RMSD) of protein decoys of CASP.

    The file protein_casp.csv.gz is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    Dataset
        X of shape (45730, 9).

    Examples
    --------
    >>> from gpx_scale.datasets import load_protein
    >>> load_protein().X.shape  # doctest: +SKIP
    (45730, 9)
    """
    return _dataset("protein_casp.csv.gz", target="RMSD")


def load_wine(progress: bool | None = None) -> Dataset:
    """Return the quality of red and white wines, by eleven measurements.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    Dataset
        X of shape (6497, 11), first the red and then the white wines.

    Examples
    --------
    >>> from gpx_scale.datasets import load_wine
    >>> load_wine().X.shape  # doctest: +SKIP
    (6497, 11)
    """
    return _dataset("wine_quality.csv", target="quality", drop=("color",), progress=progress)


def _dataset(
    file: str,
    target: str,
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    progress: bool | None = None,
) -> Dataset:
    """Return the columns of a file as numbers; a category becomes a column of 0 and 1 per value."""
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
        raise InputError(
            f"{file} has no column except {target!r}, so there is nothing to predict it by. "
            "Give the file with its features."
        )
    return Dataset(np.column_stack(list(columns.values())), y, list(columns))
