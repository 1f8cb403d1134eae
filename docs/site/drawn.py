"""The directive `drawn`: a figure of `fp4ref diagram` in the page's theme, described by its own title and text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

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
            image = nodes.image(
                uri=f"/figures/{theme}/{name}.svg", alt=f"{title.rstrip('.')}. {text}", classes=[f"only-{theme}"]
            )
            figure += image
        caption = nodes.caption("", "")
        if self.content:
            inline, _ = self.state.inline_text(" ".join(self.content), self.lineno)
            caption += [*inline, nodes.Text(" ")]
        caption += nodes.Text(f"Drawn by fp4ref diagram; file {name}.svg.")
        figure += caption
        return [figure]


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
