"""The solver with inducing points, which maximises a collapsed variational bound."""
