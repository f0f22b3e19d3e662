"""How good predictions and explanations are: the paper's four measures, of any model that predicts and gives contributions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from .errors import InputError
from .explanation import between
from .runtime.arguments import positive, real_array, whole

__all__ = [
    "Accuracy",
    "Stability",
    "faithfulness",
    "mean_squared_error",
    "stability",
    "sufficiency",
]

CHUNK = 2**22  # numbers of one chunk of changed rows
ROUNDING = 1e-8  # weights apart by less, relative to their size, are the same
FLAT = 1e-13  # numbers that differ by less, relative to their size, do not vary


class Accuracy(NamedTuple):
    """Of predictions: their RMSE, R^2 (NaN where y does not vary), and the share of true values within their intervals."""

    rmse: float
    r2: float
    within: float

    @classmethod
    def of(
        cls, y: np.ndarray, mean: np.ndarray, std: np.ndarray | None, level: float = 0.95
    ) -> Accuracy:
        """`within` is NaN without deviations."""
        scale = max(
            float(np.abs(y).max()), float(np.abs(mean).max()), float(np.finfo(float).tiny)
        )  # squares stay finite
        squared, spread = np.mean(((y - mean) / scale) ** 2), np.var(y / scale)
        r2 = 1.0 - squared / spread if np.ptp(y) > 0 else np.nan
        within = np.nan
        if std is not None:
            lower, upper = between(mean, std, level)
            within = np.mean((lower <= y) & (y <= upper))
        return cls(scale * float(np.sqrt(squared)), float(r2), float(within))


class Stability(NamedTuple):
    """The mean of `samples` (m,), which is NaN for those without a neighbour; `with_neighbour` counts the others."""

    score: float
    with_neighbour: int
    samples: np.ndarray


def mean_squared_error(y: Any, predicted: Any) -> float:
    """mean (y - predicted)^2.

    >>> mean_squared_error([1.0, 2.0], [1.0, 4.0])
    2.0
    """
    y, predicted = _vector(y, "y"), _vector(predicted, "predicted")
    if y.shape != predicted.shape or not y.size:
        raise InputError(
            f"give as many predictions as values, at least one: got {predicted.size} and {y.size}"
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
) -> Any:
    """Correlation between contributions and what predictions lose as features are removed one by one; the mean over rows.

    model : predicts (`predict`, or a function of X, or of X and Z) and, unless `contributions` (m, d) are given, explains: a
    `GPXRegressor`, or any method of `gpx_scale.compare`.
    remove : a feature is set to its `baseline` in x and z ("both", which need the same columns) or in "z" alone.
    baseline : number or (d,); None is the model's own (a `GPXRegressor`'s training means), else 0, for standardised features.
    signed : False for relevances, which have no sign: they are compared with absolute differences. None: as the model says.
    ranks : of the ranks within a row (Spearman's) in place of the numbers (Pearson's).
    per_sample : (m,) instead of their mean, NaN where contributions or differences do not vary; the mean leaves those out.

    >>> from sklearn.linear_model import LinearRegression
    >>> X = np.random.RandomState(0).normal(size=(50, 3))
    >>> model = LinearRegression(fit_intercept=False).fit(X, X @ [1.0, -2.0, 0.5])
    >>> round(faithfulness(model, X, contributions=X * model.coef_), 12)
    1.0
    """
    case = _Case.of(model, X, Z, contributions, remove, baseline)
    m, d = case.contributions.shape
    lost, before = np.empty((m, d)), case.predict(case.X, case.Z)
    for rows, repeated, moved in case.each_removed():
        after = case.predict(moved if case.moves_x else repeated, moved if case.sees_z else None)
        lost[rows] = before[rows, None] - after.reshape(-1, d)
    if signed is None:
        signed = getattr(model, "signed", True)
    lost[np.abs(lost) <= FLAT * np.abs(before)[:, None]] = (
        0.0  # differences of predictions have their rounding
    )
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
) -> np.ndarray:
    """How far predictions move where only the k features of the largest absolute contributions are kept, the others at their
    baseline: mean absolute (or squared) difference for each k of `ks`, (len(ks),), or (m, len(ks)) `per_sample`.

    Arguments as in `faithfulness`. A k above d keeps all features.

    >>> from sklearn.linear_model import LinearRegression
    >>> X = np.array([[1.0, 1.0], [-1.0, 2.0], [0.5, -3.0]])
    >>> model = LinearRegression(fit_intercept=False).fit(X, X @ [3.0, 1.0])
    >>> sufficiency(model, X[:1], ks=(1, 2), contributions=X[:1] * model.coef_).round(12)
    array([1., 0.])
    """
    case = _Case.of(model, X, Z, contributions, remove, baseline)
    order = np.argsort(-np.abs(case.contributions), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    before = case.predict(case.X, case.Z)
    ks = [whole(k, "k", least=0) for k in ks]
    apart = np.empty((len(ks), len(before)))
    for out, k in zip(apart, ks, strict=True):
        kept = np.where(rank < k, case.readable, case.baseline)
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
    """``max |w' - w|/|z' - z|`` over a row's neighbours, the rows with ``|x' - x|/p < epsilon``; the mean over rows.

    weights : (m, d), or asked of the model (which may then be None). The paper leaves scales open: each is "unit" (columns to
    [0, 1]), "standard" (mean 0, deviation 1) or None, over the rows given. Rows with the same z and other weights have no
    bound: infinity. A row without a neighbour has no score.

    >>> X = np.array([[0.0], [0.02], [1.0]])
    >>> stability(None, X, weights=[[1.0], [2.0], [9.0]], scale_x=None, scale_weights=None, scale_z=None)[:2]
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
            f"X, Z and weights need as many rows each, got {len(x)}, {len(z)}, {len(W)}"
        )
    samples, size = np.full(len(x), np.nan), np.sqrt(np.einsum("md,md->m", W, W))
    step = max(1, CHUNK // max(len(x), 1))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        near = cdist(x[rows], x) < epsilon * x.shape[1]
        near[np.arange(len(near)), np.arange(start, start + len(near))] = False
        moved, apart = cdist(W[rows], W), cdist(z[rows], z)
        moved[moved <= ROUNDING * (size[rows, None] + size)] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(moved == 0.0, 0.0, moved / apart)
        some = near.any(axis=1)
        samples[rows][some] = np.max(ratio, axis=1, where=near, initial=0.0)[some]
    return Stability(
        _mean(samples), int(np.isfinite(samples).sum() + np.isinf(samples).sum()), samples
    )


def each_moved(
    X: np.ndarray, move: Callable[[np.ndarray], np.ndarray], chunk: int | None = None
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Some rows at a time: which, each repeated d times, and the same with feature l of the l-th repetition moved;
    slice, (c d, d), (c d, d)."""
    m, d = X.shape
    step = max(1, (CHUNK if chunk is None else chunk) // max(d * d, 1))
    new = move(X)
    own = np.arange(d)
    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        repeated = np.repeat(X[rows], d, axis=0)
        moved = repeated.copy()
        moved.reshape(-1, d, d)[:, own, own] = new[rows]
        yield rows, repeated, moved


class _Case(NamedTuple):
    """What both removing measures need, checked: predictions of dense X and Z, contributions and baselines."""

    predict: Callable[[Any, Any], np.ndarray]
    X: np.ndarray
    Z: np.ndarray | None
    readable: np.ndarray
    contributions: np.ndarray
    baseline: np.ndarray
    moves_x: bool

    @property
    def sees_z(self) -> bool:
        return self.Z is not None

    @classmethod
    def of(
        cls, model: Any, X: Any, Z: Any, contributions: Any, remove: str, baseline: Any
    ) -> _Case:
        if remove not in ("both", "z"):
            raise InputError(f'remove={remove!r}: give "both" or "z"')
        rows, moves_x = _matrix(X, "X"), remove == "both"
        if Z is None and not moves_x:
            Z = X
        readable = rows if Z is None else _matrix(Z, "Z")
        if moves_x and Z is not None and not np.array_equal(rows, readable):
            raise InputError(
                'X and Z differ, so a feature of Z cannot be removed from X: give remove="z"'
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
                f"X, Z and contributions need the same rows, Z and contributions the same columns, got {rows.shape}, "
                f"{readable.shape}, {C.shape}; of a model with transformers, give what they make of the data"
            )
        return cls(
            _predictor(model, X),
            rows,
            None if Z is None else readable,
            readable,
            C,
            origin,
            moves_x,
        )

    def each_removed(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        d = self.readable.shape[1]
        wide = max(1, self.X.shape[1] // d)
        for rows, repeated, moved in each_moved(
            self.readable, lambda A: np.broadcast_to(self.baseline, A.shape), CHUNK // wide
        ):
            yield rows, repeated if self.moves_x else np.repeat(self.X[rows], d, axis=0), moved


def _baseline(baseline: Any, d: int) -> np.ndarray:
    try:
        origin = np.broadcast_to(np.asarray(baseline, dtype=float), d)
    except (TypeError, ValueError):
        origin = np.full(d, np.nan)
    if not np.isfinite(origin).all():
        raise InputError(
            f"baseline={baseline!r}: give a finite number, or one for each of the {d} features"
        )
    return origin


def _predictor(model: Any, X: Any) -> Callable[[Any, Any], np.ndarray]:
    """Predictions of arrays, which are frames again where X was one."""
    function = getattr(model, "predict", model)
    if not callable(function):
        raise InputError(
            f"a model that predicts is needed, or a function that does: got {type(model).__name__}"
        )
    columns = getattr(X, "columns", None)

    def predict(rows: np.ndarray, Z: Any) -> np.ndarray:
        given = rows if columns is None else type(X)(rows, columns=columns)
        found = np.asarray(function(given) if Z is None else function(given, Z), dtype=float)
        if found.size != len(rows) or not np.isfinite(found).all():
            raise InputError(
                f"{len(rows)} finite predictions are needed, a row each: got an array of shape {found.shape}"
            )
        return found.ravel()

    return predict


def _weights(model: Any, X: Any, Z: Any) -> Any:
    if hasattr(model, "weights"):
        return model.weights(X, Z)
    if hasattr(model, "explain"):
        return model.explain(X, Z, std=False, **_all(Z)).weights
    raise InputError(f"{type(model).__name__} does not explain: give weights, (m, d)")


def _contributions(model: Any, X: Any, Z: Any, baseline: Any) -> Any:
    if hasattr(model, "contributions"):
        return model.contributions(X, Z, baseline)
    if hasattr(model, "explain"):
        return model.explain(X, Z, std=False, baseline=baseline, **_all(Z)).contributions
    raise InputError(f"{type(model).__name__} does not explain: give contributions, (m, d)")


def _all(Z: Any) -> dict[str, bool]:
    """A sparse Z is explained by all of its features."""
    return {"dense": True} if sp.issparse(Z) else {}


def _matrix(A: Any, name: str) -> np.ndarray:
    A = real_array(A.toarray() if sp.issparse(A) else A)
    if A.ndim != 2 or not np.isfinite(A).all():
        raise InputError(f"{name} needs to be a table of finite numbers, got shape {A.shape}")
    return A


def _vector(a: Any, name: str) -> np.ndarray:
    a = real_array(a)
    if a.ndim != 1 or not np.isfinite(a).all():
        raise InputError(f"{name} needs to be a list of finite numbers, got shape {a.shape}")
    return a


def _scaled(A: np.ndarray, how: str | None, name: str) -> np.ndarray:
    if how is None or not len(A):
        return A
    if how not in ("unit", "standard"):
        raise InputError(f'{name}={how!r}: give "unit", "standard" or None')
    size = np.abs(A).max(axis=0)
    A = A / np.where(size > 0, size, 1.0)  # squares of very large or small numbers stay numbers
    shift, scale = (
        (A.min(axis=0), np.ptp(A, axis=0)) if how == "unit" else (A.mean(axis=0), A.std(axis=0))
    )
    flat = scale <= 1e-12
    return np.where(flat, 0.0, (A - shift) / np.where(flat, 1.0, scale))


def _correlation(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Of each row of A with that of B; NaN where either does not vary."""
    A, B = _centred(A), _centred(B)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (A * B).sum(axis=1) / np.sqrt((A**2).sum(axis=1) * (B**2).sum(axis=1))
    return np.clip(found, -1.0, 1.0)


def _centred(A: np.ndarray) -> np.ndarray:
    """Rows less their means, relative to their sizes; 0 where they do not vary."""
    A = A / np.maximum(np.abs(A).max(axis=1, keepdims=True), np.finfo(float).tiny)
    return np.where(
        np.ptp(A, axis=1, keepdims=True) <= FLAT, 0.0, A - A.mean(axis=1, keepdims=True)
    )


def _mean(scores: np.ndarray) -> float:
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if known.size else np.nan
