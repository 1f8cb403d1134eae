"""Ctrl-C while a command is being imported: no traceback, and the exit status that every command has then."""

from __future__ import annotations

import os
import sys
from types import TracebackType

STATUS = 128 + 2  # as a shell reports SIGINT


def is_command() -> bool:
    """Return True if this process is `fp4ref` or `python -m fp4ref`, not a program that imports the package."""
    started = getattr(sys, "argv", None) or [""]
    if started[0] == "-m":  # while the package of a module that runs is imported
        return "-m" in sys.orig_argv and sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] == [__package__]
    return os.path.basename(started[0]) in {"fp4ref", "fp4ref.exe"}  # noqa: PTH119 - pathlib takes longer than this


def _leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(STATUS)
    sys.__excepthook__(kind, error, trace)


if is_command():
    sys.excepthook = _leave
