"""`fp4ref merge`: the checkpoint of the shards that several ranks wrote."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fp4ref.cli.checkpoint_options import print_manifest

EPILOG = """\b
Examples:
  fp4ref merge Qwen3-8B-CT/
"""


@click.command("merge", epilog=EPILOG, short_help="Join the shards that several ranks wrote.")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest, one JSON object.")
def merge(target: Path, as_json: bool) -> None:
    """Make the checkpoint DST of the shards that `fp4ref convert DST --rank R --world N` wrote, once all are there."""
    from fp4ref.checkpoints.transfer.work import finish

    manifest = finish(target.absolute())
    if as_json:
        click.echo(json.dumps(manifest, indent=1))
    else:
        print_manifest(target, manifest)
