"""The failing cases of the last run of a kernel, by name, so that the next run tries them first.

A file in the user's cache folder holds nothing but names, one a line; a name that no case has is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from fp4ref.errors import FileError
from fp4ref.files.targets import FileKind, write_bytes
from fp4ref.spec import Spec
from fp4ref_numerics import cache

NAMES = FileKind("a list of names", lambda path: True)  # whatever is there, it is replaced
KEPT = 32  # names
LONGEST = 1 << 16  # bytes of a file
NAME = re.compile(r"[^\s/]+(/[^/\x00-\x1f\ufffd]+){3}|[\w.+-]+(@\d+)?")  # family, member, type, direction; a product


def recall(kernel: str, spec: Spec) -> list[str]:
    """Return the names of the cases on which a kernel failed last time; none if that is not known.

    Rules: CNF-64, CNF-107.
    """
    try:
        with _path(kernel, spec).open("rb") as file:
            names = file.read(LONGEST).decode(errors="replace").split("\n")
    except (OSError, RuntimeError):  # a user without a home
        return []
    return [name for name in names if NAME.fullmatch(name)][:KEPT]


def remember(kernel: str, spec: Spec, names: Iterable[str]) -> None:
    """Store the names of the cases that failed, in place of those before. A folder that cannot be written is left."""
    text = "\n".join(list(dict.fromkeys(names))[:KEPT])
    with contextlib.suppress(OSError, RuntimeError, FileError):
        path = _path(kernel, spec)
        if not text:
            path.unlink()
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(path, text.encode(), NAMES)


def _path(kernel: str, spec: Spec) -> Path:
    """Return the file of a kernel, as it is named from the current directory, and a specification."""
    key = hashlib.sha256(f"{Path.cwd()}\0{kernel}\0{spec.to_json()}".encode()).hexdigest()
    return cache.base() / "failing" / f"{key[:32]}.txt"
