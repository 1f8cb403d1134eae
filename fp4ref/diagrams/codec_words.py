"""A codec in words: how it rounds, what becomes of overflow, NaN and zeros, and by which rules."""

from __future__ import annotations

from fp4ref.formats import (
    CUDA_E2M1,
    CUDA_E2M3,
    CUDA_E3M2,
    CUDA_E4M3,
    CUDA_E5M2,
    CUDA_E8M0,
    CUDA_UE5M3,
    E2M1,
    E4M3,
    E5M2,
    GGML_UE4M3,
    OCP_INT8,
    STOCHASTIC_E2M1,
    Codec,
    Rounding,
    Sign,
)

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


RULES = {
    CUDA_E2M1: ("E2M1-3", "E2M1-4", "E2M1-5"),
    CUDA_E4M3: ("E4M3-2", "E4M3-3", "E4M3-4"),
    CUDA_E5M2: ("E5M2-2", "E5M2-3", "E5M2-4"),
    CUDA_E2M3: ("E2M3-2", "E2M3-3", "E2M3-4"),
    CUDA_E3M2: ("E3M2-2", "E3M2-3", "E3M2-4"),
    OCP_INT8: ("INT8-2", "INT8-3", "INT8-4"),
    CUDA_E8M0: ("E8M0-2", "E8M0-3"),
    CUDA_UE5M3: ("UE5M3-2", "UE5M3-3"),
    GGML_UE4M3: ("UE4M3-2",),
    STOCHASTIC_E2M1: ("SR-1", "SR-2", "SR-3"),
}
VARIATIONS = {E2M1: "E2M1-6", E4M3: "E4M3-5", E5M2: "E5M2-5"}  # the rule of a format's other codecs


def codec_rules(codec: Codec) -> tuple[str, ...]:
    """Return the rules of a codec; one that differs from the standard's falls under the choice of its format."""
    return RULES.get(codec) or (VARIATIONS.get(codec.format, "PRO-3"),)
