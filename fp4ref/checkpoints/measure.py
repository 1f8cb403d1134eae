"""A pass over a group's bytes, which collects everything that the checks of blocks ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import (
    Bytes,
    Floats,
    WeightPiece,
    codes_of,
    decoded,
    float_scales,
    global_multiplier,
    pieces,
    scale_values,
)
from fp4ref.checkpoints.bounds import first_normal, magnitude, nan_codes
from fp4ref.checkpoints.float_scales import factors, part_of
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.structure import ScaleStructure
from fp4ref.formats import FORMATS

ENERGY_ROWS = 512  # rows of a group whose squares show the order of columns
HISTOGRAM = 1 << 22  # four-bit elements of a group that show its histogram
FEW = 64  # bytes of a row that tell most rows from those of one repeated byte
Ints = NDArray[np.int64]


@dataclass
class Measured:
    """Counts and sums over one group.

    codes: by element code, of evenly spaced rows where these are enough of four bits. scales: by scale byte. tops:
    blocks by their largest magnitude code, where the scale is normal. zeros: blocks whose elements are all zero, by
    scale byte; odd_zeros: those whose codes are not the convention's. zero_scales: blocks with scale zero and other
    elements. negative_rows: rows with a scale whose sign is set. The other arrays: per row, for runs. Counts
    that another process sends come without their group.
    """

    group: TensorGroup
    codes: Ints
    scales: Ints
    tops: Ints
    zeros: Ints
    odd_zeros: int = 0
    zero_scales: int = 0
    first_zero_scale: tuple[int, int] | None = None
    negative_rows: list[int] = field(default_factory=list)
    constant_scale: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    constant_code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    empty_row: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    float_row: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    energy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    structure: tuple[float, float] | None = None
    largest: float = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "group"}

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return int(self.scales.sum())

    @property
    def without_scales(self) -> bool:
        """True if every block scale is NaN."""
        scale = self.group.convention.scale
        return bool(scale and self.blocks) and int(self.scales[nan_codes(scale)].sum()) == self.blocks


def measure(group: TensorGroup) -> Measured:
    """Read a group once, and count. Rules: CKP-30."""
    size = 1 << group.convention.bits
    scales, tops, zeros = (np.zeros(count, np.int64) for count in (256, size // 2, 256))
    found = Measured(group, np.zeros(size, np.int64), scales, tops, zeros)
    found.energy = np.zeros(group.columns)
    pairs = np.zeros(1 << 16, np.int64)
    every = _spacing(group)
    tops_and_scales, matrix, counted = np.zeros((size // 2, 256), np.int64), 0, 0
    rows: list[tuple[Any, ...]] = []
    structures = ScaleStructure(group)
    numbers = float_scales(group)
    for piece in pieces(group):
        some = piece.packed[::every]
        counted += len(some) * group.columns
        pairs += np.bincount(_as_pairs(some), minlength=1 << 16)
        if piece.scales is not None:
            if piece.matrix != matrix:
                _add_blocks(found, matrix, tops_and_scales)
                matrix, tops_and_scales[...] = piece.matrix, 0
            tops_and_scales += _count_blocks(found, piece, piece.scales)
            structures.add(piece.scales)
        else:
            found.largest = max(found.largest, _largest(group, piece, numbers))
        _add_energy(found, piece)
        rows.append(_row_facts(piece, group.convention.bits))
    _add_blocks(found, matrix, tops_and_scales)
    found.codes += _codes_of_pairs(pairs, group.convention.bits, counted)
    found.constant_scale, found.constant_code = (np.concatenate(part) for part in [*zip(*rows, strict=True)][:2])
    found.empty_row, found.float_row = (np.concatenate(part) for part in [*zip(*rows, strict=True)][2:])
    found.structure = structures.explained()
    return found


def _spacing(group: TensorGroup) -> int:
    """Return the distance of the rows that give the histogram: a NaN of eight bits is looked for in every row."""
    return max(group.matrices * group.rows * group.columns // HISTOGRAM, 1) if group.convention.bits == 4 else 1


def _as_pairs(packed: Bytes) -> NDArray[np.uint16]:
    """Return the bytes of packed rows two at a time, which halves the conversions to indices; an odd one gets a 0."""
    flat = np.ascontiguousarray(packed).reshape(-1)
    return (np.append(flat, np.uint8(0)) if len(flat) % 2 else flat).view(np.uint16)


def _codes_of_pairs(pairs: Ints, bits: int, counted: int) -> Ints:
    """Return the number of elements of each code, of as many as were counted."""
    both = pairs.reshape(256, 256)
    counts = both.sum(0) + both.sum(1)
    if bits == 4:
        nibbles = counts.reshape(16, 16)
        counts = nibbles.sum(0) + nibbles.sum(1)
    counts[0] -= counts.sum() - counted  # what was appended to odd pieces
    return np.asarray(counts, np.int64)


def block_tops(packed: Bytes, bits: int, width: int) -> Bytes:
    """Return the largest magnitude code of each block of `width` columns, [rows, blocks]; the last may be shorter."""
    size = width * bits // 8
    if size in {8, 16} and packed.shape[1] % size == 0:
        return _tops_of_words(packed, bits, size)
    largest = packed & np.uint8(127) if bits == 8 else np.maximum(packed & np.uint8(7), packed >> 4 & np.uint8(7))
    blocks = -(-largest.shape[1] // size)
    if largest.shape[1] != blocks * size:
        largest = np.pad(largest, ((0, 0), (0, blocks * size - largest.shape[1])))
    if size > 64:
        return np.asarray(largest.reshape(len(largest), blocks, size).max(-1), np.uint8)
    parts = largest.reshape(-1, size)  # a maximum of columns is ten times faster than one along a short axis
    tops: Bytes = parts[:, 0].copy()
    for column in range(1, size):
        np.maximum(tops, parts[:, column], out=tops)
    return tops.reshape(len(packed), blocks)


def _tops_of_words(packed: Bytes, bits: int, size: int) -> Bytes:
    """Return the largest magnitude code of each block of 8 or 16 bytes: words take half the time of bytes."""
    words = np.ascontiguousarray(packed).view(np.uint64)
    mask = np.uint64(0x7F7F7F7F7F7F7F7F if bits == 8 else 0x0707070707070707)
    parts = [words & mask] if bits == 8 else [words & mask, words >> np.uint64(4) & mask]
    if size == 16:
        parts = [part for each in parts for part in (each[:, ::2], each[:, 1::2])]
    largest = np.ascontiguousarray(parts[0])
    for part in parts[1:]:
        largest = np.maximum(largest.view(np.uint8), np.ascontiguousarray(part).view(np.uint8)).view(np.uint64)
    for shift in (32, 16, 8):
        moved = largest >> np.uint64(shift)
        largest = np.maximum(largest.view(np.uint8), moved.view(np.uint8)).view(np.uint64)
    return largest.astype(np.uint8)


def _count_blocks(found: Measured, piece: WeightPiece, scales: Bytes) -> Ints:
    """Return how many blocks of a piece have each pair of largest code and scale byte; note what is odd about them."""
    convention = found.group.convention
    tops = block_tops(piece.packed, convention.bits, convention.block[1])
    codes = len(found.tops)
    both = np.bincount((tops.astype(np.uint16) << 8 | scales).reshape(-1), minlength=codes << 8).reshape(codes, 256)
    _, vanishes = _kinds(convention.scale)
    if convention.zero_block is not None and both[0].any():
        parts = codes_of(piece.packed, convention.bits)
        parts = _whole_blocks(parts, convention.block[1])[tops == 0]
        found.odd_zeros += int((parts != convention.zero_block[1]).any(-1).sum())
    if both[:, 128:].any() and convention.signed_scales:
        first = piece.matrix * found.group.rows + piece.row
        found.negative_rows += [first + int(row) for row in np.flatnonzero((scales > 127).any(1))]
    count = int(both[1:, vanishes].sum())
    if count and found.first_zero_scale is None:
        row, block = (int(each[0]) for each in np.nonzero(vanishes[scales] & (tops > 0)))
        found.first_zero_scale = piece.row + row, block
    found.zero_scales += count
    return np.asarray(both, np.int64)


def _add_blocks(found: Measured, matrix: int, both: Ints) -> None:
    """Add what the pairs of largest code and scale byte of a matrix say."""
    if found.group.convention.scale:
        normal, _ = _kinds(found.group.convention.scale)
        found.scales += both.sum(0)
        found.tops[1:] += both[1:, normal].sum(1)
        found.zeros += both[0]
        found.largest = max(found.largest, _largest_product(found.group, matrix, both))


@lru_cache
def _kinds(scale: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return True for each scale byte of a normal number, and for each of zero."""
    form, every = FORMATS[scale], np.arange(256)
    normal = ((every & magnitude(form)) >= first_normal(form)) & ~nan_codes(scale)
    return np.asarray(normal), every & magnitude(form) == 0


