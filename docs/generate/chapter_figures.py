"""The figures of the standard's chapters, each behind the rule that it shows most of all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fp4ref.diagrams import catalogue

IN_CHAPTER = {
    "02-element-formats": ("e2m1", "e4m3", "e5m2", "e2m3", "e3m2"),
    "03-scale-formats": ("e8m0", "mxfp8-scales"),
    "04-packing": ("packing",),
    "05-block-scaling": ("blocks", "blocks-2d", "directions", "formats-compared"),
    "06-global-scaling": ("hierarchy", "hierarchy-row-scaled"),
    "07-hadamard": ("hadamard", "directions-hadamard"),
    "08-layouts": ("tiled_128x4-element", "tensor-memory", "tiled_8x4-element", "linear-tiled-element"),
    "09-stochastic-rounding": ("stochastic",),
    "10-four-over-six": ("pipeline-nvfp4-4over6",),
    "12-specs": ("pipeline",),
    "15-gemm": ("gemm",),
    "16-recipes-and-caching": ("weight-cache",),
}


def sections(chapter: Path, figure: Callable[[str], str]) -> list[str]:
    """Return the sections of a chapter's text, with `figure(name)` at the end of the section that the figure shows."""
    found = re.split(r"(?m)^(?=#{2,4} )", chapter.read_text("utf-8"))
    for name in IN_CHAPTER.get(chapter.stem, ()):
        rules = catalogue.cited(name)
        at = next((i for rule in rules for i, s in enumerate(found) if s.startswith(f"#### {rule} ")), 0)
        found[at] = f"{found[at].rstrip()}\n\n{figure(name)}\n\n"
    return found
