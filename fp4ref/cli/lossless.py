"""`fp4ref lossless`: whether another format has every value of a checkpoint exactly."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fp4ref.cli.common import DIFFERS, load_spec, printable, progress

EPILOG = """\b
Examples:
  fp4ref lossless gpt-oss-20b/ --to nvfp4
  fp4ref lossless Qwen3-8B-NVFP4/ --to mxfp4 --json
  fp4ref lossless gpt-oss-20b/ --to block-fp8
"""


@click.command("lossless", epilog=EPILOG, short_help="Say whether a cast of a checkpoint is exact.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--to", required=True, metavar="SPEC", help="A profile, a JSON file of one, or block-fp8.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lossless(path: Path, to: str, as_json: bool) -> None:
    """Say for each quantized weight of PATH whether the formats of --to have every value exactly.

    Codes and block scales may change, and the global scale may be multiplied by 2^m or 3 * 2^m. A weight that is not
    exact has the number of its blocks that are, and the first that is not. Where the specification's own quantizer
    would change the values or the scale of a block, the number of such blocks is added. Exit status: 0 all exact,
    1 some not.
    """
    from fp4ref.checkpoints.checkpoint import open_checkpoint
    from fp4ref.checkpoints.groups import recognize
    from fp4ref.checkpoints.lossless import BLOCK_FP8, LosslessVerdict, judge, target_of
    from fp4ref.checkpoints.round_trips import requantize
    from fp4ref.checkpoints.transfer.reading import read_weight
    from fp4ref.errors import DomainError

    spec = None if to == BLOCK_FP8 else load_spec(to)
    target = target_of(BLOCK_FP8 if spec is None else spec)
    checkpoint = open_checkpoint(path)
    checkpoint.require_readable()
    groups = recognize(checkpoint).groups
    if not groups:
        raise DomainError("lossless", f"no quantized weight in {path}", "some", "CNV-18")
    verdicts = list[LosslessVerdict]()
    with progress(len(groups), "lossless") as step:
        for group in groups:
            step(group.module)
            verdicts.append(judge(weight := read_weight(group), target))
            if spec is not None and not spec.stochastic:
                requantize(weight, spec, verdicts[-1])
    checkpoint.require_unchanged()
    bad = [each for each in verdicts if not each.lossless]
    if as_json:
        keys = ("module", "blocks", "exact", "condition", "witness", "moved", "rescaled", "first")
        rows = [{"lossless": each.lossless, **{key: getattr(each, key) for key in keys}} for each in verdicts]
        click.echo(json.dumps({"to": target.name, "weights": rows}, indent=1))
    else:
        for each in verdicts:
            said = f"exact{f', with {each.condition}' if each.condition else ''}"
            said = said if each.lossless else f"{each.exact} of {each.blocks} blocks exact; {each.witness}"
            if each.first:
                moved = f"changes values of {each.moved} blocks"
                moved += f" and the scale of {each.rescaled}" if each.rescaled else ""
                said += f"; its quantizer {moved}, the first at {each.first}"
            click.echo(printable(f"{each.module}: {said}"))
        click.echo(f"{len(verdicts) - len(bad)} of {len(verdicts)} weights are exactly {target.name}")
    raise SystemExit(DIFFERS if bad else 0)
