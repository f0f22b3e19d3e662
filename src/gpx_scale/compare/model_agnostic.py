"""LIME and SHAP: predictions of a GPR, explained by the packages `lime` and `shap` (extra [bench]).

Both packages observe predictions while inputs are changed. If Z has words and x is made from them,
the function `encode` (from a sparse Z to X) lets both packages remove words from a text. Without
it, they change the columns of X. Both draw at random; calls of `weights` for the same rows draw
the same.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Self

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
    """A model that predicts, and the explanations of its predictions by another package."""

    weights_are_contributions = True
    package: str
    model: Any
    encode: Any
    n_jobs: int | None
    random_state: Any

    def fit(self, X: Any, y: Any, Z: Any = None) -> Self:
        """Fit the model to X (n, p) and y (n,), unless it is fitted already."""
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
        """Check the options, and keep the training rows that the package needs."""

    def predict(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the predictions of the model that is explained;  (m,)."""
        check_is_fitted(self, "model_")
        mean: np.ndarray = self.model_.predict(X)
        return mean

    def weights(self, X: Any, Z: Any = None) -> np.ndarray:
        """Return the contributions of the features, which the package computes;  (m, d)."""
        _, rows = asked(self, X, Z if self.encode else None)
        if not len(rows):
            return np.empty(rows.shape)
        return self._of_words(rows) if self.encode else self._of_columns(rows)

    @abc.abstractmethod
    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        """Return the contributions of the columns of X;  (m, p) -> (m, p)."""

    @abc.abstractmethod
    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        """Return the contributions of the words of Z;  (m, d) -> (m, d)."""


class LIME(_Agnostic):
    """Local linear models of predictions, by the package `lime` (extra [bench]).

    Columns are explained by `LimeTabularExplainer`, and words by `LimeTextExplainer`, with their
    default settings.

    Parameters
    ----------
    model : object, default=None
        A model that predicts. It is fitted if it is an estimator that is not fitted yet. None
        fits a `GPR`.
    encode : callable, default=None
        A function from a sparse Z, whose columns are words, to X. With it, words are removed from
        documents. Without it, the columns of X are changed, and Z is not used.
    num_samples : int, default=5000
        The number of samples that are drawn around each row.
    quartiles : bool, default=True
        Whether columns are divided at their quartiles. If not, the weights are slopes and no
        contributions.
    kernel_width : float or None, default=None
        The width of the kernel by which samples are weighted. None is 0.75 times the square root
        of the number of columns, the default of lime.
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.

    Examples
    --------
    The last line needs the package `lime`:

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> method = compare.LIME(num_samples=1000, random_state=0)
    >>> weights = method.fit(X, y).weights(X[:5])  # doctest: +SKIP
    """

    package = "lime.lime_tabular"

    @property
    def weights_are_contributions(self) -> bool:  # type: ignore[override]
        """Whether weights are contributions: of quartiles, or of words.

        Examples
        --------
        >>> from gpx_scale import compare
        >>> compare.LIME().weights_are_contributions
        True
        >>> compare.LIME(quartiles=False).weights_are_contributions
        False
        """
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
        """Check the options, and keep the rows whose quartiles lime needs."""
        whole(self.num_samples, "num_samples", least=2)
        if self.kernel_width is not None:
            positive(self.kernel_width, "kernel_width")
        self._X = X

    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        """Return the weights that `LimeTabularExplainer` finds;  (m, p) -> (m, p)."""
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
        # The slopes of lime are those of standardised columns.
        return found if self.quartiles else found / explainer.scaler.scale_

    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        """Return the weights that `LimeTextExplainer` finds;  (m, d) -> (m, d)."""
        lime, found = import_optional("lime.lime_text", "bench"), np.zeros(rows.shape)
        explainer = lime.LimeTextExplainer(random_state=self._seed)
        for row, out in zip(rows, found, strict=True):
            # A bag of words becomes a text of the numbers of its columns.
            words = [f"w{column}" for column in np.flatnonzero(row)]
            if words:
                how = {"labels": (0,), "num_features": len(words), "num_samples": self.num_samples}
                for word, weight in explainer.explain_instance(
                    " ".join(words), self._reader(row), **how
                ).as_list(label=0):
                    out[int(word[1:])] = weight
        return found

    def _reader(self, row: np.ndarray) -> Callable[[list[str]], np.ndarray]:
        """Return a function that predicts from texts of column numbers, with a row's values."""

        def predict(texts: list[str]) -> np.ndarray:
            columns = [[int(word[1:]) for word in text.split()] for text in texts]
            ends, flat = np.cumsum([0, *map(len, columns)]), np.concatenate(columns).astype(int)
            Z = sp.csr_array((row[flat], flat, ends), shape=(len(texts), row.size))
            mean: np.ndarray = self.model_.predict(self.encode(Z))
            return mean[:, None]

        return predict


