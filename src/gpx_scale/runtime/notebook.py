"""Tables in HTML, as notebooks show objects. All texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Texts are to the left and lines can be broken, unlike in the tables of most notebooks.
CELL_STYLE = "text-align: left; vertical-align: top; white-space: normal"


def html_table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = ""
) -> str:
    """Return a table with a caption, the names of columns (or none), and a note below it."""
    style = f' style="{CELL_STYLE}"'
    head = "".join(f"<th{style}>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td{style}>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    parts = [
        f"<table><caption{style}>{escape(caption)}</caption>",
        f"<thead><tr>{head}</tr></thead>" if head else "",
        f"<tbody>{body}</tbody></table>",
        f"<p>{escape(note)}</p>" if note else "",
    ]
    return "".join(parts)
