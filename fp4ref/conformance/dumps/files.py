"""Dumps: quantized tensors in a file, as a kernel's author writes them and as this package does.

A dump file is opened with all its sizes checked against its metadata; bytes are read one tensor at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from fp4ref import packings
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import resolve
from fp4ref.conformance.dumps.form import (
    PARTS,
    SHORT,
    STORED,
    Dump,
    DumpPlan,
    entry_name,
    part_shapes,
    read_metadata,
    refused,
)
from fp4ref.conformance.dumps.writing import planned, write_dump
from fp4ref.errors import DomainError, DTypeError, LayoutError
from fp4ref.files import TensorFile, open_tensors
from fp4ref.files.tensors import DTYPES, misshapen, quoted, shown, stored_shape
from fp4ref.layout import LINEAR, layout, scale_layouts
from fp4ref.packings import CANONICAL
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Quantized, matrix_shape
from fp4ref.spec import Spec

__all__ = ["Dump", "DumpFile", "DumpPlan", "entry_name", "part_shapes", "planned", "read_dump", "write_dump"]

TYPES = {stored: dtype for dtype, stored in STORED.items()}


def read_dump(
    path: str | os.PathLike[str],
    spec: Spec | str | None = None,
    scale_layout: str | None = None,
    dtype: str | None = None,
    packing: str = CANONICAL,
) -> DumpFile:
    """Open a dump; the result is a sequence of Dump that reads each tensor when it is asked for.

    spec, scale_layout, dtype: take the place of the metadata for every tensor. dtype is that of x, and decides
    what 16-bit integers mean. packing: the one that the data of the file are in; a Dump has them
    in the canonical one.

    Rules: FIL-3, LAY-7, LAY-60, PACK-7.
    """
    file = open_tensors(path)
    try:
        return DumpFile(file, None if spec is None else resolve(spec), scale_layout, dtype, packing)
    except BaseException:
        file.close()
        raise


class DumpFile(Sequence[Dump]):
    """The tensors of a dump file, in the file's order; closes itself at the end of a `with`.

    Rules: FIL-3.
    """

    def __init__(
        self, file: TensorFile, spec: Spec | None, scale_layout: str | None, dtype: str | None, packing: str
    ) -> None:
        self._file = file
        self.spec_version, records = read_metadata(file)
        parts: dict[str, dict[str, str]] = {}
        for entry in file.names:
            tensor, part = _split(file, entry)
            if parts.setdefault(tensor, {}).setdefault(part, entry) != entry:
                raise refused(file, f"{quoted(entry)} and {quoted(parts[tensor][part])}", "one of them")
        if set(records) - set(parts) or not parts:
            missing = quoted(min(set(records) - set(parts))) if parts else "any tensor"
            raise refused(file, f"no entries for {missing}", f"at least {', '.join(SHORT[:2])}")
        given = {"spec": spec, "scale_layout": scale_layout, "dtype": dtype}
        given = {key: value for key, value in given.items() if value is not None}
        self._tensors = [_Tensor(file, name, parts[name], records.get(name, {}) | given, packing) for name in parts]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors; a single one may be empty."""
        return tuple(tensor.name for tensor in self._tensors)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors, without reading them."""
        return tuple(tensor.shape for tensor in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, index: int) -> Dump: ...
    @overload
    def __getitem__(self, index: slice) -> list[Dump]: ...
    def __getitem__(self, index: int | slice) -> Dump | list[Dump]:
        if isinstance(index, slice):
            return [tensor.read(self.spec_version) for tensor in self._tensors[index]]
        return self._tensors[index].read(self.spec_version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Tensor:
    """A tensor of an open file, whose entries fit its metadata."""

    def __init__(
        self, file: TensorFile, name: str, parts: Mapping[str, str], record: Mapping[str, Any], packing: str
    ) -> None:
        self.name, self._file, self._parts = name, file, parts
        self._label = f"tensor {quoted(name)}" if name else "the tensor"
        if "spec" not in record:
            needed = "a spec in the metadata, or the argument (spec=, --spec NAME)"
            raise DomainError(f"read {shown(file.path)}", f"no spec for {self._label}", needed, "FIL-8")
        self._spec: Spec = record["spec"]
        self._layout = layout(record.get("scale_layout", LINEAR.name)).name
        self._packing = packings.packing(packing, self._spec.element.format.bits)
        self._directions = [d for d in DIRECTIONS if any(part.startswith(d) for part in parts)]
        if not self._directions:
            raise refused(file, f"{self._label} without quantized bytes", "data and scales of a direction")
        self._dtype = self._source_dtype(record.get("dtype"))
        self.shape = self._source_shape(record.get("shape"))
        for direction in self._directions:
            self._require_direction(direction)

    def read(self, version: str) -> Dump:
        """Return the tensor's arrays, in the shapes of the API."""
        row, column = (self._direction(d) if d in self._directions else None for d in DIRECTIONS)
        quantized = Quantized(self._spec, self.shape, self._dtype, self._layout, row, column)
        return Dump(self.name, self._x(), quantized, version, Directions(*map(self._random_bits, DIRECTIONS)))

    def _x(self) -> NDArray[Any] | None:
        if "x" not in self._parts:
            return None
        return self._file.read(self._parts["x"]).view(INPUT_DTYPES[self._dtype]).reshape(self.shape)

    def _direction(self, direction: Direction) -> DirectionData:
        shapes = self._shapes(direction)
        data, scales = (self._bytes(f"{direction}.{part}").reshape(shapes[part]) for part in SHORT[:2])
        if self._packed:
            rows, columns = shapes["random_bits"]
            data = packings.repack(data, rows, columns, self._packing)
        amax = self._file.read(self._parts[f"{direction}.amax"]).reshape(shapes["amax"]) if "amax" in shapes else None
        return DirectionData(data, scales, amax)

    @property
    def _packed(self) -> bool:
        """True if the file's data are in another packing than the canonical one."""
        return self._packing not in packings.CANONICAL_OF.values()

    def _shapes(self, direction: Direction) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the entries, with the data in the file's packing."""
        shapes = part_shapes(self._spec, self.shape, self._layout, direction)
        rows, columns = shapes["random_bits"]
        return shapes | ({"data": packings.packed_shape(self._packing, rows, columns)} if self._packed else {})

    def _random_bits(self, direction: Direction) -> NDArray[np.uint8] | None:
        part = f"{direction}.random_bits"
        if part not in self._parts:
            return None  # of a direction that the file does not have, which the layout may refuse
        return self._bytes(part).reshape(self._shapes(direction)["random_bits"])

    def _bytes(self, part: str) -> NDArray[np.uint8]:
        return self._file.read(self._parts[part]).view(np.uint8)

    def _source_dtype(self, said: Any) -> str:
        """Return the type of x, on which the file's statement and its entry must agree. Rules: FIL-8, FIL-23, NUM-3."""
        if said is not None and said not in STORED:
            raise DTypeError(f"read {shown(self._file.path)}", f"dtype {said!r}", ", ".join(STORED), "NUM-3")
        if "x" not in self._parts:
            return said or "float32"
        stored = self._file.entry(self._parts["x"])[0]
        found = said if stored in {"U16", "I16"} and said != "float32" else TYPES.get(stored)
        if found is None or said not in {None, found}:
            got = f"x of {self._label} is {stored}" + (f", its dtype {said}" if said else "")
            needed = f"{', '.join(STORED.values())}, or U16 bits and their dtype"
            rule = "FIL-8" if stored in {*TYPES, "U16", "I16"} else "NUM-3"
            raise DTypeError(f"read {shown(self._file.path)}", got, needed, rule)
        return str(found)

    def _source_shape(self, said: Any) -> tuple[int, ...]:
        """Return the tensor's shape: that of the metadata, that of x, or else as many codes as a row of data holds.

        Rules: FIL-8.
        """
        if said is not None and (why := misshapen("F32", said)):
            raise refused(self._file, f"shape of {self._label}: {why}", "a list of sizes", "FIL-8")
        found = None if "x" not in self._parts else self._file.entry(self._parts["x"])[1]
        shape = found if said is None else tuple(said)
        if found is not None and found != shape:
            raise refused(self._file, f"x of {self._label} has shape {list(found)}", f"{list(shape or ())}", "FIL-8")
        if shape is None and self._packed:
            needed = f"x, or a shape in the metadata: data in {self._packing.name} have none"
            raise refused(self._file, f"no shape for {self._label}", needed, "FIL-8")
        if shape is None:
            direction = self._directions[0]
            stored = self._entry(f"{direction}.data")[1]
            if len(stored) < 2:
                needed = "x, a shape in the metadata, or data [M, width]"
                raise refused(self._file, f"no shape for {self._label}", needed, "FIL-8")
            shape = (*stored[:-1], stored[-1] * 8 // self._spec.element.format.bits)
            shape = shape if direction == "row" else matrix_shape(shape)[::-1]
        if not shape:
            raise refused(self._file, f"{self._label} without dimensions", "at least one", "FIL-8")
        return shape

    def _entry(self, part: str) -> tuple[str, tuple[int, ...]]:
        if part not in self._parts:
            needed = f"the entry {quoted(entry_name(self.name, part))}"
            raise refused(self._file, f"{self._label} without {part}", needed)
        dtype, shape = self._file.entry(self._parts[part])
        return dtype, stored_shape(dtype, shape)

    def _require_direction(self, direction: Direction) -> None:
        """Check types and byte counts of a direction. Rules: FIL-3, FIL-9, FIL-22."""
        shapes = self._shapes(direction)
        if "amax" not in shapes and f"{direction}.amax" in self._parts:
            needed = f"none: {self._spec.name} has no global scale"
            raise refused(self._file, f"{direction}.amax of {self._label}", needed)
        for part, shape in shapes.items():
            label = f"{direction}.{part} of {self._label}"
            if part == "random_bits" and f"{direction}.{part}" not in self._parts:
                continue
            dtype, found = self._entry(f"{direction}.{part}")
            allowed = self._dtypes(part)
            if dtype not in allowed:
                raise refused(self._file, f"{label} is {dtype}", " or ".join(allowed))
            flat = len(found) == 1 or (part == "amax" and not found)
            if math.prod(found) == math.prod(shape) and (flat or found[-1:] == shape[-1:]):
                continue
            if part == "scales":
                raise self._misplaced(label, found, shape, direction)
            raise refused(self._file, f"{label} has shape {list(found)}", f"{list(shape)}", "FIL-9")

    def _dtypes(self, part: str) -> list[str]:
        """Element types in which a part may be stored."""
        if part == "amax":
            return ["F32"]
        form = {"data": self._spec.element.format.name, "scales": self._spec.scale.format.name}.get(part)
        return ["U8", "I8", *(name for name, stored in DTYPES.items() if form and stored.codes == form)]

    def _misplaced(
        self, label: str, found: tuple[int, ...], shape: tuple[int, ...], direction: Direction
    ) -> LayoutError:
        """Return the error for a scale buffer of the wrong size; it names the layouts of that size, and takes none.

        Rules: FIL-24.
        """
        (rows, columns), stored = (
            part_shapes(self._spec, self.shape, LINEAR.name, direction)["scales"],
            math.prod(found),
        )
        fitting = [
            form.name for form in scale_layouts(rows, columns) if math.prod(form.padded_shape(rows, columns)) == stored
        ]
        hint = f" ({' and '.join(fitting)} would have as many bytes: name it)" if fitting else ""
        got = f"{label} has shape {list(found)}"
        needed = f"{list(shape)} for scale_layout {self._layout}{hint}"
        return LayoutError(f"read {shown(self._file.path)}", got, needed, "LAY-60")


def _split(file: TensorFile, entry: str) -> tuple[str, str]:
    """Tensor and part of an entry. Rules: FIL-3, FIL-20, FIL-21."""
    if entry in SHORT:
        return "", f"row.{entry}"
    for part in PARTS:
        if entry == part or (entry.endswith(f".{part}") and entry != f".{part}"):
            return entry[: -len(part) - 1], part
    raise refused(file, f"entry {quoted(entry)}", f"names that are or end in {', '.join((*PARTS, *SHORT))}")
