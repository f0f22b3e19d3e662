"""Threads, memory, files, and what a fit tells as it goes. This layer knows nothing of kernels or solvers."""
