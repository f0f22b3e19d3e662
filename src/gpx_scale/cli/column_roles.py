"""The roles of the columns of a table: which become x and z, and which a fitted model needs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from ..data.column_encodings import MAX_CATEGORY_LEVELS, is_category
from ..data.frame_encoder import ERROR, FrameEncoder
from ..data.table_files import header_of, listed, must_have
from ..errors import InputError
from ..runtime.problems import Problems
from .tables import AS_USUAL, DATE, NUMBER, Column, Reading, Table, looks_like, read_table

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

    `features` are the columns that x and z are made of. `x` and `z` are lists of them, which the
    model encodes, or transformers of documents.
    """

    table: Table
    target: str | None
    features: list[str]
    x: Any
    z: Any

    @classmethod
    def of(
        cls,
        path: Any,
        roles: ColumnRoles,
        reading: Reading = AS_USUAL,
        hold: int | None = None,
    ) -> TabularData:
        """Return the table in a file; one of more than `hold` rows is not kept in memory.

        All that is wrong with its columns is one error.
        """
        if reading.row_names is not None:
            roles = replace(roles, drop=(*roles.drop, reading.row_names))
        roles = roles.among(header_of(path, reading.text_format), Path(path).name)
        if len(roles.wanted) > MAX_COLUMNS:
            raise InputError(
                f"{Path(path).name} has {len(roles.wanted):,} columns to learn from, and the "
                f"command line takes at most {MAX_COLUMNS:,}. Choose some with --x and --z, "
                "leave others out with --drop, or give the numbers as an array to GPXRegressor "
                "in Python, which has no such limit."
            )
        kinds = {
            name: kind
            for name, kind in ((roles.target, "target"), (roles.text, "text"))
            if name is not None
        }
        targets = [roles.target] if roles.target is not None else []
        problems = Problems()
        table = read_table(path, [*roles.wanted, *targets], reading, kinds, hold, problems)
        wanted = set(roles.wanted)
        features = [name for name in table.columns if name in wanted]
        for name in targets:
            with problems:
                _must_vary(table.columns[name], table.rows)
        for name in features:
            with problems:
                _check_category(table.columns[name], table.rows)
        with problems:
            _must_have_names_apart([table.columns[name] for name in features])
        problems.raise_all()
        x: Any = list(roles.x)
        z: Any = list(roles.z)
        if roles.text is not None:
            documents = table.taken(table.evenly(MAX_SUBSET_ROWS))[roles.text].tolist()
            x, z = text_transformers(roles.text, documents)
        return cls(table, roles.target, features, x, z)

    def split(self, frame: Any) -> tuple[Any, Any]:
        """Return X, as the model takes it, and y.

        Without a target, y is a ramp from 0 to 1, which is enough for a plan.
        """
        y = np.linspace(0.0, 1.0, len(frame)) if self.target is None else frame[self.target]
        return frame[self.features], y

    def data(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return X and y for `fit`, and the arguments of the model that say what x and z are.

        If the table is not in memory, X is a function that streams its rows, y is None, and x and z
        are made by transformers that were fitted on a subset of the rows.
        """
        arguments = {"missing": self.table.reading.missing}
        if self.table.held is not None:
            given = {"x_transformer": self.x, "z_transformer": self.z}
            return *self.split(self.table.held), given | arguments
        return self._stream, None, self.fitted() | arguments

    def fitted(self) -> dict[str, Any]:
        """Return transformers that were fitted on a subset of the rows.

        It has a row with each level of each category and, where values are missing, one of those.
        """
        some, _ = self.split(self.table.taken(self.table.showing(MAX_SUBSET_ROWS)))
        hows = [
            FrameEncoder(how, self.table.reading.missing) if isinstance(how, list) else how
            for how in (self.x, self.z)
        ]
        x = hows[0].fit(some)
        alike = isinstance(self.x, list) and self.x == self.z
        return {"x_transformer": x, "z_transformer": x if alike else hows[1].fit(some)}

    def _stream(self) -> Iterator[tuple[Any, Any]]:
        """Yield X and y of each chunk."""
        return (self.split(frame) for frame in self.table.chunks())


def _must_vary(target: Column, rows: int) -> None:
    """Raise an error unless the target has two different values."""
    if target.broken:
        return
    if rows < 2:
        raise InputError("One row is not enough to learn from. Give at least two, better hundreds.")
    if target.low == target.high:
        raise InputError(
            f"The target {target.name!r} is {target.low:g} in all {rows} rows, so there is "
            "nothing to explain. Give a target that varies."
        )


def _must_have_names_apart(columns: Sequence[Column]) -> None:
    """Raise an error if a column has the name that a value of a category gets."""
    made = [
        name
        for column in columns
        for name in ([f"{column.name}_{level}" for level in column.levels] or [column.name])
    ]
    if twice := sorted(name for name, count in Counter(made).items() if count > 1):
        raise InputError(
            f"{listed(twice, 5)} would be the name of a column and of a value of a category. "
            "Rename one of them."
        )


def _check_category(column: Column, rows: int) -> None:
    """Raise an error if the texts of a column are dates or numbers, or too many for a category."""
    count = len(column.levels)
    if column.broken or not count:
        return
    some = f"it has {listed(sorted(column.levels), 3)}"
    if looks_like(DATE, column.levels):
        raise InputError(
            f"Column {column.name!r} looks like dates: {some}. Say how they are written, such as "
            f"--dates '{column.name}:%d/%m/%Y', or leave it out with --drop."
        )
    if looks_like(NUMBER, column.levels):
        raise InputError(
            f"Column {column.name!r} looks like numbers: {some}. Write them plainly, or leave it "
            "out with --drop."
        )
    if not is_category(count, rows):
        many = f"more than {MAX_CATEGORY_LEVELS}" if count > MAX_CATEGORY_LEVELS else str(count)
        raise InputError(
            f"Column {column.name!r} has {many} different texts in {rows} rows, which is no "
            f"category. Name the rows by it with --id {column.name!r}, leave it out with --drop "
            f"{column.name!r}, or explain its words with --text {column.name!r}."
        )


def text_transformers(name: str, documents: Sequence[str]) -> tuple[Any, Any]:
    """Return transformers of a column of documents, to x and to z.

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
    return (
        ColumnTransformer([("vector", vector, name)], **named),
        ColumnTransformer([("words", words, name)], **named),
    )


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
    transforms = model._preprocessor.transforms
    if transforms.encoders:
        return {name: _column_for(name, transforms.encoders) for name in names}
    found = {name: Column(name, "number") for name in names}
    for transformer in (transforms.x_transformer, transforms.z_transformer):
        for _, how, columns in getattr(transformer, "transformers_", ()):
            if isinstance(columns, str):
                found[columns] = Column(columns, "text")
            elif isinstance(how, OneHotEncoder):
                for name, levels in zip(columns, how.categories_, strict=True):
                    if name in found and all(isinstance(level, str) for level in levels):
                        found[name] = Column(name, "category", levels=set(levels))
            elif hasattr(how, "transform") and not isinstance(how, FunctionTransformer):
                # Another transformer checks itself what it is given.
                found.update({name: Column(name) for name in columns if name in found})
    return found


def _column_for(name: str, encoders: Sequence[FrameEncoder]) -> Column:
    """Return a column of a frame that was encoded. It is passed on if it was left out."""
    encodings = [one for encoder in encoders for one in encoder.encodings_ if one.name == name]
    if not encodings:
        return Column(name, "name")
    kind = encodings[0].kinds[0]
    return Column(name, kind if kind in ("number", "category", "date") else "")


def text_column(model: Any) -> str | None:
    """Return the column of documents of a model; None if it has none."""
    return next(
        (name for name, column in columns_of_model(model).items() if column.kind == "text"), None
    )


def table_for(model: Any, path: Any, reading: Reading = AS_USUAL, also: str | None = None) -> Table:
    """Return the table in a file, which must have the columns of a fitted model.

    A column `also` of numbers is read if the file has it. Values may be missing if the model can
    encode that. Levels that the model has not seen are named on stderr, or refused if the model has
    an encoder of scikit-learn that refuses them.
    """
    asked, names = columns_of_model(model), header_of(path, reading.text_format)
    encoded = bool(model._preprocessor.transforms.encoders)
    reading = replace(reading, missing=model.missing if encoded else ERROR)
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
        kinds[str(also)] = "target"
    problems = Problems()
    table = read_table(path, list(kinds), reading, kinds, None, problems)
    for name, column in asked.items():
        if column.levels and not table.columns[name].broken:
            with problems:
                _must_be_known(table.columns[name].levels - column.levels, column, Path(path).name)
    problems.raise_all()
    encoders = model._preprocessor.transforms.encoders
    for name, known in {name: one.levels[name] for one in encoders for name in one.levels}.items():
        if new := sorted(table.columns[name].levels - set(known)):
            print(
                f"gpx-scale: {Path(path).name}: column {name!r} has {listed(new, 5)}, which the "
                "model has not seen, and takes as none of the values that it knows.",
                file=sys.stderr,
            )
    return table


def _must_be_known(new: set[str], column: Column, file: str) -> None:
    """Raise an error if a category has levels that the model has not seen."""
    if new:
        raise InputError(
            f"{file}: column {column.name!r} has {listed(sorted(new), 5)}, which the model has not "
            f"seen. It knows {listed(sorted(column.levels), 5)}. Replace it by one of these, "
            "or remove its rows."
        )
