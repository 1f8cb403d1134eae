"""Casts without loss: whether another format has every value of a weight exactly, with the condition or a witness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import WeightPiece
from fp4ref.checkpoints.exact_blocks import CastTarget, ExactBlocks, Needs, Ranges, exact_blocks, odd_parts
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.spec import Granularity, Spec

BLOCK_FP8 = "block-fp8"  # E4M3 with a float32 scale for each square of 128
CHUNK = 1 << 20  # elements whose blocks are in memory
SHIFT = 200  # exponents of a global factor that are tried


def ranges(name: str) -> Ranges:
    """Return the exponents of each odd factor of a format; they follow each other without a gap."""
    values = bounds.values(name)
    odd, exponents = odd_parts(values[np.isfinite(values) & (values > 0)])
    return tuple(
        (int(each), int(exponents[odd == each].min()), int(exponents[odd == each].max())) for each in np.unique(odd)
    )


def target_of(spec: Spec | str) -> CastTarget:
    """Return the format of a specification, or of `block-fp8`.

    Errors: DomainError for a global scale per row.

    Rules: CNV-18.
    """
    if isinstance(spec, str):
        scales = tuple((odd, -149, 123) for odd in range(1, 16, 2))
        return CastTarget(spec, ranges("e4m3"), scales, (128, 128), free=False, element="e4m3")
    if spec.global_scale is Granularity.ROW:
        raise DomainError("lossless", f"specification {spec.name}", "one global scale per tensor or none", "CNV-18")
    block = spec.block.rows, spec.block.columns
    free = spec.global_scale is Granularity.TENSOR
    element, scale = spec.element.format.name, spec.scale.format.name
    return CastTarget(spec.name, ranges(element), ranges(scale), block, free, element, scale)


@dataclass
class LosslessVerdict:
    """The result for one weight, or for several with one global scale.

    exact, blocks: how many of the target's blocks can be exact at once. one, shift: with a global factor one * 2^shift
    times the source's. condition: that factor. witness: the first block that is not exact, and why. moved: blocks with
    values that the specification's own quantizer changes; None if that was not asked for. rescaled: blocks that it
    gives another scale byte, where the formats are the weight's. first: the place of the first of both.
    """

    module: str
    blocks: int = 0
    exact: int = 0
    one: int = 1
    shift: int = 0
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


def judge(weight: Weight, target: CastTarget, *others: Weight) -> LosslessVerdict:
    """Return whether a format has every value of a weight, by exact integers: no value is rounded anywhere.

    others: weights that get the same global factor.

    Errors: DomainError for elements or scales that are not finite.

    Rules: CNV-18, CNV-48.
    """
    verdict = LosslessVerdict(weight.module)
    for each in (weight, *others):
        for piece in each.read(target.block[0]):
            for part in chunks(piece, each.columns, target.block[0]):
                _note(verdict, each, part, exact_blocks(each, part, target), target, several=bool(others))
    _conclude(verdict, target)
    return verdict


def _note(
    verdict: LosslessVerdict,
    weight: Weight,
    piece: WeightPiece,
    blocks: ExactBlocks,
    target: CastTarget,
    *,
    several: bool,
) -> None:
    """Note the kinds of blocks, with their numbers and first places, in the order in which they come."""
    needs, which = blocks.needs, blocks.which
    columns = [needs.source, np.stack([needs.lows, needs.highs], -1).reshape(len(needs.lows), -1)]
    rows = np.concatenate(columns, -1).astype(np.int32)
    firsts = np.full(len(rows), len(which))
    np.minimum.at(firsts, which, np.arange(len(which)))
    counts = np.bincount(which, minlength=len(rows))
    verdict.blocks += len(which)
    for number in np.argsort(firsts):  # entries are in the order of the blocks
        down, column = divmod(int(firsts[number]), blocks.across)
        place = f"row {blocks.row + down * target.block[0]}, column {column * target.block[1]}"
        place = f"matrix {piece.matrix}, {place}" if weight.matrices > 1 else place
        place = f"{weight.module}, {place}" if several else place
        entry = verdict.seen.setdefault(rows[number].tobytes(), [0, place, rows[number]])
        entry[0] += int(counts[number])


def chunks(piece: WeightPiece, columns: int, high: int) -> Iterator[WeightPiece]:
    """Yield parts of a piece whose exact values fit in memory, each of a multiple of some rows except the last."""
    step = max(CHUNK // max(columns, 1) // high, 1) * high
    for top in range(0, len(piece.packed), step):
        scales = None if piece.scales is None else piece.scales[top : top + step]
        yield WeightPiece(piece.matrix, piece.row + top, piece.packed[top : top + step], scales)


def _conclude(verdict: LosslessVerdict, target: CastTarget) -> None:
    """Choose the global factor that makes most blocks exact, and name the first block that is not.

    If several make all exact, it is the smallest that lets each keep its scale, else the smallest power of two.

    Rules: CNV-22.
    """
    entries = list(verdict.seen.values())
    counts, rows = np.array([each[0] for each in entries]), np.stack([each[2] for each in entries])
    intervals = rows[:, 2:].reshape(len(rows), -1, 2)
    needs = Needs(intervals[..., 0], intervals[..., 1], rows[:, :2])
    empty = needs.empty
    best: tuple[int, bool, int, int, int] = (-1, False, 0, 1, 0)
    shifts = range(-SHIFT, SHIFT) if target.free and not empty.all() else (0,)
    for one in target.outer:
        for shift in shifts:
            low, high = scale_ranges(needs, target, one, shift)
            takes, keeps = (low <= high).any(-1), kept_scales(needs, target, one, low, high).any(-1)
            count, kept = int(counts[takes].sum()), bool((keeps | empty).all())
            near = 0 if takes.all() else -abs(shift)
            best = max(best, (count, kept, near, one, shift), key=lambda each: each[:3])
    verdict.exact, _, _, verdict.one, verdict.shift = best
    if target.free:
        verdict.condition = (
            f"a global scale of {'3 * ' if verdict.one == 3 else ''}2^{verdict.shift} times the source's"
        )
    low, high = scale_ranges(needs, target, verdict.one, verdict.shift)
    failed = np.flatnonzero(~(low <= high).any(-1))
    if failed.size:
        alone = (intervals[failed[0], :, 0] <= intervals[failed[0], :, 1]).any()
        why = "its scale is out of the format's range" if alone else "no scale makes all its elements exact"
        verdict.witness = f"{entries[failed[0]][1]}: {why}"


def scale_ranges(needs: Needs, target: CastTarget, one: int, shift: int) -> tuple[Any, Any]:
    """Return the exponents of scales that make blocks exact, the global factor's 2^shift included, [blocks, scales]."""
    columns, ends = _columns(target, one)
    lows, highs = needs.lows[:, columns], needs.highs[:, columns]
    return np.maximum(lows, ends[:, 1] + shift), np.minimum(highs, ends[:, 2] + shift)


@lru_cache
def _columns(target: CastTarget, one: int) -> tuple[list[int], NDArray[np.int64]]:
    """Return which factors of the target its scales are under a global factor, and the scales."""
    return [target.factors.index(one * odd) for odd, _, _ in target.scales], np.array(target.scales)


def kept_scales(needs: Needs, target: CastTarget, one: int, low: Any, high: Any) -> NDArray[np.bool_]:
    """Return for each block which of the format's odd factors the source's scale has and can keep, [blocks, scales]."""
    odd, exponent = needs.source.T[..., None]
    odds = np.array([each for each, _, _ in target.scales])
    return np.asarray((odd == one * odds) & (low <= exponent) & (exponent <= high))
