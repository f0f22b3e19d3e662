"""The commands that apply a model to a table: predict, explain, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..errors import InputError
from ..estimator.loading import load
from ..estimator.regressor import GPXRegressor
from ..explanation import Explanation, between, by_groups
from ..report.page import Section, write_report
from ..runtime.files import import_optional
from .app import UTF8, app, is_watched, reading_of
from .column_roles import table_for, text_column
from .options import Data, Dates, Encoding, Group, Level, Model, RowNames, Separator
from .reasons import groups_asked, paragraphs, with_texts
from .tables import check_output_table, names_of_rows, output_path, write_csv, write_table


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The .csv, .tsv, .parquet or .json file to write; by default lines go to the "
            "screen.",
        ),
    ] = None,
    level: Level = 0.95,
    row_names: RowNames = None,
    dates: Dates = "",
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Predict the target of every row, with its standard deviation and interval.

    Example: `gpx-scale predict houses.gpx new.csv --out predictions.csv`
    """
    check_output_table(out, model, data)
    pandas, fitted = import_optional("pandas", "cli"), loaded(model)
    pieces: list[Any] = []
    labels: list[Any] = []
    for frame in table_for(fitted, data, reading_of(sep, encoding, dates, row_names)).chunks():
        mean, std = fitted.predict(frame[list(fitted.feature_names_in_)], return_std=True)
        pieces.append(np.column_stack([mean, std]))
        labels += frame.index.tolist()
    mean, std = np.concatenate(pieces).T
    lower, upper = between(mean, std, level)
    columns = {
        "row": np.arange(1, len(mean) + 1),
        "prediction": mean,
        "prediction_std": std,
        "lower": lower,
        "upper": upper,
    }
    write(_with_names(pandas.DataFrame(columns), row_names, labels), out)


