"""The folder of the standard: its chapters and vectors are data of the package, or stand beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from fp4ref.errors import FileError

PACKAGE = Path(__file__).resolve().parent
FIRST_CHAPTER = "01-conventions.md"


def spec_root(package: Path = PACKAGE) -> Path:
    """Return the folder of the standard: `_spec` in an installed package, `../spec` in a checkout."""
    places = (package / "_spec", package.parent / "spec")
    for place in places:
        if (place / FIRST_CHAPTER).is_file():
            return place
    raise FileError("standard", "no chapters beside or in the package", f"one of {', '.join(map(str, places))}")
