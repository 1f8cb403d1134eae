"""`fp4ref quantize`: a file of tensors into a dump of quantized bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from fp4ref import api
from fp4ref.cli.checkpoint_options import WHAT, WHERE, with_options
from fp4ref.cli.common import (
    force_option,
    given_options,
    load_spec,
    printable,
    progress,
    refuse_options,
    spec_files,
)
from fp4ref.cli.quantize_checkpoint import quantize_checkpoint
from fp4ref.cli.selection import is_pattern, select, tensor_count
from fp4ref.conformance.dumps.files import Dump, DumpPlan, write_dump
from fp4ref.errors import DomainError, DTypeError, FileError, Fp4Error, ShapeError
from fp4ref.files import TensorFile, files_of, open_tensors
from fp4ref.files.kinds import DUMP
from fp4ref.files.targets import require_target
from fp4ref.hadamard import POINTS
from fp4ref.layout import STANDARD_LAYOUTS, layout
from fp4ref.quantized import DIRECTIONS, Direction, matrix_shape
from fp4ref.spec import SPEC_VERSION, Spec

EPILOG = """\b
Examples:
  fp4ref quantize model.safetensors -o model.nvfp4.safetensors
  fp4ref quantize model.safetensors -o w.npz --tensors '*weight' --keep-input
  fp4ref quantize x.npz -o q.npz --spec mxfp8-e4m3 --directions both --layout tiled_128x4
  fp4ref quantize Qwen3-8B/ -o Qwen3-8B-NVFP4/ --to modelopt --exclude '*self_attn*' --exclude lm_head
  fp4ref quantize Qwen3-8B/ -o out/ --to compressed-tensors --spec '*.experts.*=mxfp4' --spec mxfp8-e4m3 --workers 2
"""
OF_DUMPS = ("--directions", "--layout", "--tensors", "--keep-input", "--force")
OF_CHECKPOINTS = ("--include", "--exclude", "--shard-bytes", "--json", "--workers", "--rank", "--world", "--scheduler")
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@click.command("quantize", epilog=EPILOG, short_help="Quantize the tensors of a file, or a checkpoint.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Write the dump to this .safetensors or .npz file, or the checkpoint to this new directory.",
)
@click.option(
    "--spec",
    "specs",
    multiple=True,
    metavar="[PATTERN=]SPEC",
    default=("nvfp4",),
    show_default=True,
    help="A profile, or a JSON file of one; of a checkpoint also for the modules of a pattern, the first match counts.",
)
@click.option("--directions", type=click.Choice([*DIRECTIONS, "both"]), default="row", show_default=True)
@click.option(
    "--layout",
    "scale_layout",
    default="linear",
    show_default=True,
    help=f"The layout of the scales: {', '.join(form.name for form in STANDARD_LAYOUTS)}, or one of `fp4ref layouts`.",
)
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option(
    "--keep-input/--no-keep-input", default=False, help="Store the input, too, so that the dump can be verified alone."
)
@force_option
@with_options(*WHAT, *WHERE)
def quantize(
    source: Path,
    output: Path,
    specs: tuple[str, ...],
    directions: str,
    scale_layout: str,
    patterns: tuple[str, ...],
    keep_input: bool,
    force: bool,
    **checkpoint: Any,
) -> None:
    """Quantize the tensors of IN (.safetensors or .npz) with the golden model, into a dump.

    With --to, quantize the matrices of a file or directory by the fastest backend into a checkpoint of a convention,
    with its configuration; embeddings, lm_head, norms and routers stay as they are unless --include is given, or a
    pattern of --spec names them. A run that was interrupted goes on if the same command is repeated.

    For a dump, tensors that the specification cannot take are skipped, with the reason; if --tensors names such a
    tensor in full, that is an error. Only one tensor at a time is in memory. The output appears when it is complete.
    """
    if checkpoint["to"]:
        refuse_options(given_options() & set(OF_DUMPS), "for a dump, not for a checkpoint")
        where = {name: checkpoint.pop(name) for name in ("workers", "rank", "world", "scheduler")}
        quantize_checkpoint(source, output, {**checkpoint, "specs": specs}, where)
        return
    if source.is_dir():
        needed = ".safetensors or .npz, or --to CONVENTION for a checkpoint"
        raise FileError(f"read {source}", "a directory, which has no suffix", needed, "FIL-42")
    refuse_options(given_options() & set(OF_CHECKPOINTS), "for a checkpoint: add --to")
    if len(specs) > 1:
        raise click.UsageError("--spec once for a dump; several are for a checkpoint: add --to")
    spec_name = specs[0]
    spec, order = load_spec(spec_name), layout(scale_layout)
    sources = [*files_of(source), *spec_files(spec_name)]
    require_target(output, DUMP, sources, force=force)
    names = DIRECTIONS if directions == "both" else tuple(name for name in DIRECTIONS if name == directions)
    with open_tensors(source) as file:
        job = _Job(file, spec, order.name, names, keep_input)
        plans, skipped = _planned(job, patterns)
        if not plans:
            raise _nothing_left(source, skipped)
        with progress(len(plans), "quantize") as step:
            write_dump(output, [_announced(plan, step) for plan in plans], sources, kind=DUMP, force=force)
    _print_skipped(skipped)
    elements = sum(rows * columns for rows, columns in (matrix_shape(plan.shape) for plan in plans))
    click.echo(
        f"{output}: {tensor_count(len(plans))}, {elements:,} elements, {spec.name} (spec {SPEC_VERSION}), "
        f"{directions}, scales {order.name}" + (f"; {len(skipped)} skipped" if skipped else "")
    )


def _nothing_left(source: Path, skipped: list[tuple[str, Fp4Error]]) -> Fp4Error:
    """Return the error of a file of which no tensor can be quantized; print the reasons of several."""
    if len(skipped) == 1:
        return skipped[0][1]
    _print_skipped(skipped)
    got, rule = (f"{len(skipped)} tensors, all skipped", skipped[0][1].rule) if skipped else ("no tensor", "NUM-3")
    return DomainError(f"quantize {source}", got, "at least one that can be quantized", rule)


def _print_skipped(skipped: list[tuple[str, Fp4Error]]) -> None:
    for name, error in skipped:
        click.echo(printable(f"skipped {name}: {error.got}, need {error.needed}"), err=True)


class _Job(NamedTuple):
    """The settings of a run, which every tensor's plan needs."""

    file: TensorFile
    spec: Spec
    scale_layout: str
    directions: tuple[Direction, ...]
    keep_input: bool


