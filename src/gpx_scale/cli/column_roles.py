"""The roles of the columns of a table: which become x and z, and which a fitted model needs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from ..data.table_files import PLAIN, TextFormat, header_of, listed, must_have
from ..errors import InputError
from .tables import DATE, MAX_CATEGORY_LEVELS, NUMBER, Column, Table, looks_like, read_table

# A column of texts is a category if it has at most this many different values. With more of them it
# is one if they are at most a tenth of the rows and at most MAX_CATEGORY_LEVELS.
FEW_CATEGORY_LEVELS = 50
# The kernel sees a text as a vector of at most this many dimensions.
MAX_TEXT_DIMENSIONS = 100
# With so many columns, a fit of 50 rows takes 10 s. The time of the transformers grows with the
# square of the number of columns, and is minutes for 200,000.
MAX_COLUMNS = 20_000
# The words of a table that is read in chunks, and its transformers, are taken from this many rows.
MAX_SUBSET_ROWS = 50_000


@dataclass(frozen=True)
class ColumnRoles:
    """The columns that a user has named.

    The kernel sees the columns `x`, and the columns `z` explain. By default both are all
    columns; if only `x` is given, `z` are the others; if only `z` is given, `x` are all.
    Instead of x and z there may be `text`, a column of documents. Columns in `drop` are left
    out.
    """

    target: str | None = None
    x: tuple[str, ...] = ()
    z: tuple[str, ...] = ()
    text: str | None = None
    drop: tuple[str, ...] = ()

    def among(self, names: list[str], file: str) -> ColumnRoles:
        """Return these roles with every column named, for a file with the columns `names`."""
        target, text = self.target, self.text
        x, z, drop = (tuple(dict.fromkeys(some)) for some in (self.x, self.z, self.drop))
        used = [name for name in (*x, *z, text, target) if name is not None]
        must_have([*used, *drop], names, file)
        if target is not None and target in (*x, *z, text):
            raise InputError(
                f"{target!r} is the target, which cannot explain itself. Leave it out of x and z."
            )
        if both := [name for name in drop if name in used]:
            raise InputError(
                f"{listed(both)} is both asked for and left out. Name it in one option only."
            )
        dropped = {target, *drop}
        some = tuple(name for name in names if name not in dropped)
        if text is None:
            z = z or (tuple(name for name in some if name not in x) if x else some)
            if not some or not z:
                raise InputError(
                    f"{file} has no columns to explain by. It has {listed(names)}. Leave fewer out."
                )
            x = x or some
        return ColumnRoles(target, x, z, text, drop)

    @property
    def wanted(self) -> list[str]:
        """Return the columns that x and z are made of."""
        return [*dict.fromkeys([*self.x, *self.z] if self.text is None else [self.text])]


@dataclass(frozen=True)
class TabularData:
    """A table to learn from.

    `features` are the columns that the transformers make x and z of.
    """

    table: Table
    target: str | None
    features: list[str]
    transformers: dict[str, Any]

    @classmethod
    def of(
        cls,
        path: Any,
        roles: ColumnRoles,
        text_format: TextFormat = PLAIN,
        hold: int | None = None,
    ) -> TabularData:
        """Return the table in a file; one of more than `hold` rows is not kept in memory."""
        roles = roles.among(header_of(path, text_format), Path(path).name)
        if len(roles.wanted) > MAX_COLUMNS:
            raise InputError(
                f"{Path(path).name} has {len(roles.wanted):,} columns to learn from, and the "
                f"command line takes at most {MAX_COLUMNS:,}. Choose some with --x and --z, "
                "leave others out with --drop, or give the numbers as an array to GPXRegressor "
                "in Python, which has no such limit."
            )
        kinds = {
            name: kind
            for name, kind in ((roles.target, "number"), (roles.text, "text"))
            if name is not None
        }
        table = read_table(
            path,
            [*roles.wanted, *([roles.target] if roles.target is not None else [])],
            text_format,
            kinds,
            hold,
        )
        if roles.target is not None:
            _must_vary(table.columns[roles.target], table.rows)
        if roles.text is None:
            x, z = (
                encoder_of([table.columns[name] for name in names], table.rows)
                for names in (roles.x, roles.z)
            )
            transformers = {"x_transformer": x, "z_transformer": z}
        else:
            transformers = text_transformers(
                roles.text, table.taken(table.evenly(MAX_SUBSET_ROWS))[roles.text].tolist()
            )
        wanted = set(roles.wanted)
        features = [name for name in table.columns if name in wanted]
        return cls(table, roles.target, features, transformers)

    def split(self, frame: Any) -> tuple[Any, Any]:
        """Return X, as the transformers take it, and y.

        Without a target, y is a ramp from 0 to 1, which is enough for a plan.
        """
        y = np.linspace(0.0, 1.0, len(frame)) if self.target is None else frame[self.target]
        return frame[self.features], y

    def data(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return X and y for `fit`, and the transformers.

        If the table is not in memory, X is a function that streams its rows, y is None, and the
        transformers are fitted on a subset of the rows.
        """
        if self.table.held is not None:
            return *self.split(self.table.held), self.transformers
        some, _ = self.split(self.table.taken(self.table.evenly(MAX_SUBSET_ROWS)))
        return self._stream, None, {name: how.fit(some) for name, how in self.transformers.items()}

    def _stream(self) -> Iterator[tuple[Any, Any]]:
        """Yield X and y of each chunk."""
        return (self.split(frame) for frame in self.table.chunks())


