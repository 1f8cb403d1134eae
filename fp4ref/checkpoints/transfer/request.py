"""Requests: what is to be done with a checkpoint, as JSON data that any process can take up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    a shard, at most, where one unit is not more. state: that of the source's files.

    Rules: CNV-9.
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
    state: str = ""

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


def state_of(source: str) -> str:
    """Return a digest of the state of a checkpoint's files: size, times, and the first bytes of each.

    Errors: FileError if a file cannot be read.

    Rules: CNV-10.
    """
    path = Path(source)
    digest = hashlib.sha256()
    try:
        files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        for each in files:
            status = each.stat()
            kept = (each.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update(repr(kept).encode())
            if each.suffix.lower() in READERS:
                with each.open("rb") as file:
                    digest.update(file.read(HEAD))
    except OSError as error:
        raise FileError(f"read {shown(path)}", reason(error), "readable files", "CNV-10") from None
    return digest.hexdigest()


def require_state(request: ConversionRequest) -> None:
    """Refuse a source whose files changed since the request was made. Rules: CNV-10."""
    if state_of(request.source) != request.state:
        got = "a file that changed while it was read"
        raise FileError(f"read {shown(request.source)}", got, "a source that stays as it is", "CNV-10")
