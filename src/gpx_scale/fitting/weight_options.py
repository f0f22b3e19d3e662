"""What a user asks for of the weights' priors: shared or not, and which columns of Z are tied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.column_groups import checked_groups, members_of
from ..data.inputs import Preprocessor
from ..errors import InputError
from ..kernels.constant import Constant
from ..kernels.kernel import Kernel
from ..model.hyperparameters import Hyperparameters
from ..model.term import VARYING, Term
from ..model.weight_prior import WeightPrior
from ..runtime.arguments import flag, one_of

SHARED, RELEVANCE, SEMI, MULTISCALE = "shared", "relevance", "semi", "multiscale"
ADDITIVE = "additive"
KINDS = (SHARED, RELEVANCE, SEMI, MULTISCALE, ADDITIVE)
# Weights of a sparse Z have these, and at most so many variances of a term: each takes a solve at
# some of the steps of a search.
SPARSE_KINDS = (SHARED, RELEVANCE, SEMI)
MAX_SPARSE_VARIANCES = 200
# The evidence decides between some of these kinds. Until it has, weights share their prior.
AUTO = "auto"
# The name of the column of ones that `fit_intercept` adds to Z.
INTERCEPT = "intercept"
# A term that an earlier fit has removed starts a warm one at this share of its start value: it may
# come back, and does not disturb the others before it has.
REMOVED_START_SHARE = 1e-3


@dataclass(frozen=True)
class WeightOptions:
    """The checked arguments about priors of the weights.

    `kind` is one of KINDS. `groups` has lists of columns of Z by name. With `prune`, terms that
    earn too little are removed.
    """

    kind: str = SHARED
    groups: Mapping[str, list[Any]] | None = None
    prune: bool = True

    @classmethod
    def checked(cls, estimator: Any) -> WeightOptions:
        """Return the options of an estimator; one that cannot be used raises an InputError."""
        asked = one_of(estimator.weights, (*KINDS, AUTO), "weights")
        kind = SHARED if asked == AUTO else asked
        prune, groups = flag(estimator.prune, "prune"), estimator.groups
        if groups is None:
            return cls(kind, None, prune)
        if asked == SHARED:
            raise InputError(
                "groups= ties the variances of weights, and weights='shared' has none. Give "
                "weights='semi' or another kind, or leave groups out."
            )
        return cls(kind, checked_groups(groups), prune)

    def of_kind(self, kind: str) -> WeightOptions:
        """Return the same options for another kind of priors."""
        return replace(self, kind=kind)

    @property
    def shared(self) -> bool:
        """Return whether all weights have the same prior, which is the paper's model."""
        return self.kind == SHARED

    @property
    def has_curves(self) -> bool:
        """Return whether each feature has a curve over its own column of X."""
        return self.kind == ADDITIVE

    def wants_intercept(self, given: Any) -> bool:
        """Return whether a user who leaves the intercept open gets one: of an additive model."""
        return self.kind == ADDITIVE and isinstance(given, str)

    def kernels(self, preprocessor: Preprocessor) -> int:
        """Return how many kernels of x the weights have, 0 if they share their prior."""
        if self.shared:
            return 0
        count = len(self.features(preprocessor).groups)
        return {MULTISCALE: count, ADDITIVE: count + 1}.get(self.kind, 1)

    def must_suit(self, preprocessor: Preprocessor) -> None:
        """Raise an InputError unless priors of their own are possible for weights of this Z."""
        if self.shared:
            return
        if preprocessor.sparse_z:
            self._must_suit_sparse(preprocessor)
        if self.kind == ADDITIVE and not may_be_additive(preprocessor):
            raise InputError(
                "weights='additive' has a curve of each feature over its own column of X, so X and "
                "Z have to be the same columns. Leave Z and the transformers out, or give "
                "weights='semi'."
            )
        self.features(preprocessor)

    def _must_suit_sparse(self, preprocessor: Preprocessor) -> None:
        """Raise an InputError unless weights of this sparse Z can have these priors."""
        if self.kind not in SPARSE_KINDS:
            raise InputError(
                f"weights={self.kind!r} has kernels of its own for columns of Z, and needs a dense "
                "Z. Give weights='semi', 'relevance' or 'shared', or a dense Z."
            )
        count = len(self.features(preprocessor).groups)
        if count > MAX_SPARSE_VARIANCES:
            raise InputError(
                f"weights={self.kind!r} has {count} variances to estimate, and a sparse Z takes at "
                f"most {MAX_SPARSE_VARIANCES}. Tie columns by groups={{name: [columns]}}, or give "
                "weights='shared'."
            )

    def features(self, preprocessor: Preprocessor) -> WeightNames:
        """Return the columns of Z by group, or raise an InputError if a group has others.

        The levels of a category are a group, unless a group names one of them. Other columns that
        no group names are groups by themselves.
        """
        names = [*preprocessor.z_names, *([INTERCEPT] if preprocessor.scaling.intercept else [])]
        tied = np.arange(len(names))
        labels = list(names)
        encoded = preprocessor.z_groups
        groups = members_of(self.groups or {}, preprocessor.z_names, encoded)
        named = {column for found in groups.values() for column in found}
        for category in preprocessor.z_categories:
            if category in encoded and named.isdisjoint(encoded[category]):
                groups[category] = encoded[category]
        for group, found in groups.items():
            tied[found] = min(found)
            for column in found:
                labels[column] = group
        tied_or_none = tied if groups else None
        return WeightNames(tuple(labels), tied_or_none, preprocessor.scaling.intercept)

    def applied(self, found: Hyperparameters, features: WeightNames) -> Hyperparameters:
        """Return hyperparameters of these priors from those of weights that share theirs.

        All variances are the scale theta1 of the kernel, which becomes 1. The scales of a sum or a
        product of kernels stay, and variances are 1.
        """
        if self.shared or not found.weight_prior.is_shared:
            return found
        kernel, scale = _of_scale_one(found.kernel)
        variances = np.full(len(features.labels), scale)
        varying = Term(kernel, variances, features.tied)
        terms = _additive_terms(varying, features) if self.kind == ADDITIVE else [varying]
        if self.kind != RELEVANCE:
            terms.append(Term(Constant(), variances, features.tied))
        return replace(found, weight_prior=WeightPrior(tuple(terms), found.sigma_w))

    def split(self, found: Hyperparameters) -> Hyperparameters:
        """Return hyperparameters in which every weight or group that varies has its own kernel.

        All kernels are that of the one term that varies. Other options than "multiscale" change
        nothing.
        """
        varying, *others = found.weight_prior.terms
        if self.kind != MULTISCALE or varying.name or not varying.is_active:
            return found
        alone = []
        for column in varying.parameter_columns.tolist():
            tied = varying.tied
            columns = np.array([column]) if tied is None else np.flatnonzero(tied == tied[column])
            alone.append(varying.alone(columns, f"z{column}"))
        return replace(found, weight_prior=replace(found.weight_prior, terms=(*alone, *others)))

    def restarted(
        self, known: Hyperparameters, given: Hyperparameters, features: WeightNames
    ) -> Hyperparameters:
        """Return where a fit begins that follows one which ended at `known` hyperparameters.

        It has all terms of the `given` ones. Those that were removed start at a small variance. If
        the models differ in another way, `known` is returned as it is.
        """
        if self.shared:
            return known
        known = self.applied(known, features)
        known = _merged(known) if self.kind == MULTISCALE else known
        before, now = known.weight_prior, given.weight_prior
        kinds, earlier = (
            [(term.kernel.parameter_kinds, term.part, term.name) for term in prior.terms]
            for prior in (now, before)
        )
        same = kinds == earlier
        if not same or before.terms[0].variances.shape != now.terms[0].variances.shape:
            return known
        terms = []
        for old, new in zip(before.terms, now.terms, strict=True):
            variances = np.where(
                old.variances > 0, old.variances, REMOVED_START_SHARE * new.variances
            )
            kernel = old.kernel if old.is_active else new.kernel
            terms.append(replace(new, kernel=kernel, weight_variances=variances))
        return replace(known, weight_prior=replace(before, terms=tuple(terms)))


