"""Factories for `CustomRecipe` whose quantizers are those of the other recipes with their default settings.

A script branches from one of them: it returns another quantizer for the roles that it treats otherwise.
"""

from __future__ import annotations

from fp4ref.te.dtypes import DType
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer
from fp4ref.te.hybrid_quantizer import IdentityQuantizer
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.recipe_base import Format
from fp4ref.te.roles import DelayedScalingRequest, QuantizerRole

LINEAR = ("linear", "grouped_linear")


def high_precision_factory(role: QuantizerRole | None) -> IdentityQuantizer:
    """Return a quantizer that leaves every tensor as it is. Rules: TEL-60."""
    return IdentityQuantizer()


def delayed_scaling_factory(role: QuantizerRole | None) -> DelayedScalingRequest:
    """Ask for delayed scaling with a history of 1024, E4M3 forward and E5M2 backward. Rules: TEL-44."""
    return DelayedScalingRequest(fp8_format=Format.HYBRID)


def current_scaling_factory(role: QuantizerRole | None) -> Float8CurrentScalingQuantizer:
    """Return a quantizer per tensor: E5M2 for grad_output, E4M3 for every other role. Rules: TEL-2, TEL-55."""
    gradient = role is not None and role.tensor_type == "grad_output"
    return Float8CurrentScalingQuantizer(DType.kFloat8E5M2 if gradient else DType.kFloat8E4M3)


def float8_block_scaling_factory(role: QuantizerRole | None) -> Float8BlockQuantizer:
    """Return a quantizer of E4M3 with scales of powers of two, in tiles for weights. Rules: TEL-48, TEL-55."""
    return Float8BlockQuantizer(DType.kFloat8E4M3, block_scaling_dim=2 if _of_linear(role, "weight") else 1)


def mxfp8_factory(role: QuantizerRole | None) -> MXFP8Quantizer:
    """Return a quantizer of E4M3. Rules: TEL-2, TEL-55."""
    return MXFP8Quantizer(DType.kFloat8E4M3)


def nvfp4_factory(role: QuantizerRole | None) -> NVFP4Quantizer:
    """Return a quantizer in tiles for weights, one with a Hadamard transform for every other role.

    Gradients are rounded stochastically. The environment's settings (TEL-19) are not read.

    Rules: TEL-1, TEL-55, TEL-83.
    """
    weight = _of_linear(role, "weight")
    return NVFP4Quantizer(
        with_rht=not weight,
        with_post_rht_amax=not weight,
        with_2d_quantization=weight,
        stochastic_rounding=_of_linear(role, "grad_output"),
    )


def _of_linear(role: QuantizerRole | None, tensor_type: str) -> bool:
    """Return True for this tensor of a linear module; a role without a module is none of them."""
    return role is not None and role.module_type in LINEAR and role.tensor_type == tensor_type
