"""Every rule of every chapter states one fact: one short paragraph obliges, and nothing else beside it does."""

from __future__ import annotations

import re

import pytest

from fp4ref.standard.examples import MENTION
from standard_rules import RULES

SENTENCES, WORDS, ALL_WORDS = 5, 90, 250
BLOCK = re.compile(r"(?:- |\* |\d+\. |\||>|<!-- )")
OBLIGES = re.compile(
    r"\b(shall|must|should|required|forbidden|cannot be|may not|(?:has|have|needs?) to be"
    r"|(?:is|are|be) (?:not )?(?:refused|rejected|an error|invalid|allowed)|refuses?|rejects?)\b"
)


def paragraphs(text):
    """The paragraphs of a rule, each in one line: those of prose, then those of lists; no code, table or quote."""
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    text = re.sub(r"(?ms)^<!-- made: .*?^<!-- end -->$", "", text)
    parts = re.split(r"\n\s*\n|\n(?=- |\* |\d+\. |\||>|<!-- )", text)
    found = [" ".join(part.split()) for part in parts if part.strip()]
    prose = [part for part in found if not BLOCK.match(part)]
    return prose, [part for part in found if re.match(r"- |\* |\d+\. ", part)]


def sentences(paragraph):
    """The sentences of a paragraph; a span of code, or a number, has no end of a sentence."""
    plain = re.sub(r"`[^`]*`", "CODE", paragraph)
    return re.findall(r"\S.*?(?:[.?!:](?=\s+[A-Z(])|$)", plain)


def has_example(text):
    """Return True if a rule has a table, a block of code, or words with a number or code beside those that oblige."""
    if re.search(r"(?m)^(\||```|    )", text):
        return True
    prose, lists = paragraphs(text)
    beside = [part for part in (*prose, *lists) if part is not obliging(prose)]
    return any(re.search(r"\d|`", MENTION.sub("", part)) for part in beside)


def obliging(prose):
    """The paragraph that obliges."""
    return next((part for part in prose if re.search(r"\bshall\b", part)), prose[0] if prose else "")


def faults(text):
    """A line for each way in which a rule's text states more than one fact."""
    prose, lists = paragraphs(text)
    first = obliging(prose)
    sizes = [(len(sentences(part)), len(part.split())) for part in prose]
    found = [f"{many} sentences, {long} words" for many, long in sizes if many > SENTENCES or long > WORDS]
    beside = [(part, OBLIGES.search(part)) for part in prose if part is not first]
    found += [f"another obligation, {match[0]!r}: {part}" for part, match in beside if match]
    words = sum(len(part.split()) for part in (*prose, *lists))
    return found + ([f"{words} words"] if words > ALL_WORDS else [])


def test_a_rule_states_one_fact():
    found = {rule: faults(RULES[rule].text) for rule in RULES}
    assert {rule: wrong for rule, wrong in found.items() if wrong} == {}


def test_a_rule_has_an_example():
    lacking = [rule for rule in RULES if not has_example(RULES[rule].text)]
    assert lacking == [], "each needs an example with numbers, which a test computes"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("A byte shall be 0, or 1 by AAA-1.\n", False),
        ("A byte shall be 0.\n\n> Why: 7 is odd.\n", False),
        ("A byte shall be 0.\n\nSo it is by AAA-1.\n", False),
        ("A byte shall be 0.\n\nWith K = 6 there are 6.\n", True),
        ("A byte shall be 0.\n\n| byte |\n|---|\n| 0 |\n", True),
    ],
)
def test_a_rule_without_an_example_is_found(text, has):
    assert has_example(text) is has


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A byte shall be 0. " * 6, "6 sentences"),
        (f"A byte shall be 0, {'or 1, ' * 50}.", "1 sentences"),
        ("A byte shall be 0.\n\nAnother byte is refused.", "another obligation, 'is refused'"),
        ("A byte shall be 0.\n\nA byte must be 1.", "another obligation, 'must'"),
        ("A byte shall be 0.\n\nA reader refuses 1.", "another obligation, 'refuses'"),
        (f"A byte shall be 0.\n\n* {'x ' * 250}", "256 words"),
    ],
)
def test_a_second_fact_is_found(text, words):
    assert [line for line in faults(text) if line.startswith(words)], faults(text)


def test_examples_and_reasons_are_no_facts():
    text = "A byte shall be 0.\n\n| byte | |\n|---|---|\n| 1 | is refused |\n\n> It must be 0.\n\n```\nmust\n```\n"
    assert faults(text) == []
