"""The record of a fit, at its public path."""

from .runtime.journal import FitReport

__all__ = ["FitReport"]
