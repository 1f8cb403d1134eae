"""Formulas by which a wrong kernel divides an element by its scales: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fp4ref import arithmetic as ar
from fp4ref.arithmetic import BF16_MAX, FLT_MAX, SIXTH, Constants, fused_with_zero
from fp4ref.conformance.mistakes.record import ElementForm, cut_bfloat16, to_bfloat16, to_float16
from fp4ref.formats import F, Floats
from fp4ref.reciprocal import reciprocal_approx


class Factor(NamedTuple):
    """One formula: its name, what an element becomes, and the function.

    uses_scale: it takes s, so that a kernel can also use s before it was rounded to its byte. instead: of what it is
    computed, where that is said as well.
    """

    name: str
    text: str
    scaled: ElementForm
    uses_scale: bool = True
    instead: str = ""


def limited(factor: Floats) -> Floats:
    """At most FLT_MAX."""
    return np.fmin(factor, FLT_MAX)


def block_amax(x: Floats) -> Floats:
    """Return the maximum magnitude of each block of elements, NaN left out."""
    return np.asarray(np.nanmax(np.abs(x), axis=(-2, -1), keepdims=True, initial=0), F)


def factor(s: Floats, g: Floats) -> Floats:
    """Return 1 / (s * (1 / S_enc)), at most FLT_MAX."""
    return limited(np.asarray(F(1) / (s * (F(1) / g))))


def _exact(x: Floats, s: Floats, g: Floats) -> Floats:
    return (x.astype(np.float64) * g / s).astype(F)


def _moved_up(by: int, q: Floats) -> Floats:
    """Return positive numbers as bfloat16, after an addition to their bits."""
    return cut_bfloat16((np.ascontiguousarray(q, F).view(np.uint32) + np.uint32(by)).view(F))


def _fast(narrow: Callable[[Floats], Floats], x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    return fused_with_zero(x, narrow(np.fmin(g / s, BF16_MAX)))


# S_enc / s is made narrower in another way than by rounding to bfloat16
FAST = tuple(
    Factor(f"fast-{name}", f"fma(x, S_enc / s {how}, 0)", partial(_fast, narrow))
    for name, how, narrow in (
        ("cut", "truncated to bfloat16", cut_bfloat16),
        ("up", "rounded up to bfloat16", partial(_moved_up, 0xFFFF)),
        ("away", "rounded to bfloat16 with ties away from zero", partial(_moved_up, 0x8000)),
        ("fp16", "rounded to float16", to_float16),
        ("fp32", "in float32", lambda q: q),
    )
)

# S_enc is g, s the decoded scale byte
FACTORS: tuple[Factor, ...] = (
    Factor("g-over-s", "x * (S_enc / s)", lambda x, s, g, k: x * limited(g / s), instead="x * (1 / (s * (1 / S_enc)))"),
    Factor("g-times-rs", "x * (S_enc * (1 / s))", lambda x, s, g, k: x * limited(g * (F(1) / s))),
    Factor("xg-over-s", "(x * S_enc) / s", lambda x, s, g, k: x * g / s),
    Factor("xg-rs", "(x * S_enc) * (1 / s)", lambda x, s, g, k: x * g * (F(1) / s)),
    Factor("x-over-s-g", "(x / s) * S_enc", lambda x, s, g, k: x / s * g),
    Factor("x-rs-g", "(x * (1 / s)) * S_enc", lambda x, s, g, k: x * (F(1) / s) * g),
    Factor("over-quotient", "x / (s / S_enc)", lambda x, s, g, k: x / (s / g)),
    Factor("inverse-quotient", "x * (1 / (s / S_enc))", lambda x, s, g, k: x * limited(F(1) / (s / g))),
    Factor("double", "x * S_enc / s in double, rounded once", lambda x, s, g, k: _exact(x, s, g)),
    Factor("over-product", "x / (s * (1 / S_enc))", lambda x, s, g, k: x / (s * (F(1) / g))),
    Factor("decode-over-s", "x * ((1 / (1 / S_enc)) / s)", lambda x, s, g, k: x * limited(F(1) / (F(1) / g) / s)),
    Factor("over-decode", "(x / (1 / S_enc)) / s", lambda x, s, g, k: x / (F(1) / g) / s),
    Factor("product", "x * (1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * limited(F(1) / (s * (F(1) / g)))),
    Factor(
        "approx",
        "x * rcp(s * rcp(S_enc)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(reciprocal_approx(s * reciprocal_approx(g))),
    ),
    Factor(
        "approx-outer",
        "x * rcp(s * (1 / S_enc)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(reciprocal_approx(s * (F(1) / g))),
    ),
    Factor(
        "approx-inner",
        "x * (1 / (s * rcp(S_enc))) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(F(1) / (s * reciprocal_approx(g))),
    ),
    Factor(
        "approx-s",
        "x * (S_enc * rcp(s)) with the approximate reciprocal",
        lambda x, s, g, k: x * limited(g * reciprocal_approx(s)),
    ),
    Factor("fast", "fma(x, bf16(S_enc / s), 0)", ar.scaled_te_fast),
    *FAST,
    Factor("fma", "fma(x, 1 / (s * (1 / S_enc)), 0)", lambda x, s, g, k: fused_with_zero(x, factor(s, g))),
    Factor(
        "bf16", "x * bf16(1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * to_bfloat16(np.fmin(factor(s, g), BF16_MAX))
    ),
    Factor(
        "bf16-overflow",
        "x * bf16(1 / (s * (1 / S_enc))), which overflows to infinity",
        lambda x, s, g, k: x * to_bfloat16(factor(s, g)),
    ),
    Factor("bf16-cut", "x * the factor truncated to bfloat16", lambda x, s, g, k: x * cut_bfloat16(factor(s, g))),
    Factor("fp16", "x * fp16(1 / (s * (1 / S_enc)))", lambda x, s, g, k: x * to_float16(factor(s, g))),
    Factor("bf16-g-over-s", "x * bf16(S_enc / s)", lambda x, s, g, k: x * to_bfloat16(np.fmin(g / s, BF16_MAX))),
    Factor("fp16-g-over-s", "x * fp16(S_enc / s)", lambda x, s, g, k: x * to_float16(g / s)),
    Factor("narrow", "x * the factor in the input's type", lambda x, s, g, k: k.narrow(x * k.narrow(factor(s, g)))),
    Factor("narrow-xg", "(x * S_enc in the input's type) / s", lambda x, s, g, k: k.narrow(x * g) / s),
    Factor("no-global", "x / s without S_enc", lambda x, s, g, k: x / s),
    Factor("no-block", "x * S_enc without the block scale", lambda x, s, g, k: x * g, uses_scale=False),
    Factor("multiplied", "x * (s * (1 / S_enc)), a product and no quotient", lambda x, s, g, k: x * (s * (F(1) / g))),
    Factor("g-divided", "x / (s * S_enc): the global scale on the wrong side", lambda x, s, g, k: x / (s * g)),
    Factor("unscaled", "x itself", lambda x, s, g, k: x, uses_scale=False),
    Factor(
        "6-over-amax",
        "x * (6 / amax) from the block's maximum",
        lambda x, s, g, k: x * limited(F(6) / block_amax(x)),
        uses_scale=False,
    ),
    Factor(
        "over-amax-6",
        "x / (amax / 6) from the block's maximum",
        lambda x, s, g, k: x / (block_amax(x) / F(6)),
        uses_scale=False,
    ),
    Factor(
        "over-amax-sixth",
        "x / (amax * fp32(1/6)) from the block's maximum",
        lambda x, s, g, k: x / (block_amax(x) * SIXTH),
        uses_scale=False,
    ),
    Factor(
        "x-over-amax-6",
        "(x / amax) * 6 from the block's maximum",
        lambda x, s, g, k: x / block_amax(x) * F(6),
        uses_scale=False,
    ),
)
