"""The codecs of the standard, by the prefix of their rules."""

from __future__ import annotations

from fp4ref import formats

CODECS = {
    "E2M1": formats.CUDA_E2M1,
    "E4M3": formats.CUDA_E4M3,
    "E5M2": formats.CUDA_E5M2,
    "E2M3": formats.CUDA_E2M3,
    "E3M2": formats.CUDA_E3M2,
    "INT8": formats.OCP_INT8,
    "E8M0": formats.CUDA_E8M0,
    "UE4M3": formats.GGML_UE4M3,
    "UE5M3": formats.CUDA_UE5M3,
}
