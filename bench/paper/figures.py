"""The paper's figures: sufficiency, weights on Digits, examples on Boston."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from protocol import KS, Methods, Split
from published import TABULAR
from scores import Scores
from sklearn.model_selection import train_test_split

from gpx_scale import PAPER, GPXRegressor, datasets, plots

# The colours of Okabe and Ito can be told apart with every common form of colour blindness. Each
# method has a marker too.
STYLES = {
    "GPX": ("#d55e00", "o"),
    "GPR+LIME": ("#0072b2", "s"),
    "GPR+SHAP": ("#009e73", "^"),
    "KL": ("#cc79a7", "v"),
    "Localized": ("#e69f00", "D"),
    "Network": ("#56b4e9", "P"),
    "ARD": ("#555555", "x"),
}
SHOWN = ("GPX", "GPR+LIME", "GPR+SHAP", "KL", "Localized", "Network", "ARD", "Lasso", "Ridge")


def sufficiency(scores: Scores, path: Path) -> None:
    """Draw the difference of predictions against the number of features kept, for each data
    set.
    """
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained", sharex=True)
    for ax, name in zip(axes.flat, TABULAR, strict=True):
        for method, (colour, mark) in STYLES.items():
            found = [scores.of(name, method, f"sufficiency_{k}") for k in KS]
            if all(values.size for values in found):
                mean, sd = np.array([v.mean() for v in found]), np.array([v.std() for v in found])
                ax.plot(
                    KS,
                    mean,
                    color=colour,
                    marker=mark,
                    markersize=4,
                    linewidth=2.2 if method == "GPX" else 1.2,
                    label=method,
                )
                ax.fill_between(KS, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)
        ax.set_title(name)
        ax.set_xticks(KS)
        ax.set_ylim(bottom=0)
    figure.supxlabel("features kept")
    figure.supylabel("mean absolute difference of predictions")
    drawn = {
        label: line
        for ax in axes.flat
        for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if drawn:
        figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=len(drawn))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def digits(settings: Callable[[str], dict[str, Any]], folder: Path) -> None:
    """Draw one of each digit, and three twos: test images whose sign GPX predicts correctly."""
    data, classes = datasets.load_digits(), datasets.digit_classes()
    rows, test = train_test_split(np.arange(len(data.y)), test_size=0.2, random_state=0)
    X, y = data.X / 16.0, (data.y - data.y[rows].mean()) / data.y[rows].std()
    methods = Methods(Split("Digits", X[rows], y[rows], None, X[test], y[test], None), settings, 0)
    right = test[methods.fitted("GPX")[0].predict(X[test]) * y[test] > 0]
    each = [right[classes[right] == digit] for digit in range(10)]
    shown = np.r_[[some[0] for some in each], each[2][:3]]
    weights = {name: methods.fitted(name)[0].weights(X[shown]) for name in SHOWN}
    labels = [f"{digit} (y = {'−' if digit < 5 else ''}1)" for digit in range(10)]
    for name, picked in (
        ("digits", (2, 6)),
        ("digits_all", range(10)),
        ("digits_twos", (10, 11, 12)),
    ):
        some = np.array(picked)
        _images(
            X[shown][some],
            {m: W[some] for m, W in weights.items()},
            [labels[i if i < 10 else 2] for i in some],
            folder / f"{name}.png",
        )


def _images(X: np.ndarray, weights: dict[str, np.ndarray], labels: list[str], path: Path) -> None:
    """Draw images, and the weights of each method beside them."""
    figure, axes = plt.subplots(
        len(X),
        1 + len(weights),
        figsize=(1.25 * (1 + len(weights)), 1.3 * len(X) + 0.3),
        layout="constrained",
        squeeze=False,
    )
    for i, row in enumerate(axes):
        row[0].imshow(X[i].reshape(8, 8), cmap="gray_r")
        row[0].set_ylabel(labels[i])
        for ax, (method, W) in zip(row[1:], weights.items(), strict=True):
            most = np.abs(W[i]).max() or 1.0
            ax.imshow(W[i].reshape(8, 8), cmap="RdBu_r", vmin=-most, vmax=most)
            if i == 0:
                ax.set_title(method, fontsize=9)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def boston(path: Path) -> None:
    """Draw the contributions of five test tracts, from the lowest to the highest prediction."""
    data = datasets.load_boston()
    X, X_test, y, _ = train_test_split(data.X, data.y, test_size=0.2, random_state=0)
    model = GPXRegressor(**PAPER, random_state=0).fit(X, y)
    explanation = model.explain(X_test, feature_names=data.feature_names)
    order = np.argsort(explanation.prediction)
    figure, axes = plt.subplots(3, 2, figsize=(13, 13), layout="constrained")
    for ax, share in zip(axes.flat, (0.02, 0.25, 0.5, 0.75, 0.98), strict=False):
        plots.plot_contributions(
            explanation, int(order[round(share * (len(order) - 1))]), ax=ax, k=13
        )
    axes.flat[-1].axis("off")
    figure.savefig(path, dpi=90)
    plt.close(figure)
