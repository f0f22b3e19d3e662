"""The class `Explanation`: weights of each sample, their contributions, and their uncertainty."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..errors import InputError
from ..runtime.arguments import one_of, probability, real_array, whole
from ..runtime.files import atomic_write, import_optional
from ..runtime.journal import FitReport
from .effects import Effect, effect_of
from .groups import Groups, by_groups, grouped
from .importance import Importance, importance_of
from .intervals import Interval, between, dense, entrywise, probability_of_sign, ratio_of
from .local_fit import local_r2_of, part_shares_of
from .notebook import shown_in_notebook
from .words import paragraph


class Reason(NamedTuple):
    """The contribution of one feature to one prediction.

    Attributes
    ----------
    feature : str
        The name of the feature.
    value : float or str
        Its value z_l, in the units of the data. That of a group is the level of a category, or NaN.
    weight : float
        Its weight w_l(x), in units of y per unit of the feature. NaN for a group.
    contribution : float
        The weight times the difference between the value and the baseline, in units of y.
    contribution_std : float or None
        The standard deviation of the contribution. None without uncertainty.

    Examples
    --------
    >>> from gpx_scale.explanation import Reason
    >>> reason = Reason("bmi", 32.0, 5.0, 28.0, 4.0)
    >>> print(f"{reason.feature}: {reason.contribution:+.0f} ± {reason.contribution_std:.0f}")
    bmi: +28 ± 4
    """

    feature: str
    value: float | str
    weight: float
    contribution: float
    contribution_std: float | None


# A sample counts as far from all training rows if these have removed a smaller share of its prior
# variance. One training row without noise removes this share at a correlation of 0.03.
FAR_SHARE = 1e-3
# Fields of an explanation that have no entry for each sample.
FIELDS_OF_THE_MODEL = (
    *("feature_names", "target_name", "fit_report"),
    *("units", "target_units", "training_record", "baseline", "groups", "weights_noise"),
    "noise",
    "likelihood",
)


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanations of m predictions by d features, in the units of the data.

    `GPXRegressor.explain` returns one. Contributions and base values add up to the predictions:
    ``base_values + contributions.sum(axis=1) == prediction``, up to rounding. An explanation has a
    length, iterates over its samples, and can be sliced by them.

    Standard deviations are those of the posterior distribution: of weights and contributions with
    the noise of the weights (sigma_w), unless the explanation was made with `std="surface"`; of
    predictions also with the noise of y (sigma_y). They are None if the explanation was made with
    `std=False`. For a sparse Z, every array of shape (m, d) is a `csr_array` with the entries of Z,
    unless all features were asked for.

    Attributes
    ----------
    weights : ndarray or csr_array of shape (m, d)
        The posterior means of the weights, in units of y per unit of each feature.
    weights_std : ndarray or csr_array of shape (m, d), or None
        The standard deviations of the weights.
    contributions : ndarray or csr_array of shape (m, d)
        The weights times (z - baseline), in units of y.
    contributions_std : ndarray or csr_array of shape (m, d), or None
        The standard deviations of the contributions.
    base_values : ndarray of shape (m,)
        The predictions at the baseline.
    base_values_std : ndarray of shape (m,), or None
        The standard deviations of the base values.
    prediction : ndarray of shape (m,)
        The predictions.
    prediction_std : ndarray of shape (m,), or None
        The standard deviations of new y, noise included.
    data : ndarray or csr_array of shape (m, d)
        The readable features z.
    feature_names : list of str
        The names of the d features.
    weights_cov : ndarray of shape (m, d, d), or None
        The covariance matrices of the weights of each sample, if they were asked for.
    target_name : str or None
        The name of y, if it is known.
    fit_report : FitReport or None
        The report of the fit of the model.
    learned : ndarray of shape (m,), or None
        The share of the prior variance of each prediction, noise apart, that the data have removed.
        It is near 1 where they determine the prediction, and 0 far from all training rows. It is
        NaN for a sample whose standardised features are all 0, and None without standard deviations
        or with those from samples.
    constant : ndarray or csr_array of shape (m, d), or None
        The part of each weight that is the same everywhere, if weights have priors of their own
        (all but `weights="shared"`). The parts add up to the weights. It is 0 for a weight without
        this part, and None if weights share their prior.
    own : ndarray or csr_array of shape (m, d), or None
        The part of each weight that varies with its own feature alone, of an additive model.
    varying : ndarray or csr_array of shape (m, d), or None
        The part of each weight that varies with all of x.
    constant_std, own_std, varying_std : ndarray or csr_array of shape (m, d), or None
        The standard deviations of these parts. The noise of the weights belongs to the varying one.
    units : mapping of str to str, or None
        The units of features, by their names, such as `{"bmi": "kg/m²"}`. Plots, reports and
        sentences write them.
    target_units : str or None
        The units of y, such as "mg/dl".
    index : ndarray of shape (m,), or None
        The index of the pandas data frame that was explained. It is None for other inputs.
    row_keys : ndarray of shape (m,), or None
        Hashes of the samples, by which a report tells which of them the model was fitted on.
    training_record : TrainingRecord or None
        What is known of the rows that the model was fitted on, as long as the model exists.
    weights_noise : ndarray of shape (d,), or None
        The part of `weights_std` that is the noise of a row's own weights (sigma_w), in the units
        of the weights. It is 0 with `std="surface"`, and None if it is not known.
    noise : float or None
        The standard deviation of the Gaussian noise of y (sigma_y), in the units of y. It is 0 for
        a classifier, and None if it is not known.
    baseline : ndarray of shape (d,), or None
        The z to which contributions are relative, in the units of the data.
    groups : Groups or None
        The groups of features that are one reason each, if there are any.
    groups_std : ndarray of shape (m, g), or None
        The standard deviations of the contributions of these groups.
    levels : ndarray of str of shape (m, d), or None
        The values that are texts, of an explanation by groups: the levels of categories.

    Examples
    --------
    >>> from gpx_scale import GPXRegressor, datasets
    >>> data = datasets.load_diabetes()
    >>> model = GPXRegressor(random_state=0).fit(data.X[:300], data.y[:300])
    >>> explanation = model.explain(data.X[300:], feature_names=data.feature_names)
    >>> reason = explanation.top(0, k=1)[0]
    >>> reason.feature, round(reason.contribution), round(reason.contribution_std)
    ('bmi', 42, 8)
    >>> lower, upper = explanation.interval(0.9)
    >>> lower.shape, bool((lower <= explanation.contributions).all())
    ((142, 10), True)
    >>> bmi = explanation.feature_names.index("bmi")
    >>> bool(explanation.probability_positive()[0, bmi] > 0.99)
    True
    >>> explanation[:5]
    Explanation(5 samples, 10 features, with uncertainty)
    """

    weights: Any
    weights_std: Any
    contributions: Any
    contributions_std: Any
    base_values: np.ndarray
    base_values_std: np.ndarray | None
    prediction: np.ndarray
    prediction_std: np.ndarray | None
    data: Any
    feature_names: list[str]
    weights_cov: np.ndarray | None = None
    target_name: str | None = None
    fit_report: FitReport | None = None
    learned: np.ndarray | None = None
    constant: Any = None
    own: Any = None
    varying: Any = None
    constant_std: Any = None
    own_std: Any = None
    varying_std: Any = None
    units: Mapping[str, str] | None = None
    target_units: str | None = None
    index: np.ndarray | None = None
    row_keys: np.ndarray | None = None
    training_record: Any = None
    weights_noise: np.ndarray | None = None
    noise: float | None = None
    baseline: np.ndarray | None = None
    groups: Groups | None = None
    groups_std: np.ndarray | None = None
    levels: np.ndarray | None = None

    # Whether predictions are those of a latent function, on another scale than y.
    is_latent: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, rows: Any) -> Explanation:
        """Return the explanations of some samples: those of a slice, of indices, or of a mask.

        A single index gives an explanation of one sample.
        """
        if not isinstance(rows, slice):
            rows = [self._row(rows)] if np.ndim(rows) == 0 else np.arange(len(self))[rows]
            if np.ndim(rows) != 1:
                raise IndexError(
                    "Samples have one dimension. Give an index, a slice or a flat array."
                )
        arrays = (
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name not in FIELDS_OF_THE_MODEL
        )
        return replace(self, **{name: value[rows] for name, value in arrays if value is not None})

    def _row(self, i: Any) -> int:
        """Return the index of a sample as an int, or raise an error."""
        if isinstance(i, bool | np.bool_):
            raise TypeError(f"{i!r} is not the index of a sample. Give an integer.")
        row = operator.index(i)
        if not -len(self) <= row < len(self):
            raise IndexError(
                f"There is no sample {row}: there are {len(self)}. Samples are counted from 0."
            )
        return row

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        std = "with" if self.weights_std is not None else "without"
        count = int(self.is_far.sum())
        far = f", the data say nothing about {count}" if count else ""
        sizes = f"{len(self)} samples, {self.weights.shape[1]} features"
        return f"{type(self).__name__}({sizes}, {std} uncertainty{far})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: a table of the first samples and their largest reasons."""
        return shown_in_notebook(self)

    def with_units(
        self, units: Mapping[str, str] | None = None, target_units: str | None = None
    ) -> Explanation:
        """Return this explanation with units, which plots, reports and sentences write.

        Parameters
        ----------
        units : mapping of str to str, default=None
            The units of features, by their names. None leaves those that are there.
        target_units : str, default=None
            The units of y. None leaves those that are there.

        Returns
        -------
        explanation : Explanation
            The explanation with the units.

        Raises
        ------
        InputError
            If a name is not that of a feature.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:]).with_units({"bmi": "kg/m²"})
        >>> explanation.units["bmi"]
        'kg/m²'
        """
        given = self.units if units is None else _checked_units(units, self.feature_names)
        return replace(
            self,
            units=given,
            target_units=self.target_units if target_units is None else str(target_units),
        )

    @property
    def is_far(self) -> np.ndarray:
        """The samples about which the data say nothing, as a boolean array of shape (m,).

        The data have removed less than a thousandth of the prior variance of their predictions.
        Such a sample is far from all training rows, or its features are those of no training row,
        or the noise is far larger than the variance of the weights. Its weights are close to their
        prior mean, which is 0, and their standard deviations are those of the prior. All are False
        if `learned` is not known.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> model.explain([X[100], X[100] + 5.0]).is_far.tolist()
        [False, True]
        """
        if self.learned is None:
            return np.zeros(len(self), bool)
        far: np.ndarray = self.learned < FAR_SHARE
        return far

    def grouped(self, groups: Any = None) -> Explanation:
        """Return this explanation by groups of features, each of which is one reason.

        The contribution of a group is the sum of those of its features, and its standard deviation
        takes their covariances into account. All features that no group names are a group "others".
        The groups that `explain` found by itself leave them as they are. A group of several
        features has no weight of its own. Its value is the level of a category or NaN.

        Parameters
        ----------
        groups : dict of str to list, default=None
            For the name of each group, the names or numbers of its features. None takes the groups
            that the explanation was made with. Others need ``explain(..., cov=True)``, unless the
            explanation has no standard deviations.

        Returns
        -------
        explanation : Explanation
            The explanation with arrays of shape (m, g) for g groups. The names of its features are
            those of the groups.

        Raises
        ------
        InputError
            If a group has a column that is no feature, or if standard deviations are not known.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> blood = {"blood": ["s1", "s2", "s3", "s4", "s5", "s6"]}
        >>> explanation = model.explain(X[100:], groups=blood)
        >>> explanation.grouped().feature_names
        ['blood', 'others']
        >>> explanation.grouped().top(0, k=1)[0].feature in ("blood", "others")
        True
        """
        return grouped(self, groups)

    def top(self, i: int, k: int = 5, groups: Any = None) -> list[Reason]:
        """Return the features with the largest absolute contributions to a prediction.

        Parameters
        ----------
        i : int
            The index of the sample.
        k : int, default=5
            The largest number of features.
        groups : dict of str to list, bool or None, default=None
            The groups of features, as in `grouped`. None takes those of the explanation, if it has
            some, and False takes each feature by itself.

        Returns
        -------
        reasons : list of Reason
            The features, the one with the largest absolute contribution first. With a sparse Z,
            only features that are stored for this sample.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> reasons = explanation.top(0, k=3)
        >>> len(reasons), abs(reasons[0].contribution) >= abs(reasons[1].contribution)
        (3, True)
        """
        one = by_groups(self[self._row(i)], groups)
        entries, values = one.entries(), one.values()
        order = np.argsort(-np.abs(entries["contribution"]), kind="stable")[
            : whole(k, "k", least=0)
        ]
        stds = entries.get("contribution_std")
        return [
            Reason(
                one.feature_names[entries["feature"][e]],
                values[e],
                float(entries["weight"][e]),
                float(entries["contribution"][e]),
                None if stds is None else float(stds[e]),
            )
            for e in order
        ]

    def in_words(self, i: int, k: int = 3, level: float = 0.95, groups: Any = None) -> str:
        """Return the explanation of a prediction as a paragraph, to be pasted into an e-mail.

        It has the prediction, where it starts from, and the largest contributions, with their
        ranges and units, in words that need no knowledge of statistics.

        Parameters
        ----------
        i : int
            The index of the sample.
        k : int, default=3
            The number of contributions that are named; the others are summed up.
        level : float, default=0.95
            The probability of the ranges.
        groups : dict of str to list, bool or None, default=None
            The groups of features, as in `top`.

        Returns
        -------
        text : str
            The paragraph.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:], target_units="points")
        >>> explanation.in_words(0).split(". ")[1].startswith("With a probability of 95%")
        True
        """
        return self._paragraph(i, whole(k, "k", least=0), probability(level, "level"), groups)

    def _paragraph(self, *asked: Any) -> str:
        """Return the words about one sample."""
        return paragraph(self, *asked)

    def effect(self, feature: str | int, points: int = 20) -> Effect:
        """Return the effect of a feature: its mean contribution at each of its values, centred.

        The samples are put into ranges of the feature's values, with about as many samples in each.
        The effect at a range is the mean contribution of the feature in its samples, minus that in
        all samples. It shows what the values of a feature do to the prediction, whereas
        `plots.plot_dependence` shows how its weight depends on x. Samples in which the value of a
        number is missing are left out.

        Parameters
        ----------
        feature : str or int
            The feature by its name or number, or a group of features by its name. A category has an
            effect for each of its levels.
        points : int, default=20
            The largest number of ranges. Values that are no more than this have points of their
            own.

        Returns
        -------
        effect : Effect
            The effect with its band.

        Raises
        ------
        InputError
            If there is no such feature, or if the group has no values of its own.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor("rbf", optimizer=None, weights="shared").fit(X[:100], y[:100])
        >>> effect = model.explain(X[100:]).effect("sex")
        >>> effect.values.tolist(), int(effect.counts.sum())
        ([1.0, 2.0], 342)
        """
        return effect_of(self, feature, points)

    def interval(self, level: float = 0.95) -> Interval:
        """Return the intervals in which the contributions lie with a given probability.

        Parameters
        ----------
        level : float, default=0.95
            The probability.

        Returns
        -------
        interval : Interval
            The lower and upper bounds, of shape (m, d) each.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> lower, upper = explanation.interval(0.9)
        >>> lower.shape, bool((lower <= upper).all())
        ((342, 10), True)
        """
        return between(self.contributions, self._known(self.contributions_std), level)

    def weights_interval(self, level: float = 0.95) -> Interval:
        """Return the intervals in which the weights lie with a given probability.

        Parameters
        ----------
        level : float, default=0.95
            The probability.

        Returns
        -------
        interval : Interval
            The lower and upper bounds, of shape (m, d) each.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> explanation.weights_interval(0.9).lower.shape
        (342, 10)
        """
        return between(self.weights, self._known(self.weights_std), level)

    def prediction_interval(self, level: float = 0.95) -> Interval:
        """Return the intervals in which new y lie with a given probability, noise included.

        Parameters
        ----------
        level : float, default=0.95
            The probability.

        Returns
        -------
        interval : Interval
            The lower and upper bounds, of shape (m,) each.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> explanation.prediction_interval(0.9).upper.shape
        (342,)
        """
        return between(self.prediction, self._known(self.prediction_std), level)

    def probability_positive(self, of: str = "contributions") -> Any:
        """Return the probability that each contribution, or each weight, is positive.

        Near 1, a feature surely adds to the prediction; near 0, it surely does not. The probability
        is 0 for a feature at its baseline, whose contribution is exactly 0, and for a weight that
        is known to be zero.

        Parameters
        ----------
        of : {"contributions", "weights"}, default="contributions"
            Of which numbers. A map shows that of the weights, which is near 0 or 1 where the sign
            of an effect is known. Explain with `std="surface"` for the weights of the surface.

        Returns
        -------
        probability : ndarray or csr_array of shape (m, d)
            The probabilities.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> probability = explanation.probability_positive()
        >>> bool(((probability >= 0) & (probability <= 1)).all())
        True
        """
        if one_of(of, ("contributions", "weights"), "of") == "weights":
            return entrywise(probability_of_sign, self.weights, self._known(self.weights_std))
        return entrywise(
            probability_of_sign, self.contributions, self._known(self.contributions_std)
        )

    def local_t(self) -> Any:
        """Return each weight over its standard deviation, as the local t values of GWR.

        Explain with `std="surface"` for those of the surface, without each row's own deviation. A
        weight that is known to be zero has the value 0.

        Returns
        -------
        t : ndarray or csr_array of shape (m, d)
            The ratios.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> from gpx_scale.datasets import synth2
        >>> data = synth2(100)
        >>> model = GPXRegressor("rbf", optimizer=None).fit(data.X, data.y, data.Z)
        >>> model.explain(data.X[:3], data.Z[:3], std="surface").local_t().shape
        (3, 5)
        """
        return entrywise(ratio_of, self.weights, self._known(self.weights_std))

    def local_r2(self) -> np.ndarray:
        """Return the share of the variance of y that the weights of each sample explain.

        If all samples had the weights w of this one, the variance of w . z over the features of the
        samples would be explained, and that of the noise (sigma_y, and sigma_w times z) would not.
        It answers what the local R^2 of GWR does, from the model instead of the residuals of
        neighbours. Explain enough samples to know the covariance of the features: a slice of an
        explanation has that of its own samples.

        Returns
        -------
        r2 : ndarray of shape (m,)
            The shares, between 0 and 1.

        Raises
        ------
        InputError
            If there are fewer than two samples, if the features are sparse or groups, or if there
            is no Gaussian noise.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> from gpx_scale.datasets import synth2
        >>> data = synth2(100)
        >>> model = GPXRegressor("rbf", optimizer=None).fit(data.X, data.y, data.Z)
        >>> r2 = model.explain(data.X, data.Z).local_r2()
        >>> r2.shape, bool(((r2 >= 0) & (r2 <= 1)).all())
        ((100,), True)
        """
        return local_r2_of(self)

    def part_shares(self) -> dict[str, float]:
        """Return how much of the variance of the contributions each part of the weights carries.

        The part "constant" has the straight effects, "own" the curves of single features, and
        "varying" what depends on other columns of x, too: the interactions. The variance of each
        part is that of its contributions, added up over features, over the samples.

        Returns
        -------
        shares : dict of str to float
            The shares, which add up to 1. It is empty if weights share their prior, if features are
            groups, or if contributions do not differ.

        Examples
        --------
        >>> from gpx_scale import GPXRegressor
        >>> from gpx_scale.datasets import synth_semi
        >>> data = synth_semi(80)
        >>> model = GPXRegressor("rbf", weights="semi", optimizer=None)
        >>> shares = model.fit(data.X, data.y, data.Z).explain(data.X, data.Z).part_shares()
        >>> list(shares), round(sum(shares.values()), 10)
        (['constant', 'varying'], 1.0)
        """
        return part_shares_of(self)

    def coverage(self, y: Any, level: float = 0.95) -> float:
        """Return the share of true values that lie in the intervals of their predictions.

        If the uncertainty of the model is right, the share is about `level`.

        Parameters
        ----------
        y : array-like of shape (m,)
            The true values.
        level : float, default=0.95
            The probability of the intervals.

        Returns
        -------
        share : float
            The share of the values that lie in their intervals.

        Raises
        ------
        InputError
            If y does not have one finite number for each prediction.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> 0.8 < explanation.coverage(y[100:]) <= 1.0
        True
        """
        lower, upper = self.prediction_interval(level)
        y = real_array(y)
        if y.shape != lower.shape or not np.isfinite(y).all():
            raise InputError(
                f"y has shape {y.shape}, or values that are not finite. Give {len(self)} finite "
                "numbers, one for each prediction."
            )
        return float(np.mean((lower <= y) & (y <= upper)))

    def importance(self, groups: Any = None) -> Importance:
        """Return the mean absolute contribution of each feature, with names and uncertainty.

        Parameters
        ----------
        groups : dict of str to list, bool or None, default=None
            The groups of features, as in `grouped`. None takes those of the explanation, if it has
            some, and False takes each feature by itself.

        Returns
        -------
        importance : Importance of shape (d,)
            The means over all samples, in units of y: an array that has `names` and `uncertainty`.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> importance = explanation.importance()
        >>> importance.shape, importance.uncertainty.shape
        ((10,), (10,))
        >>> bool(importance["bmi"] > 0.0)
        True
        """
        return importance_of(by_groups(self, groups))

    def _known(self, std: Any) -> Any:
        """Return standard deviations, or raise an error if they were not computed."""
        if std is None:
            raise InputError(
                "This explanation has no standard deviations. Call explain(..., std=True)."
            )
        return std

    def entries(self, level: float | None = None) -> dict[str, np.ndarray]:
        """Return a table with one row for every sample and feature, as a dict of columns.

        For a sparse Z, the table has one row for every stored entry.

        Parameters
        ----------
        level : float or None, default=None
            With a probability, there are also the columns "lower" and "upper" (the interval of
            the contribution) and "probability_positive".

        Returns
        -------
        columns : dict of str to ndarray
            "sample" and "feature" (indices), "value", "weight", "contribution" and, with
            uncertainty, "weight_std" and "contribution_std".

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> columns = explanation.entries()
        >>> columns["feature"][:4].tolist(), columns["weight"].shape
        ([0, 1, 2, 3], (3420,))
        """
        parts = {
            "value": self.data,
            "weight": self.weights,
            "contribution": self.contributions,
            "weight_std": self.weights_std,
            "contribution_std": self.contributions_std,
        }
        if level is not None:
            parts["lower"], parts["upper"] = self.interval(level)
            parts["probability_positive"] = self.probability_positive()
        if sp.issparse(self.weights):
            pointers, features = self.weights.indptr, self.weights.indices
            columns = {
                "sample": np.repeat(np.arange(len(self)), np.diff(pointers)),
                "feature": features,
            }
            return columns | {name: part.data for name, part in parts.items() if part is not None}
        m, d = self.weights.shape
        columns = {"sample": np.repeat(np.arange(m), d), "feature": np.tile(np.arange(d), m)}
        return columns | {name: part.ravel() for name, part in parts.items() if part is not None}

    def values(self) -> list[float | str]:
        """Return the value of each row of the table of `entries`.

        Returns
        -------
        values : list of float or str
            Numbers, NaN for a group that has no value, and texts for the levels of categories.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> model.explain(X[:1]).values()[:3]
        [59.0, 2.0, 32.1]
        """
        numbers: list[float | str] = (
            self.data.data if sp.issparse(self.data) else self.data.ravel()
        ).tolist()
        if self.levels is None:
            return numbers
        texts = self.levels.ravel().tolist()
        return [text or number for text, number in zip(texts, numbers, strict=True)]

    def to_frame(self, wide: bool = False, level: float | None = None) -> Any:
        """Return a pandas DataFrame (extra [files]).

        Parameters
        ----------
        wide : bool, default=False
            By default, the frame has one row for every sample and feature, or for every stored
            entry of a sparse Z. With `wide`, it has one row per sample, with the prediction and
            one column per feature that has its contributions (sparse columns for a sparse Z).
        level : float or None, default=None
            With a probability, the frame has the bounds "lower" and "upper" too: of every
            contribution, together with the probability that it is positive; with `wide`, of the
            predictions.

        Returns
        -------
        frame : pandas.DataFrame
            The table. Its index is that of the data frame that was explained, if it was one.

        Notes
        -----
        Names of features are those of the data, and `frame.to_csv` writes them unchanged. A
        spreadsheet runs a name that begins with =, +, - or @ as a formula, so check names that
        others have chosen before you share such a file.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> explanation.to_frame()["feature"].tolist()[:3]
        ['age', 'sex', 'bmi']
        >>> explanation.to_frame(wide=True).shape
        (342, 13)
        """
        pd = import_optional("pandas", "files")
        if wide:
            make = (
                pd.DataFrame.sparse.from_spmatrix
                if sp.issparse(self.contributions)
                else pd.DataFrame
            )
            frame = make(self.contributions, columns=self.feature_names)
            if self.index is not None:
                frame.index = pd.Index(self.index)
            # A feature may have the name of one of these columns.
            frame.insert(0, "base_value", self.base_values, allow_duplicates=True)
            frame.insert(1, "prediction", self.prediction, allow_duplicates=True)
            if self.prediction_std is not None:
                frame.insert(2, "prediction_std", self.prediction_std, allow_duplicates=True)
            if level is not None:
                for at, (name, bound) in enumerate(
                    self.prediction_interval(level)._asdict().items()
                ):
                    frame.insert(3 + at, name, bound, allow_duplicates=True)
            return frame
        columns = self.entries(level)
        columns["feature"] = np.array(self.feature_names, dtype=object)[columns["feature"]]
        if self.levels is not None:
            columns["value"] = np.array(self.values(), dtype=object)
        labels = None if self.index is None else pd.Index(self.index[columns["sample"]])
        return pd.DataFrame(columns, index=labels)

    def to_json(self, path: Any = None, level: float | None = 0.95) -> str:
        """Return the explanations of all samples as JSON text, every number with all its digits.

        Parameters
        ----------
        path : str, path-like or None, default=None
            A file to which the text is written too.
        level : float or None, default=0.95
            The probability of the bounds. None leaves them out. Without standard deviations there
            are no bounds.

        Returns
        -------
        text : str
            The JSON document.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> import json
        >>> document = json.loads(explanation[:2].to_json())
        >>> document["target"], len(document["samples"])
        ('target', 2)
        >>> sorted(document["samples"][0]["reasons"][0])[:3]
        ['contribution', 'contribution_std', 'feature']
        """
        level = (
            None if level is None or self.contributions_std is None else probability(level, "level")
        )
        columns = self.entries(level)
        starts = np.searchsorted(columns.pop("sample"), np.arange(len(self) + 1))
        features = [self.feature_names[at] for at in columns.pop("feature")]
        lists = {name: column.tolist() for name, column in columns.items()}
        if self.levels is not None:
            lists["value"] = self.values()
            lists = {name: [None if v != v else v for v in some] for name, some in lists.items()}
        whole: dict[str, Any] = {"prediction": self.prediction, "base_value": self.base_values}
        if level is not None:
            whole["prediction_std"], whole["base_value_std"] = (
                self.prediction_std,
                self.base_values_std,
            )
            whole["prediction_lower"], whole["prediction_upper"] = self.prediction_interval(level)
        labels: list[dict[str, Any]] = [{}] * len(self)
        if self.index is not None:
            labels = [{"index": _as_json(label)} for label in self.index.tolist()]
        samples = [
            labels[i]
            | {name: float(values[i]) for name, values in whole.items()}
            | {
                "reasons": [
                    {"feature": features[e]} | {name: values[e] for name, values in lists.items()}
                    for e in range(starts[i], starts[i + 1])
                ]
            }
            for i in range(len(self))
        ]
        document = {
            "format": "gpx_scale explanation",
            "version": 1,
            "target": self.target_name,
            "level": level,
        }
        text = json.dumps(document | {"samples": samples}, allow_nan=False, indent=1)
        if path is not None:
            with atomic_write(path) as beside:
                beside.write_text(text, encoding="utf-8")
        return text

    def to_shap(self, level: float = 0.95, words: bool = False) -> Any:
        """Return a `shap.Explanation`, for the plots of the package shap (extra [bench]).

        Its values are the contributions. Its lower and upper bounds are their intervals, which
        shap's waterfall plot draws as error bars. A sparse Z becomes dense, so slice a large
        explanation first.

        Parameters
        ----------
        level : float, default=0.95
            The probability of the intervals.
        words : bool, default=False
            Whether the data are the names of the features that a sample has, instead of numbers,
            as `shap.plots.text` needs them.

        Returns
        -------
        explanation : shap.Explanation
            The explanation.

        Examples
        --------
        The plots of shap take the result:

        >>> import shap  # doctest: +SKIP
        >>> shap.plots.waterfall(explanation.to_shap()[0])  # doctest: +SKIP
        """
        shap = import_optional("shap", "bench")
        bounds = {}
        if self.contributions_std is not None:
            names = ("lower_bounds", "upper_bounds")
            bounds = {
                name: dense(bound) for name, bound in zip(names, self.interval(level), strict=True)
            }
        data = dense(self.data)
        if self.levels is not None:
            data = np.array(self.values(), dtype=object).reshape(data.shape)
        if words:
            data = np.where(
                data != 0, np.array([f"{name} " for name in self.feature_names], dtype=object), ""
            )
        return shap.Explanation(
            values=dense(self.contributions),
            base_values=self.base_values,
            data=data,
            feature_names=self.feature_names,
            output_names=self.target_name,
            **bounds,
        )

    def to_html(self, path: Any, y: Any = None, title: str | None = None, **options: Any) -> Path:
        """Write a report into one HTML file that needs no network (extra [report]).

        The report shows the model, the importance of the features, and the reasons of each sample.

        Parameters
        ----------
        path : str or path-like
            The file. An existing one is replaced.
        y : array-like of shape (m,), default=None
            The true values, for the error and for the coverage of the intervals.
        title : str or None, default=None
            The title. None takes one with the name of the target.
        **options : Any
            The other options of `gpx_scale.report.Section`.

        Returns
        -------
        path : Path
            The path of the file.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = explanation[:5].to_html(Path(folder) / "report.html", y=y[100:105])
        ...     page.exists()
        True
        """
        from ..report.page import Section, write_report

        title = title or (
            f"Predictions of {self.target_name}"
            if self.target_name
            else "Predictions and their reasons"
        )
        return write_report(path, [Section(title, self, y=y, **options)], title=title)

    def plot(
        self,
        i: int = 0,
        ax: Any = None,
        k: int = 20,
        level: float = 0.95,
        groups: Any = None,
    ) -> Any:
        """Draw the contributions to one prediction as bars with error bars (extra [plot]).

        Parameters
        ----------
        i : int, default=0
            The index of the sample.
        ax : matplotlib.axes.Axes or None, default=None
            Where to draw. None makes a new figure.
        k : int, default=20
            The largest number of features that are shown.
        level : float, default=0.95
            The probability of the intervals that the error bars show.
        groups : dict of str to list, bool or None, default=None
            The groups of features that are shown as one, as in `top`.

        Returns
        -------
        ax : matplotlib.axes.Axes
            The axes.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> from matplotlib.figure import Figure
        >>> ax = explanation.plot(0, ax=Figure().subplots(), k=5)
        >>> type(ax).__name__
        'Axes'
        """
        from ..plots import plot_contributions

        return plot_contributions(self, i, ax=ax, k=k, level=level, groups=groups)

    def plot_summary(self, k: int = 12, ax: Any = None, groups: Any = None) -> Any:
        """Draw the contributions of all samples, the most important feature first (extra [plot]).

        Parameters
        ----------
        k : int, default=12
            The largest number of features that are shown.
        ax : matplotlib.axes.Axes or None, default=None
            Where to draw. None makes a new figure.
        groups : dict of str to list, bool or None, default=None
            The groups of features that are shown as one, as in `top`.

        Returns
        -------
        ax : matplotlib.axes.Axes
            The axes.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from gpx_scale import GPXRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        >>> model = GPXRegressor(optimizer=None).fit(X[:100], y[:100])
        >>> explanation = model.explain(X[100:])
        >>> from matplotlib.figure import Figure
        >>> ax = explanation.plot_summary(k=5, ax=Figure().subplots())
        >>> type(ax).__name__
        'Axes'
        """
        from ..plots import plot_summary

        return plot_summary(self, k=k, ax=ax, groups=groups)


