"""The directive `drawn`: a figure of `fp4ref diagram` in the page's theme, described by its own title and text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from fp4ref.diagrams import catalogue

SVG = "{http://www.w3.org/2000/svg}"


class Drawn(SphinxDirective):
    """A figure by the name of its file; the content, if any, is its caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing in both themes, of which a page shows one."""
        name = self.arguments[0]
        root = ET.parse(Path(self.env.srcdir) / f"figures/light/{name}.svg").getroot()
        title, text = (root.findtext(SVG + tag, "") for tag in ("title", "desc"))
        if not title or not text:
            raise self.error(f"figure {name} does not describe itself")
        figure = nodes.figure()
        for theme in ("light", "dark"):
            image = nodes.image(uri=f"/figures/{theme}/{name}.svg", alt=f"{title.rstrip('.')}. {text}")
            up = "../" * self.env.docname.count("/")
            link = nodes.reference("", "", refuri=f"{up}figures/{theme}/{name}.svg", classes=[f"only-{theme}"])
            link += image
            figure += link
        caption = nodes.caption("", "")
        if self.content:
            inline, _ = self.state.inline_text(" ".join(self.content), self.lineno)
            caption += [*inline, nodes.Text(" ")]
        else:
            caption += nodes.Text(f"{catalogue.point(name)} ")
        if catalogue.drawn(name):
            caption += nodes.literal("", catalogue.command(name))
        figure += caption
        return [figure]


class Terminal(SphinxDirective):
    """A drawn terminal, or another picture in the pages' folder, described by its own title."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture, linked to itself in full size."""
        name = self.arguments[0]
        root = ET.parse(Path(self.env.srcdir) / name).getroot()
        said = root.findtext(f"{SVG}desc", "") or root.findtext(f"{SVG}title", "")
        if not said:
            raise self.error(f"{name} does not describe itself")
        link = nodes.reference("", "", refuri=f"{'../' * self.env.docname.count('/')}{name}")
        link += nodes.image(uri=f"/{name}", alt=said)
        return [nodes.figure("", link)]


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.add_directive("drawn", Drawn)
    app.add_directive("terminal", Terminal)
    return {"parallel_read_safe": True}
