"""Strategies for hostile tables: numbers of any scale, dtype, memory layout and container.

Numbers are not drawn entry by entry, but made from a drawn seed and a drawn recipe. So a case is
cheap to draw, and hypothesis shrinks it to a simple recipe.
"""

import numpy as np
import pandas as pd
import scipy.sparse as sp
from hypothesis import strategies as st

from gpx_scale import XZ

MODERATE = (
    "normal",
    "normal",
    "uniform",
    "whole",
    "duplicates",
    "constant column",
    "zero column",
    "shifted",
)
EXTREME = (
    *(
        "huge",
        "large",
        "tiny",
        "denormal",
        "scales",
        "constant",
        "zero",
        "outlier",
        "offset",
        "equal rows",
        "nearly equal",
    ),
    *("one huge", "one denormal", "signed zero", "collinear"),
)
BROKEN = ("nan", "inf", "minus inf", "all nan", "largest")
DTYPES = ("f8", "f8", "f8", "f8", "f4", "f2", "i1", "u1", "i4", "i8", "u8", "?", "g", "O", ">f8")
ODD_DTYPES = ("c16", "S", "U", "M8[s]", "m8[s]", "V8", "objects", "none")
LAYOUTS = (
    "C",
    "C",
    "F",
    "backwards",
    "every second",
    "column cut",
    "read only",
    "list",
    "tuple",
    "frame",
)
ODD_LAYOUTS = (
    *(
        "0-d",
        "1-d",
        "3-d",
        "matrix",
        "masked",
        "mask set",
        "series",
        "odd frame",
        "object frame",
        "nullable frame",
    ),
    *(
        "categorical frame",
        "repeated columns",
        "multi-index",
        "ragged",
        "generator",
        "dict",
        "string",
        "None",
        "number",
    ),
    *("sparse frame", "text frame", "broadcast", "set", "subclass", "range index"),
)
FORMATS = ("csr", "csr", "csc", "coo", "bsr", "dia", "dok", "lil")
QUIRKS = (
    "none",
    "none",
    "zeros",
    "duplicates",
    "unsorted",
    "empty rows",
    "int64",
    "matrix",
    "read only",
    "int values",
    "f4",
)


def numbers(recipe, shape, random):
    """Return the array that a recipe describes."""
    A = random.standard_normal(shape)
    n, p = shape
    if recipe in CHANGES and n and p:
        A = np.array(CHANGES[recipe](A, random), dtype=float)
    return A


def _with(A, at, value):
    A[at] = value
    return A


