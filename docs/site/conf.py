"""Sphinx configuration."""

from importlib.metadata import version

project = "fp4ref"
author = "the fp4ref authors"
release = version("fp4ref")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "fp4ref"
html_extra_path = ["explorer.html"]
html_static_path: list[str] = []
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", ".*")]  # types of NumPy and of annotations are not linked
