"""Names in tables may break where a reader would break them, so that a table is as wide as its page."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+(?=<)")
PLACE = re.compile(r"(?<=[._,:@/()*|^=-])(?=[A-Za-z])|(?<=@)(?=\d)")
LIST = re.compile(r"(?<=,)(?=\d)")  # in a long list of numbers, such as a layout's table
LONG = 24


def breakable(text: str) -> str:
    """Return the text of a cell with `<wbr>` where it may break; numbers stay whole."""
    text = PLACE.sub("<wbr>", text)
    return LIST.sub("<wbr>", text) if len(text) > LONG else text


def cells(body: str) -> str:
    """Return a page's HTML with breakable text in the cells of its tables."""
    return CELL.sub(lambda cell: TEXT.sub(lambda text: breakable(text[0]), cell[0]), body)


def page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the body of one page."""
    if "body" in context:
        context["body"] = cells(context["body"])


def setup(app: Any) -> dict[str, Any]:
    """Connect the hook for Sphinx."""
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True}
