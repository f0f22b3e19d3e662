"""GPR explained from outside, by the packages `lime` and `shap` (extra `[bench]`): their weights are contributions.

Where Z is words and x is made of them, `encode` (from Z to X) lets both packages take words away from a text; without it, Z is
X, and they change its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from ..files import needed
from .gaussian import GPR
from .method import Method, asked, training


class _Agnostic(Method):
    """A GPR (given fitted, or fitted here), and what another package makes of its predictions."""

    weights_are_contributions = True
    model: Any
    encode: Any
    n_jobs: int | None
    random_state: Any

    def fit(self, X: Any, y: Any, Z: Any = None) -> _Agnostic:
        X, y, Z = training(X, y, Z if self.encode else None)
        self.model_ = self.model or GPR(n_jobs=self.n_jobs, random_state=self.random_state).fit(X, y)
        self.n_features_in_, self.n_readable_ = X.shape[1], Z.shape[1]
        self._explain = self._of_words() if self.encode else self._of_columns(X)
        return self

    def _of_columns(self, X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """From rows of X to their contributions."""
        raise NotImplementedError

    def _of_words(self) -> Callable[[np.ndarray], np.ndarray]:
        """From rows of Z to their contributions."""
        raise NotImplementedError

    def _seed(self) -> int:
        return check_random_state(self.random_state).randint(2**31)

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        return self.model_.predict(X)

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        return self._explain(asked(self, X, Z if self.encode else None)[1])


class LIME(_Agnostic):
    """`lime` with its own settings: columns in quartiles (`LimeTabularExplainer`), or words (`LimeTextExplainer`), and 5,000
    samples around each row."""

    def __init__(
        self,
        model: Any = None,
        encode: Any = None,
        num_samples: int = 5000,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.encode = encode
        self.num_samples = num_samples
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _of_columns(self, X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        lime = needed("lime.lime_tabular", "bench")
        explainer = lime.LimeTabularExplainer(X, mode="regression", random_state=self._seed())

        def explain(rows: np.ndarray) -> np.ndarray:
            found = np.zeros(rows.shape)
            for row, out in zip(rows, found, strict=True):
                said = explainer.explain_instance(
                    row, self.model_.predict, num_features=row.size, num_samples=self.num_samples
                )
                for feature, weight in said.as_map()[1]:
                    out[feature] = weight
            return found

        return explain

    def _of_words(self) -> Callable[[np.ndarray], np.ndarray]:
        lime = needed("lime.lime_text", "bench")
        explainer = lime.LimeTextExplainer(random_state=self._seed())
        d = self.n_readable_

        def predict(texts: list[str]) -> np.ndarray:
            columns = [[int(word[1:]) for word in text.split()] for text in texts]
            ends = np.cumsum([0, *map(len, columns)])
            Z = sp.csr_array((np.ones(ends[-1]), np.concatenate(columns).astype(int), ends), shape=(len(texts), d))
            return self.model_.predict(self.encode(Z))[:, None]

        def explain(rows: np.ndarray) -> np.ndarray:
            found = np.zeros(rows.shape)
            for row, out in zip(rows, found, strict=True):
                words = [f"w{column}" for column in np.flatnonzero(row)]  # a bag is a text of its columns' numbers
                if words:
                    text, options = " ".join(words), {"num_features": len(words), "num_samples": self.num_samples}
                    for word, weight in explainer.explain_instance(text, predict, labels=(0,), **options).as_list(label=0):
                        out[int(word[1:])] = weight
            return found

        return explain


class SHAP(_Agnostic):
    """`shap.KernelExplainer`: Shapley values by weighted least squares over subsets of features.

    background : centres of the training rows by k-means, which absent features are taken from; an absent word is 0.
    nsamples : subsets tried for a row; "auto": shap's own number, all of them for few features.
    l1_reg : how shap selects features first; "auto": by AIC where less than a fifth of all subsets are tried, else not at all
    (shap's own rule of the paper's day; now it keeps 10 features).
    """

    def __init__(
        self,
        model: Any = None,
        encode: Any = None,
        background: int = 10,
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

    def _of_columns(self, X: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        shap = needed("shap", "bench")
        return self._by(shap, self.model_.predict, shap.kmeans(X, min(self.background, len(X))))

    def _of_words(self) -> Callable[[np.ndarray], np.ndarray]:
        shap = needed("shap", "bench")
        return self._by(shap, lambda Z: self.model_.predict(self.encode(sp.csr_array(Z))), np.zeros((1, self.n_readable_)))

    def _by(self, shap: Any, predict: Callable[[np.ndarray], np.ndarray], background: Any) -> Any:
        explainer = shap.KernelExplainer(predict, background)

        def explain(rows: np.ndarray) -> np.ndarray:
            state = np.random.get_state()  # noqa: NPY002 (shap draws from the global generator)
            np.random.seed(self._seed())  # noqa: NPY002
            try:
                options = {"nsamples": self.nsamples, "silent": True}
                return np.vstack(
                    [explainer.shap_values(row[None], l1_reg=self._selection(row), **options) for row in rows]
                    or [np.empty(rows.shape)]
                )
            finally:
                np.random.set_state(state)  # noqa: NPY002

        return explain

    def _selection(self, row: np.ndarray) -> Any:
        if self.l1_reg != "auto":
            return self.l1_reg
        varying = np.count_nonzero(row) if self.encode else row.size
        tried = 2 * varying + 2048 if self.nsamples == "auto" else self.nsamples
        return "aic" if tried < 0.2 * 2.0**varying else False
