"""Where a table comes from: the folder that GPX_SCALE_DATA names, the cache, or its publisher.

The cache is the folder that GPX_SCALE_CACHE names, or else `gpx_scale` in $XDG_CACHE_HOME or
~/.cache. The tables that a publisher sends, and those in the cache, must have a known digest.
It is a digest of the content of the columns that a loader reads (`csv_table.content_digest`),
and not of the publisher's archive: an archive that was packed again passes, other numbers do
not. A file in the user's own folder is read without a comparison.
"""

from __future__ import annotations

import csv
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import InputError
from ..runtime.files import atomic_write, writable
from . import formats
from .csv_table import Table, content_digest, read_table, write_table
from .download import at_mirror, fetch, reason

UCI = "https://archive.ics.uci.edu/static/public"
WINE = (
    "fixed_acidity",
    "volatile_acidity",
    "citric_acid",
    "residual_sugar",
    "chlorides",
    "free_sulfur_dioxide",
    "total_sulfur_dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
    "quality",
)
KING_COUNTY = (
    "price",
    "lat",
    "long",
    "sqft_living",
    "sqft_lot",
    "grade",
    "condition",
    "view",
    "waterfront",
    "yr_built",
)


class DataUnavailable(InputError):
    """Raised if a data set cannot be found or downloaded, or if its file is not as expected."""


@dataclass(frozen=True)
class Source:
    """The file of a publisher.

    `read` makes a table of the bytes at `url`; `sha256` is the digest of its `columns`.
    """

    title: str
    url: str
    read: Callable[[IO[bytes]], Table]
    columns: tuple[str, ...]
    sha256: str

    @property
    def archive(self) -> str:
        """Return the name of the publisher's file."""
        return self.url.rpartition("/")[2]


SOURCES = {
    "abalone.csv": Source(
        "Abalone",
        f"{UCI}/1/abalone.zip",
        formats.abalone,
        formats.ABALONE,
        "f23c6652c304b611bcf9f507ceb2aa39213282205015c30deb88ea1fad7b440f",
    ),
    "boston_housing.csv": Source(
        "Boston",
        "http://lib.stat.cmu.edu/datasets/boston",
        formats.boston,
        formats.BOSTON,
        "150ec3098e0ee2caf713c9724302776a89a6b9ba087739f5411850b4857ed5a7",
    ),
    "qsar_fish_toxicity.csv": Source(
        "Fish",
        f"{UCI}/504/qsar+fish+toxicity.zip",
        formats.fish,
        formats.FISH,
        "dbf83e39253482936fa031b4b0125b198b678f5eb55adabb5d9d85d38fdbbe73",
    ),
    "wine_quality.csv": Source(
        "Wine",
        f"{UCI}/186/wine+quality.zip",
        formats.wine,
        WINE,
        "3c2758c995c997a409d68b6d6092c01bf7dd9bc0a7206bde9b7f1aa07294a5b4",
    ),
    "paper_reviews.csv": Source(
        "Paper",
        f"{UCI}/410/paper+reviews.zip",
        formats.paper,
        ("evaluation", "text"),
        "71e4d67c24ab4de8cc53fe9aec2fb2b2eb30c5bd451a91ee10630d3e26abff19",
    ),
    "kc_house_data.csv.gz": Source(
        "King County",
        # This is the data set 42092 of OpenML.
        "https://www.openml.org/data/v1/download/21578898/house_sales.arff",
        formats.arff,
        KING_COUNTY,
        "787b0af64d27f0e85c4e492225f8359fcd41ce68abbc14d1bdf3e755b1410571",
    ),
}


def load_table(file: str, progress: bool | None = None) -> Table:
    """Return the columns of `file` from the user's folder, from the cache or from its publisher.

    In the user's folder, the file of the publisher is accepted as well.
    """
    if path := in_folder(file):
        return read_table(path)
    source = SOURCES.get(file)
    if source is None:
        raise DataUnavailable(
            f"{file} cannot be downloaded. Put it into a folder and set GPX_SCALE_DATA to that "
            f"folder ({_folder_now()})."
        )
    if path := in_folder(source.archive):
        with open(path, "rb") as stream:
            return _parsed(source, stream, repr(str(path)))
    cached = cache_folder() / file
    return (
        _from_cache(source, cached) if cached.is_file() else _downloaded(source, cached, progress)
    )


def in_folder(file: str) -> Path | None:
    """Return the path of a file in the user's own folder; None if it is not there."""
    folder = data_folder()
    return path if folder is not None and (path := folder / file).is_file() else None


