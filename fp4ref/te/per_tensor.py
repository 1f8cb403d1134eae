"""The steps of per-tensor FP8, by a backend that does each of them in one pass where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry, repeats
from fp4ref.registry import Call
from fp4ref.specs import NVFP4
from fp4ref.te.dtypes import FLOATS, DType, torch_dtype
from fp4ref.te.one_pass import server
from fp4ref.te.specifications import mxfp8
from fp4ref.te.steps import Stepwise

MANTISSA_DROPPED = 0x7F800000


def largest_magnitude(tensor: Tensor) -> Tensor:
    """Return the largest magnitude, NaN ignored; 0 without elements: float32 [1]. Rules: GLB-1."""
    if not tensor.numel():
        return torch.zeros(1, dtype=torch.float32, device=tensor.device)
    found = server("amax", tensor.device, (1, 1), spec=NVFP4, source=tensor.dtype)
    if found is not None:
        rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
        made: Tensor = found[1](rows, NVFP4)  # every specification with one maximum finds the same
        return made
    if tensor.device.type == "cpu":
        amax = torch.stack(tensor.aminmax()).abs().amax().to(torch.float32)
        if not amax.isnan():  # the usual case, without a copy
            return amax.reshape(1)
    return torch.nan_to_num(tensor.abs(), nan=0.0, posinf=torch.inf).amax().to(torch.float32).reshape(1)


def current_scale(
    amax: Tensor, kind: DType, source: torch.dtype, least: float, power_of_two: bool
) -> tuple[Tensor, Tensor]:
    """Return the scale of a tensor of a type by its amax, float32 [1], and 1 over the scale.

    Rules: TEL-21, TEL-61, TEL-62, TEL-63.
    """
    found = server("tensor_scale", amax.device, (1, 1), spec=mxfp8(kind), source=source)
    if found is not None:
        scale, inverse = found[1](found[0], amax, least, power_of_two)
        return scale, inverse
    return scales_of(amax, kind, source, least, power_of_two)


def scales_of(
    amax: Tensor, kind: DType, source: torch.dtype, least: float, power_of_two: bool
) -> tuple[Tensor, Tensor]:
    """Return the scales that maxima of any shape give, and 1 over each: float32 of that shape.

    Rules: TEL-21, TEL-61, TEL-62, TEL-63, TEL-91.
    """
    amax = amax.clamp(min=least)
    scale = torch.full_like(amax, torch.finfo(torch_dtype(kind)).max) / amax  # a float / tensor would round twice
    scale = torch.where(torch.isinf(scale), torch.finfo(source).max, scale)
    scale = torch.where((amax == 0) | torch.isinf(amax), 1.0, scale)
    if power_of_two:
        scale = (scale.view(torch.int32) & MANTISSA_DROPPED).view(torch.float32)
    return scale, torch.ones_like(scale) / scale


def codes_in_one_pass(x: Tensor, scale: Tensor, kind: DType) -> Tensor | None:
    """Return the codes of x * scale, of x's shape; None without a backend that does it in one pass. Rules: TEL-21."""
    matrix = _matrix(x)
    found = server("tensor_codes", x.device, matrix, spec=mxfp8(kind), source=x.dtype)
    if found is None:
        return None
    codes: Tensor = found[1](found[0], x.contiguous().view(matrix), scale.reshape(1))
    return codes.view(x.shape)


def at_once(x: Tensor, kind: DType, least: float, power_of_two: bool) -> tuple[Tensor, Tensor] | None:
    """Return the codes of a contiguous tensor by its own scale, and 1 over that; None where it takes several steps.

    least: the least amax. power_of_two: the scale is one.

    Rules: TEL-21.
    """
    found = _quantizes(x, kind)
    if found is None:
        return None
    codes, inverse = found[1](found[0], x.view(_matrix(x)), least, power_of_two)
    return codes.view(x.shape), inverse


def at_once_again(
    x: Tensor, kind: DType, least: float, power_of_two: bool
) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Return the function that does what `at_once` did for other tensors of this one's kind; None without one."""
    found, matrix = _quantizes(x, kind), _matrix(x)
    bind = found and registry.binder(found[0], None)
    serve: Callable[[Tensor], tuple[Tensor, Tensor]] | None
    serve = bind(found[0], x.view(matrix), least, power_of_two) if found and bind else None
    if serve is None or x.dim() == 2:
        return serve
    flat, shape = serve, x.shape

    def shaped(x: Tensor) -> tuple[Tensor, Tensor]:
        codes, inverse = flat(x.view(matrix))
        return codes.view(shape), inverse

    return shaped


def at_once_stepwise(x: Tensor, kind: DType, least: float, power_of_two: bool) -> Stepwise | None:
    """Return a function that does what `at_once` does, with nothing kept; None without a backend for it."""
    if _quantizes(x, kind) is None:
        return None

    def act(x: Tensor, kept: Sequence[Tensor], word: Tensor | None) -> tuple[Tensor, Tensor]:
        made = at_once(x, kind, least, power_of_two)
        assert made is not None
        return made

    return act


