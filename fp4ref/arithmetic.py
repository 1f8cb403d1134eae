"""Scale arithmetic: the float32 operations between the maxima and the element codec, in order.

Every operation is one float32 operation rounded to nearest even; `k.narrow` rounds once more, to the input's type.
amax, scale s, global scale g and values x broadcast against each other. The functions of one Arithmetic agree on
what g is (a multiplier for encoding or for decoding); nothing outside reads it. Without a global scale g is 1.
Zero-block rules, clamps and the order of operations are the bodies of these functions.

Rules: NUM-1, NUM-8, NUM-9, SPC-9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codec, F, Floats, Format
from fp4ref.names import Names

Integers = NDArray[np.int64]

FLT_MAX = np.finfo(F).max
BF16_MAX = np.array(0x7F7F, np.uint16).view(ml_dtypes.bfloat16).astype(F)
SIXTH = F(1) / F(6)
NEVER = F(np.nan)  # a scale that no block can have


class Constants(NamedTuple):
    """The properties of the specification and the input that the functions may use. Rules: SPC-18."""

    element: Format
    scale: Codec
    element_max: np.float32  # magnitude that the block maximum is mapped to
    scale_max: np.float32  # scale of the block that holds the global maximum
    narrow: Callable[[Floats], Floats]  # float32 -> float32, rounded to the input's type
    smallest_normal: np.float32 = np.finfo(F).tiny  # of the input's type
    is_float32: bool = True  # the input's type


Global = Callable[[Floats, Constants], Floats]  # (amax, k) -> g
BlockScale = Callable[[Floats, Floats, Constants], Floats]  # (amax, g, k) -> scale before its codec
Scaled = Callable[[Floats, Floats, Floats, Constants], Floats]  # (x, s, g, k) -> values before the element codec
Working = Callable[[Floats, Floats], Floats]  # (scale before its codec, what its byte means) -> the s of Scaled
Dequantized = Callable[[Floats, Floats, Floats, Constants], Floats]  # (q, s, global amax, k) -> values


def no_global_scale(amax: Floats, k: Constants) -> Floats:
    """g = 1. Rules: GLB-6."""
    return np.ones_like(amax)


def divided(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; for a power of two the same as its exact reciprocal. Rules: BLK-10, E8M0-5. Certificates: power-of-two."""
    return x / s


def stored(t: Floats, s: Floats) -> Floats:
    """Elements are divided by the scale that its byte means. Rules: BLK-4."""
    return s


def unrounded(t: Floats, s: Floats) -> Floats:
    """Elements are divided by the scale before it was rounded."""
    return t


