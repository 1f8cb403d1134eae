"""The canvas of all figures: text, boxes, arrows, and colours that survive dark pages and colour blindness.

Nothing is told by colour alone: a fill always comes with a label or a hatch. Colours are classes, so that a dark page
changes them; a figure carries a title and a description for screen readers. The output is a function of the calls.
"""

from __future__ import annotations

from typing import Any

import drawsvg as draw

from fp4ref.diagrams.palette import PREFIX, css
from fp4ref.diagrams.text_width import text_width, wrap

WIDTH = 800
MARGIN = 16


class Canvas:
    """A figure under construction. Coordinates are pixels at page width; its height grows with what is drawn."""

    def __init__(self, title: str, description: str, theme: str = "auto", width: float = WIDTH) -> None:
        self.title, self.description, self.theme, self.width = title, description, theme, width
        self.bottom = 0.0
        self._elements: list[draw.DrawingElement] = []
        self._marks: list[draw.DrawingElement] = []  # drawn last

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        anchor: str = "start",
        kind: str = "ink",
        mono: bool = False,
        bold: bool = False,
    ) -> float:
        """Draw a line of text with its baseline at y, and return its width."""
        style: dict[str, Any] = {"text_anchor": anchor} if anchor != "start" else {}
        if bold:
            style["font_weight"] = "bold"
        self._add(draw.Text(text, size, _n(x), _n(y), class_=_classes(kind, "mono" if mono else "sans"), **style))
        self._reach(y + 0.3 * size)
        return text_width(text, size, mono, bold)

    def lines(self, x: float, y: float, lines: list[str], *, size: float = 12, **how: Any) -> float:
        """Lines of text below each other; returns the baseline after the last."""
        for line in lines:
            self.text(x, y, line, size=size, **how)
            y += 1.4 * size
        return y

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "paper",
        *,
        title: str = "",
        stroke: str = "edge",
        radius: float = 0,
    ) -> None:
        """Draw a rectangle. kind: a fill, or "pad" for the hatch of padding; title: the text under a pointer."""
        round_corners = {"rx": radius} if radius else {}
        classes = _classes(f"fill-{kind}", f"line-{stroke}")
        shape = draw.Rectangle(_n(x), _n(y), _n(width), _n(height), class_=classes, **round_corners)
        if title:
            shape.append_title(title)
        self._add(shape)
        self._reach(y + height)

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str,
        kind: str = "paper",
        *,
        size: float = 10,
        title: str = "",
        mono: bool = True,
        ink: str = "ink",
    ) -> None:
        """Draw a box with a label in its middle."""
        self.box(x, y, width, height, kind, title=title)
        if label:
            self.text(
                x + width / 2, y + height / 2 + 0.35 * size, label, size=size, anchor="middle", mono=mono, kind=ink
            )

    def mark(self, x: float, y: float, width: float, height: float) -> None:
        """Draw the frame around the highlighted part, over all that is drawn before and after."""
        before = len(self._elements)
        self.box(x, y, width, height, "none", stroke="mark")
        self._marks += self._elements[before:]
        del self._elements[before:]

    def line(self, points: list[tuple[float, float]], *, stroke: str = "edge", head: bool = False) -> None:
        """Draw a line through points; head: with an arrow's head at its end."""
        flat = [_n(value) for point in points for value in point]
        self._add(draw.Lines(*flat, class_=_classes("fill-none", f"line-{stroke}")))
        if head:
            self._head(points[-2], points[-1], stroke)
        self._reach(max(y for _, y in points))

    def heading(self, text: str) -> float:
        """Return the figure's own title, visible; returns the y below it."""
        room = self.width - 2 * MARGIN
        size = next(
            size for size in (17, 16, 15, 14, 13, 12) if text_width(text, size, bold=True) <= room or size == 12
        )
        below = self.lines(MARGIN, MARGIN + 16, wrap(text, room, size, bold=True), size=size, bold=True)
        return below + 22 - 1.4 * size

    def svg(self) -> str:
        """Return the figure as text: valid XML, the same for the same calls."""
        height = self.bottom + MARGIN
        page = draw.Drawing(
            _n(self.width), _n(height), id_prefix=PREFIX, role="img", aria_labelledby="fp-title fp-desc"
        )
        page.append(draw.Raw(f"<title id={_quoted('fp-title')}>{_escaped(self.title)}</title>"))
        page.append(draw.Raw(f"<desc id={_quoted('fp-desc')}>{_escaped(self.description)}</desc>"))
        page.append(draw.Raw(f"<style>{css(self.theme)}</style>"))
        page.append(draw.Raw(HATCH))
        page.append(draw.Rectangle(0, 0, _n(self.width), _n(height), class_=_classes("fill-paper", "line-none")))
        for element in (*self._elements, *self._marks):
            page.append(element)
        text: str = page.as_svg()
        return text + "\n"

    def _add(self, element: draw.DrawingElement) -> None:
        self._elements.append(element)

    def _reach(self, y: float) -> None:
        self.bottom = max(self.bottom, y)

    def _head(self, start: tuple[float, float], end: tuple[float, float], stroke: str) -> None:
        """Draw a triangle at the end of a line."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = max((dx * dx + dy * dy) ** 0.5, 1e-9)
        ux, uy = dx / length, dy / length
        base = end[0] - 8 * ux, end[1] - 8 * uy
        corners = (*end, base[0] - 4 * uy, base[1] + 4 * ux, base[0] + 4 * uy, base[1] - 4 * ux)
        self._add(draw.Lines(*map(_n, corners), close=True, class_=_classes(f"fill-{stroke}", f"line-{stroke}")))


HATCH = (
    '<defs><pattern id="fp-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" class="{PREFIX}-fill-paper"/>'
    f'<line x1="0" y1="0" x2="0" y2="6" class="{PREFIX}-line-hatch"/></pattern></defs>'
)


def _classes(*names: str) -> str:
    return " ".join(f"{PREFIX}-{name}" for name in names)


def _n(value: float) -> float | int:
    """Return a coordinate with at most two decimals, an integer where it is one."""
    rounded = round(float(value), 2)
    return int(rounded) if rounded == int(rounded) else rounded


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    return f'"{text}"'
