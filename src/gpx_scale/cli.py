"""The other front door: the `gpx-scale` command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from . import __version__
from .demos import DEMOS
from .errors import GPXError, InputError
from .estimator import GPXRegressor, load
from .explanation import Explanation, between
from .files import needed, writable, written_whole
from .options import (
    Ard,
    Data,
    Drop,
    Encoding,
    Intercept,
    Jobs,
    Kernel,
    Level,
    Memory,
    Model,
    Points,
    Seed,
    Separator,
    Solver,
    Target,
    Text,
    X,
    Z,
)
from .plots import pyplot
from .recipes import Recipe, Wish, table_for, text_column
from .report import Section, write_report
from .tables import PLAIN, Way, writable_table, write_table
from .timing import FACTOR, expected_seconds, in_words
from .validation import Measures, cross_validate

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(f"gpx-scale needs {error.name}: pip install 'gpx-scale[cli]'") from None

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="gpx-scale")
    except (SystemExit, KeyboardInterrupt) as stop:
        code = 130 if isinstance(stop, KeyboardInterrupt) else stop.code
        if code == 130:
            print("gpx-scale: interrupted, and nothing was written", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except (GPXError, ImportError, OSError, MemoryError) as error:
        print(f"gpx-scale: {error}", file=sys.stderr)
        return 1
    return 0


# ---------------------------------------------------------------------------------------------------------------- people


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _wish(target: str | None, x: str, z: str, text: str | None, drop: str) -> Wish:
    if text is not None and (x or z):
        raise typer.BadParameter("--text takes the place of --x and --z")
    return Wish(target, _names(x), _names(z), text, _names(drop))


def _listens() -> bool:
    """Whether a person looks on: progress and remarks are for them, not for pipes."""
    return sys.stderr.isatty()


def _remark(text: str) -> None:
    if _listens():
        print(text, file=sys.stderr)


# -------------------------------------------------------------------------------------------------------------- commands


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    if version:
        print(f"gpx-scale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def fit(
    data: Data,
    target: Target,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", show_default=False)],
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    kernel: Kernel = "rbf",
    ard: Ard = False,
    solver: Solver = "auto",
    intercept: Intercept = False,
    n_inducing: Points = 1000,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file that a fit which is cut off goes on from.", show_default=False)
    ] = None,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Learn a model from a table, and write it to a file.

    Columns of numbers are used as they are, a category becomes a column of 0 and 1 for each of its values. Missing values are
    refused, by row and column. Tables of more than 100,000 rows are read in chunks and never are in memory as a whole.

    Example: `gpx-scale fit houses.csv --target price --x lon,lat --z size,age --out houses.gpx`
    """
    writable(out)
    recipe = Recipe.of(data, _wish(target, x, z, text, drop), Way(sep, encoding))
    model = _model(kernel, ard, solver, intercept, n_inducing, memory_limit, n_jobs, seed).set_params(checkpoint=checkpoint)
    X, y, transformers = recipe.data()
    model.set_params(**transformers).fit(X, y)
    model.target_name_ = recipe.target
    model.save(out)
    _remark(str(model.fit_report_))
    print(f"model: {out}")


