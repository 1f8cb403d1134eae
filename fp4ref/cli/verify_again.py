"""The command line that shows a failure of `fp4ref verify` again."""

from __future__ import annotations

import shlex
from pathlib import Path

from fp4ref.cli.common import repeat_options

OF_A_CASE = [
    "--import",
    "--kernel",
    "--library",
    "--signature",
    "--spec",
    "--layout",
    "--nibbles",
    "--packing",
    "--direction",
    "--device",
    "--level",
    "--weights",
    "--timeout",
    "--start-timeout",
]  # options with which a case is the same again
SEEDED = frozenset({"--forever", "--seed"})


def see_again(*words: str) -> str:
    """Return the line that names this command with the options that decide a case, and more words of its own."""
    return f"see it again: fp4ref verify {repeat_options(OF_A_CASE)} {shlex.join(words)}"


def see_saved(path: Path) -> str:
    """Return the line that names the command for a saved block."""
    return f"see it again: fp4ref verify {shlex.quote(str(path))}"
