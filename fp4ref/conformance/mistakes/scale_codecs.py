"""Mistakes in how a scale becomes a byte, and in what the byte is taken for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref import arithmetic_peers_mx as apm
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, When, collect, e4m3_scales, known, mx, of, other_than
from fp4ref.conformance.mistakes.rounding_words import ROUNDINGS
from fp4ref.conformance.mistakes.scales import E4M3_FNUZ
from fp4ref.formats import E4M3, E5M2, E8M0, Codec, Codes, F, Floats, Rounding


def _codec(**changes: Any) -> of:
    return of(lambda kernel: replace(kernel.scale_codec, **changes))


codec = partial(known, Slot.SCALE_CODEC)
OF_E4M3, OF_E5M2 = (Codec(format=form, nan=(0x7F, 0x7F)) for form in (E4M3, E5M2))
OF_E8M0 = Codec(format=E8M0, rounding=Rounding.UP, nan=(0xFF, 0xFF))
OF_FNUZ = Codec(format=E4M3_FNUZ, nan=(0x80, 0x80))

ROUNDED = tuple(
    codec(
        f"scale-codec-{words.rounding}",
        words.of("the block scale", "is"),
        other_than("scale_codec", "rounding", words.rounding),
        scale_codec=_codec(rounding=words.rounding),
    )
    for words in ROUNDINGS
)


def _codes_of_special(code: int) -> Iterator[Mistake]:
    """Yield another code for scales past the largest, and for NaN."""
    text = f"a block scale past the largest becomes {code:#04x} instead of saturating"
    yield codec(f"scale-overflow-{code:02x}", text, scale_codec=_codec(overflow=code))
    text = f"a NaN scale becomes {code:#04x}"
    yield codec(f"scale-nan-{code:02x}", text, special=True, scale_codec=_codec(nan=(code, code)))


CODECS = (
    codec("scale-e5m2", "scales are E5M2 instead of E4M3", e4m3_scales, scale_codec=OF_E5M2),
    codec("scale-fnuz", "scales are E4M3FNUZ (bias 8) instead of E4M3", e4m3_scales, scale_codec=OF_FNUZ),
    codec(
        "scale-fnuz-240",
        "scales saturate at 240, the largest of E4M3FNUZ, and are written with its bias 8",
        e4m3_scales,
        scale_codec=OF_FNUZ,
        scale_value=lambda t: np.minimum(t, F(240)),
    ),
    codec("scale-e8m0", "scales are powers of two in E8M0 instead of E4M3", e4m3_scales, scale_codec=OF_E8M0),
    codec(
        "scale-power",
        "scales are rounded up to powers of two",
        e4m3_scales,
        scale_value=lambda t: apm.up_from_any(np.asarray(t, F)),
    ),
    codec("scale-e4m3", "scales are E4M3 instead of E8M0", mx, scale_codec=OF_E4M3),
    codec(
        "scale-flush",
        "subnormal block scales are flushed to zero",
        e4m3_scales,
        scale_byte=lambda byte: np.where(byte < 8, np.uint8(0), byte),
    ),
    codec(
        "scale-normal",
        "subnormal block scales become the smallest normal",
        e4m3_scales,
        scale_byte=lambda byte: np.where(byte < 8, np.uint8(8), byte),
    ),
    codec(
        "scale-infinite",
        "elements are divided by infinity where the scale is infinite",
        special=True,
        working=apm.infinite,
    ),
)


class ByteRow(NamedTuple):
    """A change of scale bytes, or another value of them. special: of such that few tensors have."""

    name: str
    text: str
    when: When | None
    of_byte: Callable[[Codes], Any]
    special: bool = False


def _moved(by: int, byte: Codes) -> Codes:
    return np.clip(byte.astype(np.int16) + by, 0, 255).astype(np.uint8)


def _next_below(most: int, byte: Codes) -> Codes:
    return np.where(byte < most, byte + np.uint8(1), byte).astype(np.uint8)


BYTES = (
    ByteRow("plus-1", "scale bytes are one too large", None, partial(_moved, 1)),
    ByteRow("minus-1", "scale bytes are one too small", None, partial(_moved, -1)),
    ByteRow("plus-1-to-7e", "scale bytes are one too large, up to 0x7E", e4m3_scales, partial(_next_below, 0x7E)),
    ByteRow("plus-1-to-fe", "scale bytes are one too large, up to 0xFE", mx, partial(_next_below, 0xFE)),
    ByteRow("sign", "the sign bit of scale bytes is set", e4m3_scales, lambda b: b | np.uint8(0x80)),
    ByteRow("bias", "scale bytes hold the exponent without the bias 127", mx, lambda b: b - np.uint8(127)),
    ByteRow("negated", "scale bytes hold the negated exponent", mx, lambda b: np.uint8(254) - b),
    ByteRow("least-1", "scale byte 0 becomes 1", mx, lambda b: np.maximum(b, np.uint8(1)), special=True),
    ByteRow(
        "least-127", "scale byte 0 becomes 127 (1.0)", mx, lambda b: np.where(b == 0, np.uint8(127), b), special=True
    ),
    ByteRow("most-253", "scale bytes end at 253", mx, lambda b: np.minimum(b, np.uint8(253)), special=True),
    ByteRow(
        "no-254",
        "the largest scale byte 254 becomes 255",
        mx,
        lambda b: np.where(b == 254, np.uint8(255), b),
        special=True,
    ),
    ByteRow(
        "shift",
        "E4M3 scale bytes are shifted left by one, without their sign",
        e4m3_scales,
        lambda b: b << np.uint8(1),
    ),
)


def _changed_bytes(row: ByteRow) -> Iterator[Mistake]:
    """Yield bytes that are changed after the codec, for the elements too, or only where they are stored."""
    name, text, when, change, special = row
    yield codec(f"scale-byte-{name}", text, when, special=special, scale_byte=change)
    stored = f"{text} where they are stored, not where elements are divided"
    yield codec(f"scale-stored-{name}", stored, when, special=special, scales=change)


def _integers(whole: Callable[[Floats], Floats], kernel: Kernel) -> Callable[[Codes], Codes]:
    codec = kernel.scale_codec
    return lambda byte: np.clip(np.nan_to_num(whole(codec.decode(byte))), 0, 255).astype(np.uint8)


INTEGERS = tuple(
    codec(
        f"scale-integer-{name}",
        f"scale bytes hold the value converted to an integer ({text}) instead of its bits",
        scales=of(partial(_integers, whole)),
    )
    for name, text, whole in (
        ("cut", "truncated", np.trunc),
        ("nearest", "rounded", np.rint),
        ("wrapped", "truncated, modulo 256", lambda value: np.trunc(value) % 256),
    )
)

# What scale bytes are taken for where elements are divided


def _as_normal(byte: Codes) -> Floats:
    """Return a subnormal taken for a normal with exponent -7."""
    return np.asarray(np.ldexp(F(1) + (byte & 7).astype(F) / F(8), (byte >> 3).astype(np.int32) - 7).astype(F), F)


DECODINGS = (
    ByteRow("normal", "subnormal scale bytes are decoded as normal numbers", e4m3_scales, _as_normal),
    ByteRow(
        "flush",
        "subnormal scale bytes are decoded as 0",
        e4m3_scales,
        lambda byte: np.where(byte < 8, F(0), _as_normal(byte)),
    ),
    ByteRow(
        "e5m2",
        "scale bytes are decoded as E5M2",
        e4m3_scales,
        OF_E5M2.decode,
    ),
    ByteRow(
        "bias-8",
        "scale bytes are decoded with bias 8 (E4M3FNUZ)",
        e4m3_scales,
        lambda b: OF_E4M3.decode(b) / F(2),
    ),
    ByteRow("integer", "scale bytes are taken as integers", e4m3_scales, lambda byte: byte.astype(F)),
    ByteRow(
        "power",
        "the mantissa of scale bytes is dropped",
        e4m3_scales,
        lambda b: OF_E4M3.decode(b & np.uint8(0x78)),
    ),
    ByteRow(
        "no-mantissa-lsb",
        "the last bit of scale bytes is dropped",
        e4m3_scales,
        lambda byte: OF_E4M3.decode(byte & np.uint8(0xFE)),
    ),
    ByteRow(
        "bias-126", "scale bytes are decoded with bias 126", mx, lambda byte: np.ldexp(F(1), byte.astype(int) - 126)
    ),
    ByteRow(
        "bias-128", "scale bytes are decoded with bias 128", mx, lambda byte: np.ldexp(F(1), byte.astype(int) - 128)
    ),
    ByteRow(
        "zero",
        "scale byte 0 is decoded as 0 instead of 2^-127",
        mx,
        lambda byte: np.where(byte == 0, F(0), np.ldexp(F(1), byte.astype(int) - 127)),
        special=True,
    ),
)


def _redecoded(decoded: Callable[[Codes], Floats], kernel: Kernel) -> Callable[[Floats], Floats]:
    return lambda s: np.asarray(decoded(kernel.scale_codec.encode(s)), F)


DECODED = tuple(
    known(
        Slot.ENCODE,
        f"scale-decoded-{name}",
        f"{text} where elements are divided",
        when,
        special=special,
        used_scale=of(partial(_redecoded, decoded)),
    )
    for name, text, when, decoded, special in DECODINGS
)

SCALE_CODECS = collect(
    ROUNDED,
    *map(_codes_of_special, (0x7F, 0xFF, 0x7E, 0x00)),
    CODECS,
    *map(_changed_bytes, BYTES),
    INTEGERS,
    DECODED,
)
