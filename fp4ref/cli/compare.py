"""`fp4ref compare`: where two checkpoints, manifests or modules differ, and at which stage first."""

from __future__ import annotations

import json

import click

from fp4ref.cli.common import DIFFERS, paragraph, printable
from fp4ref.cli.manifest import signatures

EPILOG = """\b
Examples:
  fp4ref compare Qwen3-8B-NVFP4/ Qwen3-8B-CT/
  fp4ref compare training.json rollout.json --require decisions
"""
LEVELS = ("bytes", "values", "decisions")
SHOWN = 3


@click.command("compare", epilog=EPILOG, short_help="Compare two checkpoints, manifests or modules.")
@click.argument("one", metavar="A")
@click.argument("two", metavar="B")
@click.option("--require", type=click.Choice(LEVELS), default="bytes", show_default=True, help="Exit 1 below this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(one: str, two: str, require: str, as_json: bool) -> None:
    """Compare A and B, each a checkpoint, a manifest's file or MODULE:FUNCTION, whatever their conventions.

    The command names tensors that are quantized on one side only, that have another format or scale, and for each the
    first stage that differs: global scale, block scales, codes.
    """
    from fp4ref.checkpoints.compare import Sameness
    from fp4ref.checkpoints.compare import compare as compared

    found = compared(signatures(one), signatures(two))
    if as_json:
        click.echo(json.dumps(found.to_record(), indent=1))
    else:
        kinds: dict[str, list[tuple[str, str]]] = {}
        for each in found.differences:
            kinds.setdefault(each.kind, []).append((each.name, each.text))
        for kind, tensors in kinds.items():
            some = "; ".join(f"{name} ({text})" for name, text in tensors[:SHOWN])
            more = f"; and {len(tensors) - SHOWN} more" if len(tensors) > SHOWN else ""
            paragraph(printable(f"{kind}: {len(tensors)} tensor{'s' * (len(tensors) > 1)}: {some}{more}"))
        same = {
            Sameness.BYTES: "the same bytes",
            Sameness.VALUES: "the same values, in other bytes",
            Sameness.DECISIONS: "the same formats, with other scales or codes",
            Sameness.NOTHING: "not quantized alike",
        }[found.sameness]
        paragraph(f"{found.tensors} tensors, {len(found.differences)} differ: {same}")
    raise SystemExit(0 if found.sameness >= Sameness[require.upper()] else DIFFERS)
