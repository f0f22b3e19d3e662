"""Model files of version 1: their names of classes and fields, translated before any class sees them.

A node of the tree is {"is": name, "of": content}; of one of our classes, the content is a mapping from field to node.
"""

from __future__ import annotations

from typing import Any

# Names of classes as version 1 has them, and as they are now.
CLASSES = {
    "Box": "LaplacianBasis",
    "Door": "Preprocessor",
    "Extent": "InputExtent",
    "Gate": "InputTransforms",
    "Inputs": "TrainingRows",
    "Neighbourhood": "LocalVariance",
    "Params": "Hyperparameters",
    "Places": "InputRows",
    "Sums": "BasisStatistics",
    "gpx_scale.datasets.vectors.LSA": "gpx_scale.datasets.LSA",
}
# Fields of a class (by its name of today) that have another name now.
FIELDS = {"InputTransforms": {"takes": "input_kind"}}
# Attributes of the estimator that have another name now.
ATTRIBUTES: dict[str, str] = {}


def translated(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a file of version 1 with the names of today."""
    return {ATTRIBUTES.get(name, name): _node(node) for name, node in state.items()}


def _node(node: Any) -> Any:
    if isinstance(node, list):
        return [_node(item) for item in node]
    if not isinstance(node, dict):
        return node
    name = CLASSES.get(node.get("is"), node.get("is"))
    content, fields = node.get("of"), FIELDS.get(name, {})
    if isinstance(content, dict):
        content = {fields.get(key, key): _node(item) for key, item in content.items()}
    else:
        content = _node(content)
    return node | {"is": name, "of": content}
