"""The way of a codec from a value to its code, in words, with its rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from fp4ref.conformance.explain.formulas import decimal
from fp4ref.conformance.families.rules import KEEPS_SIGN, OF_A_CODEC, VALUES
from fp4ref.formats import (
    CUDA_E2M1,
    CUDA_E2M3,
    CUDA_E3M2,
    CUDA_E4M3,
    CUDA_E5M2,
    CUDA_E8M0,
    CUDA_UE5M3,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    GGML_UE4M3,
    INT8,
    OCP_INT8,
    UE4M3,
    UE5M3,
    Codec,
    F,
    Rounding,
    grid,
)

OF_ELEMENTS = (CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, CUDA_E4M3, CUDA_E5M2, OCP_INT8)
STANDARD = {codec.format: codec for codec in (*OF_ELEMENTS, CUDA_E8M0, CUDA_UE5M3, GGML_UE4M3)}
RULES = {  # of a rounded value, of one past the ends of the grid, of NaN
    E2M1: ("E2M1-3", "E2M1-4", "E2M1-5"),
    E4M3: ("E4M3-2", "E4M3-3", "E4M3-4"),
    E5M2: ("E5M2-2", "E5M2-3", "E5M2-4"),
    E2M3: ("E2M3-2", "E2M3-3", "E2M3-4"),
    E3M2: ("E3M2-2", "E3M2-3", "E3M2-4"),
    INT8: ("INT8-2", "INT8-3", "INT8-4"),
    E8M0: ("E8M0-2", "E8M0-3", "E8M0-3"),
    UE4M3: ("UE4M3-2", "UE4M3-2", "UE4M3-2"),
    UE5M3: ("UE5M3-2", "UE5M3-3", "UE5M3-3"),
}
CHOICE = {E2M1: "E2M1-6", E4M3: "E4M3-5", E5M2: "E5M2-5", E8M0: "PRO-3"}


def rounding(codec: Codec, value: Any, code: int, random_bits: int | None = None) -> tuple[str, tuple[str, ...]]:
    """Describe the way of a codec from a value to its code, with its rules."""
    form, magnitude = codec.format, abs(float(value))
    values, nearest, past, nan = grid(form), *RULES.get(form, (OF_A_CODEC,) * 3)
    top = float(values[form.codes - 1])
    sign_note, sign_rules = _sign(codec, value, code)
    if np.isnan(value):
        return "NaN", _with_choice(codec, "nan", nan)
    if magnitude in values[: form.codes]:
        return f"exact{sign_note}", _once(VALUES.get(form.name, OF_A_CODEC), *sign_rules)
    if random_bits is not None and magnitude < top:
        return _stochastic(values, magnitude, random_bits) + sign_note, _once("SR-2", *sign_rules)
    if magnitude > top and code in _codes_past(codec, magnitude):
        rules = _once(*_with_choice(codec, "overflow", past), *sign_rules)
        return f"rounds past the largest value {decimal(top)}: code {code:#x}", rules
    if magnitude > top and codec.overflow is None:
        return f"above the largest value {decimal(top)}: saturates{sign_note}", _once(past, *sign_rules)
    rule = nearest if magnitude > values[0] else past
    return _between(codec, magnitude) + sign_note, _once(*_with_choice(codec, "rounding", rule), *sign_rules)


def _once(*rules: str) -> tuple[str, ...]:
    """Return rules in order, each once."""
    return tuple(dict.fromkeys(rules))


def _codes_past(codec: Codec, magnitude: float) -> tuple[int | None, ...]:
    """Return the code, with either sign, that stands for a magnitude past the largest value, if there is one."""
    own = codec.infinity if np.isinf(magnitude) and codec.infinity is not None else codec.overflow
    return () if own is None else (own, own | codec.format.sign_bit)


def _with_choice(codec: Codec, field: str, rule: str) -> tuple[str, ...]:
    """Return the rule, or the one that lets a codec differ from the standard's in a field."""
    usual = STANDARD.get(codec.format, codec)
    return (rule,) if getattr(codec, field) == getattr(usual, field) else (CHOICE.get(codec.format, OF_A_CODEC),)


def _sign(codec: Codec, value: Any, code: int) -> tuple[str, tuple[str, ...]]:
    """Return the rules that decide the sign bit, with a note where it is set or dropped, or of a zero.

    Rules: E2M1-2, E2M1-6.
    """
    form, minus, kept = codec.format, bool(np.signbit(value)), bool(code & codec.format.sign_bit)
    if np.isnan(value) or not form.signed:
        return "", ()
    usual = codec.sign == STANDARD[form].sign if form in STANDARD else True
    own = KEEPS_SIGN.get(form.name, OF_A_CODEC) if usual else CHOICE.get(form, OF_A_CODEC)
    if form is INT8 and usual:
        return "", (own if code == 0 else VALUES[form.name],)  # one zero; other signs are those of two's complement
    if minus != kept:
        return f"; sign bit {'set' if kept else 'dropped'} (sign {codec.sign})", (own,)
    return "; the sign of zero stays" if minus and value == 0 else "", (own,)


TIES = {Rounding.EVEN: "to the even code", Rounding.DOWN: "toward zero", Rounding.AWAY: "away from zero"}


def _between(codec: Codec, magnitude: float) -> str:
    """Describe the neighbours of a magnitude, and to which of them it is rounded. Rules: E2M1-6."""
    values = grid(codec.format)
    if magnitude < values[0]:
        return f"below the smallest value {decimal(values[0])}"
    upper = int(np.searchsorted(values, magnitude))
    low, high = values[upper - 1], values[upper]
    text = f"between {decimal(low)} and {decimal(high)}"
    if codec.rounding is Rounding.UP:
        return f"{text}, rounded up"
    if codec.rounding is Rounding.TRUNCATE:
        return f"{text}, truncated"
    middle = (low + high) / 2
    if magnitude != middle:
        return f"{text}, {'below' if magnitude < middle else 'above'} the midpoint {decimal(middle)}"
    return f"{text}, a tie at {decimal(middle)}: {TIES[codec.rounding]}"


def _stochastic(values: Any, magnitude: float, random_bits: int) -> str:
    upper = int(np.searchsorted(values, magnitude))
    low, high = values[upper - 1], values[upper]
    moved = F(magnitude + (high - low) * random_bits / 256)
    return f"|y| + {decimal(high - low)} * {random_bits}/256 = {decimal(moved)}, truncated to the grid"
