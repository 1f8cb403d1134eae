"""Scales with a mantissa: global scales, block scales, scaled elements and values, one function per formula of PRO-3.

Without a global scale g is 1. `a` is a block's amax, `A` the global one, `T` scale_max * element_max, `E` element_max.

Rules: PRO-3, DEQ-5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref_torch import codecs
from fp4ref_torch.exact import FLT_MAX, bits, div, is_finite, is_nan, is_zero, mul, rounded_bfloat16
from fp4ref_torch.known import Known, at_least_nan, at_most, at_most_nan, first_of_the_nearest, flushed, fused
from fp4ref_torch.reciprocal import reciprocal

BF16_MAX = (2 - 2**-7) * 2.0**127


# Global scales


def one(amax: Tensor, k: Known) -> Tensor:
    """1. Rules: GLB-6."""
    return torch.ones_like(amax)


def encoding(amax: Tensor, k: Known) -> Tensor:
    """T / A."""
    return div(k.total, amax)


def encoding_te(amax: Tensor, k: Known) -> Tensor:
    """min(T / A, FLT_MAX); 1 if A or the quotient is 0. Rules: GLB-2, GLB-3.

    Certificates: encoding-*.
    """
    g = at_most(encoding(amax, k), FLT_MAX)
    return torch.where(is_zero(amax) | is_zero(g), 1.0, g)


def encoding_te_python(amax: Tensor, k: Known) -> Tensor:
    """min_nan(T / A, FLT_MAX); 1 if that is 0."""
    g = at_most_nan(encoding(amax, k), FLT_MAX)
    return torch.where(is_zero(g), 1.0, g)


def encoding_te_rht(amax: Tensor, k: Known) -> Tensor:
    """min_nan(T / A, FLT_MAX) if A > 0, else 1."""
    return torch.where(amax > 0, at_most_nan(encoding(amax, k), FLT_MAX), 1.0)


def encoding_or_one(amax: Tensor, k: Known) -> Tensor:
    """T / A; 1 if A is 0."""
    return torch.where(is_zero(amax), 1.0, encoding(amax, k))


def encoding_by_reciprocal(amax: Tensor, k: Known) -> Tensor:
    """T * (1 / A)."""
    return mul(k.total, k.over(amax))


def encoding_narrow(amax: Tensor, k: Known) -> Tensor:
    """n(n(1 / A) * T); 1 if that is not finite."""
    g = k.narrow(mul(k.narrow(k.over(amax)), k.total))
    return torch.where(is_finite(g), g, 1.0)


def encoding_current(amax: Tensor, k: Known) -> Tensor:
    """Return E / A, the largest number of the input's type where that overflows; 1 where A is 0 or infinite."""
    g = div(k.element_max, amax)
    g = torch.where(is_finite(g) | is_nan(g), g, torch.finfo(k.dtype).max)
    return torch.where(is_zero(amax) | ~(is_finite(amax) | is_nan(amax)), 1.0, g)


def encoding_delayed(amax: Tensor, k: Known) -> Tensor:
    """min(E / A, FLT_MAX); 1 unless A is positive and finite."""
    return torch.where((amax > 0) & is_finite(amax), at_most(div(k.element_max, amax), FLT_MAX), 1.0)


def decoding(amax: Tensor, k: Known) -> Tensor:
    """Return a / T."""
    return div(amax, k.total)


# Block scales


