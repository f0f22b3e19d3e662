"""
Handwritten digits: which pixels, and how sure
==============================================

The paper's example: -1 for the digits 0 to 4, +1 for 5 to 9. Each digit has weights of its own, one for each of its 64 pixels.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import train_test_split

from gpx_scale import GPXRegressor, datasets
from gpx_scale.plots import plot_image, plot_images

data = datasets.load_digits()
kept, held = train_test_split(np.arange(len(data.y)), train_size=900, test_size=200, random_state=0)
X = data.X / 16  # on one scale already, 0 is white: not standardised
model = GPXRegressor(standardize=False, random_state=0).fit(X[kept], data.y[kept])
explanation = model.explain(X[held], feature_names=data.feature_names)
print(
    f"sign right for {np.mean(np.sign(explanation.prediction) == data.y[held]):.1%} of {len(held)} held-out digits"
)

# %%
# One of each. Vermilion pixels speak for 5 to 9, blue ones for 0 to 4. The last line is how many
# deviations a weight is from 0: of no single pixel is the model sure, while it is of the whole.

classes = datasets.digit_classes()[held]
one_of_each = [int(np.flatnonzero(classes == digit)[0]) for digit in range(10)]
plot_images(explanation, one_of_each, (8, 8), titles=[f"digit {digit}" for digit in range(10)])
plt.show()

# %%
# A three by itself: contributions, and how many deviations the weights are from 0.

three = one_of_each[3]
figure, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
for ax, what in zip(axes, ("data", "contributions", "certainty"), strict=True):
    plot_image(explanation, three, (8, 8), ax=ax, what=what)
    ax.set_title(what)
plt.show()