def _must_vary(target: Column, rows: int) -> None:
    """Raise an error unless the target has two different values."""
    if rows < 2:
        raise InputError("One row is not enough to learn from. Give at least two, better hundreds.")
    if target.low == target.high:
        raise InputError(
            f"The target {target.name!r} is {target.low:g} in all {rows} rows, so there is "
            "nothing to explain. Give a target that varies."
        )


def encoder_of(columns: Sequence[Column], rows: int) -> ColumnTransformer:
    """Return a transformer that leaves numbers as they are and encodes categories.

    Each level of a category becomes a column of 0 and 1, named `column_level`.
    """
    names = [
        name
        for column in columns
        for name in ([f"{column.name}_{level}" for level in column.levels] or [column.name])
    ]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(
            f"{listed(twice, 5)} would be the name of a column and of a value of a category. "
            "Rename one of them."
        )
    steps: list[tuple[str, Any, list[str]]] = []
    for kind, run in itertools.groupby(columns, key=lambda column: column.kind):
        some = list(run)
        for column in some:
            _check_category(column, rows)
        levels = [np.array(sorted(column.levels), dtype=object) for column in some]
        encoder = (
            "passthrough"
            if kind == "number"
            else OneHotEncoder(categories=levels, sparse_output=False)
        )
        steps.append((f"{kind} {len(steps)}", encoder, [column.name for column in some]))
    return ColumnTransformer(steps, verbose_feature_names_out=False)


def _check_category(column: Column, rows: int) -> None:
    """Raise an error if the texts of a column are dates or numbers, or too many for a category."""
    count = len(column.levels)
    for form, what, remedy in (
        (DATE, "dates", "Replace them by numbers, such as days since the first"),
        (NUMBER, "numbers", "Write them plainly"),
    ):
        if count and looks_like(form, column.levels):
            raise InputError(
                f"Column {column.name!r} looks like {what}: it has "
                f"{listed(sorted(column.levels), 3)}. {remedy}, or leave it out with --drop."
            )
    if count > FEW_CATEGORY_LEVELS and count > min(rows / 10, MAX_CATEGORY_LEVELS):
        many = f"more than {MAX_CATEGORY_LEVELS}" if count > MAX_CATEGORY_LEVELS else str(count)
        raise InputError(
            f"Column {column.name!r} has {many} different texts in {rows} rows, which is no "
            f"category. Leave it out with --drop {column.name!r}, or explain its words with --text "
            f"{column.name!r}."
        )


