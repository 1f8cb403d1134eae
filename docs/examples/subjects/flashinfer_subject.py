"""flashinfer.nvfp4_quantize as a subject; needs flashinfer and a GPU that it supports.

fp4ref verify --kernel flashinfer_subject.py:quantize --spec flashinfer.nvfp4_kernel
"""

from typing import Any

import fp4ref

SETTINGS: dict[str, Any] = {
    "inputs": ("x", "encode_scale"),
    "outputs": ("data", "scales"),
    "arrays": "torch",
    "device": "cuda",
    "dtypes": ("bfloat16", "float16"),
    "multiple": (1, 16),
    "leading": False,
    "empty": False,
}


@fp4ref.kernel(scale_layout="tiled_128x4", **SETTINGS)
def quantize(x: Any, encode_scale: Any) -> tuple[Any, Any]:
    """[M, K] and the global scale 448 * 6 / amax to packed codes and swizzled scales."""
    import flashinfer

    return flashinfer.nvfp4_quantize(x, encode_scale, sfLayout=flashinfer.SfLayout.layout_128x4, do_shuffle=False)


@fp4ref.kernel(scale_layout="linear", **SETTINGS)
def quantize_linear(x: Any, encode_scale: Any) -> tuple[Any, Any]:
    """Return the same with the scales in rows."""
    import flashinfer

    return flashinfer.nvfp4_quantize(x, encode_scale, sfLayout=flashinfer.SfLayout.layout_linear, do_shuffle=False)
