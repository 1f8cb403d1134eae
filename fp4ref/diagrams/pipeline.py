"""The quantizer of a specification as a data-flow figure: every value with its type, every operation with its rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fp4ref.arithmetic import stored
from fp4ref.conformance.explain.formulas import cited, formula
from fp4ref.diagrams.blocks import block_words
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.codec_words import codec_rules, codec_words
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.spec import Amax, Granularity, Spec, Subnormals

LANES = {"global": "global scale", "block": "block scale", "element": "elements"}
GAP = 30.0
PAD = 8.0


@dataclass(frozen=True)
class Node:
    """One value: how it is made, its type, and its rules. kind: "b" input, "c" output, "paper" else."""

    name: str
    text: str
    dtype: str
    rules: tuple[str, ...] = ()
    kind: str = "paper"


def point(request: Request) -> str:
    """Return the sentence on what a specification does to x, by its fields. Rules: SPC-1."""
    spec = request.spec
    codes, scale = (codec.format.name.upper() for codec in (spec.element, spec.scale))
    said = f"{spoken(spec)}: {codes} codes, and one {scale} scale for {block_words(spec.block)}"
    if spec.global_scale is not Granularity.NONE:
        said += f", under a global scale for {'the tensor' if spec.global_scale is Granularity.TENSOR else 'each row'}"
    said += f"; y = {in_symbols(spec.arithmetic.scaled).partition(';')[0]}"
    if spec.hadamard:
        said += "; x^T is transformed first" if request.direction == "column" else "; rows are not transformed"
    if spec.four_over_six:
        said += "; each block keeps the better of two scales"
    return f"{said}."


def pipeline(request: Request) -> str:
    """From x to bytes, as the fields of the specification say. Rules: SPC-1, SPC-5."""
    spec = request.spec
    title = f"{spoken(spec)}: from x to bytes"
    found = levels(spec, request.direction)
    words = ". ".join(f"{node.name}: {node.text}" for level in found for node in level.values())
    page = Canvas(title, words, request.theme)
    y = page.heading(title)
    note = f"{request.direction} direction; every operation is one in float32, nearest even, unless it says otherwise"
    page.text(MARGIN, y + 2, note, size=12, kind="muted")
    y += 34
    lanes = [lane for lane in LANES if any(lane in level for level in found)]
    wide = (800 - 2 * MARGIN - (len(lanes) - 1) * GAP) / len(lanes)
    starts = {lane: MARGIN + number * (wide + GAP) for number, lane in enumerate(lanes)}
    for lane, x in starts.items():
        page.text(x + wide / 2, y - 8, LANES[lane], size=12, anchor="middle", bold=True)
    boxes: dict[str, Box] = {}
    last: dict[str, Box] = {}
    for level in found:
        height = max(_height(node, wide) for node in level.values())
        for lane, node in level.items():
            box = Box(starts[lane], y, wide, height)
            if lane in last:
                page.line([(box.middle, last[lane].bottom), (box.middle, y)], head=True)
            _draw(page, box, node)
            boxes[node.name] = box
            last[lane] = box
        y += height + 28
    _across(page, boxes)
    return page.svg()


@dataclass(frozen=True)
class Box:
    """Where a node is drawn."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """x of its middle."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """y of its lower edge."""
        return self.y + self.height


def levels(spec: Spec, direction: str) -> list[dict[str, Node]]:
    """Nodes by lane, level after level from the input to the bytes."""
    arithmetic, form, scale = spec.arithmetic, spec.element.format, spec.scale
    transformed = spec.hadamard is not None and direction == "column"
    dtype = "bfloat16" if transformed else "float32, bfloat16 or float16"
    x = Node("x", f"blocks of {spec.block.rows} x {spec.block.columns}", dtype, ("NUM-3", "BLK-1"), "b")
    rows: list[dict[str, Node]] = [{"element": x}]
    if spec.hadamard and direction == "column":
        text = f"Hadamard of 16 values, signs {spec.hadamard.signs:#06x}, rounded to bfloat16"
        rows.append({"element": Node("transformed x", text, "bfloat16", ("HAD-1", "HAD-2", "HAD-3", "HAD-4"))})
    if spec.subnormals is Subnormals.FLUSH:
        rows.append({"element": Node("flushed x", "subnormal inputs become zeros", "float32", ("NUM-5",))})
    level = {
        "block": Node(
            "block amax a", f"largest magnitude of a block, {_nan(spec.amax, inside=True)}", "float32", ("BLK-2",)
        )
    }
    if spec.global_scale is not Granularity.NONE:
        per = "the tensor" if spec.global_scale is Granularity.TENSOR else "each row"
        rule = "GLB-1" if spec.global_scale is Granularity.TENSOR else "GLB-5"
        shape = "[1]" if spec.global_scale is Granularity.TENSOR else "[M]"
        amax = Node(
            "global amax",
            f"largest magnitude of {per}, {_nan(spec.amax)}; or the caller's",
            f"float32 {shape}",
            (rule, "GLB-4"),
            "c",
        )
        rows += [
            {"global": amax, **level},
            {
                "global": Node(
                    "global scale g", in_symbols(arithmetic.global_scale), "float32", cited(arithmetic.global_scale)
                )
            },
        ]
    else:
        rows.append(level)
    rows.append(
        {"block": Node("scale t", in_symbols(arithmetic.block_scale), "float32", cited(arithmetic.block_scale))}
    )
    if search := spec.four_over_six:
        text = f"try t and 1.5 · t; keep the second if its {search.metric} error is strictly smaller. "
        error = in_symbols(search.difference)
        text += f"The error is {error[:1].lower()}{error[1:]}"
        rows.append({"block": Node("4over6", text, "float32", ("FOS-1", "FOS-3", "FOS-6"))})
    repeated = f"; the same for each of the {spec.block.rows} rows" if spec.block.rows > 1 else ""
    byte = Node("scale byte", codec_words(scale) + repeated, f"{scale.format.name}, uint8", codec_rules(scale), "c")
    rows.append({"block": byte})
    if arithmetic.working_scale is stored:
        rows.append({"block": Node("scale s", "what the byte means", "float32, exact", ("BLK-4",))})
    else:
        rows.append(
            {"block": Node("scale s", in_symbols(arithmetic.working_scale), "float32", cited(arithmetic.working_scale))}
        )
    rows.append({"element": Node("scaled y", in_symbols(arithmetic.scaled), "float32", cited(arithmetic.scaled))})
    rows.append(
        {
            "element": Node(
                "code", codec_words(spec.element), f"{form.name}, {form.bits} bits", codec_rules(spec.element)
            )
        }
    )
    packed = Node("data byte", "two codes, the first in the low nibble", "uint8", ("PACK-1", "PACK-2"), "c")
    rows.append({"element": packed if form.bits == 4 else Node("data byte", "one code", "uint8", ("PACK-3",), "c")})
    return rows


def in_symbols(function: Callable[..., object]) -> str:
    """Return the formula of an operation with the figure's symbols: g for the global scale, a for a block's maximum."""
    text = formula(function).replace("S_enc", "g")
    return re.sub(r"\bamax\b", "a", text) if "block" in getattr(function, "__name__", "") else text


def _nan(amax: Amax, inside: bool = False) -> str:
    kept = amax is Amax.PROPAGATE_NAN or (inside and amax is Amax.PROPAGATE_IN_BLOCK)
    return "NaN kept" if kept else "NaN ignored"


def _text(node: Node, wide: float) -> list[str]:
    return wrap(node.text, wide - 2 * PAD, 11)


def _rule_lines(node: Node, wide: float) -> list[str]:
    return wrap(" ".join(node.rules), wide - 2 * PAD, 9, mono=True)


def _height(node: Node, wide: float) -> float:
    return 2 * PAD + 16 + 15 * len(_text(node, wide)) + 13 * len(_rule_lines(node, wide)) + 4


def _draw(page: Canvas, box: Box, node: Node) -> None:
    page.box(box.x, box.y, box.width, box.height, node.kind, radius=5)
    page.text(box.x + PAD, box.y + PAD + 12, node.name, size=12, bold=True)
    page.text(box.x + box.width - PAD, box.y + PAD + 12, node.dtype, size=9, anchor="end", mono=True)
    at = box.y + PAD + 29
    for line in _text(node, box.width):
        page.text(box.x + PAD, at, line, size=11)
        at += 15
    for line in _rule_lines(node, box.width):
        page.text(box.x + PAD, at, line, size=9, mono=True, kind="muted")
        at += 13


def _across(page: Canvas, boxes: dict[str, Box]) -> None:
    """Arrows between lanes: x feeds the maxima, g the block scale and the elements, s the elements."""
    source = next(boxes[name] for name in ("flushed x", "transformed x", "x") if name in boxes)
    bus = source.bottom + 12
    maxima = [boxes[name] for name in ("block amax a", "global amax") if name in boxes]
    for box in maxima:
        page.line([(source.middle, bus), (box.middle, bus), (box.middle, box.y)], head=True)
    scaled, s = boxes["scaled y"], boxes["scale s"]
    first, second = scaled.y + scaled.height * 0.3, scaled.y + scaled.height * 0.7
    page.line([(s.middle, s.bottom), (s.middle, first), (scaled.x, first)], head=True)
    page.text(scaled.x - 14, first - 5, "s", size=11, anchor="end", mono=True)
    if "global scale g" in boxes:
        g, t = boxes["global scale g"], boxes["scale t"]
        half, right = t.y + t.height / 2, g.x + g.width
        page.line(
            [
                (right, g.y + g.height / 2),
                (right + 12, g.y + g.height / 2),
                (right + 12, half),
                (t.x, half),
            ],
            head=True,
        )
        page.line([(g.middle, g.bottom), (g.middle, second), (scaled.x, second)], head=True)
        page.text(scaled.x - 14, second - 5, "g", size=11, anchor="end", mono=True)
