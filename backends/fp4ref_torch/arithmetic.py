"""Orders of operations: from maxima to what the codecs get, and back; one entry per name of PRO-3.

The functions take float32 tensors that broadcast against each other. g is what the global scale means to the entry; it
is 1 without one. Every operation is rounded once; what may be NaN gets its sign afterwards, from the operands.

Rules: PRO-3, DEQ-5, NUM-2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp4ref_torch import codecs
from fp4ref_torch import powers_of_two as p2
from fp4ref_torch import tensor_scaled as ts
from fp4ref_torch.exact import INFINITY, magnitude, mul, with_signed_nan
from fp4ref_torch.known import BlockScale, Global, Known, Scaled, Values


@dataclass(frozen=True)
class Order:
    """One order of operations.

    infinite: elements are divided by infinity where t is infinite, whatever the byte. normal: where the byte is FF,
    and by 2^-126 where it is 0.
    """

    block: BlockScale
    scaled: Scaled = p2.divided
    global_scale: Global = ts.one
    values: Values = ts.product
    infinite: bool = False
    normal: bool = False


ORDERS = {
    "te": Order(ts.block_te, ts.scaled_te, ts.encoding_te, ts.values_te),
    "te-fast": Order(ts.block_te, ts.scaled_te_fast, ts.encoding_te, ts.values_te),
    "te-division": Order(ts.block_division, ts.scaled_te, ts.encoding_te, ts.values_te),
    "te-python": Order(ts.block_te_python, ts.scaled_te_python, ts.encoding_te_python, ts.values_te),
    "te-rht-fused": Order(ts.block_te_python, ts.scaled_te_python, ts.encoding_te_rht, ts.values_te),
    "te-cpp-test-oracle": Order(ts.block_te, ts.scaled_te_cpp_test_oracle, ts.encoding_te, ts.values_te),
    "torchao": Order(ts.block_torchao, ts.scaled_torchao, ts.decoding, ts.values_decoding),
    "te-python-division": Order(ts.block_division, ts.scaled_te_python, ts.encoding_te_python, ts.values_te),
    "modelopt": Order(ts.block_modelopt_clamped, ts.scaled_modelopt, ts.decoding, ts.values_decoding),
    "modelopt-unclamped": Order(ts.block_modelopt, ts.scaled_modelopt, ts.decoding, ts.values_decoding),
    "compressed-tensors": Order(
        ts.block_compressed_tensors, ts.scaled_compressed_tensors, ts.encoding_narrow, ts.values_narrow
    ),
    "fouroversix": Order(ts.block_fouroversix, ts.scaled_fouroversix, ts.encoding_or_one, ts.values_through_amax),
    "flashinfer": Order(ts.block_flashinfer, ts.scaled_flashinfer, ts.encoding_by_reciprocal, ts.values_encoding),
    "flashinfer-trace": Order(
        ts.block_division, ts.scaled_flashinfer_trace, ts.encoding_by_reciprocal, ts.values_encoding
    ),
    "kernel-approx": Order(ts.block_flashinfer, ts.scaled_kernel, ts.encoding_by_reciprocal, ts.values_encoding),
    "kernel-approx-by-amax": Order(
        ts.block_flashinfer, ts.scaled_kernel_by_amax, ts.encoding_by_reciprocal, ts.values_encoding
    ),
    "cutlass": Order(ts.block_te, ts.scaled_cutlass, ts.encoding, ts.values_te),
    "jax": Order(ts.block_jax, ts.scaled_jax, ts.decoding_jax, ts.values_decoding),
    "qwix": Order(ts.block_qwix, ts.scaled_qwix),
    "te-fp8-current": Order(ts.block_one, ts.scaled_quotient, ts.encoding_current, ts.values_current),
    "te-fp8-delayed": Order(ts.block_one, ts.scaled_quotient, ts.encoding_delayed, ts.values_delayed),
    "rceil": Order(p2.block_rceil),
    "rceil-cast-only": Order(p2.block_rceil, p2.scaled_cast_only),
    "ocp-rceil": Order(p2.block_ocp_rceil),
    "ocp-floor": Order(p2.block_ocp_floor),
    "ocp-ceil": Order(p2.block_ocp_ceil),
    "ocp-even": Order(p2.block_ocp_even),
    "kernel-mxfp4": Order(p2.block_rceil, p2.scaled_or_as_it_is),
    "kernel-mxfp8": Order(p2.block_rceil, p2.scaled_kernel_mxfp8),
    "torchao-floor": Order(p2.block_torchao_floor, normal=True),
    "torchao-ceil": Order(p2.block_torchao_ceil, normal=True),
    "torchao-even": Order(p2.block_torchao_even, normal=True),
    "torchao-even-carry": Order(p2.block_torchao_even_carry),
    "compressed-tensors-mx": Order(p2.block_compressed_tensors_mx, p2.scaled_narrow, infinite=True),
    "deepgemm": Order(p2.block_deepgemm),
    "fouroversix-mx": Order(p2.block_fouroversix_mx, p2.scaled_or_zero, infinite=True),
    "fouroversix-mx-unguarded": Order(p2.block_fouroversix_mx, p2.scaled_unguarded, infinite=True),
    "flashinfer-mx": Order(p2.block_flashinfer_mx, p2.scaled_or_zero, infinite=True),
    "te-fp8-block": Order(p2.block_te_fp8),
    "jax-mx": Order(p2.block_jax_mx, p2.scaled_jax_mx, infinite=True),
    "qwix-mx": Order(p2.block_qwix_mx, infinite=True),
}


def global_scale(amax: Tensor | None, k: Known) -> Tensor:
    """g of the order of operations; 1 without a global amax."""
    if amax is None:
        return k.value(1)
    return with_signed_nan(ORDERS[k.spec.arithmetic.name].global_scale(amax, k), amax)


def block_scale(amax: Tensor, g: Tensor, k: Known) -> Tensor:
    """t: what the scale's codec gets. Certificates: mx-floor, mx-ceil, mx-even."""
    return with_signed_nan(ORDERS[k.spec.arithmetic.name].block(amax, g, k), amax, g)


def scaled(x: Tensor, t: Tensor, scale: Tensor, g: Tensor, k: Known) -> Tensor:
    """y: what the element's codec gets. scale: the bytes."""
    order, s = ORDERS[k.spec.arithmetic.name], codecs.decode(scale, k.spec.scale.format)
    if order.infinite:
        s = torch.where(magnitude(t) == INFINITY, float("inf"), s)
    if order.normal:
        s = p2.normal_or_infinite(s)
    return with_signed_nan(order.scaled(x, s, g, k), x, s, g)


def values(q: Tensor, s: Tensor, amax: Tensor | None, k: Known) -> Tensor:
    """Return the value of a code and a scale. Rules: DEQ-1, DEQ-2, DEQ-5."""
    if amax is None:
        return with_signed_nan(mul(q, s), q, s)
    return with_signed_nan(ORDERS[k.spec.arithmetic.name].values(q, s, amax, k), q, s, amax)
