"""
How a weight depends on x, with its band
========================================

With this page you can draw how a weight changes with a column, and where that is known. A
weight is a function of x, and it is known better where there are data. Friedman's function is
quadratic in ``x2``, ``20 (x2 - 0.5)^2``, so the weight of ``x2`` should be negative on the
left and positive on the right.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import make_friedman1

from gpx_scale import GPXRegressor
from gpx_scale.plots import plot_dependence

numbers, y = make_friedman1(n_samples=500, n_features=5, noise=1.0, random_state=0)
X = pd.DataFrame(numbers, columns=[f"x{k}" for k in range(5)])
model = GPXRegressor(random_state=0).fit(X, pd.Series(y, name="y"))
plot_dependence(model, X, feature="x2", on="x2")
plt.show()

# %%
# The term ``10 sin(pi x0 x1)`` is an interaction, so the weight of ``x0`` depends on ``x1``. The
# band says how well this is known. ``x3`` enters as ``10 x3``, so its weight is the same
# everywhere.

figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
plot_dependence(model, X, feature="x0", on="x1", ax=axes[0])
plot_dependence(model, X, feature="x3", on="x1", ax=axes[1])
plt.show()
