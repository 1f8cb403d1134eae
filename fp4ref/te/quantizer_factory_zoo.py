"""Factories for `CustomRecipe` that mix formats: one for the forward pass, another for the gradients.

Rows of inputs and weights are multiplied in the forward pass, and columns in the backward pass, so a format per
direction is a format per pass.
"""

from __future__ import annotations

from typing import Any

from fp4ref.te.hybrid_quantizer import HybridQuantizer, IdentityQuantizer
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.quantizer_factories import LINEAR, mxfp8_factory, nvfp4_factory
from fp4ref.te.roles import QuantizerRole

Role = QuantizerRole | None


def high_precision_fwd_mxfp8_bwd_factory(role: Role) -> Any:
    """Return MXFP8 for gradients and columns; rows of every other role stay in high precision. Rules: TEL-57."""
    if _tensor(role) == "grad_output":
        return mxfp8_factory(role)
    return HybridQuantizer(rowwise_quantizer=IdentityQuantizer(), columnwise_quantizer=mxfp8_factory(role))


def mxfp8_fwd_nvfp4_bwd_factory(role: Role) -> Any:
    """Return MXFP8 for rows; NVFP4 for gradients, for the input, and for the weight that its rows mean.

    Rules: TEL-57.
    """
    tensor = _tensor(role)
    if tensor == "input":
        return HybridQuantizer(rowwise_quantizer=mxfp8_factory(role), columnwise_quantizer=nvfp4_factory(role))
    if tensor == "weight":
        return _of_rows(mxfp8_factory(role), plain_nvfp4())
    return nvfp4_factory(role) if tensor == "grad_output" else mxfp8_factory(role)


def nvfp4_1d_weight_factory(role: Role) -> Any:
    """Return the quantizers of NVFP4, with 1x16 blocks for weights in both directions. Rules: TEL-57."""
    return _of_rows(plain_nvfp4(), plain_nvfp4()) if _tensor(role) == "weight" else nvfp4_factory(role)


def mxfp8_fwd_high_precision_bwd_factory(role: Role) -> Any:
    """Return MXFP8 for rows, whose values the gradients are made with in high precision. Rules: TEL-57."""
    if _tensor(role) in {"input", "weight"}:
        return _of_rows(mxfp8_factory(role), IdentityQuantizer())
    return IdentityQuantizer() if _tensor(role) == "grad_output" else mxfp8_factory(role)


def nvfp4_row_scaled_fwd_mxfp8_bwd_factory(role: Role) -> Any:
    """Return NVFP4 for rows of grouped layers, with an amax per row of the input, and MXFP8 else. Rules: TEL-57."""
    if role is not None and role.module_type == "grouped_linear" and role.tensor_type in {"input", "weight"}:
        return _of_rows(plain_nvfp4(row_scaled=role.tensor_type == "input"), mxfp8_factory(role))
    return mxfp8_factory(role)


def nvfp4_row_scaled_fwd_high_precision_bwd_factory(role: Role) -> Any:
    """Return NVFP4 for rows, with an amax per row of the input, and high precision for gradients. Rules: TEL-57."""
    tensor = _tensor(role)
    if tensor in {"input", "weight"}:
        return _of_rows(plain_nvfp4(row_scaled=tensor == "input"), IdentityQuantizer())
    return IdentityQuantizer() if tensor == "grad_output" else plain_nvfp4()


def plain_nvfp4(*, row_scaled: bool = False) -> NVFP4Quantizer:
    """Return a quantizer of 1x16 blocks, without a Hadamard transform and stochastic rounding."""
    return NVFP4Quantizer(row_scaled_nvfp4=row_scaled)


def _of_rows(rows: Quantizer, columns: Quantizer) -> HybridQuantizer:
    """Return a quantizer whose columns are quantized from the values of its rows."""
    return HybridQuantizer(
        rowwise_quantizer=rows, columnwise_quantizer=columns, columnwise_source="rowwise_dequantized"
    )


def _tensor(role: Role) -> str:
    """Return the tensor of a linear layer's role; "" for any other role."""
    return role.tensor_type if role is not None and role.module_type in LINEAR else ""
