"""Writing tensor files: in one piece or not at all, one array in memory at a time."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import FileError
from fp4ref.files import npz, safetensors
from fp4ref.files.targets import FileKind, replacing
from fp4ref.files.tensors import DTYPES, Entry, misshapen, quoted, shown, stored_shape

Arrays = Iterable[NDArray[Any]]


def write_tensors(
    path: str | os.PathLike[str],
    entries: Sequence[Entry | tuple[str, str, Sequence[int]]],
    metadata: Mapping[str, str],
    arrays: Arrays,
    sources: Iterable[str | os.PathLike[str]] = (),
    kind: FileKind | None = None,
    *,
    force: bool = False,
) -> None:
    """Write a tensor file, its format chosen by suffix; a failure leaves what was there before.

    entries: (name, element type, logical shape) of every tensor. arrays: one per entry in the same order, taken one
    at a time, of the type and shape that reading gives back; 16-bit types also as uint16, BOOL also as bool.
    sources: files that the arrays come from; the target must not be one of them. kind: a file of another kind is
    replaced only by force.

    Rules: FIL-1, FIL-2, FIL-4, FIL-6, FIL-42.
    """
    path = Path(path)
    write = {".safetensors": _safetensors, ".npz": _npz}.get(path.suffix.lower())
    if write is None:
        got = f"suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise FileError(f"write {shown(path)}", got, ".safetensors or .npz", "FIL-42")
    checked = [Entry(name, dtype, tuple(shape)) for name, dtype, shape in entries]
    _require_entries(path, checked, metadata)
    _require_regular(path)
    with replacing(path, sources, kind, force=force) as file:
        write(path, file, checked, metadata, arrays)


def _require_regular(path: Path) -> None:
    """Refuse a device or pipe, in which no place can be sought. Rules: FIL-4."""
    if path.exists() and not path.is_file():
        raise FileError(f"write {shown(path)}", "a directory or device", "a file, or a new name", "FIL-4")


def _require_entries(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str]) -> None:
    operation = f"write {shown(path)}"
    seen: set[str] = set()
    for name, dtype, shape in entries:
        if why := misshapen(dtype, shape):
            raise FileError(operation, f"tensor {quoted(name)}: {why}", "a type and shape of whole bytes", "FIL-4")
        if name in seen or name == safetensors.METADATA:
            raise FileError(operation, f"tensor {quoted(name)} twice or reserved", "names of their own", "FIL-4")
        seen.add(name)
    for text in (*seen, *metadata, *metadata.values()):
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise FileError(operation, f"text {quoted(text)}", "Unicode without NUL", "FIL-4")


def _paired(path: Path, entries: Sequence[Entry], arrays: Arrays) -> Iterator[tuple[Entry, memoryview]]:
    """Yield every entry with the bytes of its array, once these are found to fit."""
    operation, iterator = f"write {shown(path)}", iter(arrays)
    for entry in entries:
        array = next(iterator, None)
        if array is None:
            raise FileError(operation, f"no array for {quoted(entry.name)}", "one per entry", "FIL-4")
        stored, shape = DTYPES[entry.dtype].array, stored_shape(entry.dtype, entry.shape)
        same_bits = array.dtype.kind in "ub" and array.dtype.itemsize == stored.itemsize
        if array.shape != shape or not (array.dtype == stored or same_bits):
            got = f"{array.dtype} {list(array.shape)} for {quoted(entry.name)}"
            raise FileError(operation, got, f"{stored} {list(shape)}", "FIL-4")
        yield entry, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if next(iterator, None) is not None:
        raise FileError(operation, f"more than {len(entries)} arrays", "one per entry", "FIL-4")


def _safetensors(
    path: Path, file: BinaryIO, entries: Sequence[Entry], metadata: Mapping[str, str], arrays: Arrays
) -> None:
    first, starts = safetensors.header(path, entries, metadata)
    file.write(first)
    for entry, data in _paired(path, entries, arrays):
        file.seek(starts[entry.name])
        file.write(data)


def _npz(path: Path, file: BinaryIO, entries: Sequence[Entry], metadata: Mapping[str, str], arrays: Arrays) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for key, text in metadata.items():
            with archive.open(npz.member(f"{key}.json"), "w") as stream:
                stream.write(text.encode())
        for entry, data in _paired(path, entries, arrays):
            with archive.open(npz.member(f"{entry.name}.npy"), "w", force_zip64=True) as stream:
                stream.write(npz.array_header(entry))
                stream.write(data)
