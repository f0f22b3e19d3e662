"""A fitted model, which answers queries in the user's units and knows nothing of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ..data.inputs import Preprocessor, Queries
from ..data.row_keys import row_keys
from ..data.row_source import RowSource
from ..data.scaling import finite
from ..errors import InputError, SolverUnavailable
from ..explanation import Explanation, Groups, SupportingRow, WhatIf, comparison
from ..kernels.kernel import Kernel
from ..model.hyperparameters import Hyperparameters
from ..model.term import CONSTANT, OWN, VARYING
from ..runtime.journal import FitReport
from ..runtime.session import Session
from ..solvers import registry
from ..solvers.contract import Capability, Evidence, Plan, SolverSetup
from ..solvers.posterior import MomentRequest, Moments, Posterior
from .explain import (
    at_entries,
    baseline_vector,
    checked_names,
    explanation_from_moments,
    must_be_near,
)

# For every text that users may give as `std`: how variances are computed, and the capability that a
# solver must have for it.
VARIANCE_METHODS: dict[str, Literal["bound", "samples"]] = {
    "certified": "bound",
    "samples": "samples",
}
REQUIRED_CAPABILITIES = {
    "certified": Capability.UPPER_BOUND,
    "samples": Capability.SAMPLED_VARIANCE,
}

# This `std` leaves the noise sigma_w^2 out of the variances of the weights.
SURFACE = "surface"
# Explaining allocates three arrays of 8 bytes per weight: weights, contributions and standard
# deviations. With a sparse Z of which all features are explained, the indices of a full pattern
# and the moments at its entries take about 48 bytes per weight in addition.
DENSE_BYTES_PER_WEIGHT = 24
SPARSE_BYTES_PER_WEIGHT = 72
# The three parts of the weights, and their standard deviations, are six more.
PARTS_BYTES_PER_WEIGHT = 48


@dataclass(frozen=True)
class Predicted:
    """Predictions of m new y: means and, if asked for, standard deviations and quantiles."""

    mean: np.ndarray
    std: np.ndarray | None = None
    quantiles: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class FittedModel:
    """The result of a fit: the preprocessor of inputs, the plan, the posterior and the report.

    With more than two classes, `posterior` belongs to the first class, and `others` to the rest.
    """

    preprocessor: Preprocessor
    plan: Plan
    posterior: Posterior[Any]
    report: FitReport
    target_name: str | None = None
    others: tuple[Posterior[Any], ...] = ()

    @property
    def latent_functions(self) -> list[FittedModel]:
        """The model of each latent function: this one, or one for each of several classes."""
        return [replace(self, posterior=one, others=()) for one in (self.posterior, *self.others)]

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters of the posterior."""
        return self.posterior.hyperparameters

    @property
    def kernel(self) -> Kernel:
        """The kernel, with its fitted parameters."""
        return self.hyperparameters.kernel

    @property
    def log_evidence(self) -> float:
        """The log marginal likelihood at the fitted hyperparameters, for y in the user's units."""
        return self._in_units_of_y(self.posterior.diagnostics.log_evidence, self.posterior.n_rows)

    def _in_units_of_y(self, log_evidence: float, n_rows: int) -> float:
        """Convert a log marginal likelihood of standardised y: subtract n log(scale of y)."""
        return float(log_evidence - n_rows * np.log(self.preprocessor.scaling.y_scale))

    def _require(self, capability: Capability, instead: str) -> None:
        """Raise an error if the model's solver lacks a capability.

        The message names the solvers that have it.
        """
        registry.require(self.plan.solver, capability, instead)

    def _must_have_numbers(self, what: str) -> None:
        """Raise an error if the noise is not Gaussian, so that there are no such things."""
        if not self.hyperparameters.likelihood.is_gaussian:
            raise SolverUnavailable(
                f"A model of classes, counts or outliers has no {what}. Use predict and explain."
            )

    def _method(self, std: bool | str) -> Literal["default", "bound", "samples"]:
        """Return how variances are computed for a user's `std`."""
        if not isinstance(std, str) or std == SURFACE:
            return "default"
        self._require(REQUIRED_CAPABILITIES[std], "give std=True")
        return VARIANCE_METHODS[std]

    def queries(self, X: Any, Z: Any) -> Queries:
        """Return checked queries in standardised units."""
        found = self.preprocessor.transform(X, Z)
        return replace(found, x=self.kernel.query_input(found.x, self.plan.n))

    def training_queries(self, session: Session) -> Queries:
        """Return the training rows as queries for their own weights w_i."""
        self._require(Capability.TRAINING_WEIGHTS, "call explain(X), which treats every row as new")
        source = self.posterior.row_source
        assert source is not None
        if not source.in_memory:
            count, each = len(source), 8 * (self.plan.p + 4 * self.posterior.d)
            session.require(count * each, f"Explaining {count} training rows", "explain(X)")
        rows, scaling = source.load(), self.preprocessor.scaling
        columns = rows.columns
        if columns.offset is not None:  # That of the rows has the centre of f, which is a shift.
            columns = replace(columns, offset=columns.offset - scaling.y_shift)
        raw_Z = scaling.raw_z(rows.Z)
        return Queries(rows.x, rows.Z, raw_Z=raw_Z, own=True, columns=columns)

    def predict(
        self,
        queries: Queries,
        std: bool | str,
        session: Session,
        levels: Sequence[float] = (),
    ) -> Predicted:
        """Return the mean of y, with `std` its standard deviation with noise, and its quantiles."""
        scaling, likelihood = self.preprocessor.scaling, self.hyperparameters.likelihood
        offset, trials = queries.columns.offset, queries.columns.trials
        in_units = likelihood.standardizes_target
        latent, spread = self.latent(queries, std or bool(levels) or not in_units, session)
        if in_units:
            shift = 0.0 if offset is None else offset
            mean = scaling.prediction(latent) + shift
            if spread is None:
                return Predicted(mean)
            _, variance = likelihood.predict(latent, spread)
            at = (likelihood.quantile(level, latent, spread) for level in levels)
            quantiles = [scaling.prediction(one) + shift for one in at]
            return Predicted(mean, scaling.deviation(variance), quantiles)
        assert spread is not None
        latent = scaling.prediction(latent) + (0.0 if offset is None else offset)
        mean, variance = likelihood.predict(latent, spread, trials)
        quantiles = [likelihood.quantile(level, latent, spread, trials) for level in levels]
        what = "predictions of counts"
        return Predicted(finite(mean, what), finite(np.sqrt(variance), what), quantiles)

    def latent(
        self, queries: Queries, std: bool | str, session: Session
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the mean of f = z . w and, with `std`, its variance;  (m,), (m,)."""
        along = [queries.Z] if std else []
        request = MomentRequest(along=along, method=self._method(std))
        with session.journal.bar("predicting"):
            moments = self.posterior.moments(queries, request, session)
        assert moments.mean is not None
        return queries.Z.row_dots(moments.mean), moments.along[0] if std else None

    def joint_covariance(self, queries: Queries, session: Session) -> np.ndarray:
        """Return the covariance of new y between all queries, noise included;  (m, m)."""
        self._must_have_numbers("joint covariance of y")
        if len(queries) > 1:
            self._require(Capability.JOINT_COVARIANCE, "give return_std=True")
        scale = self.preprocessor.scaling.y_scale
        return scale * (scale * self.posterior.joint_covariance(queries, session))

    def explain(
        self,
        queries: Queries,
        session: Session,
        *,
        std: bool | str,
        cov: bool,
        baseline: Any,
        names: Sequence[str] | None,
        all_features: bool,
        groups: Any = None,
    ) -> Explanation:
        """Return the explanation of the queries, as `PredictionMixin.explain` describes it."""
        surface = std == SURFACE
        if isinstance(std, str) and (queries.own or (cov and not surface)):
            without = "" if surface else ", without cov=True"
            raise InputError(
                f"std={std!r} is only for the standard deviations of new rows{without}. "
                "Give std=True."
            )
        scaling, Z = self.preprocessor.scaling, queries.Z
        names = checked_names(
            self.preprocessor.z_names if names is None else names, self.preprocessor.n_z
        )
        base = baseline_vector(baseline, scaling)
        origin, chosen = scaling.z_row(base), self._groups(groups, names)
        must_be_near(origin, Z)
        if Z.is_sparse and not all_features and (cov or base.any()):
            raise InputError(
                "With a sparse Z, cov=True and a baseline other than 0 need the weights of all "
                "features. Give dense=True."
            )
        m, d = Z.shape
        joint = chosen.joint if std and chosen is not None else []
        if all_features or not Z.is_sparse:
            each = SPARSE_BYTES_PER_WEIGHT if Z.is_sparse else DENSE_BYTES_PER_WEIGHT
            if not self.hyperparameters.weight_prior.is_shared:
                each += PARTS_BYTES_PER_WEIGHT
            needed = each * m * d * (d if cov else 1) + 8 * m * d * len(joint)
            session.require(needed, f"Explaining {m} rows by {d} weights each")
        along = [Z, Z.repeat_row(origin, m)] if std else []
        along += [Z.moved_from(origin, np.array(sorted(columns))) for columns in joint]
        request = MomentRequest(
            bool(std), cov, all_features, along, self._method(std), surface=surface
        )
        with session.journal.bar("explaining"):
            moments = self.posterior.moments(queries, request, session)
            parts = self._parts(moments, queries, request, session)
        known: dict[str, Any] = {
            **parts,
            "feature_names": names,
            "target_name": self.target_name,
            "fit_report": self.report,
            "row_keys": self._row_keys(queries),
            "baseline": base,
            "groups": chosen,
            "noise": scaling.y_scale * self.hyperparameters.sigma_y,
        }
        if std:
            moments, known["learned"] = self._completed(moments, queries, request)
        if std and not queries.own:
            noise = 0.0 if surface else self.hyperparameters.sigma_w
            size = self.preprocessor.scaling.z_scale.size
            known["weights_noise"] = np.abs(scaling.weights(np.full(size, noise)))
        return explanation_from_moments(
            moments, queries, base, scaling, self.hyperparameters, all_features, known
        )

    def _groups(self, groups: Any, names: list[str]) -> Groups | None:
        """Return the groups that are asked for, those of encoded columns, or None."""
        if groups is not None:
            return None if groups == {} else Groups.given(groups, names)
        encoded = self.preprocessor.z_groups
        categories = self.preprocessor.z_categories
        return Groups.of_encoded(encoded, categories, names) if encoded else None

    def _row_keys(self, queries: Queries) -> np.ndarray | None:
        """Return hashes of the queries (m,), None if the kernel takes no vectors."""
        if self.kernel.input_kind != "vectors":
            return None
        return row_keys(queries, self.kernel.vectors_of(queries.x))

    def _parts(
        self, moments: Moments, queries: Queries, request: MomentRequest, session: Session
    ) -> dict[str, Any]:
        """Return the parts of all weights and their standard deviations, in the user's units.

        They are empty if weights share their prior. The constant part is the same for all queries,
        so it is computed for one of a dense Z. The noise of the weights belongs to the varying
        part, which is what the others leave.
        """
        prior, scaling = self.hyperparameters.weight_prior, self.preprocessor.scaling
        if prior.is_shared:
            return {}
        weights: Callable[[np.ndarray], Any] = scaling.weights
        if queries.Z.is_sparse and not request.all_features:
            weights = partial(at_entries, z=queries.Z, scaling=scaling)
        assert moments.mean is not None
        found: dict[str, Any] = {}
        rest = moments.mean
        one = Queries(queries.x[:1], queries.Z[:1], queries.raw_Z[:1])
        asked = MomentRequest(request.variance, all_features=request.all_features, surface=True)
        for part in (CONSTANT, OWN):
            if part == OWN and not any(term.part == OWN for term in prior.terms):
                continue
            # The first row of a sparse Z need not have all features.
            is_one = part == CONSTANT and not queries.Z.is_sparse
            some = one if is_one else queries
            own = self.posterior.moments(some, replace(asked, part=part), session)
            assert own.mean is not None
            mean = np.broadcast_to(own.mean, rest.shape)
            found[part], rest = weights(mean), rest - mean
            if request.variance:
                assert own.variance is not None
                deviations = np.broadcast_to(np.sqrt(own.variance), rest.shape)
                found[f"{part}_std"] = abs(weights(deviations))
        found[VARYING] = weights(rest)
        if request.variance:
            varying = moments.variance
            if any(term.part != VARYING for term in prior.active):
                asked = replace(asked, mean=False, surface=request.surface, part=VARYING)
                varying = self.posterior.moments(queries, asked, session).variance
            assert varying is not None
            found[f"{VARYING}_std"] = abs(weights(np.sqrt(varying)))
        return found

    def _completed(
        self, moments: Moments, queries: Queries, request: MomentRequest
    ) -> tuple[Moments, np.ndarray | None]:
        """Return the moments with the variance of z.w*, and the share of it that data removed.

        That variance has the noise sigma_w^2 |z|^2, as a prediction is of a new y, even where the
        other variances are those of the surface. The share (m,) is 1 - Var[z.g*] / (k** |z|^2), NaN
        for z = 0, and None where variances are estimates from samples.
        """
        prior, size = self.hyperparameters.weight_prior, queries.Z.squared_norms()
        noise = prior.sigma_w**2 * size
        if queries.Z.is_sparse and not prior.is_shared:
            whole = prior.latent_variance(queries.x, queries.Z)
        elif (variance := prior.variance(queries.x)).ndim == 1:
            whole = variance * size
        else:
            whole = (variance * np.square(queries.Z.to_dense())).sum(axis=1)
        seen, *others = moments.along
        if request.surface:
            seen = seen + noise
        if request.method == "samples":
            return moments, None
        removed = np.divide(
            whole + noise - seen, whole, np.full(size.size, np.nan), where=whole > 0
        )
        return replace(moments, along=[seen, *others]), np.clip(removed, 0.0, 1.0)

    def what_if(self, both: Queries, groups: Any, session: Session) -> WhatIf:
        """Return the comparison of two queries, from their joint posterior distribution."""
        self._must_have_numbers("comparison of changed rows")
        model = replace(self, posterior=self.posterior.jointly(both, session))
        options: dict[str, Any] = {"std": False, "cov": False, "baseline": "mean", "names": None}
        found = model.explain(both, session, **options, all_features=False, groups=groups)
        joint = model.posterior.joint_surface(both, session)
        variance = joint[0, 0] + joint[1, 1] - 2.0 * joint[0, 1]
        deviation = self.preprocessor.scaling.deviation(np.maximum(variance, 0.0))
        return comparison(found, float(deviation))

    def supporting_rows(self, query: Queries, k: int, session: Session) -> list[SupportingRow]:
        """Return the k training rows with the largest weights in one prediction."""
        self._must_have_numbers("training rows whose y a prediction is a sum of")
        self._require(Capability.TRAINING_WEIGHTS, "explain the prediction by its features alone")
        rows, weights, y = self.posterior.row_weights(query, session)
        first = np.argsort(-np.abs(weights), kind="stable")[:k]
        targets = self.preprocessor.scaling.prediction(y[first])
        found = zip(rows[first].tolist(), weights[first].tolist(), targets.tolist(), strict=True)
        return [SupportingRow(*each) for each in found]

    def sample_y(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint samples of new y, noise included;  (m, count)."""
        self._must_have_numbers("samples of y")
        latent = self.posterior.sample_y(queries, count, random, session)
        return self.preprocessor.scaling.prediction(latent)

    def sample_weights(
        self, queries: Queries, count: int, random: np.random.RandomState, session: Session
    ) -> np.ndarray:
        """Return joint samples of the weights;  (m, d, count)."""
        draws = self.posterior.sample_weights(queries, count, random, session)
        return np.swapaxes(self.preprocessor.scaling.weights(np.swapaxes(draws, 1, 2)), 1, 2)

    def log_marginal_likelihood(
        self, theta: Any, gradient: bool, rows: RowSource | None, session: Session
    ) -> tuple[float, np.ndarray | None]:
        """Return the log marginal likelihood for y in the user's units, and perhaps its gradient.

        `theta` has the logarithms of the hyperparameters; None takes the fitted ones.
        """
        hyperparameters = (
            self.hyperparameters if theta is None else self.hyperparameters.with_theta(theta)
        )
        found = self._evaluate(hyperparameters, gradient, rows, session)
        return self._in_units_of_y(found.value, found.n_rows), found.gradient

    def leave_one_out(self, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """Return leave-one-out residuals and their standard deviations;  (n,), (n,)."""
        self._must_have_numbers("residuals")
        self._require(Capability.LEAVE_ONE_OUT, "use sklearn.model_selection.cross_val_predict")
        session.require(self.plan.bytes_needed, "Leaving rows out")
        with session.journal.bar("leaving rows out"):
            residuals, std = self.posterior.leave_one_out(session)
        scale = self.preprocessor.scaling.y_scale
        return scale * residuals, scale * std

    def _evaluate(
        self,
        hyperparameters: Hyperparameters,
        gradient: bool,
        rows: RowSource | None,
        session: Session,
    ) -> Evidence:
        """Return the log marginal likelihood of standardised y at given hyperparameters."""
        rows = self.posterior.row_source or rows
        if rows is None and not self.posterior.can_evaluate(hyperparameters):
            raise SolverUnavailable(
                "The log marginal likelihood at these hyperparameters needs the training rows, "
                "which are not kept in a copy, in a file, or after partial_fit. Call fit again."
            )
        session.require(self.plan.bytes_needed, "Evaluating the log marginal likelihood")
        solver = registry.create(self.plan, SolverSetup(session, self.kernel), self.posterior)
        return solver.evaluate(rows, hyperparameters, gradient=gradient)  # type: ignore[arg-type]
