"""safetensors: a header of JSON, then the bytes of every tensor without gaps.

The header is data from a stranger: each of its claims is checked against the file before anything relies on it.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fp4ref.errors import FileError
from fp4ref.files.reading import array_at, parts_at
from fp4ref.files.tensors import (
    DTYPES,
    TEXT_MAX,
    Entry,
    TensorFile,
    byte_count,
    misshapen,
    quoted,
    reason,
    regular_file,
    shown,
)
from fp4ref.json_text import strict_json

METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")


class SafetensorsFile(TensorFile):
    """A safetensors file: its header is read when it is opened, each tensor when it is asked for.

    Rules: FIL-1, CKP-5.
    """

    rule = "FIL-1"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        size = regular_file(path, self.rule)
        if size < 8:
            raise self.refused(f"{size} bytes", "8 for the length of a header")
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self.refused(reason(error), "a readable file") from None
        self._end = weakref.finalize(self, os.close, self._descriptor)  # also where nobody closes it
        try:
            self._read_header(size)
        except BaseException:
            self._end()
            raise

    def read(self, name: str) -> NDArray[Any]:
        """Read one array into memory; it is read-only."""
        _, dtype, shape = self._tensor(name)
        return array_at(self.path, self._descriptor, self._base + self._starts[name], dtype, shape, self.rule)

    def close(self) -> None:
        """Let go of the file."""
        self._end()
        self._tensors = {}

    def _read_header(self, size: int) -> None:
        length = int.from_bytes(self._head(0, 8), "little")
        if length > min(TEXT_MAX, size - 8):
            needed = f"at most {min(TEXT_MAX, size - 8)}"
            raise self.refused(f"a header of {length} bytes", needed)
        self._base, self._count = 8 + length, size - 8 - length
        header = self._parse(self._head(8, length))
        self.metadata = self._text(header.pop(METADATA, {}))
        self._starts: dict[str, int] = {}
        self._tensors = {name: self._checked(name, value) for name, value in header.items()}
        self._require_cover()

    def _head(self, start: int, count: int) -> bytes:
        return b"".join(parts_at(self.path, self._descriptor, start, count, self.rule))

    def _parse(self, header: bytes) -> dict[str, Any]:
        if not header.startswith(b"{"):
            raise self.refused("a header that is not a JSON object", "one that starts with {")
        try:
            value = strict_json(header.decode())
        except ValueError as error:
            needed = "a JSON object in UTF-8 without repeated keys"
            raise self.refused(f"a bad header ({reason(error)})", needed) from None
        assert isinstance(value, dict)
        return value

    def _text(self, value: Any) -> dict[str, str]:
        if not (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
            raise self.refused(f"{METADATA} that is not text by key", "an object of strings")
        return value

    def _checked(self, name: str, value: Any) -> Entry:
        """Check one entry on its own."""
        if not (isinstance(value, dict) and set(value) == set(FIELDS)):
            raise self.refused(f"tensor {quoted(name)} with other fields", ", ".join(FIELDS))
        dtype, shape, offsets = (value[field] for field in FIELDS)
        if why := misshapen(dtype if isinstance(dtype, str) else str(type(dtype)), shape):
            raise self.refused(f"tensor {quoted(name)}: {why}", "a type and shape of whole bytes")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(item) is int for item in offsets)):
            raise self.refused(f"tensor {quoted(name)}: data_offsets that are not two integers", "begin and end")
        begin, end = offsets
        if end - begin != byte_count(dtype, shape) or not 0 <= begin <= end <= self._count:
            got = f"tensor {quoted(name)}: {dtype} {shape} at bytes {_brief(begin)} to {_brief(end)}"
            raise self.refused(got, f"{byte_count(dtype, shape)} bytes within {self._count}")
        self._starts[name] = begin
        return Entry(name, dtype, tuple(shape))

    def _require_cover(self) -> None:
        """Require that tensors fill the file one after the other: no overlap, no gap, nothing behind the last."""
        end = 0
        spans = ((self._starts[name], byte_count(dtype, shape), name) for name, dtype, shape in self._tensors.values())
        for start, count, name in sorted(spans):
            if start != end:
                needed = f"byte {end}, where the one before it ends"
                raise self.refused(f"tensor {quoted(name)} at byte {start}", needed)
            end += count
        if end != self._count:
            raise self.refused(f"{self._count} bytes of data", f"the {end} that the header describes")


def _brief(number: int) -> str:
    return str(number) if abs(number) < 1 << 64 else "beyond 2^64"


def header(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the first bytes of a file with these tensors, and where in the file each tensor starts.

    Tensors are ordered by falling alignment, then by name, and the data starts at a multiple of eight: all are aligned.

    Rules: FIL-1, FIL-11, FIL-12.
    """
    order = list(DTYPES)
    record: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    starts, end = {}, 0
    for name, dtype, shape in sorted(entries, key=lambda entry: (-order.index(entry.dtype), entry.name)):
        starts[name], begin = end, end
        end += byte_count(dtype, shape)
        record[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > TEXT_MAX:
        raise FileError(f"write {shown(path)}", f"a header of {len(text)} bytes", f"at most {TEXT_MAX}", "FIL-1")
    first = len(text).to_bytes(8, "little") + text
    return first, {name: len(first) + start for name, start in starts.items()}
