"""Write volume 1 of the standard as one page of HTML, and with a second name as PDF.

    python docs/generate/volume_1.py OUT.html [OUT.pdf]

Every rule has an anchor and its figure, and every ID of a rule of the volume is a link to it. The PDF is printed by
Chromium.
"""

from __future__ import annotations

import html
import re
import sys
import xml.etree.ElementTree as ET
from base64 import b64encode
from pathlib import Path

from markdown_it import MarkdownIt

from fp4ref import rules
from fp4ref.diagrams import catalogue
from fp4ref.spec import SPEC_VERSION
from fp4ref.spec_root import spec_root

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "site"))
from breaks import cells
from chapter_figures import sections
from printed import printed

SVG = "{http://www.w3.org/2000/svg}"
TITLE = f"The fp4ref standard, volume 1: bytes. Version {SPEC_VERSION}"
STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
body { color: #111; background: #fff }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1em 0; font-size: 0.9em }
th, td { border: 1px solid #bbb; padding: 0.2em 0.6em; text-align: left; vertical-align: top }
code, pre { font: 0.9em ui-monospace, monospace; background: #f3f3f3 }
pre { padding: 0.8em; overflow-x: auto }
blockquote { margin-left: 0; padding-left: 1em; border-left: 3px solid #bbb; color: #444 }
figure { margin: 1.5em 0 } figure img { width: 100%; max-width: 56rem } figcaption { color: #444; font-size: 0.9em }
h1 { page-break-before: always } nav h1, header h1 { page-break-before: auto }
h3, h4 { margin-bottom: 0.3em } a { color: #0645ad } a.rule { white-space: nowrap }
@media screen and (prefers-color-scheme: dark) {
  body { color: #ececec; background: #16181a } code, pre { background: #26292c } a { color: #6cc0ee }
  th, td { border-color: #3c4043 } blockquote, figcaption { color: #b4b4b4; border-color: #3c4043 }
}
.whole { white-space: nowrap }
@media not screen, (min-width: 46.01em) { wbr.phone { display: none } }
@media screen and (min-width: 46.01em) { table:not(:has(th:nth-child(7))) .short { white-space: nowrap } }
@media screen and (max-width: 46em) { figure { overflow-x: auto } figure img { width: 44rem; max-width: none } }
@media print { body { font-size: 10px; max-width: none } table { display: table; font-size: 0.85em } }
@media print { pre { white-space: pre-wrap; break-inside: avoid } td { overflow-wrap: anywhere } }
@media print { td:first-child, table:has(th:nth-child(8)) td { overflow-wrap: break-word } }
@media print { table:has(th:nth-child(11)) { font-size: 0.75em } table:has(th:nth-child(11)) * { padding: 0.2em } }
@media print { table:not(:has(tr:nth-child(10))) { break-inside: avoid } }
@media print { h1, h2, h3, h4, p:has(+ table), p:has(+ pre) { break-after: avoid } tr, figure { break-inside: avoid } }
@media print { figure img { display: block; width: auto; max-width: 100%; max-height: 235mm } }
@page { margin: 16mm; @bottom-center { content: counter(page); font: 9px Helvetica, Arial, sans-serif } }
"""
REACHED = (
    "for (const one of document.querySelectorAll('pre, table, figure')) "
    "if (one.scrollWidth > one.clientWidth) one.tabIndex = 0"
)
LEVEL = re.compile(r"(</?h)(\d)(.*?>)")
HEADING = re.compile(r"<(?P<level>h\d)>(?P<id>[A-Z][A-Z0-9]*-\d+) · (?P<title>.*?)</h\d>")
ID = re.compile(r"\b([A-Z][A-Z0-9]*-\d+)\b")
PLACED = re.compile(r"(?<=<td>)(?:row|column) \d+, \d+(?=</td>)")  # the place of a block, which stays in one line
APART = re.compile(r"(<[^>]*>)")


def main(target: Path, pdf: Path | None = None) -> None:
    """Write the page, and print it."""
    target.write_text(page(), "utf-8")
    if pdf is not None:
        printed(target, pdf)


def page() -> str:
    """Return the whole page."""
    chapters = [path for path in rules.chapters(spec_root()) if path.parent == spec_root()]
    known = {rule.id for rule in rules.defined().values() if rule.chapter in {path.stem for path in chapters}}
    bodies = [chapter(path, known) for path in chapters]
    names = [path.read_text("utf-8").splitlines()[0].removeprefix("# ") for path in chapters]
    items = "".join(
        f'<li><a href="#{path.stem}">{html.escape(name)}</a></li>' for path, name in zip(chapters, names, strict=True)
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{TITLE}</title>'
    cite = "Cite as: the fp4ref authors, <cite>The fp4ref standard, volume 1</cite>, version " + SPEC_VERSION
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}<style>{STYLE}</style></head>\n<body>\n'
        f"<header><h1>{TITLE}</h1><p>{cite}, with the IDs of rules.</p></header>\n<nav><ol>{items}</ol></nav>\n<main>\n"
        + "\n".join(bodies)
        + f"\n</main>\n<script>{REACHED}</script>\n</body>\n</html>\n"
    )


def chapter(path: Path, known: set[str]) -> str:
    """Return one chapter as a section, with an anchor at each rule and links to rules of the volume."""
    text = re.sub(r"(?m)^<!-- .*? -->\n", "", "".join(sections(path, figure)))
    body = MarkdownIt("commonmark").enable("table").render(text)
    pieces = APART.split(body)
    inside = ""
    for i, piece in enumerate(pieces):
        if piece.startswith("<"):
            inside = piece
        elif not inside.startswith(("<h", "<code")):
            pieces[i] = ID.sub(lambda m: f'<a class="rule" href="#{m[1]}">{m[1]}</a>' if m[1] in known else m[0], piece)
    body = HEADING.sub(r'<\g<level> id="\g<id>">\g<id> · \g<title></\g<level>>', in_steps("".join(pieces)))
    body = cells(PLACED.sub(lambda cell: cell[0].replace(" ", "\u00a0"), body))
    return f'<section id="{path.stem}">\n{body}</section>'


def figure(name: str) -> str:
    """Return a figure as HTML with the picture inside of it, described by its own title and text, and its point."""
    svg = catalogue.drawn_as(name)
    root = ET.fromstring(svg)
    title, text = (root.findtext(SVG + tag, "") for tag in ("title", "desc"))
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    said = html.escape(f"{title.rstrip('.')}. {text}").replace("\n", " ")
    caption = f"<figcaption>{html.escape(catalogue.point(name))}</figcaption>"
    return f'<figure><img src="{source}" alt="{said}">\n{caption}</figure>'


def in_steps(body: str) -> str:
    """Return a chapter whose headings go down by one level at a time, as screen readers expect: h1, h2, h3."""
    above: list[int] = []

    def stepped(tag: re.Match[str]) -> str:
        if tag[1] == "<h":
            while above and above[-1] >= int(tag[2]):
                above.pop()
            above.append(int(tag[2]))
        return f"{tag[1]}{len(above)}{tag[3]}"

    return LEVEL.sub(stepped, body)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
