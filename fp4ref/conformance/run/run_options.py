"""Options for running a subject: seconds for a call, for the first call and for the whole run, repetitions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST = 4  # timeouts that the first call may take longer, if nothing else was asked for


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The times that a run may take, and its repetitions.

    timeout: seconds for a call. start_timeout: more seconds for the first call of a run, in which a kernel may be
    compiled; None for four timeouts. until: `time.monotonic()` at which the run ends, or None. repeat: how often every
    case is run again, in another order and in a fresh process (CNF-14). tell: takes the name of such a case. ends:
    exceptions that end the run with a report on what was tried; others, and all by default, are raised.

    Rules: CNF-13, CNF-14, CNF-48.
    """

    timeout: float = 30.0
    start_timeout: float | None = None
    until: float | None = None
    repeat: int = 0
    tell: Callable[[str], None] = lambda text: None
    ends: tuple[type[BaseException], ...] = ()

    @classmethod
    def starting_now(
        cls,
        timeout: float = 30.0,
        start_timeout: float | None = None,
        time_limit: float | None = None,
        repeat: int = 0,
    ) -> RunOptions:
        """Return the options of a run that ends after `time_limit` seconds from now, or never if that is None."""
        until = None if time_limit is None else time.monotonic() + time_limit
        return cls(timeout=timeout, start_timeout=start_timeout, until=until, repeat=repeat)

    @property
    def allowance(self) -> float:
        """The seconds that the first call of a run may take longer than others."""
        return FIRST * self.timeout if self.start_timeout is None else self.start_timeout

    @property
    def left(self) -> float:
        """The seconds until the run ends; infinite if it has no limit, negative if it is over."""
        return math.inf if self.until is None else self.until - time.monotonic()


DEFAULT = RunOptions()
