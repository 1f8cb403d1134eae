"""Transformer Engine's NVFP4Quantizer as a subject; needs Transformer Engine and a Blackwell GPU.

fp4ref verify --kernel transformer_engine_subject.py:quantize --spec nvfp4
fp4ref verify --kernel transformer_engine_subject.py:quantize_2d --spec nvfp4-2d
fp4ref verify --kernel transformer_engine_subject.py:quantize_rht --spec nvfp4-rht
"""

from typing import Any

import fp4ref

SETTINGS: dict[str, Any] = {
    "outputs": ("data", "scales", "amax"),
    "scale_layout": "linear_padded",
    "arrays": "torch",
    "device": "cuda",
    "dtypes": ("bfloat16",),
    "multiple": (16, 16),
    "empty": False,
}


@fp4ref.kernel(**SETTINGS)
def quantize(x: Any) -> tuple[Any, Any, Any]:
    """Blocks of 16, row direction."""
    q = _quantizer(rowwise=True, columnwise=False)(x)
    return q._rowwise_data, q._rowwise_scale_inv, q._amax_rowwise


@fp4ref.kernel(**{**SETTINGS, "direction": "column"})
def quantize_column(x: Any) -> tuple[Any, Any, Any]:
    """Blocks of 16, column direction, without a transform."""
    q = _quantizer(rowwise=True, columnwise=True)(x)
    return q._columnwise_data, q._columnwise_scale_inv, q._amax_columnwise


@fp4ref.kernel(**SETTINGS)
def quantize_2d(x: Any) -> tuple[Any, Any, Any]:
    """Blocks of 16x16, row direction."""
    q = _quantizer(rowwise=True, columnwise=False, with_2d_quantization=True)(x)
    return q._rowwise_data, q._rowwise_scale_inv, q._amax_rowwise


@fp4ref.kernel(**{**SETTINGS, "direction": "column"})
def quantize_rht(x: Any) -> tuple[Any, Any, Any]:
    """Column direction with the random Hadamard transform."""
    q = _quantizer(rowwise=True, columnwise=True, with_rht=True, with_post_rht_amax=True)(x)
    return q._columnwise_data, q._columnwise_scale_inv, q._amax_columnwise


def _quantizer(**settings: Any) -> Any:
    from transformer_engine.pytorch import NVFP4Quantizer

    return NVFP4Quantizer(**settings)
