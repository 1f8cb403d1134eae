"""Mistakes in how a scaled element becomes a code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Slot, both, collect, e2m1, eight_bit, known, of, other_than, stochastic
from fp4ref.conformance.mistakes.rounding_words import ROUNDINGS
from fp4ref.conformance.mistakes.scales import E4M3_FNUZ
from fp4ref.conformance.mistakes.signs import NANS, SIGNS, other_codec
from fp4ref.formats import E2M1, E4M3, E5M2, Codec, Codes, F, Floats, Format, Rounding, grid

E1M2 = Format("e1m2", exponent_bits=1, mantissa_bits=2, bias=1, codes=8)
E3M0 = Format("e3m0", exponent_bits=3, mantissa_bits=0, bias=3, codes=8)


def signed_ties(up: bool, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Ties toward plus (or minus) infinity."""
    toward = replace(codec, rounding=Rounding.AWAY).encode(y)
    back = replace(codec, rounding=Rounding.DOWN).encode(y)
    return np.where((y > 0) == up, toward, back)


def one_tie(low: int, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Return the codec's codes, except that the tie above one code goes to the odd one of its neighbours."""
    values, code = grid(codec.format), codec.encode(y, bits)
    tie = np.abs(y) == (values[low] + values[low + 1]) / 2
    return np.asarray(np.where(tie, code & codec.format.sign_bit | _odd(low), code), np.uint8)


def _odd(low: int) -> int:
    return low if low % 2 else low + 1


def odd_ties(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Ties to the odd code."""
    even = replace(codec, rounding=Rounding.EVEN).encode(y)
    away, down = (replace(codec, rounding=r).encode(y) for r in (Rounding.AWAY, Rounding.DOWN))
    return np.where(away != down, np.where(even == away, down, away), even)


def directed(up: bool, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Toward plus (or minus) infinity."""
    larger = replace(codec, rounding=Rounding.UP).encode(y)
    smaller = replace(codec, rounding=Rounding.TRUNCATE).encode(y)
    return np.where((y > 0) == up, larger, smaller)


def _to_lowest(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Return the lowest code of two's complement for what rounds to it or is below; otherwise the codec's code."""
    form = codec.format
    unit = float(grid(form)[1])
    lowest = np.rint(y.astype(np.float64) / unit) <= -form.codes
    return np.asarray(np.where(lowest, form.sign_bit, codec.encode(y, bits)), np.uint8)


def table(values: tuple[float, ...], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Nearest of eight values, ties to the even code; the sign in bit 3."""
    middles, magnitude = (np.array(values[:-1]) + np.array(values[1:])) / 2, np.abs(y).astype(np.float64)
    below, above = (np.searchsorted(middles, magnitude, side=side) for side in ("left", "right"))
    code = np.where(below % 2 == 0, below, above)
    return (np.where(np.isnan(y), codec.nan[0], code | np.signbit(y) << 3)).astype(np.uint8)


def integer(complement: bool, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Nearest integer from -7 to 7, as INT4."""
    whole = np.clip(np.nan_to_num(np.rint(y)), -8 if complement else -7, 7).astype(np.int8)
    return np.asarray(whole & 15 if complement else np.abs(whole) | np.signbit(y) << 3, np.uint8)


TABLES: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("sixteenth", "the smallest element value is 0.0625 instead of 0.5", (0, 0.0625, 1, 1.5, 2, 3, 4, 6)),
    ("quarter", "the smallest element value is 0.25 instead of 0.5", (0, 0.25, 1, 1.5, 2, 3, 4, 6)),
    ("no-subnormal", "the smallest element value is 0.75 instead of 0.5", (0, 0.75, 1, 1.5, 2, 3, 4, 6)),
    ("8", "the largest element value is 8 instead of 6", (0, 0.5, 1, 1.5, 2, 3, 4, 8)),
    ("5", "the largest element value is 5 instead of 6", (0, 0.5, 1, 1.5, 2, 3, 4, 5)),
)


def _flush_codes(kernel: Kernel) -> Callable[[Codes], Codes]:
    form = kernel.codec.format
    first = 1 << form.mantissa_bits
    return lambda code: np.where(code & (form.sign_bit - 1) < first, code & form.sign_bit, code).astype(np.uint8)


def _flushed_below(kernel: Kernel) -> Callable[[Floats], Floats]:
    smallest = F(grid(kernel.codec.format)[1 << kernel.codec.format.mantissa_bits])
    return lambda y: np.where(np.abs(y) < smallest, np.copysign(F(0), y), y)


def _lift_codes(kernel: Kernel) -> Callable[[Codes], Codes]:
    form = kernel.codec.format
    first, low = 1 << form.mantissa_bits, form.sign_bit - 1
    return lambda code: np.where((code & low != 0) & (code & low < first), code & form.sign_bit | first, code).astype(
        np.uint8
    )


element = partial(known, Slot.CODE)


def _nearest(kernel: Kernel) -> bool:
    return not stochastic(kernel)


def _e4m3(kernel: Kernel) -> bool:
    return kernel.codec.format is E4M3


def _e5m2(kernel: Kernel) -> bool:
    return kernel.codec.format is E5M2


ROUNDED = tuple(
    element(
        f"element-{words.rounding}",
        words.of("elements", "are"),
        other_than("codec", "rounding", words.rounding),
        codec=other_codec(rounding=words.rounding),
    )
    for words in ROUNDINGS
)

TIES = (
    element(
        "element-ties-up",
        "ties go toward +infinity when elements are rounded",
        _nearest,
        round=partial(signed_ties, True),
    ),
    element(
        "element-ties-minus",
        "ties go toward -infinity when elements are rounded",
        _nearest,
        round=partial(signed_ties, False),
    ),
    element("element-ties-odd", "ties go to the odd code when elements are rounded", _nearest, round=odd_ties),
    *(
        element(
            f"element-tie-{(below + above) / 2:g}",
            f"the tie {(below + above) / 2:g} becomes {odd:g} instead of {even:g} when elements are rounded",
            both(e2m1, _nearest),
            alone=True,
            round=partial(one_tie, low),
        )
        for low, (below, above) in enumerate(itertools.pairwise(grid(E2M1)[: E2M1.codes]))
        for odd, even in [(below, above) if low % 2 else (above, below)]
    ),
)

DIRECTED = (
    element("element-plus", "elements are rounded toward +infinity", _nearest, round=partial(directed, True)),
    element("element-floor", "elements are rounded toward -infinity", _nearest, round=partial(directed, False)),
)

SATURATION = (
    *(
        element(
            f"element-overflow-{code}",
            f"magnitudes past 6 become code {code}{' (-0)' if code == 8 else ''} instead of saturating",
            e2m1,
            codec=other_codec(overflow=code),
        )
        for code in (0, 1, 2, 3, 4, 5, 6, 8)
    ),
    element("element-clamp-4", "elements are clamped to 4 instead of 6", e2m1, value=lambda y: np.clip(y, F(-4), F(4))),
    element(
        "element-overflow-nan",
        "magnitudes past the largest become NaN (0x7F) instead of saturating",
        eight_bit,
        codec=other_codec(overflow=0x7F),
    ),
    known(
        Slot.CODE,
        "element-infinite-nan",
        "infinite elements become NaN instead of saturating",
        special=True,
        value=of(lambda kernel: partial(lambda value, y: value(np.where(np.isinf(y), F(np.nan), y)), kernel.value)),
    ),
    element(
        "element-overflow-inf",
        "magnitudes past the largest become infinity (0x7C) instead of saturating",
        _e5m2,
        codec=other_codec(overflow=0x7C),
    ),
    *(
        element(
            f"element-clamp-{top:g}",
            f"elements saturate at {top:g}",
            eight_bit,
            value=partial(lambda most, y: np.clip(y, -most, most), F(top)),
        )
        for top in (240.0, 224.0, 256.0, 416.0)
    ),
)

SUBNORMAL = (
    element("element-flush", "subnormal elements are flushed to zero", code=of(_flush_codes)),
    element(
        "element-flush-first",
        "elements below the smallest normal are flushed to zero before they are rounded (no subnormal elements)",
        value=of(_flushed_below),
    ),
    element("element-flush-up", "subnormal elements become the smallest normal", code=of(_lift_codes)),
)

OTHER_FORMATS = (
    element("element-e5m2", "elements are E5M2 instead of E4M3", _e4m3, codec=Codec(format=E5M2, nan=(0x7F, 0x7F))),
    element("element-e4m3", "elements are E4M3 instead of E5M2", _e5m2, codec=Codec(format=E4M3, nan=(0x7F, 0x7F))),
    element(
        "element-fnuz",
        "elements are E4M3FNUZ (bias 8) instead of E4M3",
        _e4m3,
        codec=Codec(format=E4M3_FNUZ, nan=(0x80, 0x80)),
    ),
    element("element-e1m2", "elements are E1M2 instead of E2M1", e2m1, codec=Codec(format=E1M2, nan=(7, 7))),
    element("element-e3m0", "elements are E3M0 instead of E2M1", e2m1, codec=Codec(format=E3M0, nan=(7, 7))),
    element(
        "element-int4",
        "elements are rounded to integers, INT4 with a sign bit",
        e2m1,
        round=partial(integer, False),
    ),
    element(
        "element-int4-twos",
        "elements are rounded to integers, INT4 in two's complement",
        e2m1,
        round=partial(integer, True),
    ),
    *(element(f"element-table-{name}", text, e2m1, round=partial(table, values)) for name, text, values in TABLES),
    element(
        "element-lowest",
        "negative elements saturate at the lowest code of two's complement, one past the negative of the largest",
        lambda kernel: kernel.codec.format.complement,
        round=_to_lowest,
    ),
)

ELEMENTS = collect(ROUNDED, TIES, DIRECTED, SATURATION, SUBNORMAL, OTHER_FORMATS, SIGNS, NANS)
