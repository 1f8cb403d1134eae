"""`fp4ref dequantize`: a dump of quantized bytes back into a file of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.cli.common import force_option, load_spec, progress, spec_files
from fp4ref.cli.selection import select, tensor_count
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.conformance.dumps.form import STORED
from fp4ref.files import files_of, write_tensors
from fp4ref.files.kinds import TENSORS
from fp4ref.files.targets import require_target
from fp4ref.packings import CANONICAL
from fp4ref.quantized import DIRECTIONS, Direction, matrix_shape

EPILOG = """\b
Examples:
  fp4ref dequantize q.npz -o y.npz
  fp4ref dequantize q.npz -o y.safetensors --dtype bfloat16
  fp4ref dequantize q.npz -o yt.npz --direction column
"""
UNNAMED = "x"  # what the values of a tensor without a name are called


@click.command("dequantize", epilog=EPILOG, short_help="Turn a dump back into a file of tensors.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help=".safetensors or .npz.")
@click.option("--dtype", type=click.Choice(list(INPUT_DTYPES)), default="float32", show_default=True)
@click.option(
    "--direction",
    type=click.Choice(DIRECTIONS),
    default="row",
    show_default=True,
    help="The direction to read; column writes x^T.",
)
@click.option("--inverse-hadamard", is_flag=True, help="Undo the transform of the column direction.")
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option("--spec", "spec_name", help="Use this profile, or JSON file of one, instead of the dump's.")
@click.option("--layout", "scale_layout", help="Use this layout instead of the dump's.")
@click.option(
    "--packing", default=CANONICAL, show_default=True, help="The packing of the dump's data, such as pairs_16."
)
@force_option
def dequantize(
    source: Path,
    output: Path,
    dtype: str,
    direction: Direction,
    inverse_hadamard: bool,
    patterns: tuple[str, ...],
    spec_name: str | None,
    scale_layout: str | None,
    packing: str,
    force: bool,
) -> None:
    """Compute the values that the bytes of a dump stand for, rounded once to --dtype.

    Only one tensor at a time is in memory. The output appears when it is complete.
    """
    spec, sources = None if spec_name is None else load_spec(spec_name), [*files_of(source), *spec_files(spec_name)]
    require_target(output, TENSORS, sources, force=force)
    with read_dump(source, spec, scale_layout, packing=packing) as dump:
        names = set(select(dump.names, patterns))
        chosen = [index for index, name in enumerate(dump.names) if name in names]
        shapes = [shape if direction == "row" else matrix_shape(shape)[::-1] for shape in dump.shapes]
        entries = [(dump.names[index] or UNNAMED, STORED[dtype], shapes[index]) for index in chosen]
        with progress(len(chosen), "dequantize") as step:

            def arrays() -> Iterator[NDArray[Any]]:
                for index in chosen:
                    step(dump.names[index])
                    q = dump[index].quantized
                    yield api.dequantize(q, dtype, direction, inverse_hadamard, backend="numpy")

            write_tensors(output, entries, {}, arrays(), sources, TENSORS, force=force)
    click.echo(f"{output}: {tensor_count(len(chosen))}, {direction} direction, {dtype}")
