"""The methods with which the paper compares GPX, behind one interface: fit, predict, weights.

>>> from sklearn.preprocessing import scale
>>> from gpx_scale import compare, datasets, metrics
>>> data = datasets.load_diabetes()
>>> X, y = scale(data.X), scale(data.y)
>>> method = compare.NetworkLasso(lambda1=3.0).fit(X[:300], y[:300])
>>> method.weights(X[300:]).shape
(142, 10)
>>> metrics.mean_squared_error(y[300:], method.predict(X[300:])) < 0.6
True
"""

from .gaussian_process import ARD, GPR, GPX
from .kl import KL
from .linear import Lasso, Ridge
from .method import Method
from .model_agnostic import LIME, SHAP
from .network_lasso import LocalizedLasso, NetworkLasso

__all__ = [
    "ARD",
    "GPR",
    "GPX",
    "KL",
    "LIME",
    "SHAP",
    "Lasso",
    "LocalizedLasso",
    "Method",
    "NetworkLasso",
    "Ridge",
]
