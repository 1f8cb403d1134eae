"""`fp4ref layouts where` and `fp4ref layouts starts`: one unit of any layout, and where members of a group start."""

from __future__ import annotations

from typing import get_args

import click
import numpy as np

from fp4ref import relayouts
from fp4ref.cli.common import paragraph
from fp4ref.errors import DomainError, Fp4Error, ShapeError
from fp4ref.layout import Layout
from fp4ref.layout.members import Starts
from fp4ref.layout.worked import worked
from fp4ref.packings import bit_of

WHERE_EPILOG = """\b
Examples:
  fp4ref layouts where vllm.kv_v_scale 1,0,5,3 --shape 2x4x16x8
  fp4ref layouts where vllm.kv_v_scale --offset 573 --shape 2x4x16x8
  fp4ref layouts where vllm.marlin_fp4 3,5 --shape 64x16
"""
STARTS_EPILOG = """\b
Examples:
  fp4ref layouts starts tiled_128x4 3x8 130x8 0x8 128x8
"""
SPOKEN = {"x": "x", ",": "commas"}
WORDS = {1: "bit", 32: "word"}  # a unit that is no byte and no part of one


def numbers(text: str, between: str, count: int, what: str) -> tuple[int, ...]:
    """Read "1,0,5" or "128x8" as whole numbers, as many as there are axes. Rules: NUM-4."""
    parts = text.lower().replace("×", "x").split(between)
    if len(parts) != count or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ShapeError("layouts", f"{what} {text!r}", f"{count} numbers with {SPOKEN[between]} between them", "NUM-4")
    return tuple(map(int, parts))


@click.command("where", epilog=WHERE_EPILOG, short_help="Say where an index is stored, and what a unit holds.")
@click.argument("name")
@click.argument("index", required=False)
@click.option("--shape", required=True, help="The size of each axis of the array, such as 2x4x16x8.")
@click.option("--offset", type=click.IntRange(min=0), help="Instead of INDEX, give an offset in units.")
def where(name: str, index: str | None, shape: str, offset: int | None) -> None:
    """Print the offset at which layout NAME stores INDEX, with its sum; or the index of the unit at an offset.

    INDEX has a number for each axis, as i,j,...; `fp4ref layouts` shows the axes. It works for layouts with any number
    of axes, for packings, and for layouts in bits or words.
    """
    form = relayouts.named(name)
    sizes = numbers(shape, "x", len(form.axes), "shape")
    if (index is None) == (offset is None):
        raise click.UsageError("give INDEX, or --offset")
    if index is not None:
        stored = _stored(form, sizes, numbers(index, ",", len(form.axes), "index"))
        for indent, line in zip((0, 2), stored, strict=True):
            paragraph(line, indent)
    elif offset is not None:
        click.echo(f"{name} unit {offset}: {_owner(form, sizes, offset)}")


def _stored(form: Layout, sizes: tuple[int, ...], index: tuple[int, ...]) -> tuple[str, str]:
    for axis, at, size in zip(form.axes, index, sizes, strict=True):
        if at >= size:
            raise DomainError("layouts where", f"{axis.name} = {at}", f"{axis.name} < {size}", "LAY-13")
    text, offset = worked(form, sizes, index), int(form.offsets(index, sizes))
    if form.unit in {4, 6} and len(sizes) == 2:
        byte, bit = bit_of(form, (sizes[0], sizes[1]), index[0], index[1])
        part = (
            f"byte {byte}, {('low', 'high')[bit // 4]} nibble" if form.unit == 4 else f"byte {byte}, from bit {bit} on"
        )
    else:
        part = f"{WORDS.get(form.unit, 'byte')} {offset}"
    named = ", ".join(f"{axis.name} = {at}" for axis, at in zip(form.axes, index, strict=True))
    return f"{form.name}, {named}: {part}", f"unit = {text}"


def _owner(form: Layout, sizes: tuple[int, ...], offset: int) -> str:
    found = form.strides(*sizes)
    if offset >= found.size:
        raise DomainError(
            "layouts where", f"offset {offset}", f"offset < {found.size}, the units of the buffer", form.rule
        )
    unused = form.unused(offset, *sizes)
    if unused and unused[0] == "a gap":
        return f"a gap, which holds no unit of the array [{unused[1]}]"
    indices, _ = found.gather(np.array([offset]))
    where = ", ".join(f"{axis.name} = {int(part[0])}" for axis, part in zip(form.axes, indices, strict=True))
    return f"padding, at {where} [{unused[1]}]" if unused else where


@click.command("starts", epilog=STARTS_EPILOG, short_help="Say where the members of a group start in one buffer.")
@click.argument("name")
@click.argument("shapes", nargs=-1, required=True, metavar="ROWSxCOLUMNS...")
def starts(name: str, shapes: tuple[str, ...]) -> None:
    """Print the offset at which each member of a group starts in layout NAME, by each rule of starts.

    ROWSxCOLUMNS are the scales of each member. A buffer written by one rule and read by another is wrong from the
    first member on whose starts differ.
    """
    form = relayouts.named(name)
    if len(form.axes) != 2:
        raise ShapeError("layouts starts", f"{name} with {len(form.axes)} axes", "two axes", "LAY-36")
    members = [numbers(shape, "x", 2, "shape") for shape in shapes]
    click.echo(f"{name}: {form.text}")
    for rule in get_args(Starts):
        try:
            found = form.group_offsets([(rows, columns) for rows, columns in members], rule)
        except Fp4Error as error:
            click.echo(f"  {rule:<7} refused: {error}")
            continue
        click.echo(f"  {rule:<7} {' '.join(map(str, found[:-1]))}; {found[-1]} in all")
