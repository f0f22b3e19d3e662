"""Groups of features that are one reason, such as the levels of a category or the words of a topic.

The contribution of a group is the sum of those of its features. Its standard deviation needs their
covariances, so it is computed when the explanation is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.column_groups import checked_groups, members_of
from ..errors import InputError
from .intervals import dense

if TYPE_CHECKING:
    from .explanation import Explanation

# The name of the group of all features that are in no other group.
OTHERS = "others"
# Characters between the name of a category and that of its level, as in "cut=Ideal".
SEPARATORS = " =_:"
# A value that is missing, and the end of the name of the feature that says where it is.
MISSING, MISSING_ENDING = "missing", "_missing"


@dataclass(frozen=True)
class Groups:
    """Groups of the features of an explanation, in which each feature is once.

    Attributes
    ----------
    names : tuple of str
        The names of the groups.
    members : tuple of tuple of int
        The numbers of the features of each group.
    categories : tuple of str, or None
        The names of the groups whose features are the levels of a category. None if it is not
        known which of them are; then their values tell.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    categories: tuple[str, ...] | None = None

    @classmethod
    def given(cls, groups: Any, names: Sequence[str]) -> Groups:
        """Return the groups that a user asks for, with one of all other features at the end."""
        found = members_of(checked_groups(groups), names)
        rest = sorted(set(range(len(names))).difference(*found.values()))
        if rest and OTHERS in found:
            raise InputError(
                f"The group {OTHERS!r} has the name of the group of all other features. Give it "
                "another name."
            )
        if rest:
            found[OTHERS] = rest
        return cls(tuple(found), tuple(tuple(columns) for columns in found.values()))

    @classmethod
    def of_encoded(
        cls,
        groups: Mapping[str, Sequence[int]],
        categories: Sequence[str],
        names: Sequence[str],
    ) -> Groups:
        """Return the groups of encoded columns; each other feature is a group by itself."""
        ends = {min(columns): (name, tuple(columns)) for name, columns in groups.items() if columns}
        grouped = {column for columns in groups.values() for column in columns}
        found = [
            ends.get(column, (names[column], (column,)))
            for column in range(len(names))
            if column in ends or column not in grouped
        ]
        members = tuple(columns for _, columns in found)
        return cls(tuple(name for name, _ in found), members, tuple(categories))

    def may_be_category(self, name: str) -> bool:
        """Return whether the features of a group may be the levels of a category."""
        return self.categories is None or name in self.categories

    @property
    def joint(self) -> list[tuple[int, ...]]:
        """The features of each group that has several."""
        return [columns for columns in self.members if len(columns) > 1]

    @property
    def group_of(self) -> np.ndarray:
        """The number of the group of each feature;  (d,)."""
        return np.asarray(self.membership.argmax(axis=1))

    @property
    def membership(self) -> np.ndarray:
        """1 where a feature is in a group, 0 elsewhere;  (d, g)."""
        found = np.zeros((sum(map(len, self.members)), len(self.members)))
        for group, columns in enumerate(self.members):
            found[list(columns), group] = 1.0
        return found

    def deviations(self, each: Any, joint: Sequence[np.ndarray]) -> np.ndarray:
        """Return the standard deviations of all groups from those of features;  (m, g).

        `joint` has those of the groups that have several features.
        """
        several = iter(joint)
        columns = [
            dense(each[:, list(some)])[:, 0] if len(some) == 1 else next(several)
            for some in self.members
        ]
        return np.stack(columns, axis=1)


def grouped(explanation: Explanation, groups: Any = None) -> Explanation:
    """Return the explanation by groups of features, as `Explanation.grouped` describes it."""
    names = explanation.feature_names
    chosen = explanation.groups if groups is None else Groups.given(groups, names)
    if chosen is None:
        raise InputError(
            "This explanation has no groups. Call explain(..., groups={...}) with the features of "
            "each group, or explain(..., cov=True) and grouped({...})."
        )
    values, levels = _values(explanation, chosen)
    return replace(
        explanation,
        feature_names=list(chosen.names),
        contributions=np.asarray(explanation.contributions @ chosen.membership),
        contributions_std=_deviations(explanation, chosen),
        data=values,
        levels=levels,
        weights=_of_single_features(explanation.weights, chosen),
        weights_std=None
        if explanation.weights_std is None
        else _of_single_features(explanation.weights_std, chosen),
        baseline=None,
        groups=None,
        groups_std=None,
        weights_cov=None,
        constant=None,
        own=None,
        varying=None,
        constant_std=None,
        own_std=None,
        varying_std=None,
    )


