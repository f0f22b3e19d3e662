"""Classes declare with `@stored` that a model file may hold them; there is no list of them."""

import importlib
import io
import json
import pkgutil
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

import gpx_scale
from frames import mixed_frame
from gpx_scale import XZ, GPXClassifier, GPXRegressor, InputError, datasets, kernels
from gpx_scale.data.row_columns import RowColumns
from gpx_scale.kernels.precomputed import Scaled
from gpx_scale.likelihoods.likelihood import GaussianLikelihood
from gpx_scale.model.hyperparameters import Hyperparameters
from gpx_scale.persistence.model_file import TREE, read_state, write_state
from gpx_scale.runtime.state import (
    fields_of,
    forget,
    is_of_type,
    must_be_typed,
    stored,
    stored_by_name,
    stored_by_type,
    stored_classes,
)
from gpx_scale.solvers import registry
from gpx_scale.solvers.exact.posterior import ExactPosterior
from gpx_scale.solvers.exact.solver import ExactSolver
from gpx_scale.solvers.neighbors import gathering

N = 40
X, Y, _ = datasets.synth10(N)
X1, X2 = X[:, :1].copy(), X[:, :2].copy()
WORDS = sp.random(N, 9, 0.3, format="csr", random_state=0)
TEXTS = [f"{'good' if y > 0 else 'bad'} film number {k % 7}" for k, y in enumerate(Y)]
SMALL = {"max_iter": 1, "random_state": 0, "n_jobs": 1, "memory_limit": "1GiB"}
SMALL |= {"weights": "shared"}
ROUGH = kernels.Matern12() * kernels.Matern32() + kernels.RationalQuadratic()

# A model of every solver, such that every class that is stored is in one of them.