@dataclass(frozen=True)
class WeightNames:
    """The name of each weight's feature or group, and which columns are tied.

    `labels` has one name for each column of Z, with the intercept if there is one; `tied` (d,) are
    numbers, which are the same for columns of one group. It is None without groups.
    """

    labels: tuple[str, ...]
    tied: np.ndarray | None
    intercept: bool = False

    @property
    def groups(self) -> list[np.ndarray]:
        """Return the columns of each feature or group, those of the intercept at the end.

        They are in the order of their first columns, which have the smallest numbers in `tied`.
        """
        tied = np.arange(len(self.labels)) if self.tied is None else self.tied
        return [np.flatnonzero(tied == number) for number in np.unique(tied)]

    def label_of(self, term: Term) -> str:
        """Return the name of a term of only one feature or group, by the name of that."""
        own, _, column = term.name.rpartition("z")
        return own + self.labels[int(column)]

    def of_parameters(self, hyperparameters: Hyperparameters) -> list[str]:
        """Return the names of `theta`, with the names of features in place of their numbers."""
        prior, names = hyperparameters.weight_prior, list(hyperparameters.names)
        known = {
            f"{term.part}_variances[{column}]": f"{term.part}_variances[{self.labels[column]}]"
            for term in prior.terms
            for column in term.parameter_columns.tolist()
        }
        labels = {term.prefix: f"{self.label_of(term)}." for term in prior.terms if term.name}
        named = []
        for name in names:
            prefix = next((prefix for prefix in labels if name.startswith(prefix)), "")
            named.append(known.get(name, labels.get(prefix, "") + name.removeprefix(prefix)))
        return named


