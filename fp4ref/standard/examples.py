"""Examples that no test reads: a test that reads and computes those of a rule has the mark `example("ID")`."""

from __future__ import annotations

import re

from fp4ref import rules
from fp4ref.rules import Citation, Index, Tree

VOLUME_1 = ("00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "15")
COMPUTED = (*VOLUME_1, "14", "16", "17", "18", "19", "20", "21", "22", "24")  # chapters whose numbers tests compute
MENTION = re.compile(r"\b[A-Z0-9]+-\d+\b")


def has_numbers(text: str) -> bool:
    """Return True if a rule's text has a number or a table, reasons and IDs of rules apart."""
    lines = [line for line in text.splitlines() if not line.startswith(">")]
    return any(line.startswith("|") or re.search(r"\d", MENTION.sub("", line)) for line in lines)


def citing(index: Index, rule: str, tree: Tree | None = None) -> dict[str, list[Citation]]:
    """Return the citations of a rule by kind, and tests that have only the mark `example` of it."""
    tree = tree or rules.here()
    found = index.citing(rule)
    known = {(each.name, each.place.partition(":")[0]) for each in found["tests"]}
    asked = re.compile(re.escape(rule))
    marked = rules.marked(tree, tree.tests, "example", asked) if tree.tests else ()
    of_rule = [each for each in marked if each.rule == rule]
    return found | {"examples": [each for each in of_rule if (each.name, each.place.partition(":")[0]) not in known]}


def gaps(tree: Tree | None = None) -> list[str]:
    """Return a line for each rule of these chapters whose numbers no test reads; none where tests are not installed."""
    tree = tree or rules.here()
    if tree.tests is None:
        return []
    read = {found.rule for found in rules.marked(tree, tree.tests, "example")}
    known = rules.defined(tree)
    found = [f"{rule}: a test reads the numbers of a rule that is not defined" for rule in sorted(read - set(known))]
    chapters = (rule for rule in known.values() if rule.chapter[:2] in COMPUTED and has_numbers(rule.text))
    return found + [f"{rule.id}: no test reads its numbers" for rule in chapters if rule.id not in read]
