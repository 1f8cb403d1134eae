"""The explorer as one HTML text: scripts, style and tables in one file that asks no network for anything."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from html import escape
from importlib import resources

import numpy as np

from fp4ref.diagrams.palette import COLOURS
from fp4ref.explorer.tables import Tables, tables
from fp4ref.reciprocal import TABLE

SCRIPTS = ("inflate", "operations", "numerics", "layouts", "model", "page")
LIBRARY = SCRIPTS[:-1]  # all that computes
NAVIGATION = '<nav aria-label="Documentation"><a href="{}index.html">All pages of fp4ref</a></nav>\n'


def source(name: str) -> str:
    """Return a part of the page."""
    return (resources.files("fp4ref.explorer") / name).read_text(encoding="utf-8")


def html(site: str = "") -> str:
    """Return the whole page, the same for the same version of the package and the same registered values.

    site: where the pages of the documentation are, relative to this one, or "" for a page that stands alone.
    """
    found = tables()
    text = source("page.html").replace("/*STYLE*/", _colours() + source("style.css"))
    text = text.replace("<!--SITE-->\n", NAVIGATION.format(escape(site)) if site else "")
    for name, script in scripts(found).items():
        text = text.replace(f"/*{name.upper()}*/", script)
    return text.replace("/*TABLES*/", _safe(json.dumps(found.data | {"site": site}, separators=(",", ":"))))


def scripts(found: Tables) -> dict[str, str]:
    """Return the scripts by name, with the functions of the arithmetics and the table of the approximate reciprocal."""
    texts = {name: source(f"{name}.js") for name in SCRIPTS}
    texts["operations"] = texts["operations"].replace("/*FUNCTIONS*/", ",\n".join(found.functions))
    texts["inflate"] += f'globalThis.RECIPROCAL = "{_reciprocals()}";\n'
    return texts


@cache
def _reciprocals() -> str:
    """Return the distances of the approximate reciprocal, deflated, in base64. Rules: APX-1.

    Level 9 takes three times as long for two hundredths of the bytes.
    """
    with np.load(TABLE) as archive:
        return base64.b64encode(zlib.compress(archive["d"].tobytes(), 8)).decode()


def _colours() -> str:
    """Return the colours as custom properties, for light and dark pages."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _safe(data: str) -> str:
    """JSON that cannot end the script element that holds it."""
    return data.replace("<", "\\u003c")
