"""Inducing points: a collapsed variational bound."""
