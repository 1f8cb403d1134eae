"""`fp4ref report`: what each specification costs on the tensors of a file, side by side."""

from __future__ import annotations

import functools
import json
import math
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from fp4ref.analysis import ErrorStatistics, error_statistics, natural_direction
from fp4ref.cli.common import force_option, load_spec, printable, progress, spec_files, table, terminal_width
from fp4ref.cli.quantize import DTYPES
from fp4ref.cli.report_rows import Row, numbers
from fp4ref.cli.selection import is_pattern, select
from fp4ref.conformance.mistakes.said import plural
from fp4ref.errors import DomainError, DTypeError, Fp4Error
from fp4ref.files import TensorFile, files_of, open_tensors
from fp4ref.files.kinds import HTML
from fp4ref.files.targets import require_target, write_bytes
from fp4ref.quantized import DIRECTIONS, Direction
from fp4ref.spec import SPEC_VERSION, Spec

EPILOG = """\b
Examples:
  fp4ref report model.safetensors
  fp4ref report model.safetensors --specs nvfp4,nvfp4-2d,mxfp8-e4m3 --html report.html
  fp4ref report model.safetensors --tensors '*attention*weight' --specs nvfp4:column,nvfp4-rht
"""
SPECS = "nvfp4,nvfp4-2d,nvfp4-row-scaled,nvfp4-4over6,nvfp4:column,nvfp4-rht,mxfp4,mxfp8-e4m3"
SKIPPED_NAMED = 5
SHADES = "░▒▓█"  # fonts without eighths of a bar have these
COLUMNS = ("spec", ">SQNR dB", ">mean rel", ">max rel", ">saturated", ">underflow", "scales, 2^n")


class ReportSubject(NamedTuple):
    """A specification in one direction."""

    label: str
    spec: Spec
    direction: Direction


@click.command("report", epilog=EPILOG, short_help="Compare the error of specifications on the tensors of a file.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--specs",
    "--spec",
    "specs",
    default=SPECS,
    show_default=SPECS.replace(",", ", "),
    help="Profiles or JSON files of them; NAME:column for x^T.",
)
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a self-contained page with plots.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--backend", help="The backend that quantizes; by default the fastest. All give the same bytes.")
@force_option
def report(
    source: Path,
    specs: str,
    patterns: tuple[str, ...],
    page: Path | None,
    as_json: bool,
    backend: str | None,
    force: bool,
) -> None:
    """Quantize each tensor of FILE (.safetensors or .npz) by several specifications, and measure the error.

    SQNR is 10 log10(sum x^2 / sum (y - x)^2); relative errors are |y - x| / |x| over x != 0. Saturated elements
    exceed the largest code's value; underflowed elements are not zero and become zero. A Hadamard transform takes
    columns (x^T) in bfloat16; compare it with NAME:column. Tensors of one dimension are left out unless --tensors names
    them.
    """
    subjects = [_subject(text) for text in specs.split(",")]
    sources = [*files_of(source), *spec_files(*(name.split(":")[0].strip() for name in specs.split(",")))]
    if page is not None:
        require_target(page, HTML, sources, force=force)
    with open_tensors(source) as file:
        names, skipped = _chosen(file, patterns)
        if not names:
            raise DTypeError(f"report {source}", "no tensor of two dimensions or more", ", ".join(DTYPES))
        with progress(len(names) * len(subjects), "report") as step:
            rows = [_measured(file, name, subjects, backend, step) for name in names]
    total = {subject.label: part for subject in subjects if (part := _total(rows, subject.label)) is not None}
    if page is not None:
        from fp4ref.cli.report_html import page_of

        write_bytes(page, page_of(source.name, rows, total).encode(), HTML, sources, force=force)
    if as_json:
        click.echo(json.dumps(_record(source, rows, total), indent=1))
        return
    for line in _lines(source, rows, total):
        click.echo(printable(line))
    if skipped:
        some = ", ".join(skipped[:SKIPPED_NAMED]) + (", ..." if len(skipped) > SKIPPED_NAMED else "")
        click.echo(printable(f"skipped {len(skipped)}, of one dimension or another element type: {some}"), err=True)


