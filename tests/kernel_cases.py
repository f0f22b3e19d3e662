"""The kernels that tests go through, and their formulas."""

import numpy as np
from scipy.spatial.distance import cdist

from gpx_scale import kernels

KERNELS = {
    "rbf": kernels.RBF(1.3, 2.5),
    "ard": kernels.RBF(0.7, (0.5, 2.0, 9.0)),
    "matern12": kernels.Matern12(1.1, 3.0),
    "matern12 ard": kernels.Matern12(1.1, (3.0, 1.0, 5.0)),
    "matern32": kernels.Matern32(0.8, 2.0),
    "matern52 ard": kernels.Matern52(1.5, (3.0, 1.0, 0.5)),
    "rq": kernels.RationalQuadratic(1.2, 2.0, 0.7),
    "rq ard": kernels.RationalQuadratic(1.2, (2.0, 1.0, 4.0), 2.7),
    "sum": kernels.RBF(1.3, 2.5) + kernels.Matern32(0.4, 0.5),
    "product": kernels.RBF(1.3, 2.5) * kernels.RationalQuadratic(0.9, 4.0, 1.5),
    "nested": (kernels.RBF(1.3, 2.5) + kernels.Matern52(0.2, 1.0))
    * kernels.Matern12(1.0, (2.0, 3.0, 1.0)),
}


def plain(kernel, a, b):
    """Return the kernel matrix by the formula of the kernel."""
    if isinstance(kernel, kernels.Sum):
        return plain(kernel.first, a, b) + plain(kernel.second, a, b)
    if isinstance(kernel, kernels.Product):
        return plain(kernel.first, a, b) * plain(kernel.second, a, b)
    s = cdist(a / np.sqrt(kernel.scales), b / np.sqrt(kernel.scales), "sqeuclidean")
    r = np.sqrt(2.0 * s)
    return (
        kernel.theta1
        * {
            kernels.RBF: lambda: np.exp(-s),
            kernels.Matern12: lambda: np.exp(-r),
            kernels.Matern32: lambda: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
            kernels.Matern52: lambda: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
            kernels.RationalQuadratic: lambda: (1 + s / kernel.shape) ** -kernel.shape,
        }[type(kernel)]()
    )
