"""The Python reference of NVFP4, by the interface that tests of quantizers use, on this project's model.

Its bytes are those of the profile `te.python_reference`: -0.0 and NaN become code 0, and NaN reaches the maxima.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp4ref import api, hadamard
from fp4ref.arithmetic import TE_DIVISION
from fp4ref.catalogue import PROFILES
from fp4ref.four_over_six import dequantized, scaled_units_float16
from fp4ref.layout import LINEAR
from fp4ref.quantized import DirectionChoice, DirectionData, Quantized
from fp4ref.spec import Block, FourOverSix, Granularity, Hadamard, Spec
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.global_scale import globally_scaled
from fp4ref.te.hadamard import SIGNS, get_rht_matrix
from fp4ref.te.product import multiply, wide_dtype
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.reference_tensor import NVFP4TensorRef
from fp4ref.te.specifications import METRICS, NVFP4_OPERAND


class Fp4Formats(Enum):
    """Element formats of the reference."""

    E2M1 = "e2m1"


class GEMMType(Enum):
    """Which of a layer's three products is meant."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True)
class ReferenceMMParams:
    """The accumulation of the reference's product, always in float32."""

    out_dtype: torch.dtype | None = None
    use_split_accumulator: bool = True


MMParams = ReferenceMMParams  # the name that Transformer Engine gives it


