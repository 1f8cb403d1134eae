"""Scales that are powers of two: block scales and scaled elements, one function per formula of PRO-3.

`a` is a block's amax, `E` element_max; g is 1.

Rules: PRO-3, MXS-1, MXS-2, MXS-3, MXS-4, MXS-5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref_torch.exact import INFINITY, bits, div, floats, is_finite, is_nan, is_zero, mul, rounded_bfloat16
from fp4ref_torch.known import Known, at_least_nan, at_most_nan, flushed, fused
from fp4ref_torch.reciprocal import reciprocal

NAN, INF = float("nan"), float("inf")
MANTISSA = 0x7F_FFFF
LARGEST = 0x7F7F_FFFF  # bits of FLT_MAX
SMALLEST_NORMAL = 2.0**-126


# Block scales


def block_rceil(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return a * fp32(1/E), which the codec rounds up. Rules: MXS-1."""
    return mul(amax, k.over(k.element_max))


def block_ocp_rceil(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return the same; NaN if a is not finite. Rules: MXS-1, MXS-5."""
    return torch.where(is_finite(amax), block_rceil(amax, g, k), NAN)


def exponent(amax: Tensor, addend: int, k: Known) -> Tensor:
    """2^(field - 127 - emax), held within E8M0: field is the exponent of a's bits plus an addend; a is finite."""
    word = torch.where(is_finite(amax), bits(amax), 0)
    code = ((word + addend >> 23) - k.spec.element.format.emax).clamp(0, 254)
    return floats(torch.where(code == 0, 1 << 22, code << 23))


def half_step(mantissa_bits: int) -> int:
    """Return the number that makes a mantissa of some bits carry where it rounds half up."""
    return 1 << (22 - mantissa_bits)


def block_ocp_floor(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """FLOOR. Rules: MXS-2, MXS-5."""
    return torch.where(is_finite(amax), exponent(amax, 0, k), NAN)


def block_ocp_ceil(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """CEIL. Rules: MXS-3, MXS-5."""
    return torch.where(is_finite(amax), exponent(amax, MANTISSA, k), NAN)


def block_ocp_even(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """EVEN. Rules: MXS-4, MXS-5."""
    return torch.where(is_finite(amax), exponent(amax, half_step(k.spec.element.format.mantissa_bits), k), NAN)


def block_torchao_even_carry(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """EVEN; NaN if a is not finite, or becomes so."""
    half = half_step(k.spec.element.format.mantissa_bits)
    stays = is_finite(amax) & (torch.where(is_finite(amax), bits(amax), 0) + half < INFINITY)
    return torch.where(stays, exponent(amax, half, k), NAN)


def block_compressed_tensors_mx(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """n(FLOOR of p), 1 for 0, Inf if p is infinite; p is n(the power of two of a rounded half up to one bit).

    Below the smallest normal number of the type p is that number from 3/4 of it on, else 0.
    """
    low, finite = k.smallest_normal, is_finite(amax)
    word = torch.where(finite, bits(amax), 0) + half_step(1) & INFINITY
    power = torch.where(amax < low, torch.where(amax < 0.75 * low, 0.0, low), k.narrow(floats(word)))
    scale = k.narrow(exponent(power, 0, k))
    scale = torch.where(scale == 0, 1.0, scale)
    return torch.where(finite & is_finite(power), scale, INF)


def exponent_of_any(amax: Tensor, addend: int, k: Known) -> Tensor:
    """2^(field - 127 - emax), held within E8M0, also for the field of infinity; NaN if a is NaN."""
    word = torch.where(is_nan(amax), 0, bits(amax))
    code = ((word + addend >> 23) - k.spec.element.format.emax).clamp(0, 254)
    return torch.where(is_nan(amax), NAN, floats(torch.where(code == 0, 1 << 22, code << 23)))


def block_torchao_floor(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """FLOOR, with the exponent bits of infinity as they are; NaN if a is NaN. Rules: MXS-2."""
    return exponent_of_any(amax, 0, k)


def block_torchao_ceil(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """CEIL in the same way. Rules: MXS-3."""
    return exponent_of_any(amax, MANTISSA, k)


def block_torchao_even(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """EVEN in the same way. Rules: MXS-4."""
    return exponent_of_any(amax, half_step(k.spec.element.format.mantissa_bits), k)


def up(x: Tensor) -> Tensor:
    """2^(((bits(x) + 0x7FFFFF) >> 23) - 127) of x >= 0; x itself if not finite."""
    word = torch.where(is_finite(x), bits(x), 0)
    field = word + MANTISSA >> 23
    return torch.where(is_finite(x), floats(torch.where(field == 0, 1 << 22, field << 23)), x)


def block_deepgemm(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """max_nan(up(max_nan(a, fp32(1e-4)) / E), 2^-126); Inf if a is NaN."""
    floor = k.value(1e-4)
    quotient = div(torch.where(amax < floor, floor, amax), k.element_max)
    return torch.where(is_nan(amax), INF, at_least_nan(up(quotient), SMALLEST_NORMAL))


def block_fouroversix_mx(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """up(a / E); 0 if a is NaN."""
    return torch.where(is_nan(amax), 0.0, up(div(amax, k.element_max)))


def block_flashinfer_mx(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """up(a * fp32(1/6)); 0 if a is NaN."""
    return torch.where(is_nan(amax), 0.0, up(mul(amax, k.sixth)))


def block_te_fp8(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """1 / p, p the power of two of min(E / a, FLT_MAX); 1 if a is 0 or infinite."""
    ordinary = is_finite(amax) & ~is_zero(amax)
    wanted = div(k.element_max, torch.where(ordinary, amax, 1.0))
    field = torch.where(is_finite(wanted), bits(wanted), LARGEST) >> 23
    return torch.where(ordinary, floats(torch.where(field == 254, 1 << 22, 254 - field << 23)), 1.0)


def block_jax_mx(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """n(flush(a / E))."""
    return k.narrow(flushed(div(amax, k.element_max)))


def block_qwix_mx(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """pow2(exponent of bf16(d * n(fp32(c)))), d = n(a / E), 1 if below 2^-63; a if not finite."""
    c = k.narrow(k.value(12 / 7 if k.spec.element.format.bits == 4 else 60 / 31))
    d = k.narrow(div(amax, k.element_max))
    word = bits(rounded_bfloat16(mul(torch.where(d < 2.0**-63, 1.0, d), c))) & INFINITY
    return torch.where(is_finite(amax), floats(word.clamp(max=254 << 23)), amax)


# Elements


def divided(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / s. Rules: BLK-10."""
    return div(x, s)


def scaled_cast_only(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """fma(x, 1 / s, +0). Rules: BLK-11."""
    return fused(x, k.over(s))


def scaled_or_as_it_is(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / s, with 1 for s if the byte is 0."""
    return div(x, torch.where(is_smallest(s), 1.0, s))


def scaled_kernel_mxfp8(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """clamp_nan(x * rcp(s), -E, E), with 0 for rcp(s) if the byte is 0. Rules: APX-1."""
    top = k.spec.element_max or k.spec.element.format.max
    y = mul(x, torch.where(is_smallest(s), 0.0, reciprocal(s)))
    return at_most_nan(at_least_nan(y, -top), top)


def normal_or_infinite(s: Tensor) -> Tensor:
    """Return the divisor of a scale, float32: 2^-126 if its byte is 0, Inf if it is FF."""
    return torch.where(is_smallest(s), SMALLEST_NORMAL, torch.where(is_nan(s), INF, s))


def scaled_or_zero(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / s; +0 if the byte is 0."""
    return torch.where(is_smallest(s), 0.0, div(x, s))


def scaled_unguarded(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / s, with 0 for s if the byte is 0."""
    return div(x, torch.where(is_smallest(s), 0.0, s))


def scaled_narrow(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """n(x / s)."""
    return k.narrow(div(x, s))


def scaled_jax_mx(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / s; x * Inf if the byte is 0."""
    return torch.where(is_smallest(s), mul(x, k.value(INF)), div(x, s))


def is_smallest(s: Tensor) -> Tensor:
    """Return True if an E8M0 byte is 0."""
    return bits(s) == 1 << 22
