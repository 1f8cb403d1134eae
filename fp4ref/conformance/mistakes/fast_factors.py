"""Encode scales S_enc / s that are made narrower in another way than by rounding to bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fp4ref.arithmetic import BF16_MAX, Constants, fused_with_zero
from fp4ref.conformance.mistakes.record import ElementForm, cut_bfloat16, to_float16
from fp4ref.formats import F, Floats


def _moved_up(by: int, q: Floats) -> Floats:
    """Return positive numbers as bfloat16, after an addition to their bits."""
    return cut_bfloat16((np.ascontiguousarray(q, F).view(np.uint32) + np.uint32(by)).view(F))


def _fast(narrow: Callable[[Floats], Floats], x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    return fused_with_zero(x, narrow(np.fmin(g / s, BF16_MAX)))


FAST: tuple[tuple[str, str, ElementForm], ...] = tuple(
    (f"fast-{name}", f"fma(x, S_enc / s {how}, 0)", partial(_fast, narrow))
    for name, how, narrow in (
        ("cut", "truncated to bfloat16", cut_bfloat16),
        ("up", "rounded up to bfloat16", partial(_moved_up, 0xFFFF)),
        ("away", "rounded to bfloat16 with ties away from zero", partial(_moved_up, 0x8000)),
        ("fp16", "rounded to float16", to_float16),
        ("fp32", "in float32", lambda q: q),
    )
)
