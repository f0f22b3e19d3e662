"""Fits and their bits, and programs that run in a process of their own with other settings."""

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from problems import make_problem

TESTS = Path(__file__).resolve().parent
# A matrix of several tiles, so that loops over them run in parallel.
SEVERAL_TILES_ROWS = 600
# No program takes this many seconds, even on busy cores and with everything to compile.
STUCK_SECONDS = 300

# Since 3.12, Python warns about every fork of a process that has threads.
WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")


def fitted_bits(n_jobs=None):
    """Return a digest of all answers of an exact model of several tiles, to the last bit."""
    problem = make_problem(n=SEVERAL_TILES_ROWS, m=20)
    model = problem.fitted(solver="exact", n_jobs=n_jobs)
    explanation = model.explain(problem.X_query, problem.Z_query)
    value, gradient = model.log_marginal_likelihood(eval_gradient=True)
    found = explanation.weights, explanation.weights_std, explanation.prediction, value, gradient
    digest = hashlib.sha256()
    for one in found:
        digest.update(np.ascontiguousarray(one).tobytes())
    return digest.hexdigest()


def run_alone(code, **environment):
    """Return the words that a program prints. It must end by itself with status 0."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=STUCK_SECONDS,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.split()
