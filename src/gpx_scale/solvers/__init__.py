"""From rows and hyperparameters to a log marginal likelihood and a posterior."""
