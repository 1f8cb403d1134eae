"""Mistakes that are measured in the candidate's bytes instead of being known.

The elements of a block that count, the signs of a transform, the boundaries of a rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.diagnosis.measured.scales import nicest
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, Turn
from fp4ref.conformance.mistakes.maxima_of_blocks import block_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.conformance.mistakes.said import runs
from fp4ref.conformance.mistakes.sides import before_codec
from fp4ref.conformance.mistakes.transforms import MATRIX, transformed
from fp4ref.formats import Codec, Codes, F, Floats, Rounding, grid
from fp4ref.hadamard import POINTS, butterfly
from fp4ref.model.tiles import join

ENOUGH = 64  # elements that a boundary must be seen between, in all
SHOWN = 3  # boundaries that are said
CLEAR = (
    1.25  # a maximum so much larger than the rest of its block shows in the scale byte; a power of two needs twice that
)


# The elements that a block's maximum is made of


@np.errstate(all="ignore")
def seen_positions(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Positions in the block that the candidate's maxima leave out, if it leaves out any and the same everywhere."""
    (high, wide), codec = kernel.block, kernel.spec.scale
    seen, missed = np.zeros(high * wide, np.bool_), np.zeros(high * wide, np.bool_)
    for part in parts:
        side, got = part.side(kernel), part.item.scales(DECLARED)
        if side is None or got is None or part.blocks is None or side.byte.shape[2:] != (1, 1):
            continue
        magnitude = np.abs(side.blocks).reshape(*side.blocks.shape[:2], high * wide)
        order = np.sort(magnitude, axis=2)
        clear = order[..., -1] > (CLEAR if codec.format.mantissa_bits else 2 * CLEAR) * order[..., -2]
        byte, right = got[part.rows, part.across][::high], side.byte[:, :, 0, 0]
        if byte.shape != right.shape or clear.shape != byte.shape:
            return None
        use = part.blocks[::high] & clear & (right >= 16) & (right < codec.format.codes - 2)
        at = magnitude.argmax(axis=2)
        seen |= np.bincount(at[use & (byte >= right)], minlength=high * wide) > 0
        missed |= np.bincount(at[use & (byte < right)], minlength=high * wide) > 0
    if not missed.any() or (seen & missed).any() or missed.all():
        return None
    if high > 1:  # more places than are seen: whole rows and columns are taken
        places = missed.reshape(high, wide), seen.reshape(high, wide)
        rows, columns = (np.asarray(places[0].any(axis=axis) & ~places[1].any(axis=axis)) for axis in (1, 0))
        missed |= (rows[:, None] | columns[None, :]).reshape(-1)
    kept = (~missed).reshape(high, wide)
    return known(
        Slot.BLOCK,
        f"block-inferred-{np.count_nonzero(missed)}",
        f"block maxima miss {_places(kept)}",
        block_amax=block_of(lambda b: np.where(kept, b, F(0))),
    )


def _places(kept: NDArray[np.bool_]) -> str:
    """Places of a block that do not count, in words."""
    for name, axis in (("rows", 1), ("columns", 0)):
        out = ~kept.any(axis=axis)
        if np.count_nonzero(~kept) == np.count_nonzero(out) * kept.shape[axis] and kept.shape[0] > 1:
            return f"{name} {runs(np.flatnonzero(out))} of the block"
    return f"the elements at places {runs(np.flatnonzero(~kept))} of the block"


# The signs of the transform


