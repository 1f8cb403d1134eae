"""vllm._custom_ops.scaled_fp4_quant as a subject; needs vLLM and a GPU that it supports.

fp4ref verify --kernel vllm_subject.py:quantize --spec vllm.nvfp4_kernel
"""

from typing import Any

import fp4ref


@fp4ref.kernel(
    inputs=("x", "encode_scale"),
    outputs=("data", "scales"),
    scale_layout="tiled_128x4",
    arrays="torch",
    device="cuda",
    dtypes=("bfloat16", "float16"),
    multiple=(1, 16),
    empty=False,
)
def quantize(x: Any, encode_scale: Any) -> tuple[Any, Any]:
    """[..., K] and the global scale 448 * 6 / amax to packed codes and swizzled scales."""
    from vllm import _custom_ops

    return _custom_ops.scaled_fp4_quant(x, encode_scale)
