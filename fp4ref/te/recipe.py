"""Recipes: which operand of fprop, dgrad and wgrad is quantized how.

Defaults that an environment variable sets are read when this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from fp4ref.errors import DomainError
from fp4ref.te.errors import SettingError
from fp4ref.te.recipe_base import (
    Format,
    QParams,
    Range,
    Recipe,
    RecipeKind,
    flag,
    require_backward_override,
    require_format,
    require_no_attention,
    require_settings,
)
from fp4ref.te.recipe_fp8 import DelayedScaling, Float8BlockScaling, Float8CurrentScaling, MMParams

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Range",
    "Recipe",
    "quantizer_factory",
    "quantizer_policy",
]

SCOPES = ("none", "weights", "activations", "all")
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(repr=False)
class NVFP4BlockScaling(Recipe):
    """NVFP4: blocks of 16, weights in 16x16 tiles, Hadamard on both operands of wgrad, gradients rounded at random.

    disable_*: turn one of these off. row_scaled_activation: one amax per row for forward operands that are no weights.
    nvfp4_4over6: which forward operands choose between two block scales ("none", "weights", "activations", "all");
    nvfp4_4over6_e4m3_use_256: which of those reserve room for the larger one; nvfp4_4over6_err_mode: "MAE" or "MSE".
    backward_override: None, "high_precision" or "dequantized".
    fp4_quant_fwd_inp, fp4_quant_fwd_weight, fp4_quant_bwd_grad: set from these, and may be replaced.

    Errors: SettingError.

    Rules: TEL-1, TEL-17, TEL-19. Certificates: recipe-nvfp4.
    """

    KIND = RecipeKind.NVFP4
    disable_rht: bool = flag("NVTE_NVFP4_DISABLE_RHT")
    disable_stochastic_rounding: bool = flag("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")
    disable_2d_quantization: bool = flag("NVTE_NVFP4_DISABLE_2D_QUANTIZATION")
    row_scaled_activation: bool = flag("NVTE_NVFP4_ROW_SCALED_ACTIVATION")
    nvfp4_4over6: str = os.environ.get("NVTE_NVFP4_4OVER6", "none")
    nvfp4_4over6_e4m3_use_256: str = os.environ.get("NVTE_NVFP4_4OVER6_E4M3_USE_256", "all")
    nvfp4_4over6_err_mode: str = os.environ.get("NVTE_NVFP4_4OVER6_ERR_MODE", "MAE")
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")

    def __post_init__(self) -> None:
        require_format(self, "fp4_format", Format.E2M1)
        require_settings(self, Format.E4M3)
        self.nvfp4_4over6_err_mode = self.nvfp4_4over6_err_mode.upper()
        for name, allowed, rule in (
            ("nvfp4_4over6", SCOPES, "TEL-17"),
            ("nvfp4_4over6_e4m3_use_256", SCOPES, "TEL-17"),
            ("nvfp4_4over6_err_mode", ("MAE", "MSE"), "FOS-5"),
        ):
            if getattr(self, name) not in allowed:
                got = f"{name} {getattr(self, name)!r}"
                raise SettingError("NVFP4BlockScaling", got, f"one of {', '.join(allowed)}", rule)
        rht = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=rht)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=rht, stochastic_rounding=not self.disable_stochastic_rounding
        )

    def uses_4over6(self, operand: str) -> bool:
        """Return True if a forward operand, "weight" or another, chooses between two block scales. Rules: TEL-17."""
        return self.nvfp4_4over6 in {"all", "weights" if operand == "weight" else "activations"}

    def e4m3_max(self, operand: str) -> int:
        """Return the block scale of a forward operand's global maximum, 448 or 256. Rules: TEL-17."""
        scope = self.nvfp4_4over6_e4m3_use_256
        reserved = scope in {"all", "weights" if operand == "weight" else "activations"}
        return 256 if self.uses_4over6(operand) and reserved else 448


@dataclass(repr=False)
class MXFP8BlockScaling(Recipe):
    """MXFP8: blocks of 32 with power-of-two scales.

    fp8_format: E4M3, or HYBRID with E5M2 for gradients. enable_2d_quantization: weights of linear layers in 32x32
    tiles. margin is not used by block scaling.

    Errors: SettingError.

    Rules: TEL-2, TEL-20.
    """

    KIND = RecipeKind.MXFP8
    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")
    enable_2d_quantization: bool = False

    def __post_init__(self) -> None:
        require_settings(self, Format.E4M3, Format.HYBRID)


@dataclass(repr=False)
class CustomRecipe(Recipe):
    """A factory makes the quantizer of each tensor: `qfactory(role)`, None for a tensor that is not quantized.

    The role is None for a result whose consumer is unknown: the output, and the gradient of the input. fp8_format:
    read by scripts, does not choose anything. quantization_alignment: groups are padded to multiples of this many
    rows. qfactory_key, policy_key: names of what the factory does, taken from the factory if it has them; nothing here
    reads them.

    Rules: TEL-1, TEL-2, TEL-58.
    """

    KIND = RecipeKind.CUSTOM
    qfactory: Callable[..., Any]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")
    quantization_alignment: int = 128
    qfactory_key: Any = None
    policy_key: Any = None

    def __post_init__(self) -> None:
        self.qfactory_key = self.qfactory_key or getattr(self.qfactory, "qfactory_key", None)
        self.policy_key = self.policy_key or getattr(self.qfactory, "policy_key", None)
        if not callable(self.qfactory):
            raise DomainError("CustomRecipe", f"qfactory {self.qfactory!r}", "a function of a tensor's role", "TEL-2")
        if self.quantization_alignment <= 0:
            got = f"quantization_alignment must be positive, not {self.quantization_alignment}"
            raise SettingError("CustomRecipe", got, "a number of rows")
        require_backward_override(self.backward_override)
        require_no_attention(self)


def quantizer_factory(key: Hashable) -> Callable[[Factory], Factory]:
    """Return a decorator that names what a factory of quantizers does, as its attribute `qfactory_key`."""
    return _labelled("quantizer_factory", "qfactory_key", key)


def quantizer_policy(key: Hashable) -> Callable[[Factory], Factory]:
    """Return a decorator that names what a factory of quantizers does, as its attribute `policy_key`."""
    return _labelled("quantizer_policy", "policy_key", key)


def _labelled(decorator: str, attribute: str, key: Hashable) -> Callable[[Factory], Factory]:
    if not isinstance(key, Hashable):
        raise TypeError(f"{decorator} key must be hashable, got {key!r}")

    def label(factory: Factory) -> Factory:
        setattr(factory, attribute, key)
        return factory

    return label
