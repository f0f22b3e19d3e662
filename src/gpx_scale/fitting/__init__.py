"""The steps of a fit, from its options to a fitted model."""
