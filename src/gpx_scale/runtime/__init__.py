"""How work runs: threads, memory, files, and the progress that a fit reports.

This layer knows nothing of kernels or solvers.
"""
