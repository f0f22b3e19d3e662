"""The posterior of a basis whose weights have priors of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...data.features import Features
from ...data.inputs import Preprocessor
from ...model.term import CONSTANT, VARYING
from ...runtime.session import Session
from ...runtime.state import must, stored
from ..contract import Plan
from ..posterior import MomentRequest, Moments
from .posterior import BasisPosterior, BlockAddedStatistics, widths
from .remainder import ErrorCovariance
from .term_remainder import TermRemainder, error_covariance, roots
from .term_remainder import statistics_task as remainder_task
from .term_space import TermSpace
from .term_statistics import BlockTermStatistics
from .weight_functions import WeightFunctions


@stored
@dataclass(frozen=True)
class TermBasisPosterior(BasisPosterior):
    """The posterior of the coefficients of M functions, each of which belongs to one weight.

    `cross` has a column for each of them, s_j^1/2 phi_j(x*), and then those of further functions.
    """

    @property
    def terms(self) -> TermSpace:
        """Return the functions and sums."""
        assert isinstance(self.statistics, TermSpace)
        return self.statistics

    @property
    def term_remainder(self) -> TermRemainder | None:
        """Return the further functions, if there are any."""
        assert self.remainder is None or isinstance(self.remainder, TermRemainder)
        return self.remainder

    @property
    def description(self) -> str:
        functions = self.terms.functions
        found = [
            f"{len(one)} functions for {one.weights.size} weights, on a box of half-width "
            f"{widths(one.box)} length scales"
            for one in functions.sets
        ]
        return "; ".join([*found, f"{functions.constants.size} constant functions"])

    @property
    def further_columns(self) -> int:
        remainder = self.term_remainder
        return 0 if remainder is None else int(remainder.outer.owners.size)

    @property
    def own_columns(self) -> int:
        return len(self)

    @property
    def cross_columns(self) -> int:
        return self.own_columns + self.further_columns

    def computed_error_covariance(self, session: Session) -> ErrorCovariance:
        remainder, functions = self.term_remainder, self.terms.functions
        assert remainder is not None
        return error_covariance(functions, remainder, self.hyperparameters, self.inverse, session)

    @cached_property
    def _sets(self) -> list[tuple[WeightFunctions, np.ndarray]]:
        """Return the functions with their roots s^1/2, and the further ones."""
        prior, remainder = self.hyperparameters.weight_prior, self.term_remainder
        found = (
            [self.terms.functions] if remainder is None else [self.terms.functions, remainder.outer]
        )
        return [(functions, roots(functions, prior)) for functions in found]

    def scaled(self, x: np.ndarray) -> np.ndarray:
        return np.hstack([functions.at(x) * root for functions, root in self._sets])

    def owners(self, is_further: bool = False) -> np.ndarray:
        """Return the weight that each column belongs to;  (M,)."""
        return self._sets[int(is_further)][0].owners

    def cross_of_part(self, cross: np.ndarray | None, part: str) -> np.ndarray:
        assert cross is not None
        found, start = np.zeros_like(cross), self.terms.functions.first_constant
        if part == CONSTANT:
            found[:, start : len(self)] = cross[:, start : len(self)]
        elif part == VARYING:
            found[:, :start], found[:, len(self) :] = cross[:, :start], cross[:, len(self) :]
        return found

    def left_by(self, x: Any, count: int | None) -> np.ndarray:
        found = self.hyperparameters.weight_prior.variance(x)
        squares = np.square(self.scaled(self.hyperparameters.kernel.vectors(x)))[:, :count]
        owners = np.concatenate([functions.owners for functions, _ in self._sets])[:count]
        for l in range(self.d):
            found[:, l] -= squares[:, owners == l].sum(axis=1)
        left: np.ndarray = np.maximum(found, 0.0)
        return left

    def shares(self, left: np.ndarray, x: Any) -> np.ndarray:
        prior = self.hyperparameters.weight_prior.variance(x)
        found: np.ndarray = left[prior > 0] / prior[prior > 0]
        return found if found.size else np.zeros(1)

    def mean(
        self, x: Any, cross: np.ndarray | None, session: Session, own: slice | None = None
    ) -> np.ndarray:
        phi = self.split(self.cross(x, session) if cross is None else cross)[0]
        return self.weights_of(phi, self.coefficients[:, None], session)[:, :, 0]

    def with_features(self, phi: np.ndarray, A: Features, is_further: bool = False) -> np.ndarray:
        products: np.ndarray = phi * A.to_dense()[:, self.owners(is_further)]
        return products

    def known_along(self, phi: np.ndarray, A: Features) -> np.ndarray:
        known: np.ndarray = np.square(self.with_features(phi, A)).sum(axis=1)
        return known

    def reduction(self, cross: np.ndarray, request: MomentRequest, session: Session) -> Moments:
        """Return by how much the data reduce the prior variances and covariances of each query.

        It is as with a shared prior, where phi has the columns of one weight only.
        """
        phi, outer = self.split(cross)
        error = self.error_covariance(session)
        matrix = self.inverse if error is None else error.own
        columns = [np.flatnonzero(self.owners() == l) for l in range(self.d)]
        far = [np.flatnonzero(self.owners(True) == l) for l in range(self.d)] if error else []

        def taken(l: int, k: int) -> np.ndarray:
            """Return what is left of the covariance of two weights by the functions;  (m,)."""
            one, other = phi[:, columns[l]], phi[:, columns[k]]
            found = np.einsum("ij,ij->i", one @ matrix[np.ix_(columns[l], columns[k])], other)
            if error is not None:
                for a, b in ((l, k), (k, l)):
                    T = error.crossed[np.ix_(far[a], columns[b])]
                    found -= np.einsum("ij,ij->i", phi[:, columns[b]] @ T.T, outer[:, far[a]])
            return np.asarray(found)

        def known(l: int) -> np.ndarray:
            """Return the prior variance of a weight by the functions;  (m,)."""
            return np.asarray(np.square(phi[:, columns[l]]).sum(axis=1))

        each = full = None
        if request.covariance:
            full = np.empty((len(phi), self.d, self.d))
            pairs = [(l, k) for l in range(self.d) for k in range(l, self.d)]
            for (l, k), found in zip(
                pairs, session.executor.map(lambda pair: taken(*pair), pairs), strict=True
            ):
                full[:, l, k] = full[:, k, l] = (known(l) if l == k else 0.0) - found
            each = np.einsum("ijj->ij", full) if request.variance else None
        elif request.variance:
            reduced = session.executor.map(lambda l: known(l) - taken(l, l), range(self.d))
            each = np.column_stack(reduced)
        return Moments(None, each, full, [self.along(cross, A, session) for A in request.along])

    def weights_of(self, phi: np.ndarray, drawn: np.ndarray, session: Session) -> np.ndarray:
        return _by_owner(phi, drawn, self.owners(), self.d)

    def weights_of_further(self, outer: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return _by_owner(outer, drawn, self.owners(True), self.d)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_sets"}

    def must_fit(self, plan: Plan, preprocessor: Preprocessor) -> None:
        self.must_be_dense(preprocessor)
        must(isinstance(self.statistics, TermSpace), "its functions are those of a shared prior")
        self.terms.must_fit(preprocessor)
        fit = self.terms.covers_lengths(self.hyperparameters)
        must(fit, "its basis was built for other terms or length scales")
        self.must_have_coefficients()
        right = self.remainder is None or isinstance(self.remainder, TermRemainder)
        must(right, "its further functions are something else")
        if (remainder := self.term_remainder) is not None:
            remainder.must_fit(self.terms.functions, preprocessor)

    def statistics_task(self) -> BlockAddedStatistics:
        functions, remainder = self.terms.functions, self.term_remainder
        own = BlockTermStatistics(functions, self.node, within=True)
        if remainder is None:
            return BlockAddedStatistics(own, None)
        more = remainder_task(functions, remainder.outer, self.rho, self.hyperparameters)
        return BlockAddedStatistics(own, more)


def _by_owner(phi: np.ndarray, drawn: np.ndarray, owners: np.ndarray, d: int) -> np.ndarray:
    """Return sums over the columns of each weight;  (m, M), (M, c) -> (m, d, c)."""
    found = np.empty((len(phi), d, drawn.shape[1]))
    for l in range(d):
        found[:, l] = phi[:, owners == l] @ drawn[owners == l]
    return found
