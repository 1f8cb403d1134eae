"""`fp4ref vectors`: list the golden vectors, and write them from their sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from fp4ref.cli.common import console, force_option
from fp4ref.cli.options import direction_option, multiple_option
from fp4ref.errors import FileError

EPILOG = """\b
Examples:
  fp4ref vectors list
  fp4ref vectors list nvfp4 --json
  fp4ref vectors write --check
  fp4ref vectors export golden --spec mxfp4
"""
EXPORT_EPILOG = """\b
Examples:
  fp4ref vectors export golden --spec mxfp4
  fp4ref vectors export golden --spec nvfp4 --spec nvfp4-2d --layout tiled_128x4
  fp4ref vectors export golden --spec nvfp4 --family element-ties --dtype bfloat16
  fp4ref vectors export golden --spec nvfp4 --family ragged --multiple 16 64
"""
LIST_EPILOG = """\b
Examples:
  fp4ref vectors list                every file: operation, tests, rules
  fp4ref vectors list encode         the tests of one file
  fp4ref vectors list --rule BLK-3   the tests of one rule
"""
WRITE_EPILOG = """\b
Examples:
  fp4ref vectors write --check                  exit status 1 if a file is out of date
  fp4ref vectors write                          add what is new
  fp4ref vectors write --change                 also where expected bits of a test change
  fp4ref vectors write --dir /tmp/vectors
"""


@click.group("vectors", epilog=EPILOG, short_help="Write or check the golden vectors.")
def vectors() -> None:
    """Write, list or check golden vectors: small inputs with the expected bytes, as JSON."""


@vectors.command("list", epilog=LIST_EPILOG)
@click.argument("names", metavar="[FILE]...", nargs=-1)
@click.option("--rule", "rules", multiple=True, metavar="ID", help="Only tests of this rule.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="The folder; default: the installed vectors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_vectors(names: tuple[str, ...], rules: tuple[str, ...], directory: Path | None, as_json: bool) -> None:
    """List the vector files, or the tests of some."""
    from fp4ref.conformance.vectors.files import load

    files = load(directory)
    unknown = sorted(set(names) - {file.name for file in files})
    if unknown:
        raise FileError("vectors", f"no file {', '.join(unknown)}", f"some of {', '.join(file.name for file in files)}")
    chosen = [file for file in files if not names or file.name in names]
    tests = [test for file in chosen for test in file.tests if not rules or set(rules) & set(test.rules)]
    if names or rules:
        rows = [
            (test.id, " ".join(test.rules), " ".join(test.fields["flags"]), test.fields["comment"]) for test in tests
        ]
        _show(("test", "rules", "flags", "comment"), rows, as_json)
        return
    counts = Counter(test.file for test in tests)
    summary = [
        (
            file.name,
            file.operation,
            str(counts[file.name]),
            " ".join(dict.fromkeys(r for t in file.tests for r in t.rules)),
        )
        for file in chosen
    ]
    _show(("file", "operation", "tests", "rules"), summary, as_json)


def _show(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dict(zip(headings, row, strict=True)) for row in rows], indent=1, ensure_ascii=False))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)


@vectors.command("write", epilog=WRITE_EPILOG)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("spec/vectors"),
    show_default=True,
    help="The folder.",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    default=Path("tests/data"),
    show_default=True,
    help="A folder of recorded outputs of other implementations; without it, files made from them stay as they are.",
)
@click.option("--check", is_flag=True, help="Write nothing; list the files that are out of date.")
@click.option("--change", is_flag=True, help="Allow expected bits of existing tests to change.")
@force_option
def write_vectors(directory: Path, recordings: Path, check: bool, change: bool, force: bool) -> None:
    """Write the vector files from their sources.

    Tests that exist keep their ids. A change of the expected bits of a test is an error unless --change is given.

    Exit status: 0 up to date or written, 1 out of date (--check), 2 refused.
    """
    from fp4ref.conformance.vectors import write as writing

    plan = writing.plan(directory, recordings)
    for name in plan.kept:
        click.echo(f"{name}: kept, no recording in {recordings}", err=True)
    if not plan.stale:
        click.echo(f"{directory}: up to date")
    if check:
        for name in plan.stale:
            click.echo(f"{directory / name}: out of date")
        raise SystemExit(1 if plan.stale else 0)
    if plan.changed and not change:
        shown = ", ".join(plan.changed[:5]) + (", ..." if len(plan.changed) > 5 else "")
        raise FileError("vectors write", f"other expected bits for {shown}", "--change to accept them")
    writing.write(plan, directory, force=force)
    for name in plan.stale:
        click.echo(f"{directory / name}: written")


@vectors.command("export", epilog=EXPORT_EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--spec", "specs", multiple=True, metavar="SPEC", help="A profile; by default nvfp4, mxfp4 and mxfp8-e4m3."
)
@click.option(
    "--layout", "scale_layout", default="linear", show_default=True, help="The layout of the expected scales."
)
@direction_option
@click.option(
    "--dtype", "dtypes", multiple=True, help="The type of x: float32, bfloat16 or float16; by default the first two."
)
@multiple_option
@click.option("--family", "families", multiple=True, help="Only these families of cases.")
@force_option
def export_vectors(
    folder: Path,
    specs: tuple[str, ...],
    scale_layout: str,
    direction: str,
    dtypes: tuple[str, ...],
    multiple: tuple[int, int],
    families: tuple[str, ...],
    force: bool,
) -> None:
    """Write aimed inputs with their golden bytes.

    They are for programs without Python. DIR gets, for every specification, a binary with all arrays, and a C header
    and a JSON file with the offset of each array; SHA256SUMS is for `sha256sum -c`. The same command writes the same
    bytes. docs/examples/golden_vectors.c reads them.
    """
    from fp4ref.cli.common import load_spec
    from fp4ref.conformance.vectors.export import export

    paths = export(
        folder,
        [load_spec(name) for name in specs or ("nvfp4", "mxfp4", "mxfp8-e4m3")],
        scale_layout=scale_layout,
        direction=direction,  # type: ignore[arg-type]
        dtypes=dtypes or ("float32", "bfloat16"),
        families=families or None,
        multiple=multiple,
        force=force,
    )
    for path in paths:
        click.echo(f"{path}: {path.stat().st_size:,} bytes")
