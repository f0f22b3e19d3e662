"""Record what small seeded problems give, to the last bit, and compare it with what was recorded.

    python tests/fingerprint.py                   compare with tests/fingerprints.npz
    python tests/fingerprint.py --only basis      only cases whose names contain a word
    python tests/fingerprint.py --against HEAD~1  compare with another commit, computed here
    python tests/fingerprint.py --write           compare, and then record the values of today
    python tests/fingerprint.py --write-models    save models that tests/data/models lacks

A case is equal to the bit, or its largest relative difference is printed: the largest difference
of a field over the largest magnitude of that field. The exit code is 1 if one is above TOLERANCE,
or if a field or a case is missing on one side.

Every processor and every BLAS rounds in its own way, and a search for hyperparameters amplifies
that. Recorded values are therefore compared strictly only where they were recorded; `--against`
makes the comparison on any machine. The cases use nothing but the public interface, so that the
same script runs on commits whose modules are arranged differently.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import scipy
import scipy.sparse as sp
import sklearn
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import gpx_scale
from gpx_scale import XZ, GPXRegressor, datasets, kernels, load, make_plan

TESTS = Path(__file__).resolve().parent
VALUES = TESTS / "fingerprints.npz"
MODELS = TESTS / "data" / "models"
TOLERANCE = 1e-12  # Relative: what a sum of some hundred numbers in another order may change.
MOST_NUMBERS = 100  # This many numbers of a field are recorded, so that the file stays below 1 MB.
QUERIES = 12
MANY_QUERIES = 64  # Certified deviations are computed by a low rank from 32 queries on.

# One thread and a given memory limit: chunks of work, and with them the order of sums, must not
# depend on the machine.
FIXED = {
    "n_jobs": 1,
    "memory_limit": "2GiB",
    "random_state": 0,
    "kernel": "rbf",
    "fit_intercept": False,
    "weights": "shared",
}
HELD = {"optimizer": None, "theta1": 1.3, "theta2": 2.5, "sigma_w": 0.2, "sigma_y": 0.3}

Fields = dict[str, np.ndarray]
CASES: dict[str, Callable[[], Fields]] = {}


# problems


class Problem(NamedTuple):
    """Rows (X, y, Z) to fit, and queries (X_query, Z_query)."""

    X: Any
    y: np.ndarray
    Z: Any
    X_query: Any
    Z_query: Any

    @property
    def rows(self) -> tuple[Any, np.ndarray, Any]:
        return self.X, self.y, self.Z

    def chunks(self, size: int = 70) -> Iterator[tuple[Any, np.ndarray, Any]]:
        """Yield the rows, some at a time."""
        for start in range(0, len(self.y), size):
            rows = slice(start, start + size)
            yield self.X[rows], self.y[rows], self.Z[rows]


def make_problem(
    n: int = 120,
    p: int = 3,
    d: int = 4,
    seed: int = 0,
    share: float = 1.0,
    queries: int = QUERIES,
) -> Problem:
    """Return a problem of n rows; a `share` below 1 of the entries of Z makes it sparse."""
    random = np.random.RandomState(seed)
    X, X_query = random.standard_normal((n, p)), random.standard_normal((queries, p))
    Z, Z_query = random.standard_normal((n, d)), random.standard_normal((queries, d))
    if share < 1.0:
        Z, Z_query = (np.where(random.uniform(size=A.shape) < share, A, 0.0) for A in (Z, Z_query))
    weights = np.sin(X[:, :1] + np.arange(min(d, 4))) + 0.3 * X[:, -1:] ** 2
    y = (weights * Z[:, : min(d, 4)]).sum(axis=1) + 0.2 * random.standard_normal(n) + 3.0
    if share < 1.0:
        Z, Z_query = sp.csr_array(Z), sp.csr_array(Z_query)
    return Problem(X, y, Z, X_query, Z_query)


def gram_problem(**sizes: Any) -> Problem:
    """Return a problem whose X is a Gram matrix.

    Its queries are kernel values with the rows, and then among the queries, which variances need.
    """
    problem, kernel = make_problem(**sizes), kernels.RBF(1.0, 3.0)
    points, n = np.concatenate([problem.X, problem.X_query]), len(problem.y)
    gram = kernel(points, points)
    gram = 0.5 * (gram + gram.T)
    return problem._replace(X=gram[:n, :n], X_query=gram[n:])


def word_problem(**sizes: Any) -> Problem:
    """Return a problem whose X is a list of words."""
    problem, random = make_problem(**sizes), np.random.RandomState(7)

    def words(count: int) -> list[str]:
        return ["".join(random.choice(list("abcdefgh"), 5)) for _ in range(count)]

    return problem._replace(X=words(len(problem.y)), X_query=words(len(problem.Z_query)))


def shared_letters(a: list[str], b: list[str]) -> np.ndarray:
    """Return how many letters each word of one list shares with each of another; a kernel."""
    return np.array([[0.1 + len(set(u) & set(v)) for v in b] for u in a])


# what is recorded


def numbers(value: Any) -> np.ndarray:
    """Return an array of float64 or of text: MOST_NUMBERS entries, spread over the whole value."""
    if sp.issparse(value):
        csr = sp.csr_array(value)
        value = np.concatenate([csr.data, csr.indices, csr.indptr])
    flat = np.ravel(np.asarray(value))
    flat = flat.astype(str) if flat.dtype.kind in "UO" else flat.astype(np.float64)
    if flat.size > MOST_NUMBERS:
        flat = flat[np.linspace(0, flat.size - 1, MOST_NUMBERS).astype(int)]
    return flat


def of_fit(model: Any) -> Fields:
    """Return what a fit has found."""
    report = model.fit_report_
    found = {
        "solver": model.solver_,
        "evidence": model.log_marginal_likelihood_value_,
        "theta": model.theta_,
        "hyperparameters": np.concatenate([np.ravel(v) for v in model.hyperparameters_.values()]),
        "names": list(model.hyperparameters_),
        "evaluations": model.n_iter_,
        "converged": str(report.converged),
        "report": [report.jitter, report.evidence_deviation, report.leave_one_out_rmse],
    }
    return {name: numbers(value) for name, value in found.items()}


EXPLAINED = (
    "weights",
    "weights_std",
    "weights_cov",
    "contributions",
    "contributions_std",
    "base_values",
    "base_values_std",
    "prediction",
    "prediction_std",
)


def of_explanation(explanation: Any, name: str = "explain") -> Fields:
    """Return the arrays of an explanation."""
    arrays = ((field, getattr(explanation, field)) for field in EXPLAINED)
    return {f"{name}.{field}": numbers(value) for field, value in arrays if value is not None}


def of_answers(model: Any, X: Any, Z: Any = None) -> Fields:
    """Return predictions and explanations of queries, with standard deviations."""
    mean, std = model.predict(X, Z, return_std=True)
    return {"mean": numbers(mean), "std": numbers(std), **of_explanation(model.explain(X, Z))}


def of_model(model: Any, problem: Problem) -> Fields:
    return {**of_fit(model), **of_answers(model, problem.X_query, problem.Z_query)}


def of_draws(model: Any, problem: Problem) -> Fields:
    """Return the joint covariance of the queries, and samples of them."""
    query = problem.X_query, problem.Z_query
    return {
        "cov": numbers(model.predict(*query, return_cov=True)[1]),
        "sample_y": numbers(model.sample_y(*query, n_samples=3, random_state=1)),
        "sample_weights": numbers(model.sample_weights(*query, n_samples=3, random_state=1)),
    }


def of_evidence(model: Any) -> Fields:
    """Return the evidence and its gradient away from the optimum, where that is not small."""
    moved = model.theta_ + 0.2 * np.cos(np.arange(model.theta_.size))
    value, gradient = model.log_marginal_likelihood(moved, eval_gradient=True)
    return {"moved.evidence": numbers(value), "moved.gradient": numbers(gradient)}


def of_training(model: Any) -> Fields:
    return of_explanation(model.training_explanation(), "training")


def prefixed(name: str, fields: Fields) -> Fields:
    return {f"{name}.{field}": value for field, value in fields.items()}


# cases: one for each solver, kernel and kind of data


def case(name: str) -> Callable[[Callable[..., Fields]], Callable[..., Fields]]:
    """Make a function a case of this name."""

    def keep(function: Callable[..., Fields]) -> Callable[..., Fields]:
        add(name, function)
        return function

    return keep


def add(name: str, function: Callable[[], Fields]) -> None:
    assert name not in CASES, f"two cases are named {name!r}"
    CASES[name] = function


def regressor(**arguments: Any) -> GPXRegressor:
    return GPXRegressor(**{**FIXED, **arguments})


def fit_and_ask(
    make: Callable[..., Problem],
    sizes: dict[str, Any],
    arguments: dict[str, Any],
    further: tuple[Callable[..., Fields], ...] = (),
) -> Fields:
    """Return what a fit finds and answers, and `further` fields of the model."""
    problem = make(**sizes)
    model = regressor(**arguments).fit(*problem.rows)
    fields = of_model(model, problem)
    for function in further:
        fields.update(function(model, problem) if function is of_draws else function(model))
    return fields


def simple(
    name: str,
    *further: Any,
    make: Any = make_problem,
    sizes: Any = None,
    **arguments: Any,
) -> None:
    """Add a case of one fit, and of what the model answers."""
    add(name, partial(fit_and_ask, make, sizes or {}, arguments, further))


MATERNS = {"matern12": kernels.Matern12, "matern32": kernels.Matern32, "matern52": kernels.Matern52}
MATERN32, MATERN52 = kernels.Matern32(1.2, 4.0), kernels.Matern52(1.2, 4.0)
SUM = kernels.RBF(0.8, 3.0) + kernels.Matern32(0.5, 6.0)
PRODUCT = kernels.RBF(0.9, 4.0) * kernels.RationalQuadratic(1.1, 8.0)
SPARSE = {"d": 30, "share": 0.08}
PLANE = {"n": 200, "p": 2, "d": 2}
LINE = {"n": 200, "p": 1, "d": 2}

simple("exact held", of_draws, of_evidence, of_training, solver="exact", **HELD)
simple("exact search", of_draws, of_evidence, of_training, solver="exact", max_iter=5)
simple("exact several tiles", of_evidence, solver="exact", sizes={"n": 800}, **HELD)
simple("exact float32", of_evidence, of_training, solver="exact", dtype="float32", **HELD)
simple("exact float32 search", solver="exact", dtype="float32", max_iter=4)
simple("exact intercept", of_training, solver="exact", fit_intercept=True, max_iter=4)
simple("exact as it is", solver="exact", standardize=False, max_iter=4)
simple("exact without sigma_w", solver="exact", sigma_w=0.0, max_iter=4)
simple("exact restarts", solver="exact", n_restarts=2, max_iter=4)
simple("exact sparse", of_evidence, of_training, solver="exact", sizes=SPARSE, max_iter=4)
simple("exact ard", of_evidence, solver="exact", ard=True, max_iter=4)
for kernel in (*MATERNS, "rq"):
    simple(f"exact {kernel}", of_draws, of_evidence, solver="exact", kernel=kernel, max_iter=4)
simple("exact sum", of_draws, of_evidence, solver="exact", kernel=SUM, max_iter=4)
simple("exact product", of_draws, of_evidence, solver="exact", kernel=PRODUCT, max_iter=4)
GRAM = {"make": gram_problem, "kernel": "precomputed"}
WORDS = {"make": word_problem, "kernel": shared_letters}
simple("exact precomputed", of_evidence, of_training, **GRAM, solver="exact", max_iter=4)
simple("exact words", of_evidence, of_training, **WORDS, solver="exact", max_iter=4)

# With as few pivots as this, solves take tens of iterations; as many as rows would leave them one.
CG = {"solver": "cg", "preconditioner_rank": 20}
simple("cg held", of_draws, of_evidence, of_training, **CG, **HELD)
simple("cg auto rank", of_draws, of_evidence, solver="cg", **HELD)
simple("cg search", of_evidence, **CG, max_iter=3)
simple("cg float64", of_evidence, of_training, **CG, dtype="float64", **HELD)
simple("cg stored tiles", of_evidence, sizes={"n": 700}, **CG, **HELD)
# This limit leaves fewer shared rows than there are, so that variances come from neighbours too.
TIGHT = {**HELD, "memory_limit": "40MiB"}
simple("cg recomputed tiles", of_evidence, solver="cg", sizes={"n": 1100}, **TIGHT)
simple("cg sparse pairs", of_evidence, of_training, solver="cg", sizes=SPARSE, **HELD)
simple("cg sparse search", solver="cg", sizes=SPARSE, max_iter=3)
simple("cg sparse rank", of_evidence, sizes=SPARSE, **CG, **HELD)
simple("cg sparse tiles", of_evidence, sizes={"d": 10, "share": 0.5}, **CG, **HELD)
simple("cg sparse subset", sizes={**SPARSE, "n": 2600}, solver="cg", max_iter=1)
simple("cg ard", **CG, ard=True, max_iter=2)
simple("cg matern32", of_draws, of_evidence, **CG, kernel=MATERN32, optimizer=None)
simple("cg sum", of_draws, of_evidence, **CG, kernel=SUM, optimizer=None)
simple("cg precomputed", of_evidence, **GRAM, **CG, optimizer=None)
simple("cg words", **WORDS, **CG, optimizer=None)

POINTS = {"solver": "inducing", "n_inducing": 15}
simple("inducing held", of_draws, of_evidence, **POINTS, **HELD)
simple("inducing search", of_draws, of_evidence, sizes={"n": 200}, **POINTS, max_iter=3)
simple("inducing several blocks", of_evidence, sizes={"n": 1300}, **POINTS, **HELD)
simple("inducing subset", sizes={"n": 2100}, **POINTS, max_iter=1)
simple("inducing kmeans", sizes={"n": 200}, inducing_points="kmeans", **POINTS, max_iter=2)
simple("inducing unmoved", sizes={"n": 200}, optimize_inducing=False, **POINTS, max_iter=3)
simple("inducing intercept", fit_intercept=True, **POINTS, max_iter=2)
simple("inducing sparse", of_evidence, sizes=SPARSE, **POINTS, max_iter=2)
simple("inducing sparse held", of_evidence, sizes=SPARSE, **POINTS, **HELD)
simple("inducing ard", ard=True, **POINTS, max_iter=2)
simple("inducing matern52", of_draws, kernel="matern52", **POINTS, max_iter=2)
simple("inducing product", of_evidence, kernel=PRODUCT, **POINTS, max_iter=2)
simple("inducing words", **WORDS, **POINTS, max_iter=2)

simple("basis held", of_draws, of_evidence, sizes=LINE, solver="basis", **HELD)
simple("basis search", of_draws, of_evidence, sizes=LINE, solver="basis", max_iter=3)
simple("basis plane", of_evidence, sizes=PLANE, solver="basis", n_basis=8, max_iter=2)
simple("basis ard", sizes=PLANE, solver="basis", n_basis=7, ard=True, max_iter=2)
simple("basis matern32", sizes=LINE, solver="basis", kernel="matern32", n_basis=20, max_iter=2)
simple("basis intercept", sizes=LINE, solver="basis", fit_intercept=True, max_iter=2)

simple("grid held", of_draws, of_evidence, sizes=PLANE, solver="grid", **HELD)
simple("grid search", sizes=LINE, solver="grid", max_iter=2)
simple("grid points", of_evidence, sizes=PLANE, solver="grid", n_basis=25, **HELD)
simple("grid nearby", sizes={"n": 1100, "p": 1, "d": 2}, solver="grid", **HELD)
simple("grid matern52", sizes=LINE, solver="grid", kernel=MATERN52, optimizer=None)
simple("grid product", sizes=LINE, solver="grid", kernel=PRODUCT, optimizer=None)


# cases: further answers


@case("exact all answers")
def exact_answers() -> Fields:
    """Return every kind of answer that the exact solver gives."""
    problem = make_problem(queries=MANY_QUERIES, seed=3)
    query = problem.X_query, problem.Z_query
    model = regressor(solver="exact", **HELD).fit(*problem.rows)
    errors, deviations = model.leave_one_out()
    explanation = model.explain(*query)
    lower, upper = explanation.interval(0.9)
    return {
        **of_explanation(model.explain(*query, std="certified"), "certified"),
        **of_explanation(model.explain(*query, cov=True), "cov"),
        **of_explanation(model.explain(*query, std=False, baseline="zero"), "zero"),
        **of_explanation(model.training_explanation(cov=True), "training"),
        "leave_one_out": numbers(errors),
        "leave_one_out_std": numbers(deviations),
        "score": numbers(model.score(problem.X, problem.y, problem.Z)),
        "baseline": numbers(model.baseline_),
        "lower": numbers(lower),
        "upper": numbers(upper),
        "prediction_interval": numbers(explanation.prediction_interval(0.9)),
        "weights_interval": numbers(explanation.weights_interval(0.9)),
        "probability_positive": numbers(explanation.probability_positive()),
        "top": numbers([reason.feature for reason in explanation.top(0)]),
    }


@case("cg all answers")
def cg_answers() -> Fields:
    """Return every kind of answer that conjugate gradients give."""
    problem = make_problem(queries=MANY_QUERIES, seed=3)
    query = problem.X_query, problem.Z_query
    model = regressor(**CG, **HELD).fit(*problem.rows)
    mean, std = model.predict(*query, return_std="samples")
    return {
        "samples.mean": numbers(mean),
        "samples.std": numbers(std),
        **of_explanation(model.explain(*query, std="samples"), "samples"),
        **of_explanation(model.explain(*query, std="certified"), "certified"),
        **of_explanation(model.explain(*query, cov=True), "cov"),
        **of_explanation(model.training_explanation(cov=True), "training"),
    }


@case("sparse all answers")
def sparse_answers() -> Fields:
    """Return explanations of a sparse Z by all of its features."""
    problem = make_problem(**SPARSE, seed=3)
    query, fields = (problem.X_query, problem.Z_query), {}
    for solver in ("exact", "cg", "inducing"):
        model = regressor(solver=solver, n_inducing=20, **HELD).fit(*problem.rows)
        fields |= of_explanation(model.explain(*query, dense=True), f"{solver}.dense")
        fields |= of_explanation(model.explain(*query, dense=True, cov=True), f"{solver}.cov")
        fields |= prefixed(solver, of_draws(model, problem))
        if solver != "inducing":
            all_features = model.training_explanation(dense=True)
            fields |= of_explanation(all_features, f"{solver}.training")
    return fields


@case("sparse x")
def sparse_x() -> Fields:
    """Return fits to a sparse matrix that is both X and Z."""
    problem, fields = make_problem(**SPARSE, seed=4), {}
    for solver in ("exact", "cg", "inducing"):
        model = regressor(solver=solver, n_inducing=20, max_iter=2).fit(problem.Z, problem.y)
        fields |= prefixed(solver, of_fit(model) | of_answers(model, problem.Z_query))
    return fields


@case("tied x and z")
def tied() -> Fields:
    """Return a fit without a Z of its own, as `auto` plans it, and one of a pair of inputs."""
    problem = make_problem(seed=5)
    model = regressor(max_iter=4).fit(problem.X, problem.y)
    pair = regressor(max_iter=4).fit(XZ(problem.X, problem.Z), problem.y)
    return {
        **prefixed("tied", of_fit(model) | of_answers(model, problem.X_query)),
        **prefixed("pair", of_fit(pair) | of_answers(pair, XZ(problem.X_query, problem.Z_query))),
    }


@case("transformers")
def transformers() -> Fields:
    """Return fits to what transformers, and lists of columns, make of one table."""
    problem, fields = make_problem(p=6, seed=6), {}
    scaled = {"x_transformer": PCA(2), "z_transformer": StandardScaler()}
    columns = {"x_transformer": [0, 1], "z_transformer": [2, 3, 5]}
    for name, arguments in {"scaled": scaled, "columns": columns}.items():
        for solver in ("exact", "inducing"):
            how = {**arguments, "solver": solver, "n_inducing": 15, "max_iter": 3}
            model = regressor(**how).fit(problem.X, problem.y)
            answers = of_answers(model, problem.X_query)
            fields |= prefixed(f"{name}.{solver}", of_fit(model) | answers)
    return fields


@case("search trace")
def search_trace() -> Fields:
    """Return the evidence of every evaluation of the searches of all solvers."""
    fields = {}
    for solver in ("exact", "cg", "inducing", "basis", "grid"):
        seen: list[float] = []
        problem = make_problem(**LINE)
        how = {"solver": solver, "n_inducing": 15, "max_iter": 3}
        note = [lambda state, seen=seen: seen.append(state["evidence"])]
        regressor(callbacks=note, **how).fit(*problem.rows)
        fields[solver] = numbers(seen)
    return fields


# cases: rows that come in parts


@case("inducing given points")
def inducing_given_points() -> Fields:
    problem = make_problem()
    points = XZ(problem.X[::10], problem.Z[::10])
    fields = {}
    for name, move in (("fixed", "auto"), ("moved", True)):
        how = {
            "solver": "inducing",
            "inducing_points": points,
            "optimize_inducing": move,
            "max_iter": 2,
        }
        fields |= prefixed(name, of_model(regressor(**how).fit(*problem.rows), problem))
    return fields


def partial_fits(sizes: dict[str, Any], **arguments: Any) -> Fields:
    """Return a model before and after rows were added to it."""
    problem = make_problem(**sizes)
    half = len(problem.y) // 2
    model = regressor(**arguments).partial_fit(problem.X[:half], problem.y[:half], problem.Z[:half])
    fields = prefixed("first", of_model(model, problem))
    model.partial_fit(problem.X[half:], problem.y[half:], problem.Z[half:])
    return fields | prefixed("second", of_model(model, problem))


add("inducing partial_fit", partial(partial_fits, {"n": 160}, **POINTS, max_iter=2))
add("inducing sparse partial_fit", partial(partial_fits, SPARSE, **POINTS, **HELD))
add("basis partial_fit", partial(partial_fits, LINE, solver="basis", max_iter=2))


@case("auto partial_fit")
def auto_partial_fit() -> Fields:
    """Return a model of all rows that rows are added to, which makes it one of inducing points."""
    problem = make_problem(n=160)
    model = regressor(n_inducing=20, **HELD).fit(problem.X[:120], problem.y[:120], problem.Z[:120])
    model.partial_fit(problem.X[120:], problem.y[120:], problem.Z[120:])
    return of_model(model, problem)


def streamed(sizes: dict[str, Any], **arguments: Any) -> Fields:
    """Return a model of rows that a function yields in chunks, then of more of them."""
    problem = make_problem(**sizes)
    model = regressor(**arguments).fit(problem.chunks)
    fields = of_model(model, problem) | of_evidence(model)
    model.partial_fit(problem.chunks)
    return fields | prefixed("more", of_model(model, problem))


add("stream inducing", partial(streamed, {"n": 260}, **POINTS, max_iter=2))
add("stream inducing sparse", partial(streamed, {"n": 260, **SPARSE}, **POINTS, max_iter=2))
add("stream intercept", partial(streamed, {"n": 260}, **POINTS, fit_intercept=True, **HELD))
add("stream basis", partial(streamed, {**LINE, "n": 260}, solver="basis", max_iter=2))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Give a folder that is removed; Windows may keep a file that is memory-mapped."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@case("stream files")
def stream_files() -> Fields:
    """Return models of a folder of npz files, and of memory-mapped arrays."""
    problem = make_problem(n=260)
    how = {**POINTS, **HELD}
    with temporary_folder() as folder:
        (folder / "npz").mkdir()
        for k, (X, y, Z) in enumerate(problem.chunks(100)):
            np.savez(folder / "npz" / f"{k}.npz", X=X, y=y, Z=Z)
        of_folder = of_model(regressor(**how).fit(folder / "npz"), problem)
        np.save(folder / "X.npy", problem.X)
        mapped = np.load(folder / "X.npy", mmap_mode="r")
        of_map = of_model(regressor(**how).fit(mapped, problem.y, problem.Z), problem)
        del mapped
    return prefixed("folder", of_folder) | prefixed("map", of_map)


def has_dask() -> bool:
    return find_spec("distributed") is not None and find_spec("dask") is not None


@contextmanager
def dask_client() -> Iterator[Any]:
    """Give a client of two workers that are threads of this process."""
    import distributed

    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.Client(processes=False, **how) as client:
        yield client


def on_dask(sizes: dict[str, Any], **arguments: Any) -> Fields:
    """Return a model of Dask arrays, and of more of them."""
    import dask.array as da

    from gpx_scale.distributed import DaskGPXRegressor

    problem = make_problem(**sizes)
    with dask_client() as client:
        arrays = [da.from_array(A, chunks=(60, *A.shape[1:])) for A in problem.rows]
        model = DaskGPXRegressor(client, **{**FIXED, **arguments}).fit(*arrays)
        fields = of_model(model, problem) | of_evidence(model)
        model.partial_fit(*arrays)
        fields |= prefixed("more", of_model(model, problem))
        return fields | prefixed("local", of_model(model.to_local(), problem))


add("dask inducing", partial(on_dask, {"n": 260}, **POINTS, max_iter=2))
add("dask basis", partial(on_dask, {**LINE, "n": 260}, solver="basis", max_iter=2))


# cases: what is kept from one fit to another


@case("warm start")
def warm_start() -> Fields:
    """Return fits of half of the rows, and of all of them from where the first ended."""
    problem, fields = make_problem(n=160, p=1), {}
    for solver in ("exact", "cg", "inducing"):
        how = {"solver": solver, "n_inducing": 15, "preconditioner_rank": 20}
        model = regressor(**how, max_iter=2, warm_start=True)
        model.fit(problem.X[:80], problem.y[:80], problem.Z[:80])
        fields |= prefixed(f"{solver}.first", of_fit(model))
        fields |= prefixed(f"{solver}.second", of_model(model.fit(*problem.rows), problem))
    return fields


@case("checkpoint")
def checkpoint() -> Fields:
    """Return fits that are cut short, and those that go on from their checkpoints."""
    problem, fields = make_problem(n=150, p=1), {}
    for solver in ("exact", "cg", "inducing", "basis"):
        with temporary_folder() as folder:
            how = {"solver": solver, "n_inducing": 15, "preconditioner_rank": 20}
            how["checkpoint"] = folder / "state.npz"
            cut = regressor(**how, max_iter=1).fit(*problem.rows)
            fields |= prefixed(f"{solver}.cut", of_fit(cut))
            resumed = regressor(**how, max_iter=3).fit(*problem.rows)
            fields |= prefixed(f"{solver}.resumed", of_model(resumed, problem))
    return fields


@case("saved and loaded")
def saved_and_loaded() -> Fields:
    """Return what models answer after they were saved and loaded."""
    fields = {}
    for name, saved in SAVED.items():
        problem = saved.make(**saved.sizes)
        with temporary_folder() as folder:
            regressor(**saved.arguments).fit(*problem.rows).save(folder / "model.gpx")
            model = load(folder / "model.gpx")
        fields |= prefixed(name, of_model(model, problem) | of_draws(model, problem))
    return fields


# cases: models of an earlier day

SMALL: dict[str, Any] = {"n": 48, "p": 2, "d": 3}
SMALL_SPARSE: dict[str, Any] = {"n": 48, "p": 2, "d": 20, "share": 0.1}
# Files of cg and grid hold posterior paths, which grow with the columns of X and Z.
NARROW: dict[str, Any] = {"n": 48, "p": 1, "d": 2}
EXACT: dict[str, Any] = {"solver": "exact", "max_iter": 2}
FEW_POINTS: dict[str, Any] = {"solver": "inducing", "n_inducing": 8, "max_iter": 2}
ON_BASIS: dict[str, Any] = {"solver": "basis", "max_iter": 2}
BY_TABLE: dict[str, Any] = {"x_transformer": PCA(2), "z_transformer": StandardScaler()}
THREE = SUM + kernels.Matern12(0.2, 5.0)


class Saved(NamedTuple):
    """What a saved model is of: the sizes of its problem, its arguments, and how that is made."""

    sizes: dict[str, Any]
    arguments: dict[str, Any]
    make: Callable[..., Problem] = make_problem


SAVED = {
    "exact-dense": Saved(SMALL, EXACT),
    "exact-sparse": Saved(SMALL_SPARSE, EXACT),
    "exact-float32": Saved(SMALL, {**EXACT, "dtype": "float32"}),
    "exact-intercept-ard": Saved(SMALL, {**EXACT, "fit_intercept": True, "ard": True}),
    "exact-sum": Saved(SMALL, {**EXACT, "kernel": THREE}),
    "exact-precomputed": Saved(SMALL, {**EXACT, "kernel": "precomputed"}, gram_problem),
    "exact-transformers": Saved({**SMALL, "p": 3}, {**EXACT, **BY_TABLE}),
    "cg-dense": Saved(NARROW, {"solver": "cg", "max_iter": 2}),
    "cg-sparse": Saved(SMALL_SPARSE, {"solver": "cg", "max_iter": 2}),
    "inducing-dense": Saved(SMALL, FEW_POINTS),
    "inducing-sparse": Saved(SMALL_SPARSE, FEW_POINTS),
    "inducing-product": Saved(SMALL, {**FEW_POINTS, "kernel": PRODUCT}),
    "basis-dense": Saved({**SMALL, "p": 1}, ON_BASIS),
    "basis-matern52": Saved({**SMALL, "p": 1}, {**ON_BASIS, "kernel": "matern52", "n_basis": 10}),
    "grid-dense": Saved(NARROW, {"solver": "grid", "max_iter": 2}),
}


def of_file(name: str) -> Fields:
    """Return what a committed model finds for its queries."""
    saved = SAVED[name]
    problem = saved.make(**saved.sizes)
    model = load(MODELS / f"{name}.gpx")
    fields = of_model(model, problem) | of_draws(model, problem)
    if model.solver_ in ("exact", "cg"):
        fields |= of_training(model) | of_evidence(model)
    return fields


def name_of_file_case(name: str) -> str:
    return f"file {name}"


for model_name in SAVED:
    add(name_of_file_case(model_name), partial(of_file, model_name))


def write_missing_models() -> None:
    """Fit and save the models that have no file yet; those of an earlier day stay as they are."""
    MODELS.mkdir(parents=True, exist_ok=True)
    for name, saved in SAVED.items():
        path = MODELS / f"{name}.gpx"
        if path.exists():
            print(f"{path.name}: kept")
            continue
        regressor(**saved.arguments).fit(*saved.make(**saved.sizes).rows).save(path)
        print(f"{path.name}: written, {path.stat().st_size:,} bytes")


# cases: without a model


@case("kernels")
def kernel_values() -> Fields:
    """Return values of all kernels of vectors, and of their sums and products."""
    problem, fields = make_problem(), {}
    every = {
        "rbf": kernels.RBF(1.3, 2.0),
        "ard": kernels.RBF(1.3, (1.0, 2.0, 3.0)),
        "rq": kernels.RationalQuadratic(1.2, 2.0),
        "sum": SUM,
        "product": PRODUCT,
        **{name: kind(1.1, 3.0) for name, kind in MATERNS.items()},
    }
    for name, kernel in every.items():
        fields[name] = numbers(kernel(problem.X_query, problem.X))
        parameters = [np.ravel(value) for value in kernel.as_dict().values()]
        fields[f"{name}.parameters"] = numbers(np.concatenate(parameters))
    return fields


@case("plans")
def plans() -> Fields:
    """Return solvers and memory that are planned for problems of many sizes."""
    fields = {}
    for n in (100, 7_000, 20_000, 90_000, 1_000_000):
        for p, more in ((2, {}), (10, {}), (10, {"density": 0.02}), (10, {"stream": True})):
            plan = make_plan(n, p, 8, memory_limit="16GiB", n_jobs=2, **more)
            label = f"{n}, {p}" + "".join(f", {word}" for word in more)
            fields[f"{label}: solver"] = numbers(plan.solver)
            fields[f"{label}: bytes"] = numbers(plan.bytes_needed)
    return fields


@case("synthetic data")
def synthetic_data() -> Fields:
    plane, ten = datasets.synth2(80), datasets.synth10(80)
    return {
        "synth2.X": numbers(plane.X),
        "synth2.y": numbers(plane.y),
        "synth2.Z": numbers(plane.Z),
        "synth10.X": numbers(ten.X),
        "synth10.y": numbers(ten.y),
    }


# running and comparing


def machine() -> str:
    """Return what rounding depends on: the processor, BLAS, and versions of libraries."""
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = lines[0].partition(":")[2].strip() if lines else cpu
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    keys = "internal_api", "version", "architecture"
    blas = sorted({" ".join(str(pool.get(key)) for key in keys) for pool in pools})
    versions = (f"{module.__name__} {module.__version__}" for module in (np, scipy, numba, sklearn))
    return "; ".join([cpu, *blas, *versions])


def is_skipped(name: str) -> bool:
    return name.startswith("dask ") and not has_dask()


def run(name: str) -> Fields | None:
    """Return the fields of a case; None, with the traceback on stderr, if it fails."""
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # Searches that are cut short say so.
            return CASES[name]()
    except Exception:
        print(f"{name} failed:", file=sys.stderr)
        traceback.print_exc()
        return None


def selected(words: list[str]) -> list[str]:
    """Return the names of the cases that contain one of these words, or of all without words."""
    return [name for name in CASES if not words or any(word in name for word in words)]


def read_values(path: Path) -> tuple[dict[str, Fields], str]:
    """Return the fields of every recorded case, and the machine that they are from."""
    with np.load(path) as file:
        index, flat, where = json.loads(str(file["index"])), file["numbers"], str(file["machine"])
    values: dict[str, Fields] = {name: {} for name in index}
    start = 0
    for name, fields in index.items():
        for field, kept in fields.items():
            if isinstance(kept, list):
                values[name][field] = np.array(kept, dtype=str)
            else:
                values[name][field] = flat[start : start + kept]
                start += kept
    return values, where


def write_values(path: Path, values: dict[str, Fields]) -> None:
    """Write all numbers as one array, and an index of texts and sizes.

    An array for each field would take twice the space.
    """
    index = {
        name: {field: v.tolist() if v.dtype.kind == "U" else v.size for field, v in fields.items()}
        for name, fields in values.items()
    }
    every = [value for fields in values.values() for value in fields.values()]
    flat = np.concatenate([np.empty(0), *(value for value in every if value.dtype.kind != "U")])
    np.savez_compressed(path, machine=machine(), index=json.dumps(index), numbers=flat)


def difference(was: np.ndarray, now: np.ndarray) -> float | None:
    """Return the largest difference over the largest magnitude; None if all bits are equal."""
    if was.dtype.kind != now.dtype.kind or was.shape != now.shape:
        return np.inf
    if was.dtype.kind == "U":
        return None if np.array_equal(was, now) else np.inf
    if was.tobytes() == now.tobytes():
        return None
    finite = np.isfinite(was)
    if not np.array_equal(was[~finite], now[~finite], equal_nan=True):
        return np.inf
    was, now = was[finite], now[finite]
    if not np.isfinite(now).all():
        return np.inf
    gap, scale = np.abs(now - was).max(initial=0.0), np.abs(was).max(initial=0.0)
    return float(gap / scale) if scale > 0.0 else 0.0 if gap == 0.0 else np.inf


def compare(was: Fields | None, now: Fields | None) -> tuple[bool, str]:
    """Return whether a case is the same to TOLERANCE, and a line about it."""
    if now is None:
        return False, "FAILED"
    if was is None:
        return False, "MISSING: there is nothing to compare with"
    lost, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    if lost or new:
        changes = [*(f"{field} (lost)" for field in lost), *(f"{field} (new)" for field in new)]
        return False, f"MISSING: {', '.join(changes)}"
    gaps = {field: gap for field in was if (gap := difference(was[field], now[field])) is not None}
    if not gaps:
        return True, "equal to the bit"
    worst = max(gaps, key=gaps.__getitem__)
    same = gaps[worst] <= TOLERANCE
    verb, share = "differs" if same else "DIFFERS", f"{len(gaps)} of {len(was)} fields"
    return same, f"{verb} by {gaps[worst]:.1e} in {worst}, the most of {share}"


def report(names: list[str], was: dict[str, Fields], now: Callable[[str], Fields | None]) -> bool:
    """Print a line for each case, and return whether all are the same."""
    all_same, start = True, time.perf_counter()
    for name in names:
        if is_skipped(name):
            print(f"{name:32} skipped: Dask is not installed", flush=True)
            continue
        same, line = compare(was.get(name), now(name))
        all_same &= same
        print(f"{name:32} {line}", flush=True)
    verdict = "the same" if all_same else "NOT the same"
    print(f"{len(names)} cases, {time.perf_counter() - start:.0f} s: {verdict}")
    return all_same


def computed_with(source: Path, words: list[str], target: Path) -> dict[str, Fields]:
    """Return what this script computes, in another process, with the package of a source folder."""
    print(f"computing with {source}", flush=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--record", str(target)]
    for word in words:
        command += ["--only", word]
    path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)
    return read_values(target)[0]


def compare_with_commit(revision: str, words: list[str]) -> bool:
    """Return whether this working tree and a commit are the same, both computed here."""
    git = ["git", "-C", str(TESTS)]
    with temporary_folder() as folder:
        tree = folder / "tree"
        made = [*git, "worktree", "add", "--quiet", "--detach", str(tree), revision]
        subprocess.run(made, check=True)
        try:
            was = computed_with(tree / "src", words, folder / "was.npz")
            now = computed_with(TESTS.parent / "src", words, folder / "now.npz")
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
    return report(selected(words), was, now.get)


def record(names: list[str], path: Path) -> None:
    """Write the values of the cases that succeed, with the package at the head of PYTHONPATH."""
    wanted = Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0]).resolve()
    found = Path(gpx_scale.__file__).resolve()
    if not found.is_relative_to(wanted):
        raise SystemExit(f"gpx_scale was imported from {found}, not from {wanted}")
    results = {name: run(name) for name in names if not is_skipped(name)}
    write_values(path, {name: fields for name, fields in results.items() if fields is not None})


def renew(names: list[str], was: dict[str, Fields], now: dict[str, Fields | None]) -> None:
    """Write today's values of some cases; others, and skipped ones, keep what they have."""
    if any(now.get(name) is None for name in names if not is_skipped(name)):
        raise SystemExit("nothing was written, since a case failed")
    kept = {name: was[name] for name in CASES if name in was}
    done = {name: fields for name, fields in now.items() if fields is not None}
    write_values(VALUES, kept | done)
    print(f"{VALUES.name}: written, {VALUES.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    one_of_several = {"action": "append", "default": [], "metavar": "NAME"}
    parser.add_argument("--only", **one_of_several, help="cases whose names contain NAME")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="renew the recorded values")
    how.add_argument("--write-models", action="store_true", help="save the models that are missing")
    how.add_argument("--against", metavar="REV", help="compare with a commit, computed here")
    how.add_argument("--record", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = selected(given.only)
    if not names:
        parser.error(f"no case contains {' or '.join(given.only)}")
    if given.write_models:
        write_missing_models()
        return 0
    if given.record:
        record(names, given.record)
        return 0
    if given.against:
        return 0 if compare_with_commit(given.against, given.only) else 1
    was, where = read_values(VALUES) if VALUES.exists() else ({}, "")
    if where and where != machine():
        print("Values were recorded elsewhere, where rounding may differ; --against compares here.")
        print(f"  then: {where}\n  here: {machine()}")
        if given.write and given.only:
            parser.error("values of two machines do not mix: write all cases")
    results: dict[str, Fields | None] = {}

    def compute(name: str) -> Fields | None:
        results[name] = run(name)
        return results[name]

    same = report(names, was, compute)
    if given.write:
        renew(names, was, results)
        return 0
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
