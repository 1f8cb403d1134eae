"""The side bar of pages outside the tree, as the pages of rules are, is made once for each of their folders.

No entry is such a page's own, so the bar differs from folder to folder alone, by the addresses of its links. To make it
for each of several hundred pages took two thirds of the time in which Sphinx writes the site.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any


def bar(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Have a page outside the tree take the side bar that another page of its folder got."""
    if "toctree" not in context or name in app.env.fp4ref_tree:
        return
    made, kept = context["toctree"], app.env.fp4ref_bars

    def toctree(**settings: Any) -> str:
        key = PurePosixPath(name).parent, *sorted(settings.items())
        if key not in kept:
            kept[key] = made(**settings)
        return str(kept[key])

    context["toctree"] = toctree


def find(app: Any, env: Any) -> None:
    """Find the pages in the tree, when all have been read."""
    env.fp4ref_tree = {app.config.root_doc}.union(*env.toctree_includes.values())
    env.fp4ref_bars = {}


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.connect("env-check-consistency", find)
    app.connect("html-page-context", bar, priority=100)  # before the theme asks for the tree
    return {"parallel_read_safe": True}
