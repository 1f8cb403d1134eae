"""Mistakes in stochastic rounding, and in whose random bits are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np

from fp4ref.conformance.mistakes.random_places import INDICES, at_index
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, stochastic
from fp4ref.formats import Codec, Codes, F, Floats, grid


def added(drawn: Callable[[Any], Any], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding with other bits, 0 to 256."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y).astype(np.float64)
    lower = np.searchsorted(values, magnitude, side="right") - 1
    step = np.diff(values)[np.clip(lower, 0, codec.format.codes - 2)]
    moved = (magnitude + step * drawn(bits.astype(np.float64)) / 256).astype(F)
    return _signed(np.searchsorted(values, moved, side="right") - 1, y, codec)


def compared(away: Callable[[Any, Any], Any], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Round away where the fraction and the bits demand it."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y).astype(np.float64)
    lower = np.clip(np.searchsorted(values[:-1], magnitude, side="right") - 1, 0, codec.format.codes - 1)
    fraction = np.minimum((magnitude - values[lower]) / np.diff(values)[lower], 1)
    return _signed(lower + away(fraction, bits.astype(np.float64)), y, codec)


def below(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding of signed values: the bits are added, and the sum is rounded down."""
    assert bits is not None
    negative = np.signbit(y)
    down = added(lambda b: np.where(negative, 256 - b, b), y, bits, codec)
    exact = np.isin(np.abs(y), grid(codec.format)) & negative & (bits == 0)
    return np.where(exact, codec.encode(y, bits), down).astype(np.uint8)


