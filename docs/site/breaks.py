"""Text breaks where a reader would break it: names in tables do, numbers, dates and options do not.

A block of plain text is marked as `columns` if words are aligned, and as `long` if such a line is longer than a page.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+(?=<)")
PLACE = re.compile(
    r"(?<=\w[._])(?=[A-Za-z])|(?<=[,:@/)*|^=])(?=[A-Za-z])|(?<=\w-)(?=[A-Za-z])|(?<=\w\()(?=[A-Za-z])|(?<=@)(?=\d)"
)
LIST = re.compile(r"(?<=,)(?=\d)(?!\d{3}\b)")  # in a long list of numbers, such as a layout's table; not of thousands
WHOLE = re.compile(r"\b\d{4}-\d\d-\d\d\b|-?\b\d[\d.]*e[+-]\d+\b")  # dates, and numbers with an exponent
LONG = 24
OPTION = re.compile(r'<span class="pre">(?=--?\w(?:[\w-]|<wbr>)*</span>)')
PLAIN = re.compile(r'<div class="highlight-text(?= notranslate"><div class="highlight"><pre>(.*?)</pre>)', re.DOTALL)
ALIGNED = re.compile(r"\S {2,}\S")
PAGE = 96  # characters of a line of code on a page


def breakable(text: str) -> str:
    """Return the text of a cell with `<wbr>` where it may break; numbers stay whole."""
    text = PLACE.sub("<wbr>", text)
    text = LIST.sub("<wbr>", text) if len(text) > LONG else text
    return WHOLE.sub(r'<span class="whole">\g<0></span>', text)


def cells(body: str) -> str:
    """Return a page's HTML with breakable text in the cells of its tables."""
    return CELL.sub(lambda cell: TEXT.sub(lambda text: breakable(text[0]), cell[0]), body)


def marked(block: re.Match[str]) -> str:
    """Return the beginning of a block of plain text, with the classes that its lines need."""
    lines = unescape(re.sub("<[^>]*>", "", block[1])).split("\n")
    aligned = [len(line) for line in lines if ALIGNED.search(line)]
    found = [("columns", bool(aligned)), ("long", max(aligned, default=0) > PAGE)]
    return " ".join([block[0], *(name for name, true in found if true)])


def page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the body of one page."""
    if "body" in context:
        body = OPTION.sub('<span class="pre whole">', cells(context["body"]))
        context["body"] = PLAIN.sub(marked, body)


def setup(app: Any) -> dict[str, Any]:
    """Connect the hook for Sphinx."""
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True}
