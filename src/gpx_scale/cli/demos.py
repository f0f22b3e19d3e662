"""The demos of `gpx-scale demo`: models of data that need no download."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from ..datasets import digit_classes, load_diabetes, load_digits, synth2
from ..estimator.paper import PAPER
from ..estimator.regressor import GPXRegressor
from ..explanation import Explanation
from ..plots import plot_contributions, plot_images, plot_map, plot_text
from ..plots.style import pyplot
from ..report.page import Section


class Demo(NamedTuple):
    """A section of the report, and a function that draws its plot."""

    section: Section
    draw: Callable[[], Any]


def digits(verbose: int = 0) -> Demo:
    """Fit handwritten digits with the target of the paper: -1 for 0 to 4, +1 for 5 to 9."""
    data = load_digits()
    kept, held = train_test_split(np.arange(len(data.y)), test_size=0.2, random_state=0)
    # All pixels stay on one scale. If they were standardised, pixels that are hardly ever dark
    # would count most.
    X = data.X / 16.0
    model = GPXRegressor(**PAPER, standardize=False, random_state=0, verbose=verbose)
    model.fit(X[kept], data.y[kept])
    explanation = model.explain(X[held], feature_names=data.feature_names)
    about = (
        "Images of 8 x 8 pixels of handwritten digits (from scikit-learn). The target is -1 for "
        "0 to 4 and +1 for 5 to 9. The digits below were held out."
    )
    classes = digit_classes()[held]
    section = Section(
        "Digits",
        explanation,
        y=data.y[held],
        about=about,
        seen=0,
        image_shape=(8, 8),
        sample_names=[f"a {digit}" for digit in classes],
    )
    one_of_each = [int(np.flatnonzero(classes == digit)[0]) for digit in range(10)]
    return Demo(
        section,
        lambda: plot_images(
            explanation, one_of_each, (8, 8), titles=[f"digit {k}" for k in range(10)]
        ),
    )


# The names of the measurements of diabetes in words.
MEASUREMENTS = {
    "bmi": "body mass index",
    "bp": "blood pressure",
    "s1": "cholesterol",
    "s2": "LDL",
    "s3": "HDL",
    "s4": "cholesterol / HDL",
    "s5": "log triglycerides",
    "s6": "blood sugar",
}


def diabetes(verbose: int = 0) -> Demo:
    """Fit the progression of diabetes after a year, by ten measurements."""
    data = load_diabetes()
    X, X_held, y, y_held = train_test_split(data.X, data.y, test_size=0.2, random_state=0)
    model = GPXRegressor(random_state=0, verbose=verbose).fit(X, y)
    explanation = model.explain(
        X_held, feature_names=[MEASUREMENTS.get(name, name) for name in data.feature_names]
    )
    explanation = replace(explanation, target_name="progression")
    about = (
        "A measure of the progression of diabetes after a year in 442 patients, by ten "
        "measurements (from scikit-learn). The patients below were held out."
    )
    return Demo(
        Section("Diabetes", explanation, y=y_held, about=about, seen=0),
        lambda: _draw_patients(explanation),
    )


def _draw_patients(explanation: Explanation) -> Any:
    """Draw the patients with the highest and the lowest prediction."""
    figure, axes = pyplot().subplots(1, 2, figsize=(12.5, 4.6), layout="constrained", sharex=True)
    ends = {"highest": explanation.prediction.argmax(), "lowest": explanation.prediction.argmin()}
    for ax, (end, i) in zip(axes, ends.items(), strict=True):
        plot_contributions(explanation, int(i), ax=ax)
        ax.set_title(f"The {end} of {len(explanation)} patients\n{ax.get_title()}")
    return figure


# The modules whose docstrings are the texts of a demo, by their target.
LIBRARIES = {
    1.0: (
        "sklearn.cluster",
        "sklearn.decomposition",
        "sklearn.ensemble",
        "sklearn.linear_model",
        "sklearn.metrics",
    ),
    -1.0: (
        "scipy.linalg",
        "scipy.optimize",
        "scipy.signal",
        "scipy.sparse",
        "scipy.special",
        "scipy.stats",
    ),
}


def docstrings() -> tuple[list[str], np.ndarray]:
    """Return the first paragraphs of docstrings of scikit-learn (+1) and of scipy (-1)."""
    texts: dict[str, float] = {}
    for side, modules in LIBRARIES.items():
        for name in modules:
            module = importlib.import_module(name)
            for public in sorted(getattr(module, "__all__", dir(module))):
                thing = getattr(module, public, None)
                document = inspect.getdoc(thing) if callable(thing) else None
                paragraph = " ".join((document or "").split("\n\n")[0:2]).replace("\n", " ")
                if 30 < len(paragraph) < 600 and "deprecated" not in paragraph.lower():
                    texts.setdefault(paragraph, side)
    return list(texts), np.array(list(texts.values()))


def text(verbose: int = 0) -> Demo:
    """Fit the library that a docstring is from, with words as reasons."""
    documents, y = docstrings()
    kept, held = train_test_split(np.arange(len(y)), test_size=0.25, random_state=0)
    model = GPXRegressor(
        x_transformer=make_pipeline(TfidfVectorizer(min_df=2), TruncatedSVD(64, random_state=0)),
        z_transformer=CountVectorizer(binary=True, min_df=3, stop_words="english"),
        random_state=0,
        verbose=verbose,
    ).fit([documents[i] for i in kept], y[kept])
    asked = [documents[i] for i in held]
    explanation = model.explain(asked)
    about = (
        "The first paragraphs of docstrings. The target is +1 for functions and classes of "
        "scikit-learn and -1 for those of scipy."
    )
    section = Section("Docstrings", explanation, y=y[held], about=about, seen=0, documents=asked)
    sure = abs(explanation.contributions) > 2 * explanation.contributions_std
    surest = int(np.argmax(sure.sum(axis=1)))
    return Demo(section, lambda: plot_text(asked[surest], explanation.top(surest, 100)).figure)


def spatial(verbose: int = 0) -> Demo:
    """Fit synthetic data, whose coefficients vary over a square and are known."""
    data = synth2(10_500)
    kept, held = slice(0, 10_000), slice(10_000, None)
    model = GPXRegressor(random_state=0, verbose=verbose).fit(
        data.X[kept], data.y[kept], data.Z[kept]
    )
    explanation = model.explain(data.X[held], data.Z[held], feature_names=data.feature_names)
    assert data.weights is not None
    lower, upper = explanation.weights_interval()
    inside = (lower <= data.weights[held]) & (data.weights[held] <= upper)
    # The first coefficient is the intercept.
    inside = inside[:, 1:]
    about = (
        "10,000 synthetic samples whose coefficients vary smoothly over a square. At 500 new "
        f"places, {inside.mean():.1%} of the true coefficients are within their 95% intervals."
    )
    section = Section("Coefficients over space", explanation, y=data.y[held], about=about, seen=0)
    shown = model.explain(data.X[:4000], data.Z[:4000], feature_names=data.feature_names)
    return Demo(section, lambda: plot_map(shown, data.feature_names[1], data.X[:4000]))


DEMOS: dict[str, Callable[[int], Demo]] = {
    "digits": digits,
    "diabetes": diabetes,
    "text": text,
    "spatial": spatial,
}
