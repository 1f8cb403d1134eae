"""Roundings of a codec in words."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.formats import Rounding


class RoundingWords(NamedTuple):
    """A rounding in words. of_ties: what becomes of ties, or of every value."""

    rounding: Rounding
    text: str
    of_ties: bool = False

    def of(self, what: str, verb: str) -> str:
        """Return a sentence on what is rounded so. verb: is or are."""
        return f"{self.text} when {what} {verb} rounded" if self.of_ties else f"{what} {verb} {self.text}"


ROUNDINGS = (
    RoundingWords(Rounding.DOWN, "ties go toward zero", of_ties=True),
    RoundingWords(Rounding.AWAY, "ties go away from zero", of_ties=True),
    RoundingWords(Rounding.TRUNCATE, "truncated"),
    RoundingWords(Rounding.UP, "rounded up"),
    RoundingWords(Rounding.EVEN, "rounded to nearest, ties to even"),
)
