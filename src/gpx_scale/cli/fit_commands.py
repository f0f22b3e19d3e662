"""The commands that learn from a table: fit, evaluate, plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from sklearn.frozen import FrozenEstimator

from ..data.frame_encoder import INDICATOR
from ..errors import InputError
from ..metrics import Accuracy
from ..report.page import Section, write_report
from ..validation import cross_validate
from .app import (
    UTF8,
    app,
    column_roles_of,
    is_watched,
    model_of,
    print_remark,
    reading_of,
    row_count,
)
from .column_roles import TabularData
from .options import (
    Ard,
    Data,
    Dates,
    Drop,
    Encoding,
    Intercept,
    Jobs,
    Kernel,
    Level,
    Memory,
    Missing,
    Points,
    RowNames,
    SearchRows,
    Seed,
    Separator,
    Solver,
    Target,
    Text,
    Weights,
    X,
    Z,
)
from .tables import names_of_rows, output_path


@app.command()
def fit(
    data: Data,
    target: Target,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The model file to write.", show_default=False)
    ],
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    row_names: RowNames = None,
    dates: Dates = "",
    missing: Missing = INDICATOR,
    kernel: Kernel = "auto",
    ard: Ard = None,
    solver: Solver = "auto",
    intercept: Intercept = None,
    weights: Weights = "auto",
    n_inducing: Points = 1000,
    search_rows: SearchRows = "auto",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="A file in which the fit keeps its progress. If the fit is stopped, the same "
            "command continues from there.",
            show_default=False,
        ),
    ] = None,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Learn a model from a table, and write it to a file.

    Columns of numbers are used as they are. A category becomes a column of 0 and 1 for each of its
    values, a date the days since the first one and the parts of the calendar. A missing value
    becomes the median, and a column says where values are missing. A table of more than 100,000
    rows is read in chunks, and is never in memory as a whole.

    Example: `gpx-scale fit houses.csv --target price --x lon,lat --z size,age --out houses.gpx`
    """
    output_path(out, data)
    recipe = TabularData.of(
        data,
        column_roles_of(target, x, z, text, drop),
        reading_of(sep, encoding, dates, row_names, missing),
    )
    model = model_of(
        kernel, ard, solver, intercept, weights, n_inducing, memory_limit, n_jobs, seed
    ).set_params(checkpoint=checkpoint, search_rows=row_count(search_rows))
    X, y, arguments = recipe.data()
    model.set_params(**arguments).fit(X, y)
    model.target_name_ = recipe.target
    model.save(out)
    print_remark(str(model.fit_report_))
    print(f"model: {out}")


@app.command()
def evaluate(
    data: Data,
    target: Target,
    folds: Annotated[
        int,
        typer.Option(
            help="The number of parts of the table, each of which is predicted from the others.",
            min=2,
        ),
    ] = 5,
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    row_names: RowNames = None,
    dates: Dates = "",
    missing: Missing = INDICATOR,
    kernel: Kernel = "auto",
    ard: Ard = None,
    solver: Solver = "auto",
    intercept: Intercept = None,
    weights: Weights = "auto",
    n_inducing: Points = 1000,
    search_rows: SearchRows = "auto",
    report: Annotated[
        Path | None,
        typer.Option(
            help="An HTML file to write, in which every row is explained by a model that had not "
            "seen it.",
            show_default=False,
        ),
    ] = None,
    level: Level = 0.95,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Measure by cross-validation how well a model of this table predicts.

    The measures are the root mean squared error (RMSE), the coefficient of determination (R²), and
    the share of true values that are within their intervals.

    Example: `gpx-scale evaluate houses.csv --target price --folds 10`
    """
    recipe = TabularData.of(
        data,
        column_roles_of(target, x, z, text, drop),
        reading_of(sep, encoding, dates, row_names, missing),
        hold=sys.maxsize,
    )
    if recipe.table.rows < 2 * folds:
        raise InputError(
            f"{recipe.table.rows} rows are too few for {folds} folds. Each fold needs two rows "
            "at least."
        )
    X, y, _ = recipe.data()
    # All folds have the same features, so that their explanations can be joined.
    transformers = {name: FrozenEstimator(made) for name, made in recipe.fitted().items()}
    model = model_of(
        kernel, ard, solver, intercept, weights, n_inducing, memory_limit, n_jobs, seed
    ).set_params(search_rows=row_count(search_rows), **transformers)
    if report is not None:
        output_path(report, data)
    found = cross_validate(
        model, X, y, folds=folds, level=level, seed=seed, explain=report is not None
    )
    grid = Table(
        "fold",
        "rows",
        "RMSE",
        "R²",
        f"within {100 * level:g}%",
        title=f"{data.name}: {target}, {folds} folds",
    )
    for k, (rows, accuracy) in enumerate(found.folds):
        grid.add_row(str(k + 1), str(rows), *accuracy_texts(accuracy))
    grid.add_section()
    grid.add_row("mean", str(len(y)), *accuracy_texts(found.mean()))
    grid.add_row("std", "", *accuracy_texts(found.deviation()))
    Console().print(grid)
    if report is not None and found.explanation is not None:
        about = (
            f"Every row of {data.name} is predicted by a model of the other {folds - 1} of {folds} "
            "parts. The model that is described is that of the last part."
        )
        names = names_of_rows(X, row_names)
        section = Section(
            f"{target} of {data.name}",
            found.explanation,
            y.to_numpy(),
            about,
            seen=0,
            documents=None if text is None else X[recipe.features[0]].tolist(),
            sample_names=names,
            level=level,
        )
        written = write_report(report, [section], section.title, int(is_watched()))
        print(f"report: {written}")


def accuracy_texts(accuracy: Accuracy) -> list[str]:
    """Return RMSE, R² and the share of true values within their intervals as texts."""
    r2 = f"{accuracy.r2:.4f}" if np.isfinite(accuracy.r2) else "-"
    return [f"{accuracy.rmse:.4g}", r2, f"{accuracy.within:.1%}"]


@app.command()
def plan(
    data: Data,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="The column to predict.", show_default=False),
    ] = None,
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    row_names: RowNames = None,
    dates: Dates = "",
    missing: Missing = INDICATOR,
    kernel: Kernel = "auto",
    ard: Ard = None,
    solver: Solver = "auto",
    intercept: Intercept = None,
    weights: Weights = "auto",
    n_inducing: Points = 1000,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Show what `fit` would do with a table: the solver and why, the memory, the expected time.

    Nothing is fitted.

    Example: `gpx-scale plan houses.csv --target price`
    """
    recipe = TabularData.of(
        data,
        column_roles_of(target, x, z, text, drop),
        reading_of(sep, encoding, dates, row_names, missing),
    )
    X, y, arguments = recipe.data()
    model = model_of(
        kernel, ard, solver, intercept, weights, n_inducing, memory_limit, n_jobs, 0
    ).set_params(verbose=0, **arguments)
    found = model.plan(X, y)
    for column in recipe.table.columns.values():
        levels = f" of {len(column.levels)} values" if column.kind == "category" else ""
        missing_values = f", {column.missing} missing" if column.missing else ""
        role = "target" if column.name == recipe.target else "column"
        if column.name != row_names:
            print(f"{role} {column.name}: {column.kind or 'empty'}{levels}{missing_values}")
    print(found)
