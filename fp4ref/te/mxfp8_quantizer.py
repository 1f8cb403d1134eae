"""The quantizer of MXFP8 tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self

import torch
from torch import Tensor

from fp4ref import api, registry
from fp4ref.quantized import DirectionChoice, Parts
from fp4ref.spec import Spec
from fp4ref.te import mxfp8_again, specifications, steps
from fp4ref.te.cast import turned, turner, write
from fp4ref.te.dtypes import FLOATS, DType
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.mxfp8_tensor import MXFP8Tensor, MXFP8TensorStorage, scale_shape
from fp4ref.te.new_buffers import new_buffers
from fp4ref.te.nvfp4_settings import DIRECTIONS_OF
from fp4ref.te.quantizer import Facts, InSteps, Quantizer
from fp4ref.te.recipe import MXFP8BlockScaling, Recipe
from fp4ref.te.swizzle import COMPACT, GEMM


class MXFP8Quantizer(Quantizer):
    """Makes MXFP8 tensors from [..., K], both dimensions of the matrix multiples of 32.

    fp8_dtype: kFloat8E4M3 or kFloat8E5M2. with_2d_quantization: 32x32 tiles.

    Rules: TEL-3, TEL-23, TEL-28.
    """

    def __init__(
        self,
        fp8_dtype: DType = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype
        self.with_2d_quantization = with_2d_quantization

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless the settings fit a tensor's shape and dtype. Rules: TEL-3, TEL-23."""
        if self.dtype not in {DType.kFloat8E4M3, DType.kFloat8E5M2}:
            raise SettingError("MXFP8Quantizer", f"fp8_dtype {self.dtype!r}", "kFloat8E4M3 or kFloat8E5M2", "TEL-3")
        if not shape or shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK:
            got = f"shape {list(shape)}"
            raise TensorShapeError("MXFP8Quantizer", got, f"both matrix dimensions divisible by {BLOCK}", "TEL-23")
        if dtype not in {None, *FLOATS}:
            raise TensorDTypeError("MXFP8Quantizer", f"dtype {dtype}", "float32, bfloat16 or float16", "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds MXFP8 bytes."""
        if not isinstance(dst, MXFP8TensorStorage):
            raise SettingError("MXFP8Quantizer", f"destination {type(dst).__name__}", "an MXFP8Tensor", "TEL-5")

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True if a tensor can be quantized: two dimensions at least, multiples of 32."""
        shape = tuple(inp.shape)
        return len(shape) > 1 and not (shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK)

    def is_requantization_safe(self) -> bool:
        """Return True: a tensor's bytes depend on nothing else. Rules: TEM-42."""
        return True

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, int]:
        """Shape of the scales of a tensor. Rules: LAY-2."""
        return scale_shape(tuple(shape), columnwise=columnwise)

    @staticmethod
    def get_columnwise_shape(shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape itself: columns are not transposed."""
        return tuple(shape)

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return True: every kernel writes either layout. Rules: TEL-28."""
        return True

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Make a tensor with buffers for the directions in use, storage if `internal`. Rules: TEL-3, TEL-22, TEL-28."""
        requires_grad = options.pop("requires_grad", False)
        held: dict[str, Any] = dict.fromkeys(MXFP8TensorStorage.BUFFERS)
        names = [name for name, used in (("row", self.rowwise_usage), ("column", self.columnwise_usage)) if used]
        turned = [name == "column" and self.internal for name in names]  # in the order in which columns are computed
        shapes = [(shape[-1], *shape[:-1]) if across else shape for across in turned]
        of_scales = [scale_shape(shape, columnwise=name == "column") for name in names]
        made, scales = new_buffers(tuple(shapes), tuple(of_scales), torch.uint8, device, **options)
        for name, across, codes, its in zip(names, turned, made, scales, strict=True):
            held[f"_{name}wise_data"] = codes.movedim(0, -1) if across else codes
            held[f"_{name}wise_scale_inv"] = its
        return self._owning(held, (dtype, shape, device), requires_grad=requires_grad)

    def _owning(self, held: dict[str, Any], of: Facts, *, requires_grad: bool = False) -> Any:
        """Return the tensor that owns buffers by attribute, storage if `internal`."""
        dtype, shape, device = of
        held["_fp8_dtype"], held["_with_gemm_swizzled_scales"] = self.dtype, self.optimize_for_gemm
        if self.internal:
            return MXFP8TensorStorage.holding(held, self, dtype)
        return MXFP8Tensor.wrapping(held, self, dtype, shape, device, requires_grad=requires_grad)

    def kind(self) -> Hashable | None:
        """Return the settings; None for other classes."""
        if type(self) is not MXFP8Quantizer:
            return None
        usages = self.rowwise_usage, self.columnwise_usage
        return MXFP8Quantizer, self.dtype, self.with_2d_quantization, *usages, *self.lasting

    def make(self, tensor: Tensor, drawn: Any = None) -> Any:
        """Quantize a contiguous tensor in one call. Rules: TEL-3."""
        asked = self.asked(tensor)
        if asked is None:
            return super().make(tensor)
        q = api.quantize(tensor.view(-1, tensor.shape[-1]), *asked)
        return self.made((q.row, q.column), (tensor.dtype, tensor.shape, tensor.device))

    def made_again(self, tensor: Tensor) -> Callable[[Tensor, Self], Any] | None:
        """Return a function that makes other tensors of a kind."""
        asked, width = self.asked(tensor), tensor.shape[-1]
        if asked is None or not tensor.is_contiguous():
            return None
        of, flat = (tensor.dtype, tensor.shape, tensor.device), tensor.dim() == 2
        if self.columnwise_usage and not (self.internal and self.optimize_for_gemm):
            by_steps = steps.repeated(("mxfp8 made", self.kind_of_call()), (tensor,), self.copy()._buffers_by_steps)
            if by_steps is not None:
                return lambda x, quantizer: quantizer._holding(by_steps(x), of)
        repeat = api.quantize_again(tensor.view(-1, width), *asked)
        if repeat is None:
            return None
        _, column = repeat(tensor.view(-1, width))
        if column and flat and self.internal and self.optimize_for_gemm:
            return mxfp8_again.for_products(repeat, tensor.dtype, column)
        turns = [turner(part) or turned for part in column[:2]] if column else []

        def again(x: Tensor, quantizer: Self) -> Any:
            parts = repeat(x if flat else x.view(-1, width))
            return quantizer._holding(quantizer._turned(parts, *turns), of)

        return again

    def in_steps(self, tensor: Tensor) -> InSteps | None:
        """Return the calls of backends that make a tensor."""
        of = tensor.dtype, tensor.shape, tensor.device
        if self.asked(tensor) is None or not tensor.is_contiguous():
            return None
        return InSteps(self.copy()._buffers_by_steps, 4, lambda made, quantizer: quantizer._holding(made, of))

    def _buffers_by_steps(self, x: Tensor) -> tuple[Tensor | None, ...]:
        """Return the buffers of a tensor, as matrices, by operations of backends alone."""
        asked = self.asked(x)
        assert asked is not None
        q = api.quantize(x.detach().view(-1, x.shape[-1]), *asked)
        return self._turned((q.row, q.column))

    def filled_again(
        self, tensor: Tensor, dst: Any, flag: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind."""
        return mxfp8_again.filled_again(self, tensor, dst, flag)

    def asked(self, tensor: Tensor) -> tuple[Spec, DirectionChoice, str] | None:
        """Return the arguments of the call of `quantize` that a tensor takes; None for no elements or directions."""
        directions = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        if directions is None or not tensor.numel():
            return None
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        return spec, directions, GEMM if self.optimize_for_gemm else COMPACT

    def made(self, directions: Parts, of: Facts) -> Any:
        """Return the tensor of quantized bytes, storage if `internal`. of: the values."""
        return self._holding(self._turned(directions), of)

    def _turned(
        self,
        directions: Parts,
        turn_codes: Callable[[Tensor], Tensor] = turned,
        turn_scales: Callable[[Tensor], Tensor] = turned,
    ) -> tuple[Tensor | None, ...]:
        """Return the buffers of quantized bytes, as matrices."""
        row, column = directions
        rows = (None, None) if row is None else (row.data, row.scales)
        if column is None:
            return *rows, None, None
        codes = column.data if self.internal else turn_codes(column.data)
        return *rows, codes, column.scales if self.optimize_for_gemm else turn_scales(column.scales)

    def _holding(self, buffers: tuple[Tensor | None, ...], of: Facts) -> Any:
        """Return the tensor of such buffers, storage if `internal`."""
        (row, row_scales, codes, scales), (_, shape, _) = buffers, of
        flat = len(shape) == 2
        if codes is not None and scales is not None:
            if self.internal:
                codes = codes.t() if flat else codes.view(shape[-1], *shape[:-1]).movedim(0, -1)
            elif not flat:
                codes = codes.view(shape)
            scales = scales.view(scales.shape[::-1]) if self.optimize_for_gemm else scales
        held = {
            "_rowwise_data": row if row is None or flat else row.view(shape),
            "_columnwise_data": codes,
            "_rowwise_scale_inv": row_scales,
            "_columnwise_scale_inv": scales,
        }
        return self._owning(held, of)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Fit an existing tensor to the directions in use; buffers that exist stay. Rules: TEL-4, TEL-5, TEL-84."""
        if tuple(dst.shape) != shape:
            raise TensorShapeError("update_quantized", f"source {list(shape)}", f"{list(dst.shape)}", "TEL-5")
        fresh = self.allocate(shape, dst.dtype, device)
        for name in MXFP8TensorStorage.BUFFERS:
            if getattr(dst, name) is None or getattr(fresh, name) is None:
                setattr(dst, name, getattr(fresh, name))
        dst._fp8_dtype, dst._with_gemm_swizzled_scales = self.dtype, self.optimize_for_gemm

    def takes_noop(self, tensor: Tensor) -> bool:
        """Return True if a backend for the tensor's device reads the flag where it lies. Rules: LAY-12."""
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        call = registry.Call("quantize", spec, device=tensor.device.type, flag=True)
        return tensor.device.type == "cpu" or registry.offers(call, None)

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize into the buffers of `dst`. Rules: TEL-3, TEL-5."""
        if self.asked(tensor) is not None:
            held = mxfp8_again.buffers(self.internal, tensor.shape[-1], dst)
            mxfp8_again.fill(self, tensor, (), held, noop, _written)

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return MXFP8BlockScaling


def _written(made: Tensor, buffer: Tensor, noop: Tensor | None, *, turns: bool = False) -> None:
    write(buffer, made.t() if turns else made, noop)
