"""The layouts that have a name."""

from __future__ import annotations

from fp4ref.errors import LayoutError, UnknownLayoutError
from fp4ref.layout.value import Layout
from fp4ref.names import Names

LINEAR = Layout("linear", "m(*) k(*): k0 m0", "LAY-1")
LINEAR_PADDED = Layout("linear_padded", "m(*) k(*): k0 m0; pad m 128 unspecified; pad k 4 unspecified", "LAY-2")
TILED_128X4 = Layout("tiled_128x4", "m(32,4,*) k(4,*): k0 m1 m0 k1 m2", "LAY-3")
TILED_8X4 = Layout("tiled_8x4", "m(8,*) k(4,*): k0 m0 k1 m1", "LAY-4")
LAYOUTS: Names[Layout] = Names("layout")
for _layout in (LINEAR, LINEAR_PADDED, TILED_128X4, TILED_8X4):
    LAYOUTS.register(_layout, "this standard")

swizzle_offset = TILED_128X4.offset
swizzle_index = TILED_128X4.index


def scale_layouts(rows: int = 0, columns: int = 0) -> list[Layout]:
    """Return every registered layout in which rows x columns scales can be stored. Rules: LAY-13, LAY-15."""
    fitting = (value for value in LAYOUTS.values() if not value.unfit_for_scales())
    return [value for value in fitting if not value.refuses(rows, columns)]


def layout(name: str, operation: str = "scale_layout") -> Layout:
    """Return the scale layout of a name; a layout is always named, never guessed. Rules: LAY-7, LAY-13.

    operation: named by an error.
    """
    if not isinstance(name, str) or name not in LAYOUTS:
        raise UnknownLayoutError(operation, repr(name), f"one of {', '.join(LAYOUTS)}", "LAY-7")
    found = LAYOUTS[name]
    if reason := found.unfit_for_scales():
        raise LayoutError(operation, f"{name!r}, which has {reason}", "bytes in rows and columns", "LAY-13")
    return found
