"""A plugin of pytest that changes each number of a chapter's sentences and runs the tests that read the sentence.

`python -m pytest -p standard_mutations --mutate 07,10 --unread FILE tests/test_standard*.py` writes for each chapter
how many numbers it has, and those whose change no test noticed: rule, number and the words around it. Tables and
generated parts have tests of their own.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from fp4ref import rules
from fp4ref.rules import Rule
from fp4ref.spec_root import spec_root
from standard_rules import RULES

# What is no number of a sentence: tables, generated parts, IDs of rules, targets of links, titles, chapters.
OTHER = re.compile(
    r"^\|[^\n]*$|<!-- made.*?<!-- end -->|\b[A-Z][A-Z0-9]*-\d+\b|\]\([^)]*\)|^# [^\n]*$|\b[Cc]hapters? \d\d",
    re.MULTILINE | re.DOTALL,
)
WORD = re.compile(r"[A-Za-z0-9_]+(?:[.,](?=\d)\d+)*")
NUMBER = re.compile(r"\d[\d.,]*|\d+[nj]|0x[0-9A-Fa-f]+|[0-9A-F]{1,8}")
SLOW = 0.6  # seconds of a test that is left out where it only reads the whole chapter
accessed: set[str] = set()
changed: dict[str, str] = {}  # by the name of a chapter's file: its text


def numbers(text: str) -> Iterator[re.Match[str]]:
    """Yield the numbers of a chapter's sentences."""
    others = [match.span() for match in OTHER.finditer(text)]
    for word in WORD.finditer(text):
        number = re.search(r"\d", word[0]) and NUMBER.fullmatch(word[0])
        if number and not any(start <= word.start() < stop for start, stop in others):
            yield word


def other(word: str) -> str:
    """Return another number: its last digit is one more, in hexadecimal for a word that is hexadecimal."""
    digits = "0123456789" if re.fullmatch(r"\d[\d.,]*[nj]?", word) else "0123456789ABCDEF"
    at = max(i for i, letter in enumerate(word) if letter.upper() in digits and not (i == 1 and letter == "x"))
    return word[:at] + digits[(digits.index(word[at].upper()) + 1) % len(digits)] + word[at + 1 :]


def rule_at(text: str, position: int) -> str:
    """Return the ID of the rule whose text or title is at a position, or nothing."""
    headings = [match for match in re.finditer(r"(?m)^#+ (?:([A-Z0-9]+-\d+) ·)?.*$", text) if match.start() <= position]
    return (headings[-1][1] if headings else None) or ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutate", metavar="CHAPTER", help="numbers of chapters of volume 1, as in 02,03")
    parser.addoption("--unread", metavar="FILE", help="where to write what no test noticed")


@contextlib.contextmanager
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note the rules and chapters that are read, and give a changed text for its chapter."""
    read, get = Path.read_text, Rule.__getattribute__

    def read_text(path: Path, *arguments: Any, **settings: Any) -> str:
        accessed.add(path.name)
        return changed[path.name] if path.name in changed else read(path, *arguments, **settings)

    def attribute(rule: Rule, name: str) -> Any:
        if name in {"text", "title"}:
            accessed.add(get(rule, "id"))
        return get(rule, name)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(Rule, "__getattribute__", attribute)
    yield
    monkeypatch.undo()


def fails(item: Any) -> tuple[bool, float]:
    """Run a test; return whether it failed, and its seconds."""
    item._initrequest()
    reports = runtestprotocol(item, log=False, nextitem=None)
    return any(report.failed for report in reports), sum(report.duration for report in reports)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    chapters = session.config.getoption("--mutate")
    if not chapters:
        return None
    with pytest.MonkeyPatch.context() as monkeypatch, reading(monkeypatch):
        items = [item for item in session.items if isinstance(item, pytest.Function)]
        reads = {item.nodeid: read_by(item) for item in items}
        found = {}
        for chapter in chapters.split(","):
            found[chapter] = unread(chapter, items, reads)
            Path(session.config.getoption("--unread")).write_text(json.dumps(found, indent=1), "utf-8")
    return True


def read_by(item: Any) -> set[str]:
    """Run a test on the text as it is; return the rules and files that it reads, files only if it is fast."""
    accessed.clear()
    failed, seconds = fails(item)
    if failed:
        raise pytest.UsageError(f"{item.nodeid} fails without a change")
    return {name for name in accessed if not name.endswith(".md") or seconds < SLOW}


def unread(chapter: str, items: list[pytest.Function], reads: dict[str, set[str]]) -> dict[str, Any]:
    """Change the numbers of a chapter one at a time; return their count, and those whose change no test noticed."""
    path = next(spec_root().rglob(f"{chapter}-*.md"))
    text = path.read_text("utf-8")
    left, words = [], list(numbers(text))
    for word in words:
        rule = rule_at(text, word.start())
        changed[path.name] = text[: word.start()] + other(word[0]) + text[word.end() :]
        RULES.update(rules.defined())
        readers = [item for item in items if rule in reads[item.nodeid]]
        readers += [item for item in items if path.name in reads[item.nodeid] and item not in readers]
        if not any(fails(item)[0] for item in readers):
            around = text[max(0, word.start() - 40) : word.start()], text[word.end() : word.end() + 30]
            before, after = (" ".join(part.split()) for part in around)
            left.append({"rule": rule, "number": word[0], "before": before, "after": after})
        changed.clear()
    RULES.update(rules.defined())
    return {"numbers": len(words), "unread": left}
