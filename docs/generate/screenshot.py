"""Draw the terminal that a wrong kernel's author sees.

    python docs/generate/screenshot.py

Runs the command for real and writes docs/diagnosis.svg, which the README shows.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "diagnosis.svg"
WIDTH = 126
INK = (222, 222, 222)  # its dim shade has the contrast that small text needs
COMMAND = "fp4ref verify --kernel ties_up.py:quantize --spec nvfp4 --limit 4"


def output() -> str:
    """Run the command on a terminal of this width and return its output, with colours."""
    ran = subprocess.run(
        [sys.executable, "-m", *shlex.split(COMMAND)],
        cwd=HERE.parent / "examples",
        env={**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def svg(printed: str) -> str:
    """Return the terminal as SVG that loads nothing; its description is the first line that was printed."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), COMMAND))
    console.print(Text.from_ansi(printed.rstrip()), end="\n\n")
    colours = [tuple(SVG_EXPORT_THEME.ansi_colors[i]) for i in range(16)]
    theme = TerminalTheme(tuple(SVG_EXPORT_THEME.background_color), INK, colours[:8], colours[8:])
    drawn = console.export_svg(title="fp4ref verify", theme=theme, unique_id="fp4ref")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    first = Text.from_ansi(printed).plain.splitlines()[0]
    return re.sub(r"(<svg[^>]*>)", rf"\1\n<title>A terminal: {COMMAND}</title><desc>{first}</desc>", drawn, count=1)


if __name__ == "__main__":
    TARGET.write_text(svg(output()) + "\n", "utf-8")
