"""The shared numerics header: where it lies, and how a specification becomes the C++ type that it is compiled for."""

from __future__ import annotations

import re
from pathlib import Path

from fp4ref.formats import E8M0, Codec, Format, Rounding
from fp4ref.registry import Call
from fp4ref.spec import Amax, FourOverSix, Spec, Subnormals
from fp4ref.spec_json import encode

INCLUDE = Path(__file__).parent / "include"
HEADERS = (
    "config",
    "bits",
    "reciprocal",
    "codec",
    "signs",
    "arithmetic",
    "engines",
    "block",
    "thresholds",
    "drawn",
    "hadamard",
    "layout",
    "philox",
    "fp4ref",  # includes the others
)

INPUT_TYPES = ("float32", "bfloat16", "float16")
# What the header has, as it stands there: orders of operations (PRO-3), and functions of 4over6 (FOS-3, FOS-5).
ARITHMETICS = frozenset(
    """
    aiter-ceil aiter-even aiter-round-down aiter-round-up comfy-kitchen comfy-kitchen-mx compressed-tensors
    compressed-tensors-mx cutlass deepgemm flashinfer flashinfer-mx flashinfer-trace flashinfer-trace-mx fouroversix
    fouroversix-mx fouroversix-mx-unguarded ggml ggml-nvfp4 jax jax-mx kernel-approx kernel-approx-by-amax
    kernel-mxfp4 kernel-mxfp8 microxcaling-even microxcaling-floor microxcaling-nearest mlx mlx-fp8 mlx-nvfp4
    mlx-nvfp4-global modelopt modelopt-mx modelopt-mxfp8 modelopt-unclamped ocp-ceil ocp-even ocp-floor ocp-rceil
    quark-even qwix qwix-mx rceil rceil-cast-only te te-cpp-test-oracle te-division te-fast te-fp8-block
    te-python te-python-division te-rht-fused torchao torchao-ceil torchao-even torchao-even-carry torchao-floor
    torchao-rceil triton-down triton-nvfp4 triton-up vllm-emulation vllm-mxfp8
    """.split()  # noqa: SIM905
)
NARROWING = frozenset(  # these round to the input's type
    """
    comfy-kitchen compressed-tensors compressed-tensors-mx jax-mx mlx mlx-fp8 mlx-nvfp4 mlx-nvfp4-global qwix qwix-mx
    """.split()  # noqa: SIM905
)
FARTHEST = 40  # a format's smallest step is 2^-FARTHEST or larger, its largest value below 2^FARTHEST
BY_RECIPROCAL = frozenset({"cutlass", "kernel-approx", "kernel-approx-by-amax", "kernel-mxfp8"})
DIFFERENCES = frozenset({"dequantized", "dequantized_by_reciprocal", "scaled_units", "scaled_units_float16"})
TOTALS = frozenset({"halves", "rows_by_tree", "sequential"})
NO_STRUCT = "the header has no struct of that name (PRO-3)"
# Those of PRO-3 that are not in the header, and why.
NOT_IN_HEADER = {
    "te-fp8-current": "its only scale is the global one; torch has it, too",
    "te-fp8-delayed": "its only scale is the global one; torch has it, too",
    "qwix-ceil": "it rounds a natural logarithm, which the header does not compute",
    "quark-floor": "its scales may be smaller than any byte of E8M0 means",
    "quark-ceil": "its scales may be smaller than any byte of E8M0 means",
    "mlx-metal": "it was read from source and never executed",
    "mlx-metal-global": "it was read from source and never executed",
}
_BY_AMAX = "by-amax"  # zero blocks are told by their maximum, which must not be NaN


def identifier(name: str) -> str:
    """Return a registered name as C++ spells it."""
    return re.sub(r"\W", "_", name)


def unsupported(call: Call) -> list[str]:
    """Return why the header cannot serve a call; nothing if it can. Products read no more than formats and blocks."""
    reasons = [reason for form in dict.fromkeys(call.formats) for reason in _inexpressible(form)]
    return reasons if call.multiplies else reasons + [reason for spec in call.specs for reason in _reasons(spec)]


def _inexpressible(form: Format) -> list[str]:
    """Return why the header cannot express a format, which it otherwise takes as numbers."""
    if form.powers_of_two:
        return [] if form == E8M0 else [f"format {form.name}: powers of two with other settings than those of e8m0"]
    if not form.mantissa_bits:
        return [f"format {form.name}: a sign and no mantissa"]
    if form.bias + form.mantissa_bits > FARTHEST or form.emax >= FARTHEST:
        return [f"format {form.name}: steps below 2^-{FARTHEST} or values from 2^{FARTHEST} on"]
    return []


