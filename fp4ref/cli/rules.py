"""`fp4ref rules`: the rules of the standard, their text, and who implements and tests them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import click

from fp4ref import processors
from fp4ref import rules as standard
from fp4ref.cli.common import PIPE_WIDTH, console, paragraph, table, terminal_width
from fp4ref.errors import UnknownNameError
from fp4ref.proof import citations, concerned, records
from fp4ref.proof.catalogue import claims_of
from fp4ref.proof.claims import ProofClaim
from fp4ref.proof.status import Shown, status
from fp4ref.standard import examples, history, made
from fp4ref.standard.levels import rules_of
from fp4ref.standard.places import by_room

EPILOG = """\b
Examples:
  fp4ref rules                       all rules
  fp4ref rules BLK                   those with one prefix
  fp4ref rules --kind choice         where implementations may differ
  fp4ref rules E2M1-3                one rule: text, functions, tests
  fp4ref rules --since 0.1           what came after a version
  fp4ref rules --check               exit status 1 if a rule is uncovered
  fp4ref rules --write               write the generated parts of the chapters
"""
COUNTED = 100  # rules of which citations are counted
STATED = 6  # certificates of a rule whose statements are printed
POINT = re.compile(r"\n(?=\* )")


@click.command("rules", epilog=EPILOG, short_help="Rules of the standard: text, coverage, check.")
@click.argument("names", metavar="[ID|PREFIX]...", nargs=-1)
@click.option("--kind", type=click.Choice([kind.value for kind in standard.RuleKind]), help="Only rules of this kind.")
@click.option("--level", help="Only the rules that a level of conformance covers (RES-3), such as dequantize.")
@click.option("--since", metavar="VERSION", help="Only rules that came after this version, and the changes since.")
@click.option("--check", is_flag=True, help="Report rules without citations, and citations without rules.")
@click.option("--write", is_flag=True, help="Write the generated parts of the chapters from the records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@processors.uncollected()
def rules(
    names: tuple[str, ...],
    kind: str | None,
    level: str | None,
    since: str | None,
    check: bool,
    write: bool,
    as_json: bool,
) -> None:
    """List the rules of the standard, show some of them, or check that each is implemented and tested.

    An ID (E2M1-3) shows that rule; a prefix (BLK) lists a topic. A list of at most 100 rules counts what cites each.
    """
    if write:
        click.echo("\n".join(made.write()) or "no chapter changed")
        return
    if check:
        _check(standard.read(), as_json)
        return
    known = standard.defined()
    covered = known.values() if level is None else rules_of(level, known)
    chosen = [rule for rule in _named(known, names) if kind in (None, rule.kind) and rule in covered]
    if since is not None:
        _since(since, chosen, as_json)
        return
    one = len(names) == 1 and names[0].upper() in known
    if len(chosen) > COUNTED and not as_json:
        _list(chosen)
        return
    index = standard.read(only=[rule.id for rule in chosen] if len(chosen) <= COUNTED else [])
    if as_json:
        click.echo(json.dumps([_record(index, rule) for rule in chosen], indent=1, ensure_ascii=False))
    elif one:
        for rule in chosen:
            _show(index, rule)
    else:
        _table(index, chosen)


def _since(version: str, chosen: list[standard.Rule], as_json: bool) -> None:
    """Print the rules that came after a version, and the changes of those that it had."""
    added, changes = history.since(version, chosen)
    changes = [change for change in changes if change.rule in {rule.id for rule in chosen}]
    if as_json:
        record = {"added": [rule.id for rule in added], "changes": [change._asdict() for change in changes]}
        click.echo(json.dumps(record, indent=1, ensure_ascii=False))
        return
    for rule in added:
        paragraph(f"{history.first_version(rule.id)}  new  {rule.id} · {rule.title} ({rule.kind})")
    for change in changes:
        paragraph(f"{change.version}  {change.kind}  {change.rule}: {change.text}; bytes: {change.bytes}")


def _named(rules: Mapping[str, standard.Rule], names: tuple[str, ...]) -> list[standard.Rule]:
    """Return the rules with these IDs or prefixes, in the order of the chapters."""
    wanted = {name.upper() for name in names}
    known = {*rules, *(rule.prefix for rule in rules.values())}
    if wanted - known:
        prefixes = ", ".join(dict.fromkeys(rule.prefix for rule in rules.values()))
        raise UnknownNameError("rules", f"unknown {', '.join(sorted(wanted - known))}", f"an ID or one of {prefixes}")
    return [rule for rule in rules.values() if not wanted or {rule.id, rule.prefix} & wanted]


def _record(index: standard.Index, rule: standard.Rule) -> dict[str, Any]:
    cited = {kind: [found._asdict() for found in places] for kind, places in index.citing(rule.id).items()}
    return {
        "id": rule.id,
        "title": rule.title,
        "kind": rule.kind.value,
        "chapter": rule.chapter,
        "since": history.first_version(rule.id),
        "text": rule.text,
        **cited,
        "shown": status(index, rule).shown.value,
        "certificates": [{"name": claim.name, "state": _state(claim)} for claim in claims_of(rule.id)],
    }


def _show(index: standard.Index, rule: standard.Rule) -> None:
    click.echo(f"{rule.id} · {rule.title} ({rule.kind})\n")
    width = terminal_width()
    click.echo(rule.text if width is None else _folded(rule.text, width))
    click.echo(f"\nchapter: {rule.chapter}")
    click.echo(f"since: {history.first_version(rule.id)}")
    cited = examples.citing(index, rule.id)
    del cited["functions"]
    for kind, places in (by_room(index, rule.id) | cited).items():
        if places:
            click.echo(f"{kind}:")
        for found in places:
            click.echo(f"  {found.name}  {found.place}")

    _certificates(rule)


def _folded(text: str, width: int) -> str:
    """Return Markdown with its paragraphs, quotes and points of lists filled to a width; tables and code are kept."""
    code, blocks = False, []
    for block in text.split("\n\n"):
        kept = code or "```" in block or block.startswith(("|", " ", "<"))
        code ^= block.count("```") % 2 == 1
        blocks.append(
            block if kept else "\n".join(line for part in POINT.split(block) for line in _filled(part, width))
        )
    return "\n\n".join(blocks)


def _filled(part: str, width: int) -> list[str]:
    quote = "> " if part.startswith("> ") else ""
    words = " ".join(line.removeprefix(quote).strip() for line in part.splitlines())
    inner = quote or ("  " if part.startswith("* ") else "")
    return wrap(quote + words, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)


def _certificates(rule: standard.Rule) -> None:
    """Print one line for each claim about a rule: its name, the subjects by the state of their records, and its words.

    Claims about several subjects have a name in common, followed by that of the subject. Where claims are many, only
    `fp4ref prove --list` prints their words.
    """
    states: dict[tuple[str, str], dict[str, list[str]]] = {}
    for claim in claims_of(rule.id):
        name = claim.name.removesuffix(f"/{claim.subject}")
        states.setdefault((name, claim.statement), {}).setdefault(_state(claim), []).append(claim.subject)
    many = len(states) > STATED
    if states:
        click.echo("certificates: (fp4ref prove NAME/SUBJECT replays one)")
    for (name, statement), subjects in states.items():
        told = "; ".join(f"{', '.join(its)}: {state}" for state, its in subjects.items())
        paragraph(f"{name}  {told}" if many else f"{name}  {told}  {statement}", 2)
    if many:
        click.echo(f"`fp4ref prove --list {rule.id}` states what each certificate proves")


def _state(claim: ProofClaim) -> str:
    """Return whether a claim's record holds."""
    record = records.read(claim)
    if record is None:
        return "no record"
    return "out of date" if records.outdated(claim, record) else f"proved on {record['date']}"


