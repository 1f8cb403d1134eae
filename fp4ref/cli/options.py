"""Options that several commands take."""

from __future__ import annotations

import click

from fp4ref.quantized import DIRECTIONS

direction_option = click.option(
    "--direction",
    type=click.Choice(DIRECTIONS),
    default="row",
    show_default=True,
    help="The direction of the blocks.",
)
level_option = click.option(
    "--level",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="1: the cases of a second or two; 2: also large tensors and every bit pattern.",
)
multiple_option = click.option(
    "--multiple",
    nargs=2,
    type=click.IntRange(1),
    default=(1, 1),
    metavar="R C",
    help="Only shapes whose rows and columns are multiples of these.",
)
