"""Layouts of scale bytes, as reshapes and permutations of tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.errors import LayoutError

# rows of a tile as (slow digit, fast digit), columns of a tile, and the multiple to which rows are padded
TILES = {"tiled_128x4": (4, 32, 4), "tiled_8x4": (1, 8, 4)}


def padded_shape(rows: int, columns: int, name: str) -> tuple[int, int]:
    """Shape of the buffer that holds `rows` x `columns` scales. Rules: LAY-1, LAY-2, LAY-3, LAY-4."""
    if name == "linear":
        return rows, columns
    high = 8 if name == "tiled_8x4" else 128
    return -(-rows // high) * high, -(-columns // 4) * 4


def from_linear(scales: Tensor, name: str) -> Tensor:
    """Scale bytes [rows, columns] in the order of a layout, padding zero. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5."""
    _require(name)
    rows, columns = scales.shape
    high, wide = padded_shape(rows, columns, name)
    padded = torch.nn.functional.pad(scales, (0, wide - columns, 0, high - rows))
    if name not in TILES or not padded.numel():
        return padded
    slow, fast, across = TILES[name]
    digits = padded.reshape(high // (slow * fast), slow, fast, wide // across, across)
    return digits.permute(0, 3, 2, 1, 4).reshape(high, wide)


def to_linear(buffer: Tensor, rows: int, columns: int, name: str) -> Tensor:
    """The scale bytes [rows, columns] of a buffer; its padding is left out. Rules: LAY-6."""
    _require(name)
    if name in TILES and buffer.numel():
        high, wide = buffer.shape
        slow, fast, across = TILES[name]
        digits = buffer.reshape(high // (slow * fast), wide // across, fast, slow, across)
        buffer = digits.permute(0, 3, 2, 1, 4).reshape(high, wide)
    return buffer[:rows, :columns]


def _require(name: str) -> None:
    if name not in TILES and name not in {"linear", "linear_padded"}:
        raise LayoutError("torch", f"layout {name!r}", f"linear, linear_padded, {', '.join(TILES)}", "LAY-7")