def _shown(index: standard.Index, rule: standard.Rule) -> str:
    """Return the subjects for which a rule is proved, or how else it is shown to hold."""
    found = status(index, rule)
    return ", ".join(found.subjects) if found.shown is Shown.PROVED else f"({found.shown})"


def _list(chosen: list[standard.Rule]) -> None:
    """Print rules alone: to count who cites each of many takes seconds."""
    rows = [(rule.id, rule.kind.value, rule.title) for rule in chosen]
    click.echo("\n".join(table(("rule", "kind", "~title"), rows, terminal_width() or PIPE_WIDTH)))
    click.echo(
        f"{len(chosen)} rules; `fp4ref rules PREFIX` counts what implements, tests and proves each, "
        "`fp4ref rules ID` shows one"
    )


def _table(index: standard.Index, chosen: list[standard.Rule]) -> None:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("rule", "kind", "title"):
        made.add_column(column, no_wrap=column != "title")
    for column in ("code", "tests", "vectors"):
        made.add_column(column, justify="right")
    made.add_column("proved for", no_wrap=True)
    for rule in chosen:
        cited = index.citing(rule.id)
        code = len(cited["functions"]) + len(cited["backends"])
        counts = [str(code), str(len(cited["tests"])), str(len(cited["vectors"]))]
        made.add_row(rule.id, rule.kind.value, rule.title, *counts, _shown(index, rule))
    console().print(made)
    click.echo(f"{len(chosen)} rules; `fp4ref rules ID` shows one")


def _check(index: standard.Index, as_json: bool) -> None:
    """Print gaps and notes, those of certificates and generated parts too; exit status 1 if there are gaps."""
    gaps = (
        index.gaps
        + records.gaps()
        + citations.gaps()
        + concerned.gaps(index)
        + made.gaps()
        + examples.gaps()
        + history.gaps(index.rules, standard.here().spec)
    )
    if as_json:
        click.echo(json.dumps({"rules": len(index.rules), "gaps": gaps, "notes": index.notes}, indent=1))
    else:
        for line in (*gaps, *(f"note: {note}" for note in index.notes)):
            click.echo(line)
        click.echo(f"{len(index.rules)} rules, {len(gaps)} gaps")
    if gaps:
        raise SystemExit(1)
