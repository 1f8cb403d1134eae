"""A figure as pixels."""

from __future__ import annotations

from functools import cache

from fp4ref.diagrams.palette import SANS
from fp4ref.errors import BackendError

ZOOM = 2  # pixels per unit, for dense screens
FONTS = "a font on this machine, like Liberation Sans or DejaVu Sans"


def png(svg: str, zoom: float = ZOOM) -> bytes:
    """Render a figure; one for both themes comes out light. The fonts are those of the machine."""
    try:
        import resvg_py
    except ImportError:
        raise BackendError("diagram", "a PNG without a renderer", "pip install 'fp4ref[diagrams]'") from None
    if not _draws_text():
        raise BackendError("diagram", "a PNG without any font", FONTS)
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom))


@cache
def _draws_text() -> bool:
    """Return True if the renderer finds a font; it leaves text out where it finds none."""
    import resvg_py

    images = [
        resvg_py.svg_to_bytes(
            svg_string='<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
            f'<text y="15" font-family="{SANS}">{text}</text></svg>'
        )
        for text in ("", "W")
    ]
    return bytes(images[0]) != bytes(images[1])
