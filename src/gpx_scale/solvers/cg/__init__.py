"""The solver by conjugate gradients, for more rows than can be factorised."""
