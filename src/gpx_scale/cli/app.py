"""The command line application, and functions that its commands share."""

from __future__ import annotations

import csv
import sys
from typing import Annotated

import typer

from .. import __version__
from ..data.frame_encoder import ERROR, INDICATOR
from ..data.table_files import PLAIN, TextFormat
from ..estimator.regressor import GPXRegressor
from .column_roles import ColumnRoles
from .tables import Reading

UTF8 = PLAIN.encoding

app = typer.Typer(
    name="gpx-scale",
    help="Make predictions with reasons, both with their uncertainty, by Gaussian process "
    "regression with local explanation.",
    epilog="First steps: `gpx-scale demo`, then `gpx-scale fit houses.csv --target price --out "
    "houses.gpx` and `gpx-scale report houses.gpx new.csv --out report.html`.",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"gpx-scale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas; a name that contains a comma is in quotes."""
    found = tuple(
        name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()
    )
    if text and not found:
        raise typer.BadParameter(f"{text!r} names no column. Give names with commas between them.")
    return found


def column_roles_of(target: str | None, x: str, z: str, text: str | None, drop: str) -> ColumnRoles:
    """Return the columns that the options name."""
    if text is not None and (x or z):
        raise typer.BadParameter("--text replaces --x and --z. Leave these out.")
    return ColumnRoles(target, names_in(x), names_in(z), text, names_in(drop))


def reading_of(
    separator: str | None,
    encoding: str,
    dates: str = "",
    row_names: str | None = None,
    missing: str = INDICATOR,
) -> Reading:
    """Return how a file is read, as --sep, --encoding, --dates, --id and --missing say it."""
    if missing not in (INDICATOR, ERROR):
        raise typer.BadParameter(f"--missing {missing!r} is neither {INDICATOR!r} nor {ERROR!r}.")
    formats: dict[str, str | None] = {}
    for one in names_in(dates):
        name, _, form = one.partition(":")
        formats[name.strip()] = form.strip() or None
    return Reading(_text_format(separator, encoding), missing, formats, row_names)


def _text_format(separator: str | None, encoding: str) -> TextFormat:
    """Return the format of a text file that --sep and --encoding name."""
    separator = "\t" if separator == "\\t" else separator
    if separator is not None and len(separator) != 1:
        raise typer.BadParameter(f"--sep {separator!r} is not one character. Give one character.")
    return TextFormat(separator, encoding)


def is_watched() -> bool:
    """Return whether stderr is a terminal; progress and remarks are shown only there."""
    return sys.stderr.isatty()


def print_remark(text: str) -> None:
    """Print a text on stderr if that is a terminal."""
    if is_watched():
        print(text, file=sys.stderr)


def row_count(text: str) -> int | str:
    """Return a number of rows as a number, and any other text, such as "auto", as it is."""
    return int(text) if text.isdecimal() else text


def model_of(
    kernel: str,
    ard: bool | None,
    solver: str,
    intercept: bool | None,
    weights: str,
    points: int,
    memory: str | None,
    n_jobs: int | None,
    seed: int,
) -> GPXRegressor:
    """Return the unfitted model that the options describe."""
    return GPXRegressor(
        kernel,
        ard=ard,
        solver=solver,
        fit_intercept="auto" if intercept is None else intercept,
        weights=weights,
        n_inducing=points,
        memory_limit=memory,
        n_jobs=n_jobs,
        random_state=seed,
        verbose=int(is_watched()),
    )
