"""`fp4ref convert`: a checkpoint from one convention to another, repaired or requantized on the way."""

from __future__ import annotations

from pathlib import Path

import click

from fp4ref.cli.checkpoint_options import WHAT, WHERE, carry_out, specs_of, with_options
from fp4ref.cli.common import progress

EPILOG = """\b
Examples:
  fp4ref convert Qwen3-8B-NVFP4/ Qwen3-8B-CT/ --to compressed-tensors
  fp4ref convert broken/ mended/ --repair fused-global-scale
  fp4ref convert gpt-oss-20b/ nvfp4/ --to modelopt --spec '*.experts=nvfp4'
  fp4ref convert big/ out/ --to torchao --rank $RANK --world 8 && fp4ref merge out/
"""


@click.command("convert", epilog=EPILOG, short_help="Convert or repair a checkpoint.")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@with_options(*WHAT, *WHERE)
@click.option(
    "--spec",
    "specs",
    multiple=True,
    metavar="[PATTERN=]SPEC",
    help="Quantize modules by this profile, JSON file or block-fp8, or recode those whose values it has; first match.",
)
@click.option("--repair", "codes", multiple=True, metavar="CODE", help="Repair what `fp4ref lint` finds by this code.")
@click.option(
    "--source",
    "high_precision",
    type=click.Path(path_type=Path),
    help="The checkpoint in high precision that `fp4ref lint` compared with, for --repair.",
)
@click.option("--convention", default="", metavar="NAME", help="SRC's convention or family, not the recognized one.")
@click.option("--lossy", is_flag=True, help="Accept losses, which are named in numbers.")
def convert(
    source: Path,
    target: Path,
    to: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    shard_bytes: int,
    as_json: bool,
    workers: int,
    rank: int,
    world: int,
    scheduler: str,
    specs: tuple[str, ...],
    codes: tuple[str, ...],
    high_precision: Path | None,
    convention: str,
    lossy: bool,
) -> None:
    """Convert the checkpoint SRC into the new directory DST.

    Codes and block scales keep their bytes unless --spec or --repair changes them; names, packing, layouts, directions
    of scales and files of configuration become those of --to. Without --to the convention stays. --spec leaves
    embeddings, lm_head, norms and routers as they are unless --include or --exclude is given, or a pattern names them.
    A run that was interrupted goes on with its finished shards if the same command is repeated.
    """
    from fp4ref.checkpoints.transfer.converting import request_to_convert

    if high_precision is not None and not codes:
        raise click.UsageError("--source is for --repair, whose findings rest on it")
    with progress(None, "lint") as step:
        request = request_to_convert(
            source,
            target,
            to=to,
            specs=specs_of(specs),
            include=include,
            exclude=exclude,
            repairs=codes,
            high_precision=high_precision,
            convention=convention,
            lossy=lossy,
            shard_bytes=shard_bytes,
            step=step,
        )
    where = {"workers": workers, "rank": rank, "world": world, "scheduler": scheduler}
    carry_out(request, where, as_json=as_json, what="convert")
