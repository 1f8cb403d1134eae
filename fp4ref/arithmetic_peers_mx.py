"""Scale arithmetic of other public implementations of MX formats, one record each.

Rules: PRO-1, PRO-2, PRO-3.
"""

from functools import partial

import numpy as np

from fp4ref.arithmetic import (
    MANTISSA,
    NEVER,
    SIXTH,
    Constants,
    exponent_field,
    finite,
    half_carry,
    power_of_two,
    register_arithmetic,
    two_to,
    unrounded,
)
from fp4ref.arithmetic_peers import SMALLEST_E8M0, first_of_the_nearest, scaled_or_as_it_is, zero_unless
from fp4ref.formats import E2M1, F, Floats

INFINITE_FIELD = 0xFF  # the exponent bits of infinity


def infinite(t: Floats, s: Floats) -> Floats:
    """An infinite scale has another byte, but the elements are divided by infinity."""
    return np.where(np.isinf(t), F(np.inf), s)


def up_from_any(t: Floats) -> Floats:
    """The next power of two; unlike the hardware's, any nonzero subnormal becomes 2^-126."""
    return np.where(np.isfinite(t), two_to(exponent_field(t, MANTISSA) - 127), t)


def log2(t: Floats) -> Floats:
    """log2 rounded to float32."""
    return np.log2(t.astype(np.float64)).astype(F)


def exp2(exponent: Floats) -> Floats:
    """2^exponent, held within the values of E8M0; NaN counts as 0."""
    return two_to(np.clip(np.nan_to_num(exponent), -127, 127).astype(np.int64))


def block_scale_te_blocks(amax: Floats, g: Floats, k: Constants) -> Floats:
    """1 / c, c the power of two below element_max / amax; 1 for a maximum that is 0 or infinite."""
    wanted = np.minimum(k.element_max / amax, np.finfo(F).max)
    power = two_to(127 - exponent_field(wanted))
    return np.where((amax == 0) | ~np.isfinite(amax), F(1), power)


def block_scale_compressed_tensors_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """EVEN with one mantissa bit for every element format, in the input's type; infinity where the type overflows.

    The maximum is rounded to a power of two, below the type's normal numbers to its smallest one or to 0. A scale that
    the type flushes to 0 becomes 1.
    """
    carried = k.narrow(np.where(np.isnan(amax), F(np.inf), two_to(exponent_field(amax, half_carry(1)) - 127)))
    low = np.where(amax >= F(0.75) * k.smallest_normal, k.smallest_normal, F(0))
    power = np.where(amax < k.smallest_normal, low, carried)
    field = np.where(power == 0, 0, exponent_field(power) - k.element.emax)
    scale = k.narrow(np.where(np.isinf(power), F(np.inf), two_to(np.clip(field, 0, 254) - 127)))
    return np.where(scale == 0, F(1), scale)


def scaled_compressed_tensors_mx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s in the input's type."""
    return k.narrow(x / s)


def smallest_normal_or_infinite(t: Floats, s: Floats) -> Floats:
    """Byte 00 divides by 2^-126, byte FF by infinity."""
    return np.where(np.isnan(s), F(np.inf), np.maximum(s, F(2.0**-126)))


def block_scale_torchao_floor(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^(floor(log2 amax) - emax) from the exponent bits, those of infinity too."""
    return np.where(np.isnan(amax), NEVER, power_of_two(exponent_field(amax), k))


def block_scale_torchao_ceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^(ceil(log2 amax) - emax) from the bits, those of infinity too."""
    return np.where(np.isnan(amax), NEVER, power_of_two(exponent_field(amax, MANTISSA), k))


def block_scale_torchao_even(amax: Floats, g: Floats, k: Constants) -> Floats:
    """FLOOR of amax rounded half up to the element's mantissa, of infinity too."""
    return np.where(np.isnan(amax), NEVER, power_of_two(exponent_field(amax, half_carry(k.element.mantissa_bits)), k))


def block_scale_torchao_carry(amax: Floats, g: Floats, k: Constants) -> Floats:
    """EVEN, but NaN where the carry leaves float32."""
    field = exponent_field(amax, half_carry(k.element.mantissa_bits))
    return np.where(field < INFINITE_FIELD, power_of_two(field, k), NEVER)


def block_scale_torchao_rceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(amax / element_max)) with a rounded log2; 2^127 for infinity."""
    return np.where(np.isnan(amax), NEVER, exp2(np.ceil(log2(amax / k.element_max))))


def block_scale_deepgemm(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above max(amax, 1e-4) / element_max, at least 2^-126."""
    quotient = np.asarray(np.maximum(amax, F(1e-4)) / k.element_max, F)
    return np.where(np.isnan(amax), F(np.inf), np.maximum(up_from_any(quotient), F(2.0**-126)))


def block_scale_fouroversix_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above amax / element_max, infinity too; NaN gives the smallest scale."""
    return zero_unless(~np.isnan(amax), up_from_any(amax / k.element_max))


def scaled_or_zero(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s, or 0 where the scale's byte is 0."""
    return zero_unless(s != SMALLEST_E8M0, x / s)