@np.errstate(all="ignore")
def sign_mask(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Return the sign mask that the candidate's codes show, if it is another than the specification's. Rules: HAD-1."""
    if not isinstance(kernel.transform, Turn):
        return None
    votes = np.zeros(POINTS)
    values = grid(kernel.codec.format)
    for part in parts:
        got, item = part.item.codes(LOW_FIRST), part.item
        if not part.whole or got is None or item.columns % POINTS or item.exhibit.case.direction not in kernel.turned:
            continue
        sign = kernel.codec.format.sign_bit
        decoded = values[np.minimum(got & (sign - 1), len(values) - 1)] * np.where(got & sign, -1, 1)
        before = item.exhibit.matrix.reshape(-1, POINTS).astype(np.float64)
        scale = np.abs(before).max(axis=1, keepdims=True)
        use = (np.isfinite(scale) & (scale > 0))[:, 0]
        back = butterfly(decoded.reshape(-1, POINTS)[use].astype(F))
        votes += (before[use] / scale[use] * back).sum(axis=0)
    mask = int(sum(1 << i for i in range(POINTS) if votes[i] < 0))
    if mask == kernel.transform.signs or not votes.all():
        return None
    wrong = [str(i) for i in range(POINTS) if (mask ^ kernel.transform.signs) >> i & 1]
    where = f": element{'s' * (len(wrong) > 1)} {', '.join(wrong)} of 16" if len(wrong) < POINTS // 2 else ""
    return known(
        Slot.HADAMARD,
        f"hadamard-signs-inferred-{mask:04x}",
        f"Hadamard: the signs are those of the mask {mask:#06x} instead of {kernel.transform.signs:#06x}{where}",
        breaks=MATRIX,
        transform=transformed(signs=mask),
    )


# The boundaries between codes


class Boundary(NamedTuple):
    """Magnitudes that are on the wrong side: those up to `last` have at most this code, those from `first` a larger."""

    code: int
    last: np.float32
    first: np.float32

    def below(self, codec: Codec, magnitude: Floats) -> NDArray[np.bool_]:
        """Return True for magnitudes of at most this code; between those seen, a number with few digits decides."""
        values = grid(codec.format)
        middle = (values[self.code] + values[self.code + 1]) / 2
        if not np.isfinite(self.first):
            return np.asarray(magnitude >= 0)
        if middle in {self.last, self.first}:
            return np.asarray(magnitude <= self.last)
        return np.asarray(magnitude <= nicest(float(self.last), float(self.first)))


def element_boundaries(
    kernel: Kernel, parts: Sequence[tuple[Part, ScaleSide]], reader: DataReader = LOW_FIRST
) -> Mistake | None:
    """Other boundaries between the element codes, if the candidate's codes follow from the scaled elements at all.

    Measured on every element that is finite; if these do not fit together, on ordinary ones.
    """
    if kernel.codec.rounding is Rounding.STOCHASTIC:
        return None
    return _boundaries(kernel, parts, reader, every=True) or _boundaries(kernel, parts, reader, every=False)


def _boundaries(
    kernel: Kernel, parts: Sequence[tuple[Part, ScaleSide]], reader: DataReader, *, every: bool
) -> Mistake | None:
    pairs = [_rounding(kernel, part, side, reader, every=every) for part, side in parts]
    found = [pair for pair in pairs if pair is not None]
    if not found or len(found) < len(pairs):
        return None
    y, code, minus = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    zero = _sign_of_zeros(y, code, minus)
    if zero is None or (minus != np.signbit(y))[code != 0].any():
        return None
    moved = [_moved(kernel.codec, np.abs(y[side]), code[side]) for side in (y > 0, y < 0)]
    if moved[0] is None or moved[1] is None or not (moved[0] or moved[1]):
        return None
    said = _said(kernel.codec, moved[0], moved[1]) + ("" if zero == KEPT else f"; {zero.words}")
    return known(
        Slot.CODE,
        "element-inferred",
        f"elements are rounded at other boundaries: {said}",
        measured=True,
        round=partial(_rounded, moved[0], moved[1], zero),
    )


class ZeroSigns(NamedTuple):
    """The sign bit of magnitudes that are rounded to zero, for positive and for negative elements."""

    positive: bool
    negative: bool

    @property
    def words(self) -> str:
        """In a report."""
        return (
            f"what is rounded to zero has sign bits {int(self.positive)} (positive) and {int(self.negative)} (negative)"
        )


KEPT = ZeroSigns(positive=False, negative=True)


def _sign_of_zeros(y: Floats, code: Codes, minus: NDArray[np.bool_]) -> ZeroSigns | None:
    """Return the signs of codes that are zero; None where they follow no rule."""
    found = []
    for side, right in ((y > 0, False), (y < 0, True)):
        signs = minus[side & (code == 0)]
        if signs.any() and not signs.all():
            return None
        found.append(bool(signs[0]) if signs.size else right)
    return ZeroSigns(*found)


def _rounding(
    kernel: Kernel, part: Part, side: ScaleSide, reader: DataReader, *, every: bool
) -> tuple[Floats, Codes, NDArray[np.bool_]] | None:
    """Values before the codec, and the candidate's codes and signs."""
    got = part.item.codes(reader)
    if got is None or part.elements is None:
        return None
    sign = kernel.codec.format.sign_bit
    y, own = join(before_codec(kernel, side), side.shape), got[part.rows, part.columns]
    use = np.isfinite(y) & (y != 0) & (own < 2 * sign)
    if not every:
        use &= part.elements
    code = np.asarray(own[use], np.uint8)
    return np.asarray(y[use], F), np.asarray(code & (sign - 1), np.uint8), np.asarray(code >= sign)


def _moved(codec: Codec, magnitude: Floats, code: Codes) -> list[Boundary] | None:
    """Boundaries that are not the codec's; None if the codes are not in order, or too few."""
    count = codec.format.codes
    if magnitude.size < ENOUGH or (code >= count).any():
        return None
    largest, smallest = np.zeros(count, F), np.full(count, np.inf, F)
    np.maximum.at(largest, code, magnitude)
    np.minimum.at(smallest, code, magnitude)
    last = np.maximum.accumulate(largest)[:-1]
    first = np.minimum.accumulate(smallest[::-1])[::-1][1:]
    if (last >= first).any():
        return None
    wanted = [codec.encode(values) & (codec.format.sign_bit - 1) for values in (last, first)]
    codes = np.arange(count - 1)
    wrong = (wanted[0] > codes) | (np.isfinite(first) & (wanted[1] <= codes))
    return [Boundary(int(c), last[c], first[c]) for c in codes[wrong]]


def _said(codec: Codec, positive: list[Boundary], negative: list[Boundary]) -> str:
    """Return the first boundaries in words; what both signs share is said once."""
    if positive == negative or {b.code for b in positive} == {b.code for b in negative}:
        return _listed(codec, positive or negative, "")
    parts = [_listed(codec, moved, sign) for moved, sign in ((positive, "+"), (negative, "-")) if moved]
    return "; ".join(parts)


def _listed(codec: Codec, moved: list[Boundary], sign: str) -> str:
    values = grid(codec.format)
    said = []
    for code, last, first in moved[:SHOWN]:
        middle = (values[code] + values[code + 1]) / 2
        if not np.isfinite(first):
            said.append(f"nothing becomes {sign}{values[code + 1]:g}")
        elif middle in {last, first}:
            said.append(f"the tie {sign}{middle:g} becomes {sign}{values[code + (middle == first)]:g}")
        else:
            said.append(
                f"{sign}{values[code]:g} reaches up to {sign}{nicest(float(last), float(first)):g}, not {middle:g}"
            )
    return ", ".join(said) + (f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else "")


def _rounded(
    positive: list[Boundary], negative: list[Boundary], zero: ZeroSigns, y: Floats, bits: Codes | None, codec: Codec
) -> Codes:
    sign, magnitude = codec.format.sign_bit, np.abs(y)
    wanted = codec.encode(y, bits)
    code: NDArray[Any] = wanted & (sign - 1)
    for side, moved in ((y > 0, positive), (y < 0, negative)):
        for boundary in moved:
            below = side & boundary.below(codec, magnitude)
            code = np.where(below, np.minimum(code, boundary.code), code)
            code = np.where(side & ~below, np.maximum(code, boundary.code + 1), code)
    minus = np.where(code == 0, np.where(y > 0, zero.positive, zero.negative), np.signbit(y))
    minus = np.where(y == 0, wanted >= sign, minus)
    return np.where(np.isnan(y), wanted, code | np.where(minus, sign, 0)).astype(np.uint8)
