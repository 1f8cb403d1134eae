"""Recoding: the bytes of another format for a weight whose values it has exactly, without quantizing them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import WeightPiece, codes_of
from fp4ref.checkpoints.convention import Direction, ScaleWay, square_grid
from fp4ref.checkpoints.exact_blocks import ANY, CastTarget, ExactBlocks, Needs, exact_blocks, odd_parts
from fp4ref.checkpoints.float_scales import FloatScales
from fp4ref.checkpoints.lossless import (
    BLOCK_FP8,
    LosslessVerdict,
    chunks,
    judge,
    kept_scales,
    scale_ranges,
    target_of,
)
from fp4ref.checkpoints.transfer.choice import choose
from fp4ref.checkpoints.transfer.placing import Emit, Placed, PlacedWeight
from fp4ref.checkpoints.transfer.scales import Cost, StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.formats import FORMATS

ONE = Direction(ScaleWay.MULTIPLIER)
Bytes = NDArray[np.uint8]


def verdict_of(weights: Sequence[Weight], target: CastTarget) -> LosslessVerdict | None:
    """Return whether a format has every value of some weights under one global factor; None if none can be said.

    Weights whose global scales differ, and elements or scales that are not finite, have no verdict.

    Rules: CNV-21.
    """
    if len({each.multiplier().tobytes() for each in weights}) > 1:
        return None
    try:
        return judge(weights[0], target, *weights[1:])
    except DomainError:
        return None


def global_scale(weight: Weight, verdict: LosslessVerdict, direction: Direction) -> StoredScale | None:
    """Return the global scale of a recoded weight; None if the direction cannot store that number exactly.

    Rules: CNV-21.
    """
    old = weight.global_scale or StoredScale(np.ones(1, np.float32), ONE)
    factor = Fraction(verdict.one) * Fraction(2) ** verdict.shift
    with np.errstate(all="ignore"):
        turned = 1 / factor if old.direction.way is ScaleWay.DIVISOR else factor
        new = StoredScale((old.values.astype(np.float64) * float(turned)).astype(np.float32), old.direction)
    if not (new.usable() and new.multipliers() == [each * factor for each in old.multipliers()]):
        return None
    return new if new.cost(direction) is Cost.EXACT else None


def recoded(weight: Weight, target: CastTarget, verdict: LosslessVerdict, zero: int = 0) -> Weight:
    """Return a weight in the target's formats, with the same values and without a global scale.

    verdict: that of `judge`, which is lossless. zero: the scale byte of a block of zeros.

    Rules: CNV-21, CNV-52.
    """
    high, wide = target.block
    scales = _ScaleBytes(target.scale) if target.scale else None

    def read(multiple: int) -> Iterator[WeightPiece]:
        for piece in weight.read(math.lcm(multiple, high)):
            parts = [*chunks(piece, weight.columns, high)]
            done = [_recode(part) for part in parts]
            packed, made = (np.concatenate(each) for each in zip(*done, strict=True))
            yield WeightPiece(piece.matrix, piece.row, packed, made if target.scale else None)

    def _recode(part: WeightPiece) -> tuple[Bytes, Bytes]:
        blocks = exact_blocks(weight, part, target)
        odd, exponent = (each[blocks.which] for each in _chosen(blocks.needs, target, verdict))
        codes = _codes(weight, part, blocks, target, verdict.one * odd, exponent)
        found = np.zeros((0, blocks.across), np.uint8)
        if scales is not None:
            made = scales[odd, exponent - verdict.shift]
            made = np.where(blocks.needs.empty[blocks.which], zero, made).astype(np.uint8)
            found = np.repeat(made.reshape(-1, blocks.across), high, 0)[: len(codes)]
        return _packed(codes, FORMATS[target.element].bits), found

    given = None if target.scale else _numbers(weight, target, verdict)
    block = (1, wide) if target.scale else target.block
    return Weight(
        module=weight.module,
        element=target.element,
        scale=target.scale,
        block=block,
        shape=weight.shape,
        read=read,
        float_scales=given,
    )


def _numbers(weight: Weight, target: CastTarget, verdict: LosslessVerdict) -> FloatScales:
    """Return the scales of squares; 1 for a square of zeros."""
    found = []
    for piece in weight.read(target.block[0]):
        for part in chunks(piece, weight.columns, target.block[0]):
            blocks = exact_blocks(weight, part, target)
            numbers = np.ldexp(*_chosen(blocks.needs, target, verdict))
            found.append(np.where(blocks.needs.empty, 1.0, numbers)[blocks.which])
    shape = square_grid(target.block, weight.shape)
    return FloatScales("F32", shape, np.concatenate(found).astype("<f4").tobytes())


class _ScaleBytes:
    """The byte of each scale odd * 2^exponent of a format."""

    def __init__(self, name: str) -> None:
        values = bounds.values(name).astype(np.float64)
        self.bytes = np.flatnonzero(np.isfinite(values) & (values > 0))
        self.values = values[self.bytes]

    def __getitem__(self, number: tuple[Any, Any]) -> Any:
        with np.errstate(all="ignore"):
            wanted = np.ldexp(number[0].astype(np.float64), number[1])
        return self.bytes[np.searchsorted(self.values, wanted).clip(max=len(self.values) - 1)]


def _chosen(needs: Needs, target: CastTarget, verdict: LosslessVerdict) -> tuple[Any, Any]:
    """Return the scale odd * 2^exponent of each block: of the global factor it has the power of two, not the odd part.

    It is the source's where it can be, else the smallest.

    Rules: CNV-52.
    """
    low, high = scale_ranges(needs, target, verdict.one, verdict.shift)
    same = kept_scales(needs, target, verdict.one, low, high)
    odds = np.array([odd for odd, _, _ in target.scales])
    with np.errstate(all="ignore"):
        numbers = np.where(low <= high, np.ldexp(odds.astype(np.float64), low), np.inf)
    pick = np.where(same.any(-1), same.argmax(-1), numbers.argmin(-1))
    exponent = np.where(same.any(-1), needs.source[:, 1], low[np.arange(len(pick)), pick])
    return odds[pick], exponent


def _codes(
    weight: Weight, piece: WeightPiece, blocks: ExactBlocks, target: CastTarget, odd: Any, exponent: Any
) -> Bytes:
    """Return the codes of the same values under other scales, odd * 2^exponent for each block of the target.

    They are looked up for each pair of an old and a new scale.
    """
    rows, form = len(piece.packed), FORMATS[target.element]
    high, wide = target.block
    spread = [np.repeat(each.reshape(-1, blocks.across), high, 0)[:rows] for each in (odd, exponent)]
    runs = [np.repeat(each, wide // blocks.width, -1)[:, : blocks.owners.shape[1]] for each in spread]
    key = (blocks.owners << 32) + ((runs[1] + ANY) << 16) + runs[0]
    unique, which = np.unique(key, return_inverse=True)
    new_odd, new_exponent = unique & 0xFFFF, (unique >> 16 & 0xFFFF) - ANY
    old_odd, old_exponent = (each[unique >> 32] for each in blocks.scales)
    values = bounds.values(weight.element)
    parts = odd_parts(values)
    quotient = parts[0] * old_odd[:, None] // new_odd[:, None]  # a block without one has no such element
    with np.errstate(all="ignore"):
        new = np.ldexp(quotient.astype(np.float64), parts[1] + (old_exponent - new_exponent)[:, None])
    grid = bounds.values(target.element)[: form.codes]
    table = np.searchsorted(grid, new).clip(max=form.codes - 1)
    is_negative = np.arange(len(values)) & FORMATS[weight.element].sign_bit
    table = (table | np.where(is_negative, form.sign_bit, 0)).astype(np.uint8)
    codes = codes_of(piece.packed, weight.bits)[:, : weight.columns]
    place = np.repeat(which.reshape(blocks.owners.shape) * len(values), blocks.width, -1)[:, : weight.columns]
    return np.asarray(table.reshape(-1)[place + codes], np.uint8)


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Return codes in the canonical packing. Rules: PACK-7."""
    if bits == 8:
        return codes
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


