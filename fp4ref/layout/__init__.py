"""Layouts: where the scale of row m and scale column k, or any unit of an array, is stored in a buffer.

A layout is an ordered list of digits. Each index is split into mixed-radix digits; the list says in which order the
digits of all axes are stored. Strides, the inverse, padding, conversions, group offsets and row ranges are computed
from that list, nowhere else.
"""

from fp4ref.layout.origin import Origin
from fp4ref.layout.registry import (
    LAYOUTS,
    LINEAR,
    LINEAR_PADDED,
    ORIGINS,
    STANDARD_LAYOUTS,
    TILED_8X4,
    TILED_128X4,
    layout,
    scale_layouts,
    swizzle_index,
    swizzle_offset,
)
from fp4ref.layout.strides import Digit, Strides
from fp4ref.layout.text import Axis, Term
from fp4ref.layout.value import Layout

__all__ = [
    "LAYOUTS",
    "LINEAR",
    "LINEAR_PADDED",
    "ORIGINS",
    "STANDARD_LAYOUTS",
    "TILED_8X4",
    "TILED_128X4",
    "Axis",
    "Digit",
    "Layout",
    "Origin",
    "Strides",
    "Term",
    "layout",
    "scale_layouts",
    "swizzle_index",
    "swizzle_offset",
]
