"""Texts as numbers: z, the words that are there, and x, a vector of the whole. To be fitted on the texts that a model is
fitted on, as `z_transformer` and `x_transformer`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import check_is_fitted

from ..errors import GPXWarning, InputError
from ..runtime.arguments import whole
from ..runtime.state import must, stored

# The paper has vectors of 512 dimensions from sentence-transformers, and does not name the model: this one is multilingual.
ENCODER = "distiluse-base-multilingual-cased-v2"
# Attributes of an LSA that a model file holds: always, and once it is fitted.
ARGUMENTS, LEARNED = ("n_components", "random_state"), ("tfidf_", "components_")


def bag_of_words(min_count: int = 2) -> CountVectorizer:
    """z_l = 1 if the document has word l, of the words in at least `min_count` documents;  n texts -> sparse (n, d).

    The paper's cut-offs are 2 for Paper and 5 for Drug: `min_count` of what `load_paper` and `load_drug` return.
    """
    return CountVectorizer(binary=True, min_df=whole(min_count, "min_count", least=1))


def sentence_vectors(
    encoder: str = "auto", n_components: int = 100, random_state: Any = 0
) -> LSA | SentenceEncoder:
    """An unfitted transformer of texts into vectors, whose `encoder` says which it is.

    encoder : "lsa", latent semantic analysis; or the name of a model of the package sentence-transformers, if that is
        installed; or "auto", distiluse-base-multilingual-cased-v2 (512 dimensions, as the paper's) if package and model are
        there, else LSA, with a warning if the package is there and the model does not load.

    n_components, random_state : of LSA.
    """
    if not isinstance(encoder, str):
        raise InputError(
            f"encoder={encoder!r}: give 'auto', 'lsa' or the name of a model of sentence-transformers"
        )
    if encoder == "lsa":
        return LSA(n_components, random_state)
    if encoder != "auto":
        _model(encoder)
        return SentenceEncoder(encoder)
    try:
        _model(ENCODER)
    except ImportError:
        return LSA(n_components, random_state)
    except InputError as error:
        warnings.warn(
            f"{error}; LSA instead (encoder='lsa' takes it at once)", GPXWarning, stacklevel=2
        )
        return LSA(n_components, random_state)
    return SentenceEncoder(ENCODER)


def _written(lsa: LSA) -> dict[str, Any]:
    """Return the arguments of an LSA and, once it is fitted, what it has learned."""
    return {name: value for name, value in vars(lsa).items() if name in (*ARGUMENTS, *LEARNED)}


def _read(n_components: Any, random_state: Any, **learned: Any) -> LSA:
    """Return an LSA from what `_written` has returned."""
    must(learned.keys() in (set(), set(LEARNED)), "an LSA that is half fitted")
    made = LSA(n_components, random_state)
    made.__dict__.update(learned)
    return made


@stored(take=_written, make=_read)
class LSA(TransformerMixin, BaseEstimator):
    """``x = V^T t / |V^T t|``, t a text's tf-idf with 1 + log tf, V the leading right singular vectors of those of the
    training texts;  n texts -> (n, k), k the least of n_components, the training texts and their words."""

    encoder = "lsa"
    tfidf_: TfidfVectorizer
    components_: np.ndarray

    def __init__(self, n_components: int = 100, random_state: Any = 0) -> None:
        self.n_components = n_components
        self.random_state = random_state

    def fit(self, texts: Iterable[str], y: Any = None) -> LSA:
        if not self.n_components >= 1:
            raise InputError(f"n_components={self.n_components!r}: give 1 or more")
        self.tfidf_ = TfidfVectorizer(sublinear_tf=True)
        T = self.tfidf_.fit_transform(texts)
        # As TruncatedSVD does it, which refuses more components than words, and a single word.
        k = min(self.n_components, *T.shape)
        _, _, self.components_ = randomized_svd(T, k, n_iter=5, random_state=self.random_state)
        return self

    def transform(self, texts: Iterable[str]) -> np.ndarray:
        check_is_fitted(self)
        return normalize(self.tfidf_.transform(texts) @ self.components_.T)


class SentenceEncoder(TransformerMixin, BaseEstimator):
    """x = the vector that a model of sentence-transformers gives a text, which nothing is fitted for;  n texts -> (n, p).

    encoder : the model's name, of which a copy of this, and its file, holds no more.
    batch_size : texts that are encoded at a time.
    """

    def __init__(self, encoder: str = ENCODER, batch_size: int = 32) -> None:
        self.encoder = encoder
        self.batch_size = batch_size

    def fit(self, texts: Iterable[str], y: Any = None) -> SentenceEncoder:
        return self

    def transform(self, texts: Iterable[str]) -> np.ndarray:
        if isinstance(texts, str):
            raise InputError("give a sequence of texts, not one text")
        vectors = _model(self.encoder).encode(
            list(texts), batch_size=self.batch_size, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=float)

    def __sklearn_is_fitted__(self) -> bool:
        return True


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """A model, loaded once: it takes seconds and some hundred MB."""
    try:
        return importlib.import_module("sentence_transformers").SentenceTransformer(name)
    except (
        Exception
    ) as error:  # many libraries have their own: of files, of the network, of formats
        if isinstance(error, ModuleNotFoundError) and error.name == "sentence_transformers":
            raise ImportError(
                f"encoder={name!r} needs the package sentence-transformers; encoder='lsa' does not"
            ) from error
        raise InputError(f"the sentence encoder {name!r} could not be loaded: {error}") from error