def _whole_blocks(codes: Bytes, width: int) -> Bytes:
    """Return codes by block, [rows, blocks, width], with zeros behind the last."""
    blocks = -(-codes.shape[1] // width)
    return np.pad(codes, ((0, 0), (0, blocks * width - codes.shape[1]))).reshape(len(codes), blocks, width)


def _largest_product(group: TensorGroup, matrix: int, both: Ints) -> float:
    """Return the largest finite magnitude of a value, of the pairs of largest code and scale byte that occur."""
    codes, scales = np.nonzero(both)
    values = bounds.values(group.convention.element)[codes].astype(np.float64) * np.abs(scale_values(group)[scales])
    with np.errstate(invalid="ignore"):  # a global scale may be infinite
        values *= global_multiplier(group, matrix)
    return float(values[values <= np.finfo(np.float32).max].max(initial=0))


def _largest(group: TensorGroup, piece: WeightPiece, numbers: Floats | None) -> float:
    """Return the largest finite magnitude of a value of a piece whose scales are numbers."""
    rows, bits = len(piece.packed), group.convention.bits
    square = numbers is not None and part_of(group.convention.block, numbers.size, group.shape) == "square"
    width = group.convention.block[1] if square else 0
    tops = block_tops(piece.packed, bits, width or group.columns)
    values = bounds.values(group.convention.element)[tops]
    if numbers is not None:
        scaled = factors(numbers, group.convention.block, group.shape, piece.matrix, range(piece.row, piece.row + rows))
        values = values * (scaled[:, ::width] if width else scaled)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


def _add_energy(found: Measured, piece: WeightPiece) -> None:
    """Add the squares of a piece's columns: of all rows, or of a share of each piece where that is enough rows.

    Rules: CKP-23.
    """
    total = found.group.matrices * found.group.rows
    rows = -(-len(piece.packed) * min(ENERGY_ROWS, total) // total)
    scales = None if piece.scales is None else piece.scales[:rows]
    values = decoded(found.group, piece._replace(packed=piece.packed[:rows], scales=scales))
    energy = np.einsum("ij,ij->j", values, values)
    if not np.isfinite(energy).all():
        values[~np.isfinite(values)] = 0
        energy = np.einsum("ij,ij->j", values, values, dtype=np.float64)
    found.energy += energy


def _row_facts(piece: WeightPiece, bits: int) -> tuple[Any, ...]:
    """Return per row the scale byte if all are equal, the code if all bytes are equal, else -1.

    Then whether all codes are zero, and whether the bytes are those of floating-point numbers.
    """
    packed = piece.packed
    same = _repeats(packed)
    code = np.where(same, (packed[:, 0] & (15 if bits == 4 else 255)).astype(np.int64), -1)
    if piece.scales is None or not piece.scales.shape[1]:
        scale = np.full(len(packed), -1)
    else:
        scale = np.where(_repeats(piece.scales), piece.scales[:, 0].astype(np.int64), -1)
    return scale, code, same & (packed[:, 0] & (0x77 if bits == 4 else 0x7F) == 0), ~same & _are_floats(packed)


def _are_floats(rows: Bytes) -> NDArray[np.bool_]:
    """Return True for each row whose bytes are those of float32 or bfloat16 numbers of usual sizes, 2^-17 to 8.

    The byte of the sign and the exponent is one of few in such numbers, and no other byte of them is.
    """
    width = min(rows.shape[1], FEW) // 4 * 4
    if width < FEW // 2:
        return np.zeros(len(rows), np.bool_)
    magnitudes = rows[:, :width] & np.uint8(0x7F)
    share = ((magnitudes >= 0x37) & (magnitudes <= 0x41)).reshape(len(rows), -1, 4).mean(1)
    return np.asarray((share[:, 3] > 0.9) & (share[:, 0] < 0.5))


def _repeats(rows: Bytes) -> NDArray[np.bool_]:
    """Return True for each row that is one repeated byte."""
    found = (rows[:, :FEW] == rows[:, :1]).all(1)
    likely = np.flatnonzero(found)
    found[likely] = (rows[likely] == rows[likely, :1]).all(1)
    return np.asarray(found)