def may_be_additive(preprocessor: Preprocessor) -> bool:
    """Return whether each column of Z is a column of X, of which a kernel is known."""
    transforms = preprocessor.transforms
    differ = transforms.x_transformer is not transforms.z_transformer
    return not (preprocessor.separate or differ or transforms.input_kind != "vectors")


def _additive_terms(varying: Term, features: WeightNames) -> list[Term]:
    """Return a term for all features, one for the intercept, and a curve of each feature's own."""
    d = len(features.labels)
    count = d - features.intercept
    terms = [varying.alone(np.arange(count), "")]
    if features.intercept:
        terms.append(varying.alone(np.array([count]), f"z{count}"))
    for columns in features.groups[: -1 if features.intercept else None]:
        kernel = varying.kernel.of_columns(columns.tolist(), count)
        own = varying.alone(columns, f"own.z{columns[0]}")
        terms.append(replace(own, kernel=kernel, own=True))
    return terms


def _merged(found: Hyperparameters) -> Hyperparameters:
    """Return hyperparameters in which all weights that vary have the first of their kernels."""
    varying = [term for term in found.weight_prior.terms if term.part == VARYING]
    others = [term for term in found.weight_prior.terms if term.part != VARYING]
    first = next((term for term in varying if term.is_active), varying[0])
    total = np.sum([term.variances for term in varying], axis=0)
    one = replace(first, weight_variances=total, name="")
    return replace(found, weight_prior=replace(found.weight_prior, terms=(one, *others)))


def _of_scale_one(kernel: Kernel) -> tuple[Kernel, float]:
    """Return a kernel with theta1 = 1, and its theta1; a sum or product stays as it is."""
    if kernel.components:
        return kernel, 1.0
    theta = kernel.theta
    (at,) = np.flatnonzero([kind == "theta1" for kind in kernel.parameter_kinds])
    scale = float(np.exp(theta[at]))
    theta[at] = 0.0
    return kernel.with_theta(theta), scale
