"""Documents and one target."""

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
    """Documents, y (n,), and in how many of them a word must be to count (for `bag_of_words`)."""

    texts: list[str]
    y: np.ndarray
    min_count: int = 2


def load_paper(progress: bool | None = None) -> TextDataset:
    """Reviews of papers, mainly Spanish, and their scores from -2 to 2; those with a text. The paper's cut-off of 2 leaves it
    d = 2,990 words; 3,085 are in two or more of these texts by `bag_of_words`;  399."""
    return _texts(load_table("paper_reviews.csv", progress), target="evaluation", min_count=2)


def load_drug(path: Any = None, columns: str | Sequence[str] = ("commentsReview",)) -> TextDataset:
    """Reviews of drugs and their ratings, 1 to 10, from the files of Druglib.com (UCI 461), which may not be redistributed.

    path : drugLibTrain_raw.tsv or drugLibTest_raw.tsv, or a folder with both, read in this order; by default the folder of
        GPX_SCALE_DATA.

    columns : joined to a review's text; reviews without any are dropped. Others are benefitsReview and sideEffectsReview.

    The paper has n = 3,989 and, by a cut-off of 5, d = 2,429; which of the columns it read is not stated.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise InputError(
            "columns=() leaves no text: name one of the file's, such as 'commentsReview'"
        )
    texts: list[str] = []
    ratings: list[str] = []
    for file in _drug_files(path):
        table = read_table(file, delimiter="\t")
        if missing := [name for name in (*names, "rating") if name not in table]:
            raise InputError(
                f"{str(file)!r} has no column {', '.join(missing)}; it has {', '.join(filter(None, table))}"
            )
        rows = zip(*(table[name] for name in names), strict=True)
        texts += [" ".join(filter(None, map(str.strip, row))) for row in rows]
        ratings += table["rating"]
    return _texts({"text": tuple(texts), "rating": tuple(ratings)}, target="rating", min_count=5)


def load_vader() -> TextDataset:
    """Short texts (film and product reviews, editorials, tweets) and their mean ratings from -4 to 4, from the folder of
    GPX_SCALE_DATA;  23,703."""
    return _texts(load_table("vader_snippets_text.csv.gz"), target="rating")


def load_imdb() -> TextDataset:
    """Film reviews and their ratings, 1 to 4 or 7 to 10, from the folder of GPX_SCALE_DATA;  50,000."""
    found = _texts(load_table("imdb_reviews.csv.gz"), target="rating")
    return found._replace(texts=[text.replace("<br />", " ") for text in found.texts])


def _texts(table: Table, target: str, min_count: int = 2) -> TextDataset:
    """Those that have a text."""
    has_text = [bool(text.strip()) for text in column(table, "text")]
    kept = {name: tuple(compress(column(table, name), has_text)) for name in ("text", target)}
    return TextDataset(list(kept["text"]), numbers(kept, target), min_count)


def _drug_files(path: Any) -> list[Path]:
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
            f"Drug may not be redistributed: it is read from files of your own, and {what}. Get {' and '.join(DRUG_FILES)} "
            f"from {DRUG_HOME} and put them into the folder that GPX_SCALE_DATA names, or give a folder or a file as path="
        )
    return files
