"""
Coefficients over a map, and where they are known
=================================================

With this page you can draw a map of a coefficient, and show where it is known. The
coefficients of four covariates, and an intercept, vary over the unit square: x is a place, and
z are the covariates. The true coefficients are known, because the data are synthetic.
"""

import matplotlib.pyplot as plt
import numpy as np

from gpx_scale import GPXRegressor
from gpx_scale.datasets import synth2
from gpx_scale.plots import plot_map

data = synth2(1000)
Z, names, truth = (
    data.Z[:, 1:],
    data.feature_names[1:],
    data.weights[:, 1:],
)  # without the column of ones
model = GPXRegressor(fit_intercept=True, random_state=0).fit(data.X, data.y, Z)
explanation = model.explain(data.X, Z, feature_names=names)

# %%
# The first map shows the coefficient of ``z1`` and its standard deviation at the places of the
# data. It is hatched where the 95% interval of the coefficient contains 0.

first = plot_map(explanation, "z1", data.X, names=("east", "north"))
plt.show()

# %%
# The second map uses a lattice that is wider than the data. ``Z`` only needs the right
# columns, because weights depend on the place alone. Outside the square the standard deviation
# grows to that of the prior: the map shows where the model does not know.

side = np.linspace(-0.4, 1.4, 50)
places = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
lattice = model.explain(places, np.ones((len(places), 4)), feature_names=names)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained", sharey=True)
most = np.abs(lattice.weights[:, 0]).max()
same_colours = first.axes[0].collections[0].get_cmap()
panels = [
    (
        lattice.weights[:, 0],
        "coefficient of z1",
        {"cmap": same_colours, "vmin": -most, "vmax": most},
    ),
    (lattice.weights_std[:, 0], "its standard deviation", {"cmap": "plasma"}),
]
for ax, (values, title, look) in zip(axes, panels, strict=True):
    drawn = ax.pcolormesh(side, side, values.reshape(50, 50), **look)
    ax.add_patch(
        plt.Rectangle(
            (0, 0),
            1,
            1,
            fill=False,
            linestyle="--",
            edgecolor="black" if "vmin" in look else "white",
        )
    )
    ax.set(title=title, xlabel="east", aspect="equal")
    figure.colorbar(drawn, ax=ax, shrink=0.9)
axes[0].set_ylabel("north")
plt.show()

# %%
# The share of true coefficients within two standard deviations says whether this can be
# trusted:

inside = np.abs(explanation.weights - truth) <= 2 * explanation.weights_std
print({name: f"{share:.0%}" for name, share in zip(names, inside.mean(axis=0), strict=True)})
