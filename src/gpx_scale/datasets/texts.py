"""Data sets that are documents and one target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from .csv_table import Table, column, numbers, read_table
from .sources import DataUnavailable, data_folder, load_table

DRUG_FILES = ("drugLibTrain_raw.tsv", "drugLibTest_raw.tsv")
DRUG_HOME = "https://archive.ics.uci.edu/dataset/461"


class TextDataset(NamedTuple):
    """Documents and their target.

    Attributes
    ----------
    texts : list of str
        The n documents.
    y : ndarray of shape (n,)
        The target.
    min_count : int
        The number of documents that must contain a word for it to be a feature. This is the
        argument of `bag_of_words`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.datasets import TextDataset, bag_of_words
    >>> data = TextDataset(["good film", "bad film"], np.array([1.0, -1.0]))
    >>> bag_of_words(data.min_count).fit(data.texts).get_feature_names_out().tolist()
    ['film']
    """

    texts: list[str]
    y: np.ndarray
    min_count: int = 2


def load_paper(progress: bool | None = None) -> TextDataset:
    """Return reviews of papers, mainly in Spanish, and their scores from -2 to 2.

    Reviews without a text are left out. The paper takes words that are in at least two reviews as
    features, and has d = 2,990. By `bag_of_words`, 3,085 words are in at least two of these texts.

    Parameters
    ----------
    progress : bool, optional
        Whether a download is shown on stderr; by default if that is a terminal.

    Returns
    -------
    TextDataset
        The 399 reviews.

    Examples
    --------
    >>> from gpx_scale.datasets import load_paper
    >>> len(load_paper().texts)  # doctest: +SKIP
    399
    """
    return _texts(load_table("paper_reviews.csv", progress), target="evaluation", min_count=2)


def load_drug(path: Any = None, columns: str | Sequence[str] = ("commentsReview",)) -> TextDataset:
    """Return reviews of drugs and their ratings from 1 to 10.

    The files of Druglib.com (UCI 461) may not be redistributed, so they are read from your
    disk. The paper has n = 3,989 reviews and, with words that are in at least five of them, d =
    2,429; it does not state which of the columns it read.

    Parameters
    ----------
    path : str or path, optional
        The file drugLibTrain_raw.tsv or drugLibTest_raw.tsv, or a folder with both, which are read
        in this order; by default the folder that GPX_SCALE_DATA names.
    columns : str or sequence of str, default=("commentsReview",)
        The columns that are joined to the text of a review. The files also have benefitsReview and
        sideEffectsReview. Reviews without any text are left out.

    Returns
    -------
    TextDataset
        The reviews.

    Raises
    ------
    DataUnavailable
        If the files are not there.
    InputError
        If a file does not have the columns.

    Examples
    --------
    >>> from gpx_scale.datasets import load_drug
    >>> load_drug("folder/with/both/files").min_count  # doctest: +SKIP
    5
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise InputError(
            "columns=() leaves no text. Name columns of the file, such as 'commentsReview'."
        )
    texts: list[str] = []
    ratings: list[str] = []
    for file in _drug_files(path):
        table = read_table(file, delimiter="\t")
        if missing := [name for name in (*names, "rating") if name not in table]:
            raise InputError(
                f"{str(file)!r} has no column {', '.join(missing)}. "
                f"It has {', '.join(filter(None, table))}."
            )
        rows = zip(*(table[name] for name in names), strict=True)
        texts += [" ".join(filter(None, map(str.strip, row))) for row in rows]
        ratings += table["rating"]
    return _texts({"text": tuple(texts), "rating": tuple(ratings)}, target="rating", min_count=5)


def load_vader() -> TextDataset:
    """Return short texts and the means of their ratings, from -4 to 4.

    The texts are of film and product reviews, editorials and tweets. The file
    vader_snippets_text.csv.gz is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    TextDataset
        The 23,703 texts.

    Examples
    --------
    >>> from gpx_scale.datasets import load_vader
    >>> len(load_vader().texts)  # doctest: +SKIP
    23703
    """
    return _texts(load_table("vader_snippets_text.csv.gz"), target="rating")


def load_imdb() -> TextDataset:
    """Return film reviews and their ratings, from 1 to 4 or from 7 to 10.

    The file imdb_reviews.csv.gz is read from the folder that GPX_SCALE_DATA names.

    Returns
    -------
    TextDataset
        The 50,000 reviews.

    Examples
    --------
    >>> from gpx_scale.datasets import load_imdb
    >>> len(load_imdb().texts)  # doctest: +SKIP
    50000
    """
    found = _texts(load_table("imdb_reviews.csv.gz"), target="rating")
    return found._replace(texts=[text.replace("<br />", " ") for text in found.texts])


def _texts(table: Table, target: str, min_count: int = 2) -> TextDataset:
    """Return those rows of a table that have a text."""
    has_text = [bool(text.strip()) for text in column(table, "text")]
    kept = {name: tuple(compress(column(table, name), has_text)) for name in ("text", target)}
    return TextDataset(list(kept["text"]), numbers(kept, target), min_count)


def _drug_files(path: Any) -> list[Path]:
    """Return the given file, or both files of the given folder or of that of GPX_SCALE_DATA."""
    home = data_folder() if path is None else Path(os.path.expanduser(os.fspath(path)))
    if path is not None and home is not None and home.is_file():
        return [home]
    files = [] if home is None else [home / name for name in DRUG_FILES]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        what = "GPX_SCALE_DATA is not set"
        if home is not None:
            what = (
                f"{str(home)!r} has no {' and no '.join(missing)}"
                if home.is_dir()
                else f"there is no {str(home)!r}"
            )
        raise DataUnavailable(
            "The data set Drug may not be redistributed, so it is read from files of your own, and "
            f"{what}. Get {' and '.join(DRUG_FILES)} from {DRUG_HOME} and put them into the folder "
            "that GPX_SCALE_DATA names, or give a folder or a file as path=."
        )
    return files
