"""NVFP4 tensors made and filled as others of their kind were, with nothing decided again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref import api, plans
from fp4ref.arrays import viewer
from fp4ref.given import Arguments
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData, Directions, Parts, Quantized
from fp4ref.random_source import bits_by_key
from fp4ref.te import in_place, nvfp4_drawn, rng, steps, swizzle
from fp4ref.te.dtypes import dtype_name
from fp4ref.te.nvfp4_settings import DIRECTIONS_OF
from fp4ref.te.quantizer import InSteps

# Buffers of a direction, and of the other one, as a backend fills them.
NAMES = tuple(
    f"_{name}" for way in ("rowwise", "columnwise") for name in (f"{way}_data", f"{way}_scale_inv", f"amax_{way}")
)
NONE = (None,) * 3


def made_again(quantizer: Any, tensor: Tensor) -> Callable[[Tensor, Any], Any] | None:
    """Return a function that makes other tensors of a kind, with their scales where the quantizer moves them."""
    asked = quantizer.asked(tensor)
    if asked is None or not tensor.is_contiguous():
        return None
    matrix, (spec, directions, _), _ = asked
    how = spec, directions, _layout(quantizer)
    settings, of, device = quantizer.settings(quantizer.optimize_for_gemm), _facts(tensor), tensor.device
    if not quantizer.stochastic_rounding:
        repeat = api.quantize_again(tensor, *how)  # which flattens its leading dimensions
        if repeat is None or tensor.dim() == 2 or not quantizer.rowwise_usage:
            return repeat and (lambda x, quantizer: quantizer.made(repeat(x), settings, of))
        view, sizes = viewer(), quantizer.convert_shape_for_fp4(tensor.shape)
        strides = tuple(math.prod(sizes[at:]) for at in range(1, len(sizes) + 1))

        def deep(x: Tensor, quantizer: Any) -> Any:
            (codes, *rest), column = repeat(x)
            return quantizer.made(((view(codes, sizes, strides, 0), *rest), column), settings, of)

        return deep
    drawn = nvfp4_drawn.made_again(quantizer, tensor, how, settings)
    if drawn is not None:
        return drawn
    given = Arguments(random_bits=_bytes_like(quantizer, matrix, device))
    drawing = api.quantize_again(tensor, *how, given)
    if drawing is None:
        return None

    def again(x: Tensor, quantizer: Any) -> Any:
        bits = quantizer.random_bytes(matrix, device)
        return quantizer.made(drawing(x, None, bits), settings, of)

    return again


def in_steps(quantizer: Any, tensor: Tensor) -> InSteps | None:
    """Return the one call of backends that makes a tensor, with its scales where the quantizer moves them."""
    asked = quantizer.asked(tensor)
    if asked is None or quantizer.stochastic_rounding or not tensor.is_contiguous():
        return None
    (matrix, (spec, directions, _), _), lie = asked, _layout(quantizer)
    settings, of = quantizer.settings(quantizer.optimize_for_gemm), _facts(tensor)

    def act(x: Tensor) -> tuple[Tensor | None, ...]:
        q = api.quantize(x.detach().view(matrix), spec, directions, lie)
        return *(q.row or NONE), *(q.column or NONE)

    return InSteps(act, 6, lambda made, quantizer: quantizer.made((made[:3], made[3:]), settings, of))


def filled_again(
    quantizer: Any, tensor: Tensor, dst: Any, flag: Tensor | None
) -> Callable[[Tensor, Any, Any, Tensor | None], None] | None:
    """Return a function that fills other tensors of a kind; None where amaxes are reduced, and for no elements."""
    usages = quantizer.rowwise_usage, quantizer.columnwise_usage
    directions = DIRECTIONS_OF[usages]
    if directions is None or not tensor.numel() or quantizer.with_amax_reduction or not tensor.is_contiguous():
        return None
    shape, device, draws = tuple(tensor.shape), tensor.device, quantizer.stochastic_rounding
    matrix, lie = (math.prod(shape[:-1]), shape[-1]), _layout(quantizer)
    spec, dtype = quantizer.spec(tensor.dtype, shape), dtype_name(tensor.dtype)

    def quantized(*parts: DirectionData | None) -> Quantized:
        return Quantized(spec, matrix, dtype, lie, *parts)

    def fill(x: Tensor, key: Sequence[Any], held: Sequence[Any], word: Tensor | None) -> None:
        out = quantized(*_parts_of(held))
        given = bits_by_key(matrix, directions, key[0], key[1], device) if draws else None
        api.quantize(x.view(matrix), spec, directions, lie, random_bits=given, out=out, noop=word)

    def parts(dst: Any) -> list[Any]:
        return [each for part in buffers(dst, matrix, *usages) for each in part or (None, None, None)]

    def drawn(quantizer: Any) -> Sequence[Any]:
        return quantizer.random_bytes(matrix, device) if draws else ()

    keys = (lambda quantizer: rng.key_of(quantizer.rng_state or rng.next_state(device))) if draws else None
    by_steps = steps.filled(("nvfp4", quantizer.kind_of_call()), tensor, dst, flag, parts, fill, numbers=keys)
    if by_steps is not None or flag is not None:
        return by_steps
    like = _bytes_like(quantizer, matrix, device) if draws else ()
    made = quantizer.allocate(shape, tensor.dtype, device)
    held, wanted = ([part for each in buffers(of, matrix, *usages) for part in each or NONE] for of in (dst, made))
    x, like_parts = tensor.view(matrix), buffers(made, matrix, *usages)
    repeat = plans.filling(x, spec, directions, layout(lie), like_parts, like or (None, None))
    into = repeat and (lambda x, held, *bits: repeat(x, _parts_of(held), *bits))
    return in_place.filled(tensor, dst, NAMES, held, wanted, into, drawn if draws else None)


def _parts_of(held: Sequence[Any]) -> list[DirectionData | None]:
    """Return buffers, three for each direction, as those of both; None for one that is not there."""
    return [None if part[0] is None else DirectionData(*part) for part in (held[:3], held[3:])]


def buffers(dst: Any, matrix: tuple[int, int], rowwise: bool, columnwise: bool) -> Parts:
    """Return the buffers of a tensor's directions in use."""
    held, row, column = dst.__dict__, None, None
    if rowwise:
        codes = held["_rowwise_data"]
        packed = codes if codes.dim() == 2 else codes.view(matrix[0], matrix[1] // 2)
        row = DirectionData(packed, held["_rowwise_scale_inv"], held["_amax_rowwise"])
    if columnwise:
        column = DirectionData(held["_columnwise_data"], held["_columnwise_scale_inv"], held["_amax_columnwise"])
    return row, column


def _layout(quantizer: Any) -> str:
    return swizzle.GEMM if quantizer.optimize_for_gemm else swizzle.COMPACT


def _facts(tensor: Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    return tensor.dtype, tensor.shape, tensor.device


def _bytes_like(quantizer: Any, matrix: tuple[int, int], device: torch.device) -> Directions:
    """Return memory of the kind that random bytes have, with none drawn."""
    used = (quantizer.rowwise_usage, matrix), (quantizer.columnwise_usage, matrix[::-1])
    return Directions(*(torch.empty(shape, dtype=torch.uint8, device=device) if use else None for use, shape in used))
