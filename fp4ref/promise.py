"""Promise: the inputs for which a profile has the bytes of the implementation that it models, and how that was checked.

Rules: PRO-1, PRO-2, PRO-12.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Checked(StrEnum):
    """The evidence for a profile."""

    DEFINED = "defined"  # by this standard
    RECORDED = "recorded"  # the implementation was executed, and its bytes compared
    READ = "read"  # from its source, without executing it


@dataclass(frozen=True)
class Claim:
    """The answer for one kind of input. reason: why the promise does not hold, or the limit within which it does."""

    holds: bool
    reason: str = ""

    def __str__(self) -> str:
        answer = "yes" if self.holds else "no"
        return f"{answer} ({self.reason})" if self.reason else answer


YES = Claim(True)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The versions that a profile models, how it was checked, and for which inputs its bytes are promised.

    versions: releases, or commits of a repository, with equal bytes; the newest first.
    how: the machine and the libraries of the recording, or what was read.
    least: the smallest maximum of a tensor that the promise for finite inputs covers.

    Rules: PRO-2, PRO-12.
    """

    versions: tuple[str, ...]
    checked: Checked
    how: str = ""
    finite: Claim = YES
    nan: Claim = YES
    infinite: Claim = YES
    least: float = 0.0

    @property
    def claims(self) -> dict[str, Claim]:
        """The answers by kind of input."""
        return {"finite": self.finite, "nan": self.nan, "inf": self.infinite}

    @property
    def source(self) -> str:
        """The evidence in one line."""
        if self.checked is Checked.DEFINED:
            return self.how
        verb = {Checked.RECORDED: "recorded", Checked.READ: "read from source"}[self.checked]
        return "; ".join(filter(None, [f"{verb}: {', '.join(self.versions)}", self.how]))

    def record(self) -> dict[str, Any]:
        """Return the promise as JSON data."""
        claims = {kind: {"holds": claim.holds, "reason": claim.reason} for kind, claim in self.claims.items()}
        evidence = {"versions": list(self.versions), "checked": self.checked.value, "how": self.how}
        return {**evidence, "holds": claims, "least": self.least}
