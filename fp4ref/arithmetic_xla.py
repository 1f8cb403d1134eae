"""Scale arithmetic of JAX and qwix on XLA for the CPU, which flushes subnormal numbers after every operation.

XLA turns a division by a broadcast number into a product with its reciprocal.

Rules: PRO-1, PRO-2, PRO-3.
"""

import numpy as np

from fp4ref.arithmetic import (
    SIXTH,
    Constants,
    exponent_field,
    narrow_bfloat16,
    register_arithmetic,
    two_to,
)
from fp4ref.arithmetic_peers import SMALLEST_E8M0, decoding, dequantized_decoding
from fp4ref.arithmetic_peers_mx import exp2, infinite
from fp4ref.formats import F, Floats

SMALLEST_QWIX = F(2.0**-63)


def flushed(x: Floats) -> Floats:
    """x, or a zero of its sign where x is subnormal."""
    return np.where(np.abs(x) < np.finfo(F).tiny, np.copysign(F(0), x), x)


def decoding_jax(amax: Floats, k: Constants) -> Floats:
    """amax / (scale_max * element_max), flushed."""
    return flushed(decoding(amax, k))


def divided_by_global(x: Floats, g: Floats) -> Floats:
    """x * (1 / g), both flushed."""
    return flushed(x * flushed(F(1) / g))


def block_scale_jax(amax: Floats, g: Floats, k: Constants) -> Floats:
    """|amax * (1 / g)| * fp32(1/6), at most scale_max; flushed after every operation."""
    return np.minimum(flushed(np.abs(divided_by_global(amax, g)) * SIXTH), k.scale_max)


def scaled_jax(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """(x * (1 / g)) * (1 / s), flushed after every operation."""
    return flushed(divided_by_global(x, g) * flushed(F(1) / s))


def block_scale_jax_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax / element_max, flushed, in the input's type."""
    return k.narrow(flushed(amax / k.element_max))


def scaled_jax_mx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; 2^-127 is flushed, so x * infinity there."""
    return np.where(s == SMALLEST_E8M0, x * F(np.inf), x / s)


JAX = register_arithmetic("jax", block_scale_jax, scaled_jax, decoding_jax, dequantized=dequantized_decoding)
JAX_MX = register_arithmetic("jax-mx", block_scale_jax_mx, scaled_jax_mx, working_scale=infinite)


def block_scale_qwix(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax * fp32(1/6) in the input's type; below 2^-63 it becomes 1."""
    t = k.narrow(amax * SIXTH)
    return np.where(t < SMALLEST_QWIX, F(1), t)


def scaled_qwix(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / s) in the input's type."""
    return k.narrow(x * (F(1) / s))


def quotient_qwix(amax: Floats, k: Constants) -> Floats:
    """amax / element_max in the input's type; below 2^-63 it becomes 1."""
    d = k.narrow(amax / k.element_max)
    return np.where(d < SMALLEST_QWIX, F(1), d)


def block_scale_qwix_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two below c * amax / element_max, c = 12/7 or 60/31: outliers saturate on purpose."""
    c = np.asarray(12 / 7 if k.element.bits == 4 else 60 / 31, F)
    product = narrow_bfloat16(quotient_qwix(amax, k) * k.narrow(c))
    exponent = np.minimum(exponent_field(product) - 127, 127)
    return np.where(np.isfinite(amax), two_to(exponent), amax)


# ln(1 + t) = t - t^2 / 2 + t^3 * (P(t) + Q(t) t^3 + R(t) t^6) on [sqrt(1/2), sqrt(2)], three factors of each from the
# highest power down, and ln 2 in two parts.
LOG_HIGH = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1)
LOG_MIDDLE = (-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1)
LOG_LOW = (2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
LN2_LOW, LN2_HIGH = -2.12194440e-4, 0.693359375
ROOT_HALF = F(0.707106781186547524)


def fused(a: Floats, b: Floats | float, c: Floats | float) -> Floats:
    """a * b + c, rounded once.

    float64 holds the product. The sum is rounded to odd there, which leaves the one rounding to float32.
    """
    product, third = np.asarray(a, np.float64) * np.asarray(F(b), np.float64), np.asarray(F(c), np.float64)
    total = product + third
    back = total - product
    rest = (product - (total - back)) + (third - back)
    even = total.view(np.int64) % 2 == 0
    return np.where((rest != 0) & even, np.nextafter(total, np.copysign(np.inf, rest)), total).astype(F)


def logarithm(x: Floats) -> Floats:
    """The natural logarithm of a positive normal number as XLA computes it on a CPU. Rules: PRO-8."""
    bits = x.view(np.uint32)
    significand = (bits & 0x007FFFFF | 0x3F000000).view(F)  # in [1/2, 1)
    small = significand < ROOT_HALF
    exponent = exponent_field(x).astype(F) - F(126) - small
    t = (significand - F(1)) + np.where(small, significand, F(0))
    square = t * t
    cube = square * t
    parts = [fused(fused(t, high, middle), t, low) for high, middle, low in (LOG_HIGH, LOG_MIDDLE, LOG_LOW)]
    y = fused(fused(parts[0], cube, parts[1]), cube, parts[2])
    y = fused(y, cube, exponent * F(LN2_LOW))
    return fused(exponent, LN2_HIGH, fused(square, -0.5, t) + y)


def block_scale_qwix_ceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(amax / element_max)), where log2 is a natural logarithm over that of 2, rounded to the input's type.

    In float32 it is multiplied by fp32(1 / ln 2), in bfloat16 divided by bfloat16(ln 2), which is not log2 far from 1.
    """
    d = k.narrow(amax * (F(1) / F(k.element_max)))
    natural = logarithm(np.where(d < SMALLEST_QWIX, F(1), d))
    wide = natural * F(1 / np.log(2))
    narrow = k.narrow(k.narrow(natural) / k.narrow(np.asarray(np.log(2), F)))
    exponent = np.ceil(wide if k.is_float32 else narrow)
    return np.where(np.isfinite(amax), exp2(exponent), amax)


QWIX = register_arithmetic("qwix", block_scale_qwix, scaled_qwix)
QWIX_MX = register_arithmetic("qwix-mx", block_scale_qwix_mx, working_scale=infinite)
QWIX_CEIL = register_arithmetic("qwix-ceil", block_scale_qwix_ceil, scaled_qwix, working_scale=infinite)