def by_groups(explanation: Explanation, groups: Any = None) -> Explanation:
    """Return the explanation by its groups if it has some, or by those that are given.

    With `groups=False`, each feature stays by itself.
    """
    if groups is False or (groups is None and explanation.groups is None):
        return explanation
    return grouped(explanation, None if groups is True else groups)


def _deviations(explanation: Explanation, chosen: Groups) -> np.ndarray | None:
    """Return the standard deviations of groups, or raise an error if they are not known.

    They are None if the explanation has no standard deviations.
    """
    if explanation.contributions_std is None:
        return None
    if chosen == explanation.groups:
        return explanation.groups_std
    known = {} if explanation.groups is None else _known(explanation)
    if all(frozenset(columns) in known for columns in chosen.joint):
        joint = [known[frozenset(columns)] for columns in chosen.joint]
        return chosen.deviations(explanation.contributions_std, joint)
    cov, baseline = explanation.weights_cov, explanation.baseline
    if cov is None or baseline is None:
        raise InputError(
            "The standard deviations of other groups need covariances of weights, which this "
            "explanation does not have. Call explain(..., groups=...) with these groups, or "
            "explain(..., cov=True)."
        )
    shift, joint = dense(explanation.data) - baseline, []
    for some in map(list, chosen.joint):
        block = cov[:, some][:, :, some]
        variance = np.einsum("ij,ijk,ik->i", shift[:, some], block, shift[:, some])
        joint.append(np.sqrt(np.maximum(variance, 0.0)))
    return chosen.deviations(explanation.contributions_std, joint)


def _known(explanation: Explanation) -> dict[frozenset[int], np.ndarray]:
    """Return the known standard deviations of groups, by their features."""
    assert explanation.groups is not None
    assert explanation.groups_std is not None
    members = map(frozenset, explanation.groups.members)
    return dict(zip(members, explanation.groups_std.T, strict=True))


def _of_single_features(A: Any, chosen: Groups) -> np.ndarray:
    """Return the columns of groups that have one feature, and NaN for the others;  (m, g)."""
    found = np.full((A.shape[0], len(chosen.members)), np.nan)
    for group, columns in enumerate(chosen.members):
        if len(columns) == 1:
            found[:, group] = dense(A[:, list(columns)])[:, 0]
    return found


def _values(explanation: Explanation, chosen: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of groups as numbers, or NaN, and as texts, or "";  (m, g), (m, g).

    A group has the value of its only feature, or of the one that has its name. The levels of a
    category are texts, and so is a missing value.
    """
    names, values = explanation.feature_names, _of_single_features(explanation.data, chosen)
    levels = np.full(values.shape, "", dtype=object)
    for group, (name, columns) in enumerate(zip(chosen.names, chosen.members, strict=True)):
        if len(columns) == 1:
            continue
        if main := [column for column in columns if names[column] == name]:
            values[:, group] = dense(explanation.data[:, main])[:, 0]
            missing = [column for column in columns if names[column] == name + MISSING_ENDING]
            if missing:
                levels[dense(explanation.data[:, missing])[:, 0] == 1.0, group] = MISSING
        elif chosen.may_be_category(name) and all(_level_of(names[c], name) for c in columns):
            known = [_level_of(names[column], name) for column in columns]
            levels[:, group] = _levels(dense(explanation.data[:, list(columns)]), known)
    return values, levels


def _level_of(feature: str, group: str) -> str:
    """Return the level that an indicator of a category stands for, "" if it has another name."""
    return feature[len(group) :].lstrip(SEPARATORS) if feature.startswith(group) else ""


def _levels(Z: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the level of each row of indicators, "" if they are no indicators;  (m, c) -> (m,)."""
    is_indicator = bool(np.isin(Z, (0.0, 1.0)).all() and (Z.sum(axis=1) <= 1.0).all())
    if not is_indicator:
        return np.full(len(Z), "", dtype=object)
    found = np.array(names, dtype=object)[Z.argmax(axis=1)]
    found[~Z.any(axis=1)] = "another"
    return np.asarray(found)
