"""`fp4ref profiles`: the specifications, and where two of them differ."""

from __future__ import annotations

import fnmatch
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import PROFILES, PROMISES
from fp4ref.cli.common import load_spec
from fp4ref.cli.explain import read_tensor
from fp4ref.cli.profiles_check import check
from fp4ref.conformance.explain import difference, table
from fp4ref.conformance.explain.difference import Count
from fp4ref.conformance.explain.formulas import decimal, float_bits
from fp4ref.conformance.explain.notation import write_values
from fp4ref.conformance.explain.witness import SpecComparison, Witness, compare
from fp4ref.conformance.run.machine import refused
from fp4ref.errors import FileError
from fp4ref.files import open_tensors
from fp4ref.spec import Spec

EPILOG = """\b
Examples:
  fp4ref profiles
  fp4ref profiles --match "torchao*"
  fp4ref profiles show nvfp4
  fp4ref profiles backends
  fp4ref profiles diff nvfp4 te.python_reference
  fp4ref profiles diff torchao.nvfp4_2lvl modelopt.nvfp4
  fp4ref profiles diff mxfp4 nvfp4 model.safetensors:lm_head.weight
"""
DIFF_EPILOG = """\b
Examples:
  fp4ref profiles diff nvfp4 nvfp4-fast
  fp4ref profiles diff nvfp4 torchao.nvfp4_2lvl model.safetensors:lm_head.weight
  fp4ref profiles diff compressed_tensors.mxfp4 torchao.mxfp4_even --json
"""
BACKENDS_EPILOG = """\b
Examples:
  fp4ref profiles backends
  fp4ref profiles backends --match "jax*"
"""
SHOW_EPILOG = """\b
Example:
  fp4ref profiles show nvfp4-4over6 > mine.json
"""
KINDS = {"finite": "finite input", "nan": "NaN", "inf": "Inf"}
TENSORS_NAMED = 5  # in an error


