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
from ..model.weight_prior import kernel_matrix
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
