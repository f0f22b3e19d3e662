"""Reports of explanations, each in one HTML file that needs no network (extra `[report]`)."""

from .page import Section, write_report

__all__ = ["Section", "write_report"]
