"""`fp4ref header`: the numerics as C++ headers, to include in a kernel or its tests."""

from __future__ import annotations

from pathlib import Path

import click

from fp4ref.cli.common import force_option
from fp4ref.files.kinds import HEADER
from fp4ref.files.targets import write_bytes
from fp4ref.specs import STANDARD

EPILOG = """\b
Examples:
  fp4ref header --dir include
  c++ -std=c++17 -ffp-contract=off -DFP4_CONTRACTION_IS_OFF -Iinclude test.cpp
"""
NOTE = "// Generated: the standard's specifications as types, for the templates of this library."


@click.command("header", epilog=EPILOG, short_help="Write the numerics as C++ headers.")
@click.option("--dir", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="Target folder.")
@force_option
def header(folder: Path, force: bool) -> None:
    """Write the C++ headers to FOLDER/fp4ref: `#include <fp4ref/specs.h>` and nothing to link.

    The headers are C++17, include no others, and compile with host compilers, nvcc and NVRTC.
    """
    import fp4ref_numerics

    target = folder / "fp4ref"
    target.mkdir(parents=True, exist_ok=True)
    for name in fp4ref_numerics.HEADERS:
        content = (fp4ref_numerics.INCLUDE / "fp4ref" / f"{name}.h").read_bytes()
        write_bytes(target / f"{name}.h", content, HEADER, force=force)
    structs = "\n".join(fp4ref_numerics.lower(spec, fp4ref_numerics.identifier(spec.name)) for spec in STANDARD)
    text = f"{NOTE}\n#pragma once\n#include <fp4ref/fp4ref.h>\n\nnamespace fp4ref {{\nnamespace specs {{\n\n"
    text += f"{structs}\n}}  // namespace specs\n}}  // namespace fp4ref\n"
    write_bytes(target / "specs.h", text.encode(), HEADER, force=force)
    click.echo(f"{target}: {len(fp4ref_numerics.HEADERS) + 1} headers")
