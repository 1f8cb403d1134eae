"""The torch backend: plain torch on CPU and CUDA tensors, written from the rules of the standard."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from fp4ref.formats import E8M0, Codec, Format, Rounding
from fp4ref.registry import Backend, Call
from fp4ref.spec import FourOverSix, Spec
from fp4ref.spec_json import encode

# Orders of operations (PRO-3) that are written here, by name.
WITH_TENSOR_SCALE = """
    te te-fast te-division te-python te-rht-fused te-cpp-test-oracle torchao modelopt compressed-tensors fouroversix
    te-python-division modelopt-unclamped flashinfer flashinfer-trace kernel-approx kernel-approx-by-amax cutlass jax
    qwix te-fp8-current te-fp8-delayed
""".split()  # noqa: SIM905
WITH_POWERS_OF_TWO = """
    rceil rceil-cast-only ocp-rceil ocp-floor ocp-ceil ocp-even kernel-mxfp4 kernel-mxfp8 compressed-tensors-mx deepgemm
    fouroversix-mx flashinfer-mx jax-mx qwix-mx torchao-floor torchao-ceil torchao-even torchao-even-carry
    fouroversix-mx-unguarded te-fp8-block
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
NOT_WRITTEN = {
    **dict.fromkeys(LOGARITHMS, "it rounds a logarithm once, which torch does not promise"),
    **dict.fromkeys(ENGINES, "the golden model and the cpu backend serve this engine"),
    **dict.fromkeys(["mlx-metal", "mlx-metal-global"], "it was read from source and never executed"),
}
FARTHEST = 40  # exponents that float32 arithmetic holds with room to spare
SIGNIFICANT = 8  # bits of code * scale that the sums of a product take
DIFFERENCES = ("dequantized", "dequantized_by_reciprocal", "scaled_units", "scaled_units_float16")
TOTALS = ("rows_by_tree", "sequential", "halves")


def unsupported(call: Call) -> list[str]:
    """Return why a call is not served; nothing if it is. Products read no more than formats and blocks."""
    reasons = [f"format {form.name}: {why}" for form in dict.fromkeys(call.formats) for why in _unread(form)]
    of_spec = _reasons_against_products if call.multiplies else _reasons
    return list(dict.fromkeys(reasons + [reason for spec in call.specs for reason in of_spec(spec)]))


def _unread(form: Format) -> list[str]:
    """Return why integer arithmetic on float32 bits does not compute a format's codes."""
    if form.powers_of_two:
        return [] if form == E8M0 else ["of the powers of two, only those of e8m0 are written"]
    if not form.mantissa_bits:
        return ["the parity of a code is that of its mantissa, which it does not have"]
    far = max(form.bias + form.mantissa_bits, form.emax) > FARTHEST
    return [f"a step or a value beyond 2^{FARTHEST}"] if far else []


def _reasons_against_products(spec: Spec) -> list[str]:
    bits = [0 if form.powers_of_two else form.mantissa_bits + 1 for form in (spec.element.format, spec.scale.format)]
    if spec.element.format.complement:
        bits[0] -= 1  # no leading one before the mantissa
    if sum(bits) <= SIGNIFICANT:
        return []
    return [f"format {spec.element.format.name}: a code times its scale has more than {SIGNIFICANT} significant bits"]


def _reasons(spec: Spec) -> list[str]:
    reasons = []
    if spec.arithmetic.name not in ARITHMETICS:
        why = NOT_WRITTEN.get(spec.arithmetic.name, "its name is not one of PRO-3")
        reasons.append(f"arithmetic {spec.arithmetic.name} is not written in torch: {why}")
    if spec.scale.format == E8M0 and spec.scale.rounding is not Rounding.UP:
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
        raise ImportError("torch is not installed: pip install 'fp4ref[torch]'")
    return import_module("fp4ref_torch.operations")


BACKEND = Backend(
    name="torch",
    load=load,
    operations=("quantize", "dequantize", "to_layout", "random_bits", "gemm_exact", "gemm_blockwise", "gemm_fast"),
    formats=None,  # each is computed from its numbers
    layouts=None,  # each is computed from its digits
    irregular=("LAY-19", "LAY-20", "LAY-21"),
    unsupported=unsupported,
    devices=("cpu", "cuda"),
    speed=-1,  # on a CPU the golden model is faster, and needs no torch
)
