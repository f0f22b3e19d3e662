"""The paper's protocol: five 80/20 splits, X and y standardised on the training rows, and the
measures of each method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

from gpx_scale import compare, datasets, metrics

LOADERS: dict[str, Callable[[], Any]] = {
    "Diabetes": datasets.load_diabetes,
    "Boston": datasets.load_boston,
    "Fish": datasets.load_fish,
    "Digits": datasets.load_digits,
    "Paper": datasets.load_paper,
    "Drug": datasets.load_drug,
    "Abalone": datasets.load_abalone,
    "Wine": datasets.load_wine,
}
SPLITS = 5
KS = tuple(range(1, 11))
# LIME and SHAP take at least a fifth of a second per row on the larger sets, so they explain
# only this many test rows.
EXPLAINED = {"Abalone": 300, "Wine": 300, "Drug": 100}
# These are the paper's grids. They are searched once per set, by three folds of at most SEARCHED
# training rows of the first split.
GRID = {"lambda1": [1.0, 3.0, 5.0, 7.0], "n_neighbors": [5, 10, 15]}
EXCLUSIVE = [0.01, 0.1, 1.0, 10.0]
SEARCHED = 1000
# The search only ranks settings, and takes half of the time or less with these tolerances.
ROUGHLY = {"smoothing": 1e-2, "tol": 1e-3}


@dataclass(frozen=True)
class Split:
    """One standardised split. Z is None if it is X; otherwise `encode` makes X from rows of Z,
    which are words.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    Z: Any
    X_test: np.ndarray
    y_test: np.ndarray
    Z_test: Any
    encode: Callable[[Any], np.ndarray] | None = None

    def explained(self) -> np.ndarray:
        """Return the test rows that LIME and SHAP explain."""
        m = len(self.y_test)
        return np.arange(m)[: EXPLAINED.get(self.name, m)]


def split_of(name: str, seed: int, **of_texts: Any) -> Split:
    """Return the split of a data set by its seed."""
    data = LOADERS[name]()
    rows, test = train_test_split(np.arange(len(data.y)), test_size=0.2, random_state=seed)
    shift, scale = data.y[rows].mean(), data.y[rows].std()
    y, y_test = (data.y[rows] - shift) / scale, (data.y[test] - shift) / scale
    if hasattr(data, "texts"):
        return _texts(name, data, rows, test, y, y_test, **of_texts)
    scaler = StandardScaler().fit(data.X[rows])
    return Split(
        name, scaler.transform(data.X[rows]), y, None, scaler.transform(data.X[test]), y_test, None
    )


def _texts(
    name: str,
    data: Any,
    rows: Any,
    test: Any,
    y: np.ndarray,
    y_test: np.ndarray,
    scale_x: bool = True,
    n_components: int = 100,
    all_words: bool = False,
    counts: bool = False,
) -> Split:
    """Return a split of texts.

    Z says which words a text has, or how often. X is its vector, standardised. Both are learnt
    on the training texts.
    """
    train, new = [data.texts[i] for i in rows], [data.texts[i] for i in test]
    bag = (
        datasets.bag_of_words(data.min_count)
        .set_params(binary=not counts)
        .fit(data.texts if all_words else train)
    )
    vectors = datasets.sentence_vectors("lsa", n_components).fit(train)
    scaler = StandardScaler(with_mean=scale_x, with_std=scale_x).fit(vectors.transform(train))
    words = bag.get_feature_names_out()

    def encode(Z: Any) -> np.ndarray:
        """Return the vectors of texts that consist of the words of Z."""
        Z = Z.tocsr()
        bags = [
            " ".join(words[Z.indices[a:b]])
            for a, b in zip(Z.indptr[:-1], Z.indptr[1:], strict=True)
        ]
        return scaler.transform(vectors.transform(bags))

    X, X_test = (scaler.transform(vectors.transform(texts)) for texts in (train, new))
    return Split(name, X, y, bag.transform(train), X_test, y_test, bag.transform(new), encode)


class Methods:
    """The paper's methods on one split, each fitted when it is first used.

    LIME and SHAP share a GPR, and KL uses the ARD.
    """

    def __init__(self, split: Split, settings: Callable[[str], dict[str, Any]], seed: int) -> None:
        self.split, self.settings, self.seed = split, settings, seed
        self._fitted: dict[str, tuple[Any, float]] = {}

    def fitted(self, name: str) -> tuple[Any, float]:
        """Return the method, and the seconds of its training."""
        if name not in self._fitted:
            shared = {"GPR+LIME": "GPR", "GPR+SHAP": "GPR", "KL": "ARD"}.get(name)
            method, before = self._made(name), self.fitted(shared)[1] if shared else 0.0
            start = time.perf_counter()
            method.fit(self.split.X, self.split.y, self.split.Z)
            self._fitted[name] = method, before + time.perf_counter() - start
        return self._fitted[name]

    def _made(self, name: str) -> Any:
        """Return a new method by its name."""
        if name in ("GPR+LIME", "GPR+SHAP"):
            kind = compare.LIME if name == "GPR+LIME" else compare.SHAP
            return kind(self.fitted("GPR")[0], self.split.encode, random_state=self.seed)
        if name == "KL":
            return compare.KL(self.fitted("ARD")[0])
        return ALONE[name](
            **self.settings(name), **({"random_state": self.seed} if name in RANDOM else {})
        )


