"""Data made by rule, with what is true of them."""

from __future__ import annotations

import numpy as np

from ..runtime.arguments import whole
from .tabular import Dataset
from .varying_coefficients import Varying


def synth10(n: int, random_state: int = 0) -> Dataset:
    """Ten features with smoothly varying weights: w_l(x) = sin(x.a_l), y = sum_l w_l x_l + 0.1 e, all standardised."""
    n = whole(n, "n", least=2)
    random = np.random.RandomState(random_state)
    A = random.standard_normal((10, 10)) / np.sqrt(10.0)
    X = random.standard_normal((n, 10))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (np.sin(X @ A.T) * X).sum(axis=1) + 0.1 * random.standard_normal(n)
    return Dataset(X, (y - y.mean()) / y.std(), [f"x{k}" for k in range(10)])


def synth2(n: int, random_state: int = 0) -> Varying:
    """Five coefficients that vary over the unit square: z = (1, N(0, 1)^4), y = w(x).z + 0.3 e, scaled by its deviation."""
    n = whole(n, "n", least=2)
    random = np.random.RandomState(random_state)
    X = random.uniform(size=(n, 2))
    u, v = X.T
    pi = np.pi
    weights = np.column_stack(
        [
            np.sin(2 * pi * u) * np.cos(pi * v),
            np.cos(2 * pi * u + v),
            np.sin(pi * (u + v)),
            np.sin(2 * pi * v),
            (np.cos(2 * pi * u * v) + 1) / 2,
        ]
    )
    Z = np.column_stack([np.ones(n), random.standard_normal((n, 4))])
    y = (weights * Z).sum(axis=1) + 0.3 * random.standard_normal(n)
    return Varying(X, y / y.std(), Z, ["1", *(f"z{k}" for k in range(1, 5))], weights / y.std())
