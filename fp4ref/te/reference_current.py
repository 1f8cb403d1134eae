"""The Python reference of per-tensor FP8, by the interface that tests of quantizers use, on this project's model.

Its bytes are those of the profile `te.fp8_current`, which the quantizers of recipes reach by operations of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref import api
from fp4ref.te.cast import fp8_values
from fp4ref.te.dtypes import TE_DType
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.per_tensor import scales_of
from fp4ref.te.product import multiply
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.storage import QuantizedTensorStorage

PROFILES = {torch.float8_e4m3fn: "te.fp8_current", torch.float8_e5m2: "te.fp8_current_e5m2"}


class CurrentScalingTensorRef(QuantizedTensorStorage):
    """Codes of one torch type [M, K] and float32 [1] scales, which multiply them; *_t: of the transpose."""

    BUFFERS = ("data", "data_t", "scale", "scale_t")
    SETTINGS = ("original_shape", "quant_dtype")
    data: Tensor | None
    data_t: Tensor | None
    scale: Tensor | None
    scale_t: Tensor | None
    original_shape: tuple[int, ...]
    quant_dtype: torch.dtype
    custom = True

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        return torch.Size(self.original_shape)

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist."""
        return [name for name, data in (("row", self.data), ("column", self.data_t)) if data is not None]

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions and free the others; columns are made from the rows.

        Errors: SettingError for a direction that cannot be made.
        """
        if columnwise_usage and self.data_t is None and self.data is not None:
            self.data_t, self.scale_t = self.data.t().contiguous(), self.scale
        if rowwise_usage is False:
            self.data = None
        if columnwise_usage is False:
            self.data_t = None
        for wanted, direction in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted and direction not in self.directions():
                raise SettingError("CurrentScalingTensorRef", f"no {direction} direction", "one that was quantized")

    def as_native(self) -> Float8TensorStorage:
        """Return the same codes and scale in the buffers of `Float8Tensor`, for the matrix product."""
        data, scale = (self.data, self.scale) if self.data is not None else (self.data_t, self.scale_t)
        if data is None:
            raise SettingError("CurrentScalingTensorRef", "no data", "a direction that was quantized")
        data = data if self.data is not None else data.t().contiguous()
        kind = TE_DType[self.quant_dtype]
        return Float8TensorStorage(
            data=data.view(torch.uint8).view(self.original_shape),
            fp8_scale_inv=scale,
            fp8_dtype=kind,
            fake_dtype=self._dtype,
        )

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values. Rules: TEL-8."""
        return self.as_native().decode(dtype)


class CurrentScalingQuantizerRef(Quantizer):
    """The reference quantizer of tensors [..., K] with one scale each.

    dtype: torch.float8_e4m3fn or torch.float8_e5m2. pow_2_scales and eps other than 0 are refused.

    Errors: SettingError.

    Rules: TEL-21, PRO-3.
    """

    custom = True

    def __init__(
        self,
        dtype: torch.dtype,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.internal = True
        self.dtype, self.pow_2_scales, self.eps = dtype, pow_2_scales, eps
        for bad, got, needed in (
            (dtype not in PROFILES, f"dtype {dtype}", "torch.float8_e4m3fn or torch.float8_e5m2"),
            (pow_2_scales, "pow_2_scales=True", "False"),
            (eps != 0.0, f"eps {eps}", "0"),
        ):
            if bad:
                raise SettingError("CurrentScalingQuantizerRef", got, needed, "TEL-3")

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise for a tensor without axes."""
        if not shape:
            raise TensorShapeError("CurrentScalingQuantizerRef", "no axis", "[..., K]", "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` is a tensor of the reference."""
        if not isinstance(dst, CurrentScalingTensorRef):
            got = f"destination {type(dst).__name__}"
            raise SettingError("CurrentScalingQuantizerRef", got, "a CurrentScalingTensorRef", "TEL-5")

    def is_quantizable(self, inp: Tensor) -> bool:
        """No: the reference's tensors are gathered before they are quantized."""
        return False

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return False: one scale has no layout."""
        return False

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return a tensor whose buffers are still missing."""
        return CurrentScalingTensorRef(original_shape=shape, quant_dtype=self.dtype, quantizer=self, fake_dtype=dtype)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Let an existing tensor take another shape."""
        dst.original_shape = shape

    def takes_noop(self, tensor: Tensor) -> bool:
        """No: the buffers are new ones."""
        return False

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize, and give `dst` the new buffers. Rules: TEL-21, PRO-3."""
        q = api.quantize(tensor.reshape(-1, tensor.shape[-1]), PROFILES[self.dtype], "row")
        assert q.row is not None
        codes = q.row.data.view(self.dtype)
        scale = scales_of(q.row.amax.reshape(1), TE_DType[self.dtype], tensor.dtype, 0.0, False)[1]
        dst.data, dst.scale = (codes, scale) if self.rowwise_usage else (None, None)
        dst.data_t, dst.scale_t = (codes.t().contiguous(), scale) if self.columnwise_usage else (None, None)

    def dequantize(self, tensor: Tensor, scale: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return codes times a scale, in float32, rounded once. Rules: TEL-8."""
        return (tensor.to(torch.float32) * scale).to(dtype or torch.float32)

    def qgemm(
        self,
        qx: Tensor,
        qw: Tensor,
        m_params: Any,
        out_dtype: torch.dtype,
        sx: Tensor,
        sw: Tensor,
        bias: Tensor | None = None,
        out: Tensor | None = None,
        accumulate: bool = False,
        gemm_type: Any = None,
        qresult_x: Any = None,
        qresult_w: Any = None,
    ) -> Tensor:
        """x @ w^T from codes [M, K] and [N, K], scaled in float32; accumulate: rounded, then added to `out`.

        Errors: TensorShapeError for K that differ.

        Rules: TEL-11.
        """
        if qx.shape[1] != qw.shape[1]:
            got = f"{qx.shape[1]} and {qw.shape[1]} elements to contract"
            raise TensorShapeError("qgemm", got, "equal numbers", "TEL-11")
        sums = multiply(*(fp8_values(q.view(torch.uint8), TE_DType[q.dtype], torch.float32) for q in (qx, qw)))
        y = (sums.to(torch.float32) * (sx.reshape(()) * sw.reshape(()))).to(out_dtype)
        if bias is not None:
            y = y + bias.to(out_dtype)
        return y if out is None or not accumulate else (y + out).to(out_dtype)


def current_scaling_ref_factory(role: Any) -> CurrentScalingQuantizerRef:
    """Return quantizers for `CustomRecipe`: gradients in E5M2, everything else in E4M3."""
    gradient = getattr(role, "tensor_type", None) == "grad_output"
    return CurrentScalingQuantizerRef(torch.float8_e5m2 if gradient else torch.float8_e4m3fn)
