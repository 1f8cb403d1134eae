"""`fp4ref gen`: aimed cases as a stream, for a program that is not Python."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.cli.common import force_option, load_spec, spec_files
from fp4ref.cli.options import direction_option, level_option, multiple_option
from fp4ref.errors import FileError
from fp4ref.files.kinds import STREAM
from fp4ref.files.targets import replacing, require_target

EPILOG = """\b
Examples:
  fp4ref gen nvfp4 | ./my_kernel | fp4ref verify nvfp4
  fp4ref gen mxfp4 --dtype bfloat16 --multiple 1 32 -o cases.bin
  fp4ref gen --families
"""


@click.command("gen", epilog=EPILOG, short_help="Write aimed cases for a program to quantize.")
@click.argument("spec", required=False)
@level_option
@click.option("--family", "families", multiple=True, help="Only these families.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(INPUT_DTYPES)), help="Only these types.")
@direction_option
@click.option(
    "--size", type=click.IntRange(1), default=1, show_default=True, help="Multiply the number of aimed blocks by this."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draw other random numbers.")
@multiple_option
@click.option("--no-empty", is_flag=True, help="Leave out tensors without elements.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@force_option
@click.option("--families", "listing", is_flag=True, help="List the families with their reasons, and exit.")
def gen(
    spec: str | None,
    level: int,
    families: tuple[str, ...],
    dtypes: tuple[str, ...],
    direction: str,
    size: int,
    seed: int,
    multiple: tuple[int, int],
    no_empty: bool,
    output: Path | None,
    force: bool,
    listing: bool,
) -> None:
    """Write the aimed cases of SPEC as a binary stream in the format of rule CNF-6.

    The program answers each case; `fp4ref verify` reads the answers.
    """
    from fp4ref.conformance.families import FAMILIES, chosen
    from fp4ref.conformance.run.stream import StreamPlan, write

    if listing:
        width = max(map(len, FAMILIES))
        for family in FAMILIES.values():
            click.echo(f"{family.name:<{width}}  {family.reason}")
        return
    if spec is None:
        raise click.UsageError("Missing argument 'SPEC'.")
    chosen(families)
    if output is not None:
        require_target(output, STREAM, spec_files(spec), force=force)
    plan = StreamPlan(
        load_spec(spec),
        level,
        "row" if direction == "row" else "column",
        dtypes or tuple(INPUT_DTYPES),
        families or None,
        size,
        multiple,
        not no_empty,
        seed,
    )
    if output is not None:
        with replacing(output, spec_files(spec), STREAM, force=force) as file:
            write(file, plan)
        return
    if sys.stdout.isatty():
        got = "standard output is a terminal, and the stream is binary"
        raise FileError("gen", got, f"a program: fp4ref gen {spec} | PROGRAM | fp4ref verify {spec}", "CNF-6")
    write(sys.stdout.buffer, plan)