def _model(
    kernel: str, ard: bool, solver: str, intercept: bool, points: int, memory: str | None, n_jobs: int | None, seed: int
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
        verbose=int(_listens()),
    )


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .csv, .tsv, .parquet or .json; default: the screen.")
    ] = None,
    level: Level = 0.95,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Predict the target of every row, with its deviation and interval.

    Example: `gpx-scale predict houses.gpx new.csv --out predictions.csv`
    """
    writable_table(out)
    pandas, fitted = needed("pandas", "cli"), _loaded(model)
    pieces = []
    for frame in table_for(fitted, data, Way(sep, encoding)).chunks():
        mean, std = fitted.predict(frame[list(fitted.feature_names_in_)], return_std=True)
        pieces.append(np.column_stack([mean, std]))
    mean, std = np.concatenate(pieces).T
    lower, upper = between(mean, std, level)
    columns = {"row": np.arange(1, len(mean) + 1), "prediction": mean, "std": std, "lower": lower, "upper": upper}
    _write(pandas.DataFrame(columns), out)


@app.command()
def explain(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .csv, .tsv, .parquet or .json; default: the screen.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="The largest contributions of each row alone.", show_default=False, min=1)
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="One line a row, its contributions side by side.")] = False,
    baseline: Annotated[str, typer.Option(help="What contributions are relative to: mean or zero.")] = "mean",
    level: Level = 0.95,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Say why: the weight and the contribution of every feature to every row's prediction, with their uncertainty.

    Contributions of a row add up to its prediction less its base value. `--out reasons.json` keeps all of it, with all digits.

    Example: `gpx-scale explain houses.gpx new.csv --top 5`
    """
    writable_table(out)
    fitted = _loaded(model)
    table = table_for(fitted, data, Way(sep, encoding))
    found = _explained(fitted, table.chunks(), baseline)
    if out is not None and out.suffix == ".json":
        if table.held is None or top is not None or wide:
            raise InputError("JSON holds every reason of a table that is read at once: give .csv or .parquet, without --top")
        next(found).to_json(out, level=level)
        print(f"explanations: {out}")
        return
    pandas, frames, start = needed("pandas", "cli"), [], 1
    for explanation in found:
        frame = explanation.to_frame(wide=wide, level=level)
        if wide:
            frame.insert(0, "row", np.arange(start, start + len(explanation)), allow_duplicates=True)
        else:
            frame.insert(0, "row", frame.pop("sample") + start)
            frame = frame if top is None else _largest(frame, top)
        frames.append(frame)
        start += len(explanation)
    _write(pandas.concat(frames, ignore_index=True), out)


def _explained(model: GPXRegressor, frames: Iterator[Any], baseline: str = "mean") -> Iterator[Explanation]:
    names = list(model.feature_names_in_)
    return (model.explain(frame[names], baseline=baseline) for frame in frames)


def _largest(frame: Any, k: int) -> Any:
    order = np.lexsort((-frame["contribution"].abs(), frame["row"]))
    return frame.iloc[order].groupby("row", sort=False).head(k)


@app.command()
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    samples: Annotated[int, typer.Option(help="Rows that are explained, evenly spread.", min=1)] = 2000,
    title: Annotated[str | None, typer.Option(help="Of the report.", show_default=False)] = None,
    level: Level = 0.95,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """Explain a table in one HTML file that opens with no network: the model, what matters overall, every row's reasons.

    Where the table has the target, the report compares: error, and how many true values the intervals hold.

    Example: `gpx-scale report houses.gpx new.csv --out report.html`
    """
    writable(out)
    fitted = _loaded(model)
    table = table_for(fitted, data, Way(sep, encoding), also=fitted.target_name_)
    rows = np.unique(np.linspace(0, table.rows - 1, min(samples, table.rows)).astype(int))
    frame = table.taken(rows)
    (explanation,) = _explained(fitted, iter([frame]))
    document = text_column(fitted)
    known = fitted.target_name_ in table.columns
    section = Section(
        title or f"{fitted.target_name_ or 'Predictions'} of {data.name}",
        explanation,
        y=frame[fitted.target_name_].to_numpy() if known else None,
        about=f"{len(rows):,} of {table.rows:,} rows of {data.name}, by {model.name}.",
        documents=None if document is None else frame[document].tolist(),
        sample_names=[f"row {i + 1}" for i in rows],
        level=level,
    )
    print(f"report: {write_report(out, [section], title=section.title)}")


