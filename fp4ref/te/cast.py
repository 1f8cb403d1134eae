"""Quantize and dequantize tensors: allocation, in-place updates, counts, and scales for the matrix product."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry, repeats
from fp4ref.remembered import Same
from fp4ref.te import debug
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.one_pass import server
from fp4ref.te.per_tensor import codes_in_one_pass, values_in_one_pass
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.swizzle import COMPACT, GEMM, swizzle_in_place

POSITIVE_NAN, NEGATIVE_NAN = 0x7F, 0xFF  # codes of either FP8 type
WORDS = {torch.bfloat16: (torch.int16, 7), torch.float32: (torch.int32, 23)}  # their bits, and those of the fraction
SIGN, TOP = 0x80, 1 << 15  # of a code; of the patterns of 16 bits, the first one with a sign
TABLED = 2  # bytes of a type whose values fit into a table
ALL_VALUES = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)  # bits


def quantize(tensor: Tensor, quantizer: Any, output: Any = None, noop: Tensor | None = None, drawn: Any = None) -> Any:
    """Quantize [..., K] by a quantizer's settings, into `output` if given.

    The result has its scales in the GEMM layout if the quantizer asks for it (`optimize_for_gemm`), else compact.
    noop: where noop[0] is 1, the bytes of `output` stay as they are. drawn: for a new result, what `quantizer.draw`
    returned.

    Rules: TEL-3, TEL-4, TEL-5, TEL-7, TEL-28.
    """
    kind = quantizer.kind_of_call() if drawn is None else None
    key = None if kind is None else _kind(kind, tensor, output, noop)  # all that decides what is done, but the bytes
    again = None if key is None else repeats.find(key)
    if again is not None:
        return again(tensor if tensor.is_cuda else tensor.detach(), quantizer, output, noop)
    x = tensor.detach()  # from a tangent too, which requires_grad does not tell
    shape = tuple(x.shape)
    quantizer.require(shape, x.dtype)
    with debug.noted() as counts:
        debug.count("quantize", quantizer.role)
        if output is None:
            made = quantizer.make(x.contiguous()) if drawn is None else quantizer.make(x.contiguous(), drawn)
            _swizzled(made, quantizer, new=True)
        else:
            made = output
            _update(x, quantizer, output, noop)
    if key and key == _kind(quantizer.kind_of_call(), x, output, noop):  # no buffer was replaced
        repeats.keep(key, repeating(x, quantizer, output, noop, counts), COMPACT, GEMM)
    return made


def _kind(kind: Hashable, tensor: Tensor, output: Any, noop: Tensor | None) -> Hashable | None:
    """Return the kind of a call that quantizes, None if an array has none. kind: of the quantizer."""
    if output is not None:
        return kind_of_update(kind, tensor, (output,), noop)
    seen = repeats.kind_of(tensor)
    return None if seen is None or noop is not None else ("te.quantize", kind, seen)


def kind_of_update(kind: Hashable, tensor: Tensor, outputs: Sequence[Any], noop: Tensor | None) -> Hashable | None:
    """Return the kind of a call that fills some tensors, None if an array has none. kind: of the quantizer."""
    parts, settings = [tensor, noop], list[Any]()
    for output in outputs:
        family: Any = type(output)
        if not isinstance(output, QuantizedTensorStorage):
            return None
        values = output.__dict__
        try:
            parts += _buffers_of(family)(values)
        except KeyError:  # a buffer that nobody assigned
            return None
        settings += [family, output.shape if isinstance(output, Tensor) else None, values.get("_dtype")]
        settings += map(values.get, family.SETTINGS)
    kinds = repeats.number_of_kinds((kind, *map(type, outputs), tensor.shape), tuple(parts))
    return None if kinds is None else ("te.update", kind, kinds, *settings)


@cache
def _buffers_of(family: Any) -> Callable[[dict[str, Any]], tuple[Tensor | None, ...]]:
    """Return the function that takes the buffers of storage out of its attributes."""
    names = family.BUFFERS
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple(values[name] for name in names)


def repeating(
    x: Tensor, quantizer: Any, output: Any, noop: Tensor | None, counts: list[tuple[str, str, int]]
) -> Callable[..., Any] | None:
    """Return the function that does again what was just done for tensors of a kind, and counts it; None without one."""
    if output is None:
        make = quantizer.made_again(x)

        def made_again(x: Tensor, quantizer: Any, output: Any, noop: Any) -> Any:
            debug.count_again(counts)
            return make(x, quantizer)

        return make and made_again
    flag = None if noop is None or noop.device.type == "cpu" else noop
    fill, on_device = quantizer.filled_again(x, output, flag), flag is not None
    one = noop is not None and noop.numel() == 1
    if fill is None:
        return None

    def filled_again(x: Tensor, quantizer: Any, output: Any, noop: Any) -> Any:
        debug.count_again(counts)
        if noop is None or on_device:
            fill(x, quantizer, output, noop)
        elif (noop if one else noop.reshape(-1)[0]).item() != 1:
            fill(x, quantizer, output, None)
        else:
            quantizer.draw(x)  # as if there were no flag
        return output

    return filled_again


def _skip(noop: Tensor) -> Tensor:
    """Return a byte that is not 0 where a flag says that nothing changes. Rules: TEL-24."""
    return (noop.reshape(-1)[0] == 1).view(torch.uint8)


def _update(x: Tensor, quantizer: Any, output: Any, noop: Tensor | None) -> None:
    """Quantize into the buffers of a tensor, unless the flag forbids it."""
    quantizer.prepare(output, tuple(x.shape), x.device)
    skip = None if noop is None else _skip(noop)
    kept: list[Tensor] = []
    if skip is not None and (_moves_scales(output, quantizer) or not quantizer.takes_noop(x)):
        kept = [buffer.clone() for buffer in output.buffers()]
    quantizer.fill(x.contiguous(), output, None if kept else skip)
    _swizzled(output, quantizer)
    if skip is not None and kept:
        for buffer, old in zip(output.buffers(), kept, strict=True):
            write(buffer, old, 1 - skip)


def _moves_scales(output: Any, quantizer: Any) -> bool:
    """Return True if scales have to be moved to the GEMM layout after quantizing; tensors without blocks have none."""
    return quantizer.optimize_for_gemm and getattr(output, "_with_gemm_swizzled_scales", None) is False


def _swizzled(output: Any, quantizer: Any, *, new: bool = False) -> None:
    """Leave the scales as the quantizer says, and count who moved them."""
    if getattr(output, "_with_gemm_swizzled_scales", False):
        directions = int(quantizer.rowwise_usage) + int(quantizer.columnwise_usage)
        debug.count("swizzle_in_quantize", quantizer.role, directions)
    elif _moves_scales(output, quantizer):
        swizzle_in_place(output, quantizer.role, new=new)


def dequantize(tensor: Any, otype: DType | torch.dtype) -> Tensor:
    """Return values of a quantized tensor, rounded once to a high-precision type. Rules: DEQ-1, DEQ-2, DEQ-3."""
    values: Tensor = tensor.decode(torch_dtype(otype))
    return values


def fp8_codes(values: Tensor, dtype: DType) -> Tensor:
    """Round float32 values to the bytes of an FP8 type, saturating; NaN of either sign is 7F.

    Rules: E4M3-2, E4M3-3, E4M3-5, E5M2-2, E5M2-3, E5M2-5.
    """
    kind = torch_dtype(dtype)
    largest = torch.finfo(kind).max
    codes = values.clamp(-largest, largest).to(kind).view(torch.uint8)
    return codes.masked_fill_(codes == NEGATIVE_NAN, POSITIVE_NAN)


def scaled_fp8_codes(x: Tensor, scale: Tensor, dtype: DType) -> Tensor:
    """Return the codes of x * scale, computed in float32; scale: float32 of one element.

    On a CPU, a large tensor of a type of 16 bits gets them from a table of all its values.

    Rules: TEL-21.
    """
    codes = codes_in_one_pass(x, scale, dtype)
    if codes is not None:
        return codes
    if x.device.type != "cpu" or x.element_size() != TABLED or x.numel() < ALL_VALUES.numel():
        return fp8_codes(x.to(torch.float32) * scale, dtype).view(x.shape)
    positive = fp8_codes(ALL_VALUES[:TOP].view(x.dtype).to(torch.float32) * scale, dtype)
    negative = (positive | SIGN).masked_fill_(positive == POSITIVE_NAN, POSITIVE_NAN)  # rounding is symmetric
    table = torch.cat([positive, negative])
    return table.index_select(0, _as_places(x.reshape(-1))).view(x.shape)


def _as_places(x: Tensor) -> Tensor:
    """Return each two bytes of a vector as a number from 0 to 65535, for a table of all of them."""
    return x.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)


def fp8_values(codes: Tensor, kind: DType, dtype: torch.dtype) -> Tensor:
    """Return the values of FP8 codes uint8 in a wider type; exact in float32 and bfloat16.

    On a CPU they come from a table, and many of them from their bits.
    """
    values = values_in_one_pass(codes, kind, dtype)
    if values is not None:
        return values
    if codes.device.type != "cpu":
        return codes.view(torch_dtype(kind)).to(dtype)
    flat = codes.reshape(-1)
    if flat.numel() >= ALL_VALUES.numel() and dtype in WORDS and _has_numbers_only(flat, kind):
        return _from_bits(flat, kind, dtype).view(codes.shape)
    return _fp8_table(kind, dtype).index_select(0, flat.to(torch.int32)).view(codes.shape)


def _has_numbers_only(codes: Tensor, kind: DType) -> bool:
    """Return True if no code is infinity or NaN, and the processor computes with subnormal numbers."""
    least = 0x7F if kind is DType.kFloat8E4M3 else 0x7C
    kept = torch.tensor(2.0**-140) * 2.0**100
    return bool((codes & 0x7F).amax() < least) and bool(kept > 0)


def _from_bits(codes: Tensor, kind: DType, dtype: torch.dtype) -> Tensor:
    """Put the bits of FP8 codes, numbers, where those of a wider type are, and correct the bias of the exponent."""
    word, mantissa = WORDS[dtype]
    fraction, bias = (3, 7) if kind is DType.kFloat8E4M3 else (2, 15)
    shift, sign = mantissa - fraction, torch.iinfo(word).min
    bits = codes.view(torch.int8).to(word).bitwise_left_shift_(shift).bitwise_and_(sign | 0x7F << shift)
    return bits.view(dtype).mul_(2.0 ** (127 - bias))


@cache
def _fp8_table(kind: DType, dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch_dtype(kind)).to(dtype)


def write(buffer: Tensor, values: Tensor, skip: Tensor | None) -> None:
    """Copy values into a buffer, unless skip [] is not 0, which is not read here. Rules: TEL-24."""
    buffer.copy_(values if skip is None else torch.where(skip.bool(), buffer, values))


def turned(codes: Tensor) -> Tensor:
    """Return the transpose of a matrix of bytes, its rows one after the other; by a backend where one turns bytes."""
    if codes.is_contiguous():
        turn = _turner(codes.shape, codes.device, registry.registered())
        if turn is not None:
            return turn(codes)
    return codes.t().contiguous()


@lru_cache(maxsize=4096)
def _turner(shape: tuple[int, int], device: torch.device, registered: Same) -> Callable[[Tensor], Tensor] | None:
    """Return the function that turns matrices on a device; None without a backend that has one."""
    found = server("turned", device, (shape[0], shape[1]))
    return turner(torch.empty(shape, dtype=torch.uint8, device=device)) or (found and partial(found[1], found[0]))


def turner(codes: Tensor, out: Tensor | None = None) -> Callable[..., Any] | None:
    """Return the function that turns matrices of bytes of a kind, with nothing decided again; None without one.

    out: what is filled, where the function is to fill others of its kind.
    """
    found = server("turned", codes.device, (codes.shape[0], codes.shape[1]))
    bind = found and registry.binder(found[0], None)
    if found is None or bind is None:
        return None
    turn: Callable[..., Any] | None = bind(found[0], codes) if out is None else bind(found[0], codes, out)
    return turn
