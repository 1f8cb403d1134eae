"""A figure as pixels."""

from __future__ import annotations

from fp4ref.errors import BackendError

ZOOM = 2  # pixels per unit, for dense screens


def png(svg: str, zoom: float = ZOOM) -> bytes:
    """Render a figure made for one theme (an "auto" one comes out light); text needs a font on the machine."""
    try:
        import resvg_py
    except ImportError:
        raise BackendError("diagram", "a PNG without a renderer", "pip install 'fp4ref[diagrams]'") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom))