def product(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * s, without a global scale. Rules: DEQ-2."""
    return q * s


@dataclass(frozen=True)
class Arithmetic:
    """A named record of functions that hold one implementation's order of operations."""

    name: str
    global_scale: Global
    block_scale: BlockScale
    scaled: Scaled
    working_scale: Working
    dequantized: Dequantized

    def __repr__(self) -> str:
        return f"Arithmetic({self.name!r})"


ARITHMETIC: Names[Arithmetic] = Names("arithmetic")


def register_arithmetic(
    name: str,
    block_scale: BlockScale,
    scaled: Scaled = divided,
    global_scale: Global = no_global_scale,
    working_scale: Working = stored,
    dequantized: Dequantized = product,
) -> Arithmetic:
    """Define and register one arithmetic; third parties use a name of the form `vendor.name`.

    Rules: SPC-4.
    """
    return ARITHMETIC.register(Arithmetic(name, global_scale, block_scale, scaled, working_scale, dequantized))


def narrow_bfloat16(x: Floats) -> Floats:
    """Round to bfloat16, held as float32."""
    return x.astype(ml_dtypes.bfloat16).astype(F)


def fused_with_zero(x: Floats, factor: Floats) -> Floats:
    """fma(x, factor, +0): the rounded product, but a product that is exactly zero is +0. Rules: BLK-11."""
    product = x * factor
    return np.where((product == 0) & ((x == 0) | (factor == 0)), F(0), product)


# NVFP4 as the CUDA default path computes it


def encoding_te(amax: Floats, k: Constants) -> Floats:
    """S_enc = scale_max * element_max / amax, at most FLT_MAX; 1 where amax or S_enc is 0.

    Rules: GLB-2, GLB-3. Certificates: encoding-*.
    """
    g = np.fmin(k.scale_max * k.element_max / amax, FLT_MAX)
    return np.where((amax == 0) | (g == 0), F(1), g)


def block_scale_te(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax * (S_enc * fp32(1/6)), at most FLT_MAX. Rules: BLK-3. Certificates: block-scale."""
    return np.fmin(amax * (g * SIXTH), FLT_MAX)


def scaled_te(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * min(1 / (s * (1 / S_enc)), FLT_MAX). Rules: BLK-4, BLK-5, BLK-6. Certificates: factor, block."""
    return x * np.fmin(F(1) / (s * (F(1) / g)), FLT_MAX)


def scaled_te_fast(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """fma(x, bf16(min(S_enc / s, largest bfloat16)), +0). Rules: BLK-11."""
    return fused_with_zero(x, narrow_bfloat16(np.fmin(g / s, BF16_MAX)))


def dequantized_te(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * ((s * amax) * fp32(1 / (element_max * scale_max))). Rules: DEQ-1. Certificates: decode, theorem-*."""
    return q * (s * amax * (F(1) / (k.element_max * k.scale_max)))


def block_scale_division(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / 6) * S_enc, by true division. Rules: FOS-1."""
    return np.asarray(amax / F(6) * g)


TE = register_arithmetic("te", block_scale_te, scaled_te, encoding_te, dequantized=dequantized_te)
TE_FAST = register_arithmetic("te-fast", block_scale_te, scaled_te_fast, encoding_te, dequantized=dequantized_te)
TE_DIVISION = register_arithmetic(
    "te-division", block_scale_division, scaled_te, encoding_te, dequantized=dequantized_te
)


# MX: block_scale returns what E8M0's round-up codec encodes: the quotient itself, or an exact power of two


def finite(amax: Floats, t: Floats) -> Floats:
    """t, or NaN where amax is infinite or NaN."""
    return np.where(np.isfinite(amax), t, NEVER)


def two_to(exponent: Integers) -> Floats:
    """2^exponent, which float32 holds from -149 to 127."""
    return np.asarray(np.ldexp(1.0, exponent), F)


def exponent_field(x: Floats, add: int = 0) -> Integers:
    """Biased exponent of x >= 0 after `add` was added to its bits."""
    return np.asarray(x, F).view(np.uint32).astype(np.int64) + add >> 23


def power_of_two(field: Integers, k: Constants) -> Floats:
    """2^(field - 127 - emax), held within the values of E8M0."""
    return two_to(np.clip(field - k.element.emax, 0, 254) - 127)


MANTISSA = (1 << 23) - 1


def half_carry(mantissa_bits: int) -> int:
    """Return half a step of a mantissa, as float32 bits: adding it carries where it rounds up."""
    return 1 << (22 - mantissa_bits)


def block_scale_rceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax * fp32(1 / element_max); the codec rounds it up. Rules: MXS-1."""
    return amax * (F(1) / k.element_max)


def block_scale_ocp_rceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """RCEIL, but an infinite amax gives the NaN scale. Rules: MXS-1, MXS-5."""
    return finite(amax, block_scale_rceil(amax, g, k))


def block_scale_floor(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^(floor(log2 amax) - emax), from the exponent bits. Rules: MXS-2, MXS-5. Certificates: mx-floor."""
    return finite(amax, power_of_two(exponent_field(amax), k))


def block_scale_ceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^(ceil(log2 amax) - emax): one more for any nonzero mantissa. Rules: MXS-3, MXS-5. Certificates: mx-ceil."""
    return finite(amax, power_of_two(exponent_field(amax, MANTISSA), k))


def block_scale_even(amax: Floats, g: Floats, k: Constants) -> Floats:
    """FLOOR of amax rounded half up to the element's mantissa. Rules: MXS-4, MXS-5. Certificates: mx-even."""
    return finite(amax, power_of_two(exponent_field(amax, half_carry(k.element.mantissa_bits)), k))


def scaled_cast_only(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """fma(x, 1 / s, +0). Rules: BLK-11."""
    return fused_with_zero(x, F(1) / s)


RCEIL = register_arithmetic("rceil", block_scale_rceil)
RCEIL_CAST_ONLY = register_arithmetic("rceil-cast-only", block_scale_rceil, scaled_cast_only)
OCP_RCEIL = register_arithmetic("ocp-rceil", block_scale_ocp_rceil)
OCP_FLOOR = register_arithmetic("ocp-floor", block_scale_floor)
OCP_CEIL = register_arithmetic("ocp-ceil", block_scale_ceil)
OCP_EVEN = register_arithmetic("ocp-even", block_scale_even)
