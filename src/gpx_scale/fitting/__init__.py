"""A fit from its options to a fitted model."""
