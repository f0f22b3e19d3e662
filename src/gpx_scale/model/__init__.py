"""The prior of the weights and the hyperparameters."""
