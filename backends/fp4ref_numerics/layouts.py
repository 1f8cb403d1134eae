"""The C++ type of a layout, for which a kernel is compiled: a struct of constants with one function, `offset`."""

from __future__ import annotations

from functools import lru_cache

from fp4ref.layout import LINEAR, LINEAR_PADDED, TILED_8X4, TILED_128X4, Axis, Layout, Term
from fp4ref.layout.text import Product

# Maps that the header has itself; a layout of any name that is the same map is compiled as that type.
IN_HEADER = {
    LINEAR.map: "linear",
    LINEAR_PADDED.map: "linear_padded",
    TILED_128X4.map: "tiled_128x4",
    TILED_8X4.map: "tiled_8x4",
}


@lru_cache
def number(form: Layout) -> int:
    """Return the place of a layout among the maps of the header, or -1."""
    return list(IN_HEADER).index(form.map) if form.map in IN_HEADER else -1


@lru_cache
def lower_layout(form: Layout, name: str = "Layout") -> str:
    """Return a layout of two axes as a C++ type; the layout's own name does not enter it. Rules: LAY-13."""
    if form.map in IN_HEADER:
        return f"using {name} = fp4ref::layout::{IN_HEADER[form.map]};"
    down, across = form.axes
    quads = _has_quads(form)
    return f"""struct {name} {{
    using offset_t = fp4ref::layout::offset_t;
    static constexpr unsigned row_multiple = {down.multiple}, column_multiple = {across.multiple};
    static constexpr unsigned row_fill = {down.fill or 0}, column_fill = {across.fill or 0};
    static constexpr bool quads = {str(quads).lower()}, adjacent = quads;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns, offset_t rows)
    {{
        const offset_t sizes[2] = {{(rows + {down.multiple - 1}) / {down.multiple} * {down.multiple},
            (columns + {across.multiple - 1}) / {across.multiple} * {across.multiple}}};
        const offset_t rests[2] = {{sizes[0] / {down.tile}, sizes[1] / {across.tile}}};
        (void)rests;
        offset_t stride = 1, at = {_product(form.form.base)};
        {_lines(form)}
        return at;
    }}
}};"""


def _has_quads(form: Layout) -> bool:
    """Return True if four columns from a multiple of 4 are stored side by side, at a multiple of 4."""
    order, radix = form.form.order, form.axes[1].radices[0] or 1
    turns = any(isinstance(item, Term) and item.by == (1, 0) for item in order)
    return order[0] == Term(1, 0) and radix % 4 == 0 and not (form.has_gaps or turns or form.form.table)


def _lines(form: Layout) -> str:
    lines = []
    for item in form.form.order:
        if isinstance(item, Product):
            count = _product(item)
            lines.append(f"stride = (stride + {count} - 1) / ({count}) * ({count});")
            continue
        axis = form.axes[item.axis]
        other = _digit(form.axes[item.by[0]], Term(*item.by)) if item.by else str(item.flip or "")
        lines.append(f"at += ({_digit(axis, item)}{f' ^ ({other})' if other else ''}) * stride;")
        lines.append(f"stride *= {_radix(axis, item.axis, item.digit)};")
    if table := form.form.table:
        moves = " ".join(f"case {unit}: at += {place}; break;" for unit, place in enumerate(table))
        lines.append(f"const offset_t unit = (at - {_product(form.form.base)}) % {len(table)};")
        lines.append(f"at -= unit; switch (unit) {{ {moves} }}")  # an array would be put into a device's local memory
    return "\n        ".join(lines)


def _digit(axis: Axis, term: Term) -> str:
    """Return a digit of an index; the slowest one needs no remainder."""
    faster = " * ".join(_radix(axis, term.axis, digit) for digit in range(term.digit)) or "1"
    value = f"{('row', 'column')[term.axis]} / ({faster})"
    last = term.digit == len(axis.radices) - 1
    return value if last else f"{value} % {_radix(axis, term.axis, term.digit)}"


def _radix(axis: Axis, number: int, digit: int) -> str:
    radix = axis.radices[digit]
    return f"rests[{number}]" if radix is None else str(radix)


def _product(product: Product) -> str:
    return " * ".join([f"{product.number}ull", *(f"sizes[{axis}]" for axis in product.axes)])
