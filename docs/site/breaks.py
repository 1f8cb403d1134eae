"""Text breaks where a reader would break it: long names in tables do, numbers, dates and options do not.

A name in a table that is short breaks on a phone alone, or beside many columns. A short cell with numbers stays whole.
In the side bars long names break at their parts, too.

A table whose columns a phone has no room for, with long text in them, is marked as `stacked`, and each of its cells
with its column's name: on a phone its rows stand below each other, with one cell a line. Tables of a page that have the
same columns look alike.

A block of plain text is marked as `columns` if words are aligned, and as `long` if such a line is longer than a page;
its other lines are marked as `said`, so that a phone can break them. No option and no rule breaks behind its hyphens.
On a phone alone, long names in headings, sentences and code break at their parts.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+(?=<)")
PLACE = re.compile(
    r"(?<=[^\W_][._])(?=[A-Za-z]\w\w)|(?<=[,:@)*|=])(?=[A-Za-z])"
    r"|(?<=/)(?<!\b[\da-f]/)(?<!\b[\da-f]{2}/)(?=[A-Za-z])"  # not in 7e/fe
    r"|(?<=\w-)(?=[A-Za-z])|(?<=\w\()(?=[A-Za-z]\w)|(?<=@)(?=\d)"
)
LIST = re.compile(r"(?<=,)(?=\d)(?!\d{3}\b)")  # in a long list of numbers, such as a layout's table; not of thousands
HYPHENS = re.compile(r"(?<![\w.-])[a-z]\w*(?:-\w+)+(?![\w.-])")  # the parts of a name
WHOLE = re.compile(
    r"\b\d{4}-\d\d(?:-\d\d)?\b|-?\b\d[\d.]*e[+-]\d+\b|(?<!\w)-[A-Z]\w*\b|\b\d+\.\d+, draft\b"
    r"|\b\d[\d.]* (?:%|(?:s|[mu]s|[KMG]i?B)\b|[*] 10\^\d+|/ \d[\d.]*\b)"
    r"|\b[\da-f]{2}(?:: [\da-f]+ [\da-f]+|/[\da-f]{2})\b|\b[\da-f]/[\da-f]\b"
    r"|\b\d{1,3} x \d{1,3}\b|\bnan [0-9A-F]+ [0-9A-F]+\b|\b\d+–\d+\b"
)  # dates, numbers, negative ones with a name, a version; percents, times, sizes, powers of ten, two shares, the bytes
# of a block; shapes of blocks, the codes of NaN, and ranges
LONG = 24
SHORT = 14  # characters of a name that a desktop has room for
DENSE = 9  # columns between which no room is left
FEW = 12  # characters of a cell, such as the codes of four elements
ONCE = re.compile(r"(<table.*?</table>)", re.DOTALL)
SET = re.compile(r"(<(pre|script|style|svg)\b.*?</\2>)", re.DOTALL)  # as it is
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


def breakable(text: str, dense: bool = False) -> str:
    """Return the text of a cell with `<wbr>` where it may break; numbers stay whole."""

    def parts(word: re.Match[str]) -> str:
        if dense or len(word[0]) > SHORT:
            return PLACE.sub("<wbr>", word[0])
        whole, many = HYPHENS.subn(r'<span class="whole">\g<0></span>', word[0])
        return whole if many else PLACE.sub('<wbr class="phone">', word[0])

    text = re.sub(r"\S+", parts, text)
    text = LIST.sub("<wbr>", text) if len(text) > LONG else text
    return WHOLE.sub(r'<span class="whole">\g<0></span>', text)


def cells(body: str) -> str:
    """Return a page's HTML with breakable text in the cells of its tables, and short ones with numbers whole."""

    def table(part: str) -> str:
        dense = len(re.findall("<th[ >]", part)) >= DENSE

        def cell(found: re.Match[str]) -> str:
            told, text = TEXT.sub(lambda text: breakable(text[0], dense), found[0]), read(found[0])
            whole = len(text) <= FEW and " " in text and re.search(r"\d", text)
            return re.sub('<td(?: class="([^"]*)")?', r'<td class="whole \1"', told, count=1) if whole else told

        return CELL.sub(cell, part)

    return "".join(map(table, ONCE.split(body)))


def sides(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the contents beside a page and the tree of pages, which are narrow on every device."""
    for key in ("toc", "furo_navigation_tree"):
        if context.get(key):
            context[key] = TEXT.sub(lambda text: breakable(text[0]), context[key])


def narrow(body: str) -> str:
    """Return a page's HTML where a phone may break long names, in sentences and in code, at their parts."""

    def parts(name: re.Match[str]) -> str:
        return PLACE.sub('<wbr class="phone">', name[0])

    def code(block: re.Match[str]) -> str:
        return OPENING.sub(r'\g<0><wbr class="phone">', NAME_IN_CODE.sub(parts, block[0]))

    pieces = SET.split(body)  # text, then an element that is set, and its name
    pieces[::3] = [TEXT.sub(lambda text: WORD.sub(parts, text[0]), piece) for piece in pieces[::3]]
    del pieces[2::3]
    body = UNCOLOURED.sub(lambda block: WORD.sub(parts, block[0]), "".join(pieces))
    return CODE.sub(code, body)


def read(cell: str) -> str:
    """Return the text of HTML, without its elements."""
    return unescape(re.sub("<[^>]*>", "", cell)).strip()


def heads(table: str) -> list[str]:
    """Return the names of a table's columns."""
    return [read(cell) for cell in CELL.findall(ROW.findall(table)[0])]


def needs_lines(table: str) -> bool:
    """Return True for a table with long text, or with nothing in a third of its cells, in many columns or two of code.

    Half of its rows have the long text, in one cell or in many; numbers are not text. Where a phone shows two columns,
    most rows of the other table look empty.
    """
    names = heads(table)
    body = [CELL.findall(row)[1:] for row in ROW.findall(table)[1:]]
    wide = len(names) >= MANY or all(any("<code" in cell for row in body for cell in row[i : i + 1]) for i in (0, 1))
    texts = [[read(cell) for cell in row] for row in body]
    words = [sum(len(text) for text in row if WORDS.search(text)) for row in texts]
    long = sum(
        max(map(len, row), default=0) > LONG_CELL or n > 2 * LONG_CELL for row, n in zip(texts, words, strict=True)
    )
    empty = sum(not read(cell) for row in body for cell in row)
    sparse = len(names) > MANY and 3 * empty > sum(map(len, body))
    return wide and (sparse or (long > 0 and 2 * long >= len(body)))


def stacked(table: str) -> str:
    """Return a table, marked as stacked."""
    names = heads(table)

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
        alike = [heads(table) for table in TABLE.findall(context["body"]) if needs_lines(table)]
        tables = TABLE.sub(lambda found: stacked(found[0]) if heads(found[0]) in alike else found[0], context["body"])
        body = OPTION.sub('<span class="pre whole">', cells(tables))
        context["body"] = narrow(PLAIN.sub(marked, body))


def setup(app: Any) -> dict[str, Any]:
    """Connect the hook for Sphinx."""
    app.connect("html-page-context", page)
    app.connect("html-page-context", sides, priority=900)  # the theme makes its tree before
    return {"parallel_read_safe": True}
