"""`fp4ref doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import click

from fp4ref.catalogue import PROFILES
from fp4ref.cli.common import load_every_extension, paragraph
from fp4ref.conformance.run.machine import HINT, MachineReport, examine

DIFFERS = 1

EPILOG = """\b
Examples:
  fp4ref doctor
  fp4ref doctor --json
"""


@click.command("doctor", epilog=EPILOG, short_help="Show what works on this machine, and why the rest does not.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Show versions, backends, devices and compilers, and check that subnormals are computed.

    Exit status: 1 if this machine flushes subnormals to zero, because then no result can be trusted; else 0. A missing
    backend is reported; it is an error only if you ask for it by name.
    """
    load_every_extension()  # so that the profiles that distributions declare are counted, and what fails is told
    report = examine()
    if as_json:
        record = dataclasses.asdict(report) | {"flush": report.flush._asdict(), "healthy": report.healthy}
        click.echo(json.dumps(record, indent=1))
    else:
        _print(report)
    if not report.healthy:
        raise SystemExit(DIFFERS)


def _print(report: MachineReport) -> None:
    _section("versions", report.versions)
    _section("backends", {name: "available" if why is None else why for name, why in report.backends.items()})
    _section("profiles", {name: served(len(PROFILES), reasons) for name, reasons in report.refused.items()})
    devices = {f"cuda:{i}": f"{d.name}, compute capability {d.capability}" for i, d in enumerate(report.devices)}
    _section("devices", {"cpu": report.system["processor"], **(devices or {"cuda": report.devices_reason})})
    _section("compilers", report.compilers)
    _section("optional packages", report.packages)
    _section("system", {name: value for name, value in report.system.items() if name != "processor"})
    flushed = {name: "flushed to zero" if lost else "kept" for name, lost in report.flush._asdict().items()}
    _section("subnormals", flushed)
    click.echo()
    if report.healthy:
        click.secho("this machine can run fp4ref", fg="green", bold=True)
    else:
        click.secho(f"this machine flushes subnormals to zero: need {HINT} [CNF-4]", fg="red", bold=True)


def served(count: int, refused: Mapping[str, Sequence[str]]) -> str:
    """Print the number of `count` profiles that a backend serves, and where the reasons are."""
    missing = sum(map(len, refused.values()))
    return f"{count - missing} of {count}" + (f"; fp4ref profiles backends says why not {missing}" if missing else "")


def _section(title: str, rows: Mapping[str, str | None]) -> None:
    click.secho(title, bold=True)
    width = max(map(len, rows), default=0)
    for name, value in rows.items():
        absent = value is None
        paragraph(f"{name:<{width}}  {'not found' if absent else value}", 2, dim=absent)
