"""Scale arithmetic of other public implementations, one record each.

g encodes (x * g) or decodes (q * s * g) as each implementation has it; see the functions' one-line formulas.

Rules: PRO-1, PRO-2.
"""

from collections.abc import Sequence

import numpy as np

from fp4ref.arithmetic import (
    BF16_MAX,
    FLT_MAX,
    SIXTH,
    Constants,
    block_scale_division,
    block_scale_rceil,
    block_scale_te,
    dequantized_te,
    encoding_te,
    register_arithmetic,
    scaled_te,
)
from fp4ref.formats import F, Floats
from fp4ref.reciprocal import reciprocal_approx

SMALLEST_E8M0 = F(2.0**-127)
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)  # the E2M1 values, twice
FAR = F(2.0**24)  # below it, the distances from y to these values are told apart
TINIEST = F(2.0**-149)


def least_error(x: Floats, d: Floats | np.float32, numbers: Sequence[int]) -> Floats:
    """n / 2, n the first of `numbers` whose rounded distance abs(n * d - x) is the smallest; a NaN is never smaller."""
    best = np.zeros(np.broadcast_shapes(x.shape, np.shape(d)), F)
    error = np.abs(F(numbers[0]) * d - x)
    for number in numbers[1:]:
        distance = np.abs(F(number) * d - x)
        closer = distance < error
        best, error = np.where(closer, F(number / 2), best), np.where(closer, distance, error)
    return best


def zero_unless(test: Floats, value: Floats) -> Floats:
    """value, or +0 where the test fails."""
    return np.where(test, value, F(0))


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


def largest_of_type(k: Constants) -> np.float32:
    """Return the largest finite number of the input's type."""
    if k.is_float32:
        return F(FLT_MAX)
    return F(BF16_MAX if k.smallest_normal == np.finfo(F).tiny else np.finfo(np.float16).max)


def global_scale_te_current(amax: Floats, k: Constants) -> Floats:
    """element_max / amax, the largest number of the input's type where that overflows; 1 for 0 and infinity."""
    g = k.element_max / amax
    return np.where((amax == 0) | np.isinf(amax), F(1), np.where(np.isinf(g), largest_of_type(k), g))


def global_scale_te_delayed(amax: Floats, k: Constants) -> Floats:
    """min(element_max / amax, FLT_MAX); 1 unless amax is positive and finite."""
    return np.where((amax > 0) & np.isfinite(amax), np.fmin(k.element_max / amax, FLT_MAX), F(1))


def block_scale_one(amax: Floats, g: Floats, k: Constants) -> Floats:
    """1: the global scale is the only one."""
    return np.ones_like(amax)


def scaled_quotient(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (g / s)."""
    return x * (g / s)


def dequantized_te_current(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s / g). Rules: DEQ-5."""
    return q * (s / global_scale_te_current(amax, k))


def dequantized_te_delayed(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s / g). Rules: DEQ-5."""
    return q * (s / global_scale_te_delayed(amax, k))


TE_FP8_CURRENT = register_arithmetic(
    "te-fp8-current",
    block_scale_one,
    scaled_quotient,
    global_scale_te_current,
    dequantized=dequantized_te_current,
)
TE_FP8_DELAYED = register_arithmetic(
    "te-fp8-delayed",
    block_scale_one,
    scaled_quotient,
    global_scale_te_delayed,
    dequantized=dequantized_te_delayed,
)


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


TE_PYTHON_DIVISION = register_arithmetic(
    "te-python-division",
    block_scale_division,
    scaled_te_keeping_nan,
    global_scale_te_python,
    dequantized=dequantized_te,
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


def block_scale_modelopt_clamped(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax / (6 * g), an exact 0 taken as 1; held within [2^-9, scale_max], E4M3's positive values."""
    return np.clip(block_scale_modelopt(amax, g, k), F(2.0**-9), k.scale_max)


MODELOPT = register_arithmetic(
    "modelopt", block_scale_modelopt_clamped, scaled_modelopt, decoding, dequantized=dequantized_decoding
)
MODELOPT_UNCLAMPED = register_arithmetic(
    "modelopt-unclamped", block_scale_modelopt, scaled_modelopt, decoding, dequantized=dequantized_decoding
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
    return first_of_the_nearest(np.asarray(x * g / np.where(s > 0, s, F(1)), F))


def first_of_the_nearest(y: Floats) -> Floats:
    """y, but from 2^24 on the first of the E2M1 values whose rounded distance from y is the smallest, of y's sign.

    Far away all distances round to one number, and the first value, 0, is chosen. The smallest subnormal stands for it,
    because its sign shows.
    """
    nearest = least_error(np.abs(y), F(0.5), HALVES)
    return np.where(np.abs(y) >= FAR, np.copysign(np.maximum(nearest, TINIEST), y), y)


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
