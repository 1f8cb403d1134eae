"""The quantizer of MXFP8 tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from fp4ref import api, registry
from fp4ref.layout import layout
from fp4ref.quantized import DirectionChoice, DirectionData, Parts, Quantized
from fp4ref.spec import Spec
from fp4ref.te import mxfp8_again, specifications, steps
from fp4ref.te.cast import turned, write
from fp4ref.te.dtypes import FLOATS, DType, dtype_name
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.mxfp8_tensor import MXFP8Tensor, MXFP8TensorStorage, scale_shape
from fp4ref.te.new_buffers import new_buffers
from fp4ref.te.nvfp4_settings import DIRECTIONS_OF
from fp4ref.te.quantizer import Facts, Quantizer
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
        held |= {"_fp8_dtype": self.dtype, "_with_gemm_swizzled_scales": self.optimize_for_gemm}
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
        return self._made((q.row, q.column), (tensor.dtype, tensor.shape, tensor.device))

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
        return repeat and (lambda x, quantizer: quantizer._made(repeat(x if flat else x.view(-1, width)), of))

    def _buffers_by_steps(self, x: Tensor) -> tuple[Tensor | None, ...]:
        """Return the buffers of a tensor, as matrices, by operations of backends alone."""
        asked = self.asked(x)
        assert asked is not None
        q = api.quantize(x.detach().view(-1, x.shape[-1]), *asked)
        return self._turned((q.row, q.column))

    def filled_again(
        self, tensor: Tensor, dst: Any, flag: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind, by way of new ones where no backend does it."""
        asked, width = self.asked(tensor), tensor.shape[-1]
        if asked is None or not tensor.is_contiguous():
            return None
        kind, fill = ("mxfp8", self.kind_of_call()), partial(mxfp8_again.fill, self.copy())
        by_steps = steps.filled(kind, tensor, dst, flag, partial(mxfp8_again.buffers, self.internal, width), fill)
        repeat = None if by_steps or flag is not None else api.quantize_again(tensor.view(-1, width), *asked)
        if repeat is None:
            return by_steps
        flat = tensor.dim() == 2

        def again(x: Tensor, quantizer: Self, dst: Any, flag: Tensor | None) -> None:
            (row, column), held = repeat(x if flat else x.view(-1, width)), dst.__dict__
            if row is not None:
                held["_rowwise_data"].copy_(row.data if flat else row.data.view(x.shape))
                held["_rowwise_scale_inv"].copy_(row.scales)
            if column is not None:
                codes, scales = held["_columnwise_data"], held["_columnwise_scale_inv"]
                if quantizer.internal:
                    codes.movedim(-1, 0).view(column.data.shape).copy_(column.data)
                else:
                    codes.view(-1, width).copy_(turned(column.data))
                scales.copy_(column.scales.view(scales.shape) if quantizer.optimize_for_gemm else column.scales.t())

        return again

    def asked(self, tensor: Tensor) -> tuple[Spec, DirectionChoice, str] | None:
        """Return the arguments of the call of `quantize` that a tensor takes; None for no elements or directions."""
        directions = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        if directions is None or not tensor.numel():
            return None
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        return spec, directions, GEMM if self.optimize_for_gemm else COMPACT

    def _made(self, directions: Parts, of: Facts) -> Any:
        """Return the tensor of quantized bytes, storage if `internal`. of: the values."""
        return self._holding(self._turned(directions), of)

    def _turned(self, directions: Parts) -> tuple[Tensor | None, ...]:
        """Return the buffers of quantized bytes, as matrices."""
        row, column = directions
        rows = (None, None) if row is None else (row.data, row.scales)
        if column is None:
            return *rows, None, None
        codes = column.data if self.internal else turned(column.data)
        return *rows, codes, column.scales if self.optimize_for_gemm else turned(column.scales)

    def _holding(self, buffers: tuple[Tensor | None, ...], of: Facts) -> Any:
        """Return the tensor of such buffers, storage if `internal`."""
        (row, row_scales, codes, scales), (dtype, shape, device) = buffers, of
        flat, swizzled = len(shape) == 2, self.optimize_for_gemm
        if codes is not None and scales is not None:
            if self.internal:
                codes = codes.t() if flat else codes.view(shape[-1], *shape[:-1]).movedim(0, -1)
            elif not flat:
                codes = codes.view(shape)
            scales = scales.view(scales.shape[::-1]) if swizzled else scales
        held = {
            "_rowwise_data": row if row is None or flat else row.view(shape),
            "_columnwise_data": codes,
            "_rowwise_scale_inv": row_scales,
            "_columnwise_scale_inv": scales,
            "_fp8_dtype": self.dtype,
            "_with_gemm_swizzled_scales": swizzled,
        }
        if self.internal:
            return MXFP8TensorStorage.holding(held, self, dtype)
        return MXFP8Tensor.wrapping(held, self, dtype, shape, device)

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
        if not tensor.numel():
            return
        x = tensor.view(-1, tensor.shape[-1])
        matrix = (x.shape[0], x.shape[1])
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        lie = GEMM if dst._with_gemm_swizzled_scales else COMPACT
        if self.rowwise_usage:
            row = DirectionData(dst._rowwise_data.view(matrix), dst._rowwise_scale_inv, None)
            out = Quantized(spec, matrix, dtype_name(tensor.dtype), lie, row=row)
            api.quantize(x, spec, "row", lie, out=out, noop=noop)
        if self.columnwise_usage:
            codes, scales = dst._columnwise_data.view(matrix).t(), dst._columnwise_scale_inv
            in_place = noop is None and codes.is_contiguous()
            column = self._columns(x, spec, lie, codes if in_place else None)
            if not in_place:
                write(codes, column.data, noop)
            moved = column.scales.reshape(scales.shape) if lie == GEMM else column.scales.t()
            write(scales, moved, noop)

    @staticmethod
    def _columns(x: Tensor, spec: Spec, lie: str, codes: Tensor | None) -> DirectionData:
        """Return the column direction; with `codes` [K, M], its elements there."""
        out = None
        if codes is not None:
            padded = layout(lie).padded_shape(codes.shape[0], codes.shape[1] // BLOCK)
            scales = torch.empty(padded, dtype=torch.uint8, device=x.device)
            dtype = dtype_name(x.dtype)
            out = Quantized(spec, tuple(x.shape), dtype, lie, column=DirectionData(codes, scales, None))
        column: DirectionData | None = api.quantize(x, spec, "column", lie, out=out).column
        assert column is not None
        return column

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return MXFP8BlockScaling
