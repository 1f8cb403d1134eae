"""The folder in which backends keep compiled code, and which of its contents may be run.

Code from a cache runs with the rights of the user, so a folder or file counts only if nobody but the user and the
administrator can have written it.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def base() -> Path:
    """$FP4REF_CACHE_DIR, or the user's cache folder."""
    chosen = os.environ.get("FP4REF_CACHE_DIR")
    return (
        Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fp4ref"
    )


class CacheFolder:
    """The cache of one backend: the user's folder, or one of this process if that cannot serve.

    name: of the backend, and of the folder in `base()`.

    Rules: CNF-5.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def readable(self) -> list[Path]:
        """Return the folders in which compiled code may be found; the user's may be read-only."""
        shared = self._shared()
        own = [self._own()] if _process_folder.cache_info().currsize else []
        return [*([shared] if shared else []), *own]

    def writable(self) -> Path:
        """Return the folder for what is compiled."""
        shared = self._shared()
        return shared if shared and writable(shared) else self._own()

    def _own(self) -> Path:
        """Return the folder of this process, which is removed at its end."""
        folder = Path(_process_folder().name) / self._name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _shared(self) -> Path | None:
        """Return the user's folder, or None if there is none or its contents may not be run."""
        try:
            folder = base() / self._name
        except RuntimeError:  # a user without a home
            return None
        reason = prepared(folder)
        if reason is not None and folder.exists():
            _warn(self._name, folder, reason)
        return folder if reason is None else None


@lru_cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fp4ref-")


@lru_cache
def _warn(name: str, folder: Path, reason: str) -> None:
    """Warn once that a folder is not used."""
    said = f"{name}: the cache {folder} is not used: {reason}; compiled code lasts as long as this process [CNF-5]"
    warnings.warn(said, RuntimeWarning, stacklevel=2)


def prepared(folder: Path) -> str | None:
    """Make a folder for the user alone, unless it exists; the reason why its contents may not be run, or None."""
    try:
        for made in (folder.parent, folder):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        reason = _reason(status)
        parents = [parent for parent in folder.resolve().parents if _anyone_renames(parent)]
    except OSError as error:
        return f"{error.strerror}"
    return reason or (f"anyone may rename what is in {parents[0]}" if parents else None)


def writable(folder: Path) -> bool:
    """Return True if a file can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def trusted(file: Path) -> bool:
    """Return True if a path is a file, no link, that only the user or the administrator can have written.

    Errors: OSError.
    """
    status = file.lstat()
    return stat.S_ISREG(status.st_mode) and _reason(status) is None


def _reason(status: os.stat_result) -> str | None:
    """Say who else can have written; None if nobody, or if this system has no owners of files."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in {0, os.geteuid()}:
        return f"its owner is user {status.st_uid}, not {os.geteuid()}"
    return "others may write to it" if status.st_mode & OTHERS else None


def _anyone_renames(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
