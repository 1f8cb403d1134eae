"""A file that holds how far a sweep came, from which another run goes on, and the pace of a run."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import fp4ref
from fp4ref.errors import FileError
from fp4ref.files import kinds
from fp4ref.files.targets import require_target, write_bytes

MARK = "fp4ref_sweep"
KIND = kinds.containing("the progress of a sweep", f'"{MARK}"'.encode())
BETWEEN = 10.0  # seconds from one writing to the next


@dataclass
class SweepStore:
    """The file of a sweep's progress.

    sources: files that may not be overwritten. force: replace a file of another kind. about: the sweep that the file
    is about. done: how far it came.
    """

    path: Path
    sources: tuple[Path, ...] = ()
    force: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)
    written: float = field(default_factory=time.monotonic)

    def read(self, subject: str, **about: Any) -> dict[str, Any]:
        """Return how far this sweep of a subject came, empty at its beginning.

        Errors: FileError for a file that is about another sweep, or that may not be written.

        Rules: CNF-114, CNF-115.
        """
        require_target(self.path, KIND, self.sources, force=self.force)
        self.about = {"version": fp4ref.__version__, "subject": subject, "file": _digest(subject), **about}
        if not self.path.is_file() or not self.path.stat().st_size or not KIND.recognizes(self.path):
            return {}
        operation = f"verify --resume {self.path}"
        try:
            record = json.loads(self.path.read_text("utf-8"))
            before, self.done = record["about"], record["done"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(operation, f"a damaged file ({error!r})", "one that verify wrote", "CNF-115") from None
        changed = [name for name, value in self.about.items() if before.get(name) != value]
        if changed:
            raise FileError(
                operation,
                f"a sweep with another {' and '.join(changed)}",
                "the same kernel, settings and version of fp4ref, or another file",
                "CNF-115",
            )
        return self.done

    def keep(self, done: dict[str, Any]) -> None:
        """Keep how far the sweep came; it is written now and again."""
        self.done = done
        if time.monotonic() - self.written > BETWEEN:
            self.write()

    def write(self) -> None:
        """Write the file."""
        text = json.dumps({MARK: 1, "about": self.about, "done": self.done}, indent=1)
        write_bytes(self.path, text.encode(), KIND, self.sources, force=self.force)
        self.written = time.monotonic()


class Pace:
    """The elements that this run has compared a second, and the time that is left.

    done: elements that earlier runs have compared.
    """

    def __init__(self, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.before, self.clock, self.start = done, clock, clock()

    def text(self, done: int, total: int) -> str:
        """Return how far a sweep is, and for how long it goes on, in words."""
        share = f"{done / total:.1%} of {total:,} elements"
        seconds = self.clock() - self.start
        if done <= self.before or seconds < 1:
            return share
        rate = (done - self.before) / seconds
        return f"{share}, {rate / 1e6:,.1f} million a second, about {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if not minutes:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _digest(subject: str) -> str | None:
    """Return a digest of the file with a kernel, found without importing it; None for a function of this process."""
    place = subject.rpartition(":")[0]
    path = Path(place) if Path(place).is_file() else _module(place)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _module(name: str) -> Path | None:
    """Return the file of a module."""
    folders: list[str] | None = [str(Path.cwd()), *sys.path]
    found = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:count]), folders)
        if found is None:
            return None
        folders = None if found.submodule_search_locations is None else [*found.submodule_search_locations]
    return Path(found.origin) if found is not None and found.origin else None
