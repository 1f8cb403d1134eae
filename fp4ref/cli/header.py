"""`fp4ref header`: the numerics as C++ headers, to include in a kernel or its tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from fp4ref.specs import STANDARD

EPILOG = """\b
Examples:
  fp4ref header --dir include
  c++ -std=c++17 -ffp-contract=off -DFP4_CONTRACTION_IS_OFF -Iinclude test.cpp
"""
NOTE = "// Generated: the standard's specifications as types, for the templates of this library."


@click.command("header", epilog=EPILOG, short_help="Write the numerics as C++ headers.")
@click.option("--dir", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="Target folder.")
def header(folder: Path) -> None:
    """Write the C++ headers to FOLDER/fp4ref: `#include <fp4ref/specs.h>` and nothing to link.

    They are C++17, include no other header, and serve host compilers, nvcc and NVRTC.
    """
    import fp4ref_numerics

    target = folder / "fp4ref"
    target.mkdir(parents=True, exist_ok=True)
    for name in fp4ref_numerics.HEADERS:
        shutil.copyfile(fp4ref_numerics.INCLUDE / "fp4ref" / f"{name}.h", target / f"{name}.h")
    structs = "\n".join(fp4ref_numerics.lower(spec, fp4ref_numerics.identifier(spec.name)) for spec in STANDARD)
    text = f"{NOTE}\n#pragma once\n#include <fp4ref/fp4ref.h>\n\nnamespace fp4ref {{\nnamespace specs {{\n\n"
    text += f"{structs}\n}}  // namespace specs\n}}  // namespace fp4ref\n"
    (target / "specs.h").write_text(text, encoding="utf-8")
    click.echo(f"{target}: {len(fp4ref_numerics.HEADERS) + 1} headers")
