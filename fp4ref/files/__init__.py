"""Tensor files: safetensors, npz and raw binaries, read without trust and written in one piece.

Every array is read on demand and written when it is made, so a file may be larger than memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fp4ref.errors import FileError, Fp4Error
from fp4ref.files.npz import NpzFile
from fp4ref.files.raw import RawFile, is_side_file
from fp4ref.files.safetensors import SafetensorsFile
from fp4ref.files.tensors import DTYPES, Entry, TensorFile, byte_count, shown
from fp4ref.files.writing import write_tensors

__all__ = [
    "DTYPES",
    "SUFFIXES",
    "Entry",
    "TensorFile",
    "byte_count",
    "files_of",
    "is_side_file",
    "open_tensors",
    "write_tensors",
]

SUFFIXES: dict[str, Callable[[Path], TensorFile]] = {
    ".safetensors": SafetensorsFile,
    ".npz": NpzFile,
    ".json": RawFile,
}


def open_tensors(path: str | os.PathLike[str]) -> TensorFile:
    """Open a tensor file and check everything but the numbers in it. Its suffix says which format it is.

    The result closes itself at the end of a `with`; arrays that were read stay valid, whatever becomes of the file.

    Rules: FIL-1, FIL-2, FIL-5, FIL-42.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        got = f"suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise FileError(f"read {shown(path)}", got, " or ".join(SUFFIXES), "FIL-42")
    return SUFFIXES[path.suffix.lower()](path)


def files_of(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files that are read if a path is opened: the file itself, and binaries that it names. Rules: FIL-6."""
    try:
        with open_tensors(path) as file:
            return file.paths
    except (Fp4Error, OSError):
        return (Path(path),)
