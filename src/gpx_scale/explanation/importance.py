"""The importance of features or groups over all samples, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..numbers_as_text import significant
from ..runtime.files import import_optional

if TYPE_CHECKING:
    from .explanation import Explanation

# A text shows at most this many features.
SHOWN_FEATURES = 20


class Importance(np.ndarray):
    """The mean absolute contribution of each feature or group, as an array with names.

    It is an ordinary array of shape (d,) for numpy, and ``importance["bmi"]`` is the number of a
    feature. What numpy computes from it has no names.

    Parameters
    ----------
    values : array-like of shape (d,)
        The means over all samples.
    names : list of str
        The names of the features or groups.
    uncertainty : ndarray of shape (d,), or None
        Upper bounds of the standard deviations of these means under the posterior distribution:
        the means of the standard deviations of the contributions. They are reached if the
        contributions of all samples are too large, or too small, together. None without
        standard deviations.

    Examples
    --------
    >>> from gpx_scale.explanation import Importance
    >>> importance = Importance([2.0, 5.0], ["age", "bmi"], uncertainty=[0.5, 1.0])
    >>> importance["bmi"], importance.tolist()
    (5.0, [2.0, 5.0])
    >>> importance
    bmi  5.000 ± 1.0
    age  2.000 ± 0.50
    """

    names: list[str]
    uncertainty: np.ndarray | None

    def __new__(cls, values: Any, names: Sequence[str], uncertainty: Any = None) -> Importance:
        made = np.array(values, dtype=float).view(cls)
        made.names = list(names)
        made.uncertainty = None if uncertainty is None else np.array(uncertainty, dtype=float)
        return made

    def __getitem__(self, key: Any) -> Any:
        """Return the importance of a feature by its name, or numbers as an array does."""
        values = np.asarray(self)
        return float(values[self.names.index(key)]) if isinstance(key, str) else values[key]

    def __array_wrap__(self, found: np.ndarray, *context: Any, **options: Any) -> Any:
        """Return the result of a computation as an ordinary array or number."""
        plain = np.asarray(found)
        return plain if plain.ndim else plain[()]

    def __array_finalize__(self, made_from: Any) -> None:
        # Numpy makes copies and views by this alone.
        self.names = list(getattr(made_from, "names", ()))
        self.uncertainty = getattr(made_from, "uncertainty", None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (np.asarray(self), self.names, self.uncertainty)

    def __repr__(self) -> str:
        if self.shape != (len(self.names),):
            return repr(np.asarray(self))
        order = np.argsort(-np.asarray(self), kind="stable")
        width = max(map(len, self.names), default=0)
        lines = []
        for at in order[:SHOWN_FEATURES]:
            reach = (
                ""
                if self.uncertainty is None
                else f" ± {significant(float(self.uncertainty[at]), 2)}"
            )
            lines.append(f"{self.names[at]:{width}}  {significant(self[at])}{reach}")
        if len(order) > SHOWN_FEATURES:
            lines.append(f"... and {len(order) - SHOWN_FEATURES} others")
        return "\n".join(lines)

    __str__ = __repr__

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each feature, the largest first.

        Returns
        -------
        frame : pandas.DataFrame
            "feature", "importance" and, with uncertainty, "importance_std".

        Examples
        --------
        >>> from gpx_scale.explanation import Importance
        >>> Importance([2.0, 5.0], ["age", "bmi"]).to_frame()["feature"].tolist()
        ['bmi', 'age']
        """
        columns: dict[str, Any] = {"feature": self.names, "importance": np.asarray(self)}
        if self.uncertainty is not None:
            columns["importance_std"] = self.uncertainty
        frame = import_optional("pandas", "files").DataFrame(columns)
        return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)


def importance_of(explanation: Explanation) -> Importance:
    """Return the importance of the features of an explanation."""
    count = max(len(explanation), 1)
    sizes, std = explanation.contributions, explanation.contributions_std
    bounds = None if std is None else _column_sums(std) / count
    return Importance(_column_sums(abs(sizes)) / count, explanation.feature_names, bounds)


def _column_sums(A: Any) -> np.ndarray:
    """Return the sums of the columns of a dense or sparse array;  (m, d) -> (d,)."""
    return np.asarray(A.sum(axis=0), dtype=float).ravel()
