"""The layouts that have a name."""

from __future__ import annotations

from fp4ref.errors import LayoutError, UnknownLayoutError
from fp4ref.layout.field_data import OTHER_DATA
from fp4ref.layout.field_scales import SCALES
from fp4ref.layout.origin import Origin
from fp4ref.layout.value import Layout
from fp4ref.names import Names, meant, near, unknown

# Certificates: offset-*, group-*, piece-*.
LINEAR = Layout("linear", "m(*) k(*): k0 m0", "LAY-1")
LINEAR_PADDED = Layout("linear_padded", "m(*) k(*): k0 m0; pad m 128 unspecified; pad k 4 unspecified", "LAY-2")
TILED_128X4 = Layout("tiled_128x4", "m(32,4,*) k(4,*): k0 m1 m0 k1 m2", "LAY-3")
TILED_8X4 = Layout("tiled_8x4", "m(8,*) k(4,*): k0 m0 k1 m1", "LAY-4")
STANDARD_LAYOUTS = (LINEAR, LINEAR_PADDED, TILED_128X4, TILED_8X4)
LAYOUTS: Names[Layout] = Names("layout", "see `fp4ref layouts`")
ORIGINS: dict[str, Origin] = {}  # of the layouts of the field, by name
for _layout in STANDARD_LAYOUTS:
    LAYOUTS.register(_layout, "this standard")
for _entry in (*SCALES, *OTHER_DATA):
    LAYOUTS.register(_entry.layout, str(_entry.origin))
    ORIGINS[_entry.name] = _entry.origin

swizzle_offset = TILED_128X4.offset
swizzle_index = TILED_128X4.index


def scale_layouts(rows: int = 0, columns: int = 0, field: bool = False) -> list[Layout]:
    """Return the layouts in which rows x columns scales can be stored: the standard's, and what users registered.

    field: those of the field as well.

    Rules: LAY-18, LAY-43, RES-6.
    """
    fitting = (value for value in LAYOUTS.values() if not value.unfit_for_scales())
    return [value for value in fitting if (field or value.name not in ORIGINS) and not value.refuses(rows, columns)]


def layout(name: str, operation: str = "scale_layout") -> Layout:
    """Return the scale layout of a name; a layout is always named, never guessed. Rules: LAY-7, LAY-18, LAY-59, RES-6.

    operation: named by an error.
    """
    if isinstance(name, Layout):
        got = f"the layout {name.name} itself"
        raise UnknownLayoutError(operation, got, "its name; fp4ref.register(layout) lets a name find it", "LAY-7")
    if not isinstance(name, str) or name not in LAYOUTS:
        usual = [known.name for known in scale_layouts()]
        close = [known for known in near(name, LAYOUTS) if known not in usual]
        needed = f"one of {', '.join(usual + close)}{meant(name, LAYOUTS)}; see `fp4ref layouts`"
        raise UnknownLayoutError(operation, unknown(repr(name)), needed, "LAY-59")
    found = LAYOUTS[name]
    if reason := found.unfit_for_scales():
        raise LayoutError(operation, f"{name!r}, which has {reason}", "bytes in rows and columns", "RES-6")
    return found
