"""Write the page that says which consumer wants which layout.

    python docs/generate/field_layouts.py OUT.md

Every line comes from the registered layouts and their origins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from fp4ref import relayouts
from fp4ref.layout import ORIGINS, STANDARD_LAYOUTS
from fp4ref.layout.field_scales import SCALES

INTRO = """# Which consumer wants which layout

Libraries and kernels store block scales and packed codes in many orders. Buffers of two orders often have one size, so
a wrong one goes unnoticed until the numbers are wrong. The names below work wherever fp4ref asks for a layout, and for
`fp4ref.repack` where they are packings. This page is generated from the registered layouts; `fp4ref layouts` prints the
same, `fp4ref layouts compare A B` shows where two differ, and `fp4ref layouts find FROM.npy TO.npy` names the order of
a buffer. LAY-13 and LAY-14 explain the texts.
"""
SCALE_NAMES = {entry.name for entry in SCALES}
SAME = """## One map, several names

Layouts in one line have the same digits in the same order. They may differ in padding, which moves what is stored after
it, and in the sizes that they refuse.
"""


def page() -> Iterator[str]:
    """Yield the parts of the page."""
    yield INTRO
    yield "## Scales\n\n" + table(name for name in ORIGINS if name in SCALE_NAMES)
    yield "## Packed data\n\n" + table(name for name in ORIGINS if name not in SCALE_NAMES)
    yield SAME + "\n".join(same()) + "\n"


def table(names: Iterator[str]) -> str:
    """Return a table of layouts, their consumers and what was checked."""
    rows = ["| consumer | name | text | owner, version | checked |", "|---|---|---|---|---|"]
    for name in sorted(names, key=lambda name: ORIGINS[name].consumer.lower()):
        origin, text = ORIGINS[name], relayouts.named(name).text.replace("|", "\\|")
        rows.append(f"| {origin.consumer} | `{name}` | `{text}` | {origin.owner} {origin.version} | {origin.checked} |")
    return "\n".join(rows) + "\n"


def same() -> Iterator[str]:
    """Yield the names that share a map, whatever their padding."""

    def key(name: str) -> str:
        form = relayouts.named(name).map
        return f"{[axis.radices for axis in form.axes]} {form.order} {form.unit} {form.base} {form.table}"

    names = [form.name for form in STANDARD_LAYOUTS] + list(ORIGINS)
    for _, group in groupby(sorted(names, key=key), key=key):
        shared = list(group)
        if len(shared) > 1:
            yield "* " + ", ".join(f"`{name}`" for name in shared)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(page()), "utf-8")
