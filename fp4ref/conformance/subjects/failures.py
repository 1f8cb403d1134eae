"""Errors that are raised while a kernel is called and its results are checked: the kernel's own, or this program's."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fp4ref.conformance.subjects.outcomes import ErrorParts, Finding, FindingKind

OURS = tuple(str(Path(__file__).with_name(name)) for name in ("calling.py", "device_streams.py", "failures.py"))
TRACE = 8000  # characters of a traceback that are kept


class Wrong(Exception):  # noqa: N818 - a finding about somebody's kernel, not an error of this program
    """A result that cannot be compared."""

    def __init__(self, kind: FindingKind, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(kind, text)


class Theirs(Exception):  # noqa: N818 - an error of somebody's kernel, not of this program
    """An error of a kernel, or of an array that it returned; any other error in a call is an internal one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def of_kernel() -> Iterator[None]:
    """Mark what is raised inside as the kernel's."""
    try:
        yield
    except (Wrong, Theirs):
        raise
    except (Exception, SystemExit) as error:
        raise Theirs(error) from error


def internal(error: Exception) -> Finding:
    """Return the finding that a check of this program failed; an error of a device is the kernel's."""
    kind, message = type(error).__name__, " ".join(str(error).split())
    text = (f"{kind}: {message}" if message else kind)[:300]
    if _of_device(error):
        return Finding(FindingKind.CUDA, text)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    trace = "".join(traceback.format_exception(error)).rstrip()[-TRACE:]
    return Finding(FindingKind.INTERNAL, f"{text} ({place})", trace, ErrorParts(kind, message[:300], place))


def raised(error: BaseException, function: Any) -> Finding:
    """Return the finding about a kernel that raised: the error's first line, file and line, traceback."""
    lines = str(error).strip().splitlines() or [""]
    name = type(error).__name__
    text = (f"{name}: {lines[0]}" if lines[0] else name)[:300]
    kind = FindingKind.CUDA if _of_device(error) else FindingKind.RAISED
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename in OURS:
        inside = inside.tb_next
    if inside is None:
        return Finding(kind, text)
    frames, file = traceback.extract_tb(inside), _file_of(function)
    own = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    trace = "".join(traceback.TracebackException(type(error), error, inside).format()).rstrip()[-TRACE:]
    return Finding(kind, f"{text} ({Path(own.filename).name}:{own.lineno} in {own.name})", trace)


def _of_device(error: BaseException) -> bool:
    """Return True for an error that a CUDA device reported, which torch, CuPy and the driver tell by these words."""
    return "CUDA" in str(error) or type(error).__name__ == "AcceleratorError"


def _file_of(function: Any) -> str | None:
    """Return the file of a function below its decorators, or of the method that calls an object."""
    inner = inspect.unwrap(function)
    code = getattr(inner if hasattr(inner, "__code__") else type(inner).__call__, "__code__", None)
    return None if code is None else str(code.co_filename)
