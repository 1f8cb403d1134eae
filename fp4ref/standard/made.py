"""The parts of the chapters that are generated: a function writes the text between two marks from the records.

    <!-- made: own-specs -->
    | spec | ...
    <!-- end -->

`fp4ref rules --write` writes these parts anew, and `fp4ref rules --check` fails if one of them has drifted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fp4ref.spec_root import spec_root
from fp4ref.standard import offsets, records
from fp4ref.standard.example import example
from fp4ref.standard.history import history
from fp4ref.standard.levels import levels
from fp4ref.standard.special import special_values

MADE = re.compile(r"(?m)^<!-- made: (?P<name>[a-z0-9-]+) -->\n(?P<text>(?:(?!<!-- ).*\n)*?)^<!-- end -->$")
OPENING = re.compile(r"(?m)^<!-- (?:made: .*|end) -->$")
PARTS: dict[str, Callable[[], str]] = {
    "constants": records.constants,
    "element-formats": records.element_formats,
    "example": example,
    "e2m1-codes": records.codes_of_e2m1,
    "field-offsets": offsets.field_offsets,
    "history": history,
    "levels": levels,
    "packing-offsets": offsets.packing_offsets,
    "standard-offsets": offsets.standard_offsets,
    "tile-of-128x4": offsets.tile_of_128x4,
    "tile-of-8x4": offsets.tile_of_8x4,
    "own-specs": records.own_specs,
    "own-arithmetics": records.own_arithmetics,
    "own-codecs": records.own_codecs,
    "profiles": records.profiles,
    "special-values": special_values,
}


def gaps(spec: Path | None = None) -> list[str]:
    """Return one line for each generated part that is not what its records give, and for each broken mark."""
    spec = spec or spec_root()
    found, seen = [], []
    for path in sorted(spec.rglob("*.md")):
        text = path.read_text("utf-8")
        parts = [*MADE.finditer(text)]
        if len(OPENING.findall(text)) != 2 * len(parts):
            found.append(f"{path.name}: a mark of a generated part has no partner")
        for part in parts:
            seen.append(part["name"])
            if part["name"] not in PARTS:
                found.append(f"{path.name}: no function makes the part {part['name']}")
            elif part["text"] != PARTS[part["name"]]():
                line = text.count("\n", 0, part.start()) + 1
                found.append(f"{path.name}:{line}: the part {part['name']} has drifted; fp4ref rules --write")
    return found + [f"the part {name} is in no chapter" for name in PARTS if name not in seen]


def write(spec: Path | None = None) -> list[str]:
    """Write every generated part anew, and return the names of the files that changed."""
    changed = []
    for path in sorted((spec or spec_root()).rglob("*.md")):
        text = path.read_text("utf-8")
        fresh = MADE.sub(_anew, text)
        if fresh != text:
            path.write_text(fresh, "utf-8")
            changed.append(path.name)
    return changed


def _anew(part: re.Match[str]) -> str:
    make = PARTS.get(part["name"])
    return part[0] if make is None else f"<!-- made: {part['name']} -->\n{make()}<!-- end -->"
