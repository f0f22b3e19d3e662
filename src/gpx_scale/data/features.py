"""The readable features Z, dense or sparse, behind one interface: products, norms, slices of rows.

    DenseFeatures      an (n, d) array
    SparseFeatures     sparse rows as (pointers, indices, values)

The values of sparse rows are float64, their indices are sorted, and there are no duplicates and no
stored zeros. No operation makes a sparse Z dense beyond what it returns.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp

from ..compiled import sparse as sparse_loops
from ..runtime.parallel import evenly_spaced, slices
from ..runtime.session import Session
from ..runtime.state import must, stored

# The predicted share of pairs that share a feature is checked on this many rows. The standard error
# of the check falls with the square root of this number.
DENSITY_SAMPLE_ROWS = 1024
# The rows of the sample are compared with so many others at once, which bounds the memory.
DENSITY_BLOCK_ROWS = 4096


class Features(abc.ABC):
    """The interface of dense and sparse features Z with n rows and d columns.

    Rows are selected by a slice or by an array of indices.
    """

    is_sparse: ClassVar[bool]

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return (n, d)."""

    @property
    @abc.abstractmethod
    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that make it up."""

    @abc.abstractmethod
    def __getitem__(self, rows: slice | np.ndarray) -> Self:
        """Return the selected rows."""

    @abc.abstractmethod
    def astype(self, dtype: Any) -> Self:
        """Return these features in another dtype; numbers that have it already are shared."""

    @abc.abstractmethod
    def to_dense(self) -> np.ndarray:
        """Return Z as a dense array;  (n, d)."""

    @abc.abstractmethod
    def repeat_row(self, z: np.ndarray, count: int) -> Self:
        """Return `count` rows that all equal z, in the form of this Z;  (d,) -> (count, d)."""

    @abc.abstractmethod
    def with_ones(self) -> Self:
        """Return these features with a further column of ones at the end;  (n, d + 1)."""

    @abc.abstractmethod
    def squared_norms(self) -> np.ndarray:
        """Return |z_i|^2 for all rows;  (n,)."""

    @abc.abstractmethod
    def inner_products(self, other: Self) -> np.ndarray:
        """Return <z_i, z'_j> with m other rows of the same form, as a dense array;  (n, m)."""

    @abc.abstractmethod
    def left_multiply(self, K: np.ndarray, session: Session) -> np.ndarray:
        """Return K Z;  (m, n) -> (m, d)."""

    @abc.abstractmethod
    def right_multiply(self, A: np.ndarray) -> np.ndarray:
        """Return Z A;  (d, c) -> (n, c)."""

    @abc.abstractmethod
    def scale_rows(self, a: np.ndarray) -> Self:
        """Return diag(a) Z;  (n,) -> (n, d)."""

    @abc.abstractmethod
    def scale_columns(self, s: np.ndarray) -> Self:
        """Return Z diag(s);  (d,) -> (n, d)."""

    @abc.abstractmethod
    def at_columns(self, columns: np.ndarray) -> Self:
        """Return some columns, in ascending order;  (c,) -> (n, c)."""

    @abc.abstractmethod
    def squares_times(self, v: np.ndarray) -> np.ndarray:
        """Return (Z o Z) v;  (d,) -> (n,), or (d, c) -> (n, c)."""

    @abc.abstractmethod
    def left_products(self, K: np.ndarray) -> np.ndarray:
        """Return K Z, computed by the caller's thread;  (m, n) -> (m, d)."""

    @abc.abstractmethod
    def row_dots(self, W: np.ndarray) -> np.ndarray:
        """Return w_i . z_i for all rows;  (n, d) -> (n,)."""

    @abc.abstractmethod
    def columns(self, which: slice) -> np.ndarray:
        """Return a slice of c columns as a dense array;  (n, c)."""

    @abc.abstractmethod
    def columns_times(self, K: np.ndarray) -> np.ndarray:
        """Return B^T = Z^T diag(k*) for m queries: [i, l, j] is K_ij z_jl;  (m, n) -> (m, d, n)."""

    @abc.abstractmethod
    def moved_from(self, origin: np.ndarray, columns: np.ndarray) -> Self:
        """Return Z minus `origin` at some columns in ascending order, and 0 at all others.

        (d,), (c,) -> (n, d).
        """

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def pair_density(self) -> float:
        """Return the share of pairs of rows that share a feature."""
        return 1.0

    @property
    def entries_per_row(self) -> int:
        """Return how many numbers a row has, by which memory is planned.

        It is d for dense rows, and the mean number of entries for sparse ones.
        """
        return self.shape[1]


