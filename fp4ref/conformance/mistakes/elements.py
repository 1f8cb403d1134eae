"""Mistakes between the scale bytes and the element codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref.arithmetic import BF16_MAX, FLT_MAX, SIXTH
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import (
    NARROW,
    ElementForm,
    Mistake,
    Stage,
    cut_bfloat16,
    e2m1,
    eight_bit,
    has_global,
    known,
    mx,
    nv,
    of,
    other_than,
    stochastic,
    to_bfloat16,
    to_float16,
)
from fp4ref.conformance.mistakes.scales import E4M3_FNUZ, ROUNDINGS
from fp4ref.formats import E4M3, E5M2, Codec, Codes, F, Floats, Format, Rounding, Sign, grid
from fp4ref.reciprocal import reciprocal_approx

TINY = np.finfo(F).tiny
E1M2 = Format("e1m2", exponent_bits=1, mantissa_bits=2, bias=1, codes=8)
E3M0 = Format("e3m0", exponent_bits=3, mantissa_bits=0, bias=3, codes=8)


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
    ("fma", "fma(x, 1 / (s * (1 / S_enc)), 0)", lambda x, s, g, k: ar.fused_with_zero(x, _factor(s, g))),
    ("bf16", "x * bf16(1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * to_bfloat16(np.fmin(_factor(s, g), BF16_MAX))),
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


def _factor(s: Floats, g: Floats) -> Floats:
    return limited(np.asarray(F(1) / (s * (F(1) / g))))


def raw_zero(kind: Callable[[Floats, Floats], Any], value: float | None, kernel: Kernel) -> ElementForm:
    """The same, with other elements where the scale is zero."""
    scaled = kernel.scaled

    def changed(x: Floats, s: Floats, g: Floats, k: ar.Constants) -> Floats:
        other = x if value is None else x * F(value)
        return np.where(kind(x, s), other, scaled(x, s, g, k))

    return changed


UNFIT = (
    ("zero", "elements are 0 where the scale byte is 0", lambda x, s: s == 0, 0.0),
    ("one", "elements are not divided where the scale byte is 0", lambda x, s: s == 0, None),
    ("zero-block", "elements are 0 where the block's maximum is 0", lambda x, s: _amax(x) == 0, 0.0),
)


def factor() -> Iterator[Mistake]:
    """Mistakes in how elements are divided by their scale."""
    stage = Stage.ENCODE
    for name, text, scaled in FACTORS:
        yield known(stage, f"encode-{name}", f"elements are {text}", nv, scaled=scaled)
        if not name.startswith(("6-over", "over-amax", "x-over-amax", "unscaled", "no-block")):
            yield known(
                stage,
                f"encode-unrounded-{name}",
                f"elements are {text.split(' instead')[0]} with s before it was rounded to its byte",
                nv,
                scaled=scaled,
                working=ar.unrounded,
            )
    yield known(
        stage,
        "encode-unrounded",
        "elements are divided by the scale before it was rounded to its byte",
        lambda kernel: not nv(kernel),
        working=ar.unrounded,
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
    yield known(
        stage,
        "encode-ftz-scale",
        "the scale 2^-127 is flushed to zero",
        mx,
        special=True,
        scaled=lambda x, s, g, k: x / np.where(s < TINY, F(0), s),
    )
    yield known(
        stage, "encode-byte-0-one", "scale byte 0 divides by 1", mx, special=True, scaled=ap.scaled_kernel_mxfp4
    )
    yield known(
        stage, "encode-byte-0-zero", "scale byte 0 makes elements 0", mx, special=True, scaled=ap.scaled_or_zero
    )
    for name, text, kind, value in UNFIT:
        yield known(stage, f"encode-{name}", text, special=True, scaled=of(partial(raw_zero, kind, value)))
    yield known(
        stage,
        "encode-unlimited",
        "the factor is not held at FLT_MAX where the scale byte is 0",
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


# The element codec


def _codec(kernel: Kernel, **changes: Any) -> Codec:
    old = kernel.codec
    fields = {
        "format": old.format,
        "rounding": old.rounding,
        "sign": old.sign,
        "nan": old.nan,
        "overflow": old.overflow,
    }
    return Codec(**{**fields, **changes})


def signed_ties(up: bool, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Ties toward plus (or minus) infinity."""
    toward = _with(codec, rounding=Rounding.AWAY).encode(y)
    back = _with(codec, rounding=Rounding.DOWN).encode(y)
    return np.where((y > 0) == up, toward, back)


