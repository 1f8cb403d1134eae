"""Print pages to PDF with Chromium; `printed.py OUT.pdf` prints the cheat sheet on one sheet of A4."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fp4ref.diagrams import catalogue

SHEET = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>fp4ref cheat sheet</title>'
    "<style>@page {{ size: A4 landscape; margin: 8mm }} body {{ margin: 0 }}"
    " svg {{ display: block; margin: auto; width: 100%; height: 192mm }}</style><body>{}</body></html>"
)


def browser() -> str | None:
    """Return the path of Chromium, or None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def printed(source: Path, target: Path) -> None:
    """Print a page of HTML to a PDF."""
    found = browser()
    if found is None:
        sys.exit("no chromium to print a PDF with: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={target}"]
    subprocess.run([found, *options, source.resolve().as_uri()], check=True, capture_output=True)


def cheat_sheet(target: Path) -> None:
    """Print the figure `cheat-sheet`, in light colours."""
    drawn = catalogue.draw("cheat-sheet", theme="light")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "sheet.html")
        page.write_text(SHEET.format(drawn[drawn.index("<svg") :]), "utf-8")
        printed(page, target)


if __name__ == "__main__":
    cheat_sheet(Path(sys.argv[1]))
