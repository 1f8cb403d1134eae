"""Mistakes between the maxima and the scale bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref import arithmetic_peers_mx as apm
from fp4ref.arithmetic import FLT_MAX, SIXTH, Constants
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import (
    NARROW,
    ElementForm,
    GlobalForm,
    Mistake,
    ScaleForm,
    Slot,
    both,
    cut_bfloat16,
    e4m3_scales,
    has_global,
    known,
    mx,
    nv,
    of,
    to_bfloat16,
    to_float16,
)
from fp4ref.formats import Codes, F, Floats, Format, Rounding
from fp4ref.reciprocal import reciprocal_approx
from fp4ref.spec import Granularity

MAX = ar.BF16_MAX
E4M3_FNUZ = Format("e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, codes=128)
ROUNDINGS = (
    (Rounding.DOWN, "ties go toward zero"),
    (Rounding.AWAY, "ties go away from zero"),
    (Rounding.TRUNCATE, "truncated"),
    (Rounding.UP, "rounded up"),
    (Rounding.EVEN, "rounded to nearest, ties to even"),
)


# The global scale, in the convention that it encodes

PRODUCTS = (
    (448.0, "448"),
    (6.0, "6"),
    (1792.0, "1792 = 448 * 4"),
    (1536.0, "1536 = 256 * 6"),
    (1024.0, "1024 = 256 * 4"),
    (3072.0, "3072 = 512 * 6"),
    (2784.0, "2784 = 464 * 6"),
    (2880.0, "2880 = 480 * 6"),
    (1440.0, "1440 = 240 * 6"),
    (960.0, "960 = 240 * 4"),
    (1344.0, "1344 = 448 * 3"),
    (2240.0, "2240 = 448 * 5"),
    (3584.0, "3584 = 448 * 8"),
    (5376.0, "5376 = 448 * 12"),
    (344064.0, "344064 = 57344 * 6"),
    (57344.0, "57344"),
    (2560.0, "2560"),
    (2048.0, "2048"),
    (1.0, "1"),
)


def _top(k: Constants) -> np.float32:
    return F(k.scale_max * k.element_max)


def guarded(form: GlobalForm) -> GlobalForm:
    """At most FLT_MAX; 1 where amax or the result is 0. Rules: GLB-2, GLB-3."""

    def global_scale(amax: Floats, k: Constants) -> Floats:
        g = np.fmin(np.asarray(form(amax, k), F), FLT_MAX)
        return np.where((amax == 0) | (g == 0), F(1), g)

    return global_scale


def power_near(rounding: Callable[[Floats], Floats]) -> GlobalForm:
    """S_enc rounded to a power of two."""
    return lambda a, k: np.exp2(rounding(np.log2(_top(k) / a)))


GLOBALS: tuple[tuple[str, str, GlobalForm], ...] = (
    ("reciprocal", "S_enc is (1 / amax) * 2688 instead of 2688 / amax", lambda a, k: (F(1) / a) * _top(k)),
    ("448-6", "S_enc is (448 / amax) * 6", lambda a, k: k.scale_max / a * k.element_max),
    ("6-448", "S_enc is (6 / amax) * 448", lambda a, k: k.element_max / a * k.scale_max),
    ("448-over", "S_enc is 448 / (amax / 6)", lambda a, k: k.scale_max / (a / k.element_max)),
    ("448-over-product", "S_enc is 448 / (amax * fp32(1/6))", lambda a, k: k.scale_max / (a * SIXTH)),
    ("6-over", "S_enc is 6 / (amax / 448)", lambda a, k: k.element_max / (a / k.scale_max)),
    ("inverse", "S_enc is 1 / (amax / 2688)", lambda a, k: F(1) / (a / _top(k))),
    ("inverse-product", "S_enc is 1 / (amax * fp32(1/2688))", lambda a, k: F(1) / (a * (F(1) / _top(k)))),
    ("approx", "S_enc is made with an approximate reciprocal", lambda a, k: _top(k) * reciprocal_approx(a)),
    ("bf16", "S_enc is rounded to bfloat16", lambda a, k: to_bfloat16(_top(k) / a)),
    ("bf16-cut", "S_enc is truncated to bfloat16", lambda a, k: cut_bfloat16(_top(k) / a)),
    ("fp16", "S_enc is rounded to float16", lambda a, k: to_float16(_top(k) / a)),
    ("narrow", "S_enc is computed in the input's type", lambda a, k: k.narrow(k.narrow(F(1) / a) * _top(k))),
    ("upside-down", "the global scale is amax / 2688 where 2688 / amax is needed", lambda a, k: a / _top(k)),
    ("amax", "the global scale is amax itself", lambda a, k: a),
    ("one", "the global scale is not applied (S_enc = 1)", lambda a, k: np.ones_like(a)),
    ("floor2", "S_enc is rounded down to a power of two", power_near(np.floor)),
    ("ceil2", "S_enc is rounded up to a power of two", power_near(np.ceil)),
    ("round2", "S_enc is rounded to the nearest power of two", power_near(np.rint)),
)
UNGUARDED: tuple[tuple[str, str, GlobalForm], ...] = (
    ("plain", "S_enc is 2688 / amax without a limit", lambda a, k: _top(k) / a),
    (
        "or-one",
        "S_enc has no upper limit, and is 0 where amax is infinite",
        lambda a, k: np.where(a == 0, F(1), _top(k) / a),
    ),
    ("unlimited", "S_enc has no upper limit", lambda a, k: np.where(_vanishes(a, k), F(1), _top(k) / a)),
    ("finite", "S_enc is FLT_MAX for a zero tensor", lambda a, k: np.fmin(_top(k) / a, FLT_MAX)),
    ("zero", "S_enc is 0 for a zero tensor", lambda a, k: np.where(a == 0, F(0), np.fmin(_top(k) / a, FLT_MAX))),
    ("top", "S_enc is 2688 for a zero tensor", lambda a, k: np.where(a == 0, _top(k), np.fmin(_top(k) / a, FLT_MAX))),
    ("inf-zero", "S_enc is 0 for an infinite amax", ap.global_scale_te_rht),
    ("inf-one", "S_enc is 1 where it is not finite", lambda a, k: _finite_or_one(_top(k) / a)),
)


def _vanishes(a: Floats, k: Constants) -> Any:
    """Return where S_enc is 1 for want of another number: amax is 0, or so large that 2688 / amax is 0."""
    return (a == 0) | (_top(k) / a == 0)


def _finite_or_one(g: Floats) -> Floats:
    return np.where(np.isfinite(g) & (g != 0), g, F(1))


def global_scale() -> Iterator[Mistake]:
    """Mistakes in S_enc."""
    stage = Slot.GLOBAL
    for value, text in PRODUCTS:
        yield known(
            stage,
            f"global-{value:g}",
            f"S_enc is made of {text} instead of 2688 = 448 * 6",
            nv,
            global_scale=guarded(partial(lambda top, a, k: top / a, F(value))),
        )
    yield known(
        stage,
        "global-2688",
        "S_enc is made of 2688 = 448 * 6 instead of the specification's own constant",
        nv,
        global_scale=guarded(lambda a, k: F(2688) / a),
    )
    for name, text, form in GLOBALS:
        yield known(stage, f"global-{name}", text, nv, global_scale=guarded(form))
    for name, text, narrow in NARROW:
        yield known(
            stage,
            f"global-{name}-last",
            f"S_enc is {text}, with no limit after that",
            has_global,
            global_scale=of(partial(_narrowed, narrow)),
        )
    for name, text, form in UNGUARDED:
        yield known(stage, f"global-{name}", text, nv, special=True, global_scale=form)
    yield known(
        stage,
        "global-or-one-scale",
        "neither S_enc nor the block scale has an upper limit",
        nv,
        special=True,
        global_scale=lambda a, k: np.where(a == 0, F(1), _top(k) / a),
        block_scale=lambda a, g, k: a * (g * SIXTH),
    )
    for name, text, scale in DECODED_SCALES:
        for way, words, scaled in DECODED_ELEMENTS:
            yield known(
                stage,
                f"decode-{name}-{way}",
                f"the global scale is kept as g = amax / 2688: scale {text}, elements {words}",
                nv,
                global_scale=ap.decoding,
                block_scale=scale,
                scaled=scaled,
            )


def _narrowed(narrow: Callable[[Floats], Floats], kernel: Kernel) -> GlobalForm:
    return lambda amax, k: narrow(np.asarray(kernel.global_scale(amax, k), F))


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


def _two(exponent: Floats) -> Floats:
    return apm.exp2(exponent)


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
    ("quotient-floor", "amax / max rounded down", lambda a, g, k: _two(np.floor(_log2(a / k.element_max)))),
    ("quotient-round", "2^round(log2(amax / max))", lambda a, g, k: _two(np.rint(_log2(a / k.element_max)))),
    (
        "log-floor",
        "2^(floor(log2 amax) - emax) with a rounded log2",
        lambda a, g, k: _two(np.floor(_log2(a)) - k.element.emax),
    ),
    (
        "log-ceil",
        "2^(ceil(log2 amax) - emax) with a rounded log2",
        lambda a, g, k: _two(np.ceil(_log2(a)) - k.element.emax),
    ),
    ("log-round", "2^(round(log2 amax) - emax)", lambda a, g, k: _two(np.rint(_log2(a)) - k.element.emax)),
    (
        "log-rceil",
        "2^ceil(log2(amax / max)) with a rounded log2",
        lambda a, g, k: _two(np.ceil(_log2(a / k.element_max))),
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
    ("bf16", "amax / max rounded to bfloat16 first", lambda a, g, k: to_bfloat16(a / k.element_max)),
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


def block_scale() -> Iterator[Mistake]:
    """Mistakes in the scale before its codec."""
    stage = Slot.SCALE
    for name, text, form in SCALES:
        limited = partial(lambda f, a, g, k: np.fmin(f(a, g, k), FLT_MAX), form)
        yield known(stage, f"scale-{name}", f"the block scale is {text}", nv, block_scale=limited)
    for name, text, form in MX_SCALES:
        yield known(stage, f"mx-{name}", f"the block scale is {text}", mx, block_scale=form)
    yield from _one_level()
    for name, text, narrow in NARROW:
        yield known(
            stage,
            f"scale-double-{name}",
            f"the block scale is {text} before its codec (double rounding)",
            scale_value=narrow,
        )
    for low, (name, words, clamped) in itertools.product(LOWEST, CLAMPS):
        yield known(
            stage,
            f"scale-floor-{low:.3g}{name}",
            f"the block scale is clamped below at {_power(low)}{words}",
            e4m3_scales,
            scale_value=partial(clamped, F(low)),
        )
    for top in (240.0, 256.0, 224.0, 416.0, 447.0, 128.0):
        yield known(
            stage,
            f"scale-top-{top:g}",
            f"the block scale is clamped above at {top:g}",
            e4m3_scales,
            scale_value=partial(lambda most, t: np.minimum(t, most), F(top)),
        )
    for exponent in (-1, 1):
        yield known(
            stage,
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
        yield known(
            Slot.SCALE,
            f"one-level-{name}",
            f"the block scale is {text}",
            both(e4m3_scales, lambda kernel: kernel.spec.global_scale is Granularity.NONE),
            block_scale=form,
        )


def _zero_scales() -> Iterator[Mistake]:
    """Scales that take the place of zero."""
    for name, value in (("1", 1.0), ("1-8", 0.125), ("2^-9", 2.0**-9), ("2^-6", 2.0**-6), ("448", 448.0)):
        yield known(
            Slot.SCALE,
            f"scale-zero-{name}",
            f"a block scale of exactly 0 becomes {value:g}",
            special=True,
            symptom=True,
            scale_value=partial(lambda to, t: np.where(t == 0, to, t), F(value)),
        )
        yield known(
            Slot.SCALE,
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
