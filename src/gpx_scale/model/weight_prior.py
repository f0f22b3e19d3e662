"""The prior of the weights, the one place where the readable features Z and the kernel meet.

    w_l(x) = sum_t g_tl(x) + e_l,    g_tl ~ GP(0, variance_tl k_t),    e_l ~ N(0, sigma_w^2)
    f(x)   = w(x).z
    S_ij   = Cov[f_i, f_j] without e = sum_t k_t(x_i, x_j) <z_i, Lambda_t z_j>

where Lambda_t is the diagonal matrix of the variances of term t. The paper's model has one term
whose variances are 1. A term works with the scaled features Z_t = Z Lambda_t^1/2, of which only
the columns with a positive variance exist: S = sum_t K_t o Z_t Z_t^T. The noise e has the features
as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..data.features import Features, SparseFeatures
from ..data.inputs import InputRows
from ..errors import NotPositiveDefinite
from ..kernels.kernel import Kernel, Prepared
from ..runtime.arguments import LARGEST_SQUARE
from ..runtime.parallel import TILE_ROWS, slices
from ..runtime.session import Session
from ..runtime.state import must, stored
from .cross_block import CrossBlock

# These are part of what a prior is used by.
from .cross_covariance import CrossCovariance as CrossCovariance
from .cross_covariance import kernel_matrix as kernel_matrix
from .packed_terms import PackedTerms, TermBlock
from .term import CONSTANT, PARTS, VARYING, Term


def variances(weight_variance: np.ndarray | float, Z: Features) -> np.ndarray:
    """Return weight_variance_i |z_i|^2, or raise an error if float64 cannot represent it.

    (n,), (n, d) -> (n,). A search treats the error like a missing Cholesky factor: it tries another
    point.
    """
    with np.errstate(over="ignore"):
        found: np.ndarray = weight_variance * Z.squared_norms()
    if found.max(initial=0.0) > LARGEST_SQUARE:
        raise NotPositiveDefinite(
            f"The variance of the weights times |z|^2 is {found.max():.1e}, which leaves float64. "
            "Rescale Z, or give a smaller sigma_w and theta1."
        )
    return found


@dataclass(frozen=True)
class PreparedRows:
    """Rows at given parameters: x as the kernel prepares it, and Z. It can be sliced by rows.

    These are for the first term, with its scaled features. `others` are for the further ones.
    """

    points: Prepared
    Z: Features
    others: tuple[PreparedRows, ...] = ()

    @property
    def of_terms(self) -> tuple[PreparedRows, ...]:
        """Return the rows for each term."""
        return (self, *self.others)

    def __len__(self) -> int:
        return len(self.Z)

    def __getitem__(self, rows: slice | np.ndarray) -> PreparedRows:
        others = tuple(other[rows] for other in self.others)
        return PreparedRows(self.points[rows], self.Z[rows], others)


@stored
@dataclass(frozen=True)
class WeightPrior:
    """The prior of the weights: its terms, and the standard deviation sigma_w of their noise.

    The first term has the kernel that varies. In the paper's model it is the only one, and all of
    its variances are 1: then weights are `shared`.
    """

    terms: tuple[Term, ...]
    sigma_w: float

    def must_fit(self, d: int) -> None:
        """Raise a ValueError unless the terms, read from a file, are those of d weights."""
        must(self.terms and self.terms[0].part == VARYING, "its first term has no kernel of x")
        alone = self.is_shared or all(term.weight_variances is not None for term in self.terms)
        must(alone, "its weights share a prior, and have more terms")
        for term in self.terms:
            term.must_fit(d)
        named = [(term.part, term.name) for term in self.terms]
        must(len(set(named)) == len(named), "two of its terms have the same name")
        for part in PARTS:
            counts = sum(((term.variances > 0).astype(int) for term in self._of(part)), start=0)
            must(self.is_shared or np.max(counts) <= 1, "a weight has two terms of one part")

    def _of(self, part: str) -> list[Term]:
        """Return the terms of a part of weights that have priors of their own."""
        return [] if self.is_shared else [term for term in self.terms if term.part == part]

    @classmethod
    def of(cls, kernel: Kernel, sigma_w: float) -> WeightPrior:
        """Return the paper's prior: all weights have this kernel."""
        return cls((Term(kernel),), sigma_w)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel of the weights that vary, which the paper's weights share."""
        return self.terms[0].kernel

    @property
    def is_shared(self) -> bool:
        """Return whether all weights have the same prior, which is the paper's."""
        return len(self.terms) == 1 and self.terms[0].weight_variances is None

    @cached_property
    def active(self) -> tuple[Term, ...]:
        """Return the terms that any weight has, and at least the first one."""
        return tuple(term for term in self.terms if term.is_active) or self.terms[:1]

    @property
    def has_constants(self) -> bool:
        """Return whether any weight has a part that is the same everywhere."""
        return not self.is_shared and any(term.part == CONSTANT for term in self.active)

    @property
    def without_constants(self) -> WeightPrior:
        """Return the prior of the parts that vary with x."""
        return replace(self, terms=tuple(term for term in self.terms if term.part != CONSTANT))

    def constant_scales(self) -> np.ndarray:
        """Return the deviations of the constant parts, in the rows of their weights;  (d, c)."""
        return np.hstack(
            [
                np.diag(np.sqrt(term.variances))[:, term.columns]
                for term in self.active
                if term.part == CONSTANT
            ]
        )

    def constant_columns(self, Z: Features) -> np.ndarray:
        """Return B of the constant parts, whose covariance is B B^T;  (n, d) -> (n, c)."""
        return np.hstack(
            [term.scaled(Z).to_dense() for term in self.active if term.part == CONSTANT]
        )

    def with_constants(self, along_others: np.ndarray, along_columns: np.ndarray) -> np.ndarray:
        """Return derivatives by all parameters from those of the prior `without_constants`.

        The others are those by the log variances of constant columns, in the order of
        `constant_columns`. Further ones, of sigma_w and of a likelihood, may follow the first ones.
        """
        if not along_columns.size:
            return along_others
        is_constant = np.concatenate(
            [np.zeros(term.kernel.theta.size, bool) for term in self.terms if term.is_active]
            + [np.full(term.free_variances.size, term.part == CONSTANT) for term in self.terms]
        )
        parts, at = [], 0
        for term in self.active:
            if term.part == CONSTANT:
                size = term.columns.size
                parts.append(term.along_free_variances(along_columns[at : at + size]))
                at += size
        along = np.concatenate(parts)
        found = np.empty((len(along_others) + len(along), *along_others.shape[1:]))
        where = np.zeros(len(found), bool)
        where[: is_constant.size] = is_constant
        found[where], found[~where] = along, along_others
        return found

    @property
    def theta(self) -> np.ndarray:
        """Return the logarithms of the kernels' parameters, of the variances, and of sigma_w.

        (t + 1,). Parameters of a term that no weight has, and variances of 0, are absent.
        """
        with np.errstate(divide="ignore"):  # sigma_w = 0 is allowed. Its logarithm is -inf.
            log_sigma_w = np.log([self.sigma_w])
        kernels, logs = (
            [term.kernel.theta for term in self.terms if term.is_active],
            [np.log(term.free_variances) for term in self.terms],
        )
        return np.concatenate([*kernels, *logs, log_sigma_w])

    @property
    def parameter_kinds(self) -> tuple[str, ...]:
        """Return the kind of each entry of `theta`."""
        active = [term for term in self.terms if term.is_active]
        kernels = [kind for term in active for kind in term.kernel.parameter_kinds]
        variances = ["variance" for term in self.terms for _ in term.free_variances]
        return (*kernels, *variances, "sigma")

    @property
    def held(self) -> np.ndarray:
        """Return which entries of `theta` are not searched for;  (t + 1,).

        The scale theta1 of a single kernel is redundant with free variances, and stays as it is.
        That of each kernel of a sum or a product is not held: only one of them is redundant.
        """
        found = np.zeros(self.theta.size, bool)
        at = 0
        for term in self.terms:
            if not term.is_active:
                continue
            if term.weight_variances is not None and not term.kernel.components:
                kinds = term.kernel.parameter_kinds
                found[at : at + len(kinds)] = [kind == "theta1" for kind in kinds]
            at += term.kernel.theta.size
        return found

    @property
    def of_constants(self) -> np.ndarray:
        """Return which entries of `theta` are variances of constant weights;  (t + 1,)."""
        kernels = sum(term.kernel.theta.size for term in self.terms if term.is_active)
        variances = [
            np.full(term.free_variances.size, term.kernel.is_constant) for term in self.terms
        ]
        return np.concatenate([np.zeros(kernels, bool), *variances, np.zeros(1, bool)])

    def with_theta(self, theta: np.ndarray) -> WeightPrior:
        """Return this prior with other parameters;  (t + 1,)."""
        terms, at = [], 0
        for term in self.terms:
            size = term.kernel.theta.size if term.is_active else 0
            if size:
                term = replace(term, kernel=term.kernel.with_theta(theta[at : at + size]))
            terms.append(term)
            at += size
        for k, term in enumerate(terms):
            size = term.free_variances.size
            if size:
                terms[k] = term.with_free_variances(np.exp(theta[at : at + size]))
            at += size
        return WeightPrior(tuple(terms), float(np.exp(theta[at:]).tolist()[0]))

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters by name.

        Variances are those of all weights, 0 where a weight does not have the term. The values of
        columns that are tied are repeated.
        """
        found: dict[str, Any] = {}
        for term in self.terms:
            values = term.kernel.as_dict() if term.is_active else {}
            found |= {f"{term.prefix}{name}": value for name, value in values.items()}
        for part in dict.fromkeys(term.part for term in self.terms if not self.is_shared):
            # No weight has two terms of the same part.
            total = sum(term.variances for term in self.terms if term.part == part)
            found[f"{part}_variances"] = tuple(np.asarray(total).tolist())
        return {**found, "sigma_w": self.sigma_w}

    @property
    def names(self) -> list[str]:
        """Return a name for each entry of `theta`; the entries of a vector are numbered.

        Infinite length scales belong to columns that are not used, and have no name. A variance has
        the number of its column of Z, the first one of those that are tied.
        """
        found = []
        for term in self.terms:
            parameters = term.kernel.as_dict() if term.is_active else {}
            found += [
                f"{term.prefix}{name}[{k}]" if np.ndim(value) else f"{term.prefix}{name}"
                for name, value in parameters.items()
                for k in np.flatnonzero(np.atleast_1d(value) < np.inf)
            ]
        for term in self.terms:
            found += [f"{term.part}_variances[{k}]" for k in term.parameter_columns]
        return [*found, "sigma_w"]

    def packed(self, along: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return derivatives by all parameters but sigma_w from those of each active term.

        They are given by the parameters of a kernel, and by the log variances of the columns;
        (t_k, ...), (d_t, ...) -> (t, ...).
        """
        kernels, variances = [], []
        for term, (along_kernel, along_columns) in zip(self.active, along, strict=True):
            if term.is_active:
                kernels.append(along_kernel)
                variances.append(term.along_free_variances(along_columns))
            else:
                kernels.append(along_kernel[:0])
        return np.concatenate([*kernels, *variances])

    def prepare(self, rows: InputRows, dtype: Any = np.float64) -> PreparedRows:
        """Return rows in the form that `tile` and `contract` take, in this dtype;  O(n p)."""
        first, *others = (
            PreparedRows(term.kernel.prepare(rows.x, dtype), term.scaled(rows.Z).astype(dtype))
            for term in self.active
        )
        return replace(first, others=tuple(others))

    def tile(self, a: PreparedRows, b: PreparedRows, inner: np.ndarray | None = None) -> np.ndarray:
        """Return S between rows a and b;  (a, b);  2 d flops and one kernel value per entry.

        `inner` has the products <z_i, z_j> of the first term if the caller knows them already.
        """
        out = a.Z.inner_products(b.Z) if inner is None else inner.copy()
        self.active[0].kernel.multiply(a.points, b.points, out)
        for term, own, other in zip(self.active[1:], a.others, b.others, strict=True):
            more = own.Z.inner_products(other.Z)
            term.kernel.multiply(own.points, other.points, more)
            out += more
        return out

    def contract(
        self, a: PreparedRows, b: PreparedRows, weigh: Callable[[np.ndarray], None]
    ) -> np.ndarray:
        """Return sum_j W_ij dS_ij/dtheta for each row i of a;  (a, t).

        `weigh` multiplies a block (a, b) by W in place. It is a function and not the matrix W so
        that W can be computed and multiplied in one pass.
        """
        if self.is_shared:
            G = a.Z.inner_products(b.Z)
            weigh(G)
            return self.kernel.contract_gradient(a.points, b.points, G)
        W = np.ones((len(a), len(b)), a.Z.arrays[-1].dtype)
        weigh(W)
        along = []
        for term, own, other in zip(self.active, a.of_terms, b.of_terms, strict=True):
            K = W.copy()
            term.kernel.multiply(own.points, other.points, K)
            along_columns = own.Z.to_dense() * other.Z.left_products(K)
            G = W * own.Z.inner_products(other.Z)
            along_kernel = term.kernel.contract_gradient(own.points, other.points, G)
            along.append((along_kernel.T, along_columns.T))
        return self.packed(along).T

    def contract_matrix(
        self, a: PreparedRows, b: PreparedRows, W: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_j W_ij dS_ij/dtheta for each row i of a, and the row sums of W o S.

        (a, b) -> (a, t), (a,);  one kernel value per entry, in parallel.
        """
        if not self.is_shared and (terms := self._term_block(a, b, session)) is not None:
            return self._of_sums(terms.a, terms.contract(W))
        if self.is_shared and (block := self._block(a, b, session)) is not None:
            return block.contract(W)
        return self._contract_tiles(a, b, lambda rows, cols: W[rows, cols], session)

    def contract_product(
        self, a: PreparedRows, b: PreparedRows, U: np.ndarray, V: np.ndarray, session: Session
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `contract_matrix` for W = U V^T, which is never stored.

        (a, c), (b, c) -> (a, t), (a,);  one kernel value and 2 c flops per entry, in parallel.
        """
        if not self.is_shared and (terms := self._term_block(a, b, session)) is not None:
            return self._of_sums(terms.a, terms.contract_product(U, V))
        if self.is_shared and (block := self._block(a, b, session)) is not None:
            return block.contract_product(U, V)
        return self._contract_tiles(a, b, lambda rows, cols: U[rows] @ V[cols].T, session)

    def _block(self, a: PreparedRows, b: PreparedRows, session: Session) -> CrossBlock | None:
        """Return the block between rows a and b; None if it has no compiled form."""
        return CrossBlock.of(self.kernel, a.points, b.points, (a.Z, b.Z), session.executor.n_jobs)

    def _term_block(self, a: PreparedRows, b: PreparedRows, session: Session) -> TermBlock | None:
        """Return the block of a sum of terms; None if a kernel has no compiled form."""
        first, second = self.pack(a), self.pack(b)
        if first is None or second is None:
            return None
        return TermBlock(first, second, session.executor.n_jobs)

    def pack(self, rows: PreparedRows) -> PackedTerms | None:
        """Return rows as loops over a sum of terms take them; None if there is no such form.

        It is there for a dense Z, and kernels with compiled loops.
        """
        if rows.Z.is_sparse:
            return None
        of_terms = list(zip(self.active, rows.of_terms, strict=True))
        found = [term.kernel.profile(own.points) for term, own in of_terms]
        profiles = tuple(profile for profile in found if profile is not None)
        if len(profiles) < len(found):
            return None
        return PackedTerms(profiles, tuple(own.Z.to_dense() for _, own in of_terms))

    def of_sums(self, rows: PackedTerms, sums: np.ndarray) -> np.ndarray:
        """Return derivatives by all parameters but sigma_w from those of loops over terms.

        (width, ...) -> (t, ...)
        """
        of_terms = zip(self.active, rows.apart(sums), strict=True)
        return self.packed(
            (term.kernel.gradient_of_sums(of_kernel), of_variances)
            for term, (of_kernel, of_variances) in of_terms
        )

    def _of_sums(self, rows: PackedTerms, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the results of `contract_matrix` from sums for each row;  (a, width).

        As S is linear in the variances, it is the sum of its derivatives by their logarithms.
        """
        along_variances = [of_variances for _, of_variances in rows.apart(sums.T)]
        return self.of_sums(rows, sums.T).T, np.concatenate(along_variances).sum(axis=0)

    def _contract_tiles(
        self,
        a: PreparedRows,
        b: PreparedRows,
        weights: Callable[[slice, slice], np.ndarray],
        session: Session,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `contract_matrix` tile by tile, for kernels of any form.

        `weights` returns W of some rows and columns.
        """

        def one(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            count = rows.stop - rows.start
            along, sums = np.zeros((count, self.theta.size - 1)), np.zeros(count)
            for cols in slices(len(b), TILE_ROWS):
                W, own, others = weights(rows, cols), a[rows], b[cols]

                def weigh(G: np.ndarray, W: np.ndarray = W) -> None:
                    G *= W

                along += self.contract(own, others, weigh)
                if self.is_shared:
                    S = self.tile(own, others, own.Z.inner_products(others.Z) * W)
                else:
                    S = self.tile(own, others) * W
                sums += S.sum(axis=1)
            return along, sums

        found = session.executor.map(one, slices(len(a), TILE_ROWS))
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def contract_inputs(
        self, a: PreparedRows, b: PreparedRows, W: np.ndarray, weighed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return sum_j W_ij dS_ij by x_i and, if Z is dense, by z_i;  (a, b) -> (a, p), (a, d).

        `weighed` is W_ij <z_i, z_j>, which callers have already; it is overwritten.
        """
        if not self.is_shared:
            return self._contract_inputs_of_terms(a, b, W)
        by_z = None
        if not b.Z.is_sparse:
            K = np.array(W, order="C")
            self.kernel.multiply(a.points, b.points, K)
            by_z = K @ b.Z.to_dense()
        return self.kernel.contract_input_gradient(a.points, b.points, weighed), by_z

    def _contract_inputs_of_terms(
        self, a: PreparedRows, b: PreparedRows, W: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what `contract_inputs` does for a sum of terms, by z before it is scaled."""
        by_x: np.ndarray | float = 0.0
        by_z = np.zeros((len(a), self.terms[0].variances.size))
        for term, own, other in zip(self.active, a.of_terms, b.of_terms, strict=True):
            G = np.ascontiguousarray(W * own.Z.inner_products(other.Z))
            by_x = by_x + term.kernel.contract_input_gradient(own.points, other.points, G)
            if term.is_active:
                K = np.array(W, order="C")
                term.kernel.multiply(own.points, other.points, K)
                roots = np.sqrt(term.variances[term.columns])
                by_z[:, term.columns] += roots * (K @ other.Z.to_dense())
        return np.asarray(by_x), by_z

    def contract_diagonal(self, a: PreparedRows, weights: np.ndarray) -> np.ndarray:
        """Return sum_i weights_i dS_ii/dtheta of a sum of terms;  (n,) -> (t,)."""
        along = []
        for term, own in zip(self.active, a.of_terms, strict=True):
            squares = np.square(own.Z.to_dense())
            of_kernel = (weights * squares.sum(axis=1)) @ term.kernel.diagonal_gradient(own.points)
            of_columns = (weights * term.kernel.diagonal(own.points)) @ squares
            along.append((of_kernel, of_columns))
        return self.packed(along)

    def diagonal(self, a: PreparedRows) -> np.ndarray:
        """Return S_ii, analytically and not from products of rows;  (n,).

        S_ii = sum_t k_t(x_i, x_i) |z_ti|^2 with the scaled features z_t.
        """
        first, *others = (
            variances(term.kernel.diagonal(own.points), own.Z)
            for term, own in zip(self.active, a.of_terms, strict=True)
        )
        return _added(first, others)

    def diagonal_gradient(self, a: PreparedRows) -> np.ndarray:
        """Return the derivatives of k(x_i, x_i) by theta, which is not yet dS_ii/dtheta;  (n, t).

        dS_ii/dtheta is |z_i|^2 times that.
        """
        return self.kernel.diagonal_gradient(a.points)

    def block(self, a: PreparedRows, b: PreparedRows, session: Session) -> np.ndarray:
        """Return S between rows a and b, formed in parallel;  (a, b)."""
        first, *others = (
            kernel_matrix(term.kernel, own.points, other.points, session, (own.Z, other.Z))
            for term, own, other in zip(self.active, a.of_terms, b.of_terms, strict=True)
        )
        return _added(first, others)

    def variance(self, x: Any) -> np.ndarray:
        """Return the prior variance of each weight without its noise, at x;  (m,), or (m, d).

        It is k(x, x) for all weights if they share their prior, and else has one column for each.
        """
        if self.is_shared:
            return self.kernel.diagonal(self.kernel.prepare(x))
        first, *others = (
            np.multiply.outer(term.kernel.diagonal(term.kernel.prepare(x)), term.variances)
            for term in self.active
        )
        return _added(first, others)

    def variance_at(self, x: Any, pattern: SparseFeatures, part: str | None = None) -> np.ndarray:
        """Return the prior variance of each weight, or of one part of it, at sparse entries.

        (entries,)
        """
        rows, columns = pattern.entry_rows, pattern.indices[pattern.span]
        found = np.zeros(rows.size)
        for term in self.active:
            if part is None or term.part == part:
                variance = term.kernel.diagonal(term.kernel.prepare(x))[rows]
                if term.weight_variances is not None:
                    variance = variance * term.weight_variances[columns]
                found += variance
        return found

    def latent_variance(self, x: Any, A: Features) -> np.ndarray:
        """Return the prior variance of a_i . g(x_i);  (m, d) -> (m,)."""
        return self._latent_variance(self.prepare(InputRows(x, A)))

    def variance_of_part(self, part: str, x: Any) -> np.ndarray:
        """Return the prior variance of one part of each weight, at x.

        It has the shape of `variance`, and does not contain the noise.
        """
        some = tuple(term for term in self.terms if term.part == part)
        if some:
            return replace(self, terms=some).variance(x)
        without: np.ndarray = 0.0 * self.variance(x)
        return without

    def joint(self, x: Any, A: Features, session: Session) -> np.ndarray:
        """Return the prior covariance of a_i . g(x_i) between all queries i;  (m, d) -> (m, m)."""
        rows = self.prepare(InputRows(x, A))
        joint = self.block(rows, rows, session)
        joint[np.diag_indices(len(joint))] = self._latent_variance(rows)
        return joint

    def joint_of_weights(self, x: Any, d: int, session: Session) -> np.ndarray:
        """Return the prior covariance of all d weights of all queries;  (m d, m d)."""
        total = np.zeros((len(x) * d, len(x) * d))
        for term in self.active:
            points = term.kernel.prepare(x)
            K = kernel_matrix(term.kernel, points, points, session)
            K[np.diag_indices(len(K))] = term.kernel.diagonal(points)
            by_weight = np.ones(d) if term.weight_variances is None else term.weight_variances
            total += np.kron(K, np.diag(by_weight))
        return total

    def _latent_variance(self, rows: PreparedRows) -> np.ndarray:
        """Return the prior variance of a_i . g(x_i) for prepared rows (x, A);  (m,)."""
        first, *others = (
            term.kernel.diagonal(own.points) * own.Z.squared_norms()
            for term, own in zip(self.active, rows.of_terms, strict=True)
        )
        return _added(first, others)

    def cross(
        self, x: Any, rows: InputRows, session: Session, own: slice | None = None
    ) -> CrossCovariance:
        """Return Cov[g_l(x*_i), f_j] between queries and rows;  m n kernel values per term.

        If the queries are training rows whose own weights w_i = g(x_i) + e_i are asked for, `own`
        says which rows they are, and the covariance of e_i is added.
        """
        first, *others = (self._cross_of(term, x, rows, session) for term in self.active)
        if own is not None and self.is_shared:
            first.K[np.arange(len(first)), np.arange(own.start, own.stop)] += self.sigma_w**2
        elif own is not None:
            # The noise e has the same variance for all weights, so it is a term of its own.
            K = np.zeros_like(first.K)
            K[np.arange(len(first)), np.arange(own.start, own.stop)] = self.sigma_w**2
            others.append(CrossCovariance(K, rows.Z, None, first.points))
        return replace(first, others=tuple(others)) if others else first

    def _cross_of(self, term: Term, x: Any, rows: InputRows, session: Session) -> CrossCovariance:
        """Return the covariance of the weights' part of one term with f at the rows."""
        points = term.kernel.prepare(x)
        K = kernel_matrix(term.kernel, points, term.kernel.prepare(rows.x), session)
        return CrossCovariance(
            K, rows.Z, term.kernel, points, term.weight_variances, part=term.part
        )


def _added(first: np.ndarray, others: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays; the first one is overwritten."""
    for other in others:
        first += other
    return first
