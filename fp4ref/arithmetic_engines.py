"""Scale arithmetic of inference engines and kernel libraries: ggml, MLX, triton_kernels, vLLM, aiter, Quark, Comfy.

Where an element is the listed number with the least error, `scaled` returns that number, and the codec is exact.

Rules: PRO-1, PRO-2, PRO-3.
"""

from functools import partial

import numpy as np

from fp4ref.arithmetic import (
    MANTISSA,
    NEVER,
    SIXTH,
    Constants,
    Integers,
    exponent_field,
    finite,
    half_carry,
    register_arithmetic,
    two_to,
)
from fp4ref.arithmetic_peers import (
    HALVES,
    SMALLEST_E8M0,
    decoding,
    dequantized_encoding,
    encoding,
    encoding_by_reciprocal,
    least_error,
    zero_unless,
)
from fp4ref.arithmetic_peers_mx import (
    block_scale_mlx_metal,
    exp2,
    infinite,
    infinite_for_nan,
    log2,
    scaled_mlx_metal,
    up_from_any,
)
from fp4ref.formats import E8M0, F, Floats

SIGNED_HALVES = (*HALVES, *(-number for number in HALVES[1:]))
BYTES = 256
LARGEST_BYTE = BYTES - 1


# ggml


def block_scale_ggml(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The meaning of byte floor(log2 amax) - emax + 127, modulo 256, log2 rounded; 2^-127 for 0, NaN and infinity."""
    exponent = np.nan_to_num(np.floor(log2(amax)), neginf=0, posinf=0).astype(np.int64)
    byte = (exponent - k.element.emax + E8M0.bias) % BYTES
    scale = np.where(byte == LARGEST_BYTE, NEVER, two_to(byte - E8M0.bias))
    return np.where((amax > 0) & np.isfinite(amax), scale, SMALLEST_E8M0)


def scaled_ggml(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """The value q for which (2 * q) * (s / 2) is nearest to x, the first in the order 0 to 6, -0.5 to -6."""
    return least_error(x, s * F(0.5), SIGNED_HALVES)


def block_scale_ggml_ue4m3(amax: Floats, g: Floats, k: Constants) -> Floats:
    """min(amax / 6, 448) on the grid of E4M3, ties away from zero; from 248 on 448.

    A subnormal is counted in steps of 2^-9, at most 7 of them.
    """
    t = np.minimum(amax / F(6), F(448))
    field = exponent_field(t) - 127 + k.scale.format.bias
    steps = np.minimum(np.floor(t * F(2.0**9) + F(0.5)), F(7))
    normal = ((np.asarray(t, F).view(np.uint32) + (1 << 19)) >> 20 << 20).view(F)  # three bits of mantissa, half up
    return np.where(field <= 0, steps * F(2.0**-9), np.where(normal < F(256), normal, F(448)))


GGML = register_arithmetic("ggml", block_scale_ggml, scaled_ggml)
GGML_NVFP4 = register_arithmetic("ggml-nvfp4", block_scale_ggml_ue4m3, scaled_ggml)


# MLX


def ceil_log2(t: Floats) -> Integers:
    """ceil(log2 t) of t > 0, exact."""
    mantissa, exponent = np.frexp(t)
    return np.asarray(exponent - (mantissa == 0.5), np.int64)


def block_scale_mlx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^e, e = ceil(log2(amax / element_max)), 1 for 0; where the stored byte wraps, -2^(e + 256).

    A maximum that is not finite is stored as byte 80 from float32 and as 00 from 16 bits, and divides by 0.
    """
    t = k.narrow(np.asarray(amax / k.element_max, F))
    exponent = np.where(t > 0, ceil_log2(np.where(np.isfinite(t), t, F(1))), 0)
    wrapped = np.where(exponent == -128, -np.abs(NEVER), -two_to(np.minimum(exponent + BYTES, 127)))
    lost = F(-2) if k.is_float32 else -SMALLEST_E8M0
    return np.where(np.isfinite(amax), np.where(exponent < -127, wrapped, two_to(exponent)), lost)


def working_mlx(t: Floats, s: Floats) -> Floats:
    """The scale before it was stored: 2^-256 times a negative one."""
    wrapped = np.where(np.isnan(t), F(2.0**-128), np.ldexp(-t, -BYTES))
    return np.where(np.signbit(t), wrapped, t)


def scaled_mlx_fp8(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s in the input's type, and s too."""
    return k.narrow(x / k.narrow(s))


def scaled_mlx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """The first value, in the order 0 to 6, -0.5 to -6, that is nearest to (x / s in the input's type) * g."""
    return least_error(np.asarray(scaled_mlx_fp8(x, s, g, k) * g, F), F(0.5), SIGNED_HALVES)


def block_scale_mlx_nvfp4(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / 6 in the input's type) * g."""
    return np.asarray(k.narrow(amax / F(6)) * g, F)


def dequantized_mlx(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (s / g), g = 2688 / amax. Rules: DEQ-5."""
    return q * (s / encoding(amax, k))


MLX = register_arithmetic("mlx", block_scale_mlx, scaled_mlx, working_scale=working_mlx)
MLX_FP8 = register_arithmetic("mlx-fp8", block_scale_mlx, scaled_mlx_fp8, working_scale=working_mlx)
MLX_NVFP4 = register_arithmetic("mlx-nvfp4", block_scale_mlx_nvfp4, scaled_mlx)
MLX_NVFP4_GLOBAL = register_arithmetic(
    "mlx-nvfp4-global", block_scale_mlx_nvfp4, scaled_mlx, encoding, dequantized=dequantized_mlx
)
MLX_METAL = register_arithmetic("mlx-metal", block_scale_mlx_metal, scaled_mlx_metal, working_scale=infinite_for_nan)
MLX_METAL_GLOBAL = register_arithmetic(
    "mlx-metal-global", block_scale_mlx_metal, scaled_mlx_metal, encoding, dequantized=dequantized_mlx
)


# triton_kernels


def block_scale_triton_up(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two above amax / element_max, infinity too; NaN gives the smallest scale."""
    return zero_unless(~np.isnan(amax), up_from_any(amax / k.element_max))


def block_scale_triton_down(amax: Floats, g: Floats, k: Constants) -> Floats:
    """The power of two below amax / 2^emax, the smallest scale for a subnormal; infinity for what is not finite."""
    t = np.asarray(amax / two_to(np.asarray(k.element.emax)), F)
    return np.where(np.isfinite(t), two_to(exponent_field(t) - 127), F(np.inf))


def scaled_by_reciprocal(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / s), the factor 0 where the scale or its byte is 0."""
    return np.asarray(x * zero_unless((s != 0) & (s != SMALLEST_E8M0), np.asarray(F(1) / s)), F)


def block_scale_sixth(amax: Floats, g: Floats, k: Constants) -> Floats:
    """amax / 6."""
    return np.asarray(amax / F(6), F)


TRITON_UP = register_arithmetic("triton-up", block_scale_triton_up, scaled_by_reciprocal, working_scale=infinite)
TRITON_DOWN = register_arithmetic("triton-down", block_scale_triton_down, scaled_by_reciprocal, working_scale=infinite)
TRITON_NVFP4 = register_arithmetic("triton-nvfp4", block_scale_sixth, scaled_by_reciprocal)


# vLLM


def reciprocal_or_tiny(v: Floats) -> Floats:
    """1 / v, 1e-8 where v is 0."""
    return F(1) / (v + np.where(v == 0, F(1e8), F(0)))


def block_scale_vllm(amax: Floats, g: Floats, k: Constants) -> Floats:
    """g * (amax * fp32(1/6)), at most scale_max."""
    return np.minimum(g * (amax * SIXTH), k.scale_max)


def scaled_vllm(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x * (1 / (s * (1 / g))), each reciprocal of 0 taken as 1e-8."""
    return np.asarray(x * reciprocal_or_tiny(s * reciprocal_or_tiny(g)), F)


def block_scale_vllm_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(max(amax, 2^-126) / element_max)) with a rounded log2; NaN stays, infinity gives 2^127."""
    t = np.asarray(np.maximum(amax, F(2.0**-126)) / k.element_max, F)
    return np.where(np.isnan(t), t, exp2(np.ceil(log2(t))))


def nan_kept(t: Floats, s: Floats) -> Floats:
    """A NaN scale has the byte of the smallest scale, but the elements are divided by NaN."""
    return np.where(np.isnan(t), t, s)


VLLM = register_arithmetic(
    "vllm-emulation", block_scale_vllm, scaled_vllm, encoding_by_reciprocal, dequantized=dequantized_encoding
)
VLLM_MX = register_arithmetic("vllm-mxfp8", block_scale_vllm_mx, working_scale=nan_kept)


# The two of AMD


def block_scale_aiter(amax: Floats, g: Floats, k: Constants, divisor: float, carry: int, up: bool) -> Floats:
    """2^e, e the exponent of amax / divisor rounded up or down, amax rounded by a carry before; NaN past float32.

    A NaN has no payload here: its carry would make a number of some.
    """
    bits = np.where(np.isnan(amax), np.uint32(0x7FC00000), np.asarray(amax, F).view(np.uint32))
    rounded = ((bits + carry) >> 23 << 23).view(F) if carry else amax
    v = np.asarray(rounded / F(divisor), F)
    return finite(v, two_to(np.minimum(exponent_field(v, MANTISSA if up else 0), 254) - 127))


AITER = {
    mode: register_arithmetic(f"aiter-{mode.replace('_', '-')}", partial(block_scale_aiter, divisor=d, carry=c, up=u))
    for mode, d, c, u in (
        ("round_down", 4, 0, False),
        ("round_up", 6, 0, True),
        ("even", 4, half_carry(1), False),
        ("ceil", 4, 0, True),
    )
}


def block_scale_quark_even(amax: Floats, g: Floats, k: Constants) -> Floats:
    """EVEN, a zero block as one of 2^-126, infinity too; NaN stays."""
    field = exponent_field(np.where(amax == 0, np.finfo(F).tiny, amax), half_carry(k.element.mantissa_bits))
    scale = two_to(np.clip(np.where(field < LARGEST_BYTE, field - 127 - k.element.emax, 127), -127, 127))
    return np.where(np.isnan(amax), NEVER, scale)


def block_scale_quark(amax: Floats, g: Floats, k: Constants, up: bool) -> Floats:
    """2^(e - emax), e log2(amax) rounded up or down, both in the input's type; a scale of 0 becomes 2^-23."""
    logarithm = k.narrow(log2(amax))
    exponent = (np.ceil if up else np.floor)(logarithm) - k.element.emax
    scale = k.narrow(np.exp2(exponent.astype(np.float64)).astype(F))
    return np.where(scale == 0, F(2.0**-23), scale)


QUARK = {
    "even": register_arithmetic("quark-even", block_scale_quark_even),
    "floor": register_arithmetic("quark-floor", partial(block_scale_quark, up=False), working_scale=infinite),
    "ceil": register_arithmetic("quark-ceil", partial(block_scale_quark, up=True), working_scale=infinite),
}


# comfy-kitchen


def decoding_comfy(amax: Floats, k: Constants) -> Floats:
    """amax / 2688 in the input's type."""
    return k.narrow(decoding(amax, k))


def block_scale_comfy(amax: Floats, g: Floats, k: Constants) -> Floats:
    """(amax / 6) / g, at most scale_max."""
    return np.minimum(np.asarray(amax / F(6) / g, F), k.scale_max)


def scaled_comfy(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / (g * s), 0 where that product is 0; a NaN scale gives 2 of its sign, as its encoder reads such a NaN."""
    divisor = g * s
    y = zero_unless(divisor != 0, np.asarray(x / divisor, F))
    return np.where(np.isnan(s), np.copysign(F(2), s), y)


def dequantized_comfy(q: Floats, s: Floats, amax: Floats, k: Constants) -> Floats:
    """q * (g * s), g = amax / 2688 in the input's type. Rules: DEQ-5."""
    return q * (decoding_comfy(amax, k) * s)


def block_scale_comfy_mx(amax: Floats, g: Floats, k: Constants) -> Floats:
    """2^ceil(log2(max(amax / element_max, 2^-127))) with a rounded log2; 0 for zero, 2^-127 for NaN and infinity."""
    t = np.maximum(np.asarray(amax / k.element_max, F), SMALLEST_E8M0)
    scale = np.where(np.isfinite(t), exp2(np.ceil(log2(t))), SMALLEST_E8M0)
    return zero_unless(amax != 0, scale)


def zero_or_infinite(t: Floats, s: Floats) -> Floats:
    """Elements of a block with byte 00 are divided by 0, those of a zero block by infinity."""
    return np.where(t == 0, F(np.inf), zero_unless(s != SMALLEST_E8M0, s))


def scaled_comfy_mx(x: Floats, s: Floats, g: Floats, k: Constants) -> Floats:
    """x / s; +0 in a zero block."""
    return zero_unless(np.isfinite(s), np.asarray(x / s, F))


COMFY = register_arithmetic(
    "comfy-kitchen", block_scale_comfy, scaled_comfy, decoding_comfy, dequantized=dequantized_comfy
)
COMFY_MX = register_arithmetic(
    "comfy-kitchen-mx", block_scale_comfy_mx, scaled_comfy_mx, working_scale=zero_or_infinite
)
