"""Parsers of the files of publishers.

Each function returns the table in a file; a file in another format is a ValueError.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from pathlib import PurePosixPath
from typing import IO

from .csv_table import Table, table_of
from .download import MAX_BYTES

ABALONE = (
    "sex",
    "length",
    "diameter",
    "height",
    "whole_weight",
    "shucked_weight",
    "viscera_weight",
    "shell_weight",
    "rings",
)
BOSTON = (
    "CRIM",
    "ZN",
    "INDUS",
    "CHAS",
    "NOX",
    "RM",
    "AGE",
    "DIS",
    "RAD",
    "TAX",
    "PTRATIO",
    "B",
    "LSTAT",
    "MEDV",
)
FISH = ("CIC0", "SM1_Dz", "GATS1i", "NdsCH", "NdssC", "MLOGP", "LC50")
REVIEW = ("lan", "timespan", "confidence", "orientation", "evaluation", "remarks", "text")


def abalone(stream: IO[bytes]) -> Table:
    """Return the table in abalone.data, which has commas and no header."""
    return table_of(ABALONE, csv.reader(_member(stream, "abalone.data").splitlines()))


def boston(stream: IO[bytes]) -> Table:
    """Return the table of Boston.

    The file has 22 lines about the data, then every record of 14 numbers on two lines.
    """
    cells = " ".join(stream.read().decode("latin-1").splitlines()[22:]).split()
    width = len(BOSTON)
    return table_of(BOSTON, [cells[k : k + width] for k in range(0, len(cells), width)])


def fish(stream: IO[bytes]) -> Table:
    """Return the table in qsar_fish_toxicity.csv, which has semicolons and no header."""
    return table_of(
        FISH, csv.reader(_member(stream, "qsar_fish_toxicity.csv").splitlines(), delimiter=";")
    )


def wine(stream: IO[bytes]) -> Table:
    """Return the rows of winequality-red.csv and then those of winequality-white.csv.

    Both have semicolons and a header.
    """
    names: list[str] = []
    rows: list[list[str]] = []
    for color in ("red", "white"):
        header, *records = csv.reader(
            _member(stream, f"winequality-{color}.csv").splitlines(), delimiter=";"
        )
        here = [name.strip().replace(" ", "_") for name in header]
        if names and here != names:
            raise ValueError(f"red wines have the columns {names}, white ones {here}")
        names = here
        rows += [[*record, color] for record in records if record]
    return table_of([*names, "color"], rows)


def paper(stream: IO[bytes]) -> Table:
    """Return the reviews in reviews.json; a null is an empty cell.

    {"paper": [{"id", "preliminary_decision", "review": [{"id", "text", "evaluation", ...}]}]}
    """
    rows = [
        [
            k,
            of["id"],
            of["preliminary_decision"],
            review["id"],
            *(review.get(name) for name in REVIEW),
        ]
        for k, of in enumerate(json.loads(_member(stream, "reviews.json"))["paper"])
        for review in of["review"]
    ]
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    return table_of(["paper_idx", "paper_id", "preliminary_decision", "review_id", *REVIEW], cells)


def arff(stream: IO[bytes]) -> Table:
    """Return the table in a dense ARFF file: @attribute lines, then the rows after @data."""
    names = []
    lines = iter(stream.read().decode("utf-8").splitlines())
    for line in lines:
        if attribute := re.match(
            r"""@attribute\s+('[^']*'|"[^"]*"|\S+)""", line.strip(), re.IGNORECASE
        ):
            names.append(attribute[1].strip("'\""))
        elif line.strip().lower() == "@data":
            break
    rows = (line for line in lines if line.strip() and not line.startswith("%"))
    return table_of(names, csv.reader(rows, quotechar="'", skipinitialspace=True))


def _member(stream: IO[bytes], name: str) -> str:
    """Return the text of a member of a zip archive, in any folder of it.

    Nothing is unpacked to the disk.
    """
    with zipfile.ZipFile(stream) as archive:
        named = [info for info in archive.infolist() if PurePosixPath(info.filename).name == name]
        if not named:
            raise ValueError(
                f"the archive has no {name!r}; it has {', '.join(archive.namelist()) or 'nothing'}"
            )
        with archive.open(named[0]) as member:
            data = member.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name!r} is longer than {MAX_BYTES:,} bytes")
    return data.decode("utf-8-sig")
