"""Kernels k(x, x') and their derivatives.

A kernel is immutable and contains its parameters; its attribute `theta` is the logarithms of them.

    RBF                   theta1 exp(-s),  s = sum_k (x_k - x'_k)^2 / theta2_k
    Matern12, 32, 52      theta1 times the Matern form with length scale sqrt(theta2 / 2)
    RationalQuadratic     theta1 (1 + s / shape)^-shape
    Precomputed           theta1 times a Gram matrix
    Function              theta1 times function(objects, objects)

`theta2` is one number, a sequence with one number for each column of x (automatic relevance
determination, ARD), or "median" for a number that is computed from the data. In all of these
kernels the length scale l has l^2 = theta2 / 2, as in the paper's RBF. `a + b` and `a * b` combine
two kernels on the same x.

>>> import numpy as np
>>> kernel = RBF(theta1=2.0, theta2=3.0) + Matern32(theta2=1.0)
>>> kernel.as_dict()
{'k1.theta1': 2.0, 'k1.theta2': 3.0, 'k2.theta1': 1.0, 'k2.theta2': 1.0}
>>> kernel(np.zeros((1, 2)), np.ones((1, 2))).shape
(1, 1)
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from .kernel import Kernel, Product, Sum
from .precomputed import Function, Precomputed
from .stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "Function",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Precomputed",
    "Product",
    "RationalQuadratic",
    "Sum",
]

NAMES: dict[str, type[Stationary]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rq": RationalQuadratic,
}


def as_kernel(kernel: Any, theta1: Any = 1.0, theta2: Any = "median") -> Kernel:
    """Return the kernel that a name, a kernel or a function of two lists of objects stands for.

    A kernel object is returned as it is: it has parameters of its own.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel in NAMES:
        return NAMES[kernel](theta1, theta2)
    if isinstance(kernel, str) and kernel == "precomputed":
        return Precomputed(theta1)
    if callable(kernel) and not isinstance(kernel, type):
        return Function(theta1, kernel)
    known = ", ".join(f'"{name}"' for name in ("auto", *NAMES, "precomputed"))
    raise InputError(
        f"kernel={kernel!r} is no known kernel. Give one of {known}, an object of "
        "gpx_scale.kernels, or a function of two lists of objects."
    )
