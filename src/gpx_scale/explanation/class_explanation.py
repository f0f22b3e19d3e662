"""The class `ClassExplanation`: explanations of a class on the scale of the latent function."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from ..errors import InputError
from ..likelihoods import BernoulliLikelihood
from .explanation import Explanation, joined
from .intervals import entrywise
from .words import paragraph_of_class

# The fields of an explanation that change their sign for the other one of two classes.
SIGNED = ("weights", "contributions", "base_values", "prediction", "constant", "own", "varying")


@dataclass(frozen=True, eq=False, repr=False)
class ClassExplanation(Explanation):
    """Explanations of a class by d features, on the scale of the latent function f.

    `GPXClassifier.explain` returns one. `prediction` is the mean of f, to which base values and
    contributions add up, and `prediction_std` its standard deviation. With the logit link, f is the
    logarithm of the odds p / (1 - p). All other fields and methods are those of `Explanation`.

    Attributes
    ----------
    classes : ndarray of shape (m,)
        The class that each sample is explained for.
    probability : ndarray of shape (m,)
        The probability of this class. With more than two classes, it is that of this class against
        all others, before the probabilities of all classes are divided by their sum.
    likelihood : BernoulliLikelihood or None
        The likelihood of the model.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from gpx_scale import GPXClassifier
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = GPXClassifier("rbf", fit_intercept=False, optimizer=None).fit(X[:100], y[:100])
    >>> explanation = model.explain(X[:100])
    >>> total = explanation.base_values + explanation.contributions.sum(axis=1)
    >>> bool(np.allclose(total, explanation.prediction))
    True
    """

    classes: np.ndarray | None = None
    probability: np.ndarray | None = None
    likelihood: BernoulliLikelihood | None = None

    is_latent: ClassVar[bool] = True

    def _paragraph(self, *asked: Any) -> str:
        return paragraph_of_class(self, *asked)

    @property
    def odds_factors(self) -> Any:
        """The factors by which each feature multiplies the odds of the class;  (m, d).

        A factor of 1.8 raises the odds by 80%; one of 0.5 halves them. It is exp of the
        contribution, and 1 for a feature at its baseline.

        Raises
        ------
        InputError
            If the link is not "logit", so that f is not the logarithm of odds.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=False, optimizer=None)
        >>> model.fit(X[:100], y[:100]).explain(X[:5]).odds_factors.shape
        (5, 4)
        """
        assert self.likelihood is not None
        if self.likelihood.link != "logit":
            raise InputError(
                f"With link={self.likelihood.link!r}, features do not multiply odds. Use "
                "probability_changes, or fit the model with link='logit'."
            )
        return entrywise(np.exp, self.contributions)

    @property
    def probability_changes(self) -> Any:
        """The change of the probability that each feature makes;  (m, d).

        It is the probability minus that of a sample whose f lacks this contribution. These changes
        do not add up, because the probability is not linear in f.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from gpx_scale import GPXClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GPXClassifier("rbf", fit_intercept=False, optimizer=None)
        >>> changes = model.fit(X[:100], y[:100]).explain(X[:5]).probability_changes
        >>> bool((abs(changes) < 1.0).all())
        True
        """
        assert self.likelihood is not None
        assert self.probability is not None
        std = np.zeros(len(self)) if self.prediction_std is None else self.prediction_std
        entries = self.entries()
        row, contribution = entries["sample"], entries["contribution"]
        without, _ = self.likelihood.predict(self.prediction[row] - contribution, std[row] ** 2)
        changes = self.probability[row] - without
        if isinstance(self.contributions, np.ndarray):
            return changes.reshape(self.contributions.shape)
        return _with_entries(self.contributions, changes)


def explanation_of_class(
    found: Explanation,
    variance: np.ndarray,
    likelihood: BernoulliLikelihood,
    label: Any,
    is_other: bool,
) -> ClassExplanation:
    """Return the explanation of a class from that of a latent function.

    `variance` (m,) is that of f. If the class `is_other`, f speaks against it.
    """
    known = {field.name: getattr(found, field.name) for field in fields(found)}
    if is_other:
        known |= {name: -known[name] for name in SIGNED if known[name] is not None}
    probability, _ = likelihood.predict(known["prediction"], variance)
    known |= {"classes": np.full(len(found), label), "probability": probability}
    known["target_name"] = _name_of_f(found.target_name, label, likelihood)
    return ClassExplanation(**known, likelihood=likelihood)


def _name_of_f(target: str | None, label: Any, likelihood: BernoulliLikelihood) -> str:
    """Return what the latent function of a class is called, in plots, reports and sentences."""
    of_class = f"{label}" if target is None else f"{target} = {label}"
    kind = "logarithm of the odds" if likelihood.link == "logit" else "latent function"
    return f"{kind} of {of_class}"


def _with_entries(like: Any, values: np.ndarray) -> Any:
    """Return a sparse array with the pattern of another one."""
    made = like.copy()
    made.data = values
    return made


def in_order(parts: list[ClassExplanation], rows: list[np.ndarray]) -> ClassExplanation:
    """Return one explanation of all rows from those of some rows each, in the order of the rows."""
    order = np.argsort(np.concatenate(rows), kind="stable")
    together: ClassExplanation = joined(parts)[order]  # type: ignore[assignment]
    if len(parts) == 1:
        return together
    return replace(together, target_name="latent function of the explained class")
