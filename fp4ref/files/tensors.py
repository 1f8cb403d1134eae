"""The shared parts of the file formats: element types, entries, and the interface of a tensor file."""

from __future__ import annotations

import math
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import FileError

TEXT_MAX = 100_000_000  # bytes of a header or of metadata
DIMENSIONS_MAX = 64  # of a NumPy array


class TensorType(NamedTuple):
    """An element type: bits of an element, the NumPy type of what is read, and the format of which it has the codes."""

    bits: int
    array: np.dtype[Any]
    codes: str = ""


# From the least to the greatest alignment, the order in which a safetensors file holds them last to first.
DTYPES = {
    name: TensorType(bits, np.dtype(array), *codes)
    for name, bits, array, *codes in (
        ("BOOL", 8, np.uint8),
        ("F4", 4, np.uint8, "e2m1"),
        ("F6_E2M3", 6, np.uint8, "e2m3"),
        ("F6_E3M2", 6, np.uint8, "e3m2"),
        ("U8", 8, np.uint8),
        ("I8", 8, np.int8),
        ("F8_E5M2", 8, np.uint8, "e5m2"),
        ("F8_E4M3", 8, np.uint8, "e4m3"),
        ("F8_E8M0", 8, np.uint8, "e8m0"),
        ("F8_E4M3FNUZ", 8, np.uint8),
        ("F8_E5M2FNUZ", 8, np.uint8),
        ("I16", 16, np.int16),
        ("U16", 16, np.uint16),
        ("F16", 16, np.float16),
        ("BF16", 16, ml_dtypes.bfloat16),
        ("I32", 32, np.int32),
        ("U32", 32, np.uint32),
        ("F32", 32, np.float32),
        ("C64", 64, np.complex64),
        ("F64", 64, np.float64),
        ("I64", 64, np.int64),
        ("U64", 64, np.uint64),
    )
}


class Entry(NamedTuple):
    """A tensor of a file: its name, the name of its element type in DTYPES, and its logical shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class TensorFile(ABC):
    """An open file of named tensors and of text.

    metadata: text by key. Entries are checked when the file is opened, arrays are read when they are asked for.
    """

    rule = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._tensors: dict[str, Entry] = {}

    @abstractmethod
    def read(self, name: str) -> NDArray[Any]:
        """Read one array, in the shape of its entry.

        BF16 comes as ml_dtypes.bfloat16; 8-bit floats and BOOL come as uint8; codes of fewer bits come packed, uint8
        [..., K * bits / 8].
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are read."""
        return (self.path,)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in the file's order."""
        return tuple(self._tensors)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return element type and logical shape of a tensor, without reading it."""
        _, dtype, shape = self._tensor(name)
        return dtype, shape

    def _tensor(self, name: str) -> Entry:
        if name not in self._tensors:
            got = f"{quoted(name)}, which is metadata" if name in self.metadata else f"no tensor {quoted(name)}"
            raise self.refused(got, f"one of the {len(self._tensors)} tensors in the file")
        return self._tensors[name]

    def refused(self, got: str, needed: str = "") -> FileError:
        """Return the error that says what is wrong with this file."""
        return FileError(f"read {shown(self.path)}", got, needed, self.rule)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the array that holds a tensor: that of its bytes for packed codes, else its own."""
    return (*shape[:-1], shape[-1] * DTYPES[dtype].bits // 8) if is_packed(dtype) else shape


def is_packed(dtype: str) -> bool:
    """Return True if an element has fewer bits than a byte, so that a shape of elements is not one of bytes."""
    return dtype in DTYPES and DTYPES[dtype].bits < 8


def byte_count(dtype: str, shape: tuple[int, ...]) -> int:
    """Return bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].bits // 8


def misshapen(dtype: str, shape: Any) -> str:
    """Return why a tensor cannot exist; empty if it can. Zero sizes are allowed, absurd ones next to them are not."""
    if dtype not in DTYPES:
        return f"unknown element type {quoted(str(dtype))}"
    if not isinstance(shape, (list, tuple)) or not all(type(size) is int and size >= 0 for size in shape):
        return "a shape that is not a list of sizes"
    if len(shape) > DIMENSIONS_MAX:
        return f"{len(shape)} dimensions"
    if math.prod(max(size, 1) for size in shape) * DTYPES[dtype].bits > 8 * np.iinfo(np.intp).max:
        return "a shape of more bytes than can be addressed"
    if is_packed(dtype) and (not shape or shape[-1] * DTYPES[dtype].bits % 8):
        return f"a row of {dtype} that ends inside a byte"
    return ""


def regular_file(path: Path, rule: str) -> int:
    """Return the size of a file that can be read from anywhere; devices, pipes and folders are refused."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise FileError(f"read {shown(path)}", reason(error), "a readable file", rule) from None
    if not stat.S_ISREG(status.st_mode):
        got = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise FileError(f"read {shown(path)}", got, "a file", rule)
    return status.st_size


def reason(error: BaseException) -> str:
    """Return the text of an exception, in one line without paths."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200].lower() or type(error).__name__


def quoted(name: str) -> str:
    """Return a name from a file, safe to print: escaped and short."""
    return repr(name if len(name) <= 100 else f"{name[:97]}...")


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path, safe to print in one line."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)
