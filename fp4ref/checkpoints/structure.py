"""The share of a group's log scales that rows and columns explain, in two layouts."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import Bytes, blocks_across
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.layout import LINEAR, TILED_128X4

STRUCTURE_ROWS = 512  # rows of a group whose scales show the layout


class ScaleStructure:
    """The share of the variance of log scales that rows and columns explain, in two layouts. Rules: CKP-42."""

    def __init__(self, group: TensorGroup) -> None:
        self.group = group
        linear = group.layout == LINEAR
        self.other = TILED_128X4 if linear else LINEAR
        blocks = blocks_across(group) if group.convention.scale else 0
        whole = blocks > 0 and group.rows % 128 == 0 and blocks % 4 == 0 and not group.convention.struct
        self.sums = [_TwoWay(blocks), _TwoWay(blocks)] if whole else []
        self.seen = 0

    def add(self, scales: Bytes) -> None:
        """Count some of the scales of a piece, evenly over all pieces."""
        if not self.sums or len(scales) % 128:
            return
        total = self.group.matrices * self.group.rows
        self.seen += len(scales)
        tiles = -(-self.seen * min(STRUCTURE_ROWS, total) // (128 * total)) - self.sums[0].rows // 128
        if tiles <= 0:
            return
        scales = scales[: 128 * tiles]
        logs = _logs(self.group.convention.scale)
        rows, blocks = scales.shape
        if self.other is LINEAR:  # stored in tiles: the other reading takes the buffer's rows as they come
            moved = TILED_128X4.from_linear(scales).reshape(rows, blocks)
        else:
            moved = TILED_128X4.to_linear(np.ascontiguousarray(scales), rows, blocks)
        self.sums[0].add(np.take(logs, scales))
        self.sums[1].add(np.take(logs, moved))

    def explained(self) -> tuple[float, float] | None:
        """Return both shares, that of the convention's layout first; None if layouts do not differ here."""
        if not self.sums or not self.sums[0].count:
            return None
        return self.sums[0].explained(), self.sums[1].explained()


@lru_cache
def _logs(scale: str) -> NDArray[np.float64]:
    """Return the logarithm of each scale byte's value; 0 for those that have none."""
    values = bounds.values(scale)
    return np.log2(np.where(np.isfinite(values) & (values > 0), values, 1.0)).astype(np.float64)


def explained(group: TensorGroup, scales: NDArray[np.uint8]) -> float:
    """Return the share of the variance of log scales that the rows and columns of a matrix explain. Rules: CKP-42."""
    sums = _TwoWay(scales.shape[1])
    sums.add(_logs(group.convention.scale)[scales])
    return sums.explained()


class _TwoWay:
    """Sums for an analysis of variance by rows and columns."""

    def __init__(self, columns: int) -> None:
        self.columns = np.zeros(columns)
        self.count, self.rows, self.total, self.squares, self.by_rows = 0, 0, 0.0, 0.0, 0.0

    def add(self, logs: NDArray[np.float64]) -> None:
        by_row = logs.sum(1)
        self.columns += logs.sum(0)
        self.by_rows += float((by_row**2).sum()) / logs.shape[1]
        self.total += float(by_row.sum())
        self.squares += float((logs**2).sum())
        self.rows += logs.shape[0]
        self.count += logs.size

    def explained(self) -> float:
        """Return the share beyond what the same number of means would explain of noise."""
        centre = self.total**2 / self.count
        spread = self.squares - centre
        if spread <= 0:
            return 0.0
        means = self.by_rows + float((self.columns**2).sum()) / self.rows - 2 * centre
        degrees = self.rows + len(self.columns) - 2
        left = max(self.count - 1 - degrees, 1)
        return float(1 - (spread - means) / left * (self.count - 1) / spread)
