"""New buffers of a tensor, some of which are zero: on a GPU, a fill for all small ones together."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fp4ref.arrays import viewer

APART = 256  # bytes that each buffer in a piece begins at a multiple of
SMALL = 1 << 16  # bytes of zeros that are one piece: a tensor that keeps one of them keeps them all

FILLED = ("cuda",)  # devices where a fill costs as much as several views

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[Shape, ...]
Place: TypeAlias = tuple[Shape, Shape, int]  # sizes, strides, and first element


def new_buffers(
    codes: Shapes, zeros: Shapes, dtype: torch.dtype, device: torch.device, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Return uninitialized bytes of some shapes, and zeros of a type of others. options: those of `torch.empty`."""
    seen = bool(torch._C._len_torch_dispatch_stack())  # modes that are told of each tensor, and may make another one
    short = None if seen or any(options.values()) else _short(device)
    if short is None:
        made = [torch.empty(shape, dtype=torch.uint8, device=device, **options) for shape in codes]
    else:
        made = [short(shape, strides, torch.uint8) for shape, strides, _ in _places(codes, torch.uint8)[0]]
    if len(zeros) > 1 and device.type in FILLED and not seen:
        places, size = _places(zeros, dtype)
        if size * dtype.itemsize <= SMALL:
            piece, view = torch.zeros(size, dtype=dtype, device=device, **options), viewer()
            return made, [view(piece, *place) for place in places]
    if short is None or device.type in FILLED:
        return made, [torch.zeros(shape, dtype=dtype, device=device, **options) for shape in zeros]
    return made, [short(shape, strides, dtype).zero_() for shape, strides, _ in _places(zeros, dtype)[0]]


def _short(device: torch.device) -> Callable[..., Tensor] | None:
    """Return the function by which torch's compiled graphs allocate on a device; None if it lacks it.

    It allocates on the current device, in half the time of the public one.
    """
    there = device.type == "cpu" or (device.type == "cuda" and device.index in {None, torch.cuda.current_device()})
    return _of_graphs(device.type) if there else None


@lru_cache
def _of_graphs(kind: str) -> Callable[..., Tensor] | None:
    found: Callable[..., Tensor] | None = getattr(
        getattr(torch._C._dynamo, "guards", None), f"_empty_strided_{kind}", None
    )
    return found


@lru_cache(maxsize=4096)
def _places(shapes: Shapes, dtype: torch.dtype) -> tuple[list[Place], int]:
    """Return the places of buffers in one piece, and the elements of the piece."""
    places, first, unit = list[Place](), 0, APART // dtype.itemsize
    for shape in shapes:
        strides = tuple(math.prod(max(size, 1) for size in shape[at:]) for at in range(1, len(shape) + 1))
        places.append((shape, strides, first))
        first += -(-math.prod(shape) // unit) * unit
    return places, first
