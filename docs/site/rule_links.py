"""Every rule ID in a page's text becomes a link to the rule."""

from __future__ import annotations

import re
from typing import Any

# Code, headings, anchors and links: a rule's ID in them stays as it is.
APART = (
    r"^(?:```|~~~)[^\n]*\n.*?^(?:```|~~~)$",
    r"^#.*?$",
    r"^\([\w-]+\)=$",
    r"`[^`\n]+`",
    r"\[[^]\n]*\]\([^)\n]*\)",
)
PARTS = re.compile(f"({'|'.join(APART)})", re.MULTILINE | re.DOTALL)
RULE = re.compile(r"\b([A-Z][A-Z0-9]*-\d+)\b(?!\])")


def link(app: Any, name: str, source: list[str]) -> None:
    """Link the rule IDs of one page, outside code, headings and links."""
    known = app.env.fp4ref_rules
    pieces = PARTS.split(source[0])
    for i in range(0, len(pieces), 2):
        pieces[i] = RULE.sub(lambda match: f"[{match[1]}](#{match[1]})" if match[1] in known else match[0], pieces[i])
    source[0] = "".join(pieces)


def find(app: Any, env: Any, names: list[str]) -> None:
    """Find the rules that the chapters define."""
    chapters = (app.srcdir / "standard").rglob("*.md")
    texts = [path.read_text("utf-8") for path in chapters]
    env.fp4ref_rules = {rule for text in texts for rule in re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)}


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.connect("env-before-read-docs", find)
    app.connect("source-read", link)
    return {"parallel_read_safe": True}
