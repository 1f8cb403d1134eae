"""npz: a zip archive of .npy arrays, and of metadata as text. Nothing is unpickled or evaluated.

A zip archive says three times how large it is, and each may lie; only bytes that the file holds are believed.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import FileError
from fp4ref.files.tensors import (
    DTYPES,
    TEXT_MAX,
    Entry,
    TensorFile,
    misshapen,
    quoted,
    reason,
    regular_file,
    stored_shape,
)

MEMBERS_MAX = 1 << 20
INFLATED_MAX = 1 << 30  # bytes of a compressed member; a stored one has the file for a bound
HEADER_MAX = 1 << 16  # bytes of the header of an array
CHUNK = 1 << 20

# NumPy's names of types, without byte order. V2 is what it makes of bfloat16, V1 and f1 of the 8-bit floats.
TYPES = {
    "b1": "BOOL", "u1": "U8", "i1": "I8", "V1": "U8", "f1": "U8", "u2": "U16", "i2": "I16", "f2": "F16", "V2": "BF16",
    "u4": "U32", "i4": "I32", "f4": "F32", "u8": "U64", "i8": "I64", "f8": "F64", "c8": "C64",
}  # fmt: skip
DESCRIPTIONS = {dtype: ("|" if name[1] == "1" else "<") + name for name, dtype in reversed(TYPES.items())}
TUPLE = r"\(\s*(?:\d+\s*,\s*(?:\d+\s*,\s*)*(?:\d+\s*)?)?\)"
ITEM = rf"'(descr|fortran_order|shape)'\s*:\s*('[^']*'|True|False|{TUPLE})\s*"
HEADER = re.compile(r"\{\s*" + ITEM + r"(?:,\s*" + ITEM + r"){2}(?:,\s*)?\}\s*", re.ASCII)

REFUSALS = (
    OSError, EOFError, ValueError, RuntimeError, LookupError, ArithmeticError, MemoryError, AssertionError,
    struct.error, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip


class _Member(NamedTuple):
    """A member of the archive: where its numbers start, and whether the first index runs fastest."""

    info: zipfile.ZipInfo
    start: int
    fortran: bool


class NpzFile(TensorFile):
    """An npz file. Member NAME.npy is tensor NAME; NAME.json, or an array of one string, is metadata NAME.

    Rules: FIL-2, FIL-13, FIL-14, FIL-15, FIL-16, FIL-17, FIL-18, FIL-43, FIL-44.
    """

    rule = "FIL-2"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members: dict[str, _Member] = {}
        size = regular_file(path, self.rule)
        with self._refusing("the archive"):
            self._zip = zipfile.ZipFile(path)
        try:
            self._require_bounds(size)
            for info in self._zip.infolist():
                with self._refusing(f"member {quoted(info.filename)}"):
                    self._admit(info)
        except BaseException:
            self._zip.close()
            raise

    def read(self, name: str) -> NDArray[Any]:
        """Read one array into memory, and check the archive's checksum of it."""
        _, dtype, shape = self._tensor(name)
        info, start, fortran = self._members[name]
        with self._refusing(f"member {quoted(info.filename)}"):
            array = np.empty(stored_shape(dtype, shape), DTYPES[dtype].array)
            with self._zip.open(info) as stream:
                _read_into(stream, start, array.reshape(-1).view(np.uint8).data)
        return np.ascontiguousarray(array.reshape(shape[::-1]).T) if fortran else array

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()
        self._tensors = {}

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Turn whatever the zip library says about a bad archive into one kind of error."""
        try:
            yield
        except FileError:
            raise
        except REFUSALS as error:
            raise self.refused(f"{what} is damaged ({reason(error)})", "an archive as np.savez writes it") from None

    def _require_bounds(self, size: int) -> None:
        members = self._zip.infolist()
        if len(members) > MEMBERS_MAX:
            raise self.refused(f"{len(members)} members", f"at most {MEMBERS_MAX}")
        if len({info.filename for info in members}) != len(members):
            raise self.refused("two members of one name", "names of their own")
        if sum(info.compress_size for info in members) > size:
            raise self.refused("members that overlap or leave the file", f"at most its {size} bytes in all")
        for info in members:
            name = f"member {quoted(info.filename)}"
            if info.flag_bits & 1 or info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise self.refused(f"{name} encrypted or compressed in an unusual way", "a stored or deflated one")
            if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
                raise self.refused(f"{name} of {info.file_size} bytes in {info.compress_size}", "as many")
            if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > INFLATED_MAX:
                needed = f"at most {INFLATED_MAX}; larger arrays are stored uncompressed (np.savez)"
                raise self.refused(f"{name} inflates to {info.file_size} bytes", needed)

    def _admit(self, info: zipfile.ZipInfo) -> None:
        """Read what a member is: text, or the header of an array."""
        stem, dot, suffix = info.filename.rpartition(".")
        if suffix == "npy" and dot:
            with self._zip.open(info) as stream:
                self._admit_array(info, stem, stream)
        elif suffix == "json" and dot:
            self._admit_text(stem, self._contents(info, 0).decode())
        else:
            got = f"member {quoted(info.filename)}, which is neither a tensor nor metadata"
            raise self.refused(got, "names that end in .npy or .json")

    def _admit_text(self, key: str, text: str) -> None:
        if key in self.metadata:
            raise self.refused(f"metadata {quoted(key)} twice", "one text")
        self.metadata[key] = text

    def _admit_array(self, info: zipfile.ZipInfo, name: str, stream: IO[bytes]) -> None:
        description, fortran, shape, start = _array_header(stream)
        kind, count = description[1:], info.file_size - start
        if kind[:1] == "U" and kind[1:].isdecimal() and not shape and description[0] == "<":
            if count != 4 * int(kind[1:]):
                got = f"member {quoted(info.filename)}: a string of type {quoted(description)} in {count} bytes"
                raise self.refused(got, f"{4 * int(kind[1:])}")
            self._admit_text(name, self._contents(info, start).decode("utf-32-le").rstrip("\0"))
            return
        if kind[:1] == "U":
            got = misshapen("U8", shape) or f"an array of strings, {quoted(description)} {list(shape)}"
            needed = "numbers, or one little-endian string, which is metadata"
            raise self.refused(f"member {quoted(info.filename)}: {got}", needed)
        if kind not in TYPES or description[0] not in "<|=":
            needed = "numbers in little-endian order; objects (pickles) are never loaded"
            raise self.refused(f"member {quoted(info.filename)} of type {quoted(description)}", needed)
        dtype = TYPES[kind]
        if why := misshapen(dtype, shape):
            raise self.refused(f"member {quoted(info.filename)}: {why}", "an array's shape")
        if math.prod(shape) * DTYPES[dtype].array.itemsize != count:
            got = f"member {quoted(info.filename)}: {dtype} {list(shape)} in {count} bytes"
            raise self.refused(got, f"{math.prod(shape) * DTYPES[dtype].array.itemsize}")
        self._tensors[name], self._members[name] = Entry(name, dtype, shape), _Member(info, start, fortran)

    def _contents(self, info: zipfile.ZipInfo, start: int) -> bytes:
        if info.file_size > TEXT_MAX:
            raise self.refused(f"member {quoted(info.filename)} of {info.file_size} bytes", f"at most {TEXT_MAX}")
        contents = bytearray(info.file_size - start)
        with self._zip.open(info) as stream:
            _read_into(stream, start, memoryview(contents))
        return bytes(contents)


def _read_into(stream: IO[bytes], start: int, target: memoryview) -> None:
    """Fill the target with what follows `start`, and reach the end, where the checksum is compared."""
    _exactly(stream, start)
    filled = 0
    while filled < len(target):
        chunk = stream.read(min(CHUNK, len(target) - filled))
        if not chunk:
            raise EOFError(f"{filled} bytes of {len(target)}")
        target[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if stream.read(1):
        raise ValueError("more bytes than declared")


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EOFError(f"{len(data)} bytes of {count}")
    return data


def _array_header(stream: IO[bytes]) -> tuple[str, bool, tuple[int, ...], int]:
    """Return type, Fortran order, shape and length of the header of a .npy array; read by a pattern, not evaluated."""
    magic = _exactly(stream, 8)
    if magic[:6] != b"\x93NUMPY" or magic[6] not in {1, 2, 3}:
        raise ValueError("not a .npy array")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(_exactly(stream, width), "little")
    if length > HEADER_MAX:
        raise ValueError(f"an array header of {length} bytes")
    text = _exactly(stream, length).decode("latin-1")
    items = re.findall(ITEM, text, re.ASCII) if HEADER.fullmatch(text) else []
    fields = dict(items) if len(items) == 3 else {}
    description, order, shape = (fields.get(key, "") for key in ("descr", "fortran_order", "shape"))
    if description[:1] != "'" or len(description) < 4 or order not in {"True", "False"} or shape[:1] != "(":
        raise ValueError("an array header that is not a type, an order and a shape")
    sizes = [size.strip() for size in shape[1:-1].split(",")]
    return description[1:-1], order == "True", tuple(int(size) for size in sizes if size), 8 + width + length


def member(name: str) -> zipfile.ZipInfo:
    """Return a member without a date: the same contents are the same file. Rules: FIL-19."""
    return zipfile.ZipInfo(name)


def array_header(entry: Entry) -> bytes:
    """Return the bytes in front of an array: what np.save writes for it, BF16 being V2 and other small types bytes."""
    stored = "|u1" if DTYPES[entry.dtype].array == np.uint8 and entry.dtype != "BOOL" else DESCRIPTIONS[entry.dtype]
    record = {"descr": stored, "fortran_order": False, "shape": stored_shape(entry.dtype, entry.shape)}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, record)
    return header.getvalue()
