"""Whose random bits a stochastic rounding uses, measured in the elements that it moves up or down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide
from fp4ref.conformance.mistakes.randomness import OF_BITS
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.conformance.mistakes.said import moved
from fp4ref.conformance.mistakes.sides import before_codec
from fp4ref.formats import Codes, Rounding, grid
from fp4ref.model.tiles import join

GROUPS = (2, 4, 8, 16, 32)
SHIFTS = [by for by in itertools.product(range(-2, 3), repeat=2) if by != (0, 0)]
ENOUGH = 64  # groups in which every place must be seen
NEAR = 2.0  # of 256: fractions so close to a whole number of bits decide nothing


def _bits_reversed(numbers: NDArray[Any]) -> NDArray[Any]:
    return sum((numbers >> i & 1) << 7 - i for i in range(8))  # type: ignore[return-value]


@np.errstate(all="ignore")
def source_of_bits(kernel: Kernel, pairs: Sequence[tuple[Part, ScaleSide]]) -> Mistake | None:
    """For each element of a group the one whose random bits it uses, if that is always the same and not itself."""
    if kernel.codec.rounding is not Rounding.STOCHASTIC:
        return None
    seen = [found for part, side in pairs if (found := _needed(kernel, part, side)) is not None]
    mapped = _mapped(seen)
    if mapped is not None:
        name, text, table = mapped
        return known(Slot.INPUT, f"bits-inferred-{name}", text, breaks=OF_BITS, bits=partial(_looked_up, table))
    shift = next(
        (by for by in SHIFTS if seen and all(_fits(np.roll(found[0], by, (0, 1)), found) for found in seen)), None
    )
    if shift is not None:
        return known(
            Slot.INPUT,
            f"bits-inferred-shift-{-shift[0]}-{-shift[1]}",
            f"elements use the random bits of {-shift[0]} rows and {-shift[1]} columns further on",
            breaks=OF_BITS,
            bits=partial(np.roll, shift=shift, axis=(0, 1)),
            whole=True,
        )
    for size in GROUPS:
        source = _source(seen, size)
        if source is not None:
            return known(
                Slot.INPUT,
                f"bits-inferred-{size}",
                moved(source, "random bits", "used"),
                breaks=OF_BITS,
                bits=partial(_taken, source),
            )
    return None


Needed = tuple[Codes, NDArray[np.float64], NDArray[np.float64]]  # bits drawn, and from which to which they may be


def _needed(kernel: Kernel, part: Part, side: ScaleSide) -> Needed | None:
    """Return the bits drawn, and between which numbers those that were used must lie, [rows, columns]."""
    drawn, got = part.item.exhibit.case.random_bits, part.item.codes(LOW_FIRST)
    if drawn is None or got is None or part.elements is None or not part.whole:
        return None
    values = grid(kernel.codec.format)[: kernel.codec.format.codes].astype(np.float64)
    y = np.abs(join(before_codec(kernel, side), side.shape)).astype(np.float64)
    code = (got & (kernel.codec.format.sign_bit - 1)).astype(np.intp)
    lower = np.clip(np.searchsorted(values, y, side="right") - 1, 0, len(values) - 2)
    needed = 256 * (1 - (y - values[lower]) / np.diff(values)[lower])  # from so many bits on an element moves up
    use = part.elements & np.isfinite(y) & (y < values[-1]) & (y > 0)
    low = np.where(use & (code > lower), needed - NEAR, -np.inf)
    high = np.where(use & (code == lower), needed + NEAR, np.inf)
    return np.asarray(drawn), low, high


BYTES = np.arange(256)
TABLES: tuple[tuple[str, str, NDArray[Any]], ...] = (
    ("reversed", "the bits of each random byte are taken in reverse order", _bits_reversed(BYTES)),
    *(
        (f"rotated-{n}", f"the bits of each random byte are rotated by {n}", (BYTES << n | BYTES >> 8 - n) & 255)
        for n in range(1, 8)
    ),
    *((f"xor-{n:02x}", f"random bytes b are taken as b ^ {n:#04x}", BYTES ^ n) for n in range(1, 256)),
    *((f"plus-{n}", f"random bytes b are taken as (b + {n}) % 256", (BYTES + n) % 256) for n in range(1, 256)),
)


def _mapped(seen: Sequence[Needed]) -> tuple[str, str, NDArray[Any]] | None:
    """Return the rule by which each random byte is taken as another one, if one fits all elements."""
    if not seen:
        return None
    low, high = np.full(256, -np.inf), np.full(256, np.inf)
    for drawn, least, most in seen:
        np.maximum.at(low, drawn.reshape(-1), least.reshape(-1))
        np.minimum.at(high, drawn.reshape(-1), most.reshape(-1))
    if ((low <= BYTES) & (high >= BYTES)).all():
        return None
    return next((rule for rule in TABLES if ((rule[2] >= low) & (rule[2] <= high)).all()), None)


def _looked_up(table: NDArray[Any], bits: Codes) -> Codes:
    return table.astype(np.uint8)[bits]


def _fits(drawn: Codes, found: Needed) -> bool:
    return bool(((drawn >= found[1]) & (drawn <= found[2])).all())


def _source(seen: Sequence[Needed], size: int) -> list[int] | None:
    cut = [
        tuple(array[:, : array.shape[1] // size * size].reshape(-1, size) for array in found)
        for found in seen
        if found[0].shape[1] >= size
    ]
    if sum(len(found[0]) for found in cut) < ENOUGH:
        return None
    drawn, low, high = (np.concatenate(arrays) for arrays in zip(*cut, strict=True))
    source = []
    for place in range(size):
        fits = ((drawn >= low[:, place, None]) & (drawn <= high[:, place, None])).all(axis=0)
        if fits.sum() != 1:
            return None
        source.append(int(fits.argmax()))
    return source if source != list(range(size)) else None


def _taken(source: list[int], bits: Codes) -> Codes:
    size = len(source)
    whole = -(-bits.shape[1] // size) * size
    padded = np.pad(bits, ((0, 0), (0, whole - bits.shape[1])))  # what a masked load gives
    turned = padded.reshape(len(bits), whole // size, size)[:, :, source].reshape(len(bits), whole)
    return np.ascontiguousarray(turned[:, : bits.shape[1]])
