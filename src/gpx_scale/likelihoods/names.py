"""The likelihoods of numbers by the names that users give."""

from __future__ import annotations

from .classes import BinomialLikelihood
from .counts import NegativeBinomialLikelihood, PoissonLikelihood
from .likelihood import LAPLACE, VARIATIONAL, GaussianLikelihood, Likelihood
from .student import StudentLikelihood

# The names of inference that users may give, and the method that each stands for.
INFERENCE = {"auto": VARIATIONAL, "vi": VARIATIONAL, "laplace": LAPLACE}
# Where a search begins: counts with twice their Poisson variance at a mean of 2, and tails so heavy
# that the variance is just twice that of the middle.
START_DISPERSION = 2.0
START_DEGREES = 4.0
LIKELIHOOD_NAMES = ("gaussian", "poisson", "negbinomial", "binomial", "student")


def likelihood_named(name: str, sigma_y: float, inference: str = VARIATIONAL) -> Likelihood:
    """Return the likelihood of a name of `LIKELIHOOD_NAMES` at its start values."""
    known: dict[str, Likelihood] = {
        "gaussian": GaussianLikelihood(sigma_y),
        "poisson": PoissonLikelihood(inference=inference),
        "negbinomial": NegativeBinomialLikelihood(START_DISPERSION, inference=inference),
        "binomial": BinomialLikelihood(inference=inference),
        "student": StudentLikelihood(sigma_y, START_DEGREES),
    }
    return known[name]