def odd_ties(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Ties to the odd code."""
    even = _with(codec, rounding=Rounding.EVEN).encode(y)
    away, down = (_with(codec, rounding=r).encode(y) for r in (Rounding.AWAY, Rounding.DOWN))
    return np.where(away != down, np.where(even == away, down, away), even)


def directed(up: bool, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Toward plus (or minus) infinity."""
    larger = _with(codec, rounding=Rounding.UP).encode(y)
    smaller = _with(codec, rounding=Rounding.TRUNCATE).encode(y)
    return np.where((y > 0) == up, larger, smaller)


def _with(codec: Codec, **changes: Any) -> Codec:
    return Codec(
        **{
            "format": codec.format,
            "rounding": codec.rounding,
            "sign": codec.sign,
            "nan": codec.nan,
            "overflow": codec.overflow,
            **changes,
        }
    )


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


def codes() -> Iterator[Mistake]:
    """Mistakes in how a scaled element becomes a code."""
    stage = Stage.CODE
    nearest = lambda kernel: not stochastic(kernel)  # noqa: E731
    for rounding, text in ROUNDINGS:
        yield known(
            stage,
            f"element-{rounding}",
            f"{text} when elements are rounded" if "ties go" in text else f"elements are {text}",
            other_than("codec", "rounding", rounding),
            codec=of(partial(_codec, rounding=rounding)),
        )
    yield known(
        stage,
        "element-ties-up",
        "ties go toward +infinity when elements are rounded",
        nearest,
        round=partial(signed_ties, True),
    )
    yield known(
        stage,
        "element-ties-minus",
        "ties go toward -infinity when elements are rounded",
        nearest,
        round=partial(signed_ties, False),
    )
    yield known(stage, "element-ties-odd", "ties go to the odd code when elements are rounded", nearest, round=odd_ties)
    yield known(stage, "element-plus", "elements are rounded toward +infinity", nearest, round=partial(directed, True))
    yield known(
        stage, "element-floor", "elements are rounded toward -infinity", nearest, round=partial(directed, False)
    )
    for code in range(8):
        if code != 7:
            yield known(
                stage,
                f"element-overflow-{code}",
                f"magnitudes past 6 become code {code} instead of saturating",
                e2m1,
                codec=of(partial(_codec, overflow=code)),
            )
    yield known(
        stage,
        "element-overflow-8",
        "magnitudes past 6 become code 8 (-0) instead of saturating",
        e2m1,
        codec=of(partial(_codec, overflow=8)),
    )
    yield known(
        stage,
        "element-clamp-4",
        "elements are held at 4 instead of 6",
        e2m1,
        value=lambda y: np.clip(y, F(-4), F(4)),
    )
    yield known(
        stage,
        "element-overflow-nan",
        "magnitudes past the largest become NaN (0x7F) instead of saturating",
        eight_bit,
        codec=of(partial(_codec, overflow=0x7F)),
    )
    yield known(
        stage,
        "element-overflow-inf",
        "magnitudes past the largest become infinity (0x7C) instead of saturating",
        lambda k: k.codec.format is E5M2,
        codec=of(partial(_codec, overflow=0x7C)),
    )
    for top in (240.0, 224.0, 256.0, 416.0):
        yield known(
            stage,
            f"element-clamp-{top:g}",
            f"elements are held at {top:g}",
            eight_bit,
            value=partial(lambda t, y: np.clip(y, -t, t), F(top)),
        )
    yield known(stage, "element-flush", "subnormal elements are flushed to zero", code=of(_flush_codes))
    yield known(stage, "element-flush-up", "subnormal elements become the smallest normal", code=of(_lift_codes))
    yield known(
        stage,
        "element-e5m2",
        "elements are E5M2 instead of E4M3",
        lambda k: k.codec.format is E4M3,
        codec=Codec(format=E5M2, nan=(0x7F, 0x7F)),
    )
    yield known(
        stage,
        "element-e4m3",
        "elements are E4M3 instead of E5M2",
        lambda k: k.codec.format is E5M2,
        codec=Codec(format=E4M3, nan=(0x7F, 0x7F)),
    )
    yield known(
        stage,
        "element-fnuz",
        "elements are E4M3FNUZ (bias 8) instead of E4M3",
        lambda k: k.codec.format is E4M3,
        codec=Codec(format=E4M3_FNUZ, nan=(0x80, 0x80)),
    )
    yield known(stage, "element-e1m2", "elements are E1M2 instead of E2M1", e2m1, codec=Codec(format=E1M2, nan=(7, 7)))
    yield known(stage, "element-e3m0", "elements are E3M0 instead of E2M1", e2m1, codec=Codec(format=E3M0, nan=(7, 7)))
    yield known(
        stage,
        "element-int4",
        "elements are rounded to integers, INT4 with a sign bit",
        e2m1,
        round=partial(integer, False),
    )
    yield known(
        stage,
        "element-int4-twos",
        "elements are rounded to integers, INT4 in two's complement",
        e2m1,
        round=partial(integer, True),
    )
    for name, text, values in TABLES:
        yield known(stage, f"element-table-{name}", text, e2m1, round=partial(table, values))
    yield from _signs()
    yield from _nans()
    yield from _random()


def _flush_codes(kernel: Kernel) -> Callable[[Codes], Codes]:
    form = kernel.codec.format
    first = 1 << form.mantissa_bits
    return lambda code: np.where(code & (form.sign_bit - 1) < first, code & form.sign_bit, code).astype(np.uint8)


def _lift_codes(kernel: Kernel) -> Callable[[Codes], Codes]:
    form = kernel.codec.format
    first, low = 1 << form.mantissa_bits, form.sign_bit - 1
    return lambda code: np.where((code & low != 0) & (code & low < first), code & form.sign_bit | first, code).astype(
        np.uint8
    )


def _signs() -> Iterator[Mistake]:
    stage = Stage.SIGN
    for sign, text in (
        (Sign.NEGATIVE, "-0 in the input becomes +0 (the sign is x < 0)"),
        (Sign.NONZERO, "the sign is dropped where the code is 0"),
        (Sign.NOT_POSITIVE, "zeros of either sign become -0 (the sign is x <= 0)"),
        (Sign.BIT, "-0 keeps its sign"),
    ):
        yield known(
            stage,
            f"sign-{sign}",
            text,
            other_than("codec", "sign", sign),
            special=True,
            codec=of(partial(_codec, sign=sign)),
        )
    yield known(
        stage,
        "sign-lost",
        "elements lose their sign",
        code=of(lambda kernel: lambda code: code & np.uint8(_low(kernel))),
    )
    yield known(
        stage,
        "sign-flipped",
        "elements have the opposite sign",
        code=of(lambda kernel: lambda code: code ^ np.uint8(kernel.codec.format.sign_bit)),
    )
    yield known(stage, "sign-complement", "negative elements are in two's complement", code=of(_complement))
    yield known(stage, "sign-low", "the sign is in the lowest bit of a code", code=of(_low_sign))


def _low(kernel: Kernel) -> int:
    return kernel.codec.format.sign_bit - 1


def _complement(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, mask = kernel.codec.format.sign_bit, 2 * kernel.codec.format.sign_bit - 1
    return lambda code: np.where(code & sign, -(code & (sign - 1)).astype(np.int16) & mask, code).astype(np.uint8)


def _low_sign(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, width = kernel.codec.format.sign_bit, kernel.codec.format.bits
    return lambda code: ((code & (sign - 1)).astype(np.uint16) << 1 | code >> (width - 1)).astype(np.uint8)


def _nans() -> Iterator[Mistake]:
    for code in range(16):
        yield known(
            Stage.SIGN,
            f"nan-{code}",
            f"NaN becomes code {code}",
            e2m1,
            special=True,
            codec=of(partial(_codec, nan=(code, code))),
        )
        if code < 8:
            yield known(
                Stage.SIGN,
                f"nan-{code}-signed",
                f"NaN becomes code {code} or {code + 8}, with its sign",
                e2m1,
                special=True,
                codec=of(partial(_codec, nan=(code, code | 8))),
            )
    for code in (0x00, 0x7E, 0x80, 0xFF, 0x7F):
        yield known(
            Stage.SIGN,
            f"nan-{code:02x}",
            f"NaN becomes code {code:#04x}",
            eight_bit,
            special=True,
            codec=of(partial(_codec, nan=(code, code))),
        )
    yield known(
        Stage.SIGN,
        "nan-signed",
        "NaN keeps its sign",
        eight_bit,
        special=True,
        codec=of(partial(_codec, nan=(0x7F, 0xFF))),
    )


# Codes that are not written


def missing() -> Iterator[Mistake]:
    """Codes that stay zero, and bytes that are written to the wrong end of a buffer."""
    ways: tuple[tuple[str, str, Callable[[Codes], Codes]], ...] = (
        *(
            (
                f"columns-{size}",
                f"elements past the last multiple of {size} columns",
                partial(_cleared, 1, size),
            )
            for size in (2, 4, 8, 16, 32, 64, 128)
        ),
        *(
            (f"rows-{size}", f"elements of rows past the last multiple of {size}", partial(_cleared, size, 1))
            for size in (2, 4, 8, 16, 32, 64, 128)
        ),
        ("last-element", "the last element", partial(_last_codes, 1)),
        ("last-byte", "the last byte of data", lambda codes: _last_codes(2 - codes.shape[1] % 2, codes)),
        ("last-column", "the last column of elements", lambda codes: _blank(codes, (slice(None), slice(-1, None)))),
        ("last-row", "the last row of elements", lambda codes: _blank(codes, (slice(-1, None),))),
        ("first-row", "the first row of elements", lambda codes: _blank(codes, (slice(0, 1),))),
    )
    for name, text, change in ways:
        verb = "is" if text.startswith("the ") else "are"
        yield known(
            Stage.PACKING, f"unwritten-codes-{name}", f"{text} {verb} not written (0)", codes=change, whole=True
        )
    for power in (15, 16, 17):
        yield known(
            Stage.PACKING,
            f"data-wrap-{power}",
            f"offsets of data wrap at {1 << power} bytes ({power}-bit index), the rest is not written",
            codes=of(partial(_wrapping, 1 << power)),
            whole=True,
        )


def _blank(codes: Codes, where: tuple[slice, ...]) -> Codes:
    codes = codes.copy()
    codes[where] = 0
    return codes


def _cleared(rows: int, columns: int, codes: Codes) -> Codes:
    codes = _blank(codes, (slice(codes.shape[0] // rows * rows, None),))
    return _blank(codes, (slice(None), slice(codes.shape[1] // columns * columns, None)))


def _last_codes(count: int, codes: Codes) -> Codes:
    flat = codes.reshape(-1).copy()
    flat[max(flat.size - count, 0) :] = 0
    return flat.reshape(codes.shape)


def _wrapping(size: int, kernel: Kernel) -> Callable[[Codes], Codes]:
    return partial(_wrapped, size * 8 // kernel.codec.format.bits)


def _wrapped(limit: int, codes: Codes) -> Codes:
    flat, kept = codes.reshape(-1), np.zeros(codes.size, np.uint8)
    for start in range(0, flat.size, limit):
        piece = flat[start : start + limit]
        kept[: piece.size] = piece
    return kept.reshape(codes.shape)


# Stochastic rounding


def added(drawn: Callable[[Any], Any], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Stochastic rounding with other bits, 0 to 256."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y).astype(np.float64)
    lower = np.searchsorted(values, magnitude, side="right") - 1
    step = np.diff(values)[np.clip(lower, 0, codec.format.codes - 2)]
    moved = (magnitude + step * drawn(bits.astype(np.float64)) / 256).astype(F)
    return _signed(np.searchsorted(values, moved, side="right") - 1, y, codec)


def compared(away: Callable[[Any, Any], Any], y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Rounded away where the fraction and the bits say so."""
    assert bits is not None
    values, magnitude = grid(codec.format), np.abs(y).astype(np.float64)
    lower = np.clip(np.searchsorted(values[:-1], magnitude, side="right") - 1, 0, codec.format.codes - 1)
    fraction = np.minimum((magnitude - values[lower]) / np.diff(values)[lower], 1)
    return _signed(lower + away(fraction, bits.astype(np.float64)), y, codec)


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


def _rolled(by: int, bits: Codes) -> Codes:
    return np.roll(bits, by, axis=-1)


def _swapped(count: int, bits: Codes) -> Codes:
    """Groups of so many elements in reverse."""
    whole = bits.shape[-1] // count * count
    turned = bits[..., :whole].reshape(*bits.shape[:-1], -1, count)[..., ::-1].reshape(*bits.shape[:-1], whole)
    return np.concatenate([turned, bits[..., whole:]], axis=-1)


def _random() -> Iterator[Mistake]:
    for name, text, away in DRAWS:
        yield known(
            Stage.CODE, f"random-{name}", f"stochastic rounding: {text}", stochastic, round=partial(compared, away)
        )
    for name, text, drawn in BITS:
        yield known(
            Stage.CODE, f"random-{name}", f"stochastic rounding: {text}", stochastic, round=partial(added, drawn)
        )
    for count in (2, 4, 8, 16):
        yield known(
            Stage.INPUT,
            f"bits-reversed-{count}",
            f"random bits of {count} elements are taken in reverse order",
            stochastic,
            bits=partial(_swapped, count),
        )
    for by, text in ((1, "previous"), (-1, "next")):
        yield known(
            Stage.INPUT,
            f"bits-{text}",
            f"each element uses the {text} one's random bits",
            stochastic,
            bits=partial(_rolled, by),
        )
    yield known(Stage.INPUT, "bits-inverted", "random bits are inverted", stochastic, bits=lambda b: ~b)
    yield known(
        Stage.INPUT,
        "bits-transposed",
        "random bits are read in the other direction's order",
        stochastic,
        bits=lambda b: b.T.reshape(b.shape),
    )
    yield known(Stage.INPUT, "bits-zero", "random bits are not used (0)", stochastic, bits=np.zeros_like)