# The model that `GPXRegressor()` chooses, which the paper does not have.
DEFAULT = "Default"
ALONE = {
    "GPX": compare.GPX,
    DEFAULT: partial(compare.GPX, model={}),
    "GPR": compare.GPR,
    "ARD": compare.ARD,
    "Lasso": compare.Lasso,
    "Ridge": compare.Ridge,
    "Localized": compare.LocalizedLasso,
    "Network": compare.NetworkLasso,
}
RANDOM = ("GPX", DEFAULT, "GPR", "ARD")
NAMES = (*ALONE, "KL", "GPR+LIME", "GPR+SHAP")
SAMPLED = ("GPR+LIME", "GPR+SHAP")
GLOBAL = ("GPR", "ARD", "Lasso", "Ridge")


def search(split: Split, name: str) -> dict[str, Any]:
    """Choose the settings of a lasso on a graph by a grid search with three folds of some
    training rows.

    If Z is not X, the folds are of both.
    """
    rows = np.random.RandomState(0).permutation(len(split.y))[:SEARCHED]
    grid = GRID | ({"lambda2": EXCLUSIVE} if name == "Localized" else {})
    X, y = split.X[rows], split.y[rows]
    if split.Z is None:
        found = GridSearchCV(
            ALONE[name](**ROUGHLY), grid, cv=3, scoring="neg_mean_squared_error"
        ).fit(X, y)
        return found.best_params_
    both = _Both(split.X.shape[1], ALONE[name](**ROUGHLY))
    renamed = {f"method__{key}": values for key, values in grid.items()}
    joined = np.hstack([X, split.Z[rows].toarray()])
    found = GridSearchCV(both, renamed, cv=3, scoring="neg_mean_squared_error").fit(joined, y)
    return {key.removeprefix("method__"): value for key, value in found.best_params_.items()}


class _Both(compare.Method):
    """A method that takes X and Z side by side in one array, as a search over folds needs
    them.
    """

    def __init__(self, p: int = 1, method: Any = None) -> None:
        self.p = p
        self.method = method

    def fit(self, both: Any, y: Any) -> _Both:
        self.method.fit(both[:, : self.p], y, both[:, self.p :])
        self.n_features_in_ = both.shape[1]
        return self

    def predict(self, both: Any) -> np.ndarray:
        return self.method.predict(both[:, : self.p], both[:, self.p :])


def measured(methods: Methods, name: str) -> Iterator[tuple[str, float]]:
    """Yield (measure, value) for everything that the tables need of a method."""
    split = methods.split
    method, _ = methods.fitted(name)
    yield (
        "mse",
        metrics.mean_squared_error(split.y_test, method.predict(split.X_test, split.Z_test)),
    )
    if name == "GPR":
        return
    rows = split.explained() if name in SAMPLED else np.arange(len(split.y_test))
    X, Z = split.X_test[rows], None if split.Z is None else split.Z_test[rows]
    W = method.weights(X, Z)
    yield "explained", len(rows)
    if name not in GLOBAL:
        found = metrics.stability(None, X, Z, weights=W)
        yield "stability", found.score
        yield "with_neighbour", found.with_neighbour
        yield (
            "stability_half_epsilon",
            metrics.stability(None, X, Z, weights=W, epsilon=0.025).score,
        )
        few = split.explained()
        if len(few) < len(rows):
            same = None if Z is None else Z[few]
            yield "stability_sampled", metrics.stability(None, X[few], same, weights=W[few]).score
    if Z is None:
        C = W if method.weights_are_contributions else W * X
        yield "faithfulness", metrics.faithfulness(method, X, contributions=C)
        for k, value in zip(
            KS, metrics.sufficiency(method, X, ks=KS, contributions=C), strict=True
        ):
            yield f"sufficiency_{k}", value


def timed(methods: Methods, name: str) -> tuple[float, float]:
    """Return the seconds of training, and of the explanation of all test rows.

    Those of GPX include standard deviations, which no other method has.
    """
    method, training = methods.fitted(name)
    X = methods.split.X_test
    start = time.perf_counter()
    if name == "GPX":
        method.model_.explain(X)
    else:
        method.weights(X)
    return training, time.perf_counter() - start
