"""The public module of `FitReport`, the record of a fit."""

from .runtime.journal import FitReport

__all__ = ["FitReport"]