class SHAP(_Agnostic):
    """Shapley values of predictions, by `shap.KernelExplainer` (extra [bench]).

    They are estimated by weighted least squares over subsets of features.

    Parameters
    ----------
    model : object, default=None
        A model that predicts. It is fitted if it is an estimator that is not fitted yet. None
        fits a `GPR`.
    encode : callable, default=None
        A function from a sparse Z, whose columns are words, to X. With it, words are removed from
        documents. Without it, the columns of X are changed, and Z is not used.
    background : int or array-like of shape (b, p), default=10
        The rows from which the values of absent features are taken, or their number: they are then
        centres of the training rows by k-means. An absent word is 0.
    nsamples : int or "auto", default="auto"
        The number of subsets for each row. "auto" is the number that shap chooses, which is all of
        them for few features.
    l1_reg : object, default="auto"
        How shap selects features first. "auto" selects by AIC if less than a fifth of all subsets
        are used, and not at all otherwise, as shap did when the paper was written. Later versions
        of shap keep 10 features by default.
    n_jobs : int or None, default=None
        The number of threads, as in `GPXRegressor`.
    random_state : int, RandomState or None, default=None
        The source of randomness.

    Examples
    --------
    The last line needs the package `shap`:

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import scale
    >>> from gpx_scale import compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = scale(X[:60, :3]), scale(y[:60])
    >>> method = compare.SHAP(background=5, random_state=0)
    >>> weights = method.fit(X, y).weights(X[:5])  # doctest: +SKIP
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
        """Keep the background: the given rows, or centres of the training rows."""
        if np.ndim(self.background):
            self._background = dense(self.background)
            if self._background.shape[1:] != X.shape[1:]:
                raise InputError(
                    f"background has shape {self._background.shape}. Give rows of {X.shape[1]} "
                    "columns, as X has."
                )
            return
        centres = whole(self.background, "background", least=1)
        if not self.encode:
            self._background = import_optional("shap", "bench").kmeans(
                X, min(centres, len(np.unique(X, axis=0)))
            )

    def _of_columns(self, rows: np.ndarray) -> np.ndarray:
        """Return the Shapley values of the columns of X;  (m, p) -> (m, p)."""
        return self._values(self.model_.predict, self._background, rows)

    def _of_words(self, rows: np.ndarray) -> np.ndarray:
        """Return the Shapley values of words, relative to a document without words."""
        return self._values(
            lambda Z: self.model_.predict(self.encode(sp.csr_array(Z))),
            np.zeros((1, rows.shape[1])),
            rows,
        )

    def _values(
        self, predict: Callable[[np.ndarray], np.ndarray], background: Any, rows: np.ndarray
    ) -> np.ndarray:
        """Return the Shapley values of rows;  (m, d) -> (m, d).

        shap draws from the global generator of numpy, whose state is restored afterwards.
        """
        explainer = import_optional("shap", "bench").KernelExplainer(predict, background)
        state = np.random.get_state()  # noqa: NPY002
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
        """Return the argument `l1_reg` of shap for one row."""
        if self.l1_reg != "auto":
            return self.l1_reg
        varying = int(np.count_nonzero(row)) if self.encode else row.size
        tried = 2 * varying + 2048 if self.nsamples == "auto" else self.nsamples
        return "aic" if tried < 0.2 * 2.0 ** min(varying, 30) else False