def block_te(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """min(a * (g * fp32(1/6)), FLT_MAX). Rules: BLK-3."""
    return at_most(block_te_python(amax, g, k), FLT_MAX)


def block_te_python(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return a * (g * fp32(1/6))."""
    return mul(amax, mul(g, k.sixth))


def block_division(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return (a / 6) * g. Rules: FOS-1."""
    return mul(div(amax, k.value(6)), g)


def block_torchao(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """clamp_nan((a / 6) / g, 2^-6, scale_max)."""
    t = div(div(amax, k.value(6)), g)
    return at_most_nan(at_least_nan(t, 2.0**-6), k.spec.scale_max)


def block_modelopt(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return a / (6 * g); 0 becomes 1."""
    t = div(amax, mul(k.value(6), g))
    return torch.where(is_zero(t), 1.0, t)


def block_modelopt_clamped(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """clamp_nan(a / (6 * g), 2^-9, scale_max), 0 taken as 1."""
    return at_most_nan(at_least_nan(block_modelopt(amax, g, k), 2.0**-9), k.spec.scale_max)


def block_compressed_tensors(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """min_nan(g * n(a / 6), scale_max); 1/8 if its byte means 0."""
    t = at_most_nan(mul(g, k.narrow(div(amax, k.value(6)))), k.spec.scale_max)
    stored = codecs.decode(codecs.encode(t, k.spec.scale), k.spec.scale.format)
    return torch.where(is_zero(stored), 0.125, t)


def block_fouroversix(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return (a / E) * g."""
    return mul(div(amax, k.element_max), g)


def block_flashinfer(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """g * (a * fp32(1/6))."""
    return mul(g, mul(amax, k.sixth))


def decoding_jax(amax: Tensor, k: Known) -> Tensor:
    """Return flush(a / T)."""
    return flushed(decoding(amax, k))


def times_reciprocal(x: Tensor, d: Tensor, k: Known) -> Tensor:
    """Return flush(x * flush(1 / d))."""
    return flushed(mul(x, flushed(k.over(d))))


def block_jax(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """min_nan(flush(abs(flush(a * flush(1 / g))) * fp32(1/6)), scale_max)."""
    return at_most_nan(flushed(mul(times_reciprocal(amax, g, k).abs(), k.sixth)), k.spec.scale_max)


def block_qwix(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """n(a * fp32(1/6)); 1 if below 2^-63."""
    t = k.narrow(mul(amax, k.sixth))
    return torch.where(t < 2.0**-63, 1.0, t)


def block_one(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """1."""
    return torch.ones_like(amax)


# Elements


def scaled_te(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * min(1 / (s * (1 / g)), FLT_MAX). Rules: BLK-4, BLK-5, BLK-6."""
    return mul(x, at_most(k.over(mul(s, k.over(g))), FLT_MAX))


def scaled_te_python(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * min_nan(1 / (s * (1 / g)), FLT_MAX)."""
    return mul(x, at_most_nan(k.over(mul(s, k.over(g))), FLT_MAX))


def scaled_te_cpp_test_oracle(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * 0 if s = 0, else that of `te`."""
    factor = at_most(k.over(mul(s, k.over(g))), FLT_MAX)
    return mul(x, torch.where(is_zero(s), 0.0, factor))


def scaled_te_fast(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """fma(x, bf16(min(g / s, largest bfloat16)), +0). Rules: BLK-11."""
    return fused(x, rounded_bfloat16(at_most(div(g, s), BF16_MAX)))


def scaled_torchao(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * ((1 / g) / s); a NaN of g becomes +-1.5, one of s alone +-2."""
    product = mul(x, div(k.over(g), s))
    from_scale = torch.where(bits(s) < 0, -2.0, 2.0)
    from_global = torch.where(bits(g) < 0, -1.5, 1.5)
    return torch.where(is_nan(g), from_global, torch.where(is_nan(s), from_scale, product))


def scaled_modelopt(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / (s * g)."""
    return div(x, mul(s, g))


def scaled_compressed_tensors(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x / (s / g)."""
    return div(x, div(s, g))


def scaled_fouroversix(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * (1 / ((1 / g) * s)); +0 if s = 0."""
    return torch.where(is_zero(s), 0.0, mul(x, k.over(mul(k.over(g), s))))


def scaled_flashinfer(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * (1 / u) with u = s * (1 / g); x * 0 if u = 0."""
    u = mul(s, k.over(g))
    return mul(x, torch.where(is_zero(u), 0.0, k.over(u)))


def scaled_flashinfer_trace(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """first(v) of v = (x * g) / s, with 1 for s unless s > 0."""
    return first_of_the_nearest(div(mul(x, g), torch.where(s > 0, s, 1.0)))


def scaled_jax(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """flush(flush(x * flush(1 / g)) * flush(1 / s))."""
    return times_reciprocal(times_reciprocal(x, g, k), s, k)


def scaled_qwix(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """n(x * (1 / s))."""
    return k.narrow(mul(x, k.over(s)))


def scaled_kernel(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * rcp(s * rcp(g)); x * 0 if s = 0. Rules: APX-1."""
    return mul(x, torch.where(is_zero(s), 0.0, reciprocal(mul(s, reciprocal(g)))))


def scaled_kernel_by_amax(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return the same; x * 0 only if every element of the block is 0 or NaN. Rules: APX-1."""
    nothing = (is_zero(x) | is_nan(x)).to(torch.int32).amin((1, 3), keepdim=True) == 1
    return mul(x, torch.where(nothing, 0.0, reciprocal(mul(s, reciprocal(g)))))


def scaled_cutlass(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """x * min_nan(g * rcp(s), FLT_MAX). Rules: APX-1."""
    return mul(x, at_most_nan(mul(g, reciprocal(s)), FLT_MAX))


def scaled_quotient(x: Tensor, s: Tensor, g: Tensor, k: Known) -> Tensor:
    """Return x * (g / s)."""
    return mul(x, div(g, s))


# Values


def values_te(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * ((s * A) * fp32(1/T)). Rules: DEQ-1."""
    return mul(q, mul(mul(s, amax), k.over(k.total)))


def values_decoding(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * (s * (A / T)). Rules: DEQ-5."""
    return mul(q, mul(s, decoding(amax, k)))


def values_encoding(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * (s / (T * (1 / A))). Rules: DEQ-5."""
    return mul(q, div(s, encoding_by_reciprocal(amax, k)))


def values_narrow(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * (s / n(n(1 / A) * T)), with 1 for a divisor that is not finite. Rules: DEQ-5."""
    return mul(q, div(s, encoding_narrow(amax, k)))


def values_through_amax(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """((q * s) * A) / T. Rules: DEQ-5."""
    return div(mul(mul(q, s), amax), k.total)


def values_current(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * (s / g) with the g of `te-fp8-current`. Rules: DEQ-5."""
    return mul(q, div(s, encoding_current(amax, k)))


def values_delayed(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * (s / g) with the g of `te-fp8-delayed`. Rules: DEQ-5."""
    return mul(q, div(s, encoding_delayed(amax, k)))


def product(q: Tensor, s: Tensor, amax: Tensor, k: Known) -> Tensor:
    """q * s. Rules: DEQ-2."""
    return mul(q, s)
