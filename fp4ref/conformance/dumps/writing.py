"""Writing dumps: names and sizes first, then one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import to_numpy
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.dumps.form import FIELDS, KEY, STORED, Dump, DumpPlan, entry_name, part_shapes
from fp4ref.errors import ShapeError
from fp4ref.files import write_tensors
from fp4ref.files.targets import FileKind
from fp4ref.files.tensors import quoted
from fp4ref.quantized import DIRECTIONS, Direction
from fp4ref.spec import SPEC_VERSION


def write_dump(
    path: str | os.PathLike[str],
    items: Iterable[DumpPlan | Dump],
    sources: Iterable[str | os.PathLike[str]] = (),
    notes: Mapping[str, str] = MappingProxyType({}),
    kind: FileKind | None = None,
    *,
    force: bool = False,
) -> None:
    """Write a dump file: names and sizes first, then tensor by tensor, each made when its turn comes.

    sources: files that the tensors come from; the target must not be one of them. notes: further metadata. kind: a
    file of another kind is replaced only by force.

    Rules: FIL-3, FIL-4, FIL-6.
    """
    plans = [item if isinstance(item, DumpPlan) else planned(item) for item in items]
    as_bits = Path(path).suffix.lower() == ".npz"
    entries = [entry for plan in plans for entry in _entries(plan, as_bits)]
    records = {plan.name: _described(plan) for plan in plans}
    metadata = {KEY: json.dumps({"spec_version": SPEC_VERSION, "tensors": records}), **notes}
    arrays = (array for plan in plans for array in _arrays(plan, as_bits))
    write_tensors(path, entries, metadata, arrays, sources, kind, force=force)


def planned(dump: Dump) -> DumpPlan:
    """Return the plan of a tensor that is already there."""
    q = dump.quantized
    return DumpPlan(
        name=dump.name,
        spec=q.spec,
        shape=q.shape,
        dtype=q.dtype,
        make=lambda: dump,
        scale_layout=q.scale_layout,
        directions=tuple(d for d in DIRECTIONS if getattr(q, d) is not None),
        with_x=dump.x is not None,
        with_random_bits=any(bits is not None for bits in dump.random_bits),
    )


def _described(plan: DumpPlan) -> dict[str, Any]:
    spec = plan.spec.name if PROFILES.get(plan.spec.name) == plan.spec else json.loads(plan.spec.to_json())
    return dict(zip(FIELDS, (spec, plan.scale_layout, list(plan.shape), plan.dtype), strict=True))


def _entries(plan: DumpPlan, as_bits: bool) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Entries of a tensor; as_bits: bfloat16 as uint16, for a format that has no name for it."""
    if plan.with_x:
        stored = "U16" if as_bits and plan.dtype == "bfloat16" else STORED[plan.dtype]
        yield entry_name(plan.name, "x"), stored, plan.shape
    for direction in plan.directions:
        for part, shape in _parts(plan, direction).items():
            yield entry_name(plan.name, f"{direction}.{part}"), "F32" if part == "amax" else "U8", shape


def _parts(plan: DumpPlan, direction: Direction) -> dict[str, tuple[int, ...]]:
    shapes = part_shapes(plan.spec, plan.shape, plan.scale_layout, direction)
    return {part: shape for part, shape in shapes.items() if part != "random_bits" or plan.with_random_bits}


def _arrays(plan: DumpPlan, as_bits: bool) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a tensor, made now, in the order of its entries."""
    dump = plan.make()
    q = dump.quantized
    if (q.spec, q.shape, q.dtype, q.scale_layout) != (plan.spec, plan.shape, plan.dtype, plan.scale_layout):
        got = f"{quoted(plan.name)} made as {q.spec.name} {list(q.shape)} {q.dtype} {q.scale_layout}"
        needed = f"{plan.spec.name} {list(plan.shape)} {plan.dtype} {plan.scale_layout}, as planned"
        raise ShapeError("write dump", got, needed, "FIL-3")
    if plan.with_x:
        x = to_numpy("write dump", dump.x)
        yield x.view(np.uint16) if as_bits and plan.dtype == "bfloat16" else x
    for direction in plan.directions:
        made = q.direction(direction)[0]._asdict() | {"random_bits": getattr(dump.random_bits, direction)}
        for part, shape in _parts(plan, direction).items():
            array = to_numpy("write dump", made[part])
            yield array.reshape(shape) if array.size == math.prod(shape) else array
