"""Quantized weights of checkpoints as quantized tensors, with the codes and scales of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fp4ref.checkpoints import CONVENTIONS
from fp4ref.checkpoints.access import WeightPiece
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.te.dtypes import DType
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_block_tensor import BLOCK, Float8BlockwiseQTensor, scale_shape
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer
from fp4ref.te.float8_tensor import Float8Tensor
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.mxfp8_tensor import MXFP8Tensor
from fp4ref.te.mxfp8_tensor import scale_shape as mxfp8_scale_shape
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.nvfp4_storage import scale_shape as nvfp4_scale_shape
from fp4ref.te.nvfp4_tensor import NVFP4Tensor

Tensor = torch.Tensor
ELEMENTS = {"e4m3": DType.kFloat8E4M3, "e5m2": DType.kFloat8E5M2}
TILE = 16  # rows of an NVFP4 tile


class Parts(NamedTuple):
    """The arguments of a quantized tensor: its type, buffers and settings."""

    kind: Any
    buffers: dict[str, Tensor]
    settings: dict[str, Any]

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the tensor, with columns where they follow from the rows: one scale, or tiles. Rules: TEL-40."""
        buffers = {name: value.to(device) for name, value in self.buffers.items()}
        made = self.kind(shape=torch.Size(shape), dtype=dtype, device=device, **buffers, **self.settings)
        quantizer = self.settings["quantizer"]
        if getattr(quantizer, "with_2d_quantization", False) or isinstance(quantizer, Float8BlockQuantizer):
            made.update_usage(columnwise_usage=True)
        packed: Tensor = made
        return packed


def parts_of(weight: Weight) -> Parts | None:
    """Return the parts of the tensor that holds a weight's bytes; None if no emulated tensor can. Rules: TEM-38."""
    if len(weight.shape) != 2:
        return None
    key = weight.element, weight.scale or weight.granularity, tuple(weight.block) if weight.block[1] else None
    for element in ("e4m3", "e5m2"):
        makers: dict[Any, Callable[[Weight], Parts | None]] = {
            ("e2m1", "e4m3", (1, TILE)): _nvfp4,
            (element, "e8m0", (1, 32)): _mxfp8,
            (element, "square", (BLOCK, BLOCK)): _squares,
        }
        if key in makers:
            return makers[key](weight)
    return _one_scale(weight) if weight.element in ELEMENTS and weight.granularity == "tensor" else None


def described(weight: Weight) -> str:
    """Return how a weight is stored, in words."""
    size = " x ".join(map(str, weight.block))
    scales = f"{weight.scale} in blocks of {size}" if weight.scale else f"numbers per {weight.granularity}"
    return f"{weight.element} {list(weight.shape)}, scales {scales}"


def stacked(weights: Sequence[Weight]) -> Weight | None:
    """Return matrices as one, each below the one before; None if it would need two global scales or cuts a square.

    Rules: TEM-49.
    """
    first = weights[0]
    common = [
        (each.element, each.scale, each.block, each.shape[1:], each.multiplier(), each.granularity) for each in weights
    ]
    if any(one != common[0] for one in common) or any(len(each.shape) != 2 for each in weights):
        return None
    rows = [each.rows for each in weights]
    numbers = [each.float_scales for each in weights if each.float_scales is not None]
    scales = first.float_scales
    if scales is not None and first.granularity == "tensor":
        if any(each.data != scales.data for each in numbers):
            return None
    elif scales is not None:
        step = first.block[0] if first.granularity == "square" else 1
        if any(count % step for count in rows[:-1]):
            return None
        high = sum(each.shape[0] for each in numbers)
        scales = scales._replace(shape=(high, *scales.shape[1:]), data=b"".join(each.data for each in numbers))

    def read(multiple: int) -> Iterator[WeightPiece]:
        start = 0
        for each, count in zip(weights, rows, strict=True):
            for piece in each.read(multiple):
                yield piece._replace(row=start + piece.row)
            start += count

    return replace(first, shape=(sum(rows), first.columns), read=read, float_scales=scales)


def _nvfp4(weight: Weight) -> Parts | None:
    """Return an NVFP4 tensor; scale bytes that repeat over 16 rows are those of tiles."""
    codes, scales = _bytes(weight)
    if weight.global_scale is None:
        return None
    amax = weight.global_scale.to(CONVENTIONS["te.nvfp4"].global_direction).values
    whole = not (weight.rows % TILE or weight.columns % TILE)
    tiles = whole and not scales.view(-1, TILE, scales.shape[1]).diff(dim=1).any()
    buffers = {
        "rowwise_data": codes,
        "rowwise_scale_inv": _padded(scales, nvfp4_scale_shape(weight.shape, columnwise=False)),
        "amax_rowwise": torch.from_numpy(amax.copy()).reshape(1),
    }
    return Parts(NVFP4Tensor, buffers, {"quantizer": NVFP4Quantizer(with_2d_quantization=bool(tiles))})


def _mxfp8(weight: Weight) -> Parts:
    codes, scales = _bytes(weight)
    shape = mxfp8_scale_shape(weight.shape, columnwise=False)
    buffers = {"rowwise_data": codes, "rowwise_scale_inv": _padded(scales, shape)}
    dtype = ELEMENTS[weight.element]
    return Parts(MXFP8Tensor, buffers, {"quantizer": MXFP8Quantizer(dtype), "fp8_dtype": dtype})


def _squares(weight: Weight) -> Parts:
    codes, _ = _bytes(weight)
    numbers = _numbers(weight)
    shape = scale_shape(weight.shape, tiles=True, columnwise=False)
    buffers = {"rowwise_data": codes, "rowwise_scale_inv": _padded(numbers.view(shape[0], -1), shape)}
    dtype, powers = ELEMENTS[weight.element], bool((torch.frexp(numbers).mantissa == 0.5).all())
    quantizer = Float8BlockQuantizer(dtype, force_pow_2_scales=powers)
    return Parts(Float8BlockwiseQTensor, buffers, {"quantizer": quantizer, "fp8_dtype": dtype, "is_2D_scaled": True})


def _one_scale(weight: Weight) -> Parts:
    codes, _ = _bytes(weight)
    dtype = ELEMENTS[weight.element]
    buffers = {"data": codes, "scale_inv": _numbers(weight).reshape(1)}
    return Parts(Float8Tensor, buffers, {"quantizer": Float8CurrentScalingQuantizer(dtype), "fp8_dtype": dtype})


def _numbers(weight: Weight) -> Tensor:
    assert weight.float_scales is not None
    return torch.from_numpy(weight.float_scales.numbers().astype(np.float32))


def _bytes(weight: Weight) -> tuple[Tensor, Tensor]:
    """Return packed codes [rows, width] and linear scales [rows, blocks], none where scales are numbers."""
    pieces = list(weight.read(1))
    codes = np.concatenate([piece.packed for piece in pieces])
    scales = [piece.scales for piece in pieces if piece.scales is not None]
    joined = np.concatenate(scales) if scales else np.zeros((0, 0), np.uint8)
    return torch.from_numpy(np.ascontiguousarray(codes)), torch.from_numpy(np.ascontiguousarray(joined))


def _padded(scales: Tensor, shape: Iterable[int]) -> Tensor:
    padded = torch.zeros(*shape, dtype=scales.dtype)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    return padded
