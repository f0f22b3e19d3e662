"""Likelihoods p(y | f): what is known of y where the latent function is f = z . w(x)."""

from .classes import BernoulliLikelihood, BinomialLikelihood, LogitLikelihood, ProbitLikelihood
from .counts import NegativeBinomialLikelihood, PoissonLikelihood
from .likelihood import GaussianLikelihood, Likelihood, Observed
from .names import INFERENCE, LIKELIHOOD_NAMES, likelihood_named
from .sites import Sites
from .student import StudentLikelihood

__all__ = [
    "INFERENCE",
    "LIKELIHOOD_NAMES",
    "BernoulliLikelihood",
    "BinomialLikelihood",
    "GaussianLikelihood",
    "Likelihood",
    "LogitLikelihood",
    "NegativeBinomialLikelihood",
    "Observed",
    "PoissonLikelihood",
    "ProbitLikelihood",
    "Sites",
    "StudentLikelihood",
    "likelihood_named",
]
