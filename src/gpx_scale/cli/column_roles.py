"""What is learned from a table: its columns made into x and z, and what a fitted model asks of other tables."""

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
from .tables import DATE, MOST_LEVELS, NUMBER, Column, Table, looks_like, read_table

FEW_LEVELS = 50  # a category has no more, or fewer than a tenth of the rows and MOST_LEVELS
VECTOR = 100  # dimensions of the vector that the kernel sees of a text
MOST_COLUMNS = 20_000  # A fit of 50 rows takes 10 s then; transformers take the square of it, and minutes at 200,000 columns.
SAMPLE = 50_000  # rows, of a table that is read in chunks, that words are taken from


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns: `x` the kernel sees, `z` explain. Of neither: all for both. Of x alone: z are the others; of z alone: x
    are all. Or `text`, a column of documents."""

    target: str | None = None
    x: tuple[str, ...] = ()
    z: tuple[str, ...] = ()
    text: str | None = None
    drop: tuple[str, ...] = ()

    def among(self, names: list[str], file: str) -> ColumnRoles:
        """The same with every column named."""
        target, text = self.target, self.text
        x, z, drop = (tuple(dict.fromkeys(some)) for some in (self.x, self.z, self.drop))
        used = [name for name in (*x, *z, text, target) if name is not None]
        must_have([*used, *drop], names, file)
        if target is not None and target in (*x, *z, text):
            raise InputError(f"{target!r} is the target: it cannot explain itself")
        if both := [name for name in drop if name in used]:
            raise InputError(f"{listed(both)} is both asked for and left out")
        dropped = {target, *drop}
        some = tuple(name for name in names if name not in dropped)
        if text is None:
            z = z or (tuple(name for name in some if name not in x) if x else some)
            if not some or not z:
                raise InputError(f"{file} has no columns to explain by: it has {listed(names)}")
            x = x or some
        return ColumnRoles(target, x, z, text, drop)

    @property
    def wanted(self) -> list[str]:
        return [*dict.fromkeys([*self.x, *self.z] if self.text is None else [self.text])]


@dataclass(frozen=True)
class TabularData:
    """A table to learn from: its target and other columns, and the transformers that make x and z of those."""

    table: Table
    target: str | None
    features: list[str]
    transformers: dict[str, Any]

    @classmethod
    def of(
        cls, path: Any, wish: ColumnRoles, way: TextFormat = PLAIN, hold: int | None = None
    ) -> TabularData:
        wish = wish.among(header_of(path, way), Path(path).name)
        if len(wish.wanted) > MOST_COLUMNS:
            raise InputError(
                f"{Path(path).name} has {len(wish.wanted):,} columns to learn from, and {MOST_COLUMNS:,} are the most that "
                "the command line takes: choose some with --x and --z, leave others out with --drop, or give the numbers as "
                "an array to GPXRegressor in Python, which has no such limit"
            )
        kinds = {
            name: kind
            for name, kind in ((wish.target, "number"), (wish.text, "text"))
            if name is not None
        }
        table = read_table(
            path,
            [*wish.wanted, *([wish.target] if wish.target is not None else [])],
            way,
            kinds,
            hold,
        )
        if wish.target is not None:
            _must_vary(table.columns[wish.target], table.rows)
        if wish.text is None:
            x, z = (
                encoder_of([table.columns[name] for name in names], table.rows)
                for names in (wish.x, wish.z)
            )
            how = {"x_transformer": x, "z_transformer": z}
        else:
            how = texts_of(wish.text, table.taken(table.evenly(SAMPLE))[wish.text].tolist())
        wanted = set(wish.wanted)
        return cls(table, wish.target, [name for name in table.columns if name in wanted], how)

    def split(self, frame: Any) -> tuple[Any, Any]:
        """X, as the transformers take it, and y (a ramp where there is no target)."""
        y = np.linspace(0.0, 1.0, len(frame)) if self.target is None else frame[self.target]
        return frame[self.features], y

    def data(self) -> tuple[Any, Any, dict[str, Any]]:
        """What to give `fit`, and the transformers: all rows, or a stream of them and transformers that are fitted."""
        if self.table.held is not None:
            return *self.split(self.table.held), self.transformers
        some, _ = self.split(self.table.taken(self.table.evenly(SAMPLE)))
        return self._stream, None, {name: how.fit(some) for name, how in self.transformers.items()}

    def _stream(self) -> Iterator[tuple[Any, Any]]:
        return (self.split(frame) for frame in self.table.chunks())


def _must_vary(target: Column, rows: int) -> None:
    if rows < 2:
        raise InputError("one row is not enough to learn from: give at least two, better hundreds")
    if target.low == target.high:
        raise InputError(
            f"the target {target.name!r} is {target.low:g} in all {rows} rows: there is nothing to explain"
        )


def encoder_of(columns: Sequence[Column], rows: int) -> ColumnTransformer:
    """Numbers as they are, a column of 0 and 1 for each level of a category, named `column_level`."""
    names = [
        name
        for column in columns
        for name in ([f"{column.name}_{level}" for level in column.levels] or [column.name])
    ]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(
            f"{listed(twice, 5)} would be the name of a column and of a category's value: rename one of them"
        )
    steps: list[tuple[str, Any, list[str]]] = []
    for kind, run in itertools.groupby(columns, key=lambda column: column.kind):
        some = list(run)
        for column in some:
            must_be_category(column, rows)
        levels = [np.array(sorted(column.levels), dtype=object) for column in some]
        how = (
            "passthrough"
            if kind == "number"
            else OneHotEncoder(categories=levels, sparse_output=False)
        )
        steps.append((f"{kind} {len(steps)}", how, [column.name for column in some]))
    return ColumnTransformer(steps, verbose_feature_names_out=False)


def must_be_category(column: Column, rows: int) -> None:
    count = len(column.levels)
    for form, what in (
        (DATE, "dates: make numbers of them, such as days since the first"),
        (NUMBER, "numbers: write them plainly"),
    ):
        if count and looks_like(form, column.levels):
            raise InputError(
                f"column {column.name!r} looks like {what} (it has {listed(sorted(column.levels), 3)}), or --drop it"
            )
    if count > FEW_LEVELS and count > min(rows / 10, MOST_LEVELS):
        many = f"more than {MOST_LEVELS}" if count > MOST_LEVELS else str(count)
        raise InputError(
            f"column {column.name!r} has {many} different texts in {rows} rows, which is no category: leave it out with "
            f"--drop {column.name!r}, or explain its words with --text {column.name!r}"
        )


def texts_of(name: str, documents: Sequence[str]) -> dict[str, Any]:
    """Transformers of one column of documents: x is a vector of each, z the words that more than one of them has."""
    least = 2 if len(documents) > 20 else 1
    try:  # words are chosen once, and are the same for every part of the documents
        every = sorted(CountVectorizer(min_df=least).fit(documents).vocabulary_)
        telling = sorted(
            CountVectorizer(min_df=least, stop_words="english").fit(documents).vocabulary_
        )
    except ValueError as error:
        raise InputError(f"column {name!r} has no words to go by: {error}") from None
    words, vector = (
        CountVectorizer(binary=True, vocabulary=telling),
        TfidfVectorizer(vocabulary=every),
    )
    if (
        dimensions := min(VECTOR, len(every) // 2, len(documents) // 2)
    ) > 1:  # half: of a part of the documents too
        vector = make_pipeline(vector, TruncatedSVD(dimensions, random_state=0))
    named = {"verbose_feature_names_out": False, "sparse_threshold": 1.0}
    return {
        "x_transformer": ColumnTransformer([("vector", vector, name)], **named),
        "z_transformer": ColumnTransformer([("words", words, name)], **named),
    }


# what a model asks for


def asked_by(model: Any) -> dict[str, Column]:
    """The columns that a fitted model needs, and what they must be."""
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    if not names:
        raise InputError(
            "this model was fitted without names of columns: fit it on a pandas table, or with `gpx-scale fit`"
        )
    if model._preprocessor.separate:
        raise InputError(
            "this model was fitted with a separate Z, which a file does not say: use it from Python"
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
                found.update(
                    {name: Column(name) for name in columns if name in found}
                )  # it knows what it takes
    return found


def text_column(model: Any) -> str | None:
    """Of a model of documents."""
    return next((name for name, column in asked_by(model).items() if column.kind == "text"), None)


def table_for(model: Any, path: Any, way: TextFormat = PLAIN, also: str | None = None) -> Table:
    """A file with the columns of a fitted model (and `also` a number, where the file has it); differences are named."""
    asked, names = asked_by(model), header_of(path, way)
    lacking = [name for name in asked if name not in names]
    if lacking:
        others = [name for name in names if name not in asked and name != model.target_name_]
        raise InputError(
            f"{Path(path).name} does not have the columns of this model: missing {listed(lacking)}"
            + (f"; not of the model: {listed(others)}" if others else "")
        )
    kinds = {name: column.kind for name, column in asked.items()}
    if also in names:
        kinds[str(also)] = "number"
    table = read_table(path, list(kinds), way, kinds)
    for name, column in asked.items():
        if (
            new := sorted(table.columns[name].levels - column.levels)
            if column.kind == "category"
            else []
        ):
            raise InputError(
                f"{Path(path).name}: column {name!r} has {listed(new, 5)}, which the model has not seen; it knows "
                f"{listed(sorted(column.levels), 5)}"
            )
    return table


def count_seen(model: Any, frame: Any) -> int | None:
    """How many rows of a frame the model was fitted on; None where it does not keep its rows, or they are no plain numbers."""
    rows = model.posterior_.training_rows
    if rows is None or not isinstance(rows.x, np.ndarray) or rows.Z.is_sparse:
        return None
    found = model._preprocessor.transform(frame, None)
    known = {row.tobytes() for row in np.hstack([rows.x, rows.Z.to_dense()])}
    return sum(row.tobytes() in known for row in np.hstack([found.x, found.Z.to_dense()]))
