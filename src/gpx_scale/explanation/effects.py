"""Effects: what the values of a feature contribute, from its smallest value to its largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..numbers_as_text import significant
from ..runtime.arguments import whole
from ..runtime.files import import_optional
from .intervals import Interval, between, dense

if TYPE_CHECKING:
    from .explanation import Explanation

# The values of a feature are put into at most this many ranges, which have equally many samples.
POINTS = 20


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of a feature: its mean contribution at each of its values, centred.

    Attributes
    ----------
    feature : str
        The name of the feature or group.
    values : ndarray of shape (v,)
        Values of the feature in ascending order, or the levels of a category. A number is the mean
        of a range of values.
    mean : ndarray of shape (v,)
        The mean contribution of the samples with these values, minus `centre`.
    std : ndarray of shape (v,), or None
        Upper bounds of the standard deviations of these mean contributions: the means of the
        standard deviations of the contributions. They are reached if all contributions are too
        large, or too small, together.
    counts : ndarray of shape (v,)
        The number of samples with these values.
    centre : float
        The mean contribution of all samples, so that effects are 0 on average.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from gpx_scale import GPXRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X[:100], y[:100])
    >>> effect = model.explain(X[100:]).effect("bmi")
    >>> bool(effect.mean[-1] > effect.mean[0])
    True
    >>> lower, upper = effect.interval(0.95)
    >>> bool(((lower <= effect.mean) & (effect.mean <= upper)).all())
    True
    """

    feature: str
    values: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None
    counts: np.ndarray
    centre: float

    @property
    def is_category(self) -> bool:
        """Whether the values are the levels of a category.

        Examples
        --------
        >>> import numpy as np
        >>> from gpx_scale.explanation import Effect
        >>> Effect("size", np.array([1.0]), np.zeros(1), None, np.array([4]), 0.0).is_category
        False
        """
        return self.values.dtype.kind == "O"

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        first, last = (
            str(value) if self.is_category else significant(float(value))
            for value in (self.values[0], self.values[-1])
        )
        return f"Effect({self.feature}: {len(self)} values from {first} to {last})"

    def interval(self, level: float = 0.95) -> Interval:
        """Return the band in which the effect lies at least with a given probability.

        Parameters
        ----------
        level : float, default=0.95
            The probability, at each value by itself.

        Returns
        -------
        interval : Interval
            The lower and upper bounds, of shape (v,) each.

        Raises
        ------
        InputError
            If the explanation has no standard deviations.

        Examples
        --------
        >>> import numpy as np
        >>> from gpx_scale.explanation import Effect
        >>> sizes = np.array([1.0, 2.0])
        >>> effect = Effect("size", sizes, sizes - 1.5, 0.1 * sizes, np.array([4, 4]), 0.0)
        >>> effect.interval(0.95).lower.round(1)
        array([-0.7,  0.1])
        """
        if self.std is None:
            raise InputError(
                "This effect has no standard deviations. Call explain(..., std=True) first."
            )
        return between(self.mean, self.std, level)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each value (extra [files]).

        Returns
        -------
        frame : pandas.DataFrame
            "value", "effect", "samples" and, with uncertainty, "effect_std".

        Examples
        --------
        >>> import numpy as np
        >>> from gpx_scale.explanation import Effect
        >>> sizes = np.array([1.0, 2.0])
        >>> effect = Effect("size", sizes, sizes - 1.5, None, np.array([4, 4]), 0.0)
        >>> effect.to_frame()["effect"].tolist()
        [-0.5, 0.5]
        """
        columns = {"value": self.values, "effect": self.mean, "samples": self.counts}
        if self.std is not None:
            columns["effect_std"] = self.std
        return import_optional("pandas", "files").DataFrame(columns)


def effect_of(explanation: Explanation, feature: Any, points: Any = POINTS) -> Effect:
    """Return the effect of a feature or group, as `Explanation.effect` describes it."""
    if not len(explanation):
        raise InputError("There are no samples. Explain at least one.")
    view, at = _found(explanation, feature)
    view, values = _with_values(view, at)
    contributions, std = dense(view.contributions[:, [at]])[:, 0], view.contributions_std
    place = _places(values, whole(points, "points", least=2))
    counts = np.bincount(place)
    centre = float(contributions.mean())
    is_category = values.dtype.kind == "O"
    deviations = None
    if std is not None:
        deviations = np.bincount(place, dense(std[:, [at]])[:, 0]) / counts
    return Effect(
        view.feature_names[at],
        np.unique(values) if is_category else np.bincount(place, values) / counts,
        np.bincount(place, contributions) / counts - centre,
        deviations,
        counts,
        centre,
    )


def _found(explanation: Explanation, feature: Any) -> tuple[Explanation, int]:
    """Return the explanation that has a feature or group, and its place, or raise an error."""
    names: Sequence[str] = explanation.feature_names
    is_number = isinstance(feature, int | np.integer) and not isinstance(feature, bool)
    if is_number and 0 <= feature < len(names):
        return explanation, int(feature)
    groups = () if explanation.groups is None else explanation.groups.names
    if feature in groups:
        return explanation.grouped(), groups.index(feature)
    if feature in names:
        return explanation, list(names).index(feature)
    known = [*groups, *names]
    some = ", ".join(map(repr, known[:8])) + (", ..." if len(known) > 8 else "")
    raise InputError(f"feature={feature!r}: Give a number below {len(names)} or one of {some}.")


def _with_values(view: Explanation, at: int) -> tuple[Explanation, np.ndarray]:
    """Return the samples that have a feature, with its values as numbers or as texts;  (m,).

    A category has a text for each sample. Among numbers, only missing values are texts.
    """
    if view.levels is not None:
        is_text = view.levels[:, at] != ""
        if is_text.all():
            return view, view.levels[:, at]
        view = view[~is_text]
    numbers = dense(view.data[:, [at]])[:, 0].astype(float)
    if np.isnan(numbers).any():
        raise InputError(
            f"The group {view.feature_names[at]!r} has no values of its own. Give one of its "
            "features."
        )
    return view, numbers


def _places(values: np.ndarray, points: int) -> np.ndarray:
    """Return the point to which each value belongs, none of which is empty;  (m,).

    Values that are few have points of their own. Others are cut where about as many samples are on
    each side, and equal values stay together.
    """
    known, place = np.unique(values, return_inverse=True)
    if values.dtype.kind == "O" or known.size <= points:
        return place
    cuts = np.unique(np.quantile(values, np.arange(1, points) / points))
    return np.unique(np.searchsorted(cuts, values, side="left"), return_inverse=True)[1]
