"""Waiting for a program's bytes for a limited time.

A read from a pipe cannot be interrupted, so a thread reads, and the reader waits for what the thread has put aside.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import IO

CHUNK = 1 << 20  # bytes of one read
AHEAD = 16  # chunks that are read before they are asked for


class SilentProgramError(Exception):
    """No byte arrived in time. seconds: the time that was allowed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:.3g} s of the clock")
        self.seconds = seconds


class TimedInput:
    """A pipe whose reads end at a time, which `allow` sets; without it they may take forever.

    Rules: CNF-45.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(AHEAD)
        self._rest = b""
        self._seconds = threading.TIMEOUT_MAX
        self._end = float("inf")
        threading.Thread(target=self._listen, args=(stream.fileno(),), daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Let the next reads take this long, all together."""
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def read(self, count: int) -> bytes:
        """Return at most this many bytes; none at the end.

        Errors: SilentProgramError if no byte arrives in time.
        """
        if not self._rest:
            left = min(max(0.0, self._end - time.monotonic()), threading.TIMEOUT_MAX)
            try:
                self._rest = self._chunks.get(timeout=left)
            except queue.Empty:
                raise SilentProgramError(self._seconds) from None
            if not self._rest:
                self._chunks.put(b"")  # the end stays the end
        part, self._rest = self._rest[:count], self._rest[count:]
        return part

    def _listen(self, descriptor: int) -> None:
        """Put aside what arrives; an empty chunk is the end."""
        part = b"."
        while part:
            try:
                part = os.read(descriptor, CHUNK)
            except OSError:
                part = b""
            self._chunks.put(part)
