"""The table of a group: where each member's rows, tiles, codes and scales begin. No device is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.layout import layout
from fp4ref.quantized import Direction
from fp4ref.spec import Spec
from fp4ref_cuda.plan import tiles


@dataclass(frozen=True)
class GroupPlan:
    """Buffers of a group: where each member starts, in bytes, and the sizes of the whole. Rules: LAY-8."""

    splits: tuple[int, ...]
    table: NDArray[np.int64]  # [members, 6]: first row, rows, first tile, starts of row scales, column data and scales
    across: int  # tiles side by side
    total_tiles: int
    row_scales: tuple[int, ...]
    column_data: tuple[int, ...]
    column_scales: tuple[int, ...]


def group(
    spec: Spec, splits: Sequence[int], columns: int, names: Sequence[Direction], scale_layout: str, dtype: str
) -> GroupPlan:
    """Lay out a group of row ranges of one tensor."""
    width, form = spec.block.columns, layout(scale_layout)
    grids = [tiles(spec, rows, columns, names, scale_layout, dtype) for rows in splits]
    first_row = np.cumsum([0, *splits])
    first_tile = np.cumsum([0, *(down * across for down, across in grids)])
    row_scales = form.group_offsets((rows, -(-columns // width)) for rows in splits)
    column_scales = form.group_offsets((columns, -(-rows // width)) for rows in splits)
    column_data = np.cumsum([0, *(columns * packing.width(rows, spec.element.format) for rows in splits)])
    starts = (first_row, np.array([*splits, 0]), first_tile, row_scales, column_data, column_scales)
    return GroupPlan(
        splits=tuple(splits),
        table=np.stack([np.asarray(start, np.int64)[: len(splits)] for start in starts], axis=1),
        across=max((across for _, across in grids), default=0),
        total_tiles=int(first_tile[-1]),
        row_scales=tuple(row_scales),
        column_data=tuple(map(int, column_data)),
        column_scales=tuple(column_scales),
    )
