"""The versions of the standard: the first version of each rule, and what changed in which, from spec/history.json."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fp4ref.errors import UnknownNameError
from fp4ref.rules import Rule, chapters, defined, here
from fp4ref.spec_root import spec_root
from fp4ref.standard.tables import table, tables

NAMED = ("name", "layout", "spec")  # heads of tables whose rows give a name a value


class RuleChange(NamedTuple):
    """A change of a rule: its version and kind, the bytes that moved, and the change in words."""

    version: str
    rule: str
    kind: str
    bytes: str
    text: str


class SpecVersion(NamedTuple):
    """A version: the rules that came with it, unless it is a draft, and its changes of older rules.

    texts: digests of the rules of volume 1 as the version has them; a version that is no draft has them from 1.0 on.
    names: of the rules that list names of values, digests of what the version gives each name.
    """

    version: str
    draft: bool
    rules: frozenset[str]
    changes: tuple[RuleChange, ...]
    texts: Mapping[str, str]
    names: Mapping[str, Mapping[str, str]]


@cache
def versions(spec: Path | None = None) -> tuple[SpecVersion, ...]:
    """Return the versions of the standard, oldest first; the last one is the draft."""
    content = json.loads(((spec or spec_root()) / "history.json").read_text("utf-8"))
    return tuple(_version(record) for record in content["versions"])


def _version(record: dict[str, object]) -> SpecVersion:
    name, rules, changes, texts = str(record["version"]), record["rules"], record["changes"], record.get("texts", {})
    names = record.get("names", {})
    assert isinstance(rules, dict)
    assert isinstance(changes, list)
    assert isinstance(texts, dict)
    assert isinstance(names, dict)
    ids = frozenset(f"{prefix}-{number}" for prefix, numbers in rules.items() for number in numbers)
    changed = tuple(RuleChange(name, **change) for change in changes)
    return SpecVersion(name, record["state"] == "draft", ids, changed, texts, names)


def first_version(rule: str) -> str:
    """Return the version that a rule came with; a rule that no closed version has came with the draft."""
    return next((each.version for each in versions() if rule in each.rules), versions()[-1].version)


def later(since: str) -> tuple[SpecVersion, ...]:
    """Return the versions after one.

    Errors: UnknownNameError for a version that the history does not have.
    """
    names = [each.version for each in versions()]
    if since not in names:
        raise UnknownNameError("rules", f"version {since!r}", f"one of {', '.join(names)}")
    return versions()[names.index(since) + 1 :]


def since(version: str, rules: Iterable[Rule]) -> tuple[list[Rule], list[RuleChange]]:
    """Return the rules that came after a version, and the changes of rules that it had."""
    after = {each.version for each in later(version)}
    added = [rule for rule in rules if first_version(rule.id) in after]
    return added, [change for each in later(version) for change in each.changes]


def digest(rule: Rule) -> str:
    """Return eight digits that stand for a rule's title, kind and text, without reasons and without white space."""
    lines = (line for line in rule.text.splitlines() if not line.startswith(">"))
    return _digest(f"{rule.title} {rule.kind} {' '.join(lines)}")


def named(rule: Rule) -> dict[str, str]:
    """Return eight digits for each name that a rule's tables give a value: those of the other cells of its row."""
    rows = (row for head, *rows in tables(rule.text) if head[0] in NAMED for row in rows)
    return {row[0].strip("`"): _digest(" ".join(row[1:])) for row in rows}


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:8]


def gaps(known: Mapping[str, Rule], spec: Path) -> list[str]:
    """Return a line for each rule of the history that no chapter defines, and for each that changed unsaid.

    A change of a rule that lists names says which names are new, gone or have another value: a second name is not
    covered by the line of a first.
    """
    record = versions(spec)
    spoken = {rule for each in record for rule in (*each.rules, *(change.rule for change in each.changes))}
    found = [f"history.json: {rule} is in the history and in no chapter" for rule in sorted(spoken - set(known))]
    last = max((number for number, each in enumerate(record) if each.texts), default=len(record) - 1)
    said = {change.rule for each in record[last + 1 :] for change in each.changes}
    for rule, text in record[last].texts.items():
        if rule in known and rule not in said and digest(known[rule]) != text:
            found.append(f"history.json: {rule} changed since {record[last].version}, and no later version says how")
    for rule, names in record[last].names.items():
        now = named(known[rule]) if rule in known else {}
        words = " ".join(change.text for each in record[last + 1 :] for change in each.changes if change.rule == rule)
        moved = [name for name in {**names, **now} if names.get(name) != now.get(name) and f"`{name}`" not in words]
        found += [
            f"history.json: `{name}` of {rule} changed since {record[last].version}, and no change of {rule} names it"
            for name in moved
        ]
    return found


def history() -> str:
    """Return the table of changes, the newest version first; each rule is a link to its chapter."""
    spec = spec_root()
    places = {path.stem: path.relative_to(spec).as_posix() for path in chapters(spec)}
    known = defined(dataclasses.replace(here(), spec=spec))

    def link(name: str) -> str:
        return f"[{name}]({places[known[name].chapter]})"

    rows = [
        (
            f"{each.version}, draft" if each.draft else each.version,
            link(change.rule),
            change.kind,
            change.bytes,
            change.text,
        )
        for each in reversed(versions())
        for change in each.changes
    ]
    return table(("version", "rule", "kind", "bytes that moved", "change"), rows)
