"""Joint draws of functions at training points and queries, and their update by the data.

Matheron's rule turns a draw of the prior into a draw of the posterior. It adds k(x*, X) times a
correction, which is computed from the difference between the data and the draw.

Shapes use m for the number of training (or inducing) points and q for the number of queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs

from ..data.features import Features
from ..kernels.kernel import Kernel
from ..linalg.cholesky import JOINT_PRIOR_JITTER, factor_with_jitter
from ..linalg.lower_tiles import factor_in_tiles
from ..model.term import CONSTANT, Term
from ..model.weight_prior import WeightPrior, kernel_matrix
from ..runtime.session import Session


@dataclass(frozen=True)
class JointPrior:
    """A Cholesky factor L (m + q, m + q) of k over all points, with k(x*, X) (q, m)."""

    L: np.ndarray
    K_query: np.ndarray

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        x_train: Any,
        x_query: Any,
        nugget: float,
        session: Session,
    ) -> JointPrior:
        """Return the factor of k with `nugget` added to its diagonal;  (m + q)^3/3 flops.

        Without a nugget, k is usually singular to rounding, and jitter is added.
        """
        train, query = kernel.prepare(x_train), kernel.prepare(x_query)
        n = len(train)
        K_query = kernel_matrix(kernel, query, train, session)
        joint = np.empty((n + len(query), n + len(query)))
        joint[:n, :n] = kernel_matrix(kernel, train, train, session)
        joint[n:, :n] = K_query
        joint[n:, n:] = kernel_matrix(kernel, query, query, session)
        own = np.concatenate([kernel.diagonal(train), kernel.diagonal(query)])
        lower, at = np.tril(joint, -1), np.diag_indices(len(joint))

        def fill(jitter: float) -> None:
            joint[...] = lower
            joint[at] = own * (1 + jitter) + nugget

        failure = (
            "The kernel matrix of training rows and queries has no Cholesky factor, so samples "
            "cannot be drawn. Check that the kernel is positive definite."
        )
        L, _ = factor_with_jitter(
            joint,
            own,
            JOINT_PRIOR_JITTER,
            failure,
            routine=partial(factor_in_tiles, n_jobs=session.executor.n_jobs),
            fill=fill,
        )
        return cls(L, K_query)

    def draw(self, d: int, random: np.random.RandomState) -> np.ndarray:
        """Return d functions at all points;  (m + q, d);  (m + q)^2 d flops."""
        (trmm,) = get_blas_funcs(("trmm",), (self.L,))
        e = random.standard_normal((d, len(self.L)))
        functions: np.ndarray = trmm(1.0, self.L.T, e.T, lower=0, trans_a=1, overwrite_b=1)
        return functions

    def moved(
        self,
        draws: np.ndarray,
        corrections: np.ndarray,
        Z: Features,
        session: Session,
    ) -> np.ndarray:
        """Return posterior draws at the queries, made from prior draws in place.

        Matheron's rule gives W_s + k(x*, X) diag(c_s) Z for the draw W_s and its correction c_s;
        (q, d, s), (m, s) -> (q, d, s);  2 q m d s flops.
        """
        for s, correction in enumerate(corrections.T):
            draws[:, :, s] += Z.scale_rows(correction).left_multiply(self.K_query, session)
        return draws


@dataclass(frozen=True)
class ConstantJointPrior(JointPrior):
    """The joint prior of functions that are constant: L is a column of ones, (m + q, 1)."""

    @classmethod
    def at(cls, m: int, q: int) -> ConstantJointPrior:
        """Return the prior at m training rows and q queries."""
        return cls(np.ones((m + q, 1)), np.ones((q, m)))

    def draw(self, d: int, random: np.random.RandomState) -> np.ndarray:
        return self.L * random.standard_normal(d)


@dataclass(frozen=True)
class JointWeightPrior:
    """The joint prior of weights at training rows and queries, of which there may be several terms.

    A term has a factor for functions of variance 1, and the variances of the weights, None if all
    are 1. The noise sigma_w^2 of the weights is part of the first one, or is drawn apart.
    """

    terms: tuple[tuple[JointPrior, np.ndarray | None], ...]
    sigma_w: float = 0.0

    @classmethod
    def of(
        cls, prior: WeightPrior, x_train: Any, x_query: Any, session: Session
    ) -> JointWeightPrior:
        """Return the joint prior of a sum of terms;  (n + m)^3/3 flops for each of them."""
        noise = prior.sigma_w**2 if prior.is_shared else 0.0

        def of_term(term: Term) -> JointPrior:
            if term.part == CONSTANT:
                return ConstantJointPrior.at(len(x_train), len(x_query))
            return JointPrior.of(term.kernel, x_train, x_query, noise, session)

        terms = tuple((of_term(term), term.weight_variances) for term in prior.active)
        return cls(terms, 0.0 if prior.is_shared else prior.sigma_w)

    def draw(self, d: int, random: np.random.RandomState) -> np.ndarray:
        """Return the d weights at all points, noise included;  (n + m, d)."""
        total, *others = (
            W if variances is None else W * np.sqrt(variances)
            for W, variances in ((term.draw(d, random), by) for term, by in self.terms)
        )
        for W in others:
            total += W
        if self.sigma_w:
            total += self.sigma_w * random.standard_normal(total.shape)
        return total

    def moved(
        self, draws: np.ndarray, corrections: np.ndarray, Z: Features, session: Session
    ) -> np.ndarray:
        """Return posterior draws of the weights from prior ones, in place, as `JointPrior.moved`.

        (q, d, s), (n, s) -> (q, d, s);  2 q n d s flops for each term.
        """
        for term, variances in self.terms:
            own = Z if variances is None else Z.scale_columns(variances)
            draws = term.moved(draws, corrections, own, session)
        return draws
