"""
All patients at once
====================

With this page you can see at a glance which features matter, and for how many patients their
sign is certain. Every patient is a point at its contribution, coloured by the value of the
feature. Thin lines are 95% intervals. If they cross 0, the model
cannot tell whether the feature adds or takes away.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from gpx_scale import GPXRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
model = GPXRegressor(random_state=0).fit(X[:300], y[:300])
explanation = model.explain(X[300:])
explanation.plot_summary()
plt.show()

# %%
# The next picture shows how certain each sign is: the share of patients for whom a feature
# adds, takes away, or is open at 95%.

probability = explanation.probability_positive()
order = explanation.importance().argsort()
names = [explanation.feature_names[l] for l in order]
shares = {
    "takes away": (probability < 0.025, "#0072b2"),
    "open": ((probability >= 0.025) & (probability <= 0.975), "#d0d0d0"),
    "adds": (probability > 0.975, "#d55e00"),
}
figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
left = 0.0
for label, (which, colour) in shares.items():
    width = which.mean(axis=0)[order]
    ax.barh(names, width, left=left, color=colour, label=label)
    left = left + width
ax.set(xlabel="share of patients", xlim=(0, 1))
ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()
