"""The quantizer of block-scaled FP8 tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp4ref import registry
from fp4ref.quantized import Direction
from fp4ref.registry import Call
from fp4ref.te import in_place, steps
from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.cast import fp8_codes, write
from fp4ref.te.dtypes import FLOATS, DType
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.float8_block_tensor import (
    BLOCK,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
    blocks,
    scale_shape,
)
from fp4ref.te.new_buffers import new_buffers
from fp4ref.te.nvfp4_settings import DIRECTIONS_OF
from fp4ref.te.one_pass import server
from fp4ref.te.per_tensor import scales_of
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.recipe import Float8BlockScaling, Recipe
from fp4ref.te.specifications import mxfp8

AS_PASSED = ("_rowwise_data", "_rowwise_scale_inv", "_columnwise_data", "_columnwise_scale_inv")


class Float8BlockQuantizer(Quantizer):
    """Makes block-scaled FP8 tensors from [..., K] of any size.

    force_pow_2_scales: round each scale down to a power of two. amax_epsilon: the least amax of a block.
    block_scaling_dim: 1 for blocks of 1x128, 2 for tiles of 128x128.

    Rules: TEL-3, TEL-48, TEL-49, TEL-50, TEL-72, TEL-74.
    """

    def __init__(
        self,
        fp8_dtype: DType = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype
        self.block_len = BLOCK
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self.block_scaling_dim = block_scaling_dim

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless the settings fit each other, the emulated device and a tensor's dtype.

        Rules: TEL-3, TEL-48, TEL-92.
        """
        for bad, got, needed, rule in (
            (
                self.dtype not in {DType.kFloat8E4M3, DType.kFloat8E5M2},
                f"fp8_dtype {self.dtype!r}",
                "kFloat8E4M3 or kFloat8E5M2",
                "TEL-3",
            ),
            (self.block_scaling_dim not in {1, 2}, f"block_scaling_dim {self.block_scaling_dim}", "1 or 2", "TEL-48"),
            (
                not self.force_pow_2_scales and get_device_compute_capability() >= (10, 0),
                "float32 scales on a device of capability 10.0 or above",
                "force_pow_2_scales, or an emulated device of capability 9.0",
                "TEL-92",
            ),
        ):
            if bad:
                raise SettingError("Float8BlockQuantizer", got, needed, rule)
        if dtype not in {None, *FLOATS}:
            raise TensorDTypeError("Float8BlockQuantizer", f"dtype {dtype}", "float32, bfloat16 or float16", "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds block-scaled FP8 bytes."""
        if not isinstance(dst, Float8BlockwiseQTensorStorage):
            got = f"destination {type(dst).__name__}"
            raise SettingError("Float8BlockQuantizer", got, "a Float8BlockwiseQTensor", "TEL-5")

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True if a part can be gathered quantized: two dimensions at least, of whole blocks."""
        shape = tuple(inp.shape)
        return len(shape) > 1 and not (shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK)

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, int]:
        """Return the shape of the scales of a tensor. Rules: TEL-49."""
        return scale_shape(tuple(shape), tiles=self.block_scaling_dim == 2, columnwise=columnwise)

    def is_requantization_safe(self) -> bool:
        """Return True: a tensor's bytes depend on nothing else. Rules: TEM-42."""
        return True

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return False: these scales have one layout. Rules: TEL-28."""
        return False

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return a tensor with buffers for the directions in use; storage if `internal`. Rules: TEL-49."""
        requires_grad = options.pop("requires_grad", False)
        values: dict[str, Tensor | None] = dict.fromkeys(Float8BlockwiseQTensorStorage.BUFFERS)
        names = [name for name, used in (("row", self.rowwise_usage), ("column", self.columnwise_usage)) if used]
        shapes = [self.get_columnwise_shape(shape) if name == "column" else shape for name in names]
        of_scales = [self.get_scale_shape(shape, name == "column") for name in names]
        for name, codes, scales in zip(
            names, *new_buffers(tuple(shapes), tuple(of_scales), torch.float32, device, **options), strict=True
        ):
            values[f"_{name}wise_data"], values[f"_{name}wise_scale_inv"] = codes, scales
        return self._tensor(values, shape, dtype, device, requires_grad=requires_grad)

    def _tensor(
        self,
        buffers: dict[str, Tensor | None],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        requires_grad: bool = False,
    ) -> Any:
        """Return a tensor of these buffers, storage if `internal`."""
        held = {**buffers, "_fp8_dtype": self.dtype, "_is_2D_scaled": self.block_scaling_dim == 2}
        if self.internal:
            return Float8BlockwiseQTensorStorage.holding(held, self, dtype)
        return Float8BlockwiseQTensor.wrapping(held, self, dtype, shape, device, requires_grad=requires_grad)

    def make(self, tensor: Tensor, drawn: Any = None) -> Any:
        """Quantize a contiguous tensor into new buffers, in one pass where there is one. Rules: TEL-48, TEL-49."""
        buffers = self._in_one_pass(tensor)
        if buffers is None:
            return super().make(tensor, drawn)
        return self._tensor(buffers, tuple(tensor.shape), tensor.dtype, tensor.device)

    def _in_one_pass(self, tensor: Tensor) -> dict[str, Tensor | None] | None:
        """Return the buffers that a backend makes in one pass, by attribute; None without such a backend."""
        made = self._passed(tensor)
        return self._by_attribute(made, tensor.shape) if made else None

    def _by_attribute(self, made: tuple[Tensor | None, ...], shape: torch.Size) -> dict[str, Tensor | None]:
        """Return the buffers of a tensor by attribute."""
        (codes, scales, columns, scales_of_columns), flat = made, len(shape) == 2
        return {
            "_rowwise_data": codes if codes is None or flat else codes.view(shape),
            "_columnwise_data": columns if columns is None or flat else columns.view(self.get_columnwise_shape(shape)),
            "_rowwise_scale_inv": scales,
            "_columnwise_scale_inv": scales_of_columns,
        }

    def _passed(self, tensor: Tensor) -> tuple[Tensor | None, ...]:
        """Return codes as matrices, and scales, of rows and of columns, by one pass of a backend; else nothing."""
        found = self._pass(tensor)
        if found is None:
            return ()
        call, serve = found
        made: tuple[Tensor | None, ...] = serve(call, tensor.reshape(call.sizes), *self._how())
        return made

    def _pass(self, tensor: Tensor) -> tuple[Call, Callable[..., Any]] | None:
        """Return the call of a backend that makes codes and scales in one pass, and its function; None without one."""
        direction = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        if direction is None or not tensor.numel():
            return None
        width = tensor.shape[-1] if tensor.dim() else 1
        matrix, spec = (tensor.numel() // width, width), mxfp8(self.dtype)
        return server("block_codes", tensor.device, matrix, spec=spec, source=tensor.dtype, direction=direction)

    def _how(self) -> tuple[float, bool, bool]:
        return self.amax_epsilon, self.force_pow_2_scales, self.block_scaling_dim == 2

    def kind(self) -> Hashable | None:
        """Return the settings, and the device that is emulated; None for other classes."""
        if type(self) is not Float8BlockQuantizer:
            return None
        how = self.amax_epsilon, self.force_pow_2_scales, self.block_scaling_dim
        usages = self.rowwise_usage, self.columnwise_usage
        return Float8BlockQuantizer, self.dtype, *how, *usages, get_device_compute_capability(), *self.lasting

    def made_again(self, tensor: Tensor) -> Callable[[Tensor, Self], Any] | None:
        """Return a function that makes other tensors of a kind, where a backend makes codes and scales."""
        found, (shape, dtype, device) = self._pass(tensor), (tensor.shape, tensor.dtype, tensor.device)
        if found is None or not tensor.is_contiguous():
            return None
        same, matrix, flat = self.copy(), found[0].sizes, tensor.dim() == 2
        run = steps.repeated(("fp8 blocks made", self.kind_of_call()), (tensor,), lambda x: same._passed(x.detach()))
        bind = None if run else registry.binder(found[0], None)
        bound = bind(found[0], tensor.view(matrix), *self._how()) if bind else None
        if bound is not None:
            run = bound if flat else lambda x: bound(x.view(matrix))
        make = run or same._passed
        return lambda x, quantizer: quantizer._tensor(same._by_attribute(make(x), shape), shape, dtype, device)

    def filled_again(
        self, tensor: Tensor, dst: Any, flag: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind; None without a backend that does it in place."""
        found = self._pass(tensor)
        if found is None or not tensor.is_contiguous():
            return None
        kind = "fp8 blocks", self.kind_of_call()
        by_steps = steps.filled(kind, tensor, dst, flag, _buffers_of, self.copy()._fill_by_steps)
        bind = None if by_steps or flag is not None else registry.binder(found[0], None)
        if bind is None:
            return by_steps
        x, made = tensor.view(found[0].sizes), self._passed(tensor)
        shaped = self._by_attribute(made, tensor.shape)
        held, wanted = ([of[name] for name in AS_PASSED] for of in (dst.__dict__, shaped))
        return in_place.filled(tensor, dst, AS_PASSED, held, wanted, bind(found[0], x, *self._how(), made))

    def _fill_by_steps(self, x: Tensor, kept: Sequence[Any], held: Sequence[Any], word: Tensor | None) -> None:
        made = self._in_one_pass(x)
        assert made is not None
        for buffer, name in zip(held, Float8BlockwiseQTensorStorage.BUFFERS, strict=True):
            each = made[name]
            if each is not None:
                steps.written(each, buffer, word)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Fit an existing tensor to the directions in use; buffers that exist stay. Rules: TEL-5."""
        if tuple(dst.shape) != shape:
            raise TensorShapeError("update_quantized", f"source {list(shape)}", f"{list(dst.shape)}", "TEL-5")
        fresh = self.allocate(shape, dst.dtype, device)
        same = dst._is_2D_scaled == fresh._is_2D_scaled
        for name in Float8BlockwiseQTensorStorage.BUFFERS:
            if not same or getattr(dst, name) is None or getattr(fresh, name) is None:
                setattr(dst, name, getattr(fresh, name))
        dst._fp8_dtype, dst._is_2D_scaled = self.dtype, fresh._is_2D_scaled

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize each direction of blocks; both directions of tiles are one. Rules: TEL-48, TEL-49, TEL-50."""
        if not tensor.numel():
            return
        buffers = self._in_one_pass(tensor)
        if buffers is not None:
            for name, made in buffers.items():
                if made is not None:
                    write(getattr(dst, name), made, noop)
            return
        x = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        tiles = self._with_any_scales(x) if self.block_scaling_dim == 2 else None
        usages: tuple[tuple[bool, Direction], ...] = (self.rowwise_usage, "row"), (self.columnwise_usage, "column")
        for used, direction in usages:
            if used:
                codes, scales = self._with_any_scales(x if direction == "row" else x.t()) if tiles is None else tiles
                if tiles is None:
                    scales = scales.t()
                elif direction == "column":
                    codes, scales = codes.t(), scales.t()
                data, buffer = getattr(dst, f"_{direction}wise_data"), getattr(dst, f"_{direction}wise_scale_inv")
                write(data.view(codes.shape), codes, noop)
                write(buffer, pad(scales, (0, buffer.shape[1] - scales.shape[1])), noop)

    def _with_any_scales(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of a matrix, and one float32 scale per block of `block_scaling_dim`.

        Rules: TEL-50, TEL-73.
        """
        rows, columns = x.shape
        height = BLOCK if self.block_scaling_dim == 2 else 1
        down, across = -(-rows // height), blocks(columns)
        whole = pad(x, (0, across * BLOCK - columns, 0, down * height - rows)).view(down, height, across, BLOCK)
        amax = torch.nan_to_num(whole.abs(), nan=0.0, posinf=torch.inf).amax((1, 3)).to(torch.float32)
        scale, inverse = scales_of(amax, self.dtype, x.dtype, self.amax_epsilon, self.force_pow_2_scales)
        codes = fp8_codes(whole.to(torch.float32) * scale[:, None, :, None], self.dtype)
        codes = codes.view(down * height, across * BLOCK)[:rows, :columns]
        return codes, inverse

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return Float8BlockScaling


def _buffers_of(dst: Any) -> list[Any]:
    held = dst.__dict__
    return [held[name] for name in Float8BlockwiseQTensorStorage.BUFFERS]