@stored
@dataclass(frozen=True)
class DenseFeatures(Features):
    """Features in a dense array (n, d). Inner products take 2 n m d flops."""

    array: np.ndarray

    is_sparse = False

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.array.shape
        return n, d

    def __getitem__(self, rows: slice | np.ndarray) -> DenseFeatures:
        return DenseFeatures(self.array[rows])

    def astype(self, dtype: Any) -> DenseFeatures:
        return DenseFeatures(self.array.astype(dtype, copy=False))

    @property
    def arrays(self) -> list[np.ndarray]:
        return [self.array]

    def squared_norms(self) -> np.ndarray:
        return np.asarray(np.einsum("ij,ij->i", self.array, self.array))

    def inner_products(self, other: Self) -> np.ndarray:
        return np.asarray(self.array @ other.array.T)

    def columns(self, which: slice) -> np.ndarray:
        return self.array[:, which]

    def to_dense(self) -> np.ndarray:
        return self.array

    def with_ones(self) -> DenseFeatures:
        return DenseFeatures(np.column_stack([self.array, np.ones(len(self.array))]))

    def repeat_row(self, z: np.ndarray, count: int) -> DenseFeatures:
        return DenseFeatures(np.broadcast_to(z, (count, z.size)))

    def at_columns(self, columns: np.ndarray) -> DenseFeatures:
        return DenseFeatures(np.ascontiguousarray(self.array[:, columns]))

    def squares_times(self, v: np.ndarray) -> np.ndarray:
        return np.asarray(np.square(self.array) @ v)

    def left_products(self, K: np.ndarray) -> np.ndarray:
        return np.asarray(K @ self.array)

    def scale_columns(self, s: np.ndarray) -> DenseFeatures:
        return DenseFeatures(self.array * s)

    def moved_from(self, origin: np.ndarray, columns: np.ndarray) -> DenseFeatures:
        moved = np.zeros_like(self.array)
        moved[:, columns] = self.array[:, columns] - origin[columns]
        return DenseFeatures(moved)

    def left_multiply(self, K: np.ndarray, session: Session) -> np.ndarray:
        return session.executor.matmul(K, self.array)

    def right_multiply(self, A: np.ndarray) -> np.ndarray:
        return np.asarray(self.array @ A)

    def scale_rows(self, a: np.ndarray) -> DenseFeatures:
        return DenseFeatures(self.array * a[:, None])

    def row_dots(self, W: np.ndarray) -> np.ndarray:
        return np.asarray((W * self.array).sum(axis=1))

    def columns_times(self, K: np.ndarray) -> np.ndarray:
        # A strided Z^T would take three times as long.
        return np.asarray(K[:, None, :] * np.ascontiguousarray(self.array.T))


def _sparse_features(
    pointers: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    d: int,
) -> SparseFeatures:
    """Return sparse rows that were read from a file, or raise a ValueError if they are not valid.

    Compiled loops use these numbers as addresses, so none may point outside of the arrays.
    """
    must({A.ndim for A in (pointers, indices, values)} == {1}, "the sparse rows are not vectors")
    kinds = [np.dtype(kind) for kind in (np.int64, np.int32, np.float64)]
    must(
        [A.dtype for A in (pointers, indices, values)] == kinds, "the sparse rows have other types"
    )
    must(isinstance(d, int) and d >= 1, "the sparse rows have no columns")
    whole = pointers.size and pointers[0] >= 0 and (np.diff(pointers) >= 0).all()
    inside = not indices.size or (indices.min() >= 0 and indices.max() < d)
    fits = whole and inside and pointers[-1] <= indices.size == values.size
    must(fits, "the sparse rows point outside of themselves")
    ascending = np.diff(indices[pointers[0] : pointers[-1]]) > 0
    starts = pointers[1:-1][(pointers[1:-1] > pointers[0]) & (pointers[1:-1] < pointers[-1])]
    # From one row to the next, columns may descend.
    ascending[starts - pointers[0] - 1] = True
    must(ascending.all(), "the columns of the sparse rows are not in order")
    return SparseFeatures(pointers, indices, values, d)