def taken_off(side: Literal["left", "right"], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding of signed values: the sum is rounded down, perhaps past the end of a binade.

    side: the step at a value is that above it (right) or below it (left).
    """
    assert bits is not None
    values, magnitude = grid(codec.format), np.minimum(np.abs(y), codec.format.max).astype(np.float64)
    lower = np.searchsorted(values, magnitude, side=side) - 1
    step = np.diff(values)[np.clip(lower, 0, codec.format.codes - 2)]
    less = (magnitude - step * bits.astype(np.float64) / 256).astype(F)
    down = _signed(np.searchsorted(values, np.maximum(less, 0), side="left"), y, codec)
    return np.where(np.signbit(y) & ~np.isnan(y), down, codec.encode(y, bits)).astype(np.uint8)


def strictly(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding whose sum, rounded to float32, must exceed the upper value."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y)
    lower = np.searchsorted(values, magnitude, side="right") - 1
    step = np.diff(values)[np.clip(lower, 0, codec.format.codes - 2)].astype(F)
    moved = magnitude + bits.astype(F) / F(256) * step
    return _signed(np.maximum(np.searchsorted(values, moved, side="left") - 1, lower), y, codec)


FALLEN_IN = "the bits are added to signed values, which are rounded down to a value of the binade they fall in"
FALLEN: tuple[tuple[str, Literal["left", "right"], str], ...] = (
    ("fine", "right", ""),
    ("fine-left", "left", "; a value itself takes the step below it"),
)


def _signed(index: Any, y: Floats, codec: Codec) -> Codes:
    code = np.clip(index, 0, codec.format.codes - 1) | np.where(np.signbit(y), codec.format.sign_bit, 0)
    return np.where(np.isnan(y), codec.nan[0], code).astype(np.uint8)


BITS: tuple[tuple[str, str, Any], ...] = (
    ("half-bit", "the bits are taken as (bits + 1/2) / 256", lambda b: b + 0.5),
    ("plus-one", "the bits are taken as (bits + 1) / 256", lambda b: b + 1),
    ("255", "the bits are taken as bits / 255", lambda b: b * 256 / 255),
    ("128", "always half a step is added", lambda b: b * 0 + 128),
    ("nibble", "only the upper four bits are used", lambda b: np.floor(b / 16) * 16),
    ("low-nibble", "only the lower four bits are used", lambda b: b % 16 * 16),
    ("seven", "only the upper seven bits are used", lambda b: np.floor(b / 2) * 2),
    ("low-seven", "only the lower seven bits are used", lambda b: b % 128 * 2),
    ("halved", "the bits are taken as bits / 512", lambda b: b / 2),
    ("signed", "the bits are taken as signed, (bits - 128) / 256", lambda b: b - 128),
)
DRAWS: tuple[tuple[str, str, Any], ...] = (
    ("strict", "rounded away only if frac + bits / 256 > 1", lambda f, b: f * 256 + b > 256),
    ("inverted", "the bits are compared the other way round, bits < 256 * frac", lambda f, b: b < f * 256),
    ("inverted-equal", "the bits are compared the other way round, bits <= 256 * frac", lambda f, b: b <= f * 256),
    ("away", "always rounded away", lambda f, b: f > 0),
    ("coin", "up or down by the highest bit alone", lambda f, b: (f > 0) & (b >= 128)),
)


def _at_pitch(size: int, bits: Codes) -> Codes:
    """Read bits at a pitch that is rounded up to a multiple of a size; past the end, reading begins again."""
    rows, columns = bits.shape
    index = np.arange(rows)[:, None] * (-(-columns // size) * size) + np.arange(columns)
    return np.asarray(bits.reshape(-1)[index % bits.size]) if bits.size else bits


def _swapped(count: int, bits: Codes) -> Codes:
    """Return groups of elements in reverse."""
    whole = bits.shape[-1] // count * count
    turned = bits[..., :whole].reshape(*bits.shape[:-1], -1, count)[..., ::-1].reshape(*bits.shape[:-1], whole)
    return np.concatenate([turned, bits[..., whole:]], axis=-1)


def _swapped_padded(count: int, bits: Codes) -> Codes:
    """Return the same, where the last group is filled with zeros."""
    filled = np.pad(bits, ((0, 0), (0, -bits.shape[1] % count)))
    return _swapped(count, filled)[:, : bits.shape[1]]


def _swapped_within(count: int, bits: Codes) -> Codes:
    """Return the same, where elements of the last group whose partner is past the end of the row keep their own."""
    own = np.arange(bits.shape[-1])
    partner = own // count * count + count - 1 - own % count
    return np.asarray(bits[..., np.where(partner < len(own), partner, own)])


def _shared(count: int, bits: Codes) -> Codes:
    """Return for each group of elements the byte of its first one."""
    return np.asarray(bits[..., np.arange(bits.shape[-1]) // count * count])


def stepped(steps: Callable[[Floats], Floats], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding that adds a part of another step. steps: of those between neighbouring values."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y).astype(np.float64)
    lower = np.clip(np.searchsorted(values, magnitude, side="right") - 1, 0, codec.format.codes - 2)
    moved = (magnitude + steps(np.diff(values))[lower] * (bits.astype(np.float64) / 256)).astype(F)
    return _signed(np.searchsorted(values, moved, side="right") - 1, y, codec)


STEPS: tuple[tuple[str, str, Any], ...] = (
    ("last", "in the largest binade the step is that of the binade below", lambda s: np.minimum(s, s[s < s[-1]].max())),
    ("smallest", "the step is the smallest one everywhere", lambda s: np.full_like(s, s[0])),
    ("largest", "the step is the largest one everywhere", lambda s: np.full_like(s, s[-1])),
    ("below", "the step is that below the value, not that above it", lambda s: np.concatenate([s[:1], s[:-1]])),
    ("above", "the step is that of the next value", lambda s: np.concatenate([s[1:], s[-1:]])),
)


def _by_nibbles(at: Callable[[Any], Any], bits: Codes) -> Codes:
    """Return bytes made of one nibble each, the lower one for even elements. at: of a column, whose byte it takes."""
    column = np.arange(bits.shape[-1])
    taken = bits[..., np.minimum(at(column), max(bits.shape[-1] - 1, 0))]
    return np.where(column % 2, taken & 0xF0, taken << 4).astype(np.uint8)


def _inverted_below_zero(y: Floats, bits: Codes, codec: Codec) -> Codes:
    return codec.encode(y, np.where(np.signbit(y), ~np.asarray(bits), bits))


ROUNDING = ("SR-1", "SR-2", "SR-3")  # the rules that a mistake breaks
OF_BITS = ("SR-1", "SR-2")
_of_bits = partial(known, Slot.INPUT, when=stochastic, breaks=OF_BITS)


def randomness() -> Iterator[Mistake]:
    """Mistakes in stochastic rounding."""
    for name, text, way in (
        *((name, text, partial(compared, away)) for name, text, away in DRAWS),
        *((name, text, partial(added, drawn)) for name, text, drawn in BITS),
        *((f"step-{name}", text, partial(stepped, steps)) for name, text, steps in STEPS),
        ("sum-strict", "a sum that is the upper value itself is not rounded away", strictly),
        ("negative-inverted", "the bits of negative elements are inverted", _inverted_below_zero),
        ("below", "the bits are added to signed values, which are rounded down", below),
        *(
            (
                f"below-{name}",
                f"{FALLEN_IN}{where}",
                partial(taken_off, side),
            )
            for name, side, where in FALLEN
        ),
    ):
        said = f"stochastic rounding: {text}"
        yield known(Slot.CODE, f"random-{name}", said, stochastic, breaks=ROUNDING, round=way)
    for count in (2, 4, 8, 16):
        turned = f"random bits of {count} elements are taken in reverse order"
        for name, text, taken in (
            (f"reversed-{count}", turned, _swapped),
            (f"reversed-{count}-padded", f"{turned}, zeros behind the end of a row", _swapped_padded),
            (f"reversed-{count}-within", f"{turned}; those without a partner keep their own", _swapped_within),
            (f"shared-{count}", f"{count} elements use the random bits of the first of them", _shared),
        ):
            yield _of_bits(f"bits-{name}", text, bits=partial(taken, count))
    for name, text, at in (
        ("pair", "the byte of their first one", lambda column: column // 2 * 2),
        ("packed", "one byte of half the index", lambda column: column // 2),
        ("own", "a nibble of their own byte each", lambda column: column),
    ):
        yield _of_bits(
            f"bits-nibbles-{name}",
            f"two elements take the lower and the upper four bits of {text}",
            bits=partial(_by_nibbles, at),
        )
    for size in (4, 8, 16, 32, 64, 128):
        yield _of_bits(
            f"bits-pitch-{size}",
            f"random bits are read as if the length of their rows were rounded up to a multiple of {size}",
            bits=partial(_at_pitch, size),
        )
    for by, text in ((1, "previous"), (-1, "next")):
        yield _of_bits(
            f"bits-{text}",
            f"each element uses the {text} one's random bits",
            bits=partial(lambda by, bits: np.roll(bits, by, axis=-1), by),
        )
    for name, text, index in INDICES:
        yield _of_bits(
            f"bits-of-{name}",
            f"elements use the random bits of {text}",
            alone=True,
            bits=partial(at_index, index),
        )
    yield _of_bits("bits-inverted", "random bits are inverted", bits=lambda b: ~b)
    yield _of_bits(
        "bits-transposed",
        "random bits are read in the other direction's order",
        bits=lambda b: b.T.reshape(b.shape),
    )
    yield _of_bits(
        "bits-of-the-other",
        "random bits are read transposed: element (i, j) takes the byte at j * rows + i, that of the other direction",
        bits=lambda b: np.ascontiguousarray(b.reshape(b.shape[::-1]).T),
    )
    yield _of_bits("bits-zero", "random bits are not used (0)", bits=np.zeros_like)
