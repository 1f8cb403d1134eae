"""The layout that the bytes of block scales are in, where their shape is not the convention's."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import blocks_across, pieces
from fp4ref.checkpoints.check_shapes import scale_shape
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.measure import Measured, block_tops
from fp4ref.checkpoints.structure import explained
from fp4ref.layout import LINEAR, LINEAR_PADDED, TILED_128X4, Layout

Bytes = NDArray[np.uint8]
MANY = 16  # zeros among scales that no damage of single bytes explains


def stored_layout(group: TensorGroup) -> Layout:
    """Return the layout of a group's scales: the other of tiles and rows where their shape is the convention's.

    Where it is not, the layout is one in which the buffer has its size and the padding is zero; of several, the one in
    which rows and columns explain most of the scales.

    Rules: CNV-11.
    """
    tensor = group.parts["scales"]
    size = tensor.count // group.matrices
    rows, blocks = group.rows, blocks_across(group)
    if tensor.shape == scale_shape(group):
        others = [TILED_128X4] if group.layout == LINEAR else [LINEAR, LINEAR_PADDED]
        return next((each for each in others if math.prod(each.padded_shape(rows, blocks)) == size), others[0])
    fits = [each for each in (TILED_128X4, LINEAR_PADDED, LINEAR) if math.prod(each.padded_shape(rows, blocks)) == size]
    data = np.frombuffer(tensor.bytes(0, size), np.uint8)
    read = {each: each.to_linear(data.reshape(each.padded_shape(rows, blocks)), rows, blocks) for each in fits}
    clean = [each for each in fits if np.array_equal(each.from_linear(read[each]).reshape(-1), data)]
    return max(clean or fits or [TILED_128X4], key=lambda each: explained(group, read[each]) if each in read else 0.0)


def zero_in_one_layout(found: Measured) -> str:
    """Return the evidence that zeros among the scales are another layout's padding; "" if there is none.

    Rules: CKP-15.
    """
    group, scales = found.group, found.group.parts.get("scales")
    blocks = blocks_across(group)
    padded = TILED_128X4.padded_shape(group.rows, blocks)
    plain = group.layout != TILED_128X4
    if found.zero_scales < MANY or scales is None or group.matrices != 1 or padded == (group.rows, blocks):
        return ""
    if scales.count != math.prod(padded):
        return ""
    stored = np.frombuffer(scales.bytes(), np.uint8)
    rows = stored.reshape(padded)[: group.rows, :blocks]
    other = TILED_128X4.to_linear(stored.reshape(padded), group.rows, blocks) if plain else rows
    zero = 0
    for piece in pieces(group):
        tops = block_tops(piece.packed, group.convention.bits, group.convention.block[1])
        zero += int(((other[piece.row : piece.row + len(tops)] == 0) & (tops > 0)).sum())
    layout = TILED_128X4.name if plain else LINEAR.name
    text = f"{found.zero_scales} scales are zero with elements that are not, none of them if stored in layout {layout}"
    return "" if zero else text
