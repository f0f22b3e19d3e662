"""What a fitted model answers, in the user's units: predictions, explanations, the evidence, samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..data.features import Features, SparseFeatures, repeat_row
from ..data.inputs import Preprocessor, remember_columns
from ..data.row_source import RowSource
from ..errors import InputError, SolverUnavailable
from ..explanation import Explanation
from ..fitting.searches import make_solver
from ..model.hyperparameters import Hyperparameters
from ..persistence.model_file import write_state
from ..plan import Plan
from ..runtime.arguments import flag, one_of, whole
from ..runtime.journal import FitReport, Journal
from ..runtime.memory import chunk_bytes, parse_memory, within
from ..runtime.parallel import Executor, threads
from ..solvers.contract import Evidence
from ..solvers.posterior import MomentRequest, Moments, Posterior
from .explain import assemble, assemble_sparse, baseline_vector, checked_names, must_be_near

NOT_KEPT = ("callbacks", "checkpoint", "_rows", "client")


class FittedModel:
    """Of an estimator that has a door, parameters, a plan and a posterior."""

    _door: Preprocessor
    _params: Hyperparameters
    _plan: Plan
    _rows: RowSource | None
    posterior_: Posterior
    solver_: str
    fit_report_: FitReport
    target_name_: str | None
    log_marginal_likelihood_value_: float
    random_state: Any
    memory_limit: Any
    n_jobs: int | None

    # predict

    def predict(self, X: Any, Z: Any = None, return_std: bool | str = False, return_cov: bool = False) -> Any:
        """Mean of y at X, (m,); with its standard deviation (m,), noise included, or the joint covariance (m, m).

        return_std="samples" (`cg`): from posterior samples, inflated so that they do not under-report.
        """
        return_std, return_cov = one_of(return_std, (True, False, "samples"), "return_std"), flag(return_cov, "return_cov")
        if return_std and return_cov:
            raise InputError("return_std and return_cov exclude each other: the deviations are the covariance's diagonal")
        x, features, _ = self._query(X, Z)
        scale = self._door.scaling.y_scale
        moments = self._answer(x, features, MomentRequest(return_std, weights=False), [features] if return_std else [])
        mean = self._door.scaling.prediction(features.row_dots(moments.mean))
        if return_cov:
            with self._engine() as (executor, _):
                joint = self.posterior_.joint(x, features, executor, parse_memory(self.memory_limit))
            return mean, scale * (scale * joint)
        if return_std:
            return mean, self._door.scaling.deviation(moments.along[0] + self._params.sigma_y**2)
        return mean

    def score(self, X: Any, y: Any, Z: Any = None, sample_weight: Any = None) -> float:
        """R^2 of the predictions."""
        return float(r2_score(y, self.predict(X, Z), sample_weight=sample_weight))

    def explain(
        self,
        X: Any,
        Z: Any = None,
        std: bool | str = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
    ) -> Explanation:
        """Weights and contributions of every feature for every row of X, each taken as new.

        std : True, False, "certified" (upper bounds of the weights' deviations, faster for many queries; of a sparse Z the
        same as True) or, with `cg` and a dense Z, "samples" (from posterior samples, inflated so as not to under-report).
        cov : the full (d, d) covariance of each row's weights as well.
        baseline : "mean" (of a sparse Z: zero), "zero" or (d,): contributions are weight times (z - baseline).
        dense : of a sparse Z, the weights of all d features, as arrays; else those that each row has, as `csr_array`.
        """
        x, features, raw = self._query(X, Z)
        return self._explain(x, features, raw, MomentRequest(std, cov, dense=dense), baseline, feature_names)

    def training_explanation(
        self,
        std: bool = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
    ) -> Explanation:
        """The posterior of the training rows' own weights w_i (the paper's p(W | D)), not of new rows at the same x."""
        check_is_fitted(self)
        if not self.posterior_.parts.keeps_rows:
            raise SolverUnavailable(
                f"solver={self.solver_!r} keeps no training rows: explain(X) treats them as new, solver='cg' keeps them"
            )
        data = self.posterior_.parts.data
        raw = self._door.scaling.raw_z(data.Z)
        return self._explain(data.x, data.Z, raw, MomentRequest(std, cov, own=True, dense=dense), baseline, feature_names)

    def _explain(
        self, x: Any, features: Features, raw: Any, ask: MomentRequest, baseline: Any, names: Sequence[str] | None
    ) -> Explanation:
        one_of(ask.std, (True, False, "certified", "samples"), "std")
        flag(ask.cov, "cov"), flag(ask.dense, "dense")
        if isinstance(ask.std, str) and (ask.cov or ask.own):
            raise InputError(f"std={ask.std!r} is for the deviations of new rows: give std=True")
        scaling = self._door.scaling
        names = checked_names(self._door.z_names if names is None else names, self._door.n_z)
        known = {"feature_names": names, "target_name": self.target_name_, "fit_report": self.fit_report_}
        base = baseline_vector(baseline, scaling)
        must_be_near(scaling.z_row(base), features)
        sparse = isinstance(features, SparseFeatures)
        if sparse and not ask.dense and (ask.cov or base.any()):
            raise InputError("covariances, and a baseline other than 0, are of all features of a sparse Z: give dense=True")
        m, d = features.shape
        if ask.dense or not sparse:
            needed = (72 if sparse else 24) * m * d * (d if ask.cov else 1)
            within(needed, parse_memory(self.memory_limit), f"explaining {m} rows by {d} weights each")
        along = [features, repeat_row(scaling.z_row(base), features)] if ask.std else []
        moments = self._answer(x, features, ask, along)
        if isinstance(features, SparseFeatures) and not ask.dense:
            return assemble_sparse(moments, features, scaling, self._params, known)
        return assemble(moments, raw.toarray() if sp.issparse(raw) else raw, base, scaling, self._params, known)

    def _answer(self, x: Any, features: Features, ask: MomentRequest, along: Sequence[Features]) -> Moments:
        with self._engine() as (executor, chunk):
            return self.posterior_.answer(x, features, ask, along, executor, chunk, parse_memory(self.memory_limit))

    @property
    def baseline_(self) -> np.ndarray:
        """The z that contributions are relative to, unless `explain` is given another;  (d,)."""
        check_is_fitted(self, "posterior_")
        return baseline_vector("mean", self._door.scaling)

    # evidence

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """log p(y) in the units of y at the logs `theta` (as in `theta_`; None: the fitted ones), and its gradient.

        Of inducing points: the bound on it, for which the rows of `fit` are read again (a copy or a saved model has none). Of
        a basis: from its sums, and from the rows where length scales leave its box.
        """
        check_is_fitted(self)
        eval_gradient = flag(eval_gradient, "eval_gradient")
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        params = self._params if theta is None else self._params.with_theta(theta)
        found = self._evaluate(params, eval_gradient)
        value = found.value - found.rows * np.log(self._door.scaling.y_scale)
        return (value, found.gradient) if eval_gradient else value

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """y_i minus its prediction from all other rows, and that prediction's deviation, noise included;  (n,), (n,)."""
        check_is_fitted(self)
        if self.solver_ != "exact":
            raise SolverUnavailable("leave-one-out needs the diagonal of C^-1, which only solver='exact' has")
        found, scale = self._evaluate(self._params, True), self._door.scaling.y_scale
        return scale * found.leave_one_out(), scale * found.leave_one_out_std()

    def _evaluate(self, params: Hyperparameters, gradient: bool) -> Evidence:
        parts, plan = self.posterior_.parts, self._plan
        data = parts.data if parts.keeps_rows else self._rows
        if data is None and not parts.answers_for(params):
            raise SolverUnavailable(
                "the evidence at other parameters needs the rows, which this model does not have: fit again"
            )
        within(plan.bytes_needed, parse_memory(self.memory_limit), "evaluating the evidence")
        with self._engine() as (executor, _):
            solver = make_solver(plan, executor, check_random_state(self.random_state), Journal(), parts=parts)
            return solver.evaluate(data, params, gradient=gradient)

    # samples

    def sample_y(self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Joint draws of new y, noise included;  (m, n_samples). With the same integer `random_state` they are made of
        the very weights that `sample_weights` draws."""
        n_samples = whole(n_samples, "n_samples", least=0)
        x, features, _ = self._query(X, Z)
        random, limit = check_random_state(random_state), parse_memory(self.memory_limit)
        with self._engine() as (executor, _):
            latent = self.posterior_.sample_y(x, features, n_samples, random, executor, limit)
        return self._door.scaling.prediction(latent)

    def sample_weights(self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Joint draws of the weights at X;  (m, d, n_samples)."""
        n_samples = whole(n_samples, "n_samples", least=0)
        x, _, _ = self._query(X, Z)
        random, limit = check_random_state(random_state), parse_memory(self.memory_limit)
        with self._engine() as (executor, _):
            draws = self.posterior_.sample_weights(x, n_samples, random, executor, limit)
        return np.swapaxes(self._door.scaling.weights(np.swapaxes(draws, 1, 2)), 1, 2)

    # keep

    def save(self, path: Any) -> None:
        """Write the model to a file that `gpx_scale.load` reads: arrays and JSON, no pickle, no code; whole or not at all.

        It holds what predictions need, and no rows beyond that. Callbacks and the checkpoint's path stay behind; a subclass
        is loaded as a GPXRegressor.
        """
        check_is_fitted(self)
        write_state(path, {name: value for name, value in vars(self).items() if name not in NOT_KEPT})

    # inside

    def _compare_columns(self, X: Any) -> None:
        """Names and number of X's columns must be those of `fit`."""
        if self._params.kernel.input_kind == "vectors":
            remember_columns(self, X, reset=False)

    def _query(self, X: Any, Z: Any) -> tuple[Any, Features, Any]:
        check_is_fitted(self)
        self._compare_columns(X)
        x, features, raw = self._door.enter(X, Z)
        return self._params.kernel.query_input(x, self._plan.n), features, raw

    @contextmanager
    def _engine(self) -> Iterator[tuple[Executor, int]]:
        """Threads, workers, and the memory for one chunk of queries."""
        with threads(self.n_jobs), Executor(self.n_jobs) as executor:
            yield executor, chunk_bytes(parse_memory(self.memory_limit))