@app.command()
def explain(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The .csv, .tsv, .parquet or .json file to write; by default lines go to the "
            "screen.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="The number of contributions per row to show, the largest ones; all by default.",
            show_default=False,
            min=1,
        ),
    ] = None,
    wide: Annotated[
        bool,
        typer.Option("--wide", help="Write one line per row, with its contributions side by side."),
    ] = False,
    words: Annotated[
        bool,
        typer.Option("--words", help="Write a paragraph per row, in words, with --top reasons."),
    ] = False,
    group: Group = None,
    features: Annotated[
        bool,
        typer.Option("--features", help="Show the levels of a category by themselves."),
    ] = False,
    baseline: Annotated[
        str,
        typer.Option(
            help="The value of features that contributions are relative to: mean or zero."
        ),
    ] = "mean",
    level: Level = 0.95,
    row_names: RowNames = None,
    dates: Dates = "",
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Explain the prediction of every row by the weight and the contribution of every column.

    Both have their uncertainty. The contributions of a row add up to its prediction minus its base
    value. A category is one reason, and has no weight. `--out reasons.json` writes all numbers with
    all digits.

    Example: `gpx-scale explain houses.gpx new.csv --top 5`
    """
    check_output_table(out, model, data)
    if wide and top is not None:
        raise typer.BadParameter("--wide shows all contributions: leave out --top, or --wide.")
    if (wide and words) or (group and features):
        raise typer.BadParameter("Give --wide or --words, and --group or --features, not both.")
    fitted = loaded(model)
    table = table_for(fitted, data, reading_of(sep, encoding, dates, row_names))
    by_column = _explained(fitted, table.chunks(), baseline, groups_asked(fitted, group or ()))
    found = (by_groups(explanation, False if features else None) for explanation in by_column)
    if out is not None and out.suffix.lower() == ".json":
        if table.held is None or top is not None or wide or words:
            raise InputError(
                "A .json file has all contributions, of a table that fits in memory. For --top, "
                "--wide or more rows, give a .csv file."
            )
        next(found).to_json(out, level=level)
        print(f"explanations: {out}")
        return
    pandas, frames, start = import_optional("pandas", "cli"), [], 1
    for explanation in found:
        if words:
            frame = paragraphs(explanation, top, level)
        else:
            frame = with_texts(explanation.to_frame(wide=wide, level=level))
        labels = frame.index.tolist()
        if wide:
            frame = _one_line_each(frame, start)
        else:
            frame.insert(0, "row", frame.pop("sample") + start)
        frame = _with_names(frame, row_names, labels)
        frames.append(frame if top is None or words else _largest(frame, top))
        start += len(explanation)
    write(pandas.concat(frames, ignore_index=True), out)


def _explained(
    model: GPXRegressor,
    frames: Iterator[Any],
    baseline: str,
    groups: dict[str, list[str]] | None,
) -> Iterator[Explanation]:
    """Yield the explanation of each frame."""
    names = list(model.feature_names_in_)
    return (model.explain(frame[names], baseline=baseline, groups=groups) for frame in frames)


def _one_line_each(frame: Any, start: int) -> Any:
    """Return a wide frame with the numbers of its rows and without sparse columns."""
    frame.insert(0, "row", np.arange(start, start + len(frame)), allow_duplicates=True)
    if twice := frame.columns[frame.columns.duplicated()].tolist():
        raise InputError(
            f"A feature is named {twice[0]!r}, as is a column of the result. Leave out --wide."
        )
    return frame.apply(
        lambda column: column.sparse.to_dense() if hasattr(column.dtype, "fill_value") else column
    )


def _with_names(frame: Any, row_names: str | None, labels: list[Any]) -> Any:
    """Return a frame with the names of its rows after their numbers, if --id gives a column."""
    if row_names is not None:
        if row_names in frame.columns:
            raise InputError(
                f"The column {row_names!r} of --id has the name of a column of the result. Rename "
                "it."
            )
        frame.insert(1, row_names, labels)
    return frame


def _largest(frame: Any, k: int) -> Any:
    """Return the k largest contributions of each row."""
    order = np.lexsort((-frame["contribution"].abs(), frame["row"]))
    return frame.iloc[order].groupby("row", sort=False).head(k)


@app.command()
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    samples: Annotated[
        int,
        typer.Option(
            help="The largest number of rows to explain, evenly spread over the table.", min=1
        ),
    ] = 2000,
    title: Annotated[
        str | None, typer.Option(help="The title of the report.", show_default=False)
    ] = None,
    group: Group = None,
    level: Level = 0.95,
    row_names: RowNames = None,
    dates: Dates = "",
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Write a report of a table in one HTML file, which needs no network.

    It has the model, the features that matter overall, and the reasons of every row. If the table
    has the target, it also has the errors and the share of true values within their intervals.

    Example: `gpx-scale report houses.gpx new.csv --out report.html`
    """
    output_path(out, model, data)
    fitted = loaded(model)
    table = table_for(
        fitted, data, reading_of(sep, encoding, dates, row_names), also=fitted.target_name_
    )
    rows = table.evenly(samples)
    frame = table.taken(rows)
    groups = groups_asked(fitted, group or ())
    (explanation,) = _explained(fitted, iter([frame]), "mean", groups)
    document = text_column(fitted)
    known = fitted.target_name_ in table.columns
    section = Section(
        title or f"{fitted.target_name_ or 'Predictions'} of {data.name}",
        explanation,
        y=frame[fitted.target_name_].to_numpy() if known else None,
        about=f"These are {len(rows):,} of {table.rows:,} rows of {data.name}, by the model "
        f"{model.name}.",
        documents=None if document is None else frame[document].tolist(),
        sample_names=names_of_rows(frame, row_names),
        level=level,
    )
    print(f"report: {write_report(out, [section], section.title, int(is_watched()))}")


def loaded(path: Path) -> GPXRegressor:
    """Return the model in a file."""
    if not path.is_file():
        raise InputError(
            f"There is no model {str(path)!r}. Give a file that `gpx-scale fit` wrote."
        )
    model: GPXRegressor = load(path)
    if hasattr(model, "classes_"):
        raise InputError(
            f"{str(path)!r} is a model of classes, which these commands do not take. Load it in "
            "Python: gpx_scale.load."
        )
    return model


def write(frame: Any, out: Path | None) -> None:
    """Write a table to a file, or to the screen."""
    if out is None:
        write_csv(frame, sys.stdout)
    else:
        write_table(frame, out)
        print(f"{len(frame)} lines: {out}")
