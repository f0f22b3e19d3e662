"""The other front door: the `gpx-scale` command."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from . import __version__
from .datasets import Dataset, load_diabetes, load_digits
from .errors import GPXError
from .estimator import GPXRegressor
from .explanation import Explanation
from .plots import plot_contributions, plot_image, pyplot


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 done, 1 failed with a message, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="gpx-scale", description="Gaussian process regression with local explanation: predictions with reasons."
    )
    parser.add_argument("--version", action="version", version=f"gpx-scale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo_parser = commands.add_parser("demo", help="fit Digits and Diabetes, print a summary, draw explanations")
    demo_parser.add_argument("--out", type=Path, default=Path("gpx_demo"), help="folder for the picture and the report")
    options = parser.parse_args(arguments)
    try:
        demo(options.out)
    except (GPXError, ImportError, OSError) as error:
        print(f"gpx-scale: {error}", file=sys.stderr)
        return 1
    return 0


def demo(folder: Path) -> None:
    """Fit the two sets that ship with scikit-learn; leaves explanations.png and report.txt in `folder`."""
    plt = pyplot()
    plt.switch_backend("agg")
    folder.mkdir(parents=True, exist_ok=True)
    digits, digits_text = _fit_and_explain("Digits", load_digits())
    diabetes, diabetes_text = _fit_and_explain("Diabetes", load_diabetes())
    text = f"{digits_text}\n\n{diabetes_text}\n"
    print(text)
    (folder / "report.txt").write_text(text)

    figure = plt.figure(figsize=(12.5, 9.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.0, 1.3])
    _draw_digits(top, digits)
    _draw_patients(bottom, diabetes)
    figure.savefig(folder / "explanations.png", dpi=110)
    plt.close(figure)
    print(f"picture: {folder / 'explanations.png'}\nreport:  {folder / 'report.txt'}")


def _fit_and_explain(title: str, data: Dataset) -> tuple[Explanation, str]:
    X, X_test, y, y_test = train_test_split(data.X, data.y, test_size=0.2, random_state=0)
    start = time.perf_counter()
    model = GPXRegressor(random_state=0).fit(X, y)
    fitted = time.perf_counter()
    explanation = model.explain(X_test, feature_names=data.feature_names)
    explained = time.perf_counter()
    error = np.mean((explanation.prediction - y_test) ** 2) / np.var(y)
    assert explanation.prediction_std is not None
    inside = np.abs(explanation.prediction - y_test) <= 1.96 * explanation.prediction_std
    text = (
        f"{title}\n{model.fit_report_}\n"
        f"  held out        {len(y_test)} samples: standardised MSE {error:.4f}, R^2 {model.score(X_test, y_test):.3f}, "
        f"{inside.mean():.0%} inside the 95% interval\n"
        f"  time            fit {fitted - start:.2f} s, {len(y_test)} explanations with deviations "
        f"{explained - fitted:.2f} s (compilation included on the first run)"
    )
    return explanation, text


def _draw_digits(figure: Any, explanation: Explanation) -> None:
    """Eight test digits, four of each class, above their contributions."""
    assert explanation.prediction_std is not None
    order = np.argsort(explanation.prediction)
    shown = np.concatenate([order[[0, 20, 40, 60]], order[[-61, -41, -21, -1]]])
    limit = float(np.quantile(np.abs(explanation.contributions[shown]), 0.995))
    axes = figure.subplots(2, len(shown))
    for (above, below), i in zip(axes.T, shown, strict=True):
        above.imshow(explanation.data[i].reshape(8, 8), cmap="Greys")
        above.set(xticks=[], yticks=[])
        above.set_title(f"{explanation.prediction[i]:.2f} ± {explanation.prediction_std[i]:.2f}", fontsize=10)
        image = plot_image(explanation, int(i), (8, 8), ax=below, limit=limit)
    figure.colorbar(image, ax=axes, shrink=0.8, label="contribution of a pixel")
    figure.suptitle("Digits (0-4 are -1, 5-9 are +1): predictions, and the pixels that speak for +1 (red) or -1 (blue)")


def _draw_patients(figure: Any, explanation: Explanation) -> None:
    """The highest and the lowest prediction among the test patients."""
    axes = figure.subplots(1, 2)
    for ax, i in zip(axes, (explanation.prediction.argmax(), explanation.prediction.argmin()), strict=True):
        plot_contributions(explanation, int(i), ax=ax)
    figure.suptitle("Diabetes: why one patient's predicted progression is high and another's low")


if __name__ == "__main__":
    sys.exit(main())
