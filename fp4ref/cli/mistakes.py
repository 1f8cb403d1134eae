"""`fp4ref mistakes`: the mistakes that a diagnosis knows, with their stages, rules and effects."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from fp4ref.cli.common import REFUSED, load_every_extension, load_spec, paragraph
from fp4ref.cli.selection import is_pattern, matches
from fp4ref.errors import DomainError, Fp4Error, UnknownNameError
from fp4ref.kernels import INPUTS
from fp4ref.names import near

if TYPE_CHECKING:
    from fp4ref.conformance.verdict.known_mistakes import Effect, KnownMistake

EPILOG = """\b
Examples:
  fp4ref mistakes --stage code
  fp4ref mistakes --rule GLB-1 --spec nvfp4
  fp4ref mistakes encode-fast
  fp4ref mistakes 'hadamard-*' --json
  fp4ref mistakes --operation gemm --stage sum
  fp4ref mistakes acme.codes-2-3 --import acme_mistakes.py
"""


@click.command("mistakes", epilog=EPILOG, short_help="List the mistakes that a diagnosis knows.")
@click.argument("name", default="*", metavar="[NAME]")
@click.option("--stage", default="", metavar="STAGE", help="Only mistakes at this stage, such as 'encode scale'.")
@click.option(
    "--rule", default="", metavar="RULE", help="Only mistakes that may break this rule, or a rule with this prefix."
)
@click.option("--spec", default="", metavar="SPEC", help="Only mistakes that mean something under this specification.")
@click.option("--operation", type=click.Choice([*INPUTS]), default="quantize", help="The operation of the kernel.")
@click.option("--layout", default="linear", metavar="LAYOUT", help="The declared layout, in which scales belong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def mistakes(name: str, stage: str, rule: str, spec: str, operation: str, layout: str, as_json: bool) -> None:
    """List the mistakes that `fp4ref verify` knows: the stage, what the kernel does, and the rules that it may break.

    With a NAME, also say which of the small aimed cases of a specification the mistake changes, and which other
    mistakes make the same bytes there: a diagnosis cannot tell these apart. A NAME may be a pattern. Mistakes that you
    registered are among them.

    Exit status: 0, or 2 for a mistake that makes no bytes in any case, since a diagnosis can never tell it.
    """
    from fp4ref.conformance.verdict.known_mistakes import known_mistakes

    load_every_extension()
    every = list(known_mistakes(operation, load_spec(spec) if spec else None, layout))
    found = [each for each in every if matches(each.name, name)]
    if not found and not is_pattern(name):
        raise _unknown(name, known_mistakes(operation, None, layout), spec)
    _require_known(stage, rule)
    found = [each for each in found if stage in {"", each.stage} and _breaks(each, rule)]
    effects = {} if is_pattern(name) else {each.name: _effect(each, operation, spec) for each in found}
    if as_json:
        click.echo(json.dumps([_record(each, effects.get(each.name)) for each in found], indent=1))
    elif effects:
        for each in found:
            _detail(each, effects[each.name])
    else:
        _list(found, len(every))
    if any(_fails(effect) for effect in effects.values()):
        sys.exit(REFUSED)


def _fails(effect: Effect | None) -> bool:
    """Return True if a mistake makes bytes in no case."""
    return effect is not None and 0 < effect.cases == effect.failures


def _unknown(name: str, every: Iterable[KnownMistake], spec: str) -> Fp4Error:
    """Return the error for a name that no mistake has, or only one that means nothing under the specification."""
    known = {each.name: each.spec for each in every}
    if name in known:
        needed = "a specification that it applies to" + (f", such as {known[name]}" if known[name] else "")
        return DomainError("mistakes", f"{name} under {spec}", needed, "CNF-26")
    close = ", ".join(near(name, known)) or "see `fp4ref mistakes`"
    return UnknownNameError("mistake", f"unknown name {name!r}", f"a known one ({close})", "SPC-4")


def _require_known(stage: str, rule: str) -> None:
    """Refuse a stage, or a rule or prefix, that there is not."""
    from fp4ref.conformance.mistakes import Slot
    from fp4ref.rules import known

    if stage and stage not in {*Slot}:
        raise DomainError("mistakes", f"stage {stage!r}", f"one of {', '.join(Slot)}", "CNF-26")
    if rule and rule not in known() and all(rule != one.prefix for one in known().values()):
        raise DomainError("mistakes", f"rule {rule!r}", "a rule or a prefix, see `fp4ref rules`", "CNF-26")


def _breaks(each: KnownMistake, rule: str) -> bool:
    """Return True if a mistake may break a rule, or a rule of a prefix."""
    from fp4ref.rules import is_of, prefix_of

    return not rule or is_of(rule, each.rules) or rule in map(prefix_of, each.rules)


def _effect(each: KnownMistake, operation: str, spec: str) -> Effect | None:
    """Return the effect under a specification, or under one that it is for; None for places and other operations."""
    from fp4ref.conformance.verdict.known_mistakes import QUANTIZE, effect, mistake_named

    mistake = mistake_named(each.name) if operation == QUANTIZE else None
    return None if mistake is None or not each.spec else effect(mistake, load_spec(spec or each.spec))


def _record(each: KnownMistake, effect: Effect | None) -> dict[str, object]:
    record = each._asdict() | {"stage": str(each.stage), "rules": list(each.rules)}
    return record if effect is None else record | {"effect": vars(effect) | {"alike": list(effect.alike)}}


def _list(found: list[KnownMistake], count: int) -> None:
    from fp4ref.conformance.mistakes import Slot

    for stage in Slot:
        here = [each for each in found if each.stage == stage]
        if not here:
            continue
        paragraph(f"{stage}: {len(here)}", bold=True)
        for each in here:
            click.echo(f"  {each.name}")
            paragraph(_sentence(each), 6)
        click.echo()
    click.echo(f"{len(found)} of {count} mistakes; `fp4ref mistakes NAME` shows one")


def _sentence(each: KnownMistake) -> str:
    return each.text + (f" [{', '.join(each.rules)}]" if each.rules else "")


def _detail(each: KnownMistake, effect: Effect | None) -> None:
    click.secho(each.name, bold=True)
    paragraph(each.text, 2)
    paragraph(f"stage: {each.stage}", 2)
    if each.rules:
        paragraph(f"may break: {', '.join(each.rules)}", 2)
    if each.source:
        paragraph(f"registered: {each.source}", 2)
    if effect is None:
        return
    if effect.failures:
        which = f"in {effect.failures} of {effect.cases} small aimed cases it makes no bytes"
        paragraph(f"under {effect.spec}: {which}, in the first because of {effect.error}", 2)
        if _fails(effect):
            return
    changed = sum(effect.changes.values())
    if not changed:
        paragraph(f"under {effect.spec}: no byte of {effect.cases} small aimed cases changes", 2)
        return
    families = ", ".join(f"{family} {count}" for family, count in effect.changes.items())
    paragraph(f"under {effect.spec}: bytes of {changed} of {effect.cases} small aimed cases change: {families}", 2)
    same = ", ".join(effect.alike) or "no other known mistake"
    paragraph(f"the same bytes in all of them: {same}", 2)
