"""Sphinx: Markdown pages by MyST, the interface from the docstrings."""

project = "gpx_scale"
author = "the gpx_scale developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_extra_path = ["text_example.html"]
html_theme = "furo"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
