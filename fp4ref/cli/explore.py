"""`fp4ref explore`: the explorer as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from fp4ref.cli.common import force_option
from fp4ref.explorer.page import html
from fp4ref.files.kinds import HTML
from fp4ref.files.targets import write_bytes

EPILOG = """\b
Examples:
  fp4ref explore
  fp4ref explore -o where.html
"""


@click.command("explore", epilog=EPILOG, short_help="Write the explorer, one HTML file.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default="explorer.html", show_default=True
)
@force_option
def explore(output: Path, force: bool) -> None:
    """Write the explorer, which shows the nibble, scale, tile and quantization steps of any element.

    The page is one file and needs no network. A link can choose what it shows first:
    explorer.html#spec=mxfp4&shape=160x256&element=37,130
    """
    write_bytes(output, html().encode(), HTML, force=force)
    click.echo(f"{output}: open it in a browser")
