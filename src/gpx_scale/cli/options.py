"""The arguments of the `gpx-scale` command that several of its commands take: their names, and what `--help` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

try:
    import rich  # noqa: F401  (what tables are printed by)
    import typer
except ImportError as error:
    raise SystemExit(f"gpx-scale needs {error.name}: pip install 'gpx-scale[cli]'") from None

Data = Annotated[
    Path,
    typer.Argument(
        help="A table: .csv, .tsv or .parquet, also .csv.gz and .tsv.gz.", show_default=False
    ),
]
Model = Annotated[
    Path, typer.Argument(help="A model that `gpx-scale fit` wrote.", show_default=False)
]
Target = Annotated[
    str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)
]
X = Annotated[
    str,
    typer.Option(
        "--x",
        help="Columns that the weights vary with, such as lon,lat. Default: all.",
        show_default=False,
    ),
]
Z = Annotated[
    str,
    typer.Option(
        "--z",
        help="Columns that explain, and get weights. Default: all, or those not in --x.",
        show_default=False,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text", help="A column of documents, explained by their words.", show_default=False
    ),
]
Drop = Annotated[
    str,
    typer.Option("--drop", help="Columns to leave out, such as names of rows.", show_default=False),
]
Kernel = Annotated[str, typer.Option(help="rbf, matern12, matern32, matern52 or rq.")]
Ard = Annotated[bool, typer.Option("--ard", help="A length scale for each column of x.")]
Solver = Annotated[str, typer.Option(help="auto, exact, cg, inducing, basis or grid.")]
Intercept = Annotated[
    bool, typer.Option("--intercept", help="Give every sample an intercept of its own.")
]
Points = Annotated[int, typer.Option("--n-inducing", help="Points of the inducing solver.")]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        help="Such as 8GiB. Default: 80% of what is available.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--n-jobs", help="Threads. Default: all cores.", show_default=False)
]
Seed = Annotated[int, typer.Option(help="Of all that is drawn.", min=0, max=2**32 - 1)]
Level = Annotated[float, typer.Option(help="Probability of the intervals.", min=0.01, max=0.9999)]
Separator = Annotated[
    str | None, typer.Option("--sep", help="Between the fields of a .csv; default: a comma.")
]
Encoding = Annotated[str, typer.Option(help="Of a .csv or .tsv.")]
