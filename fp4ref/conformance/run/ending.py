"""Runs that a signal ends: the exceptions that say so, the exit status, and the words of the verdict."""

from __future__ import annotations

from dataclasses import dataclass

INTERRUPTED = 128 + 2  # as a shell reports SIGINT
SIGNALS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)  # TERM and HUP raise the latter
STOPPED = "interrupted"
CASES = "other cases were not tried"
CAUSE = "the cause was not looked for to the end"


@dataclass(frozen=True)
class Ending:
    """A signal that ended a run. status: the exit status that it calls for. left: what was left undone, in words.

    Rules: CNF-48.
    """

    status: int
    left: str = CASES

    @classmethod
    def of(cls, ending: BaseException, left: str = CASES, *, endless: bool = False) -> Ending | None:
        """Return the ending that an exception of `SIGNALS` asks for; None for Ctrl-C in an endless run."""
        if isinstance(ending, SystemExit):
            return cls(int(ending.code or 0), left)
        return None if endless else cls(INTERRUPTED, left)

    def __str__(self) -> str:
        return f"; {STOPPED}, {self.left}"


def status(kind: int, cut: Ending | None) -> int:
    """Return the exit status of a run: that of its verdict, unless a signal ended it. Rules: CNF-11, CNF-48."""
    return kind if cut is None else cut.status


def words(cut: Ending | None) -> str:
    """Return the end of a verdict's line; empty if no signal ended the run. Rules: CNF-48."""
    return "" if cut is None else str(cut)