@dataclass(frozen=True)
class Recoded:
    """A quantized weight that becomes block FP8, for which no specification is: exactly, or not at all.

    Rules: CNV-23.
    """

    weight: Weight
    to: str
    home: str
    notes: list[str] = field(default_factory=list, compare=False)

    @cached_property
    def placed(self) -> PlacedWeight:
        """The weight in its convention, with scales that stand for those to be found."""
        target = target_of(BLOCK_FP8)
        shape = square_grid(target.block, self.weight.shape)
        stand_in = FloatScales("F32", shape, bytes(4 * math.prod(shape)))
        same = replace(
            self.weight,
            element=target.element,
            scale="",
            block=target.block,
            global_scale=None,
            input_scale=None,
            float_scales=stand_in,
            origin={},
        )
        return PlacedWeight(same, choose(same, self.to))

    def tensors(self) -> list[Placed]:
        """Return the weight's tensors."""
        return self.placed.tensors()

    def write(self, emit: Emit) -> list[str]:
        """Recode the weight. Errors: DomainError if block FP8 has not every value. Rules: CNV-23, CNV-53."""
        target = target_of(BLOCK_FP8)
        verdict = judge(self.weight, target)
        if not verdict.lossless:
            got = f"{self.weight.module}: {verdict.exact} of {verdict.blocks} blocks are exact; {verdict.witness}"
            raise DomainError("convert", got, f"an exact cast, or --exclude: {BLOCK_FP8} has no quantizer", "CNV-23")
        new = recoded(self.weight, target, verdict)
        replace(self.placed, weight=new).write(emit)
        self.notes.append(f"{self.weight.module}: recoded as {BLOCK_FP8}, every value is the same")
        return []

    def remarks(self) -> list[str]:
        """Return that the cast was exact."""
        return self.notes
