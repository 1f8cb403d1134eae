"""`fp4ref statement`: check what `fp4ref verify --statement` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import click

EPILOG = """\b
Examples:
  fp4ref verify dump.npz --statement statement.json
  fp4ref statement check statement.json
  fp4ref statement check statement.json --json
"""


@click.group("statement", epilog=EPILOG, short_help="Check a statement of what was tried and found.")
def statement() -> None:
    """Read statements, which `fp4ref verify --statement FILE` writes."""


@statement.command("check", epilog=EPILOG)
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(path: Path, as_json: bool) -> None:
    """Check a statement's digest, its form, and that its counts add up.

    The digest covers what was tried and found. Facts of the machine and of the moment, such as the time
    and the compiler, are recorded beside it and are not checked.

    Exit status: 0 the statement is consistent, 1 it was changed or contradicts itself, 2 the file is no statement.
    """
    from fp4ref.conformance.verdict.statement_check import problems, read

    record = read(path)
    wrong = problems(record)
    if as_json:
        click.echo(json.dumps({"file": str(path), "digest": record.get("digest"), "problems": wrong}, indent=1))
    elif wrong:
        click.echo(f"{path}: does not hold; {len(wrong)} {'problem' if len(wrong) == 1 else 'problems'}")
        for line in wrong:
            click.echo(f"  {line}")
    else:
        found = record["found"]
        about = f"{found['subject']['name']} {'conforms' if found['conforms'] else 'does not conform'}"
        specs, failing = ", ".join(found["specs"]), len(found["failing"])
        click.echo(f"{path}: holds; {about} to {specs}: {found['cases']} cases, {failing} fail")
        for level, lacks in found.get("levels", {}).items():
            click.echo(f"  as far as was tried: {level}" + "".join(f"\n    but for {lacking}" for lacking in lacks))
        click.echo(f"  {record['digest']}")
    raise SystemExit(1 if wrong else 0)
