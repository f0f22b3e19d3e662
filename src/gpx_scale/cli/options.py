"""Arguments that several commands of `gpx-scale` take, with the texts that `--help` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path,
    typer.Argument(
        help="The table: a file that ends in .csv, .tsv, .parquet, .csv.gz or .tsv.gz.",
        show_default=False,
    ),
]
Model = Annotated[
    Path, typer.Argument(help="The model file that `gpx-scale fit` wrote.", show_default=False)
]
Target = Annotated[
    str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)
]
X = Annotated[
    str,
    typer.Option(
        "--x",
        help="The columns that the weights vary with, such as lon,lat. By default these are all "
        "columns.",
        show_default=False,
    ),
]
Z = Annotated[
    str,
    typer.Option(
        "--z",
        help="The columns that explain a prediction, and that get weights. By default these are "
        "the columns that are not in --x, or all columns.",
        show_default=False,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="A column of documents, whose words explain a prediction.",
        show_default=False,
    ),
]
Drop = Annotated[
    str,
    typer.Option(
        "--drop", help="Columns to leave out, such as the names of rows.", show_default=False
    ),
]
Dates = Annotated[
    str,
    typer.Option(
        "--dates",
        help="Columns of dates and how they are written, such as sold:%d/%m/%Y,built:%Y. Dates "
        "such as 2024-05-31 are recognised without it.",
        show_default=False,
    ),
]
RowNames = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="The column that names the rows. Results have it; the model does not see it.",
        show_default=False,
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        help="What becomes of missing values: with indicator, they are replaced by the median, and "
        "a column says where they are; error refuses them."
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns that are one reason, such as size:length,width; once for each group. All "
        "other columns are one more group. By default, each column is one reason.",
        show_default=False,
    ),
]
Kernel = Annotated[
    str,
    typer.Option(
        help="How the similarity of rows falls with their distance: rbf, matern12, matern32, "
        "matern52 or rq. auto compares four of them and takes the one that the data prefer."
    ),
]
Ard = Annotated[
    bool | None,
    typer.Option(
        "--ard/--no-ard",
        help="Learn a length scale for each column of x, or one for all. By default, --kernel auto "
        "compares both, and other kernels have one for all.",
        show_default=False,
    ),
]
Solver = Annotated[
    str,
    typer.Option(
        help="The method of computation: auto, exact, cg, neighbors, inducing, basis or grid. "
        "auto chooses by the table and the memory limit."
    ),
]
Intercept = Annotated[
    bool | None,
    typer.Option(
        "--intercept/--no-intercept",
        help="Give every row an intercept of its own, or none. By default, the data decide.",
        show_default=False,
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="The priors of the weights: shared, or one for each feature (relevance, semi, "
        "multiscale, or additive if x and z are the same columns), which finds the weights that "
        "are zero or constant. auto compares them, and takes the one that the data prefer."
    ),
]
Points = Annotated[
    int,
    typer.Option("--n-inducing", help="The number of inducing points, if the solver has them."),
]
SearchRows = Annotated[
    str,
    typer.Option(
        "--search-rows",
        help="The rows on which hyperparameters are searched. auto stops when further steps "
        "promise little, all goes on to the optimum, and a number takes as many rows.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        help="The memory that may be used, such as 8GiB. By default it is 80% of the memory that "
        "is available.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--n-jobs",
        help="The number of threads. By default all cores are used.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="The seed of all random numbers.", min=0, max=2**32 - 1)]
Level = Annotated[
    float,
    typer.Option(
        help="The probability with which an interval contains the true value.",
        min=0.01,
        max=0.9999,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--sep", help="The character between the fields of a .csv file; a comma by default."
    ),
]
Encoding = Annotated[str, typer.Option(help="The text encoding of a .csv or .tsv file.")]
