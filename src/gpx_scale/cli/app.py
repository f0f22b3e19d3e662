"""The command itself, and what its commands share."""

from __future__ import annotations

import csv
import sys
from typing import Annotated

from .. import __version__
from ..data.table_files import PLAIN, TextFormat
from ..estimator.regressor import GPXRegressor
from .column_roles import ColumnRoles
from .options import typer

UTF8 = PLAIN.encoding

app = typer.Typer(
    name="gpx-scale",
    help="Predictions with reasons, both with uncertainty: Gaussian process regression with local explanation.",
    epilog="First steps: `gpx-scale demo`, then `gpx-scale fit houses.csv --target price --out houses.gpx` and "
    "`gpx-scale report houses.gpx new.csv --out report.html`.",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"gpx-scale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def names_in(text: str) -> tuple[str, ...]:
    """Commas between; a name that has one is quoted."""
    found = tuple(
        name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()
    )
    if text and not found:
        raise typer.BadParameter(f"{text!r} names no column")
    return found


def wish_of(target: str | None, x: str, z: str, text: str | None, drop: str) -> ColumnRoles:
    if text is not None and (x or z):
        raise typer.BadParameter("--text takes the place of --x and --z")
    return ColumnRoles(target, names_in(x), names_in(z), text, names_in(drop))


def way_of(separator: str | None, encoding: str) -> TextFormat:
    separator = "\t" if separator == "\\t" else separator
    if separator is not None and len(separator) != 1:
        raise typer.BadParameter(f"--sep {separator!r}: give one character")
    return TextFormat(separator, encoding)


def is_watched() -> bool:
    """Whether a person looks on: progress and remarks are for them, not for pipes."""
    return sys.stderr.isatty()


def remark(text: str) -> None:
    if is_watched():
        print(text, file=sys.stderr)


def model_of(
    kernel: str,
    ard: bool,
    solver: str,
    intercept: bool,
    points: int,
    memory: str | None,
    n_jobs: int | None,
    seed: int,
) -> GPXRegressor:
    return GPXRegressor(
        kernel,
        ard=ard,
        solver=solver,
        fit_intercept=intercept,
        n_inducing=points,
        memory_limit=memory,
        n_jobs=n_jobs,
        random_state=seed,
        verbose=int(is_watched()),
    )