@click.group("profiles", epilog=EPILOG, invoke_without_command=True, short_help="List the specifications; compare two.")
@click.option("--match", "pattern", default="*", metavar="PATTERN", help="Only names like torchao* or *mxfp4*.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def profiles(context: click.Context, pattern: str, as_json: bool) -> None:
    """List the specifications: this standard's own, and those of other implementations.

    Above each group stand the versions that it models, how they were checked, and for which inputs its bytes are
    promised. An older version has a name of its own, such as torchao.mxfp4_even@0.18.0. A name works wherever a
    specification is asked for. Settings that equal the standard's are left out.
    """
    if context.invoked_subcommand is not None:
        return
    names = [name for name in PROFILES if fnmatch.fnmatchcase(name, pattern)]
    if as_json:
        click.echo(json.dumps([_record(name) for name in names], indent=1))
    elif names:
        _table(names)
    else:
        click.echo(f"no name matches {pattern!r}", err=True)


def _record(name: str) -> dict[str, Any]:
    promise = PROMISES.get(name)
    return {
        "name": name,
        "source": PROFILES.source(name),
        "promise": promise and promise.record(),
        "spec": json.loads(PROFILES[name].to_json()),
    }


def _evidence(name: str) -> tuple[str, str]:
    """Return where a profile's numbers come from, and for which inputs its bytes are promised. Rules: PRO-1, PRO-2."""
    promise = PROMISES.get(name)
    said = "" if promise is None else "; ".join(f"{KINDS[kind]}: {claim}" for kind, claim in promise.claims.items())
    return PROFILES.source(name), said


def _table(names: list[str]) -> None:
    """Print one line per profile, under the note on where its numbers come from and what is promised."""
    width = _width()
    for evidence in dict.fromkeys(map(_evidence, names)):
        rows = [_row(name) for name in names if _evidence(name) == evidence]
        widths = [max(map(len, column)) for column in zip(table.HEADINGS, *rows, strict=True)]
        source, promise = evidence
        click.secho(source or "registered by a user", bold=True)
        if promise:
            click.secho("\n".join(_wrapped(f"equal bytes, {promise}", 2, width)))
        for number, row in enumerate([table.HEADINGS, *rows]):
            head = "  " + "".join(f"{part:<{size + 2}}" for part, size in zip(row[:-1], widths, strict=False))
            beside = width is None or len(head) + widths[-1] <= width
            click.secho((head + row[-1] if beside else head).rstrip(), dim=number == 0)
            if not beside and number and row[-1]:
                click.secho("\n".join(_wrapped(row[-1], 6, width)), dim=True)
        click.echo()
    click.echo(f"{len(names)} of {len(PROFILES)} profiles")


def _row(name: str) -> tuple[str, ...]:
    """Return the cells of a profile; one that only repeats another says so."""
    *cells, others = table.row(PROFILES[name])
    same = next(other for other in PROFILES if PROFILES[other] == PROFILES[name])
    notes = [f"equals {same}"] if same != name else []
    return (*cells, ", ".join([*notes, *filter(None, [others])]))


@profiles.command("show", epilog=SHOW_EPILOG, short_help="Print the whole record as JSON.")
@click.argument("name")
def show(name: str) -> None:
    """Print a specification as JSON. You may edit it, and give the file to --spec."""
    click.echo(load_spec(name).to_json())


@profiles.command(
    "backends", epilog=BACKENDS_EPILOG, short_help="Show which backends serve which profiles, and why not."
)
@click.option("--match", "pattern", default="*", metavar="PATTERN", help="Only names like torchao* or *mxfp4*.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def backends(pattern: str, as_json: bool) -> None:
    """Count the profiles that every installed backend serves; the golden model, numpy, serves all.

    Profiles that a backend refuses are listed under the reason. If you ask for such a backend by name, the error gives
    the same reason.
    """
    names = [name for name in PROFILES if fnmatch.fnmatchcase(name, pattern)]
    found = refused(names)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for backend, reasons in found.items():
        click.secho(f"{backend}: {len(names) - sum(map(len, reasons.values()))} of {len(names)}", bold=True)
        for reason, those in reasons.items():
            _note(reason, 2)
            _note(", ".join(those), 6)


@profiles.command("diff", epilog=DIFF_EPILOG, short_help="Show where two specifications differ, with a witness.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.argument("tensor", metavar="[FILE[:TENSOR]]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(first: str, second: str, tensor: str | None, as_json: bool) -> None:
    """Compare two specifications: fields, formulas, bytes on a tensor, and the smallest inputs that tell them apart.

    Without FILE, the bytes of built-in tensors are compared: ties, ends of ranges, zeros, NaN.
    """
    a, b = load_spec(first), load_spec(second)
    x = None if tensor is None else _tensor(tensor)
    if not difference.fields(a, b):
        click.echo(json.dumps({"equal": True}) if as_json else f"{a.name} and {b.name} are equal specifications")
        return
    found = compare(a, b, x)
    if as_json:
        click.echo(json.dumps(_diff_record(found), indent=1))
    else:
        _print_diff(found)


def _tensor(argument: str) -> NDArray[Any]:
    """Return the tensor of FILE:TENSOR, or the only floating-point one of FILE."""
    path, _, name = argument, "", ""
    if not Path(argument).exists() and ":" in argument:
        path, _, name = argument.rpartition(":")
    if name:
        return read_tensor(Path(path), name)
    with open_tensors(path) as tensors:
        floats = [n for n in tensors.names if tensors.entry(n)[0] in {"F32", "BF16", "F16"} and tensors.entry(n)[1]]
        if len(floats) == 1:
            return np.asarray(tensors.read(floats[0]))
    some = ", ".join(floats[:TENSORS_NAMED]) + (", ..." if len(floats) > TENSORS_NAMED else "")
    raise FileError(f"read {path}", f"{len(floats)} floating-point tensors", f"FILE:TENSOR to choose one ({some})")


def _print_diff(found: SpecComparison) -> None:
    a, b = found.a, found.b
    click.secho(f"{a.name} and {b.name}", bold=True)
    _heading("fields that differ")
    rows = ((name, _short(x, name), _short(y, name)) for name, (x, y) in difference.fields(a, b).items())
    _columns([("", a.name, b.name), *rows])
    changed = difference.functions(a, b)
    if changed:
        _heading("functions that differ")
        for slot, ours, theirs in changed:
            click.echo(f"  {slot}")
            for name, text in ((a.name, ours), (b.name, theirs)):
                _note(f"{name}: {text}")
    _print_counts(found)
    for witness in found.witnesses:
        _print_witness(witness, a, b)


def _print_counts(found: SpecComparison) -> None:
    bytewise = difference.same_bytes(found.a, found.b)
    _heading("what differs")
    if not bytewise:
        _note("blocks or formats differ, so bytes cannot be compared one to one: dequantized values are", 2)
    differing = [count for count in found.counts if count.codes or count.scales or count.values]
    if not any(count.differs for count in found.counts):
        blocks = sum(count.blocks for count in found.counts)
        what = "bytes" if bytewise else "values"
        click.echo(f"  no difference found in the {what} of {blocks} blocks of {len(found.counts)} tensors")
    if differing:
        heads = ("input", "codes", "scale bytes", "values") if bytewise else ("input", "values")
        _columns([heads, *(_count_row(count, bytewise) for count in differing)], right=True)
    same = [_label(count) for count in found.counts if count not in differing]
    if same and differing:
        _note(f"no difference: {'; '.join(same)}", 2)
    if len(difference.directions(found.a, found.b)) > len({count.direction for count in found.counts}):
        _note("the column direction is left out: a Hadamard transform takes bfloat16 and a multiple of 16 rows", 2)


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
    _heading(f"witness: {witness.kind}")
    where = "" if probe.x.size == 1 else f", element [{witness.row}, {witness.column}] differs"
    amax = "" if probe.amax is None else f", global amax {decimal(probe.amax)}"
    size = "x".join(map(str, probe.x.shape))
    _note(f"{size} {probe.x.dtype.name}{amax}{where}: {write_values(probe.x)}", 2)
    digits = {spec.name: spec.element.format.digits for spec in (a, b)}
    rows = [("", "scale", "code", "value", "")]
    for outcome in witness.outcomes:
        code = f"0x{outcome.code:0{digits[outcome.spec]}x}"
        rows.append((outcome.spec, f"0x{outcome.scale:02x}", code, decimal(outcome.value), float_bits(outcome.value)))
    _columns(rows)
    for spec in (a, b):
        click.secho(f"  {witness.command(spec)}", fg="cyan")


def _diff_record(found: SpecComparison) -> dict[str, Any]:
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


def _short(value: Any, field: str = "") -> str:
    """Return a field's value in one line; codes in hex."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item, name)}" for name, item in value.items())
    if isinstance(value, list):
        return "/".join(f"{code:#x}" for code in value) if field.endswith("nan") else "x".join(map(str, value))
    if value is None or field.endswith(("signs", "overflow", "infinity")):
        return "none" if value is None else f"{value:#x}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _heading(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


def _columns(rows: Iterable[tuple[str, ...]], right: bool = False) -> None:
    """Print aligned columns, all but the first to the right where they hold numbers."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [f"{part:>{size}}" if right else f"{part:<{size}}" for part, size in others]
        click.echo("  " + "  ".join([f"{first[0]:<{first[1]}}", *cells]).rstrip())


def _note(text: str, indent: int = 4) -> None:
    click.echo("\n".join(_wrapped(text, indent, _width())))


def _wrapped(text: str, indent: int, width: int | None) -> list[str]:
    pad = " " * indent
    if width is None:
        return [pad + text]
    return textwrap.wrap(text, width, initial_indent=pad, subsequent_indent=pad + "  ", break_on_hyphens=False)


def _width() -> int | None:
    """Return columns of the terminal; None without one, where nothing needs to be wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


profiles.add_command(check)
