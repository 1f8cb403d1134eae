"""Example tables that no test reads: a test that reads and computes those of a rule has the mark `example("ID")`."""

from __future__ import annotations

from fp4ref import rules
from fp4ref.rules import Tree
from fp4ref.standard.tables import tables

EXECUTED = ("00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "15")
# No test reads the tables of these yet. A rule leaves the list with the first test that reads it; none comes in.
UNREAD_BY_PREFIX = {"NUM": (2, 6, 7), "SR": (9, 10), "SPC": (6,), "GEM": (3, 11)}
UNREAD = frozenset(f"{prefix}-{number}" for prefix, numbers in UNREAD_BY_PREFIX.items() for number in numbers)


def gaps(tree: Tree | None = None, unread: frozenset[str] = UNREAD) -> list[str]:
    """Return a line for each rule of these chapters whose tables no test reads; none where tests are not installed."""
    tree = tree or rules.here()
    if tree.tests is None:
        return []
    read = {found.rule for found in rules.marked(tree, tree.tests, "example")}
    known = rules.defined(tree)
    found = [f"{rule}: a test reads the tables of a rule that is not defined" for rule in sorted(read - set(known))]
    found += [f"{rule}: a test reads its tables, but it is listed as unread" for rule in sorted(read & unread)]
    chapters = (rule for rule in known.values() if rule.chapter[:2] in EXECUTED and tables(rule.text))
    return found + [f"{rule.id}: no test reads its tables" for rule in chapters if rule.id not in read | unread]
