"""Configure Sphinx.

MyST reads the Markdown pages and autodoc the docstrings. sphinx-gallery runs the scripts of the
gallery.
"""

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
# Links such as page.md#section lead to headings of up to three levels.
myst_heading_anchors = 3
autodoc_typehints = "none"
# Attributes are listed in the description of their class, where autodoc does not repeat them.
napoleon_use_ivar = True
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
