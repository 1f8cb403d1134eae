"""Write the page with every figure and its command.

python docs/generate/gallery.py OUT.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from fp4ref.diagrams import catalogue

INTRO = """# All figures

Each figure is drawn from the objects that the code runs, so it cannot disagree with them. The command under it draws
it; `--shape`, `--element`, `--spec` and `--direction` draw your own case. A click on a figure opens it in full size.
"""


def main(target: Path) -> None:
    """Write the page."""
    names = [*catalogue.FIGURES, *(variant for variant, _, _ in catalogue.VARIANTS)]
    parts = [INTRO]
    for name in names:
        shown = ", ".join(catalogue.cited(name))
        parts.append(f"## {name}\n\n```{{drawn}} {name}\n```\n\n{f'Rules: {shown}.' if shown else ''}\n")
    target.write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
