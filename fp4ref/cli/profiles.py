"""`fp4ref profiles`: the specifications, and where two of them differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fp4ref.casts import CASTS, Cast
from fp4ref.catalogue import PROFILES, PROMISES
from fp4ref.cli.common import load_every_extension, load_spec, paragraph, terminal_width
from fp4ref.cli.explain import read_tensor
from fp4ref.cli.profiles_check import check
from fp4ref.cli.profiles_diff import KINDS, diff_record, print_diff
from fp4ref.cli.selection import listed
from fp4ref.conformance.explain import difference, table
from fp4ref.conformance.explain.witness import compare
from fp4ref.conformance.run.machine import refused
from fp4ref.errors import FileError
from fp4ref.files import open_tensors

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


CASTS_EPILOG = """\b
Example:
  fp4ref profiles casts
"""


SHOW_EPILOG = """\b
Example:
  fp4ref profiles show nvfp4-4over6 > mine.json
"""


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
    load_every_extension()
    names = listed(PROFILES, pattern)
    if as_json:
        click.echo(json.dumps([_record(name) for name in names], indent=1))
    elif names:
        _table(names)


def _record(name: str) -> dict[str, Any]:
    promise = PROMISES.get(name)
    return {
        "name": name,
        "source": PROFILES.source(name),
        "promise": promise and promise.record(),
        "spec": json.loads(PROFILES[name].to_json()),
    }


def _evidence(name: str) -> tuple[str, str]:
    """Return where a profile's numbers come from, and for which inputs its bytes are promised. Rules: PRO-2, PRO-12."""
    promise = PROMISES.get(name)
    said = "" if promise is None else "; ".join(f"{KINDS[kind]}: {claim}" for kind, claim in promise.claims.items())
    return PROFILES.source(name), said


def _table(names: list[str]) -> None:
    """Print one line per profile, under the note on where its numbers come from and what is promised."""
    width = terminal_width()
    for evidence in dict.fromkeys(map(_evidence, names)):
        rows = [_row(name) for name in names if _evidence(name) == evidence]
        widths = [max(map(len, column)) for column in zip(table.HEADINGS, *rows, strict=True)]
        source, promise = evidence
        paragraph(source or "registered by a user", bold=True)
        if promise:
            paragraph(f"equal bytes, {promise}", 2)
        for number, row in enumerate([table.HEADINGS, *rows]):
            head = "  " + "".join(f"{part:<{size + 2}}" for part, size in zip(row[:-1], widths, strict=False))
            beside = width is None or len(head) + widths[-1] <= width
            click.secho((head + row[-1] if beside else head).rstrip(), dim=number == 0)
            if not beside and number and row[-1]:
                paragraph(row[-1], 6, dim=True)
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
    load_every_extension()
    names = listed(PROFILES, pattern)
    found = refused(names)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for backend, reasons in found.items():
        click.secho(f"{backend}: {len(names) - sum(map(len, reasons.values()))} of {len(names)}", bold=True)
        for reason, those in reasons.items():
            paragraph(reason, 2)
            paragraph(", ".join(those), 6)


@profiles.command("casts", epilog=CASTS_EPILOG, short_help="List casts of arrays to one format.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def casts(as_json: bool) -> None:
    """List the casts of other implementations, which make codes without blocks and scales.

    Each line has the codes of a number past the largest, of infinity, and of NaN, and the release that was recorded.
    """
    rows = [_cast(cast) for cast in CASTS.values()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    cells = [list(rows[0]), *([*map(str, row.values())] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.secho(line.rstrip(), dim=number == 0)


def _cast(cast: Cast) -> dict[str, str]:
    """Return the line of a cast. Rules: PRO-2, PRO-9, PRO-12."""
    kinds = {"overflow": float(np.finfo(np.float32).max), "inf": np.inf, "nan": np.nan, "-nan": -np.nan}
    codes = zip(kinds, cast.encode(np.array([*kinds.values()], np.float32)).tolist(), strict=True)
    claims = "; ".join(f"{KINDS[kind]}: {claim}" for kind, claim in cast.promise.claims.items())
    return {
        "name": cast.name,
        "format": cast.format.name,
        **{kind: f"{code:0{cast.format.digits}x}" for kind, code in codes},
        "source": cast.promise.source,
        "equal codes": claims,
    }


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
        click.echo(json.dumps(diff_record(found), indent=1))
    else:
        print_diff(found)


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


profiles.add_command(check)
