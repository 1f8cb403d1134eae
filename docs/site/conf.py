"""Sphinx configuration."""

import gc
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
gc.set_threshold(500_000, 20, 20)  # to look for garbage among the pages' trees, which stay, took a fifth of the time

project = "fp4ref"
author = "the fp4ref authors"
version = release = metadata.version("fp4ref")
extensions = ["myst_parser", "breaks", "drawn", "ran", "rule_links", "side_bar"]
highlight_language = "text"  # of a block that names none
html_theme = "furo"
html_title = f"fp4ref {version}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_search_scorer = str(Path(__file__).parent / "_static/scorer.js")
html_css_files = ["site.css"]
html_js_files = ["copy.js", "versions.js"]
html_extra_path = ["../explorer"]
html_copy_source = False
html_use_index = False
html_show_copyright = False
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # the standard's rules are headings of level 4, wherever they stand
