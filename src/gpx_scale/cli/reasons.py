"""How explanations are written: by groups of features, as texts or in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import typer

from ..estimator.regressor import GPXRegressor
from ..explanation import Explanation
from ..runtime.files import import_optional


def groups_asked(model: GPXRegressor, given: Sequence[str]) -> dict[str, list[str]] | None:
    """Return the groups of features that --group asks for, None if there are none.

    Each is given as name:column,column. A column that is encoded stands for all of its features.
    """
    groups: dict[str, list[str]] = {}
    for text in given:
        name, _, columns = (part.strip() for part in text.partition(":"))
        listed = [column.strip() for column in columns.split(",") if column.strip()]
        if not name or not listed or name in groups:
            raise typer.BadParameter(
                f"--group {text!r}: give a name and its columns, once for each group, such as "
                "size:length,width."
            )
        encoded = model.z_groups_
        groups[name] = [feature for column in listed for feature in encoded.get(column, [column])]
    return groups or None


def with_texts(frame: Any) -> Any:
    """Return a long frame in which values are texts if some of them are levels of categories.

    A column of a file has values of one type.
    """
    if "value" in frame and frame["value"].dtype == object:
        frame["value"] = [
            value if isinstance(value, str) else "" if np.isnan(value) else repr(float(value))
            for value in frame["value"]
        ]
    return frame


def paragraphs(explanation: Explanation, k: int | None, level: float) -> Any:
    """Return a frame with a paragraph for each sample, which names k contributions."""
    options = {} if k is None else {"k": k}
    words = [explanation.in_words(i, level=level, **options) for i in range(len(explanation))]
    columns = {"sample": np.arange(len(words)), "words": words}
    return import_optional("pandas", "cli").DataFrame(columns, index=explanation.index)
