"""Text breaks where a reader would break it: names in tables do, numbers, dates and options do not.

A table of many columns with sentences in them is marked as `stacked`, and each of its cells with its column's name: on
a phone its rows stand below each other, with one cell a line.

A block of plain text is marked as `columns` if words are aligned, and as `long` if such a line is longer than a page.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+(?=<)")
PLACE = re.compile(
    r"(?<=\w[._])(?=[A-Za-z]\w\w)|(?<=[,:@/)*|=])(?=[A-Za-z])|(?<=\w-)(?=[A-Za-z])|(?<=\w\()(?=[A-Za-z]\w)|(?<=@)(?=\d)"
)
LIST = re.compile(r"(?<=,)(?=\d)(?!\d{3}\b)")  # in a long list of numbers, such as a layout's table; not of thousands
WHOLE = re.compile(
    r"\b\d{4}-\d\d-\d\d\b|-?\b\d[\d.]*e[+-]\d+\b|-(?:NaN|Inf)\b|\b\d+\.\d+, draft\b"
)  # dates, numbers, and a version
LONG = 24
TABLE = re.compile(r'<table class="docutils.*?</table>', re.DOTALL)
ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
MANY, SENTENCE = 5, 72  # columns, and characters of a cell that is a sentence
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


def read(cell: str) -> str:
    """Return the text of HTML, without its elements."""
    return unescape(re.sub("<[^>]*>", "", cell)).strip()


def stacked(table: str) -> str:
    """Return a table, marked as stacked if it has many columns, and sentences in a quarter of its rows."""
    names, *rows = [[read(cell) for cell in CELL.findall(row)] for row in ROW.findall(table)]
    long = sum(any(len(cell) > SENTENCE for cell in row) for row in rows)
    if len(names) < MANY or 4 * long < len(rows):
        return table

    def row(found: re.Match[str]) -> str:
        labels = iter(names)
        told = re.sub("<td", lambda _: f'<td role="cell" data-label="{escape(next(labels))}"', found[0])
        return re.sub("<th", '<th role="columnheader"', told).replace("<tr", '<tr role="row"', 1)

    return ROW.sub(row, table).replace('<table class="docutils', '<table role="table" class="stacked docutils', 1)


def marked(block: re.Match[str]) -> str:
    """Return the beginning of a block of plain text, with the classes that its lines need."""
    lines = unescape(re.sub("<[^>]*>", "", block[1])).split("\n")
    aligned = [len(line) for line in lines if ALIGNED.search(line)]
    found = [("columns", bool(aligned)), ("long", max(aligned, default=0) > PAGE)]
    return " ".join([block[0], *(name for name, true in found if true)])


def page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the body of one page."""
    if "body" in context:
        tables = TABLE.sub(lambda table: stacked(table[0]), context["body"])
        body = OPTION.sub('<span class="pre whole">', cells(tables))
        context["body"] = PLAIN.sub(marked, body)


def setup(app: Any) -> dict[str, Any]:
    """Connect the hook for Sphinx."""
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True}
