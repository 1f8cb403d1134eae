"""Options of the commands that write checkpoints, and the lines that they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp4ref.cli.common import load_spec, printable, progress

if TYPE_CHECKING:
    from fp4ref.checkpoints.transfer.request import ConversionRequest
    from fp4ref.spec import Spec

Function = TypeVar("Function", bound=Callable[..., Any])
SHOWN = 5  # lines of losses and remarks

WHERE = (
    click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Local processes."),
    click.option("--rank", type=click.IntRange(0), default=0, help="Write only the shards of this rank, of --world."),
    click.option(
        "--world", type=click.IntRange(1), default=1, help="The number of ranks; `fp4ref merge` joins their shards."
    ),
    click.option("--scheduler", default="", metavar="ADDRESS", help="Run on the workers of this Dask scheduler."),
)
WHAT = (
    click.option(
        "--to", default="", metavar="CONVENTION", help="A family, such as modelopt, or one of its conventions."
    ),
    click.option(
        "--include", multiple=True, metavar="PATTERN", help="Quantize only these modules; `*` matches dots too."
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these modules as they are."),
    click.option(
        "--shard-bytes", type=click.IntRange(1), default=5_000_000_000, show_default=True, help="Bytes of a shard."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the manifest, one JSON object."),
)


def with_options(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return a decorator that adds options to a command."""

    def decorated(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def specs_of(texts: tuple[str, ...]) -> list[tuple[str, Spec | str]]:
    """Return patterns of modules with their specifications or block-fp8, of texts SPEC or PATTERN=SPEC."""
    from fp4ref.checkpoints.lossless import BLOCK_FP8

    pairs = (text.rpartition("=")[::2] for text in texts)
    return [(pattern or "*", name if name == BLOCK_FP8 else load_spec(name)) for pattern, name in pairs]


def carry_out(request: ConversionRequest, where: dict[str, Any], *, as_json: bool, what: str) -> None:
    """Do a conversion with a bar of progress, and print what became of it."""
    from fp4ref.checkpoints.transfer.running import run

    with progress(None, what) as step:
        manifest = run(request, **where, tell=step)
    if manifest is None:
        count = f"rank {where['rank']} of {where['world']}"
        click.echo(printable(f"{request.target}: {count} is done; join them by `fp4ref merge {request.target}`"))
    elif as_json:
        click.echo(json.dumps(manifest, indent=1))
    else:
        print_manifest(Path(request.target), manifest)


def print_manifest(target: Path, manifest: dict[str, Any]) -> None:
    """Print what a conversion wrote, and what it cost."""
    weights = ", ".join(f"{count} {name}" for name, count in manifest["conventions"].items())
    tensors = sum(len(each) for each in manifest["tensors"].values())
    size = sum(each["size"] for each in manifest["files"].values())
    click.echo(printable(f"{target}: {weights or 'no quantized weight'}; {tensors} tensors, {size:,} bytes"))
    scales, error = manifest["scales"], manifest["largest_scale_error"]
    if moved := scales.get("rounded", 0) + scales.get("ulp", 0):
        exact = scales.get("exact", 0)
        click.echo(
            f"global and input scales: {exact} exact, {moved} rounded by at most {error:.2g} to another direction, "
            f"of which {scales.get('ulp', 0)} would come back an ulp off; the metadata keeps their original bits"
        )
    for kind in ("losses", "remarks"):
        texts = manifest[kind]
        for text in texts[:SHOWN]:
            click.echo(printable(f"{kind[:-2] if kind == 'losses' else kind[:-1]}: {text}"))
        if len(texts) > SHOWN:
            click.echo(f"and {len(texts) - SHOWN} {kind} more, all in the manifest")
