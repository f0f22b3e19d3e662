"""The translation of model files of version 1, whose classes and fields have other names.

A node of the JSON tree is {"is": name, "of": content}. If the name is that of a class of this
package, the content is a mapping from fields to nodes. A damaged node stays as it is, and is
refused when its class is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# A node is anything that JSON has: a mapping, a list, a text, a number, true, false or null.
Node = Any

# The names of classes in version 1, and in the current version.
CLASSES = {
    "BasisParts": "BasisPosterior",
    "Box": "LaplacianBasis",
    "CgParts": "CGPosterior",
    "Door": "Preprocessor",
    "ExactParts": "ExactPosterior",
    "Extent": "InputExtent",
    "Gate": "InputTransforms",
    "GridParts": "GridPosterior",
    "InducingParts": "InducingPosterior",
    "Inputs": "TrainingRows",
    "Neighbourhood": "LocalVariance",
    "Params": "Hyperparameters",
    "Places": "InputRows",
    "Sums": "BasisStatistics",
    "gpx_scale.datasets.vectors.LSA": "LSA",
}
_POSTERIOR = {
    "params": "hyperparameters",
    "evidence": "log_evidence",
    "condition": "condition_number",
}
_KERNEL_POSTERIOR = _POSTERIOR | {"data": "support", "alpha": "coefficients"}
_CG = _KERNEL_POSTERIOR | {
    "evidence_deviation": "standard_error",
    "near": "local_variance",
    "pilots": "checked",
}
# The names of fields in version 1, and in the current version, by the current name of their class.
FIELDS: dict[str, dict[str, str]] = {
    "BasisPosterior": _POSTERIOR
    | {"data": "statistics", "alpha": "coefficients", "left": "remainder_shares"},
    "CGPosterior": _CG,
    "ExactPosterior": _KERNEL_POSTERIOR,
    "GridPosterior": _CG | {"on": "interpolated", "weights": "grid_weights", "left": "remainder"},
    "InducingPosterior": _KERNEL_POSTERIOR,
    "InputTransforms": {"takes": "input_kind"},
    "Preprocessor": {"gate": "transforms"},
    "LocalVariance": {"data": "rows", "params": "hyperparameters"},
}
# The names of attributes of the estimator in version 1, and in the current version.
ATTRIBUTES = {"_door": "_preprocessor", "_found": "_known"}
# Attributes of version 1 that are dropped, because the posterior has the same values.
DROPPED = ("_params",)


def translated(state: dict[str, Node]) -> dict[str, Node]:
    """Return the state of a file of version 1 with the current names."""
    found = {
        ATTRIBUTES.get(name, name): _node(node)
        for name, node in state.items()
        if name not in DROPPED
    }
    posterior: Node = found.get("posterior_")
    known: Node = found.get("_known")
    if _is(posterior, "Posterior"):
        found["posterior_"] = posterior["of"].get("parts")
    if _is(known, "tuple") and isinstance(known["of"], list) and len(known["of"]) == 2:
        hyperparameters, points = known["of"]
        found["_known"] = _made("KnownOptimum", hyperparameters=hyperparameters, points=points)
    return found


def _node(node: Node) -> Node:
    """Return a node, and all nodes inside of it, with the current names."""
    if isinstance(node, list):
        return [_node(item) for item in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("is")
    name = CLASSES.get(kind, kind) if isinstance(kind, str) else kind
    content = node.get("of")
    if isinstance(content, dict):
        fields = FIELDS.get(name, {}) if isinstance(name, str) else {}
        content = {fields.get(key, key): _node(item) for key, item in content.items()}
        if name in REBUILT:
            content = REBUILT[name](content)
    else:
        content = _node(content)
    return node | {"is": name, "of": content}


def _is(node: Node, name: str) -> bool:
    """Return whether a node has this name, and a mapping or a list as its content."""
    return (
        isinstance(node, dict)
        and node.get("is") == name
        and isinstance(node.get("of"), dict | list)
    )


def _made(name: str, **fields: Node) -> Node:
    """Return the node of an object of a class with these fields."""
    return {"is": name, "of": fields}


def _hyperparameters(of: dict[str, Node]) -> dict[str, Node]:
    """Return the prior of the weights and the likelihood, from a kernel, sigma_w and sigma_y."""
    term = _made("Term", kernel=of["kernel"], weight_variances=None)
    prior = _made("WeightPrior", terms={"is": "tuple", "of": [term]}, sigma_w=of["sigma_w"])
    return {"weight_prior": prior, "likelihood": _made("GaussianLikelihood", sigma_y=of["sigma_y"])}


def _plan(of: dict[str, Node]) -> dict[str, Node]:
    """Return the fields of a plan, with those that belong to one solver in its settings."""
    own = (
        *("form", "rank", "try_jacobi", "shared", "points", "sample"),
        *("count", "share", "density", "extent", "again"),
    )
    known = {name: of[name] for name in own}
    cg = {name: known[name] for name in ("form", "rank", "try_jacobi", "shared")} | {
        "pair_density": known["density"]
    }
    on_grid = {name: known[name] for name in ("count", "share", "extent")}
    settings = {
        "exact": None,
        "cg": _made("CGSettings", **cg),
        "grid": _made("GridSettings", **cg, **on_grid),
        "inducing": _made("InducingSettings", points=known["points"], sample=known["sample"]),
        "basis": _made("BasisSettings", count=known["count"], extent=known["extent"]),
    }[of["solver"]]
    rest = {name: node for name, node in of.items() if name not in own}
    return rest | {
        "needs_length_scales": known["again"] is not None,
        "settings": settings,
        "d_is_per_row": known["form"] == "pairs",
    }


# Functions that return the current fields of a class, from those of version 1.
REBUILT: dict[Any, Callable[[dict[str, Node]], dict[str, Node]]] = {
    "Hyperparameters": _hyperparameters,
    "Plan": _plan,
}
