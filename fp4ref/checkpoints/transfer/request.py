"""Requests: what is to be done with a checkpoint, as JSON data that any process can take up."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fp4ref.checkpoints.checkpoint import READERS
from fp4ref.errors import FileError
from fp4ref.files.tensors import reason, shown

SHARD_BYTES = 5_000_000_000
HEAD = 1 << 16  # bytes at a file's beginning that are part of its state


@dataclass(frozen=True, kw_only=True)
class ConversionRequest:
    """A conversion.

    source, target: absolute paths. convention: that of the source or its family, instead of the recognized one. to: a
    convention or a family; "" for that of the source. quantize: pairs of a pattern of modules and the JSON form of the
    specification for them, the first match counts; requantize: also of modules that are quantized. include, exclude:
    patterns of modules. repairs: tensors, by the code of the finding. lossy: losses are allowed. shard_bytes: bytes of
    a shard, at most, where one unit is not more. state: size, times and inode of each of the source's files. heads:
    digests of their beginnings.

    Rules: CNV-9, CNV-31.
    """

    source: str
    target: str
    convention: str = ""
    to: str = ""
    quantize: tuple[tuple[str, str], ...] = ()
    requantize: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    repairs: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    lossy: bool = False
    shard_bytes: int = SHARD_BYTES
    state: Mapping[str, str] = field(default_factory=dict, hash=False)
    heads: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> str:
        """Return the request as text; equal requests have equal texts."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)


def request_of(text: str) -> ConversionRequest:
    """Return the request of a text."""
    record: dict[str, Any] = json.loads(text)
    record["quantize"] = tuple((pattern, spec) for pattern, spec in record["quantize"])
    for name in ("include", "exclude"):
        record[name] = tuple(record[name])
    record["repairs"] = {code: tuple(names) for code, names in record["repairs"].items()}
    return ConversionRequest(**record)


def with_state(request: ConversionRequest) -> ConversionRequest:
    """Return a request with the present state of its source. Errors: FileError if a file cannot be read."""
    return replace(request, state=_state(request.source), heads=_heads(request.source))


def require_state(request: ConversionRequest, read: Collection[str] | None = None) -> None:
    """Refuse a source whose files changed since the request was made.

    read: names of the files that are compared; None for all, and for those that appeared or went.

    Rules: CNV-10, CNV-32.
    """
    state, heads = (
        {name: text for name, text in kept.items() if read is None or name in read}
        for kept in (request.state, request.heads)
    )
    if _state(request.source, read) != state or _heads(request.source, heads) != heads:
        got = "a file that changed while it was read"
        raise FileError(f"read {shown(request.source)}", got, "a source that stays as it is", "CNV-10")


def _files(path: Path, names: Collection[str] | None = None) -> list[Path]:
    """Return a checkpoint's files, or those with the given names."""
    if not path.is_dir():
        return [path]
    if names is not None:
        return sorted(path / name for name in names)
    with os.scandir(path) as entries:
        return sorted(path / each.name for each in entries if each.is_file())


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"read {shown(path)}", reason(error), "readable files", "CNV-10") from None


def _state(source: str, names: Collection[str] | None = None) -> dict[str, str]:
    """Return sizes, times and inodes of a checkpoint's files, or of those with the given names. Rules: CNV-10."""
    found = {}
    with _in_words(path := Path(source)):
        for each in _files(path, names):
            status = each.stat()
            found[each.name] = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return found


def _heads(source: str, names: Collection[str] | None = None) -> dict[str, str]:
    """Return the digests of the first bytes of a checkpoint's files, or of those with the given names.

    Rules: CNV-32.
    """
    found = {}
    with _in_words(path := Path(source)):
        for each in _files(path, names):
            if each.suffix.lower() in READERS:
                with each.open("rb") as file:
                    found[each.name] = hashlib.sha256(file.read(HEAD)).hexdigest()
    return found
