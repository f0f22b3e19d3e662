"""Priors of the weights that are sums of terms, for the tests of every solver that takes them.

Terms are those of a problem with three columns of X and four of Z.
"""

from dataclasses import dataclass

import numpy as np

from gpx_scale import kernels
from gpx_scale.kernels.constant import Constant
from gpx_scale.likelihoods.likelihood import GaussianLikelihood
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.model.term import Term
from gpx_scale.model.weight_prior import WeightPrior

VARYING = np.array([0.8, 0.0, 1.7, 0.3])
CONSTANT = np.array([0.0, 0.6, 0.9, 0.0])
FIRST = np.array([0.8, 0.0, 0.0, 0.3])
OTHER = np.array([0.0, 0.4, 0.0, 0.0])


def ones(a, b):
    return np.ones((len(a), len(b)))


def by_values(kernel):
    return lambda a, b: kernel(a, b)


@dataclass(frozen=True)
class Case:
    """The terms of a prior, in the words of the package and in those of the oracle."""

    terms: tuple

    @property
    def of_oracle(self):
        found = []
        for term in self.terms:
            k = ones if isinstance(term.kernel, Constant) else by_values(term.kernel)
            found.append((k, term.weight_variances))
        return found

    def hyperparameters(self, problem):
        prior = WeightPrior(self.terms, problem.sigma_w)
        return Hyperparameters(prior, GaussianLikelihood(problem.sigma_y))


RBF, ARD = kernels.RBF(1.0, 2.5), kernels.Matern52(1.0, [2.0, 0.7, 4.0])
RQ = kernels.RationalQuadratic(1.0, 1.5, 1.7)
CASES = {
    "relevance": Case((Term(RBF, VARYING),)),
    "semi": Case((Term(ARD, VARYING), Term(Constant(), CONSTANT))),
    "constant": Case((Term(RBF, 0.0 * VARYING), Term(Constant(), CONSTANT))),
    "nothing": Case((Term(RBF, 0.0 * VARYING), Term(Constant(), 0.0 * CONSTANT))),
    "two kernels": Case(
        (Term(RQ, FIRST, name="z0"), Term(RBF, OTHER, name="z1"), Term(Constant(), CONSTANT))
    ),
    "own curves": Case(
        (
            Term(RBF, np.array([0.5, 0.3, 0.0, 0.0])),
            Term(RBF.of_columns([1], 3), np.array([0.0, 0.7, 0.0, 0.0]), name="own.z1", own=True),
            Term(
                ARD.of_columns([0, 2], 3), np.array([0.0, 0.0, 1.1, 0.0]), name="own.z2", own=True
            ),
            Term(Constant(), CONSTANT),
        )
    ),
    "tied": Case((Term(RBF, np.array([0.5, 0.5, 1.2, 0.5]), np.array([3, 3, 0, 3])),)),
    "a sum of kernels": Case((Term(RBF + ARD, VARYING), Term(Constant(), CONSTANT))),
}
