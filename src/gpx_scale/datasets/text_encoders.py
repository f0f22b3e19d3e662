"""Transformers of texts: z says which words a text contains, x is a vector of the whole text.

They are fitted on the training texts, as `z_transformer` and `x_transformer` of a model.
"""

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

# The paper uses vectors of 512 dimensions from sentence-transformers, and does not name the model.
# This one has as many dimensions and is multilingual.
DEFAULT_ENCODER = "distiluse-base-multilingual-cased-v2"
# The attributes of an LSA that a model file always holds.
ARGUMENTS = ("n_components", "random_state")
# The attributes that a model file holds in addition once the LSA is fitted.
LEARNED = ("tfidf_", "components_")


def bag_of_words(min_count: int = 2) -> CountVectorizer:
    """Return an unfitted transformer that says which words each text contains.

    z_l = 1 if the text contains word l, and 0 otherwise;  n texts -> sparse (n, d).

    Parameters
    ----------
    min_count : int, default=2
        The number of texts that must contain a word for it to be a feature. The paper takes 2 for
        the data set Paper and 5 for Drug, which `load_paper` and `load_drug` return as `min_count`.

    Returns
    -------
    sklearn.feature_extraction.text.CountVectorizer
        The transformer, to be used as `z_transformer`.

    Examples
    --------
    >>> from gpx_scale.datasets import bag_of_words
    >>> words = bag_of_words(min_count=2)
    >>> words.fit_transform(["a good film", "a bad film"]).toarray().tolist()
    [[1], [1]]
    >>> words.get_feature_names_out().tolist()
    ['film']
    """
    return CountVectorizer(binary=True, min_df=whole(min_count, "min_count", least=1))


