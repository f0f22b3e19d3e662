"""How fast one core works, from which the time of a fit is predicted.

Predictions are from committed rates and never from a clock, so that a plan is the same every time.
`make bench CASE=rates` measures the rates of a machine beside these, and `--write` renews them.
"""

from __future__ import annotations

from dataclasses import dataclass

# Threads beyond this many share the bandwidth of the memory, as on a processor of sixteen cores.
BANDWIDTH_THREADS = 6


@dataclass(frozen=True)
class Rates:
    """Rates of one core.

    Attributes
    ----------
    flops64, flops32 : float
        Flops per second of tiled factorisations in float64 and float32.
    entries64, entries32 : float
        Entries of C per second that are formed, for ten columns of X and Z each.
    products : float
        Entries of stored float32 tiles per second in a product with 16 columns.
    pairs : float
        Pairs of a sparse Z per second in a product with 16 columns.
    startup : float
        Seconds of a small fit.
    """

    flops64: float
    flops32: float
    entries64: float
    entries32: float
    products: float
    pairs: float
    startup: float

    def on(self, n_jobs: int) -> Rates:
        """Return the rates of several threads together."""
        shared = min(n_jobs, BANDWIDTH_THREADS)
        return Rates(
            self.flops64 * n_jobs,
            self.flops32 * n_jobs,
            self.entries64 * n_jobs,
            self.entries32 * n_jobs,
            self.products * shared,
            self.pairs * shared,
            self.startup,
        )


# These were measured on one core of a server of 2025 with 512-bit vectors.
RATES = Rates(
    flops64=5.5e10,
    flops32=1.1e11,
    entries64=3.0e8,
    entries32=8.0e8,
    products=8.0e8,
    pairs=8.0e8,
    startup=0.3,
)
