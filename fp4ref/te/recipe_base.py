"""The common parts of recipes: formats, the quantization of one operand, predicates by kind, checks of settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from fp4ref.te.errors import NotEmulatedError, SettingError

BACKWARD_OVERRIDES = (None, "high_precision", "dequantized")


def flag(name: str) -> bool:
    """Return True if an environment variable is 1."""
    return os.environ.get(name, "0") == "1"


class Range(NamedTuple):
    """Largest magnitudes of the forward and of the backward format."""

    max_fwd: float
    max_bwd: float


class RecipeFormat(Enum):
    """Element formats of a recipe: forward and backward."""

    E2M1 = Range(6, 6)
    E4M3 = Range(448, 448)
    E5M2 = Range(57344, 57344)
    HYBRID = Range(448, 57344)


# The name that Transformer Engine gives it, also in texts and pickles
Format = RecipeFormat
Format.__name__ = Format.__qualname__ = "Format"


@dataclass(frozen=True)
class QParams:
    """The quantization of one operand."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False

    def __repr__(self) -> str:
        return f"Qparams({', '.join(f'{field.name}={getattr(self, field.name)}' for field in fields(self))})"


class RecipeKind(Enum):
    """The kinds of recipes that code asks for."""

    NVFP4 = "NVFP4 block scaling"
    MXFP8 = "MXFP8 block scaling"
    CURRENT = "per-tensor FP8 with a scale from the tensor itself"
    DELAYED = "per-tensor FP8 with scales from earlier tensors"
    FP8_BLOCKS = "FP8 with float32 block scales"
    CUSTOM = "quantizers from a factory"


class Recipe:
    """The base of all recipes: predicates by kind, on classes and instances. A recipe states its `KIND`."""

    KIND: ClassVar[RecipeKind | None] = None

    @classmethod
    def nvfp4(cls) -> bool:
        """Return True if this is NVFP4 block scaling."""
        return cls.KIND is RecipeKind.NVFP4

    @classmethod
    def mxfp8(cls) -> bool:
        """Return True if this is MXFP8 block scaling."""
        return cls.KIND is RecipeKind.MXFP8

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Return True if this is per-tensor FP8 with a scale from the tensor itself."""
        return cls.KIND is RecipeKind.CURRENT

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Return True if this is FP8 with one scale per tensor."""
        return cls.KIND is RecipeKind.CURRENT or cls.KIND is RecipeKind.DELAYED

    @classmethod
    def delayed(cls) -> bool:
        """Return True if scales come from earlier tensors."""
        return cls.KIND is RecipeKind.DELAYED

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """Return True if this is FP8 with float32 block scales."""
        return cls.KIND is RecipeKind.FP8_BLOCKS

    @classmethod
    def custom(cls) -> bool:
        """Return True if a factory makes the quantizers."""
        return cls.KIND is RecipeKind.CUSTOM

    def __repr__(self) -> str:
        values = []
        for name, value in vars(self).items():
            text = value.name if isinstance(value, Format) else value
            values.append(f"{'format' if name in {'fp4_format', 'fp8_format'} else name}={text}")
        return ", ".join([f"recipe_type={type(self).__name__}", *values])


def require_backward_override(value: str | None) -> None:
    """Raise for an override of backward operands that does not exist. Rules: TEL-19."""
    if value not in BACKWARD_OVERRIDES:
        raise SettingError(
            "recipe", f"backward_override {value!r}", "None, 'high_precision' or 'dequantized'", "TEL-19"
        )


def require_format(recipe: Recipe, name: str, *allowed: Format) -> None:
    """Raise if a recipe's format is none of those it can have. Rules: TEL-1."""
    got = getattr(recipe, name)
    if got not in allowed:
        needed = " or ".join(value.name for value in allowed)
        shown = got.name if isinstance(got, Format) else repr(got)
        raise SettingError(type(recipe).__name__, f"{name} {shown}", needed, "TEL-1")


def require_no_attention(recipe: Any) -> None:
    """Raise for a recipe that asks for quantized attention. Rules: TEL-1."""
    for name in ("fp8_dpa", "fp8_mha"):
        if getattr(recipe, name):
            raise NotEmulatedError(type(recipe).__name__, f"{name}=True", "False: attention is not quantized", "TEL-1")


def require_settings(recipe: Any, *formats: Format) -> None:
    """Raise for another FP8 format than these, for quantized attention, and for an unknown override."""
    require_format(recipe, "fp8_format", *formats)
    require_no_attention(recipe)
    require_backward_override(recipe.backward_override)