@stored(make=_sparse_features)
@dataclass(frozen=True)
class SparseFeatures(Features):
    """Features in sparse rows: row i has the entries from pointers[i] to pointers[i + 1].

    pointers (n + 1,) int64, indices and values (entries,) int32 and float64. A slice of rows shares
    `indices` and `values` with the whole.
    """

    pointers: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    d: int

    is_sparse = True

    @classmethod
    def of(cls, matrix: Any) -> SparseFeatures:
        """Return the features of a scipy.sparse matrix, which is not changed."""
        rows = sp.csr_array(matrix, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return cls(
            rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data, rows.shape[1]
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.pointers.size - 1, self.d

    def with_ones(self) -> SparseFeatures:
        ones = np.ones((len(self), 1))
        return SparseFeatures.of(sp.hstack([self.matrix, ones]))

    @property
    def span(self) -> slice:
        """Return where the entries of these rows are in `indices` and `values`."""
        return slice(int(self.pointers[0]), int(self.pointers[-1]))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone, because cached properties can be computed again."""
        return {name: self.__dict__[name] for name in ("pointers", "indices", "values", "d")}

    @property
    def entries_per_row(self) -> int:
        return int(self.counts.mean()) + 1

    @property
    def counts(self) -> np.ndarray:
        """Return the number of entries of each row;  (n,)."""
        return np.diff(self.pointers)

    @property
    def matrix(self) -> sp.csr_array:
        """Return these rows as a scipy.sparse array. The numbers of a slice are copied."""
        return self.with_values(self.values[self.span])

    def with_values(self, values: np.ndarray) -> sp.csr_array:
        """Return a scipy.sparse array with other values at the same entries;  (entries,)."""
        pointers = self.pointers - self.pointers[0]
        kind = np.int32 if values.size < 2**31 else np.int64
        return sp.csr_array(
            (values, self.indices[self.span].astype(kind), pointers.astype(kind)), shape=self.shape
        )

    @property
    def arrays(self) -> list[np.ndarray]:
        return [self.pointers, self.indices[self.span], self.values[self.span]]

    def __getitem__(self, rows: slice | np.ndarray) -> SparseFeatures:
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            return SparseFeatures(
                self.pointers[start : max(start, stop) + 1], self.indices, self.values, self.d
            )
        index = np.arange(len(self))[rows]
        counts = self.counts[index]
        pointers = np.concatenate([[0], np.cumsum(counts)])
        entries = np.arange(pointers[-1]) + np.repeat(self.pointers[index] - pointers[:-1], counts)
        return SparseFeatures(pointers, self.indices[entries], self.values[entries], self.d)

    def astype(self, dtype: Any) -> SparseFeatures:
        return SparseFeatures(
            self.pointers, self.indices, self.values.astype(dtype, copy=False), self.d
        )

    def squared_norms(self) -> np.ndarray:
        return np.asarray(
            self.with_values(self.values[self.span] ** 2).sum(axis=1), dtype=float
        ).ravel()

    @cached_property
    def by_feature(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (starts, rows, values) of the entries, sorted by feature.

        Feature l has the entries from starts[l] to starts[l + 1];  (d + 1,), (entries,),
        (entries,).
        """
        size = self.span.stop - self.span.start
        starts, rows, values = (
            np.zeros(self.d + 1, np.int64),
            np.empty(size, np.int32),
            np.empty(size, self.values.dtype),
        )
        sparse_loops.by_feature(self.pointers, self.indices, self.values, starts, rows, values)
        return starts, rows, values

    def inner_products(self, other: Self) -> np.ndarray:
        """Return <z_i, z'_j>;  (n, m);  it costs one addition per feature that two rows share."""
        out = np.empty((len(self), len(other)), self.values.dtype)
        sparse_loops.sparse_inner(self.pointers, self.indices, self.values, *other.by_feature, out)
        return out

    def left_multiply(self, K: np.ndarray, session: Session) -> np.ndarray:
        Z = self.matrix
        return np.concatenate(
            session.executor.map(
                lambda i: K[i] @ Z, slices(len(K), max(16, -(-len(K) // session.executor.n_jobs)))
            )
        )

    def right_multiply(self, A: np.ndarray) -> np.ndarray:
        return np.asarray(self.matrix @ A)

    def scale_rows(self, a: np.ndarray) -> SparseFeatures:
        each = np.repeat(a, self.counts)
        return SparseFeatures(
            self.pointers - self.pointers[0],
            self.indices[self.span],
            self.values[self.span] * each,
            self.d,
        )

    def row_dots(self, W: np.ndarray) -> np.ndarray:
        """Return w_i . z_i for all rows;  (n, d) -> (n,).

        W may also be given as its values at the entries of these rows;  (entries,).
        """
        at_pattern = W if W.ndim == 1 else W[self.entry_rows, self.indices[self.span]]
        products = self.values[self.span] * at_pattern
        return np.asarray(np.bincount(self.entry_rows, products, minlength=len(self)))

    def to_dense(self) -> np.ndarray:
        return np.asarray(self.matrix.toarray())

    def columns(self, which: slice) -> np.ndarray:
        return np.asarray(self.matrix[:, which].toarray())

    def repeat_row(self, z: np.ndarray, count: int) -> SparseFeatures:
        where = np.flatnonzero(z)
        indices, values = np.tile(where.astype(np.int32), count), np.tile(z[where], count)
        return SparseFeatures(where.size * np.arange(count + 1), indices, values, z.size)

    def squares_times(self, v: np.ndarray) -> np.ndarray:
        return np.asarray(self.with_values(self.values[self.span] ** 2) @ v)

    def left_products(self, K: np.ndarray) -> np.ndarray:
        return np.asarray((self.matrix.T @ K.T).T)

    def scale_columns(self, s: np.ndarray) -> SparseFeatures:
        return replace(self, values=self.values * s[self.indices])

    def at_columns(self, columns: np.ndarray) -> SparseFeatures:
        numbers = np.full(self.d, -1, np.int32)
        numbers[columns] = np.arange(columns.size, dtype=np.int32)
        found = numbers[self.indices[self.span]]
        kept = found >= 0
        ends = np.concatenate([[0], np.cumsum(kept)])[self.pointers - self.pointers[0]]
        return SparseFeatures(ends, found[kept], self.values[self.span][kept], columns.size)

    def moved_from(self, origin: np.ndarray, columns: np.ndarray) -> SparseFeatures:
        block = self.matrix[:, columns]
        if origin[columns].any():
            block = sp.csr_array(block.toarray() - origin[columns])
        placed = block.data, columns[block.indices], block.indptr
        return SparseFeatures.of(sp.csr_array(placed, shape=self.shape))

    @property
    def entry_rows(self) -> np.ndarray:
        """Return the row that each entry is in;  (entries,)."""
        return np.repeat(np.arange(len(self)), self.counts)

    def columns_times(self, K: np.ndarray) -> np.ndarray:
        return np.asarray(K[:, None, :] * self.matrix.T.toarray())

    @cached_property
    def pair_density(self) -> float:
        """Return the share of pairs of rows that share a feature, as an estimate in [0, 1].

        If features were independent, it would be 1 - prod_l (1 - p_l^2), where p_l is the share of
        rows that have feature l. Rows of uneven lengths share fewer features, so the estimate is
        the smaller of two numbers: this one, and the share measured on DENSITY_SAMPLE_ROWS rows
        plus two standard errors.
        """
        shares = np.diff(self.by_feature[0]) / len(self)
        if (shares == 1.0).any():
            return 1.0
        predicted = -np.expm1(np.log1p(-(shares**2)).sum())
        sample = self[evenly_spaced(DENSITY_SAMPLE_ROWS, len(self))]
        # With absolute values, no inner product of rows that share a feature cancels to 0.
        sample, whole = (replace(some, values=np.abs(some.values)) for some in (sample, self))
        met = sum(
            np.count_nonzero(sample.inner_products(whole[rows]), axis=1)
            for rows in slices(len(self), DENSITY_BLOCK_ROWS)
        ) / len(self)
        if len(sample) == len(self):
            return float(np.mean(met))
        return float(min(predicted, np.mean(met) + 2.0 * np.std(met) / np.sqrt(len(sample))))


def full_pattern(shape: tuple[int, int]) -> SparseFeatures:
    """Return m sparse rows that have all d features, with the value 1;  shape is (m, d)."""
    m, d = shape
    return SparseFeatures(
        d * np.arange(m + 1), np.tile(np.arange(d, dtype=np.int32), m), np.ones(m * d), d
    )


def stacked(parts: list[Any]) -> Features:
    """Return the rows of several features of the same form as one, in their order."""
    if isinstance(parts[0], DenseFeatures):
        return DenseFeatures(np.concatenate([part.array for part in parts]))
    counts = np.concatenate([part.counts for part in parts])
    indices = np.concatenate([part.indices[part.span] for part in parts])
    values = np.concatenate([part.values[part.span] for part in parts])
    return SparseFeatures(np.concatenate([[0], np.cumsum(counts)]), indices, values, parts[0].d)
