"""The header of a GGUF file: a bounded reader of its documented form.

Rules: CKP-1, CKP-2.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from fp4ref.checkpoints.shards import Shard, StoredTensor
from fp4ref.errors import FileError
from fp4ref.files.tensors import DIMENSIONS_MAX, TEXT_MAX, quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
COUNT_MAX = 1 << 20  # tensors, or entries of metadata
WINDOW = 1 << 16  # bytes that are read at a time
KEPT = 64  # elements of an array that are kept; the tokens of a vocabulary have no meaning here

# Number of a type: its name, elements of a block, and bytes of a block.
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class _Cursor:
    """A position in a file that moves forward; reads come from windows."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.position = shard, 0
        self._first, self._window = 0, b""

    def take(self, count: int) -> bytes:
        if self.position + count > self.shard.size:
            raise _Bad(f"it ends at byte {self.shard.size} inside the header")
        begin = self.position - self._first
        if begin + count > len(self._window):
            self._first, begin = self.position, 0
            self._window = self.shard.read(self.position, min(max(count, WINDOW), self.shard.size - self.position))
        self.position += count
        return self._window[begin : begin + count]

    def skip(self, count: int) -> None:
        if self.position + count > self.shard.size:
            raise _Bad(f"it ends at byte {self.shard.size} inside the header")
        self.position += count

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def count(self, what: str, limit: int) -> int:
        value: int = self.number("Q")
        if value > limit:
            raise _Bad(f"{value} {what}, need at most {limit}")
        return value

    def text(self) -> str:
        length = self.count("bytes of text", min(TEXT_MAX, self.shard.size))
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise _Bad("a text that is not UTF-8") from None


class _Bad(Exception):  # noqa: N818 - becomes a finding, never reaches a caller
    """A claim of the header that cannot be true."""


def read_gguf(shard: Shard, *, head_only: bool = False) -> None:
    """Fill a shard from the header of a GGUF file; contradictions become problems. Rules: CKP-1, CKP-2."""
    try:
        _fill(shard, head_only=head_only)
    except (_Bad, FileError, OverflowError) as error:
        shard.refuse(f"GGUF header: {error}")
        shard.whole = bool(shard.tensors)


def _fill(shard: Shard, *, head_only: bool) -> None:
    cursor = _Cursor(shard)
    if cursor.take(4) != MAGIC:
        raise _Bad("it does not start with GGUF")
    version = cursor.number("I")
    if version not in VERSIONS:
        raise _Bad(f"version {version}, need 2 or 3")
    tensors, entries = cursor.count("tensors", COUNT_MAX), cursor.count("entries of metadata", COUNT_MAX)
    facts: dict[str, Any] = {}
    for _ in range(entries):
        key = cursor.text()
        if key in facts:
            raise _Bad(f"the key {quoted(key)} twice")
        begin = cursor.position
        facts[key] = _value(cursor, cursor.number("I"))
        shard.entries[key] = begin, cursor.position - begin
    shard.metadata = {key: str(value) for key, value in facts.items()}
    alignment = facts.get(ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Bad(f"{ALIGNMENT} {alignment}, need a power of two")
    infos = [_info(cursor) for _ in range(tensors)]
    base = -(-cursor.position // alignment) * alignment
    _place(shard, infos, base, alignment, head_only=head_only)


def _value(cursor: _Cursor, kind: int, depth: int = 0) -> Any:
    if kind in SCALARS:
        return cursor.number(SCALARS[kind])
    if kind == STRING:
        return cursor.text()
    if kind != ARRAY or depth > 3:
        raise _Bad(f"metadata of type {kind}")
    inner, count = cursor.number("I"), cursor.count("elements of an array", cursor.shard.size)
    if inner in SCALARS:
        values = [cursor.number(SCALARS[inner]) for _ in range(min(count, KEPT))]
        cursor.skip((count - len(values)) * struct.calcsize(SCALARS[inner]))
        return values
    values = []
    for index in range(count):
        value = _value(cursor, inner, depth + 1)
        if index < KEPT:
            values.append(value)
    return values


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape from the slowest dimension, type and offset of one tensor."""
    name = cursor.text()
    dimensions = cursor.number("I")
    if dimensions > DIMENSIONS_MAX:
        raise _Bad(f"tensor {quoted(name)} with {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _place(
    shard: Shard,
    infos: list[tuple[str, tuple[int, ...], int, int]],
    base: int,
    alignment: int,
    *,
    head_only: bool,
) -> None:
    """Check each tensor's type, shape and offset, then that no two overlap and that the file has them all."""
    spans = []
    for name, shape, kind, offset in infos:
        label, block, size = TYPES.get(kind, ("", 1, 0))
        count = math.prod(shape) // block * size
        why = (
            "a name that is stored twice"
            if name in shard.tensors
            else f"the unknown type {kind}"
            if not label
            else f"a row of {shape[-1] if shape else 1}, need a multiple of {block}"
            if (shape[-1] if shape else 1) % block
            else f"the offset {offset}, need a multiple of {alignment}"
            if offset % alignment
            else ""
        )
        if why or count >= 1 << 62 or offset >= 1 << 62:
            shard.refuse(f"tensor {quoted(name)} has {why or 'a shape beyond any file'}", names=(name,))
            shard.hidden.add(name)
            continue
        shard.tensors[name] = StoredTensor(name, label, shape, shard, base + offset, count)
        spans.append((offset, offset + count, name))
    last, before = 0, ""
    for begin, end, name in sorted(spans):
        if begin < last:
            text = f"tensor {quoted(name)} at byte {begin} overlaps {quoted(before)}, which ends at {last}"
            shard.refuse(text, names=(before, name))
        last, before = max(last, end), name
    lost = [name for _, end, name in spans if base + end > shard.size and not head_only]
    for name in lost:
        shard.tensors.pop(name)
        shard.hidden.add(name)
    if lost:
        text = f"the file has {shard.size} bytes, its header promises {base + last}; {len(lost)} tensors are cut off"
        shard.refuse(text, "truncated")
