"""The bytes of a group, piece by piece: canonical codes and linear scales, whatever the convention stores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.float_scales import EXPONENTS, FloatScales, factors, part_of
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.scalars import FLOATING, numbers
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.errors import LayoutError
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, Layout
from fp4ref.packings import CANONICAL, HIGH_FIRST, LOW_FIRST, repack

PIECE = 1 << 21  # elements of a piece, at most, where a tile's rows are not more
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def keep_freed_memory() -> None:
    """Let the process keep the memory of one piece for the next; otherwise the system zeroes it each time.

    The C library of Linux returns free memory above a limit, which is twice the largest block that was ever freed.
    """
    np.empty(31 << 20, np.uint8)


class WeightPiece(NamedTuple):
    """Some rows of one matrix. packed: canonical packing, [rows, bytes]; scales: [rows, blocks] or None."""

    matrix: int
    row: int
    packed: Bytes
    scales: Bytes | None


def pieces(group: TensorGroup, multiple: int = 1) -> Iterator[WeightPiece]:
    """Yield a group's rows in order; memory is bounded by a piece and not by a tensor.

    multiple: each piece has a multiple of that many rows, except a matrix's last.

    Rules: CKP-30, CNV-2.
    """
    tile = math.lcm(_tile(group), multiple)
    step = max(PIECE // max(group.columns, 1) // tile, 1) * tile
    for matrix in range(group.matrices):
        for row in range(0, group.rows, step):
            rows = min(step, group.rows - row)
            data = _rows(group, matrix, row, rows)
            if group.convention.struct:
                yield _of_structs(group, matrix, row, data)
            else:
                yield WeightPiece(matrix, row, _canonical(group, data), _scales(group, matrix, row, rows))


def _tile(group: TensorGroup) -> int:
    return 1 if group.layout == LINEAR else rows_of_a_piece(group.layout, group.rows, blocks_across(group))


def rows_of_a_piece(layout: Layout, rows: int, blocks: int) -> int:
    """Return the number of rows whose scales are one piece: those of a tile, or all rows where they lie apart."""
    tile = layout.padded_shape(1, 1)[0]
    try:
        layout.row_range(0, min(tile, rows), rows, blocks)
    except LayoutError:
        return max(rows, 1)
    return tile


def _rows(group: TensorGroup, matrix: int, row: int, rows: int) -> Bytes:
    tensor = group.parts["codes"]
    width = tensor.count // (group.matrices * group.rows)
    first = (matrix * group.rows + row) * width
    return np.frombuffer(tensor.bytes(first, rows * width), np.uint8).reshape(rows, width)


def _canonical(group: TensorGroup, data: Bytes) -> Bytes:
    """Return packed rows in the canonical packing. Rules: PACK-7."""
    packing = group.convention.packing
    if group.convention.bits == 8 or packing == LOW_FIRST:
        return data
    return swapped(data) if packing == HIGH_FIRST else repack(data, len(data), group.columns, packing)


def swapped(data: Bytes) -> Bytes:
    """Exchange the two halves of each byte."""
    return (data >> 4 | data << 4).astype(np.uint8)


def _scales(group: TensorGroup, matrix: int, row: int, rows: int) -> Bytes | None:
    tensor = group.parts.get("scales")
    if tensor is None or not group.convention.scale:
        return None
    return stored_scales(tensor, group.layout, (group.matrices, group.rows, blocks_across(group)), matrix, (row, rows))


def stored_scales(
    tensor: StoredTensor, layout: Layout, shape: tuple[int, int, int], matrix: int, part: tuple[int, int]
) -> Bytes:
    """Return the scales of some rows, in linear order. shape: matrices, rows, blocks; part: first row, rows."""
    (matrices, all_rows, blocks), (row, rows) = shape, part
    if layout == LINEAR:
        first = (matrix * all_rows + row) * blocks
        return np.frombuffer(tensor.bytes(first, rows * blocks), np.uint8).reshape(rows, blocks)
    whole = layout.row_range(row, row + rows, all_rows, blocks)
    begin = matrix * (tensor.count // matrices) + whole.start
    data = np.frombuffer(tensor.bytes(begin, whole.stop - whole.start), np.uint8)
    return _as_rows(layout, data, rows, blocks)


def _as_rows(layout: Layout, data: Bytes, rows: int, blocks: int) -> Bytes:
    """Return the scales of some rows, [rows, blocks], of the bytes that hold them."""
    shape = layout.padded_shape(rows, blocks)
    whole = np.zeros(math.prod(shape), np.uint8)  # a layout of rows is padded at its end only
    whole[: len(data)] = data
    return layout.to_linear(whole.reshape(shape), rows, blocks)


def _of_structs(group: TensorGroup, matrix: int, row: int, data: Bytes) -> WeightPiece:
    """Return rows of structs that hold the scales of some blocks, and then their elements. Rules: PACK-8."""
    rows, packing = len(data), group.convention.packing
    heads = struct_heads(packing, rows, group.columns)
    scales = data.reshape(rows, blocks_across(group) // heads, -1)[:, :, :heads].reshape(rows, -1)
    return WeightPiece(matrix, row, repack(data, rows, group.columns, packing, CANONICAL), scales)


def struct_heads(packing: Layout, rows: int, columns: int) -> int:
    """Return the number of scale bytes before the elements of a struct."""
    return packing.strides(rows, columns).first * packing.unit // 8


def blocks_across(group: TensorGroup) -> int:
    """Return the number of blocks of a row."""
    return -(-group.columns // group.convention.block[1])


def codes_of(packed: Bytes, bits: int) -> Bytes:
    """Return one code per byte, [rows, columns], of rows in the canonical packing. Rules: PACK-7."""
    if bits == 8:
        return packed
    return np.stack((packed & np.uint8(15), packed >> np.uint8(4)), -1).reshape(len(packed), -1)


def padding_bytes(group: TensorGroup) -> int:
    """Return the number of bytes in the padding of a group's scales that are not zero. Rules: CKP-62."""
    tensor = group.parts["scales"]
    blocks, layout = blocks_across(group), group.layout
    if layout == LINEAR or not layout.pads_compared:
        return 0
    total = 0
    tile = rows_of_a_piece(layout, group.rows, blocks)
    for row in range(0, group.rows, tile):
        rows = min(tile, group.rows - row)
        part = layout.row_range(row, row + rows, group.rows, blocks)
        data = np.frombuffer(tensor.bytes(part.start, part.stop - part.start), np.uint8)
        inside = _as_rows(layout, data, rows, blocks)
        total += int(np.count_nonzero(data)) - int(np.count_nonzero(inside))
    return total