def _planned(job: _Job, patterns: tuple[str, ...]) -> tuple[list[DumpPlan], list[tuple[str, Fp4Error]]]:
    """Return the tensors to quantize, and those to skip with the error of each. Rules: NUM-3, NUM-4, HAD-5."""
    plans: list[DumpPlan] = []
    skipped: list[tuple[str, Fp4Error]] = []
    for name in select(job.file.names, patterns):
        error = _refusal(job, name)
        if error is None:
            plans.append(_plan(job, name))
        elif any(pattern == name and not is_pattern(pattern) for pattern in patterns):
            raise error
        else:
            skipped.append((name, error))
    return plans, skipped


def _refusal(job: _Job, name: str) -> Fp4Error | None:
    """Return why a tensor cannot be quantized."""
    stored, shape = job.file.entry(name)
    operation = f"quantize {name}"
    if stored not in DTYPES:
        because = " (F64 would round twice)" if stored == "F64" else ""
        return DTypeError(operation, f"dtype {stored}", f"{', '.join(DTYPES)}{because}", "NUM-3")
    if not shape:
        return ShapeError(operation, "a tensor without dimensions", "at least one", "NUM-12")
    if job.spec.hadamard is not None and "column" in job.directions:
        if stored != "BF16":
            return DTypeError(operation, f"hadamard of {stored}", "BF16", "HAD-5")
        if matrix_shape(shape)[0] % POINTS:
            return ShapeError(
                operation, f"hadamard of {matrix_shape(shape)[0]} rows", f"a multiple of {POINTS}", "HAD-5"
            )
    return None


def _plan(job: _Job, name: str) -> DumpPlan:
    stored, shape = job.file.entry(name)

    def make() -> Dump:
        x = job.file.read(name)
        directions = "both" if len(job.directions) > 1 else job.directions[0]
        return Dump(
            name,
            x if job.keep_input else None,
            api.quantize(x, job.spec, directions, job.scale_layout, backend="numpy"),
        )

    return DumpPlan(
        name=name,
        spec=job.spec,
        shape=shape,
        dtype=DTYPES[stored],
        make=make,
        scale_layout=job.scale_layout,
        directions=job.directions,
        with_x=job.keep_input,
    )


def _announced(plan: DumpPlan, step: Callable[[str], None]) -> DumpPlan:
    """Return the plan, whose making is reported."""

    def make() -> Dump:
        step(plan.name)
        return plan.make()

    return dataclasses.replace(plan, make=make)
