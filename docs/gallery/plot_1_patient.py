"""
Contributions to one prediction
===============================

With this page you can draw what raises the prediction of one patient, what lowers it, and how
certain that is.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from gpx_scale import GPXRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
y = y.rename("progression")
model = GPXRegressor(random_state=0).fit(X[:350], y[:350])
explanation = model.explain(X[350:])

# %%
# The bars add up to the prediction minus the base value, which is the mean of all patients
# here. Error bars are 95% intervals, or those of another `level`:

explanation.plot(0)
plt.show()

# %%
# This is the same patient beside the one with the lowest prediction, with the six largest
# contributions of each. The grey bar is the sum of the others.

figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for ax, i in zip(axes, (0, int(explanation.prediction.argmin())), strict=True):
    explanation.plot(i, ax=ax, k=6)
plt.show()

# %%
# The four largest reasons in words:

for reason in explanation.top(0, k=4):
    print(
        f"{reason.feature:3} = {reason.value:5.1f} contributes "
        f"{reason.contribution:+.0f} ± {reason.contribution_std:.0f}"
    )
