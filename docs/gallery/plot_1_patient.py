"""
Contributions to one prediction
===============================

What raises one patient's prediction, what lowers it, and how sure that is.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from gpx_scale import GPXRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
y = y.rename("progression")
model = GPXRegressor(random_state=0).fit(X[:350], y[:350])
explanation = model.explain(X[350:])

# %%
# Bars add up to the prediction minus the base value, which here is the mean of all patients. Error bars are one posterior
# standard deviation, or the bounds of a level:

explanation.plot(0, level=0.95)
plt.show()

# %%
# The same patient beside the one with the lowest prediction, the six largest contributions of each; the grey bar sums up the
# others.

figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for ax, i in zip(axes, (0, int(explanation.prediction.argmin())), strict=True):
    explanation.plot(i, ax=ax, k=6)
plt.show()

# %%
# In words:

for reason in explanation.top(0, k=4):
    print(
        f"{reason.feature:3} = {reason.value:5.1f} contributes {reason.contribution:+.0f} ± {reason.contribution_std:.0f}"
    )
