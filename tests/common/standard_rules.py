"""The rules of the standard, their tables and numbers, for the tests that act upon them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fp4ref import rules
from fp4ref.standard.tables import tables

RULES = rules.defined()


def text_of(rule: str) -> str:
    """Return the text of a rule."""
    return RULES[rule].text


def rows_of(rule: str, number: int = 0) -> list[list[str]]:
    """Return the rows of a table of a rule, without its head."""
    return tables(text_of(rule))[number][1:]


def integers(text: str) -> list[int]:
    """Return the whole numbers in a text, such as 1,024."""
    return [int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*\d|\d", text)]


def same_bits(got: Any, expected: Any) -> None:
    """Compare the bits of float32 numbers."""
    got, expected = (np.asarray(each, np.float32).view(np.uint32).tolist() for each in (got, expected))
    assert got == expected
