"""A pass over a group's bytes, which collects everything that the checks of blocks ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import GroupPiece, blocks_across, decoded, pieces, scale_values
from fp4ref.checkpoints.bounds import first_normal, magnitude, nan_codes
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, TILED_128X4

Ints = NDArray[np.int64]


@dataclass
class Measured:
    """Counts and sums over one group.

    codes: by element code. scales: by scale byte. tops: blocks by their largest magnitude code, where the scale is
    normal. zeros: blocks whose elements are all zero, by scale byte; odd_zeros: those whose codes are not the
    convention's. zero_scales: blocks with scale zero and other elements. rows: per row, for runs.
    """

    group: TensorGroup
    codes: Ints
    scales: Ints
    tops: Ints
    zeros: Ints
    odd_zeros: int = 0
    zero_scales: int = 0
    first_zero_scale: tuple[int, int] | None = None
    constant_scale: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    constant_code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    empty_row: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    energy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    structure: tuple[float, float] | None = None
    largest: float = 0.0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return int(self.scales.sum())


def measure(group: TensorGroup) -> Measured:
    """Read a group once, and count. Rules: CKP-30."""
    size = 1 << group.convention.bits
    codes, scales, tops, zeros = (np.zeros(count, np.int64) for count in (size, 256, size // 2, 256))
    found = Measured(group, codes, scales, tops, zeros)
    found.energy = np.zeros(group.columns)
    rows: list[tuple[Any, Any, Any]] = []
    structures = _Structure(group)
    for piece in pieces(group):
        found.codes += _histogram(piece.codes)[:size]
        values = decoded(group, piece)
        largest = float(np.abs(values).max(initial=0))
        if not np.isfinite(largest):
            values = np.where(np.isfinite(values), values, 0)
            largest = float(np.abs(values).max(initial=0))
        wide = values.astype(np.float64)
        found.energy += np.einsum("ij,ij->j", wide, wide)
        found.largest = max(found.largest, largest)
        if piece.scales is not None:
            _count_blocks(found, piece)
            structures.add(piece)
        rows.append(_row_facts(piece, magnitude(FORMATS[group.convention.element])))
    found.constant_scale, found.constant_code = (np.concatenate(part) for part in [*zip(*rows, strict=True)][:2])
    found.empty_row = np.concatenate([part for *_, part in rows])
    found.structure = structures.explained()
    return found


def _histogram(codes: NDArray[np.uint8]) -> Ints:
    """Count bytes, two at a time, which halves the conversions to indices."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    pairs = np.bincount(flat[: len(flat) // 2 * 2].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    counts = pairs.sum(0) + pairs.sum(1)
    if len(flat) % 2:
        counts[flat[-1]] += 1
    return np.asarray(counts, np.int64)


def _count_blocks(found: Measured, piece: GroupPiece) -> None:
    group, scales = found.group, piece.scales
    assert scales is not None
    width, element, scale = (
        group.convention.block[1],
        FORMATS[group.convention.element],
        FORMATS[group.convention.scale],
    )
    rows, blocks = scales.shape
    codes = piece.codes
    if codes.shape[1] != blocks * width:
        codes = np.pad(codes, ((0, 0), (0, blocks * width - codes.shape[1])))
    parts = codes.reshape(rows, blocks, width)
    tops = (parts & magnitude(element)).max(-1)
    found.scales += np.bincount(scales.ravel(), minlength=256)
    normal = ((scales & magnitude(scale)) >= first_normal(scale)) & ~nan_codes(scale.name)[scales]
    found.tops += np.bincount(tops[normal & (tops > 0)].ravel(), minlength=len(found.tops))
    zero = tops == 0
    found.zeros += np.bincount(scales[zero].ravel(), minlength=256)
    if group.convention.zero_block is not None and zero.any():
        found.odd_zeros += int((parts[zero] != group.convention.zero_block[1]).any(-1).sum())
    wrong = (scales & magnitude(scale) == 0) & ~zero
    if wrong.any() and found.first_zero_scale is None:
        row, block = (int(each[0]) for each in np.nonzero(wrong))
        found.first_zero_scale = piece.row + row, block
    found.zero_scales += int(wrong.sum())


def _row_facts(piece: GroupPiece, mask: int) -> tuple[Any, Any, Any]:
    """Return per row the scale byte if all are equal, the code if all are equal, else -1; and if all codes are zero."""
    codes = piece.codes
    same = (codes[:, 0::2] == codes[:, :1]).all(1) & (codes[:, 1::2] == codes[:, 1:2]).all(1)
    code = np.where(same, codes[:, 0].astype(np.int64), -1)
    if piece.scales is None or not piece.scales.shape[1]:
        scale = np.full(len(codes), -1)
    else:
        equal = (piece.scales == piece.scales[:, :1]).all(1)
        scale = np.where(equal, piece.scales[:, 0].astype(np.int64), -1)
    return scale, code, same & (code & mask == 0) & (codes[:, -1] & mask == 0)


class _Structure:
    """The share of the variance of log scales that rows and columns explain, in two layouts. Rules: CKP-15."""

    def __init__(self, group: TensorGroup) -> None:
        self.group = group
        linear = group.layout == LINEAR
        self.other = TILED_128X4 if linear else LINEAR
        blocks = blocks_across(group) if group.convention.scale else 0
        whole = blocks > 0 and group.rows % 128 == 0 and blocks % 4 == 0 and not group.convention.struct
        self.sums = [_TwoWay(blocks), _TwoWay(blocks)] if whole else []

    def add(self, piece: GroupPiece) -> None:
        if not self.sums or piece.scales is None or len(piece.scales) % 128:
            return
        logs = _logs(self.group)
        rows, blocks = piece.scales.shape
        if self.other is LINEAR:  # stored in tiles: the other reading takes the buffer's rows as they come
            moved = TILED_128X4.from_linear(piece.scales).reshape(rows, blocks)
        else:
            moved = TILED_128X4.to_linear(np.ascontiguousarray(piece.scales), rows, blocks)
        self.sums[0].add(logs[piece.scales])
        self.sums[1].add(logs[moved])

    def explained(self) -> tuple[float, float] | None:
        """Return both shares, that of the convention's layout first; None if layouts do not differ here."""
        if not self.sums or not self.sums[0].count:
            return None
        return self.sums[0].explained(), self.sums[1].explained()


def _logs(group: TensorGroup) -> NDArray[np.float64]:
    """Return the logarithm of each scale byte's value; 0 for those that have none."""
    values = scale_values(group)
    return np.log2(np.where(np.isfinite(values) & (values > 0), values, 1.0)).astype(np.float64)


def explained(group: TensorGroup, scales: NDArray[np.uint8]) -> float:
    """Return the share of the variance of log scales that the rows and columns of a matrix explain. Rules: CKP-15."""
    sums = _TwoWay(scales.shape[1])
    sums.add(_logs(group)[scales])
    return sums.explained()


class _TwoWay:
    """Sums for an analysis of variance by rows and columns."""

    def __init__(self, columns: int) -> None:
        self.columns = np.zeros(columns)
        self.count, self.rows, self.total, self.squares, self.by_rows = 0, 0, 0.0, 0.0, 0.0

    def add(self, logs: NDArray[np.float64]) -> None:
        self.columns += logs.sum(0)
        self.by_rows += float((logs.mean(1) ** 2).sum()) * logs.shape[1]
        self.total += float(logs.sum())
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
