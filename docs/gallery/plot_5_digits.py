"""
Handwritten digits: which pixels, and how sure
==============================================

With this page you can draw weights as images. It is the paper's example: y is -1 for the
digits 0 to 4, and +1 for 5 to 9. Each image has weights of its own, one per pixel.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import train_test_split

from gpx_scale import GPXRegressor, datasets
from gpx_scale.plots import plot_image, plot_images

data = datasets.load_digits()
kept, held = train_test_split(np.arange(len(data.y)), train_size=900, test_size=200, random_state=0)
X = data.X / 16  # All pixels have one scale, and 0 is white, so they are not standardised.
model = GPXRegressor(standardize=False, random_state=0).fit(X[kept], data.y[kept])
explanation = model.explain(X[held], feature_names=data.feature_names)
print(
    f"The sign is right for {np.mean(np.sign(explanation.prediction) == data.y[held]):.1%} "
    f"of {len(held)} held-out digits."
)

# %%
# The picture has one image of each digit. Vermilion pixels speak for 5 to 9, blue ones for 0
# to 4. The last line shows how many standard deviations a weight is from 0. The model is
# certain of no single pixel, but it is certain of the whole image.

classes = datasets.digit_classes()[held]
one_of_each = [int(np.flatnonzero(classes == digit)[0]) for digit in range(10)]
plot_images(explanation, one_of_each, (8, 8), titles=[f"digit {digit}" for digit in range(10)])
plt.show()

# %%
# The next picture shows a three by itself: the image, its contributions, and how many standard
# deviations the weights are from 0.

three = one_of_each[3]
figure, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
for ax, what in zip(axes, ("data", "contributions", "certainty"), strict=True):
    plot_image(explanation, three, (8, 8), ax=ax, what=what)
    ax.set_title(what)
plt.show()
