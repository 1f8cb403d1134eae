"""The explorer as one HTML text: scripts, style and tables in one file that asks no network for anything."""

from __future__ import annotations

import json
from importlib import resources

from fp4ref.diagrams.palette import COLOURS
from fp4ref.explorer.tables import tables

SCRIPTS = ("numerics", "layouts", "model", "page")


def source(name: str) -> str:
    """Return a part of the page."""
    return (resources.files("fp4ref.explorer") / name).read_text(encoding="utf-8")


def html(site: str = "") -> str:
    """Return the whole page, the same for the same version of the package.

    site: where the pages of rules are, relative to this one, or "" for a page that stands alone.
    """
    text = source("page.html").replace("/*STYLE*/", _colours() + source("style.css"))
    for name in SCRIPTS:
        text = text.replace(f"/*{name.upper()}*/", source(f"{name}.js"))
    return text.replace("/*TABLES*/", _safe(json.dumps(tables() | {"site": site}, separators=(",", ":"))))


def _colours() -> str:
    """Return the colours as custom properties, for light and dark pages."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _safe(data: str) -> str:
    """JSON that cannot end the script element that holds it."""
    return data.replace("<", "\\u003c")
