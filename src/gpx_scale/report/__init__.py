"""One HTML file about explanations that needs no network."""

from .page import Section, write_report

__all__ = ["Section", "write_report"]
