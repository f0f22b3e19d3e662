"""Conjugate gradients for more rows than a factor can have."""
