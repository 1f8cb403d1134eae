"""The torch backend: plain torch on CPU and CUDA tensors, written from the rules of the standard."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from fp4ref.formats import E2M3, E3M2, E8M0, Codec, Rounding
from fp4ref.registry import STANDARD_FORMATS, Backend, Call
from fp4ref.spec import FourOverSix, Spec
from fp4ref.spec_json import encode

# Orders of operations (PRO-3) that are written here, by name.
WITH_TENSOR_SCALE = """
    te te-fast te-division te-python te-rht-fused te-cpp-test-oracle torchao modelopt compressed-tensors fouroversix
    te-python-division modelopt-unclamped flashinfer flashinfer-trace kernel-approx kernel-approx-by-amax cutlass jax
    qwix
""".split()  # noqa: SIM905
WITH_POWERS_OF_TWO = """
    rceil rceil-cast-only ocp-rceil ocp-floor ocp-ceil ocp-even kernel-mxfp4 kernel-mxfp8 compressed-tensors-mx deepgemm
    fouroversix-mx flashinfer-mx jax-mx qwix-mx torchao-floor torchao-ceil torchao-even torchao-even-carry
    fouroversix-mx-unguarded
""".split()  # noqa: SIM905
ARITHMETICS = frozenset(WITH_TENSOR_SCALE + WITH_POWERS_OF_TWO)
# Those that are not, and why.
LOGARITHMS = """
    modelopt-mx modelopt-mxfp8 flashinfer-trace-mx torchao-rceil microxcaling-nearest microxcaling-even
    microxcaling-floor vllm-mxfp8 comfy-kitchen-mx ggml qwix-ceil quark-floor quark-ceil
""".split()  # noqa: SIM905
ENGINES = """
    ggml-nvfp4 mlx mlx-fp8 mlx-nvfp4 mlx-nvfp4-global triton-up triton-down triton-nvfp4 vllm-emulation
    aiter-round-down aiter-round-up aiter-even aiter-ceil quark-even comfy-kitchen
""".split()  # noqa: SIM905
NOT_WRITTEN = dict.fromkeys(LOGARITHMS, "it rounds a logarithm once, which torch does not promise") | dict.fromkeys(
    ENGINES, "the golden model and the cpu backend serve this engine"
)
NOT_WRITTEN["te-fp8-block"] = "the golden model and fp4ref.te serve it"
DIFFERENCES = ("dequantized", "dequantized_by_reciprocal", "scaled_units", "scaled_units_float16")
TOTALS = ("rows_by_tree", "sequential", "halves")


def unsupported(call: Call) -> list[str]:
    """Return why a call is not served; nothing if it is. Products read no more than formats and blocks."""
    return [] if call.multiplies else [reason for spec in call.specs for reason in _reasons(spec)]


def _reasons(spec: Spec) -> list[str]:
    reasons = []
    if spec.arithmetic.name not in ARITHMETICS:
        why = NOT_WRITTEN.get(spec.arithmetic.name, "its name is not one of PRO-3")
        reasons.append(f"arithmetic {spec.arithmetic.name} is not written in torch: {why}")
    if spec.scale.format is E8M0 and spec.scale.rounding is not Rounding.UP:
        reasons.append(f"an e8m0 scale rounded {spec.scale.rounding}")
    if spec.hadamard and _shows_sign_of_nan(spec.element):
        reasons.append("a Hadamard transform with codes that show the sign of a NaN")
    return reasons + (_search(spec.four_over_six) if spec.four_over_six else [])


def _shows_sign_of_nan(codec: Codec) -> bool:
    return codec.nan[0] != codec.nan[1]


def _search(search: FourOverSix) -> list[str]:
    names = encode(search.difference), encode(search.total)
    known = names[0] in DIFFERENCES and names[1] in TOTALS
    return [] if known else [f"4over6 with {names[0]} and {names[1]}"]


def load() -> ModuleType:
    """Return the operations; the first call imports torch, which listing backends does not need."""
    if find_spec("torch") is None:
        raise ImportError("torch is not installed")
    return import_module("fp4ref_torch.operations")


BACKEND = Backend(
    name="torch",
    load=load,
    operations=("quantize", "dequantize", "to_layout", "random_bits", "gemm_exact", "gemm_blockwise", "gemm_fast"),
    formats=(*STANDARD_FORMATS, E2M3, E3M2),
    layouts=None,  # each is computed from its digits
    unsupported=unsupported,
    devices=("cpu", "cuda"),
    speed=-1,  # on a CPU the golden model is faster, and needs no torch
)
