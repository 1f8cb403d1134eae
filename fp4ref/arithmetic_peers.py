"""Scale arithmetic of other public implementations, one record each.

g encodes (x * g) or decodes (q * s * g) as each implementation has it; see the functions' one-line formulas.

Rules: PRO-1, PRO-2.
"""

from functools import partial

import numpy as np

from fp4ref.arithmetic import (
    FLT_MAX,
    MANTISSA,
    NEVER,
    SIXTH,
    Constants,
    block_scale_rceil,
    block_scale_te,
    dequantized_te,
    encoding_te,
    exponent_field,
    finite,
    half_carry,
    narrow_bfloat16,
    power_of_two,
    register_arithmetic,
    scaled_te,
    two_to,
    unrounded,
)
from fp4ref.formats import F, Floats
from fp4ref.reciprocal import reciprocal_approx

SMALLEST_E8M0 = F(2.0**-127)
INFINITE_FIELD = 0xFF  # the exponent bits of infinity


def zero_unless(test: Floats, value: Floats) -> Floats:
    """value, or +0 where the test fails."""
    return np.where(test, value, F(0))


def infinite(t: Floats, s: Floats) -> Floats:
    """An infinite scale has another byte, but the elements are divided by infinity."""
    return np.where(np.isinf(t), F(np.inf), s)


# Global scales: g decodes in the first, and encodes in the others


def decoding(amax: Floats, k: Constants) -> Floats:
    """amax / (scale_max * element_max)."""
    return amax / (k.scale_max * k.element_max)


def encoding(amax: Floats, k: Constants) -> Floats:
    """scale_max * element_max / amax."""
    return k.scale_max * k.element_max / amax


def encoding_or_one(amax: Floats, k: Constants) -> Floats:
    """scale_max * element_max / amax; 1 for a zero tensor."""
    return np.where(amax == 0, F(1), encoding(amax, k))


def encoding_by_reciprocal(amax: Floats, k: Constants) -> Floats:
    """(1 / amax) * (scale_max * element_max)."""
    return k.scale_max * k.element_max * (F(1) / amax)


def encoding_narrow(amax: Floats, k: Constants) -> Floats:
    """(1 / amax) * (scale_max * element_max), both rounded to the input's type; 1 where that is not finite."""
    g = k.narrow(k.narrow(F(1) / amax) * (k.scale_max * k.element_max))
    return np.where(np.isfinite(g), g, F(1))


def dequantized_decoding(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s * g), g = amax / (scale_max * element_max). Rules: DEQ-5."""
    return q * (s * decoding(amax, k))


def dequantized_encoding(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s / g), g = (1 / amax) * (scale_max * element_max). Rules: DEQ-5."""
    return q * (s / encoding_by_reciprocal(amax, k))


def dequantized_narrow(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s / g) with g rounded to the input's type. Rules: DEQ-5."""
    return q * (s / encoding_narrow(amax, k))


