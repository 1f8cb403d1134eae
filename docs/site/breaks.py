"""Text breaks where a reader would break it: names in tables do, numbers, dates and options do not.

A table whose columns a phone has no room for, with long text in them, is marked as `stacked`, and each of its cells
with its column's name: on a phone its rows stand below each other, with one cell a line.

A block of plain text is marked as `columns` if words are aligned, and as `long` if such a line is longer than a page;
its other lines are marked as `said`, so that a phone can break them. No option and no rule breaks behind its hyphens.
On a phone alone, long names in sentences and in code break at their parts.
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
    r"\b\d{4}-\d\d(?:-\d\d)?\b|-?\b\d[\d.]*e[+-]\d+\b|(?<!\w)-[A-Z]\w*\b|\b\d+\.\d+, draft\b"
    r"|\b\d[\d.]* %|\b\d{1,3} x \d{1,3}\b|\bnan [0-9A-F]+ [0-9A-F]+\b|\b\d+–\d+\b"
)  # dates, numbers, negative ones with a name, a version, shares, shapes of blocks, the codes of NaN, and ranges
LONG = 24
PARTS = re.compile(r"[A-Za-z]\w*[_.]\w|[a-z]\w*-\w|__\w")
SHORT = 14  # characters of a name that a page has room for in one line
NAME = re.compile(r'(?<=<span class="pre">)[^<]{31,}(?=</span>)')  # in a sentence; a phone has no longer lines
CODE = re.compile(r'<div class="highlight-(?:python|default|pycon) .*?</pre>', re.DOTALL)
NAME_IN_CODE = re.compile(r"(?<=>)[^<\s]{20,}(?=</span>)")
UNCOLOURED = re.compile(r'<div class="highlight-text notranslate">.*?</pre>', re.DOTALL)  # and without columns
WORD = re.compile(r"[^\s<>]{25,}")
OPENING = re.compile(r'<span class="[op]">[(.\[]+</span>(?=<span)')  # and the dot before an attribute
TABLE = re.compile(r'<table class="docutils.*?</table>', re.DOTALL)
ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
WORDS = re.compile(r"[A-Za-z]{3}")
MANY, LONG_CELL = 4, 32  # columns, and characters of a cell that a phone breaks into many lines
OPTION = re.compile(r'<span class="pre">(?=(?:--?\w(?:[\w-]|<wbr>)*|[A-Z][A-Z\d]*-\d+)</span>)')  # or a rule
PLAIN = re.compile(
    r'(<div class="highlight-text)( notranslate"><div class="highlight"><pre>)(.*?)(?=</pre>)', re.DOTALL
)
ALIGNED = re.compile(r"\S {2,}[^\s#]")  # a comment behind a line of code is no column
OPTION_OF_COMMAND = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
PAGE = 96  # characters of a line of code on a page
COLUMN = 12  # blanks before a line that goes on in a column


def breakable(text: str) -> str:
    """Return the text of a cell with `<wbr>` where it may break; numbers stay whole, and on a page short names do."""
    text = re.sub(r"[^\s&;]+", lambda word: in_parts(word[0]), text)
    text = LIST.sub("<wbr>", text) if len(text) > LONG else text
    return WHOLE.sub(r'<span class="whole">\g<0></span>', text)


def in_parts(word: str) -> str:
    """Return a word with `<wbr>` at its parts; a short name breaks on a phone alone."""
    if word[0] == "-" or len(word) > SHORT or not PARTS.search(word):
        return PLACE.sub("<wbr>", word)
    return '<span class="short">' + PLACE.sub('<wbr class="phone">', word) + "</span>"


def cells(body: str) -> str:
    """Return a page's HTML with breakable text in the cells of its tables."""
    return CELL.sub(lambda cell: TEXT.sub(lambda text: breakable(text[0]), cell[0]), body)


def narrow(body: str) -> str:
    """Return a page's HTML where a phone may break long names, in sentences and in code, at their parts."""

    def parts(name: re.Match[str]) -> str:
        return PLACE.sub('<wbr class="phone">', name[0])

    def code(block: re.Match[str]) -> str:
        return OPENING.sub(r'\g<0><wbr class="phone">', NAME_IN_CODE.sub(parts, block[0]))

    body = UNCOLOURED.sub(lambda block: WORD.sub(parts, block[0]), NAME.sub(parts, body))
    return CODE.sub(code, body)


def read(cell: str) -> str:
    """Return the text of HTML, without its elements."""
    return unescape(re.sub("<[^>]*>", "", cell)).strip()


def stacked(table: str) -> str:
    """Return a table, marked as stacked if half of its rows have long text, and it has many columns or two of code.

    A row of many short texts is as long as one of few long texts; numbers are not text.
    """
    head, *rows = [CELL.findall(row) for row in ROW.findall(table)]
    names, body = [read(cell) for cell in head], [row[1:] for row in rows]
    wide = len(names) >= MANY or all(any("<code" in cell for row in body for cell in row[i : i + 1]) for i in (0, 1))
    texts = [[read(cell) for cell in row] for row in body]
    words = [sum(len(text) for text in row if WORDS.search(text)) for row in texts]
    long = sum(
        any(len(text) > LONG_CELL for text in row) or n > 2 * LONG_CELL for row, n in zip(texts, words, strict=True)
    )
    if not wide or not long or 2 * long < len(rows):
        return table

    def row(found: re.Match[str]) -> str:
        labels = iter(names)
        told = re.sub("<td", lambda _: f'<td role="cell" data-label="{escape(next(labels))}"', found[0])
        return re.sub("<th", '<th role="columnheader"', told).replace("<tr", '<tr role="row"', 1)

    return ROW.sub(row, table).replace('<table class="docutils', '<table role="table" class="stacked docutils', 1)


def marked(block: re.Match[str]) -> str:
    """Return a block of plain text, with the classes that it and its lines need.

    A line that goes on in a column, far from the margin, belongs to the columns.
    """
    lines = [OPTION_OF_COMMAND.sub(r'<span class="whole">\g<0></span>', line) for line in block[3].split("\n")]
    texts = [unescape(re.sub("<[^>]*>", "", line)) for line in lines]
    aligned = [len(text) if ALIGNED.search(text) else 0 for text in texts]
    found = [("columns", any(aligned)), ("long", max(aligned) > PAGE)]
    for i, text in enumerate(texts):
        indent = len(text) - len(text.lstrip())
        if any(aligned) and text and not aligned[i] and indent < COLUMN:
            lines[i] = f'<span class="said" style="--indent: {indent + 2}ch">{lines[i]}</span>'
    return " ".join([block[1], *(name for name, true in found if true)]) + block[2] + "\n".join(lines)


def page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the body of one page."""
    if "body" in context:
        tables = TABLE.sub(lambda table: stacked(table[0]), context["body"])
        body = OPTION.sub('<span class="pre whole">', cells(tables))
        context["body"] = narrow(PLAIN.sub(marked, body))


def setup(app: Any) -> dict[str, Any]:
    """Connect the hook for Sphinx."""
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True}
