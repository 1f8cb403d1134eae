"""Quantize a matrix whose rows are split over processes, so that the bytes are those of the whole.

The parts share the global amax, found by a maximum over the group, and random bytes that depend on the place of
an element in the whole, not on who rounds it. Cuts must not divide a block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from fp4ref.api import quantize
from fp4ref.arguments import buffer_shapes
from fp4ref.catalogue import resolve
from fp4ref.layout import LINEAR
from fp4ref.quantized import DIRECTIONS, Direction, DirectionChoice, DirectionData, Directions, Quantized
from fp4ref.random_source import random_bits
from fp4ref.spec import Granularity, Spec
from fp4ref.te.dtypes import dtype_name
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError


def quantize_shard(
    x: torch.Tensor,
    spec: Spec | str,
    directions: DirectionChoice = "row",
    *,
    group: Any = None,
    seed: int | None = None,
    stream: int = 0,
) -> Quantized:
    """Quantize this process's rows of a matrix as they are in the whole; scales in the linear layout.

    x: [m, K], the rows after those of the processes before; m may be zero, and the process still takes part. seed and
    stream: of `fp4ref.random_bits`, the same everywhere, for a stochastic spec. Every process of the group calls this
    with the same spec and directions.

    Errors: TensorShapeError for a cut inside a block, different K, or x of another rank than two; TensorDTypeError for
    different types; SettingError for a seed where none is needed, or none where one is.

    Rules: TEM-7, TEM-8, TEM-9.
    """
    spec = resolve(spec)
    if x.dim() != 2:
        raise TensorShapeError("quantize_shard", f"{x.dim()} dimensions", "a matrix", "TEM-7")
    if spec.stochastic != (seed is not None):
        got = f"{'no ' if seed is None else ''}seed for {spec.name}"
        raise SettingError("quantize_shard", got, "one exactly for a stochastic spec", "TEM-9")
    names: list[Direction] = [name for name in DIRECTIONS if directions in {name, "both"}]
    counts = _row_counts(x, group)
    for name in names:
        _require_whole_blocks(spec, name, counts)
    start = sum(counts[: _rank(group)])
    bits = None
    if seed is not None and x.numel():
        bits = _random_bits(seed, stream, names, start, sum(counts), x)
    amax = None if spec.global_scale is Granularity.NONE else _reduced_amax(x, spec, names, directions, bits, group)
    if not x.numel():
        return _empty(x, spec, names, amax)
    return quantize(x, spec, directions, LINEAR.name, amax=amax, random_bits=bits)


def gather_shards(q: Quantized, *, group: Any = None) -> Quantized:
    """Gather the parts, and return the whole on every process.

    Errors: SettingError for scales in a tiled layout, which cannot be cut.

    Rules: TEM-24, TEM-51.
    """
    if q.scale_layout != LINEAR.name:
        got = f"scales in the layout {q.scale_layout}"
        raise SettingError("gather_shards", got, f"the layout {LINEAR.name}", "TEM-51")
    counts = _all_counts(q.matrix[0], _device(q), group)
    shape = (sum(counts), q.matrix[1])
    changed: dict[str, Any] = {}
    for name in DIRECTIONS:
        part = q.row if name == "row" else q.column
        if part is None:
            continue
        axis = 0 if name == "row" else 1
        own_rows = name == "row" and q.spec.global_scale is Granularity.ROW
        changed[name] = DirectionData(
            _gather_uneven(part.data, axis, group),
            _gather_uneven(part.scales, axis, group),
            _gather_uneven(part.amax, 0, group) if own_rows else part.amax,
        )
    return dataclasses.replace(q, shape=shape, **changed)


def _random_bits(seed: int, stream: int, names: list[Direction], start: int, total: int, x: torch.Tensor) -> Directions:
    """Return the bytes of this part's place in the whole. Rules: TEM-9, SR-8."""
    part = (x.shape[0], x.shape[1])
    made = {
        name: random_bits(part, name, seed, stream, origin=(start, 0), whole=(total, part[1]), device=x.device)
        for name in names
    }
    return Directions(made.get("row"), made.get("column"))


