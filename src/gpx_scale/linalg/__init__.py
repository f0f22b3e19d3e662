"""The covariance matrix in its forms, its factor, its preconditioner, and conjugate gradients."""
