"""`fp4ref lint`: what is wrong with a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp4ref.cli.common import REFUSED, force_option, paragraph, printable, progress
from fp4ref.cli.selection import tensor_count
from fp4ref.errors import FileError
from fp4ref.files.kinds import HTML, SARIF
from fp4ref.files.targets import require_target, write_bytes

if TYPE_CHECKING:
    from fp4ref.checkpoints.lint import LintReport

EPILOG = """\b
Examples:
  fp4ref lint Qwen3-8B-NVFP4/
  fp4ref lint model.gguf --json
  fp4ref lint Qwen3-8B-NVFP4/ --source Qwen3-8B/ --html report.html
  fp4ref lint Qwen3-8B-NVFP4/ --header-only --consumer vllm
"""


@click.command("lint", epilog=EPILOG, short_help="Find what is wrong with a checkpoint.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--source", type=click.Path(path_type=Path), help="The checkpoint in high precision, to compare with.")
@click.option(
    "--consumer", metavar="NAME", help="Judge for this consumer only, such as vllm: what breaks others becomes a note."
)
@click.option("--convention", metavar="NAME", help="The convention or its family, instead of the recognized one.")
@click.option("--header-only", is_flag=True, help="Read headers and configuration, no tensors.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, help="Local processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Also write a SARIF log to this file.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write a page to this file.")
@force_option
def lint(
    path: Path,
    source: Path | None,
    consumer: str | None,
    convention: str | None,
    header_only: bool,
    workers: int,
    as_json: bool,
    sarif: Path | None,
    html: Path | None,
    force: bool,
) -> None:
    """Find what is wrong with the checkpoint PATH: a directory, a .safetensors file or a .gguf file.

    Exit status: 0 nothing, 1 an error or a warning, 2 the checkpoint cannot be read.
    """
    from fp4ref.checkpoints.lint import lint as check

    if header_only and source is not None:
        raise click.UsageError("--source needs the bytes, which --header-only does not read")
    read = [each for each in (path, source) if each is not None and each.is_file()]
    for target, kind in ((sarif, SARIF), (html, HTML)):
        if target is not None:
            require_target(target, kind, read, force=force)
    if sarif is not None and html is not None and sarif.absolute() == html.absolute():
        raise FileError("lint", f"{sarif} for both --sarif and --html", "two files", "FIL-4")
    with progress(None, "lint") as step:
        report = check(
            path,
            source=source,
            consumer=consumer,
            convention=convention,
            header_only=header_only,
            workers=workers,
            step=step,
        )
    if as_json:
        click.echo(json.dumps(report.to_record(), indent=1))
    else:
        _print(report)
    if sarif is not None or html is not None:
        from fp4ref.checkpoints import pages

        if sarif is not None:
            write_bytes(sarif, pages.sarif(report).encode(), SARIF, read, force=force)
        if html is not None:
            write_bytes(html, pages.html(report).encode(), HTML, read, force=force)
    if report.failure:
        why = report.failure.removeprefix(f"{Path(report.path).name}: ")
        click.echo(f"fp4ref: {printable(report.path)}: {printable(why)}", err=True)
        raise SystemExit(REFUSED)
    raise SystemExit(report.status)


def _print(report: LintReport) -> None:
    """Print each finding, with how it breaks consumers, and a summary; a command stays on one line."""
    for each in report.findings:
        paragraph(printable(f"{each.severity}: {each.code}: {each.message}"))
        for name, how in each.consumers.items():
            paragraph(printable(f"{name} {how}"), indent=2)
        if each.repair:
            click.echo(printable(f"  repair: {each.repair}"))
    for remark in report.remarks:
        paragraph(printable(f"note: {remark}"))
    depth = "headers only" if report.header_only else f"{report.read_bytes:,} bytes read"
    found = f"{len(report.findings)} finding{'s' * (len(report.findings) > 1)}" if report.findings else "nothing found"
    conventions = ", ".join(report.families) or "not recognized"
    conventions = "not quantized" if conventions == "none" else conventions
    paragraph(printable(f"{report.path}: {conventions}; {tensor_count(report.tensors)}, {depth}: {found}"))