@app.command()
def evaluate(
    data: Data,
    target: Target,
    folds: Annotated[int, typer.Option(help="Parts, each of which is predicted from the others.", min=2)] = 5,
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    kernel: Kernel = "rbf",
    ard: Ard = False,
    solver: Solver = "auto",
    intercept: Intercept = False,
    n_inducing: Points = 1000,
    report: Annotated[
        Path | None,
        typer.Option(help="An HTML file: every row explained by a model that had not seen it.", show_default=False),
    ] = None,
    level: Level = 0.95,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """How well a model of this table predicts: cross-validation, with the share of true values within their intervals.

    Example: `gpx-scale evaluate houses.csv --target price --folds 10`
    """
    recipe = Recipe.of(data, _wish(target, x, z, text, drop), Way(sep, encoding), hold=sys.maxsize)
    if recipe.table.rows < 2 * folds:
        raise InputError(f"{recipe.table.rows} rows are too few for {folds} folds: two rows a fold, at least")
    X, y, transformers = recipe.data()
    model = _model(kernel, ard, solver, intercept, n_inducing, memory_limit, n_jobs, seed).set_params(**transformers)
    if report is not None:
        writable(report)
    found = cross_validate(model, X, y, folds=folds, level=level, seed=seed, explain=report is not None)
    grid = Table("fold", "rows", "RMSE", "R²", f"within {level:.0%}", title=f"{data.name}: {target}, {folds} folds")
    for k, (rows, measures) in enumerate(found.folds):
        grid.add_row(str(k + 1), str(rows), *_measured(measures))
    grid.add_section()
    grid.add_row("mean", str(len(y)), *_measured(found.mean()))
    grid.add_row("deviation", "", *_measured(found.deviation()))
    Console().print(grid)
    if report is not None and found.explanation is not None:
        about = f"Every row of {data.name} by a model of the other {folds - 1} of {folds} parts; the model is the last part's."
        names = [f"row {i + 1}" for i in range(len(y))]
        section = Section(f"{target} of {data.name}", found.explanation, y.to_numpy(), about, sample_names=names, level=level)
        print(f"report: {write_report(report, [section], title=section.title)}")


def _measured(measures: Measures) -> list[str]:
    return [f"{measures.rmse:.4g}", f"{measures.r2:.4f}", f"{measures.within:.1%}"]


@app.command()
def plan(
    data: Data,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The column to predict.", show_default=False)] = None,
    x: X = "",
    z: Z = "",
    text: Text = None,
    drop: Drop = "",
    kernel: Kernel = "rbf",
    solver: Solver = "auto",
    n_inducing: Points = 1000,
    memory_limit: Memory = None,
    n_jobs: Jobs = None,
    sep: Separator = None,
    encoding: Encoding = UTF8,
) -> None:
    """What `fit` would do with a table, before anything is fitted: which solver and why, memory, expected time.

    Example: `gpx-scale plan houses.csv --target price`
    """
    recipe = Recipe.of(data, _wish(target, x, z, text, drop), Way(sep, encoding))
    X, y, transformers = recipe.data()
    model = _model(kernel, False, solver, False, n_inducing, memory_limit, n_jobs, 0).set_params(verbose=0, **transformers)
    found = model.plan(X, y)
    for column in recipe.table.columns.values():
        levels = f" of {len(column.levels)} values" if column.kind == "category" else ""
        print(f"{'target' if column.name == recipe.target else 'column'} {column.name}: {column.kind}{levels}")
    print(found)
    seconds = expected_seconds(found)
    print(f"  expected: {in_words(seconds)}" + (f" (to a factor of {FACTOR:.0f})" if seconds is not None else ""))


@app.command()
def demo(
    name: Annotated[
        Literal["all", "digits", "diabetes", "text", "spatial"], typer.Argument(help="Which; all are digits and diabetes.")
    ] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to leave the report and pictures in.")] = Path(
        "gpx_demo"
    ),
) -> None:
    """Fit data that every machine has, and leave a report to look at.

    Example: `gpx-scale demo spatial --out look`
    """
    plt = pyplot()
    plt.switch_backend("agg")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(out)!r}: {error.strerror}") from error
    sections, shown = [], ("digits", "diabetes") if name == "all" else (name,)
    for which in shown:
        made = DEMOS[which](int(_listens()))
        sections.append(made.section)
        figure = made.draw()
        with written_whole(out / f"{which}.png") as beside:
            figure.savefig(beside, dpi=110)
        plt.close(figure)
        print(f"{made.section.title}\n{made.section.explanation.fit_report}\n  held out        {_held_out(made.section)}\n")
    path = write_report(out / "report.html", sections, title="gpx_scale: predictions and their reasons")
    print(f"pictures: {', '.join(str(out / f'{which}.png') for which in shown)}\nreport:   {path}")


def _held_out(section: Section) -> str:
    explanation = section.explanation
    assert explanation.prediction_std is not None
    measures = Measures.of(section.y, explanation.prediction, explanation.prediction_std, section.level)
    rmse, r2, within = _measured(measures)
    return f"{len(explanation)} samples: RMSE {rmse}, R^2 {r2}, {within} inside the {section.level:.0%} interval"


# ------------------------------------------------------------------------------------------------------------------ files


def _loaded(path: Path) -> GPXRegressor:
    if not path.is_file():
        raise InputError(f"there is no model {str(path)!r}")
    return load(path)


def _write(frame: Any, out: Path | None) -> None:
    if out is None:
        frame.to_csv(sys.stdout, index=False)
    else:
        write_table(frame, out)
        print(f"{len(frame)} lines: {out}")


if __name__ == "__main__":
    sys.exit(main())