CASES = {
    "exact": (
        GPXRegressor(solver="exact", warm_start=True, **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        None,
    ),
    "exact, compared": (
        GPXRegressor(candidates=["rbf", "matern32"], solver="exact", **SMALL),
        np.insert(X[:, :4], 1, 2.0, axis=1),
        None,
    ),
    "exact, weights": (
        GPXRegressor("rbf", prune=False, fit_intercept=False, **SMALL | {"weights": "semi"}),
        X2,
        None,
    ),
    "cg, weights": (
        GPXRegressor(
            "rbf", solver="cg", prune=False, fit_intercept=False, **SMALL | {"weights": "semi"}
        ),
        X2,
        None,
    ),
    "exact, kernels": (GPXRegressor(ROUGH, solver="exact", **SMALL, fit_intercept=False), X2, None),
    "exact, frame": (
        GPXRegressor("rbf", fit_intercept=False, **SMALL),
        mixed_frame(N),
        None,
    ),
    "exact, Gram matrix": (
        GPXRegressor("precomputed", solver="exact", **SMALL, fit_intercept=False),
        X @ X.T,
        X,
    ),
    "exact, texts": (
        GPXRegressor(
            solver="exact",
            x_transformer=datasets.LSA(3),
            **SMALL,
            kernel="rbf",
            fit_intercept=False,
        ),
        TEXTS,
        WORDS,
    ),
    "cg": (GPXRegressor("matern52", solver="cg", **SMALL, fit_intercept=False), X2, None),
    "cg, sparse": (
        GPXRegressor(solver="cg", **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        WORDS,
    ),
    "inducing": (
        GPXRegressor(solver="inducing", n_inducing=7, **SMALL, kernel="rbf", fit_intercept=False),
        X,
        None,
    ),
    "inducing, given": (
        GPXRegressor(
            solver="inducing",
            inducing_points=XZ(X2[:7], X[:7]),
            **SMALL,
            kernel="rbf",
            fit_intercept=False,
        ),
        X2,
        X,
    ),
    "basis, further functions": (
        GPXRegressor("matern52", solver="basis", n_basis=40, **SMALL, fit_intercept=False),
        X[:, :1],
        None,
    ),
    "basis, weights": (
        GPXRegressor(
            "rbf", solver="basis", prune=False, fit_intercept=False, **SMALL | {"weights": "semi"}
        ),
        X1,
        None,
    ),
    "basis, weights and further functions": (
        GPXRegressor(
            "matern52",
            solver="basis",
            n_basis=40,
            prune=False,
            fit_intercept=False,
            **SMALL | {"weights": "semi"},
        ),
        X[:, :1],
        None,
    ),
    "neighbors": (
        GPXRegressor(solver="neighbors", **SMALL, kernel="rbf", fit_intercept=False),
        X2,
        None,
    ),
    "neighbors, sparse": (
        GPXRegressor(
            solver="neighbors",
            n_neighbors=9,
            n_shared=4,
            **SMALL,
            kernel="rbf",
            fit_intercept=False,
        ),
        X2,
        WORDS,
    ),
    "basis": (GPXRegressor(solver="basis", **SMALL, kernel="rbf", fit_intercept=False), X1, None),
    "grid": (GPXRegressor(solver="grid", **SMALL, kernel="rbf", fit_intercept=False), X1, None),
}


def fitted(case):
    model, A, Z = CASES[case]
    return model.fit(A, Y, Z)


def tree_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(TREE))


def tags_in(node):
    """Yield the tag of every node of a tree."""
    if isinstance(node, dict):
        if isinstance(node.get("is"), str):
            yield node["is"]
        for item in node.values():
            yield from tags_in(item)
    elif isinstance(node, list):
        for item in node:
            yield from tags_in(item)


def assert_same(one, other):
    """Assert that two objects have equal types and contents, with numbers equal to the bit.

    A file has Python's numbers in the place of numpy's scalars.
    """
    one, other = (part.item() if isinstance(part, np.generic) else part for part in (one, other))
    assert type(one) is type(other)
    known = stored_by_type(type(one))
    if known is not None:
        one, other = known.take(one), known.take(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[key] for key in one]
    if sp.issparse(one):
        assert_same([one.data, one.indices, one.indptr], [other.data, other.indices, other.indptr])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif hasattr(one, "__dict__") and not isinstance(one, type):
        assert_same(vars(one), vars(other))
    else:
        assert one == other or (one != one and other != other)


@contextmanager
def declared(*kinds):
    """Take back, at the end, that classes which a test defines are stored."""
    try:
        yield
    finally:
        for kind in kinds:
            forget(kind)
            assert stored_by_type(kind) is None


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_made_again_of_the_same_parts(case, tmp_path):
    model = fitted(case)
    model.save(tmp_path / "model.gpx")
    loaded = gpx_scale.load(tmp_path / "model.gpx")
    for name in ("_preprocessor", "_plan", "_known", "posterior_", "fit_report_", "x_transformer"):
        assert_same(getattr(model, name), getattr(loaded, name))
    _, A, Z = CASES[case]
    np.testing.assert_array_equal(loaded.predict(A, Z), model.predict(A, Z))


def models_of_files(folder):
    """Yield models whose rows are too many for a file, one of them with rows added."""
    np.save(folder / "X.npy", X2)
    np.savez(folder / "rows.npz", X=X2, y=Y)
    mapped = np.load(folder / "X.npy", mmap_mode="r")
    yield GPXRegressor(solver="neighbors", **SMALL).fit(mapped, Y)
    yield GPXRegressor(solver="neighbors", **SMALL).fit(folder / "rows.npz").partial_fit(X2, Y)


def test_every_stored_class_is_in_a_model_of_some_solver(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "SAVED_ROWS_BYTES", 0)
    found = set()
    # A plan of "auto" has candidates.
    automatic = GPXRegressor(**SMALL, kernel="rbf", fit_intercept=False).fit(X2, Y)
    noise = RowColumns(noise=np.zeros(len(Y)))
    object.__setattr__(automatic.posterior_.support, "columns", noise)
    counts = [
        GPXRegressor(**SMALL, kernel="rbf", fit_intercept=False, likelihood=likelihood)
        for likelihood in ("poisson", "negbinomial", "binomial", "student")
    ]
    classes = [
        GPXClassifier(**SMALL, kernel="rbf", fit_intercept=False, link=link)
        for link in ("logit", "probit")
    ]
    others = [model.fit(X2, (Y > 0).astype(int)) for model in (*counts, *classes)]
    for model in (*map(fitted, CASES), automatic, *models_of_files(tmp_path), *others):
        model.save(tmp_path / "model.gpx")
        found |= set(tags_in(tree_of(tmp_path / "model.gpx")["state"]))
    ours = {kind.__name__ for kind in stored_classes() if kind.__module__.startswith("gpx_scale.")}
    assert ours - found == set()
    assert {solver.posterior_class.__name__ for solver in registry.SOLVERS} <= found


def test_a_solver_says_which_classes_its_models_have():
    for solver in registry.SOLVERS:
        assert stored_by_type(solver.posterior_class) is not None
        has_settings = solver.settings_class is not type(None)
        assert has_settings == (stored_by_type(solver.settings_class) is not None)


def test_persistence_names_no_class_of_a_solver_or_a_kernel():
    """`persistence` imports only contracts from these packages."""
    package = importlib.import_module("gpx_scale.persistence")
    for module in pkgutil.iter_modules(package.__path__, "gpx_scale.persistence."):
        used = vars(importlib.import_module(module.name)).values()
        homes = {kind.__module__ for kind in used if isinstance(kind, type)}
        assert not {home for home in homes if home.startswith("gpx_scale.kernels")}
        inside = {home for home in homes if home.startswith("gpx_scale.solvers.")}
        assert inside <= {"gpx_scale.solvers.contract", "gpx_scale.solvers.posterior"}


# names that are not known


@pytest.mark.parametrize("name", ["Function", "Queries", "GPXRegressor", "builtins.eval", ""])
def test_a_name_that_no_class_has_declared_is_refused(name, tmp_path):
    path = tmp_path / "model.gpx"
    fitted("exact").save(path)
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member == TREE:
                tree = json.loads(content)
                tree["state"]["kernel"] = {"is": name, "of": {}}
                content = json.dumps(tree)
            new.writestr(member, content)
    path.write_bytes(out.getvalue())
    with pytest.raises(InputError, match="which is not among the classes that a model may hold"):
        gpx_scale.load(path)


def test_a_class_that_has_not_declared_it_is_not_written(tmp_path):
    class Silent(kernels.RBF):
        """A subclass does not inherit that its base is stored."""

    with pytest.raises(InputError, match="which a model file cannot hold"):
        write_state(tmp_path / "state", {"kernel": Silent(1.0, 2.0)})
    assert not list(tmp_path.iterdir())


def test_a_name_that_was_taken_back_is_refused(tmp_path):
    @stored
    @dataclass
    class Passing:
        number: float

    with declared(Passing):
        write_state(tmp_path / "state", {"a": Passing(0.5)})
        assert read_state(tmp_path / "state") == {"a": Passing(0.5)}
    with pytest.raises(InputError, match="names 'Passing', which is not among"):
        read_state(tmp_path / "state")


# classes that are defined here


@dataclass(frozen=True)
class Linear(Scaled):
    """theta1 (1 + x.x')."""

    input_kind: ClassVar[str] = "vectors"

    def prepare(self, x, dtype=np.float64):
        return np.hstack([x, np.ones((len(x), 1))]).astype(dtype)

    def block(self, a, b):
        return a @ b.T

    def diagonal(self, points):
        return self.theta1 * np.einsum("ij,ij->i", points, points)


class MirrorPosterior(ExactPosterior):
    """The exact posterior under another name."""


class MirrorSolver(ExactSolver):
    """The exact solver under another name, with a posterior of its own."""

    name = "mirror"
    posterior_class = MirrorPosterior

    @classmethod
    def plan(cls, problem):
        return replace(super().plan(problem), solver=cls.name)

    def condition(self, rows, hyperparameters):
        return MirrorPosterior(**fields_of(super().condition(rows, hyperparameters)))


@dataclass(frozen=True)
class LoudLikelihood(GaussianLikelihood):
    """Gaussian noise under another name."""


def test_a_new_kernel_is_stored_by_its_decorator_alone(tmp_path):
    model = GPXRegressor(
        Linear() * kernels.RBF(), solver="exact", **SMALL, fit_intercept=False
    ).fit(X2, Y)
    with pytest.raises(InputError, match="which a model file cannot hold"):
        model.save(tmp_path / "model.gpx")
    with declared(stored(Linear)):
        model.save(tmp_path / "model.gpx")
        loaded = gpx_scale.load(tmp_path / "model.gpx")
        assert type(loaded.posterior_.hyperparameters.kernel.first) is Linear
        np.testing.assert_array_equal(loaded.predict(X2), model.predict(X2))


def test_a_new_solver_is_stored_by_its_decorator_and_the_registry(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "SOLVERS", (*registry.SOLVERS, MirrorSolver))
    monkeypatch.setattr(registry, "NAMES", (*registry.NAMES, "mirror"))
    model = GPXRegressor(solver="mirror", **SMALL, kernel="rbf", fit_intercept=False).fit(X2, Y)
    path = tmp_path / "model.gpx"
    with declared(stored(MirrorPosterior)):
        model.save(path)
        loaded = gpx_scale.load(path)
        assert (loaded.solver_, type(loaded.posterior_)) == ("mirror", MirrorPosterior)
        np.testing.assert_array_equal(loaded.predict(X2), model.predict(X2))
        model.posterior_ = ExactPosterior(**fields_of(model.posterior_))
        model.save(path)
        with pytest.raises(
            InputError, match="solver_ is 'mirror', and its posterior is of the type ExactPosterior"
        ):
            gpx_scale.load(path)
        model.posterior_ = MirrorPosterior(**fields_of(model.posterior_) | {"jitter": 2.0})
        model.save(path)
        with pytest.raises(InputError, match="the jitter is out of range"):  # It checks itself.
            gpx_scale.load(path)


def test_a_new_likelihood_is_stored_by_its_decorator_alone(tmp_path):
    given = Hyperparameters.of(kernels.RBF(1.0, 2.0), 0.1, 0.2)
    loud = replace(given, likelihood=LoudLikelihood(0.2))
    with declared(stored(LoudLikelihood)):
        write_state(tmp_path / "state", {"a": loud})
        found = read_state(tmp_path / "state")["a"]
        assert found == loud
        assert type(found.likelihood) is LoudLikelihood
        found.must_fit(fitted("exact")._preprocessor)
        wrong = replace(given, likelihood=LoudLikelihood(-0.2))
        with pytest.raises(ValueError, match=r"sigma_y=-0\.2"):
            wrong.must_fit(fitted("exact")._preprocessor)


def test_a_class_may_have_a_form_of_its_own(tmp_path):
    @dataclass
    class Even:
        """A whole number that is twice another one, which the file has."""

        number: int

    def doubled(half):
        if half < 0:
            raise ValueError("half of it is negative")
        return Even(2 * half)

    with declared(stored(take=lambda even: {"half": even.number // 2}, make=doubled)(Even)):
        write_state(tmp_path / "state", {"a": Even(6)})
        assert tree_of(tmp_path / "state")["state"] == {"a": {"is": "Even", "of": {"half": 3}}}
        assert read_state(tmp_path / "state") == {"a": Even(6)}
        write_state(tmp_path / "state", {"a": Even(-6)})
        with pytest.raises(InputError, match="half of it is negative"):
            read_state(tmp_path / "state")


def test_types_that_a_class_declares_are_compared(tmp_path):
    @stored
    @dataclass
    class Typed:
        count: int
        pairs: dict[str, float]
        span: tuple[float, ...] = ()

    with declared(Typed):
        write_state(tmp_path / "state", {"a": Typed(1, {"b": 2.0}, (1.0, 2.0))})
        assert read_state(tmp_path / "state") == {"a": Typed(1, {"b": 2.0}, (1.0, 2.0))}
        for wrong, name in ((Typed("1", {}), "count"), (Typed(1, {"b": "2"}), "pairs")):
            write_state(tmp_path / "state", {"a": wrong})
            with pytest.raises(InputError, match=f"{name} of a Typed is"):
                read_state(tmp_path / "state")


def test_a_class_with_slots_is_compared_as_well():
    @dataclass(slots=True)
    class Narrow:
        count: int

    must_be_typed(Narrow(1))
    with pytest.raises(ValueError, match="count of a Narrow is str, and int is needed"):
        must_be_typed(Narrow("1"))


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, float, True),
        (True, int, False),
        (None, str | None, True),
        ([1.0], list[float], True),
        (["a"], list[float], False),
        ({"a": 1}, dict[str, int], True),
        ({1: 1}, dict[str, int], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        (len, type[int], False),
    ],
)
def test_a_value_is_of_a_declared_type_or_is_not(value, hint, fits):
    assert is_of_type(value, hint) == fits


def test_a_class_that_is_defined_again_takes_its_own_place():
    def defined():
        @stored
        class Again:
            pass

        return Again

    first, second = defined(), defined()
    with declared(first, second):
        assert stored_by_type(first) is None
        assert stored_by_name("Again").kind is second
