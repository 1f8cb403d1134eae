"""Pairs of implementations that users mix: the same weights in both, counted, with the smallest input that differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp4ref import api
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.explain.difference import Count
from fp4ref.conformance.explain.witness import Witness, compare
from fp4ref.formats import F, Floats
from fp4ref.specs import NVFP4

# Two projects, and the profiles of the formats that both have.
PAIRS = {
    "ModelOpt and compressed-tensors": (
        ("modelopt.nvfp4", "compressed_tensors.nvfp4"),
        ("modelopt.mxfp4", "compressed_tensors.mxfp4"),
        ("modelopt.mxfp8", "compressed_tensors.mxfp8"),
    ),
    "vLLM and Transformer Engine": (
        ("vllm.nvfp4_kernel", NVFP4.name),
        ("vllm.ref_nvfp4_emulation", NVFP4.name),
        ("vllm.ref_mxfp8", "mxfp8-e4m3"),
    ),
    "ggml and gpt-oss, whose weights triton_kernels quantizes": (("ggml.mxfp4", "triton_kernels.mxfp4_up"),),
    "MLX and ggml": (("mlx.mxfp4", "ggml.mxfp4"), ("mlx.nvfp4", "ggml.nvfp4")),
    "triton_kernels and torchao": (
        ("triton_kernels.mxfp4_up", "torchao.mxfp4_rceil@0.18.0"),
        ("triton_kernels.mxfp4_down", "torchao.mxfp4_floor@0.18.0"),
        ("triton_kernels.mxfp8_e4m3_up", "torchao.mxfp8_e4m3_rceil@0.18.0"),
        ("triton_kernels.nvfp4_nearest", "torchao.nvfp4_1lvl"),
    ),
}


@dataclass(frozen=True)
class Mixed:
    """Two profiles on the same weights: what differs, the error of each, and the smallest input that differs.

    errors: the root mean square of the error over that of the weights, of each. witness: from the weights, or from the
    built-in inputs of `compare` where the weights are equal; None if those are, too.
    """

    a: str
    b: str
    count: Count
    errors: tuple[float, float]
    witness: Witness | None


def weights() -> Floats:
    """Return ordinary weights [256, 1024]: normal, deviation 0.02, rounded to bfloat16, as float32."""
    x = np.random.default_rng(14).standard_normal((256, 1024), F) * F(0.02)
    words = x.view(np.uint32)
    return (words + 0x7FFF + (words >> 16 & 1) & np.uint32(0xFFFF0000)).view(F)


def mixed(a: str, b: str, x: Floats) -> Mixed:
    """Compare two profiles on the rows of x."""
    first, second = PROFILES[a], PROFILES[b]
    found = compare(first, second, x)
    (count,) = (each for each in found.counts if each.direction == "row")
    witnesses = found.witnesses or compare(first, second).witnesses
    return Mixed(a, b, count, (_error(a, x), _error(b, x)), witnesses[0] if witnesses else None)


def _error(name: str, x: Floats) -> float:
    made = api.dequantize(api.quantize(x, PROFILES[name], backend="numpy"), backend="numpy")
    difference = made.astype(np.float64) - x
    return float(np.sqrt((difference**2).mean() / (x.astype(np.float64) ** 2).mean()))
