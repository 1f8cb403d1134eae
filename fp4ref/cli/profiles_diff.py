"""The differences of two specifications, as text and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import numpy as np

from fp4ref.cli.common import paragraph
from fp4ref.conformance.explain import difference
from fp4ref.conformance.explain.difference import Count
from fp4ref.conformance.explain.formulas import decimal, float_bits
from fp4ref.conformance.explain.notation import write_values
from fp4ref.conformance.explain.witness import SpecComparison, Witness
from fp4ref.spec import Spec

KINDS = {"finite": "finite input", "nan": "NaN", "inf": "Inf"}


def print_diff(found: SpecComparison) -> None:
    """Print the differences of two specifications."""
    a, b = found.a, found.b
    click.secho(f"{a.name} and {b.name}", bold=True)
    heading_text("fields that differ")
    rows = ((name, short_text(x, name), short_text(y, name)) for name, (x, y) in difference.fields(a, b).items())
    columns_text([("", a.name, b.name), *rows])
    changed = difference.functions(a, b)
    if changed:
        heading_text("functions that differ")
        for slot, ours, theirs in changed:
            click.echo(f"  {slot}")
            for name, text in ((a.name, ours), (b.name, theirs)):
                paragraph(f"{name}: {text}", 4)
    _print_counts(found)
    for witness in found.witnesses:
        _print_witness(witness, a, b)


def _print_counts(found: SpecComparison) -> None:
    bytewise = difference.same_bytes(found.a, found.b)
    heading_text("what differs")
    if not bytewise:
        paragraph("blocks or formats differ, so bytes cannot be compared one to one: dequantized values are", 2)
    differing = [count for count in found.counts if count.codes or count.scales or count.values]
    if not any(count.differs for count in found.counts):
        blocks = sum(count.blocks for count in found.counts)
        what = "bytes" if bytewise else "values"
        click.echo(f"  no difference found in the {what} of {blocks} blocks of {len(found.counts)} tensors")
    if differing:
        heads = ("input", "codes", "scale bytes", "values") if bytewise else ("input", "values")
        columns_text([heads, *(_count_row(count, bytewise) for count in differing)], right=True)
    same = [_label(count) for count in found.counts if count not in differing]
    if same and differing:
        paragraph(f"no difference: {'; '.join(same)}", 2)
    if len(difference.directions(found.a, found.b)) > len({count.direction for count in found.counts}):
        paragraph("the column direction is left out: a Hadamard transform takes bfloat16 and a multiple of 16 rows", 2)


def _label(count: Count) -> str:
    return count.name + (" (columns)" if count.direction == "column" else "")


def _count_row(count: Count, bytewise: bool) -> tuple[str, ...]:
    values = _share(count.values, count.elements)
    if not bytewise:
        return (_label(count), values)
    return (_label(count), _share(count.codes or 0, count.elements), _share(count.scales or 0, count.blocks), values)


def _share(part: int, whole: int) -> str:
    if not part:
        return "0"
    percent = 100 * part / whole
    return f"{percent:.3g} %" if percent < 99.95 or part == whole else f"{percent:.4f} %"


def _print_witness(witness: Witness, a: Spec, b: Spec) -> None:
    probe = witness.probe
    heading_text(f"witness: {witness.kind}")
    where = "" if probe.x.size == 1 else f", element [{witness.row}, {witness.column}] differs"
    amax = "" if probe.amax is None else f", global amax {decimal(probe.amax)}"
    size = "x".join(map(str, probe.x.shape))
    paragraph(f"{size} {probe.x.dtype.name}{amax}{where}: {write_values(probe.x)}", 2)
    digits = {spec.name: spec.element.format.digits for spec in (a, b)}
    rows = [("", "scale", "code", "value", "")]
    for outcome in witness.outcomes:
        code = f"0x{outcome.code:0{digits[outcome.spec]}x}"
        rows.append((outcome.spec, f"0x{outcome.scale:02x}", code, decimal(outcome.value), float_bits(outcome.value)))
    columns_text(rows)
    for spec in (a, b):
        click.secho(f"  {witness.command(spec)}", fg="cyan")


def diff_record(found: SpecComparison) -> dict[str, Any]:
    """Return the differences as JSON data."""
    return {
        "equal": False,
        "a": found.a.name,
        "b": found.b.name,
        "fields": {name: list(pair) for name, pair in difference.fields(found.a, found.b).items()},
        "functions": [change._asdict() for change in difference.functions(found.a, found.b)],
        "bytes_compared": difference.same_bytes(found.a, found.b),
        "counts": [vars(count) for count in found.counts],
        "witnesses": [_witness_record(witness, found) for witness in found.witnesses],
    }


def _witness_record(witness: Witness, found: SpecComparison) -> dict[str, Any]:
    return {
        "kind": witness.kind,
        "values": write_values(witness.probe.x),
        "shape": list(witness.probe.x.shape),
        "dtype": witness.probe.x.dtype.name,
        "direction": witness.probe.direction,
        "amax": None if witness.probe.amax is None else float_bits(np.float32(witness.probe.amax)),
        "element": [witness.row, witness.column],
        "outcomes": [vars(outcome) | {"value": float_bits(outcome.value)} for outcome in witness.outcomes],
        "explain": [witness.command(spec) for spec in (found.a, found.b)],
    }


def short_text(value: Any, field: str = "") -> str:
    """Return a field's value in one line; codes in hex."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {short_text(item, name)}" for name, item in value.items())
    if isinstance(value, list):
        return "/".join(f"{code:#x}" for code in value) if field.endswith("nan") else "x".join(map(str, value))
    if value is None or field.endswith(("signs", "overflow", "infinity")):
        return "none" if value is None else f"{value:#x}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def heading_text(text: str) -> None:
    """Print a heading."""
    click.echo()
    click.secho(text, bold=True)


def columns_text(rows: Iterable[tuple[str, ...]], right: bool = False) -> None:
    """Print aligned columns, all but the first to the right where they hold numbers."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [f"{part:>{size}}" if right else f"{part:<{size}}" for part, size in others]
        click.echo("  " + "  ".join([f"{first[0]:<{first[1]}}", *cells]).rstrip())