class NVFP4QuantizerRef(Quantizer):
    """The reference quantizer of tensors [..., K], blocks of 16 along the last axis.

    dtype: Fp4Formats.E2M1. quant_tile_shape: (1, 16) or (16, 16). with_rht: transform the column direction. The other
    settings are those of `NVFP4Quantizer`. pow_2_scales and eps other than 0 are not NVFP4, and refused.

    Errors: SettingError.

    Rules: TEL-3, PRO-3.
    """

    custom = True

    def __init__(
        self,
        dtype: Fp4Formats = Fp4Formats.E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
        quant_tile_shape: tuple[int, int] = (1, 16),
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        nvfp4_4over6_err_use_fast_math: bool = False,
        with_rht: bool = False,
        with_random_sign_mask: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.internal = True
        self.dtype = dtype
        self.pow_2_scales = pow_2_scales
        self.eps = eps
        self.quant_tile_shape = tuple(quant_tile_shape)
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max if nvfp4_use_4over6 else 448
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode.upper()
        self.nvfp4_4over6_err_use_fast_math = nvfp4_4over6_err_use_fast_math
        self.with_rht = with_rht
        self.with_random_sign_mask = with_random_sign_mask
        for bad, got, needed in (
            (dtype is not Fp4Formats.E2M1, f"dtype {dtype!r}", "Fp4Formats.E2M1"),
            (pow_2_scales, "pow_2_scales=True", "False: NVFP4 scales are E4M3"),
            (eps != 0.0, f"eps {eps}", "0"),
            (self.quant_tile_shape not in {(1, 16), (16, 16)}, f"tiles {quant_tile_shape}", "(1, 16) or (16, 16)"),
            (self.nvfp4_4over6_err_mode not in METRICS, f"error mode {nvfp4_4over6_err_mode!r}", "MAE or MSE"),
            (self.nvfp4_e4m3_max not in {448, 256}, f"nvfp4_e4m3_max {nvfp4_e4m3_max}", "448 or 256"),
            (row_scaled_nvfp4 and not rowwise, "row_scaled_nvfp4 without rowwise", "rowwise=True"),
        ):
            if bad:
                raise SettingError("NVFP4QuantizerRef", got, needed, "TEL-3")

    @property
    def spec(self) -> Spec:
        """The specification of the reference's bytes. Rules: PRO-3."""
        spec = PROFILES["te.python_reference"].replace(block=Block(*self.quant_tile_shape))
        if self.nvfp4_use_4over6:
            fast = self.nvfp4_4over6_err_use_fast_math
            search = FourOverSix(
                metric=METRICS[self.nvfp4_4over6_err_mode],
                scale_max=float(self.nvfp4_e4m3_max),
                difference=scaled_units_float16 if fast else dequantized,
            )
            spec = spec.replace(arithmetic=TE_DIVISION, four_over_six=search)
        if self.row_scaled_nvfp4:
            spec = spec.replace(global_scale=Granularity.ROW)
        return spec.replace(hadamard=Hadamard(self._signs)) if self.with_rht else spec

    @property
    def _signs(self) -> int:
        return SIGNS if self.with_random_sign_mask else 0

    @property
    def rht_matrix(self) -> Tensor:
        """The matrix of the transform, bfloat16 [16, 16]."""
        return get_rht_matrix(self.with_random_sign_mask)

    def _apply_rht(self, x: Tensor) -> Tensor:
        """Return the transform of groups of 16 along the last axis of a bfloat16 tensor, if it is on. Rules: HAD-3."""
        if not self.with_rht:
            return x
        values = x.detach().to("cpu", torch.float32).numpy()
        return torch.from_numpy(np.ascontiguousarray(hadamard.transform(values, self._signs))).to(x.device, x.dtype)

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless both matrix dimensions are multiples of 16."""
        if not shape or shape[-1] % 16 or math.prod(shape[:-1]) % 16:
            raise TensorShapeError("NVFP4QuantizerRef", f"shape {list(shape)}", "multiples of 16", "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` is a tensor of the reference."""
        if not isinstance(dst, NVFP4TensorRef):
            raise SettingError("NVFP4QuantizerRef", f"destination {type(dst).__name__}", "an NVFP4TensorRef", "TEL-5")

    def is_quantizable(self, inp: Tensor) -> bool:
        """No: the reference's tensors are gathered before they are quantized."""
        return False

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Never: the reference knows compact scales only."""
        return False

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return a tensor whose buffers are still missing."""
        return NVFP4TensorRef(original_shape=shape, quantizer=self, fake_dtype=dtype)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Let an existing tensor take another shape."""
        dst.original_shape = shape

    def takes_noop(self, tensor: Tensor) -> bool:
        """No: the buffers are new ones."""
        return False

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize, and give `dst` the new buffers. Rules: PRO-3."""
        names: dict[tuple[bool, bool], DirectionChoice] = {
            (True, True): "both",
            (True, False): "row",
            (False, True): "column",
        }
        q = api.quantize(tensor.view(-1, tensor.shape[-1]), self.spec, names[self.rowwise_usage, self.columnwise_usage])
        if q.row is not None:
            dst.data, dst.scale, dst.global_amax_row = q.row.data, _e4m3(q.row.scales), q.row.amax
        if q.column is not None:
            dst.data_t, dst.scale_t, dst.global_amax_col = q.column.data, _e4m3(q.column.scales), q.column.amax

    def dequantize(self, tensor: NVFP4TensorRef, dtype: torch.dtype | None = None) -> Tensor:
        """Return values of the row direction. Rules: DEQ-1, DEQ-3."""
        return tensor.as_native().decode(dtype or tensor._dtype).view(tensor.original_shape)

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
        gemm_type: GEMMType | None = GEMMType.FPROP,
        qresult_x: Any = None,
        qresult_w: Any = None,
    ) -> Tensor:
        """x @ w^T from codes uint8 [M, K/2], [N, K/2] and scales [M, K/16], [N, K/16]; wgrad takes the columns' amaxes.

        The same products and global scales as `general_gemm`. accumulate: rounded, then added to `out` in float32.

        Errors: SettingError for a bias, TensorShapeError for K or N that do not fit.

        Rules: TEL-11, TEL-12.
        """
        if bias is not None:
            raise SettingError("qgemm", "a bias", "None", "TEL-12")
        if qx.shape[1] != qw.shape[1] or qx.shape[1] % 8:
            got = f"{2 * qx.shape[1]} and {2 * qw.shape[1]} elements to contract"
            raise TensorShapeError("qgemm", got, "equal multiples of 16", "TEL-11")
        direction = "column" if gemm_type is GEMMType.WGRAD else "row"
        operands = []
        for codes, scales in ((qx, sx), (qw, sw)):
            parts = DirectionData(codes.contiguous(), scales.contiguous().view(torch.uint8), None)
            shape = (codes.shape[0], 2 * codes.shape[1])
            record = Quantized(NVFP4_OPERAND, shape, "float32", LINEAR.name, row=parts)
            operands.append(api.dequantize(record, wide_dtype(codes.device)))
        result = multiply(*operands)
        y = globally_scaled(result, qresult_w.as_native(), direction, qresult_x.as_native(), direction, 1.0)
        if accumulate and out is not None:
            y = y + out.to(torch.float32)
        return y.to(out_dtype)


def _e4m3(scales: Tensor) -> Tensor:
    return scales.view(torch.float8_e4m3fn)


def nvfp4_ref_rht_2d_factory(role: Any) -> NVFP4QuantizerRef:
    """Return quantizers for `CustomRecipe`: weights in 16x16 tiles, columns of other operands transformed."""
    weight = getattr(role, "tensor_type", None) == "weight"
    return NVFP4QuantizerRef(quant_tile_shape=(16, 16) if weight else (1, 16), with_rht=not weight)


nvfp4_ref_rht_2d_quantizer_factory = nvfp4_ref_rht_2d_factory  # its former name
