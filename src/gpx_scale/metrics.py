"""Measures of predictions and explanations, for any model that predicts and gives contributions.

The paper has four: mean squared error, faithfulness, sufficiency and stability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from .errors import InputError
from .explanation import Groups, between
from .runtime.arguments import positive, real_array, whole

__all__ = [
    "Accuracy",
    "Stability",
    "faithfulness",
    "mean_squared_error",
    "stability",
    "sufficiency",
]

# Changed rows, and distances between rows, are made in chunks of about this many numbers (32 MiB).
CHUNK_NUMBERS = 2**22
# Weights whose distance is smaller than this share of their size count as equal.
EQUAL_WEIGHTS_SHARE = 1e-8
# Numbers that differ by less than this share of their size are the same up to rounding.
ROUNDING_SHARE = 1e-13
# A column whose range or standard deviation is smaller than this share of its size is constant.
CONSTANT_COLUMN_SHARE = 1e-12


class Accuracy(NamedTuple):
    """The accuracy of predictions, and of their intervals.

    Attributes
    ----------
    rmse : float
        The root of the mean squared error.
    r2 : float
        The coefficient of determination R^2. NaN if y does not vary.
    within : float
        The share of true values that lie in the intervals of their predictions. NaN without
        standard deviations.

    Examples
    --------
    >>> from gpx_scale.metrics import Accuracy
    >>> Accuracy(rmse=2.0, r2=0.75, within=0.9).r2
    0.75
    """

    rmse: float
    r2: float
    within: float

    @classmethod
    def of(
        cls, y: np.ndarray, mean: np.ndarray, std: np.ndarray | None, level: float = 0.95
    ) -> Accuracy:
        """Return the accuracy of predictions.

        Parameters
        ----------
        y : ndarray of shape (m,)
            The true values.
        mean : ndarray of shape (m,)
            The predictions.
        std : ndarray of shape (m,) or None
            The standard deviations of the predictions.
        level : float, default=0.95
            The probability of the intervals.

        Returns
        -------
        accuracy : Accuracy
            The measures.

        Examples
        --------
        >>> import numpy as np
        >>> from gpx_scale.metrics import Accuracy
        >>> y, mean, std = np.array([1.0, 3.0]), np.array([1.0, 2.0]), np.array([0.1, 0.1])
        >>> found = Accuracy.of(y, mean, std)
        >>> round(found.rmse, 3), found.r2, found.within
        (0.707, 0.5, 0.5)
        """
        # Numbers are divided by the largest one, so that their squares stay finite.
        scale = max(float(np.abs(y).max()), float(np.abs(mean).max()), float(np.finfo(float).tiny))
        squared, spread = np.mean(((y - mean) / scale) ** 2), np.var(y / scale)
        r2 = 1.0 - squared / spread if np.ptp(y) > 0 else np.nan
        within = np.nan
        if std is not None:
            lower, upper = between(mean, std, level)
            within = np.mean((lower <= y) & (y <= upper))
        return cls(scale * float(np.sqrt(squared)), float(r2), float(within))


class Stability(NamedTuple):
    """The stability of explanations, as `stability` returns it.

    Attributes
    ----------
    score : float
        The mean of `samples` over the rows that have a neighbour.
    with_neighbour : int
        The number of rows that have a neighbour.
    samples : ndarray of shape (m,)
        The score of each row. NaN for a row without a neighbour.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.metrics import Stability
    >>> Stability(score=2.0, with_neighbour=1, samples=np.array([2.0, np.nan])).with_neighbour
    1
    """

    score: float
    with_neighbour: int
    samples: np.ndarray


def mean_squared_error(y: Any, predicted: Any) -> float:
    """Return the mean squared error of predictions, mean (y - predicted)^2.

    Parameters
    ----------
    y : array-like of shape (m,)
        The true values.
    predicted : array-like of shape (m,)
        The predictions.

    Returns
    -------
    error : float
        The mean squared error.

    Raises
    ------
    InputError
        If the arguments are not finite, are empty, or have different lengths.

    Examples
    --------
    >>> from gpx_scale.metrics import mean_squared_error
    >>> mean_squared_error([1.0, 2.0], [1.0, 4.0])
    2.0
    """
    y, predicted = _vector(y, "y"), _vector(predicted, "predicted")
    if y.shape != predicted.shape or not y.size:
        raise InputError(
            f"There are {predicted.size} predictions for {y.size} true values. Give as many "
            "predictions as values, and at least one."
        )
    return float(np.mean((y - predicted) ** 2))


def faithfulness(
    model: Any,
    X: Any,
    Z: Any = None,
    *,
    contributions: Any = None,
    remove: str = "both",
    baseline: Any = None,
    signed: bool | None = None,
    ranks: bool = False,
    per_sample: bool = False,
    groups: Mapping[str, Sequence[Any]] | None = None,
) -> float | np.ndarray:
    """Return how well contributions tell what predictions lose when features are removed.

    Each feature is removed in turn, and the difference between the prediction before and after is
    computed. The faithfulness of a row is the correlation of these d differences with the d
    contributions. It is 1 at best.

    Parameters
    ----------
    model : object or callable
        A model with a method `predict`, or a function that predicts from X, or from X and Z. Unless
        `contributions` are given, it also explains: a `GPXRegressor`, or a method of
        `gpx_scale.compare`.
    X : array-like of shape (m, p)
        The rows. With transformers in the model, give what they make of the data.
    Z : array-like or sparse matrix of shape (m, d), default=None
        The readable features, if the model has a separate Z.
    contributions : array-like of shape (m, d), default=None
        The contributions. None asks the model for them.
    remove : {"both", "z"}, default="both"
        Whether a feature is set to its baseline in x and z, which must then have the same columns,
        or in z alone.
    baseline : float or array-like of shape (d,), default=None
        The values of removed features. None takes the `baseline_` of the model, which for a
        `GPXRegressor` is the mean of the training rows, or 0 for a model without a baseline.
    signed : bool or None, default=None
        Whether contributions have a sign. Relevances have none, and are compared with absolute
        differences. None takes the attribute `signed` of the model, or True.
    ranks : bool, default=False
        Whether ranks within a row are correlated (Spearman) instead of numbers (Pearson).
    per_sample : bool, default=False
        Whether the correlations of all rows are returned instead of their mean.
    groups : dict of str to list, default=None
        Features that are removed together, such as the levels of a category: for the name of each
        group, the names or numbers of its features. All others are one group, too. None removes
        each feature by itself.

    Returns
    -------
    faithfulness : float or ndarray of shape (m,)
        The mean of the correlations or, with `per_sample`, all of them. A correlation is NaN if
        the contributions or the differences of a row do not vary; the mean leaves it out.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from gpx_scale.metrics import faithfulness
    >>> X = np.random.RandomState(0).normal(size=(50, 3))
    >>> model = LinearRegression(fit_intercept=False).fit(X, X @ [1.0, -2.0, 0.5])
    >>> round(faithfulness(model, X, contributions=X * model.coef_), 12)
    1.0
    """
    case = _Case.of(model, X, Z, contributions, remove, baseline, groups)
    m, d = case.contributions.shape
    lost, before = np.empty((m, d)), case.predict(case.X, case.Z)
    for rows, repeated, moved in case.each_removed():
        after = case.predict(moved if case.moves_x else repeated, moved if case.sees_z else None)
        lost[rows] = before[rows, None] - after.reshape(-1, d)
    if signed is None:
        signed = getattr(model, "signed", True)
    # Differences of predictions have the rounding errors of the predictions.
    lost[np.abs(lost) <= ROUNDING_SHARE * np.abs(before)[:, None]] = 0.0
    both = lost if signed else np.abs(lost), case.contributions
    scores = _correlation(*(rankdata(part, axis=1) for part in both) if ranks else both)
    return scores if per_sample else _mean(scores)


def sufficiency(
    model: Any,
    X: Any,
    Z: Any = None,
    ks: Iterable[int] = range(1, 11),
    *,
    contributions: Any = None,
    remove: str = "both",
    baseline: Any = None,
    squared: bool = False,
    per_sample: bool = False,
    groups: Mapping[str, Sequence[Any]] | None = None,
) -> np.ndarray:
    """Return how far predictions move when only the most important features are kept.

    For each k of `ks`, the k features of a row with the largest absolute contributions keep their
    values, and the others are set to their baseline.

    Parameters
    ----------
    model : object or callable
        A model that predicts and explains, as in `faithfulness`.
    X : array-like of shape (m, p)
        The rows. With transformers in the model, give what they make of the data.
    Z : array-like or sparse matrix of shape (m, d), default=None
        The readable features, if the model has a separate Z.
    ks : iterable of int, default=range(1, 11)
        The numbers of features that are kept. A k above d keeps all of them.
    contributions : array-like of shape (m, d), default=None
        The contributions. None asks the model for them.
    remove : {"both", "z"}, default="both"
        Whether a feature is set to its baseline in x and z, or in z alone.
    baseline : float or array-like of shape (d,), default=None
        The values of removed features, as in `faithfulness`.
    squared : bool, default=False
        Whether differences of predictions are squared, instead of absolute.
    per_sample : bool, default=False
        Whether the differences of all rows are returned instead of their means.
    groups : dict of str to list, default=None
        Features that are kept or removed together, as in `faithfulness`.

    Returns
    -------
    sufficiency : ndarray of shape (len(ks),) or (m, len(ks))
        The mean differences for each k or, with `per_sample`, those of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from gpx_scale.metrics import sufficiency
    >>> X = np.array([[1.0, 1.0], [-1.0, 2.0], [0.5, -3.0]])
    >>> model = LinearRegression(fit_intercept=False).fit(X, X @ [3.0, 1.0])
    >>> sufficiency(model, X[:1], ks=(1, 2), contributions=X[:1] * model.coef_).round(12)
    array([1., 0.])
    """
    case = _Case.of(model, X, Z, contributions, remove, baseline, groups)
    order = np.argsort(-np.abs(case.contributions), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    before = case.predict(case.X, case.Z)
    ks = [whole(k, "k", least=0) for k in ks]
    apart = np.empty((len(ks), len(before)))
    for out, k in zip(apart, ks, strict=True):
        kept = np.where((rank < k)[:, case.group_of], case.readable, case.baseline)
        out[:] = (
            case.predict(kept if case.moves_x else case.X, kept if case.sees_z else None) - before
        )
    scores = np.square(apart.T) if squared else np.abs(apart.T)
    return scores if per_sample else scores.mean(axis=0)


def stability(
    model: Any,
    X: Any,
    Z: Any = None,
    *,
    weights: Any = None,
    epsilon: float = 0.05,
    scale_x: str | None = "unit",
    scale_weights: str | None = "standard",
    scale_z: str | None = "standard",
) -> Stability:
    """Return how much explanations differ between neighbouring rows.

    Neighbours of a row are the rows with ``|x' - x| / p < epsilon``. The score of a row is the
    largest ``|w' - w| / |z' - z|`` over its neighbours; small scores are better. The paper leaves
    the scales of x, w and z open.

    Parameters
    ----------
    model : object or None
        A model that explains: a `GPXRegressor`, or a method of `gpx_scale.compare`. It may be None
        if `weights` are given.
    X : array-like of shape (m, p)
        The rows.
    Z : array-like or sparse matrix of shape (m, d), default=None
        The readable features. None takes X.
    weights : array-like of shape (m, d), default=None
        The weights. None asks the model for them.
    epsilon : float, default=0.05
        The largest distance of neighbours, per column of X.
    scale_x : {"unit", "standard", None}, default="unit"
        How the columns of X are scaled: to the range from 0 to 1, to mean 0 and standard deviation
        1, or not at all.
    scale_weights : {"unit", "standard", None}, default="standard"
        How the columns of the weights are scaled.
    scale_z : {"unit", "standard", None}, default="standard"
        How the columns of Z are scaled.

    Returns
    -------
    stability : Stability
        The mean score of the rows that have a neighbour, their number, and the scores of all rows.
        A score is infinite if a neighbour has the same z and other weights.

    Raises
    ------
    InputError
        If X, Z or the weights cannot be used, or do not have the same number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gpx_scale.metrics import stability
    >>> X, weights = np.array([[0.0], [0.02], [1.0]]), [[1.0], [2.0], [9.0]]
    >>> unscaled = {"scale_x": None, "scale_weights": None, "scale_z": None}
    >>> found = stability(None, X, weights=weights, **unscaled)
    >>> found.score, found.with_neighbour
    (50.0, 2)
    """
    epsilon = positive(epsilon, "epsilon")
    if weights is None:
        weights = _weights(model, X, Z)
    x, W = (
        _scaled(_matrix(X, "X"), scale_x, "scale_x"),
        _scaled(_matrix(weights, "weights"), scale_weights, "scale_weights"),
    )
    z = _scaled(_matrix(X if Z is None else Z, "Z"), scale_z, "scale_z")
    if not len(x) == len(z) == len(W):
        raise InputError(
            f"X, Z and weights have {len(x)}, {len(z)} and {len(W)} rows. Give as many of each."
        )
    samples, size = np.full(len(x), np.nan), np.sqrt(np.einsum("md,md->m", W, W))
    step = max(1, CHUNK_NUMBERS // max(len(x), 1))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        near = cdist(x[rows], x) < epsilon * x.shape[1]
        near[np.arange(len(near)), np.arange(start, start + len(near))] = False
        moved, apart = cdist(W[rows], W), cdist(z[rows], z)
        moved[moved <= EQUAL_WEIGHTS_SHARE * (size[rows, None] + size)] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(moved == 0.0, 0.0, moved / apart)
        some = near.any(axis=1)
        samples[rows][some] = np.max(ratio, axis=1, where=near, initial=0.0)[some]
    return Stability(
        _mean(samples), int(np.isfinite(samples).sum() + np.isinf(samples).sum()), samples
    )


def each_moved(
    X: np.ndarray,
    move: Callable[[np.ndarray], np.ndarray],
    chunk: int | None = None,
    group_of: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield chunks of rows in which each feature is moved in turn;  slice, (c g, d), (c g, d).

    A chunk has a slice of c rows, each of these rows g times, and the same with one feature
    changed: copy l of a row has feature l taken from `move(X)`. `chunk` is the largest number of
    entries of the repeated rows of a chunk. With the group of each feature (d,), the features of a
    group are moved together; without, there are g = d features that are moved one by one.
    """
    m, d = X.shape
    group = np.arange(d) if group_of is None else group_of
    count = int(group.max(initial=-1)) + 1
    step = max(1, (CHUNK_NUMBERS if chunk is None else chunk) // max(count * d, 1))
    new = move(X)
    own = np.arange(d)
    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        repeated = np.repeat(X[rows], count, axis=0)
        moved = repeated.copy()
        moved.reshape(-1, count, d)[:, group, own] = new[rows]
        yield rows, repeated, moved


class _Case(NamedTuple):
    """Checked inputs of the measures that remove features.

    `readable` (m, d) are the features that are removed, Z or X. `moves_x` says whether they are
    removed from X too. `group_of` (d,) has the group of each feature, and `contributions` (m, g)
    are those of groups. Without groups, each feature is one.
    """

    predict: Callable[[Any, Any], np.ndarray]
    X: np.ndarray
    Z: np.ndarray | None
    readable: np.ndarray
    contributions: np.ndarray
    baseline: np.ndarray
    moves_x: bool
    group_of: np.ndarray

    @property
    def sees_z(self) -> bool:
        """Whether the model gets a separate Z."""
        return self.Z is not None

    @classmethod
    def of(
        cls,
        model: Any,
        X: Any,
        Z: Any,
        contributions: Any,
        remove: str,
        baseline: Any,
        groups: Any = None,
    ) -> _Case:
        """Check the arguments of a measure, or raise an InputError."""
        if remove not in ("both", "z"):
            raise InputError(f'remove={remove!r} cannot be used. Give "both" or "z".')
        rows, moves_x = _matrix(X, "X"), remove == "both"
        if Z is None and not moves_x:
            Z = X
        readable = rows if Z is None else _matrix(Z, "Z")
        if moves_x and Z is not None and not np.array_equal(rows, readable):
            raise InputError(
                'X and Z differ, so a feature of Z cannot be removed from X. Give remove="z".'
            )
        origin = _baseline(
            getattr(model, "baseline_", 0.0) if baseline is None else baseline, readable.shape[1]
        )
        C = _matrix(
            _contributions(model, X, Z, origin) if contributions is None else contributions,
            "contributions",
        )
        if readable.shape != C.shape or len(readable) != len(rows) or not readable.size:
            raise InputError(
                f"X, Z and contributions have the shapes {rows.shape}, {readable.shape} and "
                f"{C.shape}. They need the same rows, at least one, and Z and contributions the "
                "same columns. If the model has transformers, give what these make of the data."
            )
        group_of = np.arange(C.shape[1])
        if groups is not None:
            names = getattr(X if Z is None else Z, "columns", range(C.shape[1]))
            chosen = Groups.given(groups, [str(name) for name in names])
            group_of, C = chosen.group_of, C @ chosen.membership
        seen = None if Z is None else readable
        return cls(_predictor(model, X), rows, seen, readable, C, origin, moves_x, group_of)

    def each_removed(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield slices of rows, X of these rows g times each, and Z with one group removed."""
        g = self.contributions.shape[1]
        wide = max(1, self.X.shape[1] // self.readable.shape[1])
        for rows, repeated, moved in each_moved(
            self.readable,
            lambda A: np.broadcast_to(self.baseline, A.shape),
            CHUNK_NUMBERS // wide,
            self.group_of,
        ):
            yield rows, repeated if self.moves_x else np.repeat(self.X[rows], g, axis=0), moved


def _baseline(baseline: Any, d: int) -> np.ndarray:
    """Return a baseline as an array (d,), or raise an InputError."""
    try:
        origin = np.broadcast_to(np.asarray(baseline, dtype=float), d)
    except (TypeError, ValueError):
        origin = np.full(d, np.nan)
    if not np.isfinite(origin).all():
        raise InputError(
            f"baseline={baseline!r} cannot be used. Give a finite number, or one for each of the "
            f"{d} features."
        )
    return origin


def _predictor(model: Any, X: Any) -> Callable[[Any, Any], np.ndarray]:
    """Return a function that predicts from arrays; if X is a frame, the model gets frames."""
    function = getattr(model, "predict", model)
    if not callable(function):
        raise InputError(
            f"{type(model).__name__} does not predict. Give a model with a method predict, or a "
            "function."
        )
    columns = getattr(X, "columns", None)

    def predict(rows: np.ndarray, Z: Any) -> np.ndarray:
        """Return the predictions for rows (m, p), and Z (m, d) or None;  (m,)."""
        given = rows if columns is None else type(X)(rows, columns=columns)
        found = np.asarray(function(given) if Z is None else function(given, Z), dtype=float)
        if found.size != len(rows) or not np.isfinite(found).all():
            raise InputError(
                f"The model predicted an array of shape {found.shape} for {len(rows)} rows, or "
                "values that are not finite. It must give one finite number per row."
            )
        return found.ravel()

    return predict


def _weights(model: Any, X: Any, Z: Any) -> Any:
    """Return the weights (m, d) that a model gives."""
    # The `weights` of a GPXRegressor are an argument, and those of other methods a function.
    if callable(getattr(model, "weights", None)):
        return model.weights(X, Z)
    if hasattr(model, "explain"):
        return model.explain(X, Z, std=False, **_all_features(Z)).weights
    raise InputError(f"{type(model).__name__} does not explain. Give weights of shape (m, d).")


def _contributions(model: Any, X: Any, Z: Any, baseline: Any) -> Any:
    """Return the contributions (m, d) that a model gives."""
    if hasattr(model, "contributions"):
        return model.contributions(X, Z, baseline)
    if hasattr(model, "explain"):
        return model.explain(X, Z, std=False, baseline=baseline, **_all_features(Z)).contributions
    raise InputError(
        f"{type(model).__name__} does not explain. Give contributions of shape (m, d)."
    )


def _all_features(Z: Any) -> dict[str, bool]:
    """Return the argument of `explain` by which a sparse Z is explained by all of its features."""
    return {"dense": True} if sp.issparse(Z) else {}


def _matrix(A: Any, name: str) -> np.ndarray:
    """Return a table as a dense array of floats, or raise an InputError."""
    found = real_array(A.toarray() if sp.issparse(A) else A)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise InputError(
            f"{name} has shape {found.shape}, or values that are not finite. Give a table of "
            "finite numbers."
        )
    return found


def _vector(a: Any, name: str) -> np.ndarray:
    """Return a list of numbers as an array of floats, or raise an InputError."""
    found = real_array(a)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(
            f"{name} has shape {found.shape}, or values that are not finite. Give a list of finite "
            "numbers."
        )
    return found


def _scaled(A: np.ndarray, how: str | None, name: str) -> np.ndarray:
    """Return columns scaled to [0, 1] ("unit"), to mean 0 and std 1 ("standard"), or unchanged."""
    if how is None or not len(A):
        return A
    if how not in ("unit", "standard"):
        raise InputError(f'{name}={how!r} cannot be used. Give "unit", "standard" or None.')
    size = np.abs(A).max(axis=0)
    # Dividing by the largest entry keeps squares of very large or small numbers within float64.
    A = A / np.where(size > 0, size, 1.0)
    shift, scale = (
        (A.min(axis=0), np.ptp(A, axis=0)) if how == "unit" else (A.mean(axis=0), A.std(axis=0))
    )
    flat = scale <= CONSTANT_COLUMN_SHARE
    return np.where(flat, 0.0, (A - shift) / np.where(flat, 1.0, scale))


def _correlation(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the correlation of each row of A with that of B; NaN where either does not vary."""
    A, B = _centred(A), _centred(B)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (A * B).sum(axis=1) / np.sqrt((A**2).sum(axis=1) * (B**2).sum(axis=1))
    clipped: np.ndarray = np.clip(found, -1.0, 1.0)
    return clipped


def _centred(A: np.ndarray) -> np.ndarray:
    """Return rows, divided by their largest entry, minus their means; 0 where they do not vary."""
    A = A / np.maximum(np.abs(A).max(axis=1, keepdims=True), np.finfo(float).tiny)
    return np.where(
        np.ptp(A, axis=1, keepdims=True) <= ROUNDING_SHARE, 0.0, A - A.mean(axis=1, keepdims=True)
    )


def _mean(scores: np.ndarray) -> float:
    """Return the mean of the scores that are not NaN; NaN if there is none."""
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if known.size else np.nan
