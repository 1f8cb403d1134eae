"""Shards: files of a checkpoint, of which each read is bounded and counted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np

from fp4ref.checkpoints.findings import ERROR, LintFinding
from fp4ref.errors import FileError
from fp4ref.files.reading import fill_at, parts_at
from fp4ref.files.tensors import reason, regular_file, shown

WORDS = 1021  # of 64 bits in a row of the table that a checksum is made of: a prime
_COUNTED = Lock()  # several threads read a file


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as stored: element type, shape, and its bytes in a shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: Shard
    start: int
    count: int

    def bytes(self, begin: int = 0, count: int | None = None) -> bytes:
        """Return some of the tensor's bytes."""
        count = self.count - begin if count is None else count
        assert 0 <= begin <= begin + count <= self.count
        return self.shard.read(self.start + begin, count)

    def fill(self, begin: int, buffer: memoryview) -> None:
        """Fill a buffer with the tensor's bytes from a position on."""
        assert 0 <= begin <= begin + len(buffer) <= self.count
        self.shard.fill(self.start + begin, buffer)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for each in self.shape:
            size *= each
        return size


@dataclass(eq=False)
class Shard:
    """A file of a checkpoint: the claims of its header that can be true, and what is wrong with it.

    whole: false if the header could not be read, so that it is not known which tensors the file contains. hidden: names
    in the header whose entries cannot be used. read_bytes: the number of bytes read so far. stamp: see `stamp`.
    entries: position and length of each value of a GGUF's metadata, its type included. journal: if it is kept, the
    checksum of each part that was read, by position and count, and whether it was read again since.
    """

    path: Path
    name: str
    size: int = 0
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[LintFinding] = field(default_factory=list)
    whole: bool = True
    hidden: set[str] = field(default_factory=set)
    read_bytes: int = 0
    stamp: tuple[int, ...] = ()
    entries: dict[str, tuple[int, int]] = field(default_factory=dict)
    journal: dict[tuple[int, int], tuple[int, bool]] | None = None

    def require_unchanged(self) -> None:
        """Refuse a file that is no longer the one that was opened. Rules: CKP-34."""
        if stamp(self.path) != self.stamp:
            raise self._changed()

    def read(self, start: int, count: int) -> bytes:
        """Return bytes at a position. Errors: FileError if the file has fewer by now. Rules: CKP-5."""
        with self._open() as descriptor:
            parts = [*parts_at(self.path, descriptor, start, count, "CKP-5")]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._note(start, data)
        return data

    def fill(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes at a position. Errors: FileError if the file has fewer by now. Rules: CKP-5."""
        with self._open() as descriptor:
            fill_at(self.path, descriptor, start, buffer, "CKP-5")
        self._note(start, buffer)

    @contextmanager
    def _open(self) -> Iterator[int]:
        try:
            with self.path.open("rb", buffering=0) as file:
                yield file.fileno()
        except OSError as error:
            raise FileError(f"read {shown(self.path)}", reason(error), "a readable file", "CKP-5") from None

    def _note(self, start: int, data: bytes | memoryview) -> None:
        """Count bytes that were read, and refuse those that differ from what was read there before."""
        count = len(data)
        with _COUNTED:
            self.read_bytes += count
        if self.journal is not None:
            digest = checksum(data)
            before = self.journal.get((start, count))
            if before is not None and before[0] != digest:
                raise self._changed()
            self.journal[start, count] = digest, before is not None

    def require_same_bytes(self) -> None:
        """Read every part that was read only once again, and refuse a file of which one differs. Rules: CNV-33."""
        once = [part for part, (_, again) in (self.journal or {}).items() if not again]
        buffer = memoryview(bytearray(max((count for _, count in once), default=0)))
        for start, count in once:
            self.fill(start, buffer[:count])

    def _changed(self) -> FileError:
        needed = "one that nobody writes to"
        return FileError(f"read {shown(self.path)}", "a file that changed while it was read", needed, "CKP-34")

    def refuse(self, message: str, code: str = "header", names: tuple[str, ...] = ()) -> None:
        """Note a problem of this file; without names it is the file's own."""
        self.problems.append(LintFinding(code, ERROR, names or (self.name,), f"{self.name}: {message}"))


def checksum(data: bytes | memoryview) -> int:
    """Return the CRC-32 of the sums of a table's columns, modulo 2^64, and of the bytes behind the table.

    The table has rows of 1021 words of 64 bits. As 1021 is a prime, rows of a matrix that change places come into other
    columns, unless they are a multiple of 1021 words apart. It takes a seventh of the time of a CRC of every byte.

    Rules: CNV-33.
    """
    words = np.frombuffer(data, np.uint64, len(data) // 8)
    table = words[: words.size // WORDS * WORDS].reshape(-1, WORDS)
    sums = np.add.reduce(table, 0)
    return zlib.crc32(memoryview(data)[table.nbytes :], zlib.crc32(sums))


def opened(path: Path, name: str) -> Shard:
    """Return a shard whose header is not yet read. Errors: FileError unless it is a regular file."""
    return Shard(path, name, regular_file(path, "CKP-1"), stamp=stamp(path))


def leaves(folder: Path, name: str) -> bool:
    """Return True if a name leads out of the directory.

    A hub's cache is one place: its snapshots are links to files beside them, in `blobs`.

    Rules: CKP-52.
    """
    inside = folder.resolve()
    try:
        target = (folder / name).resolve()
    except RuntimeError:  # links in a circle, before Python 3.13
        return True
    if target.is_relative_to(inside):
        return False
    hub = inside.parent.parent / "blobs"
    return Path(name).name != name or inside.parent.name != "snapshots" or not target.is_relative_to(hub)


def stamp(path: Path) -> tuple[int, ...]:
    """Return device, inode, size and time in ns, of which one differs if a file was replaced; empty if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
