"""How each rule is shown to hold: proved by certificates whose records hold, else by the tests that cite it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from fp4ref.proof import records
from fp4ref.proof.catalogue import claims_of
from fp4ref.rules import Index, Rule, RuleKind

BINDING = (RuleKind.SHALL, RuleKind.BOUND)


class Shown(StrEnum):
    """The way in which a rule is shown to hold."""

    PROVED = "proved"  # on every input of a domain, by a certificate
    TESTS = "tests"  # on the inputs of tests
    OPEN = "open"  # by neither; or its tests are not installed


class RuleStatus(NamedTuple):
    """A rule, the way in which it is shown, and by which certificates (without their subjects) or tests."""

    rule: Rule
    shown: Shown
    subjects: tuple[str, ...]  # of the certificates
    by: tuple[str, ...]


def status(index: Index, rule: Rule) -> RuleStatus:
    """Return how a rule is shown."""
    held = [
        claim for claim in claims_of(rule.id) if (record := records.read(claim)) and not records.outdated(claim, record)
    ]
    if held:
        subjects = dict.fromkeys(claim.subject.value for claim in held)
        names = dict.fromkeys(claim.name.removesuffix(f"/{claim.subject}") for claim in held)
        return RuleStatus(rule, Shown.PROVED, tuple(subjects), tuple(names))
    tests = tuple(dict.fromkeys(found.name for found in index.citing(rule.id)["tests"]))
    return RuleStatus(rule, Shown.TESTS if tests else Shown.OPEN, (), tests)


def binding(index: Index) -> Iterator[RuleStatus]:
    """Yield how each rule is shown that binds bits or a set of them."""
    return (status(index, rule) for rule in index.rules.values() if rule.kind in BINDING)
