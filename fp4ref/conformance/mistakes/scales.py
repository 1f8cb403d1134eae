"""Mistakes between the maxima and the scale bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers_mx as apm
from fp4ref.arithmetic import FLT_MAX, SIXTH
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import (
    NARROW,
    ElementForm,
    Mistake,
    ScaleForm,
    Slot,
    both,
    e4m3_scales,
    known,
    mx,
    nv,
    of,
    to_bfloat16,
)
from fp4ref.formats import Codes, F, Floats, Format
from fp4ref.spec import Granularity

E4M3_FNUZ = Format("e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, codes=128)


DECODED_SCALES: tuple[tuple[str, str, ScaleForm], ...] = (
    ("6-g", "(amax / 6) / g", lambda a, g, k: a / F(6) / g),
    ("6g", "amax / (6 * g)", lambda a, g, k: a / (F(6) * g)),
    ("sixth-g", "(amax * fp32(1/6)) / g", lambda a, g, k: a * SIXTH / g),
    ("g-6", "(amax / g) / 6", lambda a, g, k: a / g / F(6)),
)


DECODED_ELEMENTS: tuple[tuple[str, str, ElementForm], ...] = (
    ("sg", "x / (s * g)", lambda x, s, g, k: x / (s * g)),
    ("r-sg", "x * (1 / (s * g))", lambda x, s, g, k: x * np.fmin(F(1) / (s * g), FLT_MAX)),
    ("rg-s", "x * ((1 / g) / s)", lambda x, s, g, k: x * np.fmin(F(1) / g / s, FLT_MAX)),
    ("g-s", "(x / g) / s", lambda x, s, g, k: x / g / s),
)


@np.errstate(all="ignore")
def _log2(x: Any) -> Any:
    return np.log2(np.asarray(x, F))


# The block scale

Form = tuple[str, str, ScaleForm]


BF16_SIXTH = to_bfloat16(np.array(SIXTH))
SCALES: tuple[Form, ...] = (
    ("division", "(amax / 6) * S_enc by division", lambda a, g, k: a / F(6) * g),
    (
        "double",
        "amax * S_enc / 6 in double, rounded once",
        lambda a, g, k: (a.astype(np.float64) * g / 6).astype(F),
    ),
    ("product-first", "S_enc * (amax * fp32(1/6))", lambda a, g, k: a * SIXTH * g),
    ("scaled-division", "(amax * S_enc) / 6", lambda a, g, k: a * g / F(6)),
    ("scaled-product", "(amax * S_enc) * fp32(1/6)", lambda a, g, k: a * g * SIXTH),
    ("factor-division", "amax * (S_enc / 6)", lambda a, g, k: a * (g / F(6))),
    ("quotient", "amax / (6 / S_enc)", lambda a, g, k: a / (F(6) / g)),
    ("decode", "amax / (6 * (1 / S_enc))", lambda a, g, k: a / (F(6) * (F(1) / g))),
    ("decode-division", "(amax / 6) / (1 / S_enc)", lambda a, g, k: a / F(6) / (F(1) / g)),
    ("decode-product", "(amax * fp32(1/6)) / (1 / S_enc)", lambda a, g, k: a * SIXTH / (F(1) / g)),
    ("factor", "amax * (S_enc * fp32(1/6))", lambda a, g, k: a * (g * SIXTH)),
    ("narrow", "S_enc * (amax / 6 in the input's type)", lambda a, g, k: k.narrow(a / F(6)) * g),
    ("bf16-sixth", "(amax / 6 rounded to bfloat16) * S_enc", lambda a, g, k: to_bfloat16(a / F(6)) * g),
    ("bf16-factor", "amax * bf16(S_enc * fp32(1/6))", lambda a, g, k: a * to_bfloat16(g * SIXTH)),
    *(
        (
            f"sixth-{way}",
            f"amax * (S_enc * 1/6) with the float32 {way} fp32(1/6)",
            partial(lambda sixth, a, g, k: a * (g * sixth), np.nextafter(SIXTH, F(toward))),
        )
        for way, toward in (("below", 0), ("above", 1))
    ),
    ("bf16-reciprocal", "amax * (S_enc * bf16(1/6))", lambda a, g, k: a * (g * BF16_SIXTH)),
    ("upside-down", "(amax / 6) / S_enc", lambda a, g, k: a / F(6) / g),
    ("no-global", "amax / 6 without S_enc", lambda a, g, k: a / F(6)),
    ("no-sixth", "amax * S_enc without 1/6", lambda a, g, k: a * g),
    ("inverse", "1 / (amax * (S_enc * fp32(1/6)))", lambda a, g, k: F(1) / (a * (g * SIXTH))),
    ("6-over", "6 / (amax * S_enc)", lambda a, g, k: F(6) / (a * g)),
    ("decoded", "amax / 6, the decode scale of the block", lambda a, g, k: a * SIXTH),
    *(
        (f"{top:g}", f"amax / {top:g} * S_enc", partial(lambda t, a, g, k: a * (g * (F(1) / t)), F(top)))
        for top in (4.0, 8.0, 7.0, 5.0, 3.0, 12.0, 2.0, 6.5, 7.5)
    ),
)


MX_SCALES: tuple[Form, ...] = (
    ("rceil", "RCEIL: amax * fp32(1/max), rounded up", ar.block_scale_rceil),
    ("rceil-division", "amax / max by division", lambda a, g, k: a / k.element_max),
    ("floor", "FLOOR: the exponent of amax", lambda a, g, k: ar.power_of_two(ar.exponent_field(a), k)),
    ("ceil", "CEIL", lambda a, g, k: ar.power_of_two(ar.exponent_field(a, ar.MANTISSA), k)),
    (
        "even",
        "EVEN",
        lambda a, g, k: ar.power_of_two(ar.exponent_field(a, ar.half_carry(k.element.mantissa_bits)), k),
    ),
    (
        "even-1",
        "EVEN with one mantissa bit",
        lambda a, g, k: ar.power_of_two(ar.exponent_field(a, ar.half_carry(1)), k),
    ),
    ("ocp-rceil", "RCEIL with NaN for infinities", ar.block_scale_ocp_rceil),
    ("ocp-floor", "FLOOR with NaN for infinities", ar.block_scale_floor),
    ("ocp-ceil", "CEIL with NaN for infinities", ar.block_scale_ceil),
    ("ocp-even", "EVEN with NaN for infinities", ar.block_scale_even),
    ("quotient-floor", "amax / max rounded down", lambda a, g, k: apm.exp2(np.floor(_log2(a / k.element_max)))),
    ("quotient-round", "2^round(log2(amax / max))", lambda a, g, k: apm.exp2(np.rint(_log2(a / k.element_max)))),
    (
        "log-floor",
        "2^(floor(log2 amax) - emax) with a rounded log2",
        lambda a, g, k: apm.exp2(np.floor(_log2(a)) - k.element.emax),
    ),
    (
        "log-ceil",
        "2^(ceil(log2 amax) - emax) with a rounded log2",
        lambda a, g, k: apm.exp2(np.ceil(_log2(a)) - k.element.emax),
    ),
    ("log-round", "2^(round(log2 amax) - emax)", lambda a, g, k: apm.exp2(np.rint(_log2(a)) - k.element.emax)),
    (
        "log-rceil",
        "2^ceil(log2(amax / max)) with a rounded log2",
        lambda a, g, k: apm.exp2(np.ceil(_log2(a / k.element_max))),
    ),
    (
        "strict",
        "a scale that is strictly larger than amax / max",
        lambda a, g, k: ar.two_to(np.clip(ar.exponent_field(a / k.element_max) + 1, 0, 254) - 127),
    ),
    (
        "strict-product",
        "a scale that is strictly larger than amax * (1 / max)",
        lambda a, g, k: ar.two_to(np.clip(ar.exponent_field(a * (F(1) / k.element_max)) + 1, 0, 254) - 127),
    ),
    (
        "no-emax",
        "2^floor(log2 amax) without emax",
        lambda a, g, k: ar.two_to(np.clip(ar.exponent_field(a), 0, 254) - 127),
    ),
    ("ceil-no-emax", "amax itself rounded up, without the element's maximum", lambda a, g, k: a),
    (
        "any-mantissa",
        "any nonzero mantissa rounds up, subnormals too",
        lambda a, g, k: apm.up_from_any(a / k.element_max),
    ),
    *(
        (f"{name}{way}", f"amax {said} {words} first", partial(lambda f, n, a, g, k: n(f(a, k)), form, narrow))
        for way, said, form in (
            ("", "/ max", lambda a, k: a / k.element_max),
            ("-product", "* fp32(1/max)", lambda a, k: a * (F(1) / k.element_max)),
        )
        for name, words, narrow in NARROW
    ),
    ("inverse", "the reciprocal of the scale", lambda a, g, k: k.element_max / a),
    *(
        (f"max-{top:g}", f"amax / {top:g}", partial(lambda t, a, g, k: a * (F(1) / t), F(top)))
        for top in (4.0, 6.0, 7.0, 7.5, 8.0, 240.0, 256.0, 416.0, 448.0, 464.0, 480.0, 512.0, 57344.0, 65536.0)
    ),
)


LOWEST = (2.0**-6, 2.0**-9, 2.0**-7, 2.0**-10, 0.125, 1e-4, 1e-5, 1e-8)
CLAMPS: tuple[tuple[str, str, Callable[[Any, Floats], Floats]], ...] = (
    ("", "", lambda low, t: np.maximum(t, low)),
    ("-not-zero", ", unless it is 0", lambda low, t: np.where(t == 0, t, np.maximum(t, low))),
)


def _power(number: float) -> str:
    """Return a number in few digits, or as a power of two."""
    mantissa, exponent = math.frexp(number)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent < 0 else f"{number:.4g}"


made = partial(known, Slot.SCALE)
ROUNDED_TWICE = tuple(
    made(
        f"scale-double-{name}",
        f"the block scale is {text} before its codec (double rounding)",
        scale_value=narrow,
    )
    for name, text, narrow in NARROW
)


def block_scale() -> Iterator[Mistake]:
    """Mistakes in the scale before its codec."""
    for name, text, form in SCALES:
        limited = partial(lambda f, a, g, k: np.fmin(f(a, g, k), FLT_MAX), form)
        yield made(f"scale-{name}", f"the block scale is {text}", nv, block_scale=limited)
    for name, text, form in MX_SCALES:
        yield made(f"mx-{name}", f"the block scale is {text}", mx, block_scale=form)
    yield from _one_level()
    yield from ROUNDED_TWICE
    for low, (name, words, clamped) in itertools.product(LOWEST, CLAMPS):
        yield made(
            f"scale-floor-{low:.3g}{name}",
            f"the block scale is clamped below at {_power(low)}{words}",
            e4m3_scales,
            scale_value=partial(clamped, F(low)),
        )
    for top in (240.0, 256.0, 224.0, 416.0, 447.0, 128.0):
        yield made(
            f"scale-top-{top:g}",
            f"the block scale is clamped above at {top:g}",
            e4m3_scales,
            scale_value=partial(lambda most, t: np.minimum(t, most), F(top)),
        )
    for exponent in (-1, 1):
        yield made(
            f"scale-times-{2.0**exponent:g}",
            f"the block scale is {2.0**exponent:g} times what it should be",
            scale_value=partial(lambda by, t: t * by, F(2.0**exponent)),
        )
    yield from _zero_scales()


def _one_level() -> Iterator[Mistake]:
    """Forms of a scale without a global scale."""
    forms: tuple[Form, ...] = (
        ("division", "amax / 6 by division", lambda a, g, k: a / F(6)),
        ("product", "amax * fp32(1/6)", lambda a, g, k: a * SIXTH),
        ("narrow", "amax / 6 in the input's type", lambda a, g, k: k.narrow(a / F(6))),
        ("4", "amax / 4", lambda a, g, k: a / F(4)),
        ("1", "amax itself", lambda a, g, k: a),
    )
    for name, text, form in forms:
        yield made(
            f"one-level-{name}",
            f"the block scale is {text}",
            both(e4m3_scales, lambda kernel: kernel.spec.global_scale is Granularity.NONE),
            block_scale=form,
        )


def _zero_scales() -> Iterator[Mistake]:
    """Scales that take the place of zero."""
    for name, value in (("1", 1.0), ("1-8", 0.125), ("2^-9", 2.0**-9), ("2^-6", 2.0**-6), ("448", 448.0)):
        yield made(
            f"scale-zero-{name}",
            f"a block scale of exactly 0 becomes {value:g}",
            special=True,
            symptom=True,
            scale_value=partial(lambda to, t: np.where(t == 0, to, t), F(value)),
        )
        yield made(
            f"scale-byte-zero-{name}",
            f"a block scale that rounds to 0 becomes {value:g}",
            e4m3_scales,
            special=True,
            symptom=True,
            scale_byte=of(partial(_zero_byte, value)),
        )


def _zero_byte(value: float, kernel: Kernel) -> Callable[[Codes], Codes]:
    code = kernel.scale_codec.encode(np.array([value], F))[0]
    return lambda byte: np.where(byte == 0, code, byte)
