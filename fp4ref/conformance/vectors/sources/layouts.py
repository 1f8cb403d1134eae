"""Layouts, enumerated byte by byte in the order in which they lie: not arithmetic, so no oracle is asked."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import STATED, Json, group, refused, test


def cells(name: str, rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the (row, column) of every byte of a buffer, in order.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4.
    """
    if name == "linear":
        return list(itertools.product(range(rows), range(columns)))
    across = -(-columns // 4) * 4
    if name == "linear_padded":
        return list(itertools.product(range(-(-rows // 128) * 128), range(across)))
    if name == "tiled_8x4":
        tiles = itertools.product(range(0, rows, 8), range(0, across, 4))
        return [(top + r, left + c) for top, left in tiles for r in range(8) for c in range(4)]
    tiles = itertools.product(range(0, rows, 128), range(0, across, 4))
    return [
        (top + quarter * 32 + r, left + c)
        for top, left in tiles
        for r in range(32)
        for quarter in range(4)
        for c in range(4)
    ]


def padded(name: str, rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of a buffer."""
    down, across = {"linear": (1, 1), "linear_padded": (128, 4), "tiled_128x4": (128, 4), "tiled_8x4": (8, 4)}[name]
    return -(-rows // down) * down, -(-columns // across) * across


def stored(scales: NDArray[np.uint8], name: str, poison: int = 0) -> NDArray[np.uint8]:
    """Scale bytes in a layout, its padding filled with a byte."""
    rows, columns = scales.shape
    flat = [scales[r, c] if r < rows and c < columns else poison for r, c in cells(name, rows, columns)]
    return np.array(flat, np.uint8).reshape(padded(name, rows, columns))


LAYOUT_RULES = {"linear": "LAY-1", "linear_padded": "LAY-2", "tiled_128x4": "LAY-3 LAY-5", "tiled_8x4": "LAY-4 LAY-5"}


def layout_groups() -> list[Json]:
    """Offsets around the edges of tiles, and bytes that are padding."""
    groups = []
    for name, rules in LAYOUT_RULES.items():
        tests = []
        for rows, columns in ((1, 1), (8, 4), (9, 5), (127, 3), (128, 4), (129, 9), (200, 7)):
            order = cells(name, rows, columns)
            edges = [
                (r, c) for r in (0, 1, 7, 8, 31, 32, 33, 64, 96, 127, 128, rows - 1) for c in (0, 1, 3, 4, columns - 1)
            ]
            positions = sorted({(r, c) for r, c in edges if r < rows and c < columns})
            padding = [i for i, (r, c) in enumerate(order) if r >= rows or c >= columns]
            tests.append(
                test(
                    "LayoutOrder Padding" if padding else "LayoutOrder",
                    f"{rows} x {columns} scales",
                    rows=rows,
                    columns=columns,
                    positions=[list(p) for p in positions],
                    padded=list(padded(name, rows, columns)),
                    offsets=[order.index(p) for p in positions],
                    padding=padding[:4] + padding[-4:] if len(padding) > 8 else padding,
                )
            )
        groups.append(group(rules, STATED, tests, layout=name))
    return groups


def group_offset_groups() -> list[Json]:
    """Members of groups, empty ones among them."""
    members: tuple[list[tuple[int, int]], ...] = (
        [],
        [(1, 1)],
        [(128, 4), (128, 4)],
        [(5, 3), (129, 5), (0, 4), (16, 1)],
        [(7, 0), (256, 9)],
    )
    groups = []
    for name in LAYOUT_RULES:
        tests = []
        for shapes in members:
            sizes = [math.prod(padded(name, *shape)) for shape in shapes]
            starts = [0, *itertools.accumulate(sizes)]
            tests.append(
                test("Padding", f"{len(shapes)} members", members=[list(shape) for shape in shapes], starts=starts)
            )
        groups.append(group("LAY-8", STATED, tests, layout=name))
    return groups


def row_range_groups() -> list[Json]:
    """Rows that are one piece of bytes, and rows that are not."""
    groups = []
    for name in LAYOUT_RULES:
        tests = []
        for rows, columns, start, stop in (
            (300, 5, 0, 128),
            (300, 5, 128, 256),
            (300, 5, 256, 300),
            (300, 5, 0, 300),
            (300, 5, 8, 24),
            (300, 5, 1, 9),
            (300, 5, 0, 200),
            (300, 5, 7, 7),
        ):
            owned = [
                i
                for i, (r, _) in enumerate(cells(name, rows, columns))
                if start <= r < (stop if stop < rows else 10**9)
            ]
            owned = owned if start < stop else []
            whole = not owned or owned[-1] - owned[0] + 1 == len(owned)
            found: Json = (
                {"bytes": [owned[0], owned[-1] + 1] if owned else [0, 0]} if whole else refused("LayoutError", "LAY-51")
            )
            tests.append(
                test(
                    "LayoutOrder" if whole else "LayoutOrder Refused",
                    f"rows {start} to {stop} of {rows}",
                    rows=rows,
                    columns=columns,
                    start=start,
                    stop=stop,
                    expected=found,
                )
            )
        groups.append(group("LAY-9 LAY-51 LAY-52", STATED, tests, layout=name))
    return groups
