"""`fp4ref profiles check`: a profile against someone's implementation."""

from __future__ import annotations

import json

import click

from fp4ref.cli.common import load_spec, paragraph, progress, with_names_of
from fp4ref.conformance import families
from fp4ref.conformance.explain.notation import write_values
from fp4ref.conformance.run.libraries import library, named
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.run.rounds import in_order
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import subject
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.profile_check import ProfileCheck, SmallestDifference, check_profile
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

EPILOG = """\b
Examples:
  fp4ref profiles check nvfp4 --against my_kernel.py:quantize
  fp4ref profiles check vendor.nvfp4 --against my_profile.py:quantize --family element-ties --family zero-blocks
  fp4ref profiles check torchao.mxfp4_floor --against my_package.mx:quantize --level 1 --json
"""


@click.command("check", epilog=EPILOG, short_help="Compare a profile with an implementation, family by family.")
@click.argument("name")
@click.option(
    "--against", "target", required=True, metavar="TARGET", help="package.module:function or file.py:function."
)
@click.option(
    "--signature", metavar="NAME|FILE", help="TARGET is LIB:FUNCTION, a function of a C library with this signature."
)
@click.option("--family", "chosen", multiple=True, metavar="NAME", help="Only these families of inputs.")
@click.option("--level", type=click.IntRange(1, 2), default=1, show_default=True, help="The extent of the families.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Other random numbers.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=30.0, help="Seconds for one call.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    name: str,
    target: str,
    signature: str | None,
    chosen: tuple[str, ...],
    level: int,
    seed: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Compare profile NAME with an implementation, which is called as `fp4ref verify` calls a kernel or a library.

    The table has the share of equal cases for every family of inputs and every type. If cases differ, you see the
    smallest input that shows it, with the bytes of both, and each field of the specification whose change alone
    explains all bytes. NAME may be registered by the file of the implementation.

    Exit status: 0 all cases are equal, 1 some differ, 3 a check of this program failed.
    """
    require_no_flush("profiles check")
    spec = load_spec(name) if signature else with_names_of(target, lambda: load_spec(name))
    options = RunOptions.starting_now(timeout)
    with progress(None, "profiles check") as step:
        step(f"loading {target}")
        on_trial = _on_trial(target, signature, spec, options)
        declared = on_trial.declaration
        settings = Settings(
            reach=families.Reach(level=level, multiple=declared.multiple, seed=seed), families=chosen or None
        )
        cases = in_order(declared, spec, level=level, seed=seed, families=chosen or None)
        found = check_profile(on_trial, spec, cases, options, settings, step)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        _print(found)
    raise SystemExit(found.report.unchecked.status(0 if found.equal else 1))


def _on_trial(target: str, signature: str | None, spec: Spec, options: RunOptions) -> Subject:
    """Return the function of a module, or of a C library that is called by a signature. Rules: CNF-8, CNF-16."""
    return library(target, named(signature), spec, options) if signature else subject(target, None, options)


def _print(found: ProfileCheck) -> None:
    report = found.report
    paragraph(f"{report.spec.name} and {report.subject}", bold=True)
    dtypes = list(dict.fromkeys(dtype for _, dtype in found.shares))
    names = list(dict.fromkeys(family for family, _ in found.shares))
    width = max(map(len, ["family", *names]))
    click.secho("  " + f"{'family':<{width}}" + "".join(f"{dtype:>14}" for dtype in dtypes), dim=True)
    for family in names:
        cells = (found.shares.get((family, dtype)) for dtype in dtypes)
        shown = ["" if cell is None else f"{cell.passed}/{cell.total}" for cell in cells]
        click.echo("  " + f"{family:<{width}}" + "".join(f"{text:>14}" for text in shown))
    equal = sum(cell.passed for cell in found.shares.values())
    total = sum(cell.total for cell in found.shares.values())
    click.echo(f"equal: {equal} of {total} cases")
    if found.smallest is not None:
        _print_difference(found.smallest)
    for change in found.fields:
        paragraph(f"explained by one field: {change.field} is {change.theirs}, not {change.ours}")
    if total and not found.equal and not found.fields:
        click.echo("no change of a single field explains all bytes")
    for line in (*map(str, report.errors), report.headline):
        paragraph(line)


def _print_difference(found: SmallestDifference) -> None:
    size = "x".join(map(str, found.x.shape))
    amax = "" if found.amax is None else f", global amax {found.amax:g}"
    paragraph(f"smallest difference: {size} {found.x.dtype.name}{amax} ({found.kind.value})", bold=True)
    paragraph(f"x               {write_values(found.x)}", 2)
    for who, data in (("profile", found.ours), ("implementation", found.theirs)):
        click.echo(f"  {who:<15} scales {_hex(data, 'scales')}  data {_hex(data, 'data')}")


def _hex(data: DirectionData, part: str) -> str:
    return bytes(getattr(data, part).ravel()).hex(" ", -4)