def given_scale_stepwise(x: Tensor, scale: Tensor, amax: Tensor, kind: DType) -> Stepwise | None:
    """Return a function of a tensor, a scale, an amax and a flag's word: codes by the scale, and 1 over it.

    It raises the amax unless a word on the device is not 0. Returns None without a backend that does so.

    Rules: TEL-24, TEL-44.
    """
    found = _quantizes_by(x, scale, amax, kind)
    if found is None:
        return None
    (call, serve), matrix = found, _matrix(x)

    def act(x: Tensor, kept: Sequence[Tensor], word: Tensor | None) -> tuple[Tensor, Tensor]:
        scale, amax = kept
        codes, inverse = serve(call, x.view(matrix), scale.reshape(1), amax.reshape(1), word)
        return codes.view(x.shape), inverse

    return act


def given_scale_again(
    x: Tensor, scale: Tensor, amax: Tensor, kind: DType
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return a function of tensors of these ones' kinds: codes by a scale, and 1 over it; the amax is raised.

    Returns None where no backend takes all steps at once.

    Rules: TEL-44.
    """
    matrix, shape = _matrix(x), x.shape
    found = _quantizes_by(x, scale, amax, kind)
    bind = found and registry.binder(found[0], None)
    serve = bind(found[0], x.view(matrix), scale.reshape(1), amax.reshape(1)) if found and bind else None
    if serve is None:
        return None

    def again(x: Tensor, scale: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
        codes, inverse = serve(x.view(matrix), scale, amax)
        return codes.view(shape), inverse

    return serve if x.dim() == 2 else again


def _quantizes_by(x: Tensor, scale: Tensor, amax: Tensor, kind: DType) -> tuple[Call, Callable[..., Any]] | None:
    usual = (scale.dtype, amax.dtype) == (torch.float32, torch.float32) and scale.device == amax.device == x.device
    return (
        server("tensor_given", x.device, _matrix(x), spec=mxfp8(kind), source=x.dtype) if usual and x.numel() else None
    )


def _quantizes(x: Tensor, kind: DType) -> tuple[Call, Callable[..., Any]] | None:
    return server("tensor_quantize", x.device, _matrix(x), spec=mxfp8(kind), source=x.dtype) if x.numel() else None


def values_in_one_pass(codes: Tensor, kind: DType, dtype: torch.dtype) -> Tensor | None:
    """Return the values of codes in a type of 16 bits; None for others, and where no backend does it in one pass."""
    found = values_server(codes, kind, dtype)
    if found is None:
        return None
    values: Tensor = found[1](found[0], codes.contiguous().view(_matrix(codes)))
    return values.view(codes.shape)


def values_server(codes: Tensor, kind: DType, dtype: torch.dtype) -> tuple[Call, Callable[..., Any]] | None:
    """Return a backend's call that makes values of codes, and the function that serves it; None without one."""
    if dtype.itemsize != 2:
        return None
    return server("tensor_values", codes.device, _matrix(codes), spec=mxfp8(kind), to=dtype)


def decoded(codes: Tensor, scale: Tensor, kind: DType, dtype: torch.dtype) -> Tensor:
    """Return codes times a scale, computed in float32 and rounded once to a type; scale: float32 of one element.

    Rules: TEL-8, DEQ-2, DEQ-3.
    """
    if not torch.compiler.is_compiling():
        kinds = repeats.kind_of(codes), repeats.kind_of(scale)
        key = None if None in kinds else ("te.decode", kind, dtype, *kinds)
        again = repeats.find(key)
        if again is not None:
            values: Tensor = again(codes, scale)
            return values
        served = _decodes(codes, scale, kind, dtype) if key else None
        if served is not None:
            values, function = served
            repeats.keep(key, function)
            return values
    return (codes.view(torch_dtype(kind)).to(torch.float32) * scale.reshape(())).to(dtype)


def decodable(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> bool:
    """Return True for codes, float32 scales beside them and a type of values that backends decode in one pass."""
    usual = (codes.dtype, scales.dtype, scales.device) == (torch.uint8, torch.float32, codes.device)
    return bool(usual and dtype in FLOATS and codes.numel() and codes.is_contiguous())


def _decodes(
    codes: Tensor, scale: Tensor, kind: DType, dtype: torch.dtype
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor] | None] | None:
    """Decode in one pass by a backend; the second result does it for other codes of their kind, if there is one."""
    matrix, shape = _matrix(codes), codes.shape
    found = (
        server("tensor_decode", codes.device, matrix, spec=mxfp8(kind), to=dtype)
        if decodable(codes, scale, dtype)
        else None
    )
    if found is None:
        return None
    call, serve = found
    given = codes.view(matrix), scale.reshape(1)
    bind = registry.binder(call, None)
    again = bind(call, *given) if bind else None
    if again is None or (codes.dim() == 2 and scale.dim() == 1):
        return serve(call, *given).view(shape), again
    flat = again
    return serve(call, *given).view(shape), lambda codes, scale: flat(codes.view(matrix), scale.view(1)).view(shape)


def _matrix(x: Tensor) -> tuple[int, int]:
    return (x.shape[0], x.shape[1]) if x.dim() == 2 else (1, x.numel())
