"""`fp4ref explain`: one element's way through the quantization."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fp4ref import packings
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.cli.common import load_spec
from fp4ref.cli.options import direction_option
from fp4ref.conformance.explain.formulas import decimal
from fp4ref.conformance.explain.notation import parse_values
from fp4ref.conformance.explain.steps import data, lines, sections
from fp4ref.conformance.explain.way import Stages
from fp4ref.conformance.explain.way import explain as explain_element
from fp4ref.errors import DomainError, ShapeError
from fp4ref.files import open_tensors
from fp4ref.packing import bits_in_words
from fp4ref.packings import CANONICAL, bit_of
from fp4ref.quantized import matrix_shape

EPILOG = """\b
Examples:
  fp4ref explain --values "1 2.5 -3 0*13" --index 1
  fp4ref explain --values "1 2.5 -3 0*13" --index 1 --amax 100 --spec torchao.nvfp4_2lvl
  fp4ref explain --values "1 2 3 4 5 6" --columns 3 --index 4 --direction column --spec mxfp4
  fp4ref explain --values "0x3f80 0x8000" --dtype bfloat16 --spec te.python_reference --index 1
  fp4ref explain --values "1*32" --index 17 --spec mxfp4 --packing ggml.mxfp4_data
  fp4ref explain model.safetensors lm_head.weight 5 130 --spec nvfp4-4over6
"""


@click.command("explain", epilog=EPILOG, short_help="Show every intermediate value of one block.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.argument("tensor", required=False)
@click.argument("row", required=False, type=int)
@click.argument("column", required=False, type=int)
@click.option("--spec", "spec_name", default="nvfp4", show_default=True, help="A profile, or a JSON file of one.")
@click.option("--values", help="The tensor's values; decimals, nan, inf, or bits like 0x3f800000; 0*15 repeats.")
@click.option("--columns", type=click.IntRange(1), help="With --values: the number of values in a row; by default all.")
@click.option(
    "--index",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --values: the index of the element to show.",
)
@click.option("--dtype", type=click.Choice(list(INPUT_DTYPES)), default="float32", show_default=True)
@direction_option
@click.option("--amax", type=float, help="Use this global amax instead of the tensor's.")
@click.option("--random-byte", type=click.IntRange(0, 255), help="The random byte of a stochastic specification.")
@click.option("--packing", default=CANONICAL, show_default=True, help="Also show where this packing stores the code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    file: Path | None,
    tensor: str | None,
    row: int | None,
    column: int | None,
    spec_name: str,
    values: str | None,
    columns: int | None,
    index: int,
    dtype: str,
    direction: Any,
    amax: float | None,
    random_byte: int | None,
    packing: str,
    as_json: bool,
) -> None:
    """Show how one element is quantized: every intermediate value in decimal and hex, with its rule.

    Give FILE TENSOR ROW COLUMN (leading dimensions count as rows), or --values and --index. FILE is a .safetensors,
    .npz or .json file. ROW and COLUMN are those of the tensor, also in the column direction.
    """
    if (values is None) == (file is None):
        raise click.UsageError("give either FILE TENSOR ROW COLUMN or --values")
    if values is not None:
        x = _matrix(parse_values(values, dtype), columns)
        _require_index(index, x)
        row, column = divmod(index, x.shape[1])
    else:
        if file is None or tensor is None or row is None or column is None:
            raise click.UsageError(
                "FILE needs TENSOR ROW COLUMN after it: the name of a tensor, and the place of an element"
            )
        x = read_tensor(file, tensor)
    spec = load_spec(spec_name)
    stages = explain_element(x, spec, row, column, direction, amax, _random_bits(random_byte, x, direction))
    stored = {} if packing == CANONICAL else _stored(stages, x, row, column, packing)
    if as_json:
        click.echo(json.dumps(data(stages) | stored, indent=1))
    else:
        _print(stages, x, stored["packing"]["text"] if stored else "")


def _stored(stages: Stages, x: NDArray[Any], row: int, column: int, name: str) -> dict[str, Any]:
    """Return where another packing stores the code. Rules: PACK-7."""
    bits, shape = stages.spec.element.format.bits, matrix_shape(x.shape)
    if stages.direction == "column":
        row, column, shape = column, row, (shape[1], shape[0])
    byte, bit = bit_of(packings.packing(name, bits), shape, row, column)
    text = f"in {name}: data byte {byte} {bits_in_words(bits, bit)}".rstrip()
    return {"packing": {"name": name, "byte": byte, "bit": bit, "text": text}}


def read_tensor(file: Path, name: str) -> NDArray[Any]:
    """Return a tensor of a file; in a dump NAME stands for its input, NAME.x."""
    with open_tensors(file) as tensors:
        return np.asarray(tensors.read(f"{name}.x" if f"{name}.x" in tensors.names else name))


def _matrix(values: NDArray[Any], columns: int | None) -> NDArray[Any]:
    if columns is None:
        return values[None]
    if len(values) % columns:
        raise ShapeError("explain", f"{len(values)} values", f"a multiple of --columns {columns}", "NUM-4")
    return values.reshape(-1, columns)


def _require_index(index: int, x: NDArray[Any]) -> None:
    if not x.size:
        raise ShapeError("explain", "--values without a value", "one or more", "NUM-4")
    if index >= x.size:
        raise DomainError("explain", f"--index {index} of {x.size} values", f"0 to {x.size - 1}", "NUM-4")


def _random_bits(byte: int | None, x: NDArray[Any], direction: str) -> NDArray[np.uint8] | None:
    if byte is None:
        return None
    rows, columns = matrix_shape(x.shape)
    return np.full((rows, columns) if direction == "row" else (columns, rows), byte, np.uint8)


def _print(stages: Stages, x: NDArray[Any], stored: str) -> None:
    size = " x ".join(map(str, x.shape))
    title = f"{stages.spec.name}, {stages.direction} direction: element {list(stages.element)} of {size} {x.dtype.name}"
    click.secho(title, bold=True)
    width = min(shutil.get_terminal_size().columns, 120)
    for line in lines(sections(stages), width):
        heading = bool(line) and not line.startswith(" ")
        click.secho(line, bold=heading, fg="cyan" if heading else None)
    if stored:
        click.echo(f"  {stored}")
    click.echo()
    form = stages.spec.element.format
    digits = form.digits
    code, scale = f"0x{stages.code:0{digits}x}", f"0x{stages.scale:02x}"
    click.secho(f"code {code}, scale {scale}, value {decimal(stages.value)}", bold=True)
