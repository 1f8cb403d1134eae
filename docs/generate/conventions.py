"""Write the page that lists the conventions of checkpoints.

    python docs/generate/conventions.py OUT.md

Every cell comes from the registered conventions and consumers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fp4ref.checkpoints import conventions as _conventions
from fp4ref.checkpoints.consumers import CONSUMERS
from fp4ref.checkpoints.convention import CONVENTIONS, Convention, ScaleWay, StoredRole, families
from fp4ref.checkpoints.picture import strips

del _conventions
INTRO = """# Conventions of checkpoints

A convention is the form in which a producer stores one kind of quantized tensor. `fp4ref lint` recognizes it from
names, types, shapes, metadata and configuration. This page is generated from the registered values.
"""
HEAD = (
    "| convention | elements | order of elements | block scales | layout | block | global scale | block of zeros "
    "| scale bytes read otherwise |"
)
FILES = """## Files

Loaders take more from the files beside the tensors than from the tensors. *Every linear module* means that the list of
excluded modules has to name every linear module in high precision.

| family | declared in | `quant_method` | list of excluded modules | other readers of that list | read from |
|---|---|---|---|---|---|
"""
PICTURES = """## A tensor of 2 x 64

The first bytes of both rows. In a byte, the low half is written first: `0.1+0.0` contains element 1 of row 0 in its low
half and element 0 in its high half. Of the scales, `0.3` is that of block 3 of row 0, and dots are padding.

"""
LOADED = """## Consumers

| consumer | loads | known from |
|---|---|---|
"""


def page() -> Iterator[str]:
    """Yield the parts of the page."""
    yield INTRO
    yield "## Tensors\n\n" + "\n".join([HEAD, "|---" * 9 + "|", *map(row, CONVENTIONS.values())]) + "\n"
    yield FILES + "\n".join(files(family, members) for family, members in families().items()) + "\n"
    yield PICTURES + "\n".join(pictures())
    yield LOADED + "\n".join(
        f"| {each.name} | {', '.join(each.loads)} | {CONSUMERS.source(each.name)} |" for each in CONSUMERS.values()
    )


def row(each: Convention) -> str:
    """Return the row of a convention."""
    direction = each.global_direction
    second = "none"
    if each.global_scale is not None:
        constant = "" if direction.way is ScaleWay.NONE else f", {direction.constant:g}"
        second = f"{stored(each, each.global_scale)}, {direction.way}{constant}"
    cells = [
        f"`{each.name}`",
        stored(each, each.codes),
        each.packing.name if each.bits < 8 else "bytes",
        f"{stored(each, each.scales)} {each.scale or 'numbers'}" if each.scales else f"in the struct, {each.scale}",
        each.layout.name,
        " x ".join(map(str, each.block)) if each.block[1] else each.granularity,
        second,
        "any" if each.zero_block is None else f"scale 0x{each.zero_block[0]:02X}, code {each.zero_block[1]}",
        each.misread.meaning or "none",
    ]
    return f"| {' | '.join(cells)} |"


def pictures() -> Iterator[str]:
    """Yield a drawing for each way of storing elements and scales, with the conventions that share it."""
    ways: dict[str, list[str]] = {}
    for each in CONVENTIONS.values():
        if each.group_size:
            ways.setdefault(drawing(each), []).append(f"`{each.name}`")
    for text, names in ways.items():
        yield f"{', '.join(names)}:\n\n```text\n{text}```\n"


def drawing(each: Convention) -> str:
    """Return the bytes of elements and of scales, from the convention's packing and layout."""
    lines = []
    for strip in strips(each):
        what = f"elements, byte {strip.first:>3}" if strip.role == "codes" else f"scales, byte {strip.first:>5}"
        shown = "  ".join(f"{text:>9}" for text in strip.cells)
        lines.append(f"{what}:  {shown}{'  ...' if strip.more else ''}")
    return "\n".join(lines) + "\n"


def stored(convention: Convention, role: StoredRole) -> str:
    """Return the name of a role's tensor for a module X, and its types."""
    return f"`{convention.stem.format(module='X')}{role.suffix}` {' or '.join(role.dtypes)}"


def files(family: str, members: list[Convention]) -> str:
    """Return the row of a family's files."""
    form = members[0].configuration
    places = [f"`{form.section}` of `config.json`"] if form.section else []
    places += [f"`{form.file}`"] if form.file else []
    places += [f"`{mark}`" for mark in form.marks]
    listed = f"`{form.excludes}`{', every linear module' if form.closed else ''}" if form.excludes else "none"
    readers = "; ".join(f"{name}: {match.meaning}" for name, match in form.readers.items())
    source = CONVENTIONS.source(members[0].name)
    cells = [family, ", ".join(places) or "the tensors", ", ".join(form.methods), listed, readers, source]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(page()), "utf-8")