def _reasons(spec: Spec) -> list[str]:
    search = spec.four_over_six
    reasons = []
    if spec.arithmetic.name not in ARITHMETICS:
        why = NOT_IN_HEADER.get(spec.arithmetic.name, NO_STRUCT)
        reasons.append(f"arithmetic {spec.arithmetic.name} is in the golden model only: {why}")
    elif _BY_AMAX in spec.arithmetic.name and (search or spec.amax is not Amax.IGNORE_NAN):
        reasons.append(f"arithmetic {spec.arithmetic.name} with 4over6 or a maximum that keeps NaN")
    if spec.scale.rounding is not (Rounding.UP if spec.scale.format.powers_of_two else Rounding.EVEN):
        reasons.append(f"a scale of format {spec.scale.format.name} rounded {spec.scale.rounding}")
    if search and (encode(search.difference) not in DIFFERENCES or encode(search.total) not in TOTALS):
        reasons.append(f"4over6 with {encode(search.difference)} and {encode(search.total)}")
    return reasons


def narrows(spec: Spec) -> bool:
    """Return True if the arithmetic rounds to the input's type, so that even dequantizing depends on it."""
    return spec.arithmetic.name in NARROWING


def takes_reciprocal(spec: Spec) -> bool:
    """Return True if the arithmetic uses the approximate reciprocal, a device's instruction. Rules: APX-1."""
    return spec.arithmetic.name in BY_RECIPROCAL


def lower(spec: Spec, name: str = "Specification") -> str:
    """Return the specification as a C++ struct of types and constants, which does not contain its name."""
    search = spec.four_over_six
    return f"""struct {name} {{
    using Element = {_codec(spec.element)};
    using Scale = {_codec(spec.scale)};
    using Arithmetic = fp4ref::arithmetic::{identifier(spec.arithmetic.name)};
    using Search = {_search(search)};
    static constexpr float element_max = {_float(spec.element_max or spec.element.format.max)};
    static constexpr float scale_max = {_float(spec.scale_max)};
    static constexpr int rows = {spec.block.rows}, columns = {spec.block.columns};
    static constexpr fp4ref::Global global = fp4ref::Global::{spec.global_scale};
    static constexpr bool block_keeps_nan = {_bool(spec.amax is not Amax.IGNORE_NAN)};
    static constexpr bool amax_keeps_nan = {_bool(spec.amax is Amax.PROPAGATE_NAN)};
    static constexpr bool flushes = {_bool(spec.subnormals is Subnormals.FLUSH)};
    static constexpr bool has_hadamard = {_bool(spec.hadamard is not None)};
    static constexpr unsigned signs = {spec.hadamard.signs if spec.hadamard else 0:#x}u;
}};
"""


def _codec(codec: Codec) -> str:
    overflow = -1 if codec.overflow is None else codec.overflow
    codes = [*codec.nan, overflow, *([] if codec.infinity is None else [codec.infinity])]
    choices = f"fp4ref::Rounding::{codec.rounding}, fp4ref::Sign::{identifier(codec.sign)}"
    if codec.format.powers_of_two:
        choices = "fp4ref::Rounding::up, fp4ref::Sign::bit"
    form, numbers = codec.format, ", ".join(map(str, codes))
    if form.complement:
        return f"fp4ref::ComplementCodec<{form.mantissa_bits}, {form.bias}, {choices}, {numbers}>"
    if form.second_zero:
        return f"fp4ref::SecondZeroCodec<{_grid(form)}, {choices}, {numbers}>"
    return f"fp4ref::Codec<{_format(form)}, {choices}, {numbers}>"


def _format(form: Format) -> str:
    """Return a format as a type: equal settings are one type, whatever their names."""
    if form.powers_of_two:
        return "fp4ref::e8m0"
    return f"fp4ref::{'Format' if form.signed else 'Unsigned'}<{_grid(form)}, {_bool(form.infinity)}>"


def _grid(form: Format) -> str:
    return f"{form.exponent_bits}, {form.mantissa_bits}, {form.bias}, {form.codes}"


def _search(search: FourOverSix | None) -> str:
    if search is None:
        return "fp4ref::no_search"
    parts = (
        f"fp4ref::Metric::{search.metric}",
        f"fp4ref::difference::{encode(search.difference)}",
        f"fp4ref::total::{encode(search.total)}",
    )
    return f"fp4ref::four_over_six<{', '.join(parts)}>"


def _float(value: float) -> str:
    return f"{float(value).hex()}f"


def _bool(value: bool) -> str:
    return str(value).lower()
