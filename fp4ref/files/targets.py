"""Targets: the files that commands write, whole or not at all, and never over what they should leave alone."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fp4ref.errors import FileError
from fp4ref.files.tensors import reason, shown
from fp4ref.names import named_places

BEGINNING = 1 << 16  # bytes of a file from which its kind is recognized
Paths = Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class FileKind:
    """A kind of file. name: with its article. recognizes: whether a file that is not empty is of the kind."""

    name: str
    recognizes: Callable[[Path], bool]


def beginning_with(name: str, test: Callable[[bytes], bool]) -> FileKind:
    """Return the kind of files whose first bytes pass a test."""

    def recognizes(path: Path) -> bool:
        with path.open("rb") as file:
            return test(file.read(BEGINNING))

    return FileKind(name, recognizes)


def require_target(
    path: str | os.PathLike[str], kind: FileKind | None, sources: Paths = (), *, force: bool = False
) -> None:
    """Refuse to write where a command would destroy what it reads, or a file of another kind.

    kind: the kind of file that will be written; None for no check of what is there. sources: files that the command
    reads, beside those of `--import`. force: replace a file of another kind.

    Errors: FileError.

    Rules: FIL-4, FIL-6, FIL-10, FIL-41.
    """
    path = Path(path)
    operation = f"write {shown(path)}"
    if path.is_dir():
        raise FileError(operation, "a directory", "a file, or a new name", "FIL-4")
    if not path.absolute().parent.is_dir():
        raise FileError(operation, "no such file or directory", "an existing folder to write to", "FIL-4")
    if not path.exists():
        return
    for source in (*sources, *named_places()):
        if Path(source).exists() and path.samefile(source):
            raise FileError(operation, "the file that is read", "another one", "FIL-10")
    if kind is None or force or not path.is_file() or not path.stat().st_size:
        return
    try:
        known = kind.recognizes(path)
    except OSError as error:
        raise FileError(operation, reason(error), "a file that can be read", "FIL-6") from error
    if not known:
        raise FileError(operation, f"an existing file that is not {kind.name}", "another name, or --force", "FIL-6")


@contextmanager
def replacing(
    path: str | os.PathLike[str], sources: Paths = (), kind: FileKind | None = None, *, force: bool = False
) -> Iterator[BinaryIO]:
    """Open a new file beside `path` that takes its place when the block ends, and vanishes if the block fails.

    A device or pipe is written directly. Arguments are those of `require_target`.

    Rules: FIL-4, FIL-6, FIL-7.
    """
    path = Path(path)
    operation = f"write {shown(path)}"
    target = Path(os.path.realpath(path))  # a link stays, the file that it names is replaced
    temporary = target.with_name(f".fp4ref-{secrets.token_hex(8)}.tmp")
    require_target(path, kind, sources, force=force)
    direct = path.exists() and not path.is_file()
    try:
        with path.open("wb") if direct else temporary.open("xb") as file:
            yield file
            file.flush()
            if not direct:
                os.fsync(file.fileno())
        if not direct:
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
    except BaseException as error:
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(operation, reason(error), "a place to write", "FIL-4") from error
        raise


def write_bytes(
    path: str | os.PathLike[str], content: bytes, kind: FileKind, sources: Paths = (), *, force: bool = False
) -> None:
    """Write a file in one piece. Arguments are those of `require_target`. Rules: FIL-4, FIL-6."""
    with replacing(path, sources, kind, force=force) as file:
        file.write(content)