def scaled_unguarded(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s, or x / 0 where the scale's byte is 0."""
    return x / zero_unless(s != SMALLEST_E8M0, s)


def block_scale_flashinfer_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above amax * fp32(1/6), infinity too; NaN gives the smallest scale."""
    return zero_unless(~np.isnan(amax), up_from_any(amax * SIXTH))


def block_scale_modelopt_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(max(log2(amax / 6), -127)) with a rounded log2."""
    return finite(amax, exp2(np.ceil(np.maximum(log2(amax / F(6)), F(-127)))))


def block_scale_modelopt_mxfp8(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(amax / element_max)) with a rounded log2; the smallest scale for 0 and NaN, 2^127 for infinity."""
    t = amax / k.element_max
    return exp2(np.where(t > 0, np.ceil(log2(t)), F(-127)))


def block_scale_trace_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^floor(log2(amax / element_max)) with a rounded log2; 1 for zero and NaN, the smallest scale for infinity."""
    t = amax / k.element_max
    scale = exp2(np.floor(log2(np.where(t > 0, t, F(1)))))
    return np.where(np.isinf(t), SMALLEST_E8M0, scale)


def scaled_trace_mx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; to four bits, from 2^24 on the first of the E2M1 values that are nearest after rounding."""
    y = np.asarray(x / s, F)
    return first_of_the_nearest(y) if k.element.bits == E2M1.bits else y


def block_scale_mlx_metal(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / element_max) * g; the codec of powers of two rounds it up."""
    return np.asarray(amax / k.element_max * g, F)


def scaled_mlx_metal(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (g / s), the factor 0 where s is 0."""
    return np.asarray(x * zero_unless(s != 0, np.asarray(g / s)), F)


def infinite_for_nan(t: Floats, s: Floats) -> Floats:
    """Byte FF is read as infinity."""
    return np.where(np.isnan(s), F(np.inf), s)


COMPRESSED_TENSORS_MX = register_arithmetic(
    "compressed-tensors-mx",
    block_scale_compressed_tensors_mx,
    scaled_compressed_tensors_mx,
    working_scale=infinite,
)
TORCHAO_MX = {
    mode: register_arithmetic(f"torchao-{mode}", block_scale, working_scale=smallest_normal_or_infinite)
    for mode, block_scale in (
        ("floor", block_scale_torchao_floor),
        ("ceil", block_scale_torchao_ceil),
        ("even", block_scale_torchao_even),
    )
} | {"rceil": register_arithmetic("torchao-rceil", block_scale_torchao_rceil, scaled_or_as_it_is)}
TORCHAO_CARRY = register_arithmetic("torchao-even-carry", block_scale_torchao_carry)
DEEPGEMM = register_arithmetic("deepgemm", block_scale_deepgemm)
FOUROVERSIX_MX = register_arithmetic(
    "fouroversix-mx", block_scale_fouroversix_mx, scaled_or_zero, working_scale=infinite
)
FOUROVERSIX_MX_UNGUARDED = register_arithmetic(
    "fouroversix-mx-unguarded", block_scale_fouroversix_mx, scaled_unguarded, working_scale=infinite
)
FLASHINFER_MX = register_arithmetic("flashinfer-mx", block_scale_flashinfer_mx, scaled_or_zero, working_scale=infinite)
MODELOPT_MX = register_arithmetic("modelopt-mx", block_scale_modelopt_mx, working_scale=unrounded)
MODELOPT_MXFP8 = register_arithmetic("modelopt-mxfp8", block_scale_modelopt_mxfp8)
FLASHINFER_TRACE_MX = register_arithmetic("flashinfer-trace-mx", block_scale_trace_mx, scaled_trace_mx)


# microxcaling: floor(log2) in the input's type, for the shared and for every element's exponent


def block_scale_microxcaling(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^(floor(log2 amax) - emax), the logarithm rounded to the input's type; past 2^127 NaN."""
    exponent = np.floor(k.narrow(log2(np.where(amax == 0, np.finfo(F).tiny, amax)))) - k.element.emax
    return np.where(exponent <= 127, exp2(exponent), NEVER)


def scaled_microxcaling(x: Floats, s: Floats, g: Floats, k: Constants, rounding: str) -> Floats:
    """Values already on the element's grid; the codec that follows is exact."""
    y = k.narrow(x / s)
    magnitude = np.where(y == 0, F(1), np.abs(y))
    exponent = np.maximum(np.floor(k.narrow(log2(magnitude))), 1 - k.element.bias).astype(int)
    t = np.abs(np.ldexp(y.astype(np.float64), k.element.mantissa_bits - exponent)).astype(F)
    up = np.floor(k.narrow(t + F(0.5)))
    tie = np.fmod(k.narrow(t - F(0.5)), F(2)) == 0
    rounded = {"nearest": up, "floor": np.floor(t), "even": up - tie}[rounding]
    return np.asarray(np.ldexp(rounded.astype(np.float64), exponent - k.element.mantissa_bits) * np.sign(y), F)


MICROXCALING = {
    rounding: register_arithmetic(
        f"microxcaling-{rounding}", block_scale_microxcaling, partial(scaled_microxcaling, rounding=rounding)
    )
    for rounding in ("nearest", "even", "floor")
}
TE_BLOCKS = register_arithmetic("te-fp8-block", block_scale_te_blocks)