def dequantized_through_amax(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """((q * s) * amax) / (element_max * scale_max). Rules: DEQ-5."""
    return q * s * amax / (k.element_max * k.scale_max)


# Transformer Engine's own variants


def global_scale_te_python(amax: Floats, k: Constants) -> Floats:
    """min(2688 / amax, FLT_MAX) with NaN kept; a result of 0 becomes 1. A zero amax gives FLT_MAX."""
    g = np.minimum(encoding(amax, k), FLT_MAX)
    return np.where(g == 0, F(1), g)


def global_scale_te_rht(amax: Floats, k: Constants) -> Floats:
    """min(2688 / amax, FLT_MAX) for amax > 0, else 1. An infinite amax gives 0."""
    return np.where(amax > 0, np.minimum(encoding(amax, k), FLT_MAX), F(1))


def block_scale_te_rht(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax * (g * fp32(1/6)), NaN kept."""
    return amax * (g * SIXTH)


def scaled_te_keeping_nan(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * min(1 / (s * (1 / g)), FLT_MAX) with NaN kept by the minimum."""
    return x * np.minimum(F(1) / (s * (F(1) / g)), FLT_MAX)


def scaled_te_oracle(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * min(1 / (s * (1 / S_enc)), FLT_MAX), the factor 0 where the scale underflowed to zero."""
    return np.where(s == 0, x * F(0), scaled_te(x, s, g, k))


TE_PYTHON = register_arithmetic(
    "te-python",
    block_scale_te_rht,
    scaled_te_keeping_nan,
    global_scale_te_python,
    dequantized=dequantized_te,
)
TE_RHT_FUSED = register_arithmetic(
    "te-rht-fused",
    block_scale_te_rht,
    scaled_te_keeping_nan,
    global_scale_te_rht,
    dequantized=dequantized_te,
)
TE_ORACLE = register_arithmetic(
    "te-cpp-test-oracle", block_scale_te, scaled_te_oracle, encoding_te, dequantized=dequantized_te
)


# NVFP4 elsewhere


def block_scale_torchao(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / 6) / g, held within [2^-6, scale_max]; the lower bound is E4M3's smallest normal."""
    return np.asarray(np.clip(amax / F(6) / g, F(2.0**-6), k.scale_max))


def scaled_torchao(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * ((1 / g) / s); 1.5 if g is NaN, else 2 if s is, of its sign.

    Its encoder reads the bits of a NaN: one that came from a global scale ends as the code of 1.5, one that came from
    an E4M3 scale, whose payload is longer, as that of 2.
    """
    product = x * (F(1) / g / s)
    return np.where(np.isnan(g), np.copysign(F(1.5), g), np.where(np.isnan(s), np.copysign(F(2), s), product))


TORCHAO = register_arithmetic(
    "torchao", block_scale_torchao, scaled_torchao, decoding, dequantized=dequantized_decoding
)


def block_scale_modelopt(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax / (6 * g); an exact 0 becomes 1."""
    t = amax / (F(6) * g)
    return np.where(t == 0, F(1), t)


def scaled_modelopt(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / (s * g)."""
    return x / (s * g)


MODELOPT = register_arithmetic(
    "modelopt", block_scale_modelopt, scaled_modelopt, decoding, dequantized=dequantized_decoding
)


def block_scale_compressed_tensors(amax: Floats, g: Floats, k: Constants) -> Floats:
    """g * (amax / 6 in the input's type), at most scale_max; a byte that would mean 0 means 1/8."""
    t = np.minimum(g * k.narrow(amax / F(6)), k.scale_max)
    return np.where(k.scale.decode(k.scale.encode(t)) == 0, F(0.125), t)


def scaled_compressed_tensors(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / (s / g)."""
    return x / (s / g)


COMPRESSED_TENSORS = register_arithmetic(
    "compressed-tensors",
    block_scale_compressed_tensors,
    scaled_compressed_tensors,
    encoding_narrow,
    dequantized=dequantized_narrow,
)


def block_scale_fouroversix(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / element_max) * g."""
    return amax / k.element_max * g


def scaled_fouroversix(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / ((1 / g) * s)), or 0 where the scale is 0."""
    return zero_unless(s != 0, x * (F(1) / (F(1) / g * s)))


FOUROVERSIX = register_arithmetic(
    "fouroversix",
    block_scale_fouroversix,
    scaled_fouroversix,
    encoding_or_one,
    dequantized=dequantized_through_amax,
)


def block_scale_flashinfer(amax: Floats, g: Floats, k: Constants) -> Floats:
    """g * (amax * fp32(1/6))."""
    return g * (amax * SIXTH)


def scaled_flashinfer(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / (s * (1 / g))), the factor 0 where that product is 0."""
    t = s * (F(1) / g)
    return x * zero_unless(t != 0, np.asarray(F(1) / t))


def block_scale_trace(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / 6) * g."""
    return amax / F(6) * g


def scaled_trace(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """(x * g) / s, s = 0 taken as 1."""
    return np.asarray(x * g / np.where(s > 0, s, F(1)), F)


FLASHINFER = register_arithmetic(
    "flashinfer",
    block_scale_flashinfer,
    scaled_flashinfer,
    encoding_by_reciprocal,
    dequantized=dequantized_encoding,
)
FLASHINFER_TRACE = register_arithmetic(
    "flashinfer-trace", block_scale_trace, scaled_trace, encoding_by_reciprocal, dequantized=dequantized_encoding
)


def block_scale_jax(amax: Floats, g: Floats, k: Constants) -> Floats:
    """|amax * (1 / g)| * fp32(1/6), at most scale_max; NaN, which XLA's maximum drops, becomes 0."""
    t = np.abs(amax * (F(1) / g)) * SIXTH
    return np.where(np.isnan(t), F(0), np.minimum(t, k.scale_max))


def scaled_jax(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """(x * (1 / g)) * (1 / s)."""
    return np.asarray(x * (F(1) / g) * (F(1) / s))


JAX = register_arithmetic("jax", block_scale_jax, scaled_jax, decoding, dequantized=dequantized_decoding)

SMALLEST_QWIX = F(2.0**-63)


def block_scale_qwix(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax * fp32(1/6) in the input's type; below 2^-63 it becomes 1."""
    t = k.narrow(amax * SIXTH)
    return np.where(t < SMALLEST_QWIX, F(1), t)


def scaled_qwix(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / s) in the input's type."""
    return k.narrow(x * (F(1) / s))


QWIX = register_arithmetic("qwix", block_scale_qwix, scaled_qwix)


# Kernels that use the approximate reciprocal (APX-1)


def scaled_kernel(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * rcp(s * rcp(g)), the factor 0 where the stored scale is 0."""
    return x * zero_unless(s != 0, reciprocal_approx(s * reciprocal_approx(g)))


def scaled_kernel_by_amax(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * rcp(s * rcp(g)), the factor 0 only where all of x, whole blocks [..., rows, columns], is 0."""
    some = np.any((x != 0) & ~np.isnan(x), axis=(-2, -1), keepdims=True)
    return x * zero_unless(some, reciprocal_approx(s * reciprocal_approx(g)))


def scaled_cutlass(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * min(g * rcp(s), FLT_MAX)."""
    return np.asarray(x * np.minimum(g * reciprocal_approx(s), FLT_MAX))


def scaled_or_as_it_is(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; undivided where the scale's byte is 0."""
    return np.asarray(x / np.where(s == SMALLEST_E8M0, F(1), s), F)


def scaled_kernel_mxfp8(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * rcp(s), the factor 0 where s is flushed; held within the element's range."""
    factor = zero_unless(s != SMALLEST_E8M0, reciprocal_approx(s))
    return np.asarray(np.clip(x * factor, -k.element_max, k.element_max))


KERNEL = register_arithmetic(
    "kernel-approx",
    block_scale_flashinfer,
    scaled_kernel,
    encoding_by_reciprocal,
    dequantized=dequantized_encoding,
)
KERNEL_BY_AMAX = register_arithmetic(
    "kernel-approx-by-amax",
    block_scale_flashinfer,
    scaled_kernel_by_amax,
    encoding_by_reciprocal,
    dequantized=dequantized_encoding,
)
CUTLASS = register_arithmetic("cutlass", block_scale_te, scaled_cutlass, encoding, dequantized=dequantized_te)
KERNEL_MXFP4 = register_arithmetic("kernel-mxfp4", block_scale_rceil, scaled_or_as_it_is)
KERNEL_MXFP8 = register_arithmetic("kernel-mxfp8", block_scale_rceil, scaled_kernel_mxfp8)


# MX elsewhere


def up_from_any(t: Floats) -> Floats:
    """The next power of two; unlike the hardware's, any nonzero subnormal becomes 2^-126."""
    return np.where(np.isfinite(t), two_to(exponent_field(t, MANTISSA) - 127), t)


def log2(t: Floats) -> Floats:
    """log2 rounded to float32."""
    return np.log2(t.astype(np.float64)).astype(F)


def exp2(exponent: Floats) -> Floats:
    """2^exponent, held within the values of E8M0; NaN counts as 0."""
    return two_to(np.clip(np.nan_to_num(exponent), -127, 127).astype(np.int64))


def block_scale_compressed_tensors_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """EVEN with one mantissa bit for every element format; infinity where the carry leaves float32."""
    field = exponent_field(amax, half_carry(1))
    return np.where(field < INFINITE_FIELD, power_of_two(field, k), F(np.inf))


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


def block_scale_torchao_rceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(amax / element_max)) with a rounded log2; 2^127 for infinity."""
    return np.where(np.isnan(amax), NEVER, exp2(np.ceil(log2(amax / k.element_max))))


def block_scale_deepgemm(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above max(amax, 1e-4) / element_max, at least 2^-126."""
    quotient = np.asarray(np.maximum(amax, F(1e-4)) / k.element_max, F)
    return np.where(np.isnan(amax), F(np.inf), np.maximum(up_from_any(quotient), F(2.0**-126)))


def block_scale_fouroversix_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above amax / element_max; NaN gives the smallest scale, infinity the NaN scale."""
    return np.where(np.isnan(amax), F(0), finite(amax, up_from_any(amax / k.element_max)))


def scaled_or_zero(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s, or 0 where the scale's byte is 0."""
    return zero_unless(s != SMALLEST_E8M0, x / s)


def block_scale_flashinfer_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above amax * fp32(1/6)."""
    return up_from_any(amax * SIXTH)


def block_scale_jax_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax / element_max."""
    return amax / k.element_max


def scaled_jax_mx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; 2^-127 is flushed, so x * infinity there."""
    return np.where(s == SMALLEST_E8M0, x * F(np.inf), x / s)


def block_scale_modelopt_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(max(log2(amax / 6), -127)) with a rounded log2."""
    return finite(amax, exp2(np.ceil(np.maximum(log2(amax / F(6)), F(-127)))))


def block_scale_trace_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^floor(log2(amax / element_max)) with a rounded log2; 1 for zero."""
    t = amax / k.element_max
    return exp2(np.floor(log2(np.where(t > 0, t, F(1)))))


def block_scale_qwix_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two below c * amax / element_max, c = 12/7 or 60/31: outliers saturate on purpose."""
    c = np.asarray(12 / 7 if k.element.bits == 4 else 60 / 31, F)
    d = k.narrow(amax / k.element_max)
    d = np.where(d < SMALLEST_QWIX, F(1), d)
    exponent = np.minimum(exponent_field(narrow_bfloat16(d * k.narrow(c))) - 127, 127)
    return np.where(np.isfinite(amax), two_to(exponent), amax)


COMPRESSED_TENSORS_MX = register_arithmetic(
    "compressed-tensors-mx", block_scale_compressed_tensors_mx, working_scale=infinite
)
TORCHAO_MX = {
    mode: register_arithmetic(f"torchao-{mode}", block_scale, working_scale=smallest_normal_or_infinite)
    for mode, block_scale in (
        ("floor", block_scale_torchao_floor),
        ("ceil", block_scale_torchao_ceil),
        ("even", block_scale_torchao_even),
    )
} | {"rceil": register_arithmetic("torchao-rceil", block_scale_torchao_rceil, scaled_or_as_it_is)}
DEEPGEMM = register_arithmetic("deepgemm", block_scale_deepgemm)
FOUROVERSIX_MX = register_arithmetic("fouroversix-mx", block_scale_fouroversix_mx, scaled_or_zero)
FLASHINFER_MX = register_arithmetic("flashinfer-mx", block_scale_flashinfer_mx, scaled_or_zero)
JAX_MX = register_arithmetic("jax-mx", block_scale_jax_mx, scaled_jax_mx, working_scale=infinite)
MODELOPT_MX = register_arithmetic("modelopt-mx", block_scale_modelopt_mx, working_scale=unrounded)
FLASHINFER_TRACE_MX = register_arithmetic("flashinfer-trace-mx", block_scale_trace_mx)
QWIX_MX = register_arithmetic("qwix-mx", block_scale_qwix_mx, working_scale=infinite)


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
