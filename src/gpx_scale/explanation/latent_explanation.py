"""The class `LatentExplanation`: explanations of counts on the scale of the latent function."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..likelihoods import Likelihood
from .explanation import Explanation
from .intervals import entrywise


@dataclass(frozen=True, eq=False, repr=False)
class LatentExplanation(Explanation):
    """Explanations of counts by d features, on the scale of the latent function f.

    `GPXRegressor.explain` returns one for the likelihoods "poisson", "negbinomial" and "binomial".
    `prediction` is the mean of f, to which base values and contributions add up, and
    `prediction_std` its standard deviation: f is the logarithm of the mean count, or of the odds of
    a success. All other fields and methods are those of `Explanation`.

    Attributes
    ----------
    expected : ndarray of shape (m,)
        The mean of y at the given offset: the mean count, or the mean share of successes.
    likelihood : Likelihood or None
        The likelihood of the model.

    Examples
    --------
    >>> from gpx_scale import GPXRegressor
    >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
    >>> y = np.random.RandomState(0).poisson(np.exp(1.0 + X[:, 0]))
    >>> model = GPXRegressor("rbf", likelihood="poisson", fit_intercept=False).fit(X, y)
    >>> explanation = model.explain(X)
    >>> explanation
    LatentExplanation(60 samples, 1 features, with uncertainty)
    >>> bool(np.allclose(explanation.expected, model.predict(X)))
    True
    """

    expected: np.ndarray | None = None
    likelihood: Likelihood | None = None

    @property
    def factors(self) -> Any:
        """The factors by which each feature multiplies the mean count, or the odds;  (m, d).

        A factor of 1.8 stands for 80% more, and one of 0.5 for half. It is exp of the contribution,
        and 1 for a feature at its baseline. The factors of a row and exp of its base value multiply
        to exp of the latent function.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
        >>> y = np.random.RandomState(0).poisson(np.exp(1.0 + X[:, 0]))
        >>> model = GPXRegressor("rbf", likelihood="poisson", fit_intercept=False).fit(X, y)
        >>> model.explain(X[:5]).factors.shape
        (5, 1)
        """
        return entrywise(np.exp, self.contributions)


def explanation_of_counts(
    found: Explanation, variance: np.ndarray, likelihood: Likelihood
) -> LatentExplanation:
    """Return the explanation of counts from that of their latent function.

    `variance` (m,) is that of f.
    """
    known = {field.name: getattr(found, field.name) for field in fields(found)}
    expected, _ = likelihood.predict(known["prediction"], variance)
    kind = "mean" if likelihood.has_exponential_mean else "odds"
    name = "a count" if found.target_name is None else found.target_name
    known["target_name"] = f"logarithm of the {kind} of {name}"
    return LatentExplanation(**known, expected=expected, likelihood=likelihood)
