"""A command's surroundings: output that any encoding can take, and signals that end it tidily."""

from __future__ import annotations

import codecs
import io
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

DEGRADE = "fp4ref-degrade"  # an error handler of codecs
PLAIN = str.maketrans("░▒▓█·×→–—±≤≥", "1234.x>--~<>")


def _degraded(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return plain characters for those that an encoding lacks, or their escaped codes."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def degrade_output() -> None:
    """Make standard output and standard error take every text, whatever their encoding. Rules: CNF-111.

    A stream that was closed before the start is replaced by one that nobody reads.
    """
    codecs.register_error(DEGRADE, _degraded)
    sys.stdout, sys.stderr = (stream or io.TextIOWrapper(io.BytesIO()) for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=DEGRADE)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def leave_on_signals() -> None:
    """Make TERM and HUP end the program as an exception does, so that what it began is undone. Rules: FIL-7."""
    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
