"""The command `demo`, which fits data that come with scikit-learn or are synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import InputError
from ..metrics import Accuracy
from ..plots.style import pyplot
from ..report.page import Section, write_report
from ..runtime.files import atomic_write
from .app import app, is_watched
from .demos import DEMOS
from .fit_commands import accuracy_texts


@app.command()
def demo(
    name: Annotated[
        Literal["all", "digits", "diabetes", "text", "spatial"],
        typer.Argument(help="The demo to run; `all` runs digits and diabetes."),
    ] = "all",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder to write the report and plots to.")
    ] = Path("gpx_demo"),
) -> None:
    """Fit models of data that need no download, and write a report to look at.

    Example: `gpx-scale demo spatial --out look`
    """
    plt = pyplot()
    plt.switch_backend("agg")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {str(out)!r} cannot be made a folder: {error.strerror}. Give another folder."
        ) from error
    sections, shown = [], ("digits", "diabetes") if name == "all" else (name,)
    for which in shown:
        made = DEMOS[which](int(is_watched()))
        sections.append(made.section)
        figure = made.draw()
        with atomic_write(out / f"{which}.png") as beside:
            figure.savefig(beside, dpi=110)
        plt.close(figure)
        print(
            f"{made.section.title}\n{made.section.explanation.fit_report}\n"
            f"  held out        {_held_out(made.section)}\n"
        )
    path = write_report(
        out / "report.html", sections, title="gpx_scale: predictions and their reasons"
    )
    print(f"plots:  {', '.join(str(out / f'{which}.png') for which in shown)}\nreport: {path}")


def _held_out(section: Section) -> str:
    """Return the accuracy of a model on the samples of a section, in words."""
    explanation = section.explanation
    assert explanation.prediction_std is not None
    accuracy = Accuracy.of(
        section.y, explanation.prediction, explanation.prediction_std, section.level
    )
    rmse, r2, within = accuracy_texts(accuracy)
    return (
        f"{len(explanation)} samples: RMSE {rmse}, R^2 {r2}, {within} inside the "
        f"{section.level:.0%} interval"
    )