def _subject(text: str) -> ReportSubject:
    label = text.strip()
    name, colon, direction = label.rpartition(":")
    if not colon or name.endswith(":"):
        name, direction = label, ""
    spec = load_spec(name)
    if spec.stochastic:
        raise DomainError("report", f"stochastic {spec.name}", "a specification without random bits", "SR-1")
    if direction and direction not in DIRECTIONS:
        raise DomainError("report", f"direction {direction!r} of {name}", " or ".join(DIRECTIONS), "BLK-15")
    return ReportSubject(label, spec, next((d for d in DIRECTIONS if d == direction), natural_direction(spec)))


def _chosen(file: TensorFile, patterns: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return tensors to measure, and those left out."""
    names, skipped = [], []
    for name in select(file.names, patterns):
        dtype, shape = file.entry(name)
        in_full = any(pattern == name and not is_pattern(pattern) for pattern in patterns)
        if dtype in DTYPES and (len(shape) > 1 or (in_full and shape)):
            names.append(name)
        else:
            skipped.append(name)
    return names, skipped


def _measured(
    file: TensorFile, name: str, subjects: list[ReportSubject], backend: str | None, step: Callable[[str], None]
) -> Row:
    dtype, shape = file.entry(name)
    x: NDArray[Any] = np.asarray(file.read(name))
    results: dict[str, ErrorStatistics | str] = {}
    for subject in subjects:
        step(f"{name} {subject.label}")
        try:
            results[subject.label] = error_statistics(x, subject.spec, subject.direction, backend)
        except Fp4Error as error:
            if error.rule != "HAD-5":
                raise
            results[subject.label] = f"{error.got}, need {error.needed} ({error.rule})"
    return Row(name, DTYPES[dtype], shape, results)


def _total(rows: list[Row], label: str) -> ErrorStatistics | None:
    """Return all tensors that the specification could take; None if it took none."""
    parts = [part for row in rows if isinstance(part := row.results[label], ErrorStatistics)]
    return functools.reduce(operator.add, parts) if parts else None


def _lines(source: Path, rows: list[Row], total: dict[str, ErrorStatistics]) -> Iterator[str]:
    width = terminal_width() or sys.maxsize
    for row in rows:
        yield f"{row.name}  {row.dtype} {list(row.shape)}"
        yield from _side_by_side(row.results, width)
        yield ""
    elements = sum(math.prod(row.shape) for row in rows)
    yield f"{source}: {plural(len(rows), '1 tensor', 'tensors')}, {elements:,} elements (spec {SPEC_VERSION})"
    yield from _side_by_side(dict(total), width)


def _side_by_side(results: dict[str, ErrorStatistics | str], width: int) -> list[str]:
    cells = [
        (
            label,
            *(numbers(result) if isinstance(result, ErrorStatistics) else ("",) * 5),
            scales_or_reason(result),
        )
        for label, result in results.items()
    ]
    return table(COLUMNS, cells, width)


def scales_or_reason(result: ErrorStatistics | str) -> str:
    """Return the exponents of the smallest and the largest scale, a shade for each between, or why there is none."""
    if isinstance(result, str):
        return result
    bins = result.powers
    if not bins:
        return f"{result.zero_scales} zero" if result.zero_scales else "none"
    low, high = min(bins), max(bins)
    top = max(bins.values())
    shades = "".join(_shade(bins.get(power, 0), top) for power in range(low, high + 1))
    zeros = f", {result.zero_scales} zero" if result.zero_scales else ""
    return f"{low} {shades} {high}{zeros}"


def _shade(count: int, top: int) -> str:
    return " " if not count else SHADES[min(len(SHADES) - 1, math.floor(count * len(SHADES) / top))]


def _record(source: Path, rows: list[Row], total: dict[str, ErrorStatistics]) -> dict[str, Any]:
    def measured(results: dict[str, Any]) -> dict[str, Any]:
        return {
            label: {"refused": result} if isinstance(result, str) else result.to_record()
            for label, result in results.items()
        }

    tensors = [
        {"tensor": row.name, "dtype": row.dtype, "shape": list(row.shape), "specs": measured(row.results)}
        for row in rows
    ]
    return {"file": str(source), "spec_version": SPEC_VERSION, "tensors": tensors, "total": measured(dict(total))}