def _world(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def _rank(group: Any) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _device(q: Quantized) -> torch.device:
    part = q.row if q.row is not None else q.column
    assert part is not None
    device: torch.device = part.data.device
    return device


def _all_counts(rows: int, device: torch.device, group: Any) -> list[int]:
    """Return rows of every process."""
    if _world(group) == 1:
        return [rows]
    mine = torch.tensor([rows], dtype=torch.int64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(_world(group))]
    dist.all_gather(everyone, mine, group=group)
    return [int(count) for count in everyone]


def _row_counts(x: torch.Tensor, group: Any) -> list[int]:
    """Return rows of every process, after making sure that all have the same columns and type."""
    kinds = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
    if x.dtype not in kinds:
        raise TensorDTypeError("quantize_shard", f"dtype {x.dtype}", "float32, bfloat16 or float16", "NUM-3")
    columns = _all_counts(x.shape[1], x.device, group)
    types = _all_counts(kinds[x.dtype], x.device, group)
    counts = _all_counts(x.shape[0], x.device, group)
    if len(set(columns)) > 1:
        raise TensorShapeError("quantize_shard", f"parts of {columns} columns", "the same everywhere", "TEM-7")
    if len(set(types)) > 1:
        raise TensorDTypeError("quantize_shard", "parts of different types", "the same everywhere", "TEM-7")
    return counts


def _require_whole_blocks(spec: Spec, direction: Direction, counts: list[int]) -> None:
    """Raise, in every process, unless each cut is between blocks of the direction.

    Rules: TEM-8, TEM-25. Certificates: part-cuts.
    """
    block = spec.block.rows if direction == "row" else spec.block.columns
    total, end = sum(counts), 0
    for process, count in enumerate(counts):
        end += count
        if end % block and end != total:
            got = f"process {process} ends at row {end}"
            needed = f"a multiple of {block} for the {direction} direction of {spec.name}"
            raise TensorShapeError("quantize_shard", got, needed, "TEM-8")


def _reduced_amax(
    x: torch.Tensor, spec: Spec, names: list[Direction], directions: DirectionChoice, bits: Any, group: Any
) -> Directions:
    """Return the amax of the whole, per direction: one number, or a row's own, or one per column over all processes.

    Rules: TEM-23.
    """
    by_row = spec.global_scale is Granularity.ROW
    lengths = {"row": x.shape[0] if by_row else 1, "column": x.shape[1] if by_row else 1}
    found = {name: torch.zeros(lengths[name], dtype=torch.float32, device=x.device) for name in names}
    if x.numel():
        local = quantize(x, spec, directions, LINEAR.name, random_bits=bits)
        for name in names:
            part, _ = local.direction(name)
            found[name] = part.amax.clone()
    for name in names:
        if _world(group) > 1 and not (by_row and name == "row"):
            dist.all_reduce(found[name], op=dist.ReduceOp.MAX, group=group)
    return Directions(found.get("row"), found.get("column"))


def _empty(x: torch.Tensor, spec: Spec, names: list[Direction], amax: Directions | None) -> Quantized:
    """No rows, but the columns and the amax of the whole."""
    result = Quantized(spec, (0, x.shape[1]), dtype_name(x.dtype), LINEAR.name)
    parts: dict[str, Any] = {}
    for name in names:
        shapes = buffer_shapes(spec, (0, x.shape[1]), name, LINEAR.name)
        data, scales = (torch.zeros(tuple(s), dtype=torch.uint8, device=x.device) for s in shapes[:2])
        parts[name] = DirectionData(data, scales, None if amax is None else getattr(amax, name))
    return dataclasses.replace(result, **parts)


def _gather_uneven(part: torch.Tensor, axis: int, group: Any) -> torch.Tensor:
    """Concatenate pieces of different lengths."""
    if _world(group) == 1:
        return part
    counts = _all_counts(part.shape[axis], part.device, group)
    moved = part.movedim(axis, 0).contiguous()
    padded = moved.new_zeros(max(counts), *moved.shape[1:])
    padded[: moved.shape[0]] = moved
    pieces = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(pieces, padded, group=group)
    whole = torch.cat([piece[:count] for piece, count in zip(pieces, counts, strict=True)])
    return whole.movedim(0, axis).contiguous()
