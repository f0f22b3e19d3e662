"""Data frames of mixed columns, as people have them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass
class Place:
    """A point with the attributes of shapely's, which the tests do without."""

    x: float
    y: float
    is_empty: bool = False

    @property
    def centroid(self):
        return self


def mixed_frame(n, seed=0):
    """Return a frame with a column of every kind that is encoded, and missing values in most."""
    random = np.random.RandomState(seed)
    frame = pd.DataFrame(
        {
            "size": random.uniform(20.0, 200.0, n),
            "city": random.choice(["Oslo", "Rome", "Nara"], n),
            "floor": random.randint(0, 5, n),
            "new": random.uniform(size=n) > 0.5,
            "sold": pd.date_range("2020-01-01 08:00", periods=n, freq="31h", tz="Europe/Oslo"),
            "place": [Place(*random.uniform(size=2)) for _ in range(n)],
        },
        index=[f"house {k}" for k in range(n)],
    )
    frame.loc[frame.index == "house 3", "size"] = np.nan
    frame.loc[frame.index == "house 4", "city"] = None
    return frame
