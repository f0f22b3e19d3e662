"""Exact inference by a Cholesky factor."""
