"""Casts without loss: whether another format has every value of a weight exactly, with the condition or a witness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import WeightPiece, codes_of
from fp4ref.checkpoints.transfer.quantizing import requantized
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.spec import Granularity, Spec

BLOCK_FP8 = "block-fp8"  # E4M3 with a float32 scale for each square of 128
CHUNK = 1 << 20  # elements whose exact values are in memory
ROWS = 16  # rows that pieces of a weight and of its quantization have a multiple of
ROUNDING = 2.0**-20
SHIFT = 200  # exponents of a global factor that are tried
ANY = 10_000  # past every exponent
Integers = NDArray[np.int64]
Ranges = dict[int, tuple[int, int]]  # by odd factor, the exponents e for which odd * 2^e is in a format


class CastTarget(NamedTuple):
    """The format that values are cast to. elements, scales: odd factors with their exponents.

    block: rows and columns that share a scale. free: true if one factor for the tensor can be chosen.
    """

    name: str
    elements: Ranges
    scales: Ranges
    block: tuple[int, int]
    free: bool


def odd_parts(values: Any) -> tuple[Integers, Integers]:
    """Return odd factors and exponents of magnitudes: odd * 2^exponent; the odd factor of zero is 0."""
    fractions, exponents = np.frexp(np.abs(np.asarray(values, np.float64)))
    whole = np.ldexp(fractions, 53).astype(np.int64)
    low = np.where(whole, whole & -whole, 1)
    return whole // low, exponents.astype(np.int64) - 53 + np.log2(low).astype(np.int64)


def ranges(name: str) -> Ranges:
    """Return the exponents of each odd factor of a format; they follow each other without a gap."""
    values = bounds.values(name)
    odd, exponents = odd_parts(values[np.isfinite(values) & (values > 0)])
    return {
        int(each): (int(exponents[odd == each].min()), int(exponents[odd == each].max())) for each in np.unique(odd)
    }


def target_of(spec: Spec | str) -> CastTarget:
    """Return the format of a specification, or of `block-fp8`.

    Errors: DomainError for a global scale per row.

    Rules: CNV-18.
    """
    if isinstance(spec, str):
        scales = dict.fromkeys(range(1, 16, 2), (-149, 123))
        return CastTarget(spec, ranges("e4m3"), scales, (128, 128), free=False)
    if spec.global_scale is Granularity.ROW:
        raise DomainError("lossless", f"specification {spec.name}", "one global scale per tensor or none", "CNV-18")
    block = spec.block.rows, spec.block.columns
    free = spec.global_scale is Granularity.TENSOR
    return CastTarget(spec.name, ranges(spec.element.format.name), ranges(spec.scale.format.name), block, free)


@dataclass
class LosslessVerdict:
    """The result for one weight. exact, blocks: how many of the target's blocks can be exact at once.

    condition: the factor of the global scale with which they are. witness: the first block that is not, and why.
    moved: blocks with values that the specification's own quantizer changes; None if that was not asked for. rescaled:
    blocks that it gives another scale byte, where the formats are the weight's. first: the place of the first of both.
    """

    module: str
    blocks: int = 0
    exact: int = 0
    condition: str = ""
    witness: str = ""
    moved: int | None = None
    rescaled: int = 0
    first: str = ""
    seen: dict[bytes, list[Any]] = field(default_factory=dict, repr=False)

    @property
    def lossless(self) -> bool:
        """True if every value is exact."""
        return self.exact == self.blocks


def judge(weight: Weight, target: CastTarget) -> LosslessVerdict:
    """Return whether a format has every value of a weight, by exact integers: no value is rounded anywhere.

    Errors: DomainError for elements or scales that are not finite.

    Rules: CNV-18.
    """
    verdict = LosslessVerdict(weight.module)
    outer = (1, 3) if target.free else (1,)
    factors = sorted({one * scale for one in outer for scale in target.scales})
    for piece in weight.read(target.block[0]):
        for row, across, lows, highs in _blocks(weight, piece, target, factors):
            rows = np.stack([lows, highs], -1).reshape(len(lows), -1).astype(np.int32)
            unique, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
            verdict.blocks += len(rows)
            for number in np.argsort(first):  # entries are in the order of the blocks
                each, count = unique[number], counts[number]
                down, column = divmod(int(first[number]), across)
                place = f"row {row + down * target.block[0]}, column {column * target.block[1]}"
                place = f"matrix {piece.matrix}, {place}" if weight.matrices > 1 else place
                entry = verdict.seen.setdefault(each.tobytes(), [0, place, each.reshape(-1, 2)])
                entry[0] += int(count)
    _conclude(verdict, target, factors, outer)
    return verdict


def requantize(weight: Weight, spec: Spec, verdict: LosslessVerdict) -> None:
    """Note which blocks change if the decoded values are quantized again by a specification.

    Values that differ by less than 2^-20 of themselves are the same but for the rounding of a global scale.

    Rules: CNV-18.
    """
    again = requantized(weight, spec)
    wide = spec.block.columns
    alike = (weight.element, weight.scale, weight.block) == (again.element, again.scale, again.block)
    verdict.moved = 0
    for old, new in zip(weight.read(ROWS), again.read(ROWS), strict=True):
        values = weight.decoded(old).astype(np.float64)
        differs = np.zeros((len(values), -(-weight.columns // wide) * wide), np.bool_)
        differs[:, : weight.columns] = np.abs(again.decoded(new) - values) > np.abs(values) * ROUNDING
        moved = differs.reshape(len(values), -1, wide).any(-1)
        rescaled = np.zeros_like(moved)
        if alike and old.scales is not None and new.scales is not None:
            rescaled |= new.scales != old.scales
        verdict.moved += int(moved.sum())
        verdict.rescaled += int(rescaled.sum())
        if not verdict.first and (moved | rescaled).any():
            down, across = (int(each[0]) for each in np.nonzero(moved | rescaled))
            verdict.first = f"row {old.row + down}, column {across * wide}"


def _exact_values(weight: Weight, piece: WeightPiece, *, free: bool) -> tuple[Integers, Integers]:
    """Return odd factors and exponents of a piece's values; with a free global scale, without the source's own."""
    elements = bounds.values(weight.element)
    codes = codes_of(piece.packed, weight.bits)[:, : weight.columns]
    scales = np.ones((len(codes), 1), np.float32)
    if piece.scales is not None:
        scales = np.repeat(bounds.values(weight.scale)[piece.scales], weight.block[1], -1)[:, : weight.columns]
    elif weight.float_scales is not None:
        scales = np.broadcast_to(weight.factors(piece), codes.shape)
    if not (np.isfinite(elements[codes]).all() and np.isfinite(scales).all()):
        raise DomainError("lossless", f"{weight.module}: elements or scales that are not finite", "numbers", "CNV-18")
    odd, exponent = odd_parts(elements[codes])
    scale_odd, scale_exponent = odd_parts(scales)
    factor = np.float32(1) if free else weight.multiplier(piece.matrix)
    global_odd, global_exponent = odd_parts(np.float64(factor))
    return odd * scale_odd * global_odd, exponent + scale_exponent + global_exponent


def _blocks(
    weight: Weight, piece: WeightPiece, target: CastTarget, factors: list[int]
) -> Iterator[tuple[int, int, Integers, Integers]]:
    """Yield for some rows: the first one, blocks across, and the least and largest exponent of a scale of each block.

    The exponents are [blocks, factors].
    """
    high, wide = target.block
    across = -(-weight.columns // wide)
    step = max(CHUNK // max(weight.columns, 1) // high, 1) * high
    for top in range(0, len(piece.packed), step):
        scales = None if piece.scales is None else piece.scales[top : top + step]
        part = WeightPiece(piece.matrix, piece.row + top, piece.packed[top : top + step], scales)
        odd, exponent = _exact_values(weight, part, free=target.free)
        down = -(-len(odd) // high)
        values = np.zeros((2, down * high, across * wide), np.int64)
        values[0, : len(odd), : odd.shape[1]], values[1, : len(odd), : odd.shape[1]] = odd, exponent
        blocks = values.reshape(2, down, high, across, wide).transpose(0, 1, 3, 2, 4).reshape(2, down * across, -1)
        yield part.row, across, *_intervals(blocks[0], blocks[1], target, factors)


def _intervals(odd: Integers, exponent: Integers, target: CastTarget, factors: list[int]) -> tuple[Integers, Integers]:
    """Return the exponents x for which a scale factor * 2^x makes each block exact, for each factor."""
    size = max(target.elements) + 2
    least, most = np.full(size, ANY), np.full(size, -ANY)
    for each, (low, high) in target.elements.items():
        least[each], most[each] = low, high
    lows, highs = (np.empty((len(odd), len(factors)), np.int64) for _ in range(2))
    for index, factor in enumerate(factors):
        fits = (odd % factor == 0) & (odd // factor < size)
        part = np.where(fits, odd // factor, size - 1)  # that of no element: an empty interval
        low = np.where(odd == 0, -ANY, exponent - most[part]).max(-1)
        high = np.where(odd == 0, ANY, exponent - least[part]).min(-1)
        lows[:, index], highs[:, index] = np.maximum(low, -ANY), np.minimum(high, ANY)
    return lows, highs


def _conclude(verdict: LosslessVerdict, target: CastTarget, factors: list[int], outer: tuple[int, ...]) -> None:
    """Choose the global factor that makes most blocks exact, and name the first block that is not."""
    entries = list(verdict.seen.values())
    counts, intervals = np.array([each[0] for each in entries]), np.stack([each[2] for each in entries])
    best: tuple[int, int, int] = (-1, 1, 0)
    for one in outer:
        for shift in sorted(range(-SHIFT, SHIFT), key=abs) if target.free else (0,):
            count = int(counts[_takes(intervals, target, factors, one, shift)].sum())
            best = max(best, (count, one, shift), key=lambda each: each[0])
    verdict.exact, one, shift = best
    if target.free:
        verdict.condition = f"a global scale of {'3 * ' if one == 3 else ''}2^{shift} times the source's"
    failed = np.flatnonzero(~_takes(intervals, target, factors, one, shift))
    if failed.size:
        alone = (intervals[failed[0], :, 0] <= intervals[failed[0], :, 1]).any()
        why = "its scale is out of the format's range" if alone else "no scale makes all its elements exact"
        verdict.witness = f"{entries[failed[0]][1]}: {why}"


def _takes(intervals: Any, target: CastTarget, factors: list[int], one: int, shift: int) -> NDArray[np.bool_]:
    """Return for each block whether it has a scale of the format under a global factor one * 2^shift."""
    found = np.zeros(len(intervals), np.bool_)
    for scale, (least, most) in target.scales.items():
        low, high = intervals[:, factors.index(one * scale)].T
        found |= np.maximum(low, least + shift) <= np.minimum(high, most + shift)
    return found
