"""BLAS and LAPACK inside compiled loops: one routine, one tile, one thread.

scipy exports the C addresses of its BLAS. Each routine is registered by name with LLVM, so that
compiled functions which call it can be cached on disk. All matrices here are row-major; a matrix is
given as a one-dimensional array that starts at its first entry, and a leading dimension, which is
the distance between its rows. BLAS is column-major and sees their transposes. The caller keeps BLAS
at one thread (`runtime.parallel.threads`).
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numba.extending import get_cython_function_address, overload

from . import FASTMATH

# The number of arguments of each routine.
_BLAS = {"gemm": 13, "syrk": 10, "trsm": 11, "trmm": 11}
_LAPACK = {"potrf": 5, "trtri": 6, "lauum": 5}
# Letters that BLAS takes: N(o), T(ransposed), L(eft), R(ight), U(pper).
_N, _T, _L, _R, _U = (ord(letter) for letter in "NTLRU")


def _register() -> dict[str, Any]:
    """Return every routine in both precisions by its name, known to LLVM from now on."""
    found = {}
    for module, routines in (("cython_blas", _BLAS), ("cython_lapack", _LAPACK)):
        for routine, count in routines.items():
            for letter in "sd":
                name = f"{letter}{routine}"
                address = get_cython_function_address(f"scipy.linalg.{module}", name)
                llvmlite.binding.add_symbol(f"gpx_scale_{name}", address)
                signature = types.void(*[types.voidptr] * count)
                found[name] = types.ExternalFunction(f"gpx_scale_{name}", signature)
    return found


_ROUTINES = _register()


def _routine(name: str, array: Any) -> Any:
    """Return the routine for the precision of a numba array type."""
    return _ROUTINES[("s" if array.dtype == types.float32 else "d") + name]


def gemm(a_transposed, b_transposed, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """C <- beta C + alpha op(A) op(B), C (m, n);  2 m n k flops. op transposes if asked to."""


@overload(gemm, jit_options={"fastmath": FASTMATH})
def _gemm(a_transposed, b_transposed, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    routine = _routine("gemm", c)

    def call(a_transposed, b_transposed, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        letters = np.array([_T if b_transposed else _N, _T if a_transposed else _N], np.uint8)
        sizes = np.array([n, m, k, ldb, lda, ldc], np.int32)
        factors = np.array([alpha, beta], c.dtype)
        routine(
            letters.ctypes,
            letters[1:].ctypes,
            sizes.ctypes,
            sizes[1:].ctypes,
            sizes[2:].ctypes,
            factors.ctypes,
            b.ctypes,
            sizes[3:].ctypes,
            a.ctypes,
            sizes[4:].ctypes,
            factors[1:].ctypes,
            c.ctypes,
            sizes[5:].ctypes,
        )

    return call


def syrk_lower(a_transposed, n, k, alpha, a, lda, beta, c, ldc):
    """C <- beta C + alpha A A^T (or A^T A), the lower triangle alone, C (n, n);  n^2 k flops."""


@overload(syrk_lower, jit_options={"fastmath": FASTMATH})
def _syrk_lower(a_transposed, n, k, alpha, a, lda, beta, c, ldc):
    routine = _routine("syrk", c)

    def call(a_transposed, n, k, alpha, a, lda, beta, c, ldc):
        letters = np.array([_U, _N if a_transposed else _T], np.uint8)
        sizes = np.array([n, k, lda, ldc], np.int32)
        factors = np.array([alpha, beta], c.dtype)
        routine(
            letters.ctypes,
            letters[1:].ctypes,
            sizes.ctypes,
            sizes[1:].ctypes,
            factors.ctypes,
            a.ctypes,
            sizes[2:].ctypes,
            factors[1:].ctypes,
            c.ctypes,
            sizes[3:].ctypes,
        )

    return call


def _triangular(name):
    """Return the implementation of trsm or trmm with a lower triangle L from one side."""

    def implement(from_left, transposed, m, n, alpha, lower, ldl, b, ldb):
        routine = _routine(name, b)

        def call(from_left, transposed, m, n, alpha, lower, ldl, b, ldb):
            letters = np.array(
                [_R if from_left else _L, _U, _T if transposed else _N, _N], np.uint8
            )
            sizes = np.array([n, m, ldl, ldb], np.int32)
            factor = np.array([alpha], b.dtype)
            routine(
                letters.ctypes,
                letters[1:].ctypes,
                letters[2:].ctypes,
                letters[3:].ctypes,
                sizes.ctypes,
                sizes[1:].ctypes,
                factor.ctypes,
                lower.ctypes,
                sizes[2:].ctypes,
                b.ctypes,
                sizes[3:].ctypes,
            )

        return call

    return implement


def trsm_lower(from_left, transposed, m, n, alpha, lower, ldl, b, ldb):
    """B <- alpha op(L)^-1 B from the left, or alpha B op(L)^-1 from the right;  B (m, n)."""


def trmm_lower(from_left, transposed, m, n, alpha, lower, ldl, b, ldb):
    """B <- alpha op(L) B from the left, or alpha B op(L) from the right;  B (m, n)."""


overload(trsm_lower, jit_options={"fastmath": FASTMATH})(_triangular("trsm"))
overload(trmm_lower, jit_options={"fastmath": FASTMATH})(_triangular("trmm"))


def potrf_lower(n, a, lda):
    """A's lower triangle <- its Cholesky factor; return 0, or the number of a pivot that failed."""
    return 0


@overload(potrf_lower, jit_options={"fastmath": FASTMATH})
def _potrf_lower(n, a, lda):
    routine = _routine("potrf", a)

    def call(n, a, lda):
        letter = np.array([_U], np.uint8)
        sizes = np.array([n, lda, 0], np.int32)
        routine(letter.ctypes, sizes.ctypes, a.ctypes, sizes[1:].ctypes, sizes[2:].ctypes)
        return np.int64(sizes[2])

    return call


def trtri_lower(n, a, lda):
    """A's lower triangle <- its inverse;  n^3/3 flops."""


@overload(trtri_lower, jit_options={"fastmath": FASTMATH})
def _trtri_lower(n, a, lda):
    routine = _routine("trtri", a)

    def call(n, a, lda):
        letters = np.array([_U, _N], np.uint8)
        sizes = np.array([n, lda, 0], np.int32)
        routine(
            letters.ctypes,
            letters[1:].ctypes,
            sizes.ctypes,
            a.ctypes,
            sizes[1:].ctypes,
            sizes[2:].ctypes,
        )

    return call


def lauum_lower(n, a, lda):
    """A's lower triangle <- that of L^T L, L being A's lower triangle;  n^3/3 flops."""


@overload(lauum_lower, jit_options={"fastmath": FASTMATH})
def _lauum_lower(n, a, lda):
    routine = _routine("lauum", a)

    def call(n, a, lda):
        letter = np.array([_U], np.uint8)
        sizes = np.array([n, lda, 0], np.int32)
        routine(letter.ctypes, sizes.ctypes, a.ctypes, sizes[1:].ctypes, sizes[2:].ctypes)

    return call
