"""The quantizers of per-tensor FP8 tensors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fp4ref import repeats
from fp4ref.te.cast import scaled_fp8_codes, write
from fp4ref.te.dtypes import FLOATS, DType
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.float8_again import OfOneScale, Repeating
from fp4ref.te.float8_tensor import Float8Tensor, Float8TensorStorage
from fp4ref.te.per_tensor import (
    at_once,
    at_once_again,
    at_once_stepwise,
    current_scale,
    given_scale_again,
    given_scale_stepwise,
    largest_magnitude,
)
from fp4ref.te.quantizer import Facts
from fp4ref.te.recipe import DelayedScaling, Float8CurrentScaling, Recipe
from fp4ref.te.steps import Stepwise


class Float8CurrentScalingQuantizer(OfOneScale):
    """Makes per-tensor FP8 tensors: scale = largest finite code / amax, saturating.

    amax_epsilon: the least amax. force_pow_2_scales: round the scale down to a power of two. with_amax_reduction: the
    largest amax of `amax_reduction_group`.

    Rules: TEL-3, TEL-10, TEL-21, TEL-64.
    """

    def __init__(
        self,
        fp8_dtype: DType = DType.kFloat8E4M3,
        device: torch.device | str | None = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: dist.ProcessGroup | None = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"amax_reduction_group": None}  # process groups cannot be pickled

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise for another element type than the two FP8 ones. Rules: TEL-3."""
        if self.dtype not in {DType.kFloat8E4M3, DType.kFloat8E5M2}:
            got = f"fp8_dtype {self.dtype!r}"
            raise SettingError("Float8CurrentScalingQuantizer", got, "kFloat8E4M3 or kFloat8E5M2", "TEL-3")
        if dtype not in {None, *FLOATS}:
            needed = "float32, bfloat16 or float16"
            raise TensorDTypeError("Float8CurrentScalingQuantizer", f"dtype {dtype}", needed, "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds per-tensor FP8 bytes."""
        if not isinstance(dst, Float8TensorStorage):
            got = f"destination {type(dst).__name__}"
            raise SettingError("Float8CurrentScalingQuantizer", got, "a Float8Tensor", "TEL-5")

    def is_requantization_safe(self) -> bool:
        """Return True: a tensor's bytes depend on nothing else. Rules: TEM-42."""
        return True

    def supports_only_rowwise_all_gather(self) -> bool:
        """Return True: the codes serve both directions."""
        return True

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True: every shape fits, without blocks."""
        return True

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return False: one scale has no layout. Rules: TEL-28."""
        return False

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return a tensor with uninitialized codes; storage if `internal`."""
        requires_grad = options.pop("requires_grad", False)
        codes = torch.empty(shape, dtype=torch.uint8, device=device, **options)
        ones = torch.ones(1, dtype=torch.float32, device=device, **options)
        return self.with_buffers(codes, ones, (dtype, shape, device), requires_grad=requires_grad)

    def with_buffers(self, codes: Tensor, scale_inv: Tensor, of: Facts, *, requires_grad: bool = False) -> Any:
        """Return a tensor of these buffers, storage if `internal`."""
        dtype, shape, device = of
        held = {"_data": codes, "_scale_inv": scale_inv, "_fp8_dtype": self.dtype}
        if self.internal:
            return Float8TensorStorage.holding(held, self, dtype)
        return Float8Tensor.wrapping(held, self, dtype, shape, device, requires_grad=requires_grad)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Require the same shape. Rules: TEL-5."""
        if tuple(dst.shape) != shape:
            raise TensorShapeError("update_quantized", f"source {list(shape)}", f"{list(dst.shape)}", "TEL-5")
        if dst._data is None:
            dst._data = torch.empty(shape, dtype=torch.uint8, device=device)
        dst._fp8_dtype = self.dtype

    def kind(self) -> Hashable | None:
        """Return the settings; None where amaxes are reduced, and for other classes, such as those with a history."""
        if self.with_amax_reduction or type(self) is not Float8CurrentScalingQuantizer:
            return None
        how = self.force_pow_2_scales, self.amax_epsilon
        return Float8CurrentScalingQuantizer, self.dtype, *how, *self.lasting

    def make(self, tensor: Tensor, drawn: Any = None) -> Any:
        """Quantize a contiguous tensor into new buffers, those of the steps. Rules: TEL-21, TEL-3, TEL-10."""
        codes, inverse = self._quantized_at_once(tensor) or self._by_steps(tensor)
        return self.with_buffers(codes, inverse, (tensor.dtype, tensor.shape, tensor.device))

    def repeating(self, tensor: Tensor) -> Repeating | None:
        """Return the function that makes codes and 1 over the scale for tensors of a kind."""
        how = self.dtype, self.amax_epsilon, self.force_pow_2_scales
        serve = None if self.with_amax_reduction else at_once_again(tensor, *how)
        return serve and (lambda x, quantizer: serve(x))

    def stepwise(self, tensor: Tensor) -> Stepwise | None:
        """Return the function that makes codes and 1 over their own scale; None where amaxes are reduced."""
        how = self.dtype, self.amax_epsilon, self.force_pow_2_scales
        return None if self.with_amax_reduction else at_once_stepwise(tensor, *how)

    def _quantized_at_once(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return codes and 1 over the scale, where that is the tensor's own and a backend takes all steps at once."""
        if self.with_amax_reduction:
            return None
        return at_once(tensor, self.dtype, self.amax_epsilon, self.force_pow_2_scales)

    def _by_steps(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        scale, inverse = self.scales(tensor, None)
        return scaled_fp8_codes(tensor, scale, self.dtype), inverse

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Scale by the (reduced) amax, round to nearest even, saturate. Rules: TEL-21, TEL-3, TEL-10."""
        scale, inverse = self.scales(tensor, noop)
        write(dst._data, scaled_fp8_codes(tensor, scale, self.dtype), noop)
        write(dst._scale_inv, inverse, noop)

    def scales(self, tensor: Tensor, noop: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the scale of a tensor and 1 over it, float32 [1]. noop: as for `fill`. Rules: TEL-21, TEL-10."""
        amax = largest_magnitude(tensor)
        if self.with_amax_reduction:
            dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=self.amax_reduction_group)
        return current_scale(amax, self.dtype, tensor.dtype, self.amax_epsilon, self.force_pow_2_scales)

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return Float8CurrentScaling


class Float8Quantizer(Float8CurrentScalingQuantizer):
    """Makes per-tensor FP8 tensors with a given scale, and keeps the largest amax of them.

    scale: float32 of one element. amax: float32 of one element, raised to each tensor's amax.

    Rules: TEL-3, TEL-44, TEL-68.
    """

    def __init__(
        self, scale: Tensor, amax: Tensor, fp8_dtype: DType, *, rowwise: bool = True, columnwise: bool = True
    ) -> None:
        super().__init__(fp8_dtype, rowwise=rowwise, columnwise=columnwise)
        self.scale, self.amax = scale, amax

    def scales(self, tensor: Tensor, noop: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the kept scale and 1 over it, and raise the amax unless a flag forbids it. Rules: TEL-24, TEL-44."""
        raised = torch.maximum(self.amax, largest_magnitude(tensor).reshape(self.amax.shape))
        write(self.amax, raised, noop)
        scale = self.scale.reshape(1)
        return scale, torch.ones_like(scale) / scale

    def kind(self) -> Hashable | None:
        """Return the settings; None for other classes."""
        return (Float8Quantizer, self.dtype, *self.lasting) if type(self) is Float8Quantizer else None

    def kind_of_call(self) -> Hashable | None:
        """Return the settings, and the kinds of the scale and of the amax; None for other classes."""
        kinds = repeats.kind_of(self.scale), repeats.kind_of(self.amax)
        return None if type(self) is not Float8Quantizer or None in kinds else (self.dtype, *kinds, *self.lasting)

    def repeating(self, tensor: Tensor) -> Repeating | None:
        """Return the function that makes codes by the scale that a quantizer has then, and raises its amax."""
        serve = given_scale_again(tensor, self.scale, self.amax, self.dtype)
        return serve and (lambda x, quantizer: serve(x, quantizer.scale, quantizer.amax))

    def kept(self) -> tuple[Tensor, ...]:
        """Return the scale and the amax."""
        return self.scale, self.amax

    def stepwise(self, tensor: Tensor) -> Stepwise | None:
        """Return the function that makes codes by the kept scale, and raises the amax."""
        return given_scale_stepwise(tensor, self.scale, self.amax, self.dtype)

    def is_requantization_safe(self) -> bool:
        """Return False: the scale changes between calls. Rules: TEM-42."""
        return False

    def _quantized_at_once(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return None: the scale is not the tensor's own."""
        return None

    def calibrate(self, tensor: Tensor) -> None:
        """Note a tensor's amax without quantizing it."""
        self.amax.copy_(largest_magnitude(tensor).reshape(self.amax.shape))

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return DelayedScaling