def sentence_vectors(
    encoder: str = "auto", n_components: int = 100, random_state: Any = 0
) -> LSA | SentenceEncoder:
    """Return an unfitted transformer of texts into vectors.

    Parameters
    ----------
    encoder : str, default="auto"
        "lsa" is latent semantic analysis. The name of a model of the package
        sentence-transformers takes that model. "auto" takes
        distiluse-base-multilingual-cased-v2, which has 512 dimensions as the vectors of the
        paper, if the package is installed, and otherwise LSA. If the package is there and the
        model does not load, LSA is taken with a warning.
    n_components : int, default=100
        The number of dimensions of LSA.
    random_state : int, RandomState or None, default=0
        The seed of LSA.

    Returns
    -------
    LSA or SentenceEncoder
        The transformer, to be used as `x_transformer`. Its attribute `encoder` says which it is.

    Raises
    ------
    InputError
        If `encoder` is no string, or names a model that cannot be loaded.
    ImportError
        If `encoder` names a model and sentence-transformers is not installed.

    Examples
    --------
    >>> from gpx_scale.datasets import sentence_vectors
    >>> vectors = sentence_vectors("lsa", n_components=2)
    >>> vectors.fit_transform(["a good film", "a bad film", "a book"]).shape
    (3, 2)
    """
    if not isinstance(encoder, str):
        raise InputError(
            f"encoder={encoder!r}: Give 'auto', 'lsa' or the name of a model of "
            "sentence-transformers."
        )
    if encoder == "lsa":
        return LSA(n_components, random_state)
    if encoder != "auto":
        _model(encoder)
        return SentenceEncoder(encoder)
    try:
        _model(DEFAULT_ENCODER)
    except ImportError:
        return LSA(n_components, random_state)
    except InputError as error:
        warnings.warn(
            f"{error} LSA is used instead; encoder='lsa' takes it without this warning.",
            GPXWarning,
            stacklevel=2,
        )
        return LSA(n_components, random_state)
    return SentenceEncoder(DEFAULT_ENCODER)


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
class LSA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of texts into vectors by latent semantic analysis.

    ``x = V^T t / |V^T t|``, where t is the tf-idf vector of a text, with 1 + log tf, and V has the
    leading right singular vectors of the tf-idf matrix of the training texts as its columns;
    n texts -> (n, k), with k the least of `n_components`, the number of training texts and that of
    their words.

    Parameters
    ----------
    n_components : int, default=100
        The number of dimensions.
    random_state : int, RandomState or None, default=0
        The seed of the randomised singular value decomposition.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.datasets import LSA
    >>> X = LSA(n_components=2).fit_transform(["a good film", "a bad film", "a book"])
    >>> bool(np.allclose(np.linalg.norm(X, axis=1), 1.0))
    True
    """

    encoder = "lsa"
    tfidf_: TfidfVectorizer
    components_: np.ndarray

    def __init__(self, n_components: int = 100, random_state: Any = 0) -> None:
        self.n_components = n_components
        self.random_state = random_state

    def fit(self, texts: Iterable[str], y: Any = None) -> LSA:
        """Learn the words and the singular vectors of the training texts.

        Parameters
        ----------
        texts : iterable of str
            The training texts.
        y : object, optional
            Ignored; scikit-learn's pipelines pass it.

        Returns
        -------
        LSA
            This transformer.

        Raises
        ------
        InputError
            If `n_components` is less than 1.

        Examples
        --------
        >>> from gpx_scale.datasets import LSA
        >>> LSA(n_components=2).fit(["a good film", "a bad film", "a book"]).components_.shape
        (2, 4)
        """
        if not self.n_components >= 1:
            raise InputError(f"n_components={self.n_components!r}: Give 1 or more.")
        self.tfidf_ = TfidfVectorizer(sublinear_tf=True)
        T = self.tfidf_.fit_transform(texts)
        # This is what TruncatedSVD does, except that it refuses more components than words, and a
        # single word.
        k = min(self.n_components, *T.shape)
        _, _, self.components_ = randomized_svd(T, k, n_iter=5, random_state=self.random_state)
        return self

    def transform(self, texts: Iterable[str]) -> np.ndarray:
        """Return the vectors of texts.

        Parameters
        ----------
        texts : iterable of str
            The texts.

        Returns
        -------
        ndarray of shape (n, k)
            A vector per text, of length 1, or 0 if the text has no word of the training texts.

        Examples
        --------
        >>> from gpx_scale.datasets import LSA
        >>> encoder = LSA(n_components=2).fit(["a good film", "a bad film", "a book"])
        >>> encoder.transform(["another film"]).shape
        (1, 2)
        """
        check_is_fitted(self)
        vectors: np.ndarray = normalize(self.tfidf_.transform(texts) @ self.components_.T)
        return vectors


class SentenceEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of texts into the vectors of a model of sentence-transformers.

    n texts -> (n, p). Nothing is fitted. Copies and files of this transformer hold the name of the
    model and not the model, which is loaded when it is needed.

    Parameters
    ----------
    encoder : str, default="distiluse-base-multilingual-cased-v2"
        The name of the model.
    batch_size : int, default=32
        The number of texts that are encoded at a time.

    Examples
    --------
    >>> from gpx_scale.datasets import SentenceEncoder
    >>> SentenceEncoder().encoder
    'distiluse-base-multilingual-cased-v2'
    """

    def __init__(self, encoder: str = DEFAULT_ENCODER, batch_size: int = 32) -> None:
        self.encoder = encoder
        self.batch_size = batch_size

    def fit(self, texts: Iterable[str], y: Any = None) -> SentenceEncoder:
        """Return this transformer, for which nothing is fitted.

        Parameters
        ----------
        texts : iterable of str
            Ignored.
        y : object, optional
            Ignored.

        Returns
        -------
        SentenceEncoder
            This transformer.

        Examples
        --------
        >>> from gpx_scale.datasets import SentenceEncoder
        >>> SentenceEncoder(batch_size=8).fit(["a text"]).batch_size
        8
        """
        return self

    def transform(self, texts: Iterable[str]) -> np.ndarray:
        """Return the vectors of texts, which needs the package sentence-transformers.

        Parameters
        ----------
        texts : iterable of str
            The texts.

        Returns
        -------
        ndarray of shape (n, p)
            A vector per text.

        Raises
        ------
        InputError
            If one string is given instead of a sequence, or if the model cannot be loaded.
        ImportError
            If sentence-transformers is not installed.

        Examples
        --------
        >>> from gpx_scale.datasets import SentenceEncoder
        >>> SentenceEncoder().transform(["a good film", "a book"]).shape  # doctest: +SKIP
        (2, 512)
        """
        if isinstance(texts, str):
            raise InputError("Give a sequence of texts, not one text.")
        vectors = _model(self.encoder).encode(
            list(texts), batch_size=self.batch_size, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=float)

    def __sklearn_is_fitted__(self) -> bool:
        return True


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """Return a model of sentence-transformers.

    It is loaded once, because that takes seconds and some hundred MB.
    """
    try:
        return importlib.import_module("sentence_transformers").SentenceTransformer(name)
    # Several libraries raise errors of their own here: of files, of the network, of formats.
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "sentence_transformers":
            raise ImportError(
                f"encoder={name!r} needs the package sentence-transformers. Install it, or give "
                "encoder='lsa', which does not need it."
            ) from error
        raise InputError(f"The sentence encoder {name!r} could not be loaded: {error}.") from error