def data_folder() -> Path | None:
    """Return the folder that GPX_SCALE_DATA names; None if that is not set."""
    folder = os.environ.get("GPX_SCALE_DATA")
    return Path(os.path.expanduser(folder)) if folder else None


def cache_folder() -> Path:
    """Return the folder of the cache."""
    if own := os.environ.get("GPX_SCALE_CACHE"):
        return Path(os.path.expanduser(own))
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return Path(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")) / "gpx_scale"


def unavailable(title: str, files: tuple[str, ...], where: str, why: str) -> DataUnavailable:
    """Return the error of a failed download.

    Its message names `files`; the user can put any one of them into a folder instead.
    """
    folder = data_folder()
    into = f"{str(folder)!r}" if folder is not None and folder.is_dir() else "a folder"
    return DataUnavailable(
        f"{title} could not be downloaded from {where}: {why}. Alternatively, put "
        f"{' or '.join(files)} into {into} and set GPX_SCALE_DATA to it ({_folder_now()})."
    )


def _folder_now() -> str:
    """Return the state of GPX_SCALE_DATA in words, for messages."""
    folder = data_folder()
    if folder is None:
        return "it is not set"
    return f"it is {str(folder)!r}" + ("" if folder.is_dir() else ", which is no folder")


def _from_cache(source: Source, path: Path) -> Table:
    """Return the table in the cache; a damaged file is removed, and is an error."""
    try:
        table = read_table(path)
        found = _digest(source, table)
    except InputError as error:
        raise DataUnavailable(f"{error} {_removed(path)}") from error
    if found != source.sha256:
        raise _mismatch(source, repr(str(path)), found, _removed(path))
    return table


def _removed(path: Path) -> str:
    """Remove a damaged file from the cache, which only this package writes to; say what to do."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"Remove it to have it downloaded again ({error.strerror})."
    return "It was removed from the cache. Call again to download it."


def _downloaded(source: Source, cached: Path, progress: bool | None) -> Table:
    """Return the table that the publisher sends, and keep it in the cache."""
    url = at_mirror(source.url)
    _made_writable(cached)
    with tempfile.TemporaryFile() as stream:
        try:
            fetch(url, stream, source.title, progress)
        except OSError as error:
            files = (
                f"{cached.name} (from the cache of another machine)",
                f"{source.archive} (the file at that address)",
            )
            raise unavailable(source.title, files, url, reason(error)) from error
        table = _parsed(source, stream, url)
    found = _digest(source, table)
    if found != source.sha256:
        raise _mismatch(
            source,
            url,
            found,
            f"To use it all the same, put {source.archive} into the folder of GPX_SCALE_DATA.",
        )
    with atomic_write(cached) as beside:
        write_table(beside, table)
    return table


def _made_writable(cached: Path) -> None:
    """Check before a download that it can be kept.

    Otherwise it would be downloaded at every call.
    """
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        writable(cached)
    except (OSError, InputError) as error:
        raise DataUnavailable(
            f"Downloads are kept in {str(cached.parent)!r}, which cannot be written ({error}). Set "
            "GPX_SCALE_CACHE to a folder that can be written."
        ) from error


# A file in another format raises these errors.
OTHER_FORMAT = (ValueError, LookupError, TypeError, AttributeError, csv.Error)
# A file that is damaged, encrypted or packed in an unknown way raises these errors.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)


def _parsed(source: Source, stream: IO[bytes], where: str) -> Table:
    """Return the table in the publisher's file; any error in it is a DataUnavailable."""
    try:
        return source.read(stream)
    except (*OTHER_FORMAT, *DAMAGED) as error:
        what = str(error) or type(error).__name__
        raise DataUnavailable(
            f"{where} is not the expected file of {source.title}, or is damaged: {what}. Put "
            f"another copy of {source.archive} into the folder of GPX_SCALE_DATA."
        ) from error


def _digest(source: Source, table: Table) -> str:
    """Return the digest of the columns that count."""
    if missing := [name for name in source.columns if name not in table]:
        raise DataUnavailable(
            f"The table of {source.title} has no column {', '.join(missing)}. "
            f"It has {', '.join(table)}. Put a file with all columns into the folder of "
            "GPX_SCALE_DATA."
        )
    return content_digest(table, source.columns)


def _mismatch(source: Source, where: str, found: str, what_to_do: str) -> DataUnavailable:
    """Return the error of a table with another digest."""
    return DataUnavailable(
        f"{where} does not have the expected content of {source.title}: its sha256 is {found} and "
        f"not {source.sha256}. {what_to_do}"
    )
