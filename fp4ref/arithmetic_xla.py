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


def block_scale_qwix_ceil(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(amax / element_max)), where log2 is a natural logarithm over that of 2, rounded to the input's type.

    In float32 it is multiplied by fp32(1 / ln 2), in bfloat16 divided by bfloat16(ln 2), which is not log2 far from 1.
    """
    logarithm = np.log(quotient_qwix(amax, k).astype(np.float64)).astype(F)
    wide = logarithm * F(1 / np.log(2))
    narrow = k.narrow(k.narrow(logarithm) / k.narrow(np.asarray(np.log(2), F)))
    exponent = np.ceil(wide if k.is_float32 else narrow)
    return np.where(np.isfinite(amax), exp2(exponent), amax)


QWIX = register_arithmetic("qwix", block_scale_qwix, scaled_qwix)
QWIX_MX = register_arithmetic("qwix-mx", block_scale_qwix_mx, working_scale=infinite)
QWIX_CEIL = register_arithmetic("qwix-ceil", block_scale_qwix_ceil, scaled_qwix, working_scale=infinite)
