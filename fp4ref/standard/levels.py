"""The levels of conformance: names under which a statement can claim a part of volume 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fp4ref.errors import UnknownNameError
from fp4ref.rules import Rule
from fp4ref.standard.tables import table


@dataclass(frozen=True)
class ConformanceLevel:
    """A level: the chapters whose rules it covers, and the condition on them in words."""

    chapters: tuple[str, ...]
    words: str


QUANTIZE = ("00", "01", "02", "03", "04", "05", "06", "10", "12")
LEVELS = {
    "element codecs": ConformanceLevel(("01", "02", "03"), "the formats of the spec"),
    "quantize, row": ConformanceLevel(QUANTIZE, "the row direction, scales in the layout `linear`"),
    "quantize, both directions": ConformanceLevel(
        (*QUANTIZE[:7], "07", *QUANTIZE[7:]), "both directions, scales in `linear`"
    ),
    "layouts": ConformanceLevel(("08",), "the layouts that the statement names"),
    "dequantize": ConformanceLevel(("01", "02", "03", "04", "11", "12"), "every code and every scale byte"),
    "stochastic": ConformanceLevel(("09",), "random bits that are given"),
    "gemm": ConformanceLevel(("15",), "the modes that the statement names"),
}


def levels() -> str:
    """Return the table of levels. Rules: RES-3."""
    rows = ((f"{name}", ", ".join(level.chapters), level.words) for name, level in LEVELS.items())
    return table(("level", "rules of chapters", "for"), rows)


def rules_of(level: str, rules: Mapping[str, Rule]) -> list[Rule]:
    """Return the rules that a level covers.

    Errors: UnknownNameError for a name that no level has.

    Rules: RES-3.
    """
    if level not in LEVELS:
        raise UnknownNameError("rules", f"level {level!r}", f"one of {'; '.join(LEVELS)}", "RES-3")
    return [rule for rule in rules.values() if rule.chapter[:2] in LEVELS[level].chapters]