def text_transformers(name: str, documents: Sequence[str]) -> dict[str, Any]:
    """Return transformers of a column of documents.

    x is a vector of each document; z says which words it contains, of those that are in more than
    one document, or in any if there are at most 20 documents.
    """
    least = 2 if len(documents) > 20 else 1
    # The words are chosen here once, and are the same for every part of the documents.
    try:
        every = sorted(CountVectorizer(min_df=least).fit(documents).vocabulary_)
        telling = sorted(
            CountVectorizer(min_df=least, stop_words="english").fit(documents).vocabulary_
        )
    except ValueError as error:
        raise InputError(
            f"Column {name!r} has no words to explain by: {error}. Give another column as --text."
        ) from None
    words, vector = (
        CountVectorizer(binary=True, vocabulary=telling),
        TfidfVectorizer(vocabulary=every),
    )
    # Half of the words and documents, so that a part of the documents has as many dimensions.
    dimensions = min(MAX_TEXT_DIMENSIONS, len(every) // 2, len(documents) // 2)
    if dimensions > 1:
        vector = make_pipeline(vector, TruncatedSVD(dimensions, random_state=0))
    named = {"verbose_feature_names_out": False, "sparse_threshold": 1.0}
    return {
        "x_transformer": ColumnTransformer([("vector", vector, name)], **named),
        "z_transformer": ColumnTransformer([("words", words, name)], **named),
    }


def columns_of_model(model: Any) -> dict[str, Column]:
    """Return the columns that a fitted model needs, by name, and what they must be."""
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    if not names:
        raise InputError(
            "This model was fitted without names of columns. Fit it on a pandas table, or with "
            "`gpx-scale fit`."
        )
    if model._preprocessor.separate:
        raise InputError(
            "This model was fitted with a separate Z, which a table in a file does not have. "
            "Use it from Python."
        )
    found = {name: Column(name, "number") for name in names}
    for transformer in (
        model._preprocessor.transforms.x_transformer,
        model._preprocessor.transforms.z_transformer,
    ):
        for _, how, columns in getattr(transformer, "transformers_", ()):
            if isinstance(columns, str):
                found[columns] = Column(columns, "text")
            elif isinstance(how, OneHotEncoder):
                for name, levels in zip(columns, how.categories_, strict=True):
                    if name in found and all(isinstance(level, str) for level in levels):
                        found[name] = Column(name, "category", set(levels))
            elif hasattr(how, "transform") and not isinstance(how, FunctionTransformer):
                # Another transformer checks itself what it is given.
                found.update({name: Column(name) for name in columns if name in found})
    return found


def text_column(model: Any) -> str | None:
    """Return the column of documents of a model; None if it has none."""
    return next(
        (name for name, column in columns_of_model(model).items() if column.kind == "text"), None
    )


def table_for(
    model: Any, path: Any, text_format: TextFormat = PLAIN, also: str | None = None
) -> Table:
    """Return the table in a file, which must have the columns of a fitted model.

    A column `also` of numbers is read if the file has it.
    """
    asked, names = columns_of_model(model), header_of(path, text_format)
    lacking = [name for name in asked if name not in names]
    if lacking:
        others = [name for name in names if name not in asked and name != model.target_name_]
        raise InputError(
            f"{Path(path).name} lacks columns of this model: {listed(lacking)}."
            + (f" The model does not use {listed(others)}." if others else "")
            + " Add the columns, or rename others to these names."
        )
    kinds = {name: column.kind for name, column in asked.items()}
    if also in names:
        kinds[str(also)] = "number"
    table = read_table(path, list(kinds), text_format, kinds)
    for name, column in asked.items():
        if column.kind != "category":
            continue
        if new := sorted(table.columns[name].levels - column.levels):
            raise InputError(
                f"{Path(path).name}: column {name!r} has {listed(new, 5)}, which the model has not "
                f"seen. It knows {listed(sorted(column.levels), 5)}. Replace it by one of these, "
                "or remove its rows."
            )
    return table
