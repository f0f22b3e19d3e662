"""Synthetic data sets, whose true weights are known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..runtime.arguments import positive, whole
from .tabular import Dataset
from .varying_coefficients import Varying


class Additive(NamedTuple):
    """A table whose target is a sum of functions of single features, and of some interactions.

    Attributes
    ----------
    X : ndarray of shape (n, p)
        The features, of which each has the mean 0.
    y : ndarray of shape (n,)
        The target.
    feature_names : list of str
        The names of the columns of X.
    effects : ndarray of shape (n, p)
        The true main effects f_l(x_l), which are 0 at x_l = 0.

    Examples
    --------
    >>> from gpx_scale.datasets import synth_additive
    >>> data = synth_additive(100)
    >>> data.X.shape == data.effects.shape
    True
    """

    X: np.ndarray
    y: np.ndarray
    feature_names: list[str]
    effects: np.ndarray


def synth10(n: int, random_state: int = 0) -> Dataset:
    """Return a synthetic data set of ten features whose weights vary smoothly with x.

    w_l(x) = sin(x . a_l) and y = sum_l w_l(x) x_l + 0.1 e, with random directions a_l, standard
    normal x and standard normal noise e. X and y are standardised.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    random_state : int, default=0
        The seed of the random numbers.

    Returns
    -------
    Dataset
        X of shape (n, 10), y of shape (n,), and the names x0 to x9.

    Examples
    --------
    >>> from gpx_scale.datasets import synth10
    >>> data = synth10(100)
    >>> data.X.shape, data.y.shape, data.feature_names[:2]
    ((100, 10), (100,), ['x0', 'x1'])
    """
    n = whole(n, "n", least=2)
    random = np.random.RandomState(random_state)
    A = random.standard_normal((10, 10)) / np.sqrt(10.0)
    X = random.standard_normal((n, 10))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (np.sin(X @ A.T) * X).sum(axis=1) + 0.1 * random.standard_normal(n)
    return Dataset(X, (y - y.mean()) / y.std(), [f"x{k}" for k in range(10)])


def synth_ard(
    n: int, p: int = 26, relevant: int = 6, noise: float = 0.1, random_state: int = 0
) -> Dataset:
    """Return a synthetic data set of many features, of which only the first few matter.

    y = f(x) + `noise` e, where f is locally linear in the first r = `relevant` features: f(x) is
    sum_l w_l(x) x_l for l < r, standardised, and w_l(x) = sin(x . a_l). The directions a_l are
    random and 0 beyond the first r features. X and e are standard normal, and X is standardised.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    p : int, default=26
        The number of features.
    relevant : int, default=6
        The number of features that matter, from 1 to p.
    noise : float, default=0.1
        The standard deviation of the noise, which is the least root mean squared error that a
        prediction can have.
    random_state : int, default=0
        The seed of the random numbers.

    Returns
    -------
    Dataset
        X of shape (n, p), y of shape (n,), and the names x0, x1, and so on.

    Raises
    ------
    InputError
        If an argument is outside of its range.

    Examples
    --------
    >>> from gpx_scale.datasets import synth_ard
    >>> data = synth_ard(100)
    >>> data.X.shape, data.y.shape, data.feature_names[-1]
    ((100, 26), (100,), 'x25')
    """
    n, p = whole(n, "n", least=2), whole(p, "p", least=1)
    relevant, noise = whole(relevant, "relevant", least=1), positive(noise, "noise", zero=True)
    if relevant > p:
        raise InputError(
            f"relevant={relevant} is more than the {p} features. Give at most p, or a larger p."
        )
    random = np.random.RandomState(random_state)
    A = random.standard_normal((relevant, relevant)) / np.sqrt(relevant)
    X = random.standard_normal((n, p))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    some = X[:, :relevant]
    signal = (np.sin(some @ A.T) * some).sum(axis=1)
    y = (signal - signal.mean()) / signal.std() + noise * random.standard_normal(n)
    return Dataset(X, y, [f"x{k}" for k in range(p)])


def synth2(n: int, random_state: int = 0) -> Varying:
    """Return a synthetic data set of five coefficients that vary over the unit square.

    y = w(x) . z + 0.3 e, with x uniform in the square, z = (1, z_1, ..., z_4), and standard normal
    z_k and noise e. y and the weights are divided by the standard deviation of y.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    random_state : int, default=0
        The seed of the random numbers.

    Returns
    -------
    Varying
        X of shape (n, 2), y of shape (n,), Z of shape (n, 5), the names of its columns, and the
        true weights of shape (n, 5).

    Examples
    --------
    >>> from gpx_scale.datasets import synth2
    >>> data = synth2(100)
    >>> data.X.shape, data.Z.shape, data.weights.shape
    ((100, 2), (100, 5), (100, 5))
    """
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


def synth_semi(n: int, random_state: int = 0, irrelevant: int = 10) -> Varying:
    """Return a synthetic data set whose weights vary, are constant, or are zero.

    y = w(x) . z + 0.5 e, with x uniform in the unit square, and standard normal z and noise e. The
    first three weights vary with x by different amounts, the next two are constant, and all others
    are 0.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    random_state : int, default=0
        The seed of the random numbers.
    irrelevant : int, default=10
        The number of features whose weights are 0.

    Returns
    -------
    Varying
        X of shape (n, 2), y of shape (n,), Z of shape (n, 5 + irrelevant), the names of its
        columns, and the true weights.

    Examples
    --------
    >>> from gpx_scale.datasets import synth_semi
    >>> data = synth_semi(100)
    >>> data.X.shape, data.Z.shape, data.weights.shape
    ((100, 2), (100, 15), (100, 15))
    >>> data.feature_names[:6]
    ['varying1', 'varying2', 'varying3', 'constant1', 'constant2', 'zero1']
    """
    n, irrelevant = whole(n, "n", least=2), whole(irrelevant, "irrelevant", least=0)
    random = np.random.RandomState(random_state)
    X = random.uniform(size=(n, 2))
    u, v = X.T
    weights = np.zeros((n, 5 + irrelevant))
    weights[:, 0] = 1.5 * np.sin(2 * np.pi * u)
    weights[:, 1] = np.cos(np.pi * u) * np.cos(np.pi * v)
    weights[:, 2] = 1.5 * u * v - 0.35
    weights[:, 3], weights[:, 4] = 1.5, -1.0
    Z = random.standard_normal(weights.shape)
    y = (weights * Z).sum(axis=1) + 0.5 * random.standard_normal(n)
    counts = {"varying": 3, "constant": 2, "zero": irrelevant}
    names = [f"{kind}{k}" for kind, count in counts.items() for k in range(1, count + 1)]
    return Varying(X, y, Z, names, weights)


def synth_multiscale(n: int, random_state: int = 0) -> Varying:
    """Return a synthetic data set of a constant, a smooth and a rough coefficient in the plane.

    y = w(x) . z + 0.5 e, with x uniform in the unit square, and standard normal z and noise e. The
    smooth coefficient makes half an oscillation from edge to edge, the rough one makes two.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    random_state : int, default=0
        The seed of the random numbers.

    Returns
    -------
    Varying
        X of shape (n, 2), y of shape (n,), Z of shape (n, 3), the names of its columns, and the
        true weights of shape (n, 3).

    Examples
    --------
    >>> from gpx_scale.datasets import synth_multiscale
    >>> data = synth_multiscale(100)
    >>> data.X.shape, data.feature_names
    ((100, 2), ['constant', 'smooth', 'rough'])
    """
    n = whole(n, "n", least=2)
    random = np.random.RandomState(random_state)
    X = random.uniform(size=(n, 2))
    u, v = X.T
    weights = np.column_stack(
        [
            np.ones(n),
            np.cos(np.pi * u) * np.cos(0.5 * np.pi * v),
            np.sin(4.0 * np.pi * u) * np.sin(4.0 * np.pi * v),
        ]
    )
    Z = random.standard_normal((n, 3))
    y = (weights * Z).sum(axis=1) + 0.5 * random.standard_normal(n)
    return Varying(X, y, Z, ["constant", "smooth", "rough"], weights)


def synth_additive(n: int, random_state: int = 0) -> Additive:
    """Return a synthetic data set of four main effects and two interactions.

    y = sin(2 a) + b^2 + 0.8 c + (exp(d / 2) - 1) + c d / 2 + e sin(a) / 2 + 0.2 noise, with
    features a to f that are uniform between -2 and 2 and then centred, and standard normal noise.
    The feature e has an interaction alone, and f has no effect.

    Parameters
    ----------
    n : int
        The number of rows, at least 2.
    random_state : int, default=0
        The seed of the random numbers.

    Returns
    -------
    Additive
        X of shape (n, 6), y of shape (n,), the names a to f, and the true main effects (n, 6).

    Examples
    --------
    >>> from gpx_scale.datasets import synth_additive
    >>> data = synth_additive(100)
    >>> data.X.shape, data.feature_names
    ((100, 6), ['a', 'b', 'c', 'd', 'e', 'f'])
    """
    n = whole(n, "n", least=2)
    random = np.random.RandomState(random_state)
    X = random.uniform(-2.0, 2.0, (n, 6))
    X -= X.mean(axis=0)
    a, b, c, d, e, _ = X.T
    effects = np.column_stack(
        [np.sin(2.0 * a), b**2, 0.8 * c, np.expm1(0.5 * d), np.zeros(n), np.zeros(n)]
    )
    together = 0.5 * c * d + 0.5 * e * np.sin(a)
    y = effects.sum(axis=1) + together + 0.2 * random.standard_normal(n)
    return Additive(X, y, list("abcdef"), effects)
