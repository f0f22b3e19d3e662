"""Solvers turn rows and hyperparameters into a log marginal likelihood and a posterior."""
