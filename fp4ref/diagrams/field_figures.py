"""Layouts and packings of the field that the manual draws, by name."""

from __future__ import annotations

FIELD = (
    "vllm.marlin_fp4",
    "vllm.marlin_scale_nvfp4",
    "ggml.mxfp4_data",
    "ggml.nvfp4_data",
    "low_first",
    "high_first",
    "rocm.gfx950_32x8",
    "aiter.shuffle_weight_16x16",
    "deepgemm.mn_major_ue8m0",
    "trtllm.shuffle_a_32",
    "flashinfer.kv_v_scale_hnd",
    "cuda.tma_16u4_align16",
)
