"""The golden model, and its registration as the numpy backend."""

from importlib import import_module

from fp4ref.registry import Backend

BACKEND = Backend(
    name="numpy",
    load=lambda: import_module("fp4ref.model.backend"),
    operations=("quantize", "dequantize", "to_layout", "random_bits", "gemm_exact", "gemm_blockwise", "gemm_fast"),
    formats=None,
    layouts=None,
    roundings=None,
    signs=None,
    irregular=("LAY-19", "LAY-20", "LAY-21"),
)
