"""Writing a shard: the header first, then pieces at their places, each tensor with a digest of its bytes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fp4ref.checkpoints.gguf_header import SCALARS, TYPES
from fp4ref.checkpoints.in_threads import in_threads
from fp4ref.checkpoints.transfer.placing import Placed
from fp4ref.checkpoints.transfer.units import Unit
from fp4ref.errors import DomainError, FileError
from fp4ref.files import safetensors
from fp4ref.files.targets import replacing
from fp4ref.files.tensors import DTYPES, Entry, byte_count, quoted, shown

GGUF_VERSION, GGUF_ALIGNMENT = 3, 32
GGUF_STRING, GGUF_ARRAY = 8, 9
GGUF_KINDS = {form: number for number, form in SCALARS.items()}
GGUF_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
Head = tuple[bytes, dict[str, int]]


class ShardReport(NamedTuple):
    """A shard that was written. digests: CRC-32 of each tensor's bytes. losses: what was lost, in numbers."""

    name: str
    size: int
    head: str
    digests: dict[str, str]
    losses: list[str]
    remarks: list[str]


def safetensors_head(path: Path, tensors: Sequence[Placed], metadata: Mapping[str, str | bytes]) -> Head:
    """Return the header of a safetensors file, and where in the file each tensor begins. Rules: FIL-1."""
    texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    for each in tensors:
        if each.dtype not in DTYPES or byte_count(each.dtype, each.shape) != each.length:
            got = f"tensor {quoted(each.name)} of type {each.dtype}"
            raise DomainError(f"write {shown(path)}", got, "a type of safetensors", "CNV-6")
    return safetensors.header(path, [Entry(each.name, each.dtype, each.shape) for each in tensors], texts)


def gguf_value(value: str | float, form: str = "I") -> bytes:
    """Return a value of a GGUF's metadata with its type: a string, or a number in a form of `struct`."""
    if not isinstance(value, str):
        return struct.pack(f"<I{form}", GGUF_KINDS[form], value)
    return struct.pack("<IQ", GGUF_STRING, len(value.encode())) + value.encode()


def gguf_array(values: Sequence[str] | Sequence[float], form: str = "s") -> bytes:
    """Return an array of a GGUF's metadata with its type: strings, or numbers in a form of `struct`."""
    if form != "s":
        numbers = np.array(values, f"<{form}4").tobytes()
        return struct.pack("<IIQ", GGUF_ARRAY, GGUF_KINDS[form], len(values)) + numbers
    texts = [str(each).encode() for each in values]
    parts = (part for each in texts for part in (struct.pack("<Q", len(each)), each))
    return struct.pack("<IIQ", GGUF_ARRAY, GGUF_STRING, len(texts)) + b"".join(parts)


def gguf_head(path: Path, tensors: Sequence[Placed], metadata: Mapping[str, str | bytes]) -> Head:
    """Return the header of a GGUF file of version 3, and where in the file each tensor begins.

    metadata: texts, and values with their types as `gguf_value` returns them.
    """

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    entries = [
        text(key) + (value if isinstance(value, bytes) else gguf_value(value)) for key, value in metadata.items()
    ]
    head = b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, len(tensors), len(metadata)) + b"".join(entries)
    places, end = {}, 0
    for each in tensors:
        if each.dtype not in GGUF_NUMBERS:
            got = f"tensor {quoted(each.name)} of type {each.dtype}"
            raise DomainError(f"write {shown(path)}", got, "a type of GGUF", "CNV-6")
        end += -end % GGUF_ALIGNMENT
        places[each.name] = end
        sizes = each.shape[::-1]
        head += text(each.name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, GGUF_NUMBERS[each.dtype], end)
        end += each.length
    head += b"\0" * (-len(head) % GGUF_ALIGNMENT)
    return head, {name: len(head) + place for name, place in places.items()}


HEADS = {".safetensors": safetensors_head, ".gguf": gguf_head}


def write_shard(
    path: Path,
    units: Sequence[Unit],
    metadata: Mapping[str, str | bytes],
    step: Callable[[str, int], None] = lambda name, count: None,
    threads: int = 1,
) -> ShardReport:
    """Write a file of some units, whole or not at all, and return its report.

    step: is told each tensor's name and the number of bytes that were written. threads: units that are written at once.

    Rules: CNV-2, CNV-30.
    """
    tensors = {each.name: each for unit in units for each in unit.tensors()}
    head, places = HEADS[path.suffix](path, [*tensors.values()], metadata)
    digests = dict.fromkeys(tensors, 0)
    done = dict.fromkeys(tensors, 0)
    losses: list[str] = []
    with replacing(path) as file:
        file.write(head)
        file.flush()

        def emit(name: str, offset: int, data: Any) -> None:
            view = data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
            assert offset == done[name], f"{name}: bytes at {offset} after {done[name]}"
            _write_at(file.fileno(), view, places[name] + offset)
            digests[name] = zlib.crc32(view, digests[name])
            done[name] += len(view)
            step(name, len(view))

        for lost in in_threads(lambda unit: unit.write(emit), units, threads):
            losses += lost
        wrong = [name for name, count in done.items() if count != tensors[name].length]
        if wrong:
            got = f"{done[wrong[0]]} bytes for {quoted(wrong[0])}"
            raise FileError(f"write {shown(path)}", got, f"{tensors[wrong[0]].length}", "CNV-2")
        size = max([len(head), *(places[name] + count for name, count in done.items())])
        os.ftruncate(file.fileno(), size)
    sums = {name: f"crc32:{digest:08x}" for name, digest in sorted(digests.items())}
    remarks = [text for unit in units for text in unit.remarks()]
    return ShardReport(path.name, size, hashlib.sha256(head).hexdigest(), sums, losses, remarks)


def _write_at(file: int, data: Any, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count


def read_report(path: Path) -> ShardReport | None:
    """Return the report of a shard that was written; None if there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
        return ShardReport(**value)
    except (OSError, ValueError, TypeError):
        return None
