"""`fp4ref where`: the bytes of an element, and the element of a byte."""

from __future__ import annotations

from typing import Any

import click

from fp4ref import packings
from fp4ref.cli.common import load_spec, paragraph, print_sum
from fp4ref.cli.options import direction_option
from fp4ref.diagrams.place import NAMED, ElementPlace, Geometry, article, spoken
from fp4ref.diagrams.request import parse_shape
from fp4ref.layout import LAYOUTS, Layout, layout
from fp4ref.packings import CANONICAL
from fp4ref.spec import Spec

BYTE = 8  # bits
EPILOG = """\b
Examples:
  fp4ref where 37 130 --shape 128x256
  fp4ref where 37 130 --shape 128x256 --direction column --layout tiled_8x4
  fp4ref where --shape 128x256 --scale-byte 1108 --layout tiled_128x4
  fp4ref where 37 130 --shape 128x256 --packing pairs_16
  fp4ref where --shape 128x256 --data-byte 4801 --spec mxfp4
  fp4ref where --shape 64x64 --data-byte 226 --packing vllm.marlin_fp4
"""


@click.command("where", epilog=EPILOG, short_help="Say where an element and its scale are stored.")
@click.argument("row", required=False, type=int)
@click.argument("column", required=False, type=int)
@click.option("--shape", required=True, help="The shape of the tensor, MxK.")
@click.option("--spec", "spec_name", default="nvfp4", show_default=True, help="A profile, or a JSON file of one.")
@direction_option
@click.option("--layout", "names", multiple=True, help=f"Layouts to name; {' and '.join(NAMED)} if none is given.")
@click.option("--packing", default=CANONICAL, show_default=True, help="The packing of the data, such as pairs_16.")
@click.option("--data-byte", type=int, help="Instead of ROW COLUMN, give an offset in the data.")
@click.option("--scale-byte", type=int, help="Instead of ROW COLUMN, give an offset in the scales of one --layout.")
def where(
    row: int | None,
    column: int | None,
    shape: str,
    spec_name: str,
    direction: Any,
    names: tuple[str, ...],
    packing: str,
    data_byte: int | None,
    scale_byte: int | None,
) -> None:
    """Print where element ROW COLUMN of a tensor and its scale are stored, or what a byte belongs to.

    ROW and COLUMN are those of the tensor, also in the column direction.
    """
    geometry = Geometry(load_spec(spec_name), parse_shape(shape, "where"), direction)
    layouts = tuple(layout(name, "where") for name in names) or tuple(LAYOUTS[name] for name in NAMED)
    asked = [row is not None and column is not None, data_byte is not None, scale_byte is not None]
    if sum(asked) > 1 or (row is not None and sum(asked) == 1 and not asked[0]):
        raise click.UsageError("give only one of ROW COLUMN, --data-byte and --scale-byte")
    if not any(asked):
        raise click.UsageError("give ROW COLUMN, or --data-byte, or --scale-byte")
    if scale_byte is not None and packing != CANONICAL:
        raise click.UsageError("--packing applies to ROW COLUMN and to --data-byte")
    if data_byte is not None:
        places = geometry.of_data_byte(data_byte, packing)
        for place in places:
            paragraph(_sentence(place, layouts, packing))
        if not places:
            paragraph(f"data byte {data_byte}: no element, but padding, a gap or scales")
    elif scale_byte is not None:
        if len(names) != 1:
            raise click.UsageError("--scale-byte needs one --layout: a layout is named, never inferred [LAY-7]")
        paragraph(scale_sentence(geometry, scale_byte, layouts[0]))
    elif row is not None and column is not None:
        place = geometry.place(row, column, "where")
        paragraph(_sentence(place, layouts, packing))
        for line in place.sums(tuple(found.name for found in layouts)):
            print_sum(line)


def _sentence(place: ElementPlace, layouts: tuple[Layout, ...], packing: str = CANONICAL) -> str:
    """Return where an element is, with the rules of its data, its block and its scale. Rules: BLK-1, BLK-7, PACK-3."""
    spec = place.geometry.spec
    bits = spec.element.format.bits
    of_data = "PACK-3" if bits == BYTE else packings.packing(packing, bits).rule
    rules = dict.fromkeys((of_data, _block_rule(spec), *(found.rule for found in layouts)))
    return f"{place.sentence(tuple(found.name for found in layouts), packing)} [{', '.join(rules)}]"


def _block_rule(spec: Spec) -> str:
    return "BLK-1" if spec.block.rows == 1 else "BLK-7"


def scale_sentence(geometry: Geometry, offset: int, found: Layout) -> str:
    """Return the owner of a byte of a scale buffer. Rules: BLK-1, BLK-7, LAY-10."""
    scale = geometry.of_scale_byte(offset, found)
    matrix = "x" if geometry.direction == "row" else "x^T"
    name = spoken(geometry.spec)
    size = f"{geometry.shape[0]} x {geometry.shape[1]}"
    start = f"{found.name} byte {offset} of {article(name)} {name} tensor {size}"
    if scale is None:
        words, rule = found.unused(offset, *geometry.scales) or ("padding", "LAY-15")
        return f"{start}: {words}, no scale is stored here [{rule}]"
    block = geometry.spec.block
    row, last = scale[0] // block.rows * block.rows, min((scale[0] // block.rows + 1) * block.rows, geometry.matrix[0])
    first, stop = scale[1] * block.columns, min((scale[1] + 1) * block.columns, geometry.matrix[1])
    rows = f"row {row}" if last - row == 1 else f"rows {row} to {last - 1}"
    where = f"scale ({scale[0]}, {scale[1]}), of {rows}, columns {first} to {stop - 1} of {matrix}"
    return f"{start}: {where} [{found.rule}, {_block_rule(geometry.spec)}]"
