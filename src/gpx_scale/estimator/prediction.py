"""What a fitted estimator answers: predictions, explanations, the evidence, samples; and how it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..data.inputs import Preprocessor, Queries, remember_columns
from ..data.row_source import RowSource
from ..errors import InputError
from ..explanation import Explanation
from ..persistence.model_file import write_state
from ..runtime.arguments import flag, one_of, whole
from ..runtime.journal import FitReport
from ..runtime.session import Session
from ..solvers.contract import Plan
from ..solvers.posterior import Posterior
from .explain import baseline_vector
from .fitted_model import FittedModel

NOT_KEPT = ("callbacks", "checkpoint", "_rows", "client")


class PredictionMixin:
    """The answers of an estimator that has a preprocessor, a plan, a posterior and a report."""

    _preprocessor: Preprocessor
    _plan: Plan
    _rows: RowSource | None
    posterior_: Posterior[Any]
    fit_report_: FitReport
    target_name_: str | None
    log_marginal_likelihood_value_: float
    random_state: Any
    memory_limit: Any
    n_jobs: int | None

    @property
    def _model(self) -> FittedModel:
        check_is_fitted(self)
        return FittedModel(
            self._preprocessor, self._plan, self.posterior_, self.fit_report_, self.target_name_
        )

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Open the workers and limits of one call."""
        with Session.open(self.n_jobs, self.memory_limit, self.random_state) as session:
            yield session

    # predict

    def predict(
        self, X: Any, Z: Any = None, return_std: bool | str = False, return_cov: bool = False
    ) -> Any:
        """Mean of y at X, (m,); with its standard deviation (m,), noise included, or the joint covariance (m, m).

        return_std="samples" (`cg`): from posterior samples, inflated so that they do not under-report.
        """
        return_std, return_cov = (
            one_of(return_std, (True, False, "samples"), "return_std"),
            flag(return_cov, "return_cov"),
        )
        if return_std and return_cov:
            raise InputError(
                "return_std and return_cov exclude each other: the deviations are the covariance's diagonal"
            )
        model, queries = self._model, self._query(X, Z)
        with self._session() as session:
            mean, std = model.predict(queries, return_std, session)
            if return_cov:
                return mean, model.joint_covariance(queries, session)
        return (mean, std) if return_std else mean

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
        queries = self._query(X, Z)
        return self._explain(queries, std, cov, baseline, feature_names, dense)

    def training_explanation(
        self,
        std: bool = True,
        cov: bool = False,
        baseline: Any = "mean",
        feature_names: Sequence[str] | None = None,
        dense: bool = False,
    ) -> Explanation:
        """The posterior of the training rows' own weights w_i (the paper's p(W | D)), not of new rows at the same x."""
        return self._explain(
            self._model.training_queries(), std, cov, baseline, feature_names, dense
        )

    def _explain(
        self,
        queries: Queries,
        std: Any,
        cov: Any,
        baseline: Any,
        names: Sequence[str] | None,
        dense: Any,
    ) -> Explanation:
        std = one_of(std, (True, False, "certified", "samples"), "std")
        cov, dense = flag(cov, "cov"), flag(dense, "dense")
        asked = {
            "std": std,
            "cov": cov,
            "baseline": baseline,
            "names": names,
            "all_features": dense,
        }
        with self._session() as session:
            return self._model.explain(queries, session, **asked)

    @property
    def baseline_(self) -> np.ndarray:
        """The z that contributions are relative to, unless `explain` is given another;  (d,)."""
        check_is_fitted(self, "posterior_")
        return baseline_vector("mean", self._preprocessor.scaling)

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
        with self._session() as session:
            value, gradient = self._model.log_marginal_likelihood(
                theta, eval_gradient, self._rows, session
            )
        return (value, gradient) if eval_gradient else value

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """y_i minus its prediction from all other rows, and that prediction's deviation, noise included;  (n,), (n,)."""
        model = self._model
        with self._session() as session:
            return model.leave_one_out(session)

    # samples

    def sample_y(
        self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Joint draws of new y, noise included;  (m, n_samples). With the same integer `random_state` they are made of
        the very weights that `sample_weights` draws."""
        n_samples = whole(n_samples, "n_samples", least=0)
        queries, random = self._query(X, Z), check_random_state(random_state)
        with self._session() as session:
            return self._model.sample_y(queries, n_samples, random, session)

    def sample_weights(
        self, X: Any, Z: Any = None, n_samples: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Joint draws of the weights at X;  (m, d, n_samples)."""
        n_samples = whole(n_samples, "n_samples", least=0)
        queries, random = self._query(X, Z), check_random_state(random_state)
        with self._session() as session:
            return self._model.sample_weights(queries, n_samples, random, session)

    # keep

    def save(self, path: Any) -> None:
        """Write the model to a file that `gpx_scale.load` reads: arrays and JSON, no pickle, no code; whole or not at all.

        It holds what predictions need, and no rows beyond that. Callbacks and the checkpoint's path stay behind; a subclass
        is loaded as a GPXRegressor.
        """
        check_is_fitted(self)
        write_state(
            path, {name: value for name, value in vars(self).items() if name not in NOT_KEPT}
        )

    # inside

    def _compare_columns(self, X: Any) -> None:
        """Names and number of X's columns must be those of `fit`."""
        if self.posterior_.hyperparameters.kernel.input_kind == "vectors":
            remember_columns(self, X, reset=False)

    def _query(self, X: Any, Z: Any) -> Queries:
        model = self._model
        self._compare_columns(X)
        return model.queries(X, Z)
