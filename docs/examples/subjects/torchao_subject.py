"""torchao's NVFP4Tensor.to_nvfp4 and to_mx as subjects; runs on a CPU.

fp4ref verify --kernel torchao_subject.py:quantize --spec torchao.nvfp4_2lvl
fp4ref verify --kernel torchao_subject.py:quantize_one_level --spec torchao.nvfp4_1lvl
fp4ref verify --kernel torchao_subject.py:quantize_mxfp8_rceil --spec torchao.mxfp8_e4m3_rceil@0.18.0
fp4ref verify --kernel torchao_subject.py:quantize_mxfp4_floor --spec torchao.mxfp4_floor@0.18.0
"""

from typing import Any

import fp4ref

SETTINGS: dict[str, Any] = {
    "outputs": ("data", "scales"),
    "arrays": "torch",
    "dtypes": ("float32", "bfloat16"),
    "multiple": (1, 16),
    "leading": False,
    "empty": False,
}


@fp4ref.kernel(inputs=("x", "decode_scale"), **SETTINGS)
def quantize(x: Any, decode_scale: Any) -> tuple[Any, Any]:
    """[M, K] and the per-tensor scale amax / (448 * 6) to packed codes and scales in rows."""
    return _quantized(x, decode_scale.reshape(()), swizzled=False)


@fp4ref.kernel(inputs=("x", "decode_scale"), **{**SETTINGS, "scale_layout": "tiled_128x4"})
def quantize_swizzled(x: Any, decode_scale: Any) -> tuple[Any, Any]:
    """Return the same with swizzled scales."""
    return _quantized(x, decode_scale.reshape(()), swizzled=True)


@fp4ref.kernel(inputs=("x",), **SETTINGS)
def quantize_one_level(x: Any) -> tuple[Any, Any]:
    """Without a per-tensor scale."""
    return _quantized(x, None, swizzled=False)


def _quantized(x: Any, per_tensor_scale: Any, *, swizzled: bool) -> tuple[Any, Any]:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    q = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_scale, is_swizzled_scales=swizzled)
    return q.qdata, q.scale


MX_SETTINGS: dict[str, Any] = {**SETTINGS, "multiple": (1, 32)}


@fp4ref.kernel(inputs=("x",), **MX_SETTINGS)
def quantize_mxfp8_rceil(x: Any) -> tuple[Any, Any]:
    """E4M3 elements, scales rounded up."""
    import torch

    return _mx(x, torch.float8_e4m3fn, "RCEIL")


@fp4ref.kernel(inputs=("x",), **MX_SETTINGS)
def quantize_mxfp4_floor(x: Any) -> tuple[Any, Any]:
    """E2M1 elements, scales rounded down."""
    import torch

    return _mx(x, torch.float4_e2m1fn_x2, "FLOOR")


def _mx(x: Any, element: Any, mode: str) -> tuple[Any, Any]:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scales, data = to_mx(x, element, 32, ScaleCalculationMode[mode])
    return data, scales
