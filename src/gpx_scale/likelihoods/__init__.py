"""Likelihoods p(y | f): how an observation depends on the latent function."""

from .likelihood import GaussianLikelihood, Likelihood, Sites

__all__ = ["GaussianLikelihood", "Likelihood", "Sites"]
