"""Codecs: float32 to codes by integer arithmetic on bits, and back; packing.

No cast to or from torch's own 4- and 8-bit floats: they differ between versions, and from the standard.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.formats import E8M0, Codec, Format, Rounding, Sign
from fp4ref_torch import exact


def encode(values: Tensor, codec: Codec, random_bits: Tensor | None = None) -> Tensor:
    """Round float32 to codes, uint8, same shape. random_bits: uint8, the same shape, where rounding is stochastic.

    Rules: E2M1-2, E2M1-3, E2M1-4, E2M1-5, E2M1-6, E4M3-2, E4M3-3, E4M3-4, E4M3-5, E5M2-2, E5M2-3, E5M2-4, E5M2-5,
    E8M0-2, E2M3-2, E3M2-2, INT8-2, UE4M3-2, UE5M3-2.
    Certificates: encode-*, stochastic-bfloat16, stochastic-mean.
    """
    form, word = codec.format, exact.bits(values)
    index = _index(values, codec, random_bits)
    overflow = form.codes - 1 if codec.overflow is None else codec.overflow
    code = torch.where(index < form.codes, index, overflow)
    if codec.infinity is not None:
        code = torch.where(exact.magnitude(values) == exact.INFINITY, codec.infinity, code)
    nan, zero = exact.is_nan(values), exact.is_zero(values)
    if form.signed:
        minus = word < 0
        if codec.sign is Sign.NEGATIVE:
            minus = minus & ~zero
        elif codec.sign is Sign.NOT_POSITIVE:
            minus = minus | zero
        elif codec.sign is Sign.NONZERO:
            minus = minus & ~zero & (code != 0)
        signed = -code & (2 * form.sign_bit - 1) if form.complement else code | form.sign_bit
        code = torch.where(minus, signed, code)
    return torch.where(nan, exact.choose(word < 0, codec.nan[1], codec.nan[0]), code).to(torch.uint8)


def nearest(values: Tensor, codec: Codec) -> Tensor:
    """Return the values that `encode` picks (not for NaN); an overflow is the next value. Rules: FOS-3.

    An infinity that has a code of its own has no value: NaN.
    """
    form = codec.format
    last = form.codes - (codec.overflow is None)
    picked = _value_bits(_index(values, codec, None).clamp(max=last), form)
    if codec.infinity not in (None, codec.overflow):
        picked = torch.where(exact.magnitude(values) == exact.INFINITY, exact.NAN, picked)
    return exact.floats(picked | (exact.bits(values) & exact.SIGN))


def decode(codes: Tensor, form: Format) -> Tensor:
    """Return the float32 that codes mean.

    Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, E8M0-4, INT8-1, UE4M3-1, UE5M3-1. Certificates: values-*.
    """
    code = codes.to(torch.int32)
    if form.complement:
        number = torch.where(code < form.sign_bit, code, code - 2 * form.sign_bit)
        return number.to(torch.float32) * 2.0 ** (1 - form.bias - form.mantissa_bits)
    index = code & ((1 << (form.exponent_bits + form.mantissa_bits)) - 1)
    value = _value_bits(index, form)
    if form.second_zero:
        return exact.floats(torch.where(code == form.codes, 0, value))
    beyond = exact.choose((index == form.codes) & form.infinity, exact.INFINITY, exact.NAN)
    value = torch.where(index < form.codes, value, beyond)
    if form.signed:
        value = torch.where((code & form.sign_bit) != 0, value | exact.SIGN, value)
    return exact.floats(value)


def _index(values: Tensor, codec: Codec, random_bits: Tensor | None) -> Tensor:
    """Codes of magnitudes, int32; past the largest finite one for an overflow and for NaN."""
    form, word = codec.format, exact.magnitude(values)
    if form is E8M0:
        return _power_of_two_above(word)
    if codec.rounding is Rounding.STOCHASTIC:
        assert random_bits is not None
        word = exact.bits(_moved(exact.floats(word), random_bits))
        return exact.rounded_code(word, form.mantissa_bits, form.bias, "truncate")
    return exact.rounded_code(word, form.mantissa_bits, form.bias, codec.rounding.value)


def _power_of_two_above(word: Tensor) -> Tensor:
    """E8M0 codes of the smallest powers of two that are not below magnitudes. Rules: E8M0-2, E8M0-3."""
    finite = word.clamp(max=exact.INFINITY)
    subnormal = exact.choose(finite > exact.SMALLEST_NORMAL >> 1, 1)
    return torch.where(finite < exact.SMALLEST_NORMAL, subnormal, (finite + 0x7F_FFFF) >> 23)


def _moved(magnitude: Tensor, random_bits: Tensor) -> Tensor:
    """fma(bits / 256, step, magnitude): the product is exact, so the sum is its one rounding.

    Rules: SR-2. Certificates: stochastic-bfloat16, stochastic-mean.
    """
    step = torch.where(magnitude >= 4, 2.0 / 256, torch.where(magnitude >= 2, 1.0 / 256, 0.5 / 256))
    return exact.add(magnitude, exact.mul(random_bits.to(torch.float32), step.to(torch.float32)))


def _value_bits(index: Tensor, form: Format) -> Tensor:
    """float32 bits of a finite code without its sign, or of the one after the last."""
    if form is E8M0:
        return torch.where(index == 0, exact.SMALLEST_NORMAL >> 1, index << 23)
    mantissa_bits = form.mantissa_bits
    exponent, mantissa = index >> mantissa_bits, index & ((1 << mantissa_bits) - 1)
    normal = (exponent + (127 - form.bias) << 23) | mantissa << (23 - mantissa_bits)
    whole = exact.bits(mantissa.to(torch.float32))  # a small integer, exact, times a power of two
    subnormal = torch.where(mantissa == 0, 0, whole - ((form.bias + mantissa_bits - 1) << 23))
    return torch.where(exponent == 0, subnormal, normal)


def pack(codes: Tensor, form: Format) -> Tensor:
    """Codes uint8 [rows, columns] as bytes, low bits first, spare ones 0.

    Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5. Certificates: packing-*.
    """
    if form.bits == 8:
        return codes
    if form.bits == 6:
        return _pack_four_in_three(codes)
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack(packed: Tensor, columns: int, form: Format) -> Tensor:
    """Bytes [rows, width] as codes uint8 [rows, columns]. Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5."""
    if form.bits == 8:
        return packed
    if form.bits == 6:
        return _unpack_four_in_three(packed, columns)
    return torch.stack([packed & 0b1111, packed >> 4], dim=-1).flatten(1)[:, :columns]


def _pack_four_in_three(codes: Tensor) -> Tensor:
    """Every four 6-bit codes as a number of 24 bits, then as three bytes. Rules: PACK-4, PACK-5."""
    columns = codes.shape[1]
    groups = torch.nn.functional.pad(codes, (0, -columns % 4)).reshape(codes.shape[0], -1, 4).to(torch.int32)
    number = groups[..., 0] | groups[..., 1] << 6 | groups[..., 2] << 12 | groups[..., 3] << 18
    parts = torch.stack([number & 255, number >> 8 & 255, number >> 16], dim=-1)
    return parts.to(torch.uint8).flatten(1)[:, : (6 * columns + 7) // 8].contiguous()


def _unpack_four_in_three(packed: Tensor, columns: int) -> Tensor:
    """Every three bytes as a number of 24 bits, then as four 6-bit codes. Rules: PACK-4, PACK-5."""
    parts = torch.nn.functional.pad(packed, (0, -packed.shape[1] % 3)).reshape(packed.shape[0], -1, 3).to(torch.int32)
    number = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
    codes = torch.stack([number >> shift & 63 for shift in (0, 6, 12, 18)], dim=-1)
    return codes.to(torch.uint8).flatten(1)[:, :columns]