CHANGES = {
    "uniform": lambda A, r: r.uniform(-1, 1, A.shape),
    "whole": lambda A, r: np.round(2 * A),
    "duplicates": lambda A, r: A[r.randint(0, max(1, len(A) // 2), len(A))],
    "constant column": lambda A, r: _with(A, np.s_[:, -1], 3.0),
    "zero column": lambda A, r: _with(A, np.s_[:, -1], 0.0),
    "shifted": lambda A, r: A + 5.0,
    "huge": lambda A, r: 1e300 * A / np.abs(A).max(),
    "large": lambda A, r: 1e150 * A,
    "tiny": lambda A, r: 1e-300 * A,
    "denormal": lambda A, r: np.round(3 * A) * 5e-324,
    "scales": lambda A, r: A * 10.0 ** r.randint(-12, 12, A.shape[1]),
    "constant": lambda A, r: np.full(A.shape, r.choice([1.0, -2.5, 1e-200, 1e200])),
    "zero": lambda A, r: np.zeros(A.shape),
    "outlier": lambda A, r: _with(A, (r.randint(len(A)), -1), 1e12),
    "offset": lambda A, r: A + 1e9,
    "equal rows": lambda A, r: np.repeat(A[:1], len(A), axis=0),
    "nearly equal": lambda A, r: A[:1] + 1e-9 * A,
    "one huge": lambda A, r: _with(A, (r.randint(len(A)), 0), 1e299),
    "one denormal": lambda A, r: _with(0.0 * A, (r.randint(len(A)), 0), 5e-324),
    "signed zero": lambda A, r: np.copysign(np.zeros(A.shape), A),
    "collinear": lambda A, r: A[:, :1] * np.arange(1.0, A.shape[1] + 1),
    "nan": lambda A, r: _with(A, (r.randint(len(A)), 0), np.nan),
    "inf": lambda A, r: _with(A, (r.randint(len(A)), 0), np.inf),
    "minus inf": lambda A, r: _with(A, (r.randint(len(A)), -1), -np.inf),
    "all nan": lambda A, r: np.full(A.shape, np.nan),
    "largest": lambda A, r: _with(A, (r.randint(len(A)), 0), np.finfo(float).max),
}


def as_dtype(A, dtype):
    """Return these numbers in a dtype, as nearly as it can hold them."""
    if dtype == "objects":
        return np.array([[object() for _ in row] for row in A], dtype=object).reshape(A.shape)
    if dtype == "none":
        return np.full(A.shape, None, dtype=object)
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind in "iumMV":
            limit = 100 if np.dtype(dtype).kind in "iu" else 1000
            whole = np.clip(
                np.nan_to_num(A), 0 if np.dtype(dtype).kind == "u" else -limit, limit
            ).astype("i8")
            return whole.astype(dtype) if dtype != "V8" else whole.view("V8")
        return A.astype(dtype)


class Subclass(np.ndarray):
    """A subclass of numpy's array that adds nothing."""


def laid_out(A, layout, random):
    """Return the same table in another memory layout or container."""
    if layout in CONTAINERS:
        return CONTAINERS[layout](A, random)
    if layout == "F":
        return np.asfortranarray(A)
    if layout == "backwards":
        return A[::-1, ::-1].copy()[::-1, ::-1]
    if layout == "every second":
        return np.repeat(np.repeat(A, 2, axis=0), 3, axis=1)[::2, ::3]
    if layout == "column cut":
        return np.hstack([A, A])[:, : A.shape[1]]
    if layout == "read only":
        A = A.copy()
        A.flags.writeable = False
    return A


CONTAINERS = {
    "list": lambda A, r: A.tolist(),
    "tuple": lambda A, r: tuple(map(tuple, A.tolist())),
    "frame": lambda A, r: pd.DataFrame(A, columns=[f"c{k}" for k in range(A.shape[1])]),
    "range index": lambda A, r: pd.DataFrame(A, index=np.arange(len(A))[::-1] * 7),
    "0-d": lambda A, r: A.ravel()[0] if A.size else np.float64(1.0),
    "1-d": lambda A, r: A[:, 0] if A.shape[1] else A.ravel(),
    "3-d": lambda A, r: A[:, :, None],
    "matrix": lambda A, r: np.asarray(A).view(np.matrix),
    "masked": lambda A, r: np.ma.masked_array(A, mask=False),
    "mask set": lambda A, r: np.ma.masked_array(A, mask=r.rand(*A.shape) < 0.3, fill_value=0),
    "series": lambda A, r: pd.Series(A[:, 0] if A.shape[1] else []),
    "odd frame": lambda A, r: pd.DataFrame(
        A, columns=[None, 3, "", ("a", 1), np.nan, "é", "x y"][: A.shape[1]]
    ),
    "object frame": lambda A, r: pd.DataFrame(A.astype(object)),
    "nullable frame": lambda A, r: pd.DataFrame(A.astype(float)).convert_dtypes(),
    "categorical frame": lambda A, r: pd.DataFrame(A).astype("category"),
    "repeated columns": lambda A, r: pd.DataFrame(A, columns=["a"] * A.shape[1]),
    "multi-index": lambda A, r: (
        pd.DataFrame(A, columns=pd.MultiIndex.from_tuples([("a", k) for k in range(A.shape[1])]))
        if A.shape[1]
        else pd.DataFrame(A)
    ),
    "text frame": lambda A, r: pd.DataFrame(A).assign(t="x"),
    "sparse frame": lambda A, r: pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(A.astype(float))),
    "ragged": lambda A, r: [row[: 1 + k % 2] for k, row in enumerate(A.tolist())],
    "generator": lambda A, r: (row for row in A),
    "dict": lambda A, r: {"a": A},
    "string": lambda A, r: "a table",
    "None": lambda A, r: None,
    "number": lambda A, r: 3.0,
    "set": lambda A, r: {1, 2},
    "broadcast": lambda A, r: np.broadcast_to(A[:1], A.shape),
    "subclass": lambda A, r: A.view(Subclass),
}


def sparse(A, form, quirk, random):
    """Return these numbers as a scipy.sparse matrix, with oddities that only such can have."""
    A = np.where(random.rand(*A.shape) < 0.5, A, 0.0)
    if quirk in ("int values", "f4"):
        A = as_dtype(A, "i2" if quirk == "int values" else "f4").astype(float)
    if quirk == "empty rows":
        A[random.rand(len(A)) < 0.6] = 0.0
    S = sp.coo_array(A)
    if quirk in ("zeros", "duplicates", "unsorted") and A.size:
        extra = random.randint(0, A.size, 4)
        rows, columns = np.divmod(extra, A.shape[1])
        values = np.zeros(4) if quirk == "zeros" else random.standard_normal(4)
        order = random.permutation(S.nnz + 4)
        data, i, j = (
            np.r_[S.data, values][order],
            np.r_[S.row, rows][order],
            np.r_[S.col, columns][order],
        )
        S = sp.coo_array((data, (i, j)), shape=A.shape)
        A = S.toarray()
    S = S.asformat(form)
    if quirk in ("unsorted", "duplicates") and form in ("csr", "csc") and A.size:
        S = _unsorted(sp.coo_array((data, (i, j)), shape=A.shape), form)
    if quirk == "matrix":
        S = getattr(sp, f"{form}_matrix")(S)
    if quirk == "int64" and form in ("csr", "csc", "bsr"):
        S.indices, S.indptr = S.indices.astype(np.int64), S.indptr.astype(np.int64)
    if quirk == "read only" and form in ("csr", "csc", "bsr", "coo"):
        S.data.flags.writeable = False
    if quirk in ("int values", "f4"):
        S = S.astype("i2" if quirk == "int values" else "f4")
    return S, A


def _unsorted(S, form):
    """Return csr (or csc) with the entries of each row unsorted, and with duplicates kept."""
    along, across = (S.row, S.col) if form == "csr" else (S.col, S.row)
    order = np.argsort(along, kind="stable")
    pointers = np.r_[0, np.cumsum(np.bincount(along, minlength=S.shape[0 if form == "csr" else 1]))]
    make = sp.csr_array if form == "csr" else sp.csc_array
    return make((S.data[order], across[order], pointers), shape=S.shape)


seeds = st.integers(0, 2**20)


@st.composite
def shapes(draw, rows=25, columns=6, empty=True):
    few = st.sampled_from((0, 1, 1, 2) if empty else (1, 1, 2))
    return draw(st.integers(3, rows) | few), draw(st.integers(1, columns) | few)


@st.composite
def tables(draw, shape, hostility=1.0, sparse_too=True):
    """Draw a table of about this shape.

    With `hostility` 0, it has moderate numbers in a usual layout; with 1, anything.
    """
    random = np.random.RandomState(draw(seeds))
    wild = draw(st.floats(0, 1)) < hostility
    recipe = draw(st.sampled_from(MODERATE + (EXTREME + BROKEN if wild else ())))
    A = numbers(recipe, shape, random)
    if sparse_too and draw(st.integers(0, 3)) == 0:
        return sparse(A, draw(st.sampled_from(FORMATS)), draw(st.sampled_from(QUIRKS)), random)[0]
    odd = wild and draw(st.integers(0, 3)) == 0
    A = as_dtype(A, draw(st.sampled_from(DTYPES + (ODD_DTYPES if odd else ()))))
    layout = draw(st.sampled_from(LAYOUTS + (ODD_LAYOUTS if odd else ())))
    if A.dtype.kind == "V":
        layout = "C"  # pandas cannot print a frame of these
    if A.dtype.str == ">f8" and layout in CONTAINERS:
        A = A.astype(float)  # pandas does not slice such numbers itself
    try:
        return laid_out(A, layout, random)
    except (
        TypeError,
        ValueError,
        NotImplementedError,
        OverflowError,
        np.exceptions.ComplexWarning,
    ):
        return A  # this dtype does not go into that container


@st.composite
def targets(draw, n, hostility=1.0):
    random = np.random.RandomState(draw(seeds))
    wild = draw(st.floats(0, 1)) < hostility
    y = numbers(
        draw(st.sampled_from(MODERATE + (EXTREME + BROKEN if wild else ()))), (n, 1), random
    )
    y = as_dtype(y, draw(st.sampled_from(DTYPES + (ODD_DTYPES if wild else ()))))
    form = draw(
        st.sampled_from(
            ("1-d",) * 6
            + ("column", "list", "series", "two columns", "frame", "backwards", "0-d", "None")
        )
    )
    if form == "None" and wild:
        return None
    if form in ("two columns", "0-d") and not wild:
        form = "1-d"
    return {
        "1-d": lambda: y[:, 0],
        "column": lambda: y,
        "list": lambda: y[:, 0].tolist(),
        "series": lambda: pd.Series(list(y[:, 0]), name="the target", dtype=None if n else float),
        "two columns": lambda: np.hstack([y, y]),
        "frame": lambda: pd.DataFrame({"y": list(y[:, 0])}),
        "backwards": lambda: y[::-1, 0].copy()[::-1],
        "0-d": lambda: np.array(y.ravel()[0]) if n else np.array(1.0),
        "None": lambda: y[:, 0],
    }[form]()


def paired(X, Z):
    """Return an XZ pair if the two can be one."""
    try:
        return XZ(X, Z)
    except (ValueError, TypeError):
        return None
