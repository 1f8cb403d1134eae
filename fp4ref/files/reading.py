"""Reading parts of a file by position.

Nothing is mapped: a mapped file that shrinks ends the process with a signal, one that is read gives an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import FileError
from fp4ref.files.tensors import DTYPES, byte_count, reason, shown, stored_shape

LARGEST = 1 << 30  # bytes of one call, which an operating system may limit to a little under 2^31


def parts_at(path: Path, descriptor: int, start: int, count: int, rule: str) -> Iterator[bytes]:
    """Yield the bytes of an open file from a position on, in parts of at most `LARGEST` bytes.

    Errors: FileError if the file cannot be read, or ends before all bytes were read.

    Rules: CKP-5.
    """
    done = 0
    while done < count:
        try:
            part = os.pread(descriptor, min(count - done, LARGEST), start + done)
        except OSError as error:
            raise FileError(f"read {shown(path)}", reason(error), "a readable file", rule) from None
        if not part:
            raise _ended(path, start, done, count, rule)
        yield part
        done += len(part)


def fill_at(path: Path, descriptor: int, start: int, buffer: memoryview, rule: str) -> None:
    """Fill a buffer of bytes with those of an open file from a position on.

    Errors: FileError if the file cannot be read, or ends before the buffer is full.

    Rules: CKP-5.
    """
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(descriptor, [buffer[done : done + LARGEST]], start + done)
        except OSError as error:
            raise FileError(f"read {shown(path)}", reason(error), "a readable file", rule) from None
        if not count:
            raise _ended(path, start, done, len(buffer), rule)
        done += count


def _ended(path: Path, start: int, done: int, count: int, rule: str) -> FileError:
    needed = f"{count} bytes from byte {start}"
    return FileError(f"read {shown(path)}", f"the file ends at byte {start + done}", needed, rule)


def array_at(path: Path, descriptor: int, start: int, dtype: str, shape: tuple[int, ...], rule: str) -> NDArray[Any]:
    """Return a tensor that is stored from a position on: a read-only array in memory.

    dtype, shape: an element type of DTYPES and the logical shape.

    Errors: FileError if the file ends before the tensor does.

    Rules: CKP-5.
    """
    data = np.empty(byte_count(dtype, shape), np.uint8)
    fill_at(path, descriptor, start, data.data, rule)
    array = data.view(DTYPES[dtype].array).reshape(stored_shape(dtype, shape))
    array.flags.writeable = False
    return array