def _as_json(label: Any) -> str | int | float:
    """Return a label of an index for JSON, which has texts and numbers."""
    finite = isinstance(label, int | float) and np.isfinite(label)
    return label if finite else str(label)


def _checked_units(units: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the units of features, or raise an InputError if one of them is no feature."""
    if not isinstance(units, Mapping):
        raise InputError(
            f"units={units!r} is no mapping. Give the units of features by their names, such as "
            f"{{{names[0]!r}: 'km'}}."
        )
    if unknown := [name for name in units if str(name) not in set(names)]:
        some = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise InputError(
            f"units has {unknown[0]!r}, which is no feature. The features are {some}. Give "
            "target_units for the units of y."
        )
    return {str(name): str(unit) for name, unit in units.items()}


def joined(parts: Sequence[Explanation]) -> Explanation:
    """Return one explanation of the samples of several ones, which have the same features.

    An array that some of them do not have is None. Names and report are those of the last one, and
    so is the record of the training rows if all are of one fit.
    """
    if not parts:
        raise InputError("There are no explanations to join. Give at least one.")
    first, *others = parts
    if any(part.feature_names != first.feature_names for part in others):
        raise InputError(
            "Explanations by different features cannot be joined. Give some by the same features."
        )
    arrays: dict[str, Any] = {}
    for name in (field.name for field in fields(first) if field.name not in FIELDS_OF_THE_MODEL):
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            arrays[name] = None
        else:
            arrays[name] = (
                sp.vstack(values, format="csr")
                if sp.issparse(values[0])
                else np.concatenate(values)
            )
    if any(part.fit_report is not first.fit_report for part in parts):
        arrays["training_record"] = None
    return replace(parts[-1], **arrays)
