"""
Do intervals hold what they promise?
====================================

With this page you can check whether intervals hold what they promise: an 80% interval should
contain four of five true values. Patients are predicted by models that have not seen them, in
ten parts.
"""

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from gpx_scale import GPXRegressor
from gpx_scale.validation import cross_validate

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
explanation = cross_validate(GPXRegressor(random_state=0), X, y, folds=10, explain=True).explanation

# %%
# The curve shows, for each level, the share of true values inside the intervals of that level.
# If the intervals are right, the share of 442 values is inside the dark band two times in
# three, and inside the light band nineteen times in twenty.

levels = np.linspace(0.05, 0.98, 40)
shares = [explanation.coverage(y, level) for level in levels]
chance = np.sqrt(levels * (1 - levels) / len(y))
figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
ax.fill_between(
    levels,
    levels - 2 * chance,
    levels + 2 * chance,
    color="#0072b2",
    alpha=0.15,
    linewidth=0,
    label="chance, 95%",
)
ax.fill_between(
    levels,
    levels - chance,
    levels + chance,
    color="#0072b2",
    alpha=0.25,
    linewidth=0,
    label="chance, 68%",
)
ax.plot(levels, shares, color="#d55e00", label="held by the intervals")
ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
ax.set(
    xlabel="level of the interval", ylabel="share of true values in it", xlim=(0, 1), ylim=(0, 1)
)
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# These are the 80% intervals themselves, ordered by prediction. True values outside are
# marked.

lower, upper = explanation.prediction_interval(0.8)
order = np.argsort(explanation.prediction)
ranks = np.arange(len(order))
inside = ((lower <= y) & (y <= upper)).to_numpy()[order]
truth = y.to_numpy()[order]
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.fill_between(
    ranks,
    lower[order],
    upper[order],
    color="#0072b2",
    alpha=0.25,
    linewidth=0,
    label="80% interval",
)
ax.plot(ranks, explanation.prediction[order], color="#0072b2", label="prediction")
ax.scatter(ranks[inside], truth[inside], s=8, color="#444444", label=f"inside: {inside.mean():.0%}")
ax.scatter(
    ranks[~inside], truth[~inside], s=14, color="#d55e00", label=f"outside: {1 - inside.mean():.0%}"
)
ax.set(xlabel="patients, by prediction", ylabel="progression", xlim=(0, len(order)))
ax.legend(frameon=False, ncols=2, loc="upper left")
ax.spines[["top", "right"]].set_visible(False)
plt.show()
