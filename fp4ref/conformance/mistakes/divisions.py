"""Mistakes between the scale bytes and the element codec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref import arithmetic_peers_mx as apm
from fp4ref.conformance.mistakes.factors import FACTORS, Factor, block_amax, factor, limited
from fp4ref.conformance.mistakes.global_scales import GLOBALS, guarded
from fp4ref.conformance.mistakes.kernel import Kernel, Map, flushed
from fp4ref.conformance.mistakes.record import (
    NARROW,
    ElementForm,
    Mistake,
    Slot,
    collect,
    e2m1,
    has_global,
    known,
    mx,
    nv,
    of,
    to_bfloat16,
    to_float16,
)
from fp4ref.conformance.mistakes.scales import DECODED_ELEMENTS
from fp4ref.formats import E4M3, E5M2, Codec, F, Floats
from fp4ref.reciprocal import reciprocal_approx

TINY = np.finfo(F).tiny


def raw_zero(kind: Callable[[Floats, Floats], Any], value: float | None, kernel: Kernel) -> ElementForm:
    """Return the same, with other elements where the scale is zero."""
    scaled = kernel.scaled

    def changed(x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
        other = x if value is None else x * F(value)
        return np.where(kind(x, s), other, scaled(x, s, g, k))

    return changed


def _of_changed(change: Map, scaled: ElementForm, x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
    return np.asarray(scaled(change(x), s, g, k), F)


def _where_finite(changed: ElementForm, own: ElementForm, x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
    made = np.asarray(changed(x, s, g, k), F)
    return np.where(np.isfinite(made), made, np.asarray(own(x, s, g, k), F))


def _zeros_alone(scaled: ElementForm, x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
    largest = np.fmax.reduce(np.abs(x), axis=(2, 3), keepdims=True, initial=F(0))
    return np.where(largest == 0, F(0), np.asarray(scaled(x, s, g, k), F))


UNFIT = (
    ("zero", "elements are 0 where the scale byte is 0", lambda x, s: s == 0, 0.0),
    ("one", "elements are not divided where the scale byte is 0", lambda x, s: s == 0, None),
    ("zero-block", "elements are 0 where the block's maximum is 0", lambda x, s: block_amax(x) == 0, 0.0),
)


def _through(codec: Codec, y: Floats) -> Floats:
    return codec.decode(codec.encode(y)) * np.where(np.isnan(y), F(np.nan), F(1))


def _one_level(kernel: Kernel) -> bool:
    return not has_global(kernel)


encode = partial(known, Slot.ENCODE)
BEFORE = "elements are divided by the scale before it was rounded to its byte"

UNROUNDED = (
    encode("encode-unrounded", BEFORE, working=ar.unrounded),
    encode("encode-unrounded-limited", f"{BEFORE}, at most 448", nv, working=lambda t, s: np.fmin(t, F(448))),
)


def _with_factor(row: Factor) -> Iterator[Mistake]:
    """Yield a factor made of the decoded byte and, where it takes the scale, of the scale before that."""
    name, text, scaled, uses_scale, instead = row
    said = f"elements are {text} instead of {instead}" if instead else f"elements are {text}"
    yield encode(f"encode-{name}", said, nv, scaled=scaled)
    if uses_scale:
        text = f"elements are {text}, using s before it was rounded to its byte"
        yield encode(f"encode-unrounded-{name}", text, nv, scaled=scaled, working=ar.unrounded)


OTHER_GLOBALS = (
    *(
        encode(
            f"encode-decode-amax-{way}",
            f"elements are {words} with g = amax / 2688, not the reciprocal of the S_enc that the scales are made with",
            nv,
            element_global=lambda g, amax, k: ap.decoding(amax, k),
            scaled=scaled,
        )
        for way, words, scaled in DECODED_ELEMENTS
    ),
    *(
        encode(
            f"encode-global-{name}",
            f"where elements are divided, {text}",
            nv,
            element_global=partial(lambda form, g, amax, k: np.asarray(guarded(form)(amax, k), F), form),
        )
        for name, text, form in GLOBALS
    ),
)

OF_SPECIAL = (
    encode(
        "encode-flush-inputs",
        "subnormal elements are flushed to zeros of their sign when they are scaled; maxima see them",
        has_global,  # without one, the scale of a subnormal maximum is that of 0
        special=True,
        breaks=("NUM-5",),
        scaled=of(lambda kernel: partial(_of_changed, flushed, kernel.scaled)),
    ),
    encode(
        "encode-zero-block-positive",
        "all codes of a block whose maximum is 0 are 0: -0 loses its sign there, and NaN its code",
        special=True,
        scaled=of(lambda kernel: partial(_zeros_alone, kernel.scaled)),
    ),
)

# Without a global scale: (name, text, function)
ONE_LEVEL: tuple[tuple[str, str, ElementForm], ...] = (
    ("reciprocal", "x * (1 / s) instead of x / s", lambda x, s, g, k: x * (F(1) / s)),
    ("divided", "x / s", lambda x, s, g, k: x / s),
    (
        "approx-reciprocal",
        "x * rcp(s) with the approximate reciprocal",
        lambda x, s, g, k: x * reciprocal_approx(s),
    ),
    ("undivided", "elements are not divided by the scale", lambda x, s, g, k: x),
    ("times", "elements are multiplied by the scale", lambda x, s, g, k: x * s),
    (
        "max-over-amax",
        "elements are x * (max / amax) from the block's maximum",
        lambda x, s, g, k: x * limited(k.element_max / block_amax(x)),
    ),
    (
        "over-amax-max",
        "elements are x / (amax / max) from the block's maximum",
        lambda x, s, g, k: x / (block_amax(x) / k.element_max),
    ),
)

TIMES = tuple(
    encode(
        f"encode-times-{by:g}",
        f"elements are divided by {by:g} times their scale",
        used_scale=partial(lambda by, s: s * by, F(by)),
    )
    for by in (0.25, 0.5, 2.0, 4.0)
)

POWERS_OF_TWO = (
    encode("encode-cast-only", "fma(x, 1 / s, +0)", mx, scaled=ar.scaled_cast_only),
    encode(
        "encode-ftz-scale",
        "the scale 2^-127 is flushed to zero",
        mx,
        special=True,
        scaled=lambda x, s, g, k: x / np.where(s < TINY, F(0), s),
    ),
    encode(
        "encode-ftz-reciprocal",
        "the reciprocal of the largest scale, 2^127, is flushed to zero",
        mx,
        special=True,
        scaled=lambda x, s, g, k: x * np.where(F(1) / s < TINY, F(0), F(1) / s),
    ),
    encode("encode-byte-0-one", "scale byte 0 divides by 1", mx, special=True, scaled=ap.scaled_or_as_it_is),
    encode("encode-byte-0-zero", "scale byte 0 makes elements 0", mx, special=True, scaled=apm.scaled_or_zero),
)

LIMITS = (
    encode(
        "encode-finite-only",
        "where that is not finite, elements are scaled as the specification says",
        special=True,
        scaled=of(lambda kernel: partial(_where_finite, kernel.scaled, kernel.spec.arithmetic.scaled)),
    ),
    *(
        encode(f"encode-{name}", text, special=True, scaled=of(partial(raw_zero, kind, value)))
        for name, text, kind, value in UNFIT
    ),
    encode(
        "encode-unlimited",
        "the factor is not clamped to FLT_MAX where the scale byte is 0",
        nv,
        special=True,
        scaled=lambda x, s, g, k: x * (F(1) / (s * (F(1) / g))),
    ),
    encode(
        "encode-not-finite",
        "elements are 0 where the factor is not finite",
        nv,
        special=True,
        scaled=lambda x, s, g, k: np.where(np.isfinite(F(1) / (s * (F(1) / g))), x * factor(s, g), x * F(0)),
    ),
)

ROUNDED_TWICE = (
    *(
        encode(f"element-{name}", f"scaled elements are {text} before their codec (double rounding)", value=narrow)
        for name, text, narrow in NARROW
    ),
    *(
        encode(
            f"element-through-{wider.name}",
            f"scaled elements are rounded to {wider.name.upper()} before their codec (double rounding)",
            partial(lambda form, kernel: kernel.codec.format is not form, wider),
            value=partial(_through, Codec(format=wider, nan=(0x7F, 0x7F))),
        )
        for wider in (E4M3, E5M2)
    ),
    *(
        encode(
            f"element-steps-{step:g}",
            f"scaled elements are rounded to multiples of {step:g} before their codec (double rounding)",
            e2m1,
            value=partial(lambda by, y: np.rint(y / by) * by, F(step)),
        )
        for step in (0.5, 0.25, 0.125)
    ),
    encode(
        "element-narrow-input",
        "scaled elements are rounded to bfloat16 through float16",
        value=lambda y: to_bfloat16(to_float16(y)),
    ),
)

DIVISIONS = collect(
    UNROUNDED,
    itertools.chain.from_iterable(map(_with_factor, FACTORS)),
    [
        encode(
            "encode-result-narrow",
            "scaled elements are rounded to the input's type",
            breaks=("BLK-5",),
            scaled=of(lambda kernel: lambda x, s, g, k: k.narrow(kernel.scaled(x, s, g, k))),
        )
    ],
    OTHER_GLOBALS,
    OF_SPECIAL,
    (encode(f"encode-{name}", text, _one_level, scaled=scaled) for name, text, scaled in ONE_LEVEL),
    TIMES,
    POWERS_OF_TWO,
    LIMITS,
    ROUNDED_TWICE,
)
