"""The exact solver, which factorises C by Cholesky's method."""
