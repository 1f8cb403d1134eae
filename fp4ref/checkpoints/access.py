"""The codes and the scale bytes of a group, piece by piece, in the model's own order and packing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.layout import LINEAR, Layout
from fp4ref.packings import HIGH_FIRST, LOW_FIRST, repack

PIECE = 1 << 20  # elements of a piece, at most, where a tile's rows are not more
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class GroupPiece(NamedTuple):
    """Some rows of one matrix of a group. codes: one element per byte, [rows, columns]; scales: [rows, blocks]."""

    matrix: int
    row: int
    codes: Bytes
    scales: Bytes | None


def pieces(group: TensorGroup) -> Iterator[GroupPiece]:
    """Yield a group's rows in order; memory is bounded by a piece and not by a tensor. Rules: CKP-30."""
    step = max(PIECE // max(group.columns, 1), 1)
    tile = max(group.layout.tile[0], 1)
    step = max(step // tile, 1) * tile
    for matrix in range(group.matrices):
        for row in range(0, group.rows, step):
            rows = min(step, group.rows - row)
            if group.convention.struct:
                yield _from_struct(group, matrix, row, rows)
            else:
                yield GroupPiece(matrix, row, _codes(group, matrix, row, rows), _scales(group, matrix, row, rows))


def _codes(group: TensorGroup, matrix: int, row: int, rows: int) -> Bytes:
    tensor = group.parts["codes"]
    width = tensor.count // (group.matrices * group.rows)
    first = (matrix * group.rows + row) * width
    data = np.frombuffer(tensor.bytes(first, rows * width), np.uint8).reshape(rows, width)
    return unpacked(group, data, rows)


def unpacked(group: TensorGroup, data: Bytes, rows: int) -> Bytes:
    """Return one code per byte, [rows, columns], of packed rows. Rules: PACK-7."""
    packing = group.convention.packing
    if group.convention.bits == 8:
        return data
    if packing not in {LOW_FIRST, HIGH_FIRST}:
        data = repack(data, rows, group.columns, packing)
    halves = (data & 15, data >> 4) if packing != HIGH_FIRST else (data >> 4, data & 15)
    return np.stack(halves, -1).reshape(rows, -1)[:, : group.columns]


def blocks_across(group: TensorGroup) -> int:
    """Return the number of blocks of a row."""
    return -(-group.columns // group.convention.block[1])


def _scales(group: TensorGroup, matrix: int, row: int, rows: int) -> Bytes | None:
    tensor = group.parts.get("scales")
    if tensor is None or not group.convention.scale:
        return None
    blocks, layout = blocks_across(group), group.layout
    if layout == LINEAR:
        first = (matrix * group.rows + row) * blocks
        return np.frombuffer(tensor.bytes(first, rows * blocks), np.uint8).reshape(rows, blocks)
    whole = layout.row_range(row, row + rows, group.rows, blocks)
    size = tensor.count // group.matrices
    data = np.frombuffer(tensor.bytes(matrix * size + whole.start, whole.stop - whole.start), np.uint8)
    return _as_rows(layout, data, rows, blocks)


def _as_rows(layout: Layout, data: Bytes, rows: int, blocks: int) -> Bytes:
    """Return the scales of some rows, [rows, blocks], of the bytes that hold them."""
    shape = layout.padded_shape(rows, blocks)
    whole = np.zeros(math.prod(shape), np.uint8)  # a layout of rows is padded at its end only
    whole[: len(data)] = data
    return layout.to_linear(whole.reshape(shape), rows, blocks)


def _from_struct(group: TensorGroup, matrix: int, row: int, rows: int) -> GroupPiece:
    """Read rows of structs that hold the scales of some blocks, and then their elements. Rules: PACK-8."""
    tensor = group.parts["codes"]
    width = tensor.count // (group.matrices * group.rows)
    data = np.frombuffer(tensor.bytes((matrix * group.rows + row) * width, rows * width), np.uint8)
    blocks = blocks_across(group)
    packing = group.convention.packing
    heads = packing.strides(rows, group.columns).first * packing.unit // 8  # scale bytes before the elements
    structs = data.reshape(rows, blocks // heads, -1)
    scales = structs[:, :, :heads].reshape(rows, blocks)
    flat = repack(data, rows, group.columns, packing)
    codes = np.stack((flat & 15, flat >> 4), -1).reshape(rows, -1)[:, : group.columns]
    return GroupPiece(matrix, row, codes, scales)


def padding_bytes(group: TensorGroup) -> int:
    """Return the number of bytes in the padding of a group's scales that are not zero. Rules: CKP-26."""
    tensor = group.parts["scales"]
    blocks, layout = blocks_across(group), group.layout
    if layout == LINEAR or not layout.pads_compared:
        return 0
    total = 0
    for row in range(0, group.rows, layout.tile[0]):
        rows = min(layout.tile[0], group.rows - row)
        part = layout.row_range(row, row + rows, group.rows, blocks)
        data = np.frombuffer(tensor.bytes(part.start, part.stop - part.start), np.uint8)
        inside = _as_rows(layout, data, rows, blocks)
        total += int(np.count_nonzero(data)) - int(np.count_nonzero(inside))
    return total


def element_values(group: TensorGroup) -> Floats:
    """Return the value of each code of the element format."""
    return bounds.values(group.convention.element)


def scale_values(group: TensorGroup) -> Floats:
    """Return the value of each scale byte."""
    return bounds.values(group.convention.scale)


def global_multiplier(group: TensorGroup, matrix: int = 0) -> float:
    """Return the factor that the stored global scale means; 1 if there is none. Rules: CKP-20."""
    from fp4ref.checkpoints.scalars import numbers

    stored: list[float] = numbers(group.parts.get("global_scale"))
    if not stored:
        return 1.0
    return group.convention.global_direction.multiplier(stored[matrix if len(stored) > 1 else 0])


def decoded(group: TensorGroup, piece: GroupPiece) -> Floats:
    """Return the values of a piece, as float32 products of element, block scale and global scale. Rules: CKP-20."""
    values = element_values(group)[piece.codes]
    if piece.scales is not None:
        factors = scale_values(group)[piece.scales] * np.float32(global_multiplier(group, piece.matrix))
        values *= np.repeat(factors, group.convention.block[1], -1)[:, : values.shape[1]]
        return values
    return _float_scaled(group, piece, values)


def _float_scaled(group: TensorGroup, piece: GroupPiece, values: Any) -> Floats:
    """Apply float scales of the tensor, of rows, or of squares of 128."""
    from fp4ref.checkpoints.scalars import exponents_or_numbers

    tensor = group.parts.get("scales")
    stored = np.asarray(exponents_or_numbers(tensor), np.float32)
    if not stored.size or tensor is None:
        return np.asarray(values)
    if stored.size == 1:
        return np.asarray(values * stored[0])
    high, wide = -(-group.rows // 128), -(-group.columns // 128)
    rows = slice(piece.row, piece.row + len(values))
    if stored.size == group.matrices * group.rows:
        return np.asarray(values * stored.reshape(group.matrices, -1)[piece.matrix][rows, None])
    if stored.size == group.matrices * high * wide:
        squares = stored.reshape(group.matrices, high, wide)[piece.matrix]
        down = np.repeat(squares, 128, 0)[rows]
        return np.asarray(values * np.repeat(down, 128, 1)[:, : values.shape[1]])
    return np.asarray(values * stored.reshape(group.matrices, -1)[piece.matrix][0])
