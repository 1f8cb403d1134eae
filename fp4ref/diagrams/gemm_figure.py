"""The figure of GEMM operands: which direction of which tensor the three products of a linear layer read."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

APART = 230.0  # from an operand to the next one, and to the result
SIZES = {"M": 92.0, "N": 66.0, "K": 118.0}  # pixels of an axis: tokens, outputs, inputs


class DrawnOperand(NamedTuple):
    """A tensor in a product: its name, its axes, and the one that is summed over."""

    name: str
    axes: str
    summed: str

    @property
    def direction(self) -> Direction:
        """Blocks run along the summed axis: in rows if that is the last axis. Rules: BLK-1, BLK-8."""
        return "row" if self.axes[1] == self.summed else "column"


class DrawnProduct(NamedTuple):
    """A product of the three; the result has the remaining axes."""

    name: str
    formula: str
    a: DrawnOperand
    b: DrawnOperand
    result: str
    axes: str


PRODUCTS = (
    DrawnProduct("fprop", "Y = X · W^T", DrawnOperand("X", "MK", "K"), DrawnOperand("W", "NK", "K"), "Y", "MN"),
    DrawnProduct("dgrad", "dX = dY · W", DrawnOperand("dY", "MN", "N"), DrawnOperand("W", "NK", "N"), "dX", "MK"),
    DrawnProduct("wgrad", "dW = dY^T · X", DrawnOperand("dY", "MN", "M"), DrawnOperand("X", "MK", "M"), "dW", "NK"),
)


def gemm(request: Request) -> str:
    """fprop, dgrad and wgrad: blocks always run along the axis that is summed over.

    Rules: GEM-1, GEM-10, BLK-1, BLK-8, HAD-4.
    """
    spec = request.spec
    title = f"{spoken(spec)}: operands of the three products of a linear layer"
    words = "; ".join(f"{p.name} {p.formula}: {p.a.name} {p.a.direction}, {p.b.name} {p.b.direction}" for p in PRODUCTS)
    page = Canvas(title, words + ".", request.theme)
    y = page.heading(title)
    page.text(
        MARGIN,
        y + 2,
        "X [M, K] inputs, W [N, K] weights, dY [M, N] gradients; stripes: blocks along the summed axis",
        size=12,
        kind="muted",
    )
    y += 40
    for product in PRODUCTS:
        y = _product(page, y, product, spec)
    return page.svg()


def _product(page: Canvas, y: float, product: DrawnProduct, spec: Spec) -> float:
    """Draw a product in a row: operands with their blocks, then the result."""
    page.text(MARGIN, y + 16, product.name, size=14, bold=True)
    page.text(MARGIN, y + 36, product.formula, size=12, mono=True)
    page.text(MARGIN, y + 54, f"sum over {product.a.summed}", size=12, kind="muted")
    x = MARGIN + 136.0
    heights = []
    for kind, operand, other in (("a", product.a, product.b), ("b", product.b, product.a)):
        heights.append(_operand(page, x, y, operand, other, spec, kind))
        x += APART
        page.text(x - 40, y + 46, "×" if kind == "a" else "=", size=18, anchor="middle")
    width, height = SIZES[product.axes[1]], SIZES[product.axes[0]]
    page.box(x, y, width, height, "paper", title=product.result)
    page.text(x + width / 2, y + height / 2 + 4, product.result, size=13, anchor="middle", mono=True)
    page.text(x, y + height + 15, f"[{product.axes[0]}, {product.axes[1]}]", size=11, mono=True, kind="muted")
    return max(*heights, y + height + 22) + 36


def _operand(
    page: Canvas, x: float, y: float, operand: DrawnOperand, other: DrawnOperand, spec: Spec, kind: str
) -> float:
    """Draw an operand, and below it how it is quantized; return the y below. Rules: GEM-10, HAD-4.

    other: the operand that it is multiplied with. Both are transformed if both are in the column direction.
    """
    width, height = SIZES[operand.axes[1]], SIZES[operand.axes[0]]
    rows = operand.direction == "row"
    page.box(x, y, width, height, kind, title=f"{operand.name}, {operand.direction} direction")
    lines = range(1, int((height if rows else width) // 9) + 1)
    for line in lines:
        at = line * 9.0
        if at < (height if rows else width) - 2:
            page.line(
                [(x, y + at), (x + width, y + at)] if rows else [(x + at, y), (x + at, y + height)], stroke="edge"
            )
    page.box(x + width / 2 - 14, y + height / 2 - 10, 28, 20, "paper", stroke="none")
    page.text(x + width / 2, y + height / 2 + 5, operand.name, size=13, anchor="middle", mono=True)
    page.text(
        x, y + height + 15, f"[{operand.axes[0]}, {operand.axes[1]}], {operand.direction} direction", size=11, mono=True
    )
    notes = [f"blocks of {spec.block.columns} along {operand.summed}"]
    if operand.direction == "column" and spec.hadamard:
        both = other.direction == "column"
        notes.append("Hadamard transform first" if both else f"no Hadamard, as {other.name} has none (GEM-10)")
    below = [line for note in notes for line in wrap(note, APART - 50, 10)]
    return page.lines(x, y + height + 30, below, size=10, kind="muted")
