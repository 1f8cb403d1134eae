"""A codec in words: how it rounds, what becomes of overflow, NaN and zeros, and by which rules."""

from __future__ import annotations

from fp4ref.conformance.explain.codec_notes import CHOICE, RULES, STANDARD
from fp4ref.formats import Codec, Rounding, Sign

ROUNDED = {
    Rounding.EVEN: "nearest, ties to even",
    Rounding.DOWN: "nearest, ties toward zero",
    Rounding.AWAY: "nearest, ties away from zero",
    Rounding.TRUNCATE: "toward zero",
    Rounding.UP: "to the next larger magnitude",
    Rounding.STOCHASTIC: "stochastic, one random byte",
}
SIGNED = {
    Sign.BIT: "",
    Sign.NEGATIVE: "−0.0 becomes +0",
    Sign.NOT_POSITIVE: "+0.0 becomes −0",
    Sign.NONZERO: "a magnitude that rounds to 0 becomes +0",
}


def codec_words(codec: Codec) -> str:
    """Describe a codec's rounding, overflow and NaN. Rules: E2M1-6, E4M3-5, E5M2-5."""
    last = codec.format.codes - 1
    past = f"past {codec.format.max:g} {last:#x}" if codec.overflow is None else f"overflow {codec.overflow:#x}"
    if codec.format.max > 1e6:
        past = f"past the largest {last:#x}" if codec.overflow is None else f"overflow {codec.overflow:#x}"
    nan = f"NaN {codec.nan[0]:#x}" if codec.nan[0] == codec.nan[1] else f"NaN {codec.nan[0]:#x}, −NaN {codec.nan[1]:#x}"
    infinite = "" if codec.infinity is None else f"infinity {codec.infinity:#x}"
    parts = [f"{codec.format.name.upper()}: {ROUNDED[codec.rounding]}", past, infinite, nan, SIGNED[codec.sign]]
    return "; ".join(part for part in parts if part)


def codec_rules(codec: Codec) -> tuple[str, ...]:
    """Return the rules of a codec; one that differs from the standard's falls under the choice of its format."""
    if codec.rounding is Rounding.STOCHASTIC:
        return ("SR-1", "SR-2", "SR-3")
    if STANDARD.get(codec.format) == codec:
        return tuple(dict.fromkeys(RULES[codec.format]))
    return (CHOICE.get(codec.format, "PRO-3"),)
