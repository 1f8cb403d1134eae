"""Mistakes between the scale bytes and the element codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref import arithmetic_peers_mx as apm
from fp4ref.arithmetic import BF16_MAX, FLT_MAX, SIXTH
from fp4ref.conformance.mistakes.fast_factors import FAST
from fp4ref.conformance.mistakes.global_scales import GLOBALS, guarded
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import (
    NARROW,
    ElementForm,
    Mistake,
    Slot,
    cut_bfloat16,
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
from fp4ref.formats import E4M3, E5M2, Codec, F, Floats, Format
from fp4ref.reciprocal import reciprocal_approx

TINY = np.finfo(F).tiny


def limited(factor: Floats) -> Floats:
    """At most FLT_MAX."""
    return np.fmin(factor, FLT_MAX)


def _amax(x: Floats) -> Floats:
    return np.asarray(np.nanmax(np.abs(x), axis=(-2, -1), keepdims=True, initial=0), F)


# (name, what an element becomes, function); S_enc is g, s the decoded scale byte
FACTORS: tuple[tuple[str, str, ElementForm], ...] = (
    ("g-over-s", "x * (S_enc / s) instead of x * (1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * limited(g / s)),
    ("g-times-rs", "x * (S_enc * (1 / s))", lambda x, s, g, k: x * limited(g * (F(1) / s))),
    ("xg-over-s", "(x * S_enc) / s", lambda x, s, g, k: x * g / s),
    ("xg-rs", "(x * S_enc) * (1 / s)", lambda x, s, g, k: x * g * (F(1) / s)),
    ("x-over-s-g", "(x / s) * S_enc", lambda x, s, g, k: x / s * g),
    ("x-rs-g", "(x * (1 / s)) * S_enc", lambda x, s, g, k: x * (F(1) / s) * g),
    ("over-quotient", "x / (s / S_enc)", lambda x, s, g, k: x / (s / g)),
    ("inverse-quotient", "x * (1 / (s / S_enc))", lambda x, s, g, k: x * limited(F(1) / (s / g))),
    ("double", "x * S_enc / s in double, rounded once", lambda x, s, g, k: _exact(x, s, g)),
    ("over-product", "x / (s * (1 / S_enc))", lambda x, s, g, k: x / (s * (F(1) / g))),
    ("decode-over-s", "x * ((1 / (1 / S_enc)) / s)", lambda x, s, g, k: x * limited(F(1) / (F(1) / g) / s)),
    ("over-decode", "(x / (1 / S_enc)) / s", lambda x, s, g, k: x / (F(1) / g) / s),
    ("product", "x * (1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * limited(F(1) / (s * (F(1) / g)))),
    (
        "approx",
        "x * rcp(s * rcp(S_enc)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(reciprocal_approx(s * reciprocal_approx(g))),
    ),
    (
        "approx-outer",
        "x * rcp(s * (1 / S_enc)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(reciprocal_approx(s * (F(1) / g))),
    ),
    (
        "approx-inner",
        "x * (1 / (s * rcp(S_enc))) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(F(1) / (s * reciprocal_approx(g))),
    ),
    (
        "approx-s",
        "x * (S_enc * rcp(s)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(g * reciprocal_approx(s)),
    ),
    ("fast", "fma(x, bf16(S_enc / s), 0)", ar.scaled_te_fast),
    *FAST,
    ("fma", "fma(x, 1 / (s * (1 / S_enc)), 0)", lambda x, s, g, k: ar.fused_with_zero(x, _factor(s, g))),
    ("bf16", "x * bf16(1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * to_bfloat16(np.fmin(_factor(s, g), BF16_MAX))),
    (
        "bf16-overflow",
        "x * bf16(1 / (s * (1 / S_enc))), which overflows to infinity",
        lambda x, s, g, k: x * to_bfloat16(_factor(s, g)),
    ),
    ("bf16-cut", "x * the factor truncated to bfloat16", lambda x, s, g, k: x * cut_bfloat16(_factor(s, g))),
    ("fp16", "x * fp16(1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * to_float16(_factor(s, g))),
    ("bf16-g-over-s", "x * bf16(S_enc / s)", lambda x, s, g, k: x * to_bfloat16(np.fmin(g / s, BF16_MAX))),
    ("fp16-g-over-s", "x * fp16(S_enc / s)", lambda x, s, g, k: x * to_float16(g / s)),
    ("narrow", "x * the factor in the input's type", lambda x, s, g, k: k.narrow(x * k.narrow(_factor(s, g)))),
    ("narrow-xg", "(x * S_enc in the input's type) / s", lambda x, s, g, k: k.narrow(x * g) / s),
    ("no-global", "x / s without S_enc", lambda x, s, g, k: x / s),
    ("no-block", "x * S_enc without the block scale", lambda x, s, g, k: x * g),
    ("multiplied", "x * (s * (1 / S_enc)): multiplied instead of divided", lambda x, s, g, k: x * (s * (F(1) / g))),
    ("g-divided", "x / (s * S_enc): the global scale on the wrong side", lambda x, s, g, k: x / (s * g)),
    ("unscaled", "x itself", lambda x, s, g, k: x),
    ("6-over-amax", "x * (6 / amax) from the block's maximum", lambda x, s, g, k: x * limited(F(6) / _amax(x))),
    ("over-amax-6", "x / (amax / 6) from the block's maximum", lambda x, s, g, k: x / (_amax(x) / F(6))),
    ("over-amax-sixth", "x / (amax * fp32(1/6)) from the block's maximum", lambda x, s, g, k: x / (_amax(x) * SIXTH)),
    ("x-over-amax-6", "(x / amax) * 6 from the block's maximum", lambda x, s, g, k: x / _amax(x) * F(6)),
)


def _exact(x: Floats, s: Floats, g: Floats) -> Floats:
    return (x.astype(np.float64) * g / s).astype(F)


def _factor(s: Floats, g: Floats) -> Floats:
    return limited(np.asarray(F(1) / (s * (F(1) / g))))


def raw_zero(kind: Callable[[Floats, Floats], Any], value: float | None, kernel: Kernel) -> ElementForm:
    """Return the same, with other elements where the scale is zero."""
    scaled = kernel.scaled

    def changed(x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
        other = x if value is None else x * F(value)
        return np.where(kind(x, s), other, scaled(x, s, g, k))

    return changed


def _own_global(form: Any, g: Floats, amax: Floats, k: ar.Constants) -> Floats:
    return np.asarray(guarded(form)(amax, k), F)


UNFIT = (
    ("zero", "elements are 0 where the scale byte is 0", lambda x, s: s == 0, 0.0),
    ("one", "elements are not divided where the scale byte is 0", lambda x, s: s == 0, None),
    ("zero-block", "elements are 0 where the block's maximum is 0", lambda x, s: _amax(x) == 0, 0.0),
)


def factor() -> Iterator[Mistake]:
    """Mistakes in how elements are divided by their scale."""
    stage = Slot.ENCODE
    before = "elements are divided by the scale before it was rounded to its byte"
    yield known(stage, "encode-unrounded", before, working=ar.unrounded)
    yield known(
        stage, "encode-unrounded-limited", f"{before}, at most 448", nv, working=lambda t, s: np.fmin(t, F(448))
    )
    for name, text, scaled in FACTORS:
        yield known(stage, f"encode-{name}", f"elements are {text}", nv, scaled=scaled)
        if not name.startswith(("6-over", "over-amax", "x-over-amax", "unscaled", "no-block")):
            yield known(
                stage,
                f"encode-unrounded-{name}",
                f"elements are {text.split(' instead')[0]}, using s before it was rounded to its byte",
                nv,
                scaled=scaled,
                working=ar.unrounded,
            )
    narrowly = of(lambda kernel: lambda x, s, g, k: k.narrow(kernel.scaled(x, s, g, k)))
    yield known(stage, "encode-result-narrow", "scaled elements are rounded to the input's type", scaled=narrowly)
    for way, words, scaled in DECODED_ELEMENTS:
        yield known(
            stage,
            f"encode-decode-amax-{way}",
            f"elements are {words} with g = amax / 2688, not the reciprocal of the S_enc that the scales are made with",
            nv,
            element_global=lambda g, amax, k: ap.decoding(amax, k),
            scaled=scaled,
        )
    for name, text, form_of_g in GLOBALS:
        yield known(
            stage,
            f"encode-global-{name}",
            f"where elements are divided, {text}",
            nv,
            element_global=partial(_own_global, form_of_g),
        )
    yield known(
        stage,
        "encode-reciprocal",
        "x * (1 / s) instead of x / s",
        lambda kernel: not has_global(kernel),
        scaled=lambda x, s, g, k: x * (F(1) / s),
    )
    yield known(
        stage, "encode-divided", "x / s", lambda kernel: not has_global(kernel), scaled=lambda x, s, g, k: x / s
    )
    yield known(
        stage,
        "encode-approx-reciprocal",
        "x * rcp(s) with the approximate reciprocal",
        lambda kernel: not has_global(kernel),
        scaled=lambda x, s, g, k: x * reciprocal_approx(s),
    )
    yield known(
        stage,
        "encode-undivided",
        "elements are not divided by the scale",
        lambda kernel: not has_global(kernel),
        scaled=lambda x, s, g, k: x,
    )
    yield known(
        stage,
        "encode-times",
        "elements are multiplied by the scale",
        lambda kernel: not has_global(kernel),
        scaled=lambda x, s, g, k: x * s,
    )
    for name, text, form in (
        (
            "max-over-amax",
            "x * (max / amax) from the block's maximum",
            lambda x, s, g, k: x * limited(k.element_max / _amax(x)),
        ),
        (
            "over-amax-max",
            "x / (amax / max) from the block's maximum",
            lambda x, s, g, k: x / (_amax(x) / k.element_max),
        ),
    ):
        yield known(stage, f"encode-{name}", f"elements are {text}", lambda kernel: not has_global(kernel), scaled=form)
    for exponent in (-2, -1, 1, 2):
        yield known(
            stage,
            f"encode-times-{2.0**exponent:g}",
            f"elements are divided by {2.0**exponent:g} times their scale",
            used_scale=partial(lambda by, s: s * by, F(2.0**exponent)),
        )
    yield known(stage, "encode-cast-only", "fma(x, 1 / s, +0)", mx, scaled=ar.scaled_cast_only)
    for name, text, form in (
        ("scale", "the scale 2^-127", lambda x, s, g, k: x / np.where(s < TINY, F(0), s)),
        (
            "reciprocal",
            "the reciprocal of the largest scale, 2^127,",
            lambda x, s, g, k: x * np.where(F(1) / s < TINY, F(0), F(1) / s),
        ),
    ):
        yield known(stage, f"encode-ftz-{name}", f"{text} is flushed to zero", mx, special=True, scaled=form)
    yield known(stage, "encode-byte-0-one", "scale byte 0 divides by 1", mx, special=True, scaled=ap.scaled_or_as_it_is)
    yield known(
        stage, "encode-byte-0-zero", "scale byte 0 makes elements 0", mx, special=True, scaled=apm.scaled_or_zero
    )
    for name, text, kind, value in UNFIT:
        yield known(stage, f"encode-{name}", text, special=True, scaled=of(partial(raw_zero, kind, value)))
    yield known(
        stage,
        "encode-unlimited",
        "the factor is not clamped to FLT_MAX where the scale byte is 0",
        nv,
        special=True,
        scaled=lambda x, s, g, k: x * (F(1) / (s * (F(1) / g))),
    )
    yield known(
        stage,
        "encode-not-finite",
        "elements are 0 where the factor is not finite",
        nv,
        special=True,
        scaled=lambda x, s, g, k: np.where(np.isfinite(F(1) / (s * (F(1) / g))), x * _factor(s, g), x * F(0)),
    )
    for name, text, narrow in NARROW:
        yield known(
            stage, f"element-{name}", f"scaled elements are {text} before their codec (double rounding)", value=narrow
        )
    for wider in (E4M3, E5M2):
        yield known(
            stage,
            f"element-through-{wider.name}",
            f"scaled elements are rounded to {wider.name.upper()} before their codec (double rounding)",
            partial(_other_format, wider),
            value=partial(_through, Codec(format=wider, nan=(0x7F, 0x7F))),
        )
    for step in (0.5, 0.25, 0.125):
        yield known(
            stage,
            f"element-steps-{step:g}",
            f"scaled elements are rounded to multiples of {step:g} before their codec (double rounding)",
            e2m1,
            value=partial(lambda by, y: np.rint(y / by) * by, F(step)),
        )
    yield known(
        stage,
        "element-narrow-input",
        "scaled elements are rounded to bfloat16 through float16",
        value=lambda y: to_bfloat16(to_float16(y)),
    )


def _other_format(form: Format, kernel: Kernel) -> bool:
    return kernel.codec.format is not form


def _through(codec: Codec, y: Floats) -> Floats:
    return codec.decode(codec.encode(y)) * np.where(np.isnan(y), F(np.nan), F(1))