@lru_cache
def _values_of_bytes(element: str) -> NDArray[Any]:
    """Return the values of the codes in each byte of the canonical packing: two of four bits are one item of 64."""
    each = bounds.values(element)
    every = np.arange(256)
    return each if FORMATS[element].bits == 8 else np.stack([each[every & 15], each[every >> 4]], -1).view(np.uint64)


def element_values(element: str, packed: Bytes) -> Floats:
    """Return the values of the elements of packed rows, [rows, columns]; a copy."""
    return np.take(_values_of_bytes(element), packed).view(np.float32).reshape(len(packed), -1)


def scale_values(group: TensorGroup) -> Floats:
    """Return the value of each scale byte."""
    return bounds.values(group.convention.scale)


def global_multiplier(group: TensorGroup, matrix: int = 0) -> float:
    """Return the factor that the stored global scale means; 1 if there is none. Rules: CKP-20."""
    stored: list[float] = numbers(group.parts.get("global_scale"))
    if not stored:
        return 1.0
    return group.convention.global_direction.multiplier(stored[matrix if len(stored) > 1 else 0])


def decoded(group: TensorGroup, piece: WeightPiece) -> Floats:
    """Return the values of a piece, as float32 products of element, block scale and global scale. Rules: CKP-20."""
    rows = len(piece.packed)
    values = element_values(group.convention.element, piece.packed)[:, : group.columns]
    if piece.scales is not None:
        with np.errstate(invalid="ignore", over="ignore"):  # damaged scales are infinite or NaN
            scaled = scale_values(group)[piece.scales] * np.float32(global_multiplier(group, piece.matrix))
            values *= np.repeat(scaled, group.convention.block[1], -1)[:, : group.columns]
        return values
    found = float_scales(group)
    if found is not None:
        block = group.convention.block
        with np.errstate(invalid="ignore", over="ignore"):
            values *= factors(found, block, group.shape, piece.matrix, range(piece.row, piece.row + rows))
    return values


def float_scales(group: TensorGroup) -> Floats | None:
    """Return a group's scales if they are numbers, as many as its shape asks for; None otherwise."""
    tensor = group.parts.get("scales")
    if tensor is None or group.convention.scale or tensor.dtype not in {*EXPONENTS, *FLOATING}:
        return None
    found = FloatScales(tensor.dtype, tensor.shape, tensor.bytes()).numbers()
    return found if part_of(group.convention.block, found.size, group.shape) else None
