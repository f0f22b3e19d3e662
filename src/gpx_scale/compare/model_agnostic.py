"""GPR explained from outside, by the packages `lime` and `shap` (extra `[bench]`): their weights are contributions.

Where Z is words and x is made of them, `encode` (from a sparse Z to X) lets both packages take words away from a text; without
it, Z is X, and they change its columns. Both draw at random: a call of `weights` draws the same for the same rows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from ..runtime.arguments import positive, whole
from ..runtime.files import import_optional
from .gaussian_process import GPR
from .method import Method, asked, dense, fitted, training


class _Agnostic(Method):
    """A GPR (or another model that predicts, fitted or not), and what another package makes of its predictions."""

    weights_are_contributions = True
    package: str
    model: Any
    encode: Any
    n_jobs: int | None
    random_state: Any

    def fit(self, X: Any, y: Any, Z: Any = None) -> _Agnostic:
        import_optional(self.package, "bench")
        X, y, Z = training(X, y, Z if self.encode else None)
        self.model_ = fitted(
            self.model, GPR(n_jobs=self.n_jobs, random_state=self.random_state), X, y
        )
        self._seed = check_random_state(self.random_state).randint(2**31)
        self._learn(X)
        self._remember(X, Z)
        return self

    @abc.abstractmethod
    def _learn(self, X: np.ndarray) -> None:
        """Keep what the package needs of the training rows."""

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        check_is_fitted(self, "model_")
        return self.model_.predict(X)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        _, rows = asked(self, X, Z if self.encode else None)
        if not len(rows):
            return np.empty(rows.shape)
        return self._of_words(rows) if self.encode else self._of_columns(rows)

    @abc.abstractmethod
    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        """Contributions of the columns of X;  (m, p) -> (m, p)."""

    @abc.abstractmethod
    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        """Contributions of the words of Z;  (m, d) -> (m, d)."""


class LIME(_Agnostic):
    """`lime` with its own settings: columns in quartiles (`LimeTabularExplainer`), or words (`LimeTextExplainer`), and 5,000
    samples around each row.

    quartiles : False for slopes of the columns as they are, so that weights are no contributions.
    kernel_width : of the samples' weights by their distance; None: lime's own, 0.75 times the root of the columns' number.
    """

    package = "lime.lime_tabular"

    @property
    def weights_are_contributions(self) -> bool:  # type: ignore[override]
        return self.quartiles or self.encode is not None

    def __init__(
        self,
        model: Any = None,
        encode: Any = None,
        num_samples: int = 5000,
        quartiles: bool = True,
        kernel_width: float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.encode = encode
        self.num_samples = num_samples
        self.quartiles = quartiles
        self.kernel_width = kernel_width
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _learn(self, X: np.ndarray) -> None:
        whole(self.num_samples, "num_samples", least=2)
        if self.kernel_width is not None:
            positive(self.kernel_width, "kernel_width")
        self._X = X

    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        lime, found = import_optional("lime.lime_tabular", "bench"), np.zeros(rows.shape)
        settings = {
            "discretize_continuous": self.quartiles,
            "kernel_width": self.kernel_width,
            "random_state": self._seed,
        }
        explainer = lime.LimeTabularExplainer(self._X, mode="regression", **settings)
        how = {"num_features": rows.shape[1], "num_samples": self.num_samples}
        for row, out in zip(rows, found, strict=True):
            for feature, weight in explainer.explain_instance(
                row, self.model_.predict, **how
            ).as_map()[1]:
                out[feature] = weight
        return (
            found if self.quartiles else found / explainer.scaler.scale_
        )  # lime's slopes are of standardised columns

    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        lime, found = import_optional("lime.lime_text", "bench"), np.zeros(rows.shape)
        explainer = lime.LimeTextExplainer(random_state=self._seed)
        for row, out in zip(rows, found, strict=True):
            words = [
                f"w{column}" for column in np.flatnonzero(row)
            ]  # a bag is a text of its columns' numbers
            if words:
                how = {"labels": (0,), "num_features": len(words), "num_samples": self.num_samples}
                for word, weight in explainer.explain_instance(
                    " ".join(words), self._reader(row), **how
                ).as_list(label=0):
                    out[int(word[1:])] = weight
        return found

    def _reader(self, row: np.ndarray) -> Callable[[list[str]], np.ndarray]:
        """Predicts texts of columns' numbers, each word as often as the row has it."""

        def predict(texts: list[str]) -> np.ndarray:
            columns = [[int(word[1:]) for word in text.split()] for text in texts]
            ends, flat = np.cumsum([0, *map(len, columns)]), np.concatenate(columns).astype(int)
            Z = sp.csr_array((row[flat], flat, ends), shape=(len(texts), row.size))
            return self.model_.predict(self.encode(Z))[:, None]

        return predict


class SHAP(_Agnostic):
    """`shap.KernelExplainer`: Shapley values by weighted least squares over subsets of features.

    background : rows which absent features are taken from, (b, p), or their number: centres of the training rows by k-means.
    An absent word is 0.
    nsamples : subsets tried for a row; "auto": shap's own number, all of them for few features.
    l1_reg : how shap selects features first; "auto": by AIC where less than a fifth of all subsets are tried, else not at all
    (as shap did at the paper's time; now it keeps 10 features).
    """

    package = "shap"

    def __init__(
        self,
        model: Any = None,
        encode: Any = None,
        background: Any = 10,
        nsamples: Any = "auto",
        l1_reg: Any = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.encode = encode
        self.background = background
        self.nsamples = nsamples
        self.l1_reg = l1_reg
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _learn(self, X: np.ndarray) -> None:
        if np.ndim(self.background):
            self._background = dense(self.background)
            if self._background.shape[1:] != X.shape[1:]:
                raise InputError(
                    f"background needs rows of {X.shape[1]} columns, got {self._background.shape}"
                )
            return
        centres = whole(self.background, "background", least=1)
        if not self.encode:
            self._background = import_optional("shap", "bench").kmeans(
                X, min(centres, len(np.unique(X, axis=0)))
            )

    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        return self._values(self.model_.predict, self._background, rows)

    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        return self._values(
            lambda Z: self.model_.predict(self.encode(sp.csr_array(Z))),
            np.zeros((1, rows.shape[1])),
            rows,
        )

    def _values(
        self, predict: Callable[[np.ndarray], np.ndarray], background: Any, rows: np.ndarray
    ) -> np.ndarray:
        explainer = import_optional("shap", "bench").KernelExplainer(predict, background)
        state = np.random.get_state()  # noqa: NPY002 (shap draws from the global generator)
        np.random.seed(self._seed)  # noqa: NPY002
        try:
            how = {"nsamples": self.nsamples, "silent": True}
            return np.vstack(
                [
                    explainer.shap_values(row[None], l1_reg=self._selection(row), **how)
                    for row in rows
                ]
            )
        finally:
            np.random.set_state(state)  # noqa: NPY002

    def _selection(self, row: np.ndarray) -> Any:
        if self.l1_reg != "auto":
            return self.l1_reg
        varying = int(np.count_nonzero(row)) if self.encode else row.size
        tried = 2 * varying + 2048 if self.nsamples == "auto" else self.nsamples
        return "aic" if tried < 0.2 * 2.0 ** min(varying, 30) else False
