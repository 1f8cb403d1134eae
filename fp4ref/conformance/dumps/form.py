"""The form of a dump file: which entries a tensor has, of what shapes, and what its metadata says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, DTypeError, FileError
from fp4ref.files import TensorFile
from fp4ref.files.tensors import quoted, reason, shown
from fp4ref.json_text import strict_json
from fp4ref.layout import LINEAR, layout
from fp4ref.quantized import DIRECTIONS, Direction, Directions, Quantized, matrix_shape
from fp4ref.spec import SPEC_VERSION, Granularity, Spec, from_json

KEY = "fp4ref"  # of the metadata
SHORT = ("data", "scales", "amax")  # the row direction of a tensor without a name
PARTS = ("x", *(f"{direction}.{part}" for direction in DIRECTIONS for part in (*SHORT, "random_bits")))
FIELDS = ("spec", "scale_layout", "shape", "dtype")
STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class Dump(NamedTuple):
    """A tensor of a dump file.

    x: the input in the shape of the record, None where the file has none. random_bits: uint8 [rows, columns] of a
    direction that was rounded stochastically.
    """

    name: str
    x: NDArray[Any] | None
    quantized: Quantized
    spec_version: str = SPEC_VERSION
    random_bits: Directions = Directions()


@dataclass(frozen=True, kw_only=True)
class DumpPlan:
    """A tensor that will be dumped: everything that fixes its sizes, and the function that makes its bytes.

    make: called once, when the tensor's turn comes. with_x, with_random_bits: whether these are written too.
    """

    name: str
    spec: Spec
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], Dump] = field(compare=False)
    scale_layout: str = "linear"
    directions: tuple[Direction, ...] = ("row",)
    with_x: bool = True
    with_random_bits: bool = False


def part_shapes(
    spec: Spec, shape: tuple[int, ...], scale_layout: str, direction: Direction
) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of one direction; no amax without a global scale.

    Rules: FIL-9, PACK-1, LAY-1, LAY-2, LAY-3, LAY-4, GLB-1, GLB-5.
    """
    rows, columns = matrix_shape(shape) if direction == "row" else matrix_shape(shape)[::-1]
    scales = layout(scale_layout).padded_shape(rows, -(-columns // spec.block.columns))
    shapes: dict[str, tuple[int, ...]] = {"data": (rows, packing.width(columns, spec.element.format)), "scales": scales}
    if spec.global_scale is not Granularity.NONE:
        shapes["amax"] = (rows if spec.global_scale is Granularity.ROW else 1,)
    return shapes | {"random_bits": (rows, columns)}


def entry_name(tensor: str, part: str) -> str:
    """Return the entry of a part of a tensor. Rules: FIL-3."""
    return f"{tensor}.{part}" if tensor else part


def read_metadata(file: TensorFile) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the spec version that a file names, and its records by tensor, with their specs resolved.

    Rules: FIL-8, SPC-4.
    """
    text = file.metadata.get(KEY, file.metadata.get("metadata", "{}"))
    try:
        value = strict_json(text)
    except ValueError as error:
        raise refused(file, f"metadata that is not JSON ({reason(error)})", "an object", "FIL-8") from None
    if not isinstance(value, dict) or set(value) - {"spec_version", "tensors"}:
        raise refused(file, "metadata that is not an object of spec_version and tensors", "one", "FIL-8")
    version, tensors = value.get("spec_version", SPEC_VERSION), value.get("tensors", {})
    if not (isinstance(version, str) and isinstance(tensors, dict)):
        raise refused(file, "a spec_version or tensors of another type", "a text and an object", "FIL-8")
    return version, {name: _record(file, name, record) for name, record in tensors.items()}


def _record(file: TensorFile, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) - set(FIELDS):
        raise refused(file, f"a record of {quoted(name)} with other fields", ", ".join(FIELDS), "FIL-8")
    record = {key: item for key, item in value.items() if item is not None}
    if "spec" in record:
        spec = record["spec"]
        try:
            record["spec"] = resolve(spec) if isinstance(spec, str) else _spec(json.dumps(spec))
        except DomainError as error:
            where = f"read {shown(file.path)}: {error.operation}"
            raise type(error)(where, error.got, error.needed, error.rule) from None
    if not isinstance(record.get("scale_layout", ""), str) or not isinstance(record.get("dtype", ""), str):
        raise refused(file, f"scale_layout or dtype of {quoted(name)} that is not text", "a name", "FIL-8")
    layout(record.get("scale_layout", LINEAR.name))
    if record.get("dtype", "float32") not in STORED:
        raise DTypeError(f"read {shown(file.path)}", f"dtype {record['dtype']!r}", ", ".join(STORED), "NUM-3")
    return record


_spec = lru_cache(from_json)


def refused(file: TensorFile, got: str, needed: str, rule: str = "FIL-3") -> FileError:
    """Return the error that says how a file is no dump."""
    return FileError(f"read {shown(file.path)}", got, needed, rule)
