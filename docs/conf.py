"""Sphinx: Markdown pages by MyST, the interface from the docstrings, the gallery from the scripts in gallery/."""

project = "gpx_scale"
author = "the gpx_scale developers"
project_copyright = author
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery"]
html_extra_path = ["text_example.html"]
html_theme = "furo"
myst_heading_anchors = 3  # links to sections
autodoc_typehints = "none"
autodoc_preserve_defaults = True
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "within_subsection_order": "FileNameSortKey",
    "image_srcset": ["2x"],
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "download_all_examples": False,
}
